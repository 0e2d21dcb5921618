"""The sample scripts: each keeps its docstring's promise, and is seen as it is.

Each script writes its own truth to the file named by SAMPLE_TRUTH (sample_scripts/truth.py). Every
cost that one times itself is found again, the verdict is right, and under plain python, where it
writes no truth, the same comes out. One runs as it stands, the others without torch's compiler,
which takes longer to import than they train.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.machine import attempts
from support.styles import without_compiler

pytestmark = pytest.mark.truth

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "sample_scripts"
CONFIG = str(ROOT / "configs" / "example_config.py")
AS_IT_STANDS = "train.py"

# A planted cost comes out within 2 % of the truth, or 75 us a call, whichever is larger: what
# Python does between the truth's clock and ours takes some 30 us on a cold cache, and up to 70 us
# in the worst hours of a virtual machine whose neighbours keep it cold.
SHARE = 0.02
CALL_S = 75e-6
# Our own cost at the first iterator of a run, where the log is opened and the loader described, and
# behind the first update, where it is noted how torch is set.
ONCE_S = {"loader_start": 5e-3, "optimizer": 2e-3}
CLOSES = 0.005
REST = 0.03

LOADER = ("loader_start", "first_batch", "data_wait", "loader_end")


@dataclass(frozen=True)
class Claim:
    """What a script's docstring says.

    Attributes:
        planted: Names in the truth file whose seconds count together.
        whole: Names of which they are said to be a part.
        share: Least share of `planted` in `whole`, below what the docstring says: machines differ.
        counts: What the truth file must count.
    """

    planted: tuple[str, ...]
    whole: tuple[str, ...]
    share: float
    counts: Mapping[str, int]

    def share_in(self, truth: dict[str, Any]) -> float:
        planted, whole = (
            sum(truth[name]["seconds"] for name in names) for names in (self.planted, self.whole)
        )
        return planted / whole


@dataclass(frozen=True)
class Case:
    """A sample script, shortened.

    Attributes:
        arguments: After the script.
        bottleneck: Of the verdict.
        line: Text of the line that the verdict names, None where it names none.
        planted: Ledger key to the names of the truth it is checked against.
        other: Names of the truth that are python between the spans; () where none is planted.
        calls: Of what a span of the truth holds, where it is more than one.
        counts: {steps, iterations, epochs, samples, evaluated}.
        claim: What its docstring says.
        finding: The first one's id, and a piece of text of the line or the function that it names;
            None where there is to be none.
    """

    arguments: tuple[str, ...]
    bottleneck: str
    line: str | None
    planted: Mapping[str, tuple[str, ...]]
    counts: Mapping[str, int | None]
    claim: Claim
    other: tuple[str, ...] = field(default=())
    finding: tuple[str, str] | None = None
    calls: Mapping[str, int] = field(default_factory=dict)


def same(*names: str) -> dict[str, tuple[str, ...]]:
    return {name: (name,) for name in names}


# Those with findings have over twice as many steps as a verdict needs: where other programs begin
# or end in the midst of a run, up to half of its steps count as warm-up.
CASES = {
    "train.py": Case(
        (CONFIG, "pictures=96", "batch_size=4", "width=32"),
        "data",
        "train_loader = DataLoader(",
        same(*LOADER, "evaluation"),
        {"steps": 48, "iterations": 48, "epochs": 2, "samples": 192, "evaluated": 32},
        Claim(
            ("first_batch", "data_wait"),
            ("training",),
            0.5,
            {"epochs": 2, "iterations": 48, "steps": 48, "samples": 192, "brighten": 192},
        ),
        finding=("serial_loading", "train_loader = DataLoader("),
    ),
    "healthy.py": Case(
        ("epochs=3", "samples=512", "batch_size=32"),
        "compute",
        None,
        same(*LOADER, "forward", "zero_grad", "backward", "optimizer", "evaluation"),
        {"steps": 48, "iterations": 48, "epochs": 3, "samples": 1536, "evaluated": 9},
        Claim(
            ("forward", "backward"),
            ("training",),
            0.8,
            {"epochs": 3, "iterations": 48, "steps": 48, "samples": 1536, "optimizer": 48},
        ),
    ),
    "slow_validation.py": Case(
        ("epochs=2", "pictures=192", "batch_size=8", "width=16"),
        "evaluation",
        "validation_loader = DataLoader(validation_set, batch_size=1)",
        same(*LOADER, "evaluation"),
        {"steps": 48, "iterations": 48, "epochs": 2, "samples": 384, "evaluated": 128},
        Claim(
            ("evaluation",),
            ("training", "evaluation"),
            0.4,
            {"epochs": 2, "steps": 48, "evaluation": 2, "slow_storage": 128},
        ),
        finding=("slow_validation", "validation_loader = DataLoader("),
    ),
    "slow_checkpoints.py": Case(
        ("epochs=2", "save_every=10"),
        "checkpoint",
        "torch.save(state, file)",
        same(*LOADER, "checkpoint"),
        {"steps": 56, "iterations": 56, "epochs": 2, "samples": 3584, "evaluated": 0},
        Claim(
            ("checkpoint",),
            ("training",),
            0.4,
            {"epochs": 2, "iterations": 56, "steps": 56, "checkpoint": 5},
        ),
        finding=("slow_checkpoints", "torch.save(state, file)"),
    ),
    "python_heavy.py": Case(
        ("epochs=3",),
        "host",
        None,
        same(*LOADER),
        {"steps": 84, "iterations": 84, "epochs": 3, "samples": 5376, "evaluated": 0},
        Claim(
            ("metrics",),
            ("training",),
            0.4,
            {"epochs": 3, "iterations": 84, "steps": 84, "metrics": 84},
        ),
        other=("metrics",),
        finding=("python_in_loop", "ranking_quality"),
    ),
    "no_dataloader.py": Case(
        ("steps=50", "tokens=1000000", "block_size=64"),
        "host",
        None,
        {},
        {"steps": 50, "iterations": 50, "epochs": 0, "samples": None, "evaluated": 0},
        Claim(("get_batch",), ("training",), 0.15, {"steps": 50, "get_batch": 50}),
        other=("get_batch",),
        finding=("python_in_loop", "get_batch"),
    ),
    "gan.py": Case(
        ("epochs=4",),
        "compute",
        None,
        same(*LOADER, "forward", "backward", "optimizer"),
        {"steps": 56, "iterations": 112, "epochs": 4, "samples": 7168, "evaluated": 0},
        Claim(
            ("forward", "backward"),
            ("training",),
            0.8,
            {"epochs": 4, "iterations": 112, "steps": 56, "optimizer": 56, "forward": 224},
        ),
        other=("targets", "freezing"),
        calls={"optimizer": 2},
    ),
}


@dataclass(frozen=True)
class Profiled:
    """A sample under trainprof: what it printed, its summary and its truth."""

    stdout: str
    summary: dict[str, Any]
    truth: dict[str, Any]


def profiled(script: str, folder: Path) -> Profiled:
    """Runs a sample under trainprof, again where it was disturbed: the machine is not ours alone.

    What computes is slowed by whatever else the machine does, what sleeps is not.
    """
    sample = CASES[script]
    for attempt in attempts():
        (folder / str(attempt)).mkdir(parents=True)
        misses = _profiled(script, folder / str(attempt))
        share = sample.claim.share_in(misses.truth)
        if (
            sample.claim.share < share
            and not missed(sample, misses.summary, misses.truth)
            and not misjudged(sample, script, misses.summary)
        ):
            break
    return misses


def _profiled(script: str, folder: Path) -> Profiled:
    truth = folder / "truth.json"
    words = ["-m", "trainprof", "run", "-q", "-o", str(folder / "run")]
    path = placed(script, folder)
    done = _run(words, path, folder, cwd=path.parents[1], SAMPLE_TRUTH=str(truth))
    summary = json.loads((folder / "run" / "summary.json").read_text())
    return Profiled(done.stdout, summary, json.loads(truth.read_text()))


def placed(script: str, folder: Path) -> Path:
    """Returns where a sample is run: where it stands, or without torch's compiler in `folder`."""
    if script == AS_IT_STANDS:
        return SAMPLES / script
    (SAMPLES / "data").mkdir(exist_ok=True)  # where they keep what they make at their first run
    samples = folder / "project" / SAMPLES.name
    samples.mkdir(parents=True)
    for path in SAMPLES.iterdir():
        if path.name == script:
            (samples / script).write_text(without_compiler(path.read_text()))
        else:
            (samples / path.name).symlink_to(path)
    return samples / script


def _run(
    words: Sequence[str], script: Path, folder: Path, *, cwd: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs a sample on one thread, in `cwd`; what it saves goes to `folder`."""
    arguments = list(CASES[script.name].arguments)
    if script.name == "slow_checkpoints.py":
        arguments.append(f"checkpoint={folder / 'checkpoint.pt'}")
    inherited = {key: value for key, value in os.environ.items() if key != "SAMPLE_TRUTH"}
    done = subprocess.run(
        [sys.executable, *words, str(script), *arguments],
        cwd=cwd,
        # One thread is no fault where one core is allotted.
        env=inherited | {"OMP_NUM_THREADS": "1", "SLURM_CPUS_PER_TASK": "1"} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr.lower()
    return done


def missed(
    sample: Case, summary: dict[str, Any], truth: dict[str, Any]
) -> dict[str, tuple[float, float]]:
    """Returns what does not come out: ledger key to (truth, ledger), in seconds."""
    misses = {}
    looks_s = summary["overhead"]["looks_s"] or 0.0
    for key, names in sample.planted.items():
        planted_s = sum(truth[name]["seconds"] for name in names)
        seconds = summary["ledger"]["seconds"][key]
        # A step of several batches has as many spans of the loader.
        calls = sample.calls.get(key, 1) * max(
            summary["training"]["steps"], *(truth[name]["count"] for name in names)
        )
        slack_s = max(SHARE * planted_s, CALL_S * calls) + ONCE_S.get(key, 0.0)
        # What our closer looks took is said, and no part of the ledger's: the script timed it.
        over_s = seconds - planted_s
        if over_s > slack_s or -over_s > slack_s + looks_s:
            misses[key] = (planted_s, seconds)
    planted_s = sum(truth[name]["seconds"] for name in sample.other)
    other_s = summary["ledger"]["seconds"]["other"]
    # A pause of the garbage collector inside is gc, and is not what was planted.
    rest_s = other_s + summary["ledger"]["seconds"]["gc"]
    slack_s = max(SHARE * planted_s, CALL_S * summary["training"]["steps"])
    # What our closer looks took is in there.
    most_s = planted_s + looks_s + REST * summary["phases"]["training_s"]
    if other_s > most_s or (sample.other and rest_s < planted_s - slack_s):
        misses["other"] = (planted_s, other_s)
    return misses


@pytest.mark.parametrize("script", CASES)
def test_a_sample_script_holds_what_it_claims_and_is_seen_as_it_is(script, tmp_path):
    sample = CASES[script]
    misses = profiled(script, tmp_path / "profiled")
    summary, truth = misses.summary, misses.truth
    check_plain_run(script, misses.stdout, tmp_path)
    assert {name: truth[name]["count"] for name in sample.claim.counts} == sample.claim.counts
    assert sample.claim.share < sample.claim.share_in(truth) < 1

    seconds, training = summary["ledger"]["seconds"], summary["training"]

    assert summary["faults"] == []
    assert sum(seconds.values()) == pytest.approx(summary["ledger"]["wall_s"], rel=CLOSES)
    counts = {name: training[name] for name in sample.counts if name != "evaluated"}
    assert counts | {"evaluated": summary["evaluation"]["iterations"]} == sample.counts
    assert training["steps"] == truth["steps"]["count"]

    assert missed(sample, summary, truth) == {}
    assert misjudged(sample, script, summary) == {}


def check_plain_run(script: str, profiled_stdout: str, tmp_path: Path) -> None:
    """Neither profiling nor timing itself changes what a script computes; plain, it leaves nothing.

    So it repeats itself, too.
    """
    empty = tmp_path / "empty"
    empty.mkdir()
    plain = _run([], placed(script, tmp_path), tmp_path, cwd=empty)
    assert plain.stdout.splitlines()[-1].startswith("final loss ")
    assert plain.stdout == profiled_stdout
    assert not any(empty.iterdir())


def misjudged(sample: Case, script: str, summary: dict[str, Any]) -> dict[str, Any]:
    """Returns what is not as it should be of the verdict and of the findings, and all of it.

    What holds a sample back is named with its line, and found first; else nothing is.
    """
    verdict, findings = summary["verdict"], summary["findings"]
    line = None if verdict["site"] is None else _line_at(verdict["site"], script).strip()
    misses: dict[str, Any] = {}
    if (verdict["bottleneck"], line) != (sample.bottleneck, sample.line):
        misses["verdict"] = verdict
    if sample.finding is None:
        is_right = not findings
    else:
        is_right = bool(findings) and _is_named(sample.finding, findings[0], script)
    if not is_right:
        misses["findings"] = (findings, summary["training"]["steady_steps"])
    return misses


def _is_named(expected: tuple[str, str], first: dict[str, Any], script: str) -> bool:
    name, text = expected
    low, high = first["predicted_speedup"]
    is_there = text in _line_at(first["site"], script) or text in first["advice"]
    return first["id"] == name and is_there and low < high and high > 1.1


def _line_at(site: str | None, script: str) -> str:
    """Returns the text of a script's line; "" where none is named, or another file's."""
    file, _, line = (site or "").rpartition(":")
    is_there = file == f"{SAMPLES.name}/{script}"
    return (SAMPLES / script).read_text().splitlines()[int(line) - 1] if is_there else ""


def test_every_sample_script_is_tested_and_knows_nothing_of_trainprof():
    shared = {"truth.py", "overrides.py", "pictures.py"}
    assert {path.name for path in SAMPLES.glob("*.py")} - shared == set(CASES)
    for path in [*SAMPLES.glob("*.py"), Path(CONFIG)]:
        assert "trainprof" not in path.read_text(), path


@pytest.mark.parametrize(
    ("script", "arguments", "message"),
    [
        ("train.py", [], "usage: python train.py CONFIG.py [key=value ...]\n"),
        ("healthy.py", ["epoch=1"], "no setting 'epoch'; there are: epochs, batch_size, "),
    ],
)
def test_a_mistyped_command_line_is_told_in_one_line(script, arguments, message, tmp_path):
    command = [sys.executable, str(SAMPLES / script), *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1
