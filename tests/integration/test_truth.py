"""The sample scripts: each is seen as it is.

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
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.machine import attempts
from support.styles import ROOT, TRAINPROF, without_compiler

pytestmark = pytest.mark.truth

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
class Sample:
    """A sample script, shortened.

    Attributes:
        arguments: After the script.
        bottleneck: Of the verdict.
        line: Text of the line that the verdict names, None where it names none.
        planted: Ledger keys that are checked against the truth of the same name.
        counts: Steps, iterations, epochs, samples, evaluated batches.
        other: Names of the truth that are python between the spans; () where none is planted.
        finding: The first one's id, and a piece of text of the line or the function that it names;
            None where there is to be none.
        calls: Of what a span of the truth holds, where it is more than one.
    """

    arguments: tuple[str, ...]
    bottleneck: str
    line: str | None
    planted: tuple[str, ...]
    counts: tuple[int | None, ...]
    other: tuple[str, ...] = ()
    finding: tuple[str, str] | None = None
    calls: Mapping[str, int] = field(default_factory=dict)


# Those with findings have over twice as many steps as a verdict needs: where other programs begin
# or end in the midst of a run, up to half of its steps count as warm-up.
SCRIPTS = {
    "train.py": Sample(
        (CONFIG, "pictures=96", "batch_size=4", "width=32"),
        "data",
        "train_loader = DataLoader(",
        (*LOADER, "evaluation"),
        (48, 48, 2, 192, 32),
        finding=("serial_loading", "train_loader = DataLoader("),
    ),
    "healthy.py": Sample(
        ("epochs=3", "samples=512", "batch_size=32"),
        "compute",
        None,
        (*LOADER, "forward", "zero_grad", "backward", "optimizer", "evaluation"),
        (48, 48, 3, 1536, 9),
    ),
    "slow_validation.py": Sample(
        ("epochs=2", "pictures=192", "batch_size=8", "width=16"),
        "evaluation",
        "validation_loader = DataLoader(validation_set, batch_size=1)",
        (*LOADER, "evaluation"),
        (48, 48, 2, 384, 128),
        finding=("slow_validation", "validation_loader = DataLoader("),
    ),
    "slow_checkpoints.py": Sample(
        ("epochs=2", "save_every=10"),
        "checkpoint",
        "torch.save(state, file)",
        (*LOADER, "checkpoint"),
        (56, 56, 2, 3584, 0),
        finding=("slow_checkpoints", "torch.save(state, file)"),
    ),
    "python_heavy.py": Sample(
        ("epochs=3",),
        "host",
        None,
        LOADER,
        (84, 84, 3, 5376, 0),
        other=("metrics",),
        finding=("python_in_loop", "ranking_quality"),
    ),
    "no_dataloader.py": Sample(
        ("steps=50", "tokens=1000000", "block_size=64"),
        "host",
        None,
        (),
        (50, 50, 0, None, 0),
        other=("get_batch",),
        finding=("python_in_loop", "get_batch"),
    ),
    "gan.py": Sample(
        ("epochs=4",),
        "compute",
        None,
        (*LOADER, "forward", "backward", "optimizer"),
        (56, 112, 4, 7168, 0),
        other=("targets", "freezing"),
        calls={"optimizer": 2},
    ),
}


def profiled(name: str, folder: Path) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Runs a sample under trainprof; returns what it printed, its summary and its truth."""
    folder.mkdir()
    truth, path = folder / "truth.json", placed(name, folder)
    words = (*TRAINPROF, "-o", str(folder / "run"))
    printed = _run(words, path, folder, cwd=path.parents[1], SAMPLE_TRUTH=str(truth))
    summary = json.loads((folder / "run" / "summary.json").read_text())
    return printed, summary, json.loads(truth.read_text())


def placed(name: str, folder: Path) -> Path:
    """Returns where a sample is run: where it stands, or without torch's compiler in `folder`."""
    if name == AS_IT_STANDS:
        return SAMPLES / name
    (SAMPLES / "data").mkdir(exist_ok=True)  # where they keep what they make at their first run
    samples = folder / "project" / SAMPLES.name
    samples.mkdir(parents=True)
    for path in SAMPLES.iterdir():
        if path.name == name:
            (samples / name).write_text(without_compiler(path.read_text()))
        else:
            (samples / path.name).symlink_to(path)
    return samples / name


def _run(
    launcher: tuple[str, ...], script: Path, folder: Path, *, cwd: Path, **environment: str
) -> str:
    """Runs a sample on one thread, in `cwd`; what it saves goes to `folder`."""
    arguments = list(SCRIPTS[script.name].arguments)
    if script.name == "slow_checkpoints.py":
        arguments.append(f"checkpoint={folder / 'checkpoint.pt'}")
    inherited = {key: value for key, value in os.environ.items() if key != "SAMPLE_TRUTH"}
    # One thread is no fault where one core is allotted.
    ours = {"OMP_NUM_THREADS": "1", "SLURM_CPUS_PER_TASK": "1"}
    done = subprocess.run(
        [*launcher, str(script), *arguments],
        cwd=cwd,
        env=inherited | ours | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr.lower()
    return done.stdout


def missed(
    sample: Sample, summary: dict[str, Any], truth: dict[str, Any]
) -> dict[str, tuple[float, float]]:
    """Returns what does not come out: ledger key to (truth, ledger), in seconds."""
    misses = {}
    steps, seconds = summary["training"]["steps"], summary["ledger"]["seconds"]
    looks_s = summary["overhead"]["looks_s"] or 0.0
    for key in sample.planted:
        planted_s = truth[key]["seconds"]
        # A step of several batches has as many spans of the loader.
        calls = sample.calls.get(key, 1) * max(steps, truth[key]["count"])
        slack_s = max(SHARE * planted_s, CALL_S * calls) + ONCE_S.get(key, 0.0)
        # What our closer looks took is said, and no part of the ledger's: the script timed it.
        if not -slack_s - looks_s <= seconds[key] - planted_s <= slack_s:
            misses[key] = (planted_s, seconds[key])
    planted_s = sum(truth[name]["seconds"] for name in sample.other)
    slack_s = max(SHARE * planted_s, CALL_S * steps)
    # What our closer looks took is in there.
    most_s = planted_s + looks_s + REST * summary["phases"]["training_s"]
    # A pause of the garbage collector inside is gc, and is not what was planted.
    rest_s = seconds["other"] + seconds["gc"]
    if seconds["other"] > most_s or (sample.other and rest_s < planted_s - slack_s):
        misses["other"] = (planted_s, seconds["other"])
    return misses


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_sample_script_is_seen_as_it_is(name: str, tmp_path: Path) -> None:
    """What computes is slowed by whatever else the machine does, what sleeps is not."""
    sample = SCRIPTS[name]
    for attempt in attempts():
        printed, summary, truth = profiled(name, tmp_path / f"profiled-{attempt}")
        misses = missed(sample, summary, truth) | misjudged(sample, name, summary)
        if not misses:
            break
    assert misses == {}
    seconds, training = summary["ledger"]["seconds"], summary["training"]
    assert summary["faults"] == []
    assert sum(seconds.values()) == pytest.approx(summary["ledger"]["wall_s"], rel=CLOSES)
    counts = [training[count] for count in ("steps", "iterations", "epochs", "samples")]
    assert (*counts, summary["evaluation"]["iterations"]) == sample.counts
    assert training["steps"] == truth["steps"]["count"]

    # Neither profiling nor timing itself changes what it computes; plain, it leaves nothing.
    empty = tmp_path / "empty"
    empty.mkdir()
    assert _run((sys.executable,), placed(name, tmp_path), tmp_path, cwd=empty) == printed
    assert printed.splitlines()[-1].startswith("final loss ")
    assert not any(empty.iterdir())


def misjudged(sample: Sample, name: str, summary: dict[str, Any]) -> dict[str, Any]:
    """Returns what is not as it should be of the verdict and of the findings, and all of it.

    What holds a sample back is named with its line, and found first; else nothing is.
    """
    verdict, findings = summary["verdict"], summary["findings"]
    line = None if verdict["site"] is None else _line_at(verdict["site"], name).strip()
    misses: dict[str, Any] = {}
    if (verdict["bottleneck"], line) != (sample.bottleneck, sample.line):
        misses["verdict"] = verdict
    if sample.finding is None:
        is_right = not findings
    else:
        is_right = bool(findings) and _is_named(sample.finding, findings[0], name)
    if not is_right:
        misses["findings"] = (findings, summary["training"]["steady_steps"])
    return misses


def _is_named(expected: tuple[str, str], first: dict[str, Any], name: str) -> bool:
    slug, text = expected
    low, high = first["predicted_speedup"]
    is_there = text in _line_at(first["site"], name) or text in first["advice"]
    return first["id"] == slug and is_there and low < high and high > 1.1


def _line_at(site: str | None, name: str) -> str:
    """Returns the text of a script's line; "" where none is named, or another file's."""
    file, _, line = (site or "").rpartition(":")
    is_there = file == f"{SAMPLES.name}/{name}"
    return (SAMPLES / name).read_text().splitlines()[int(line) - 1] if is_there else ""


def test_every_sample_script_is_tested_and_knows_nothing_of_trainprof() -> None:
    shared = {"truth.py", "overrides.py", "pictures.py"}
    assert {path.name for path in SAMPLES.glob("*.py")} - shared == set(SCRIPTS)
    for path in [*SAMPLES.glob("*.py"), Path(CONFIG)]:
        assert "trainprof" not in path.read_text(), path
