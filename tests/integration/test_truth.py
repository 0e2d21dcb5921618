"""The sample scripts: every cost that one times itself is found again, and the verdict is right.

Each script writes its own truth to the file named by SAMPLE_TRUTH (sample_scripts/truth.py).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support.styles import ATTEMPTS

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "sample_scripts"
CONFIG = str(ROOT / "configs" / "example_config.py")

# A planted cost comes out within 2 % of the truth, or 50 us a step, whichever is larger.
SHARE = 0.02
STEP_S = 50e-6
# Our own cost at the first iterator of a run: the log is opened and the loader described there.
ONCE_S = {"loader_start": 5e-3}
CLOSES = 0.005
REST = 0.03

LOADER = ("loader_start", "first_batch", "data_wait", "loader_end")


@dataclass(frozen=True)
class Case:
    """A sample script, shortened.

    Attributes:
        arguments: After the script.
        bottleneck: Of the verdict.
        line: Text of the line that the verdict names, None where it names none.
        planted: Ledger key to the names of the truth it is checked against.
        other: Names of the truth that are python between the spans; () where none is planted.
        counts: {steps, iterations, epochs, samples, evaluated}.
        finding: The first one's id, and a piece of text of the line or the function that it names;
            None where there is to be none.
    """

    arguments: tuple[str, ...]
    bottleneck: str
    line: str | None
    planted: Mapping[str, tuple[str, ...]]
    counts: Mapping[str, int | None]
    other: tuple[str, ...] = field(default=())
    finding: tuple[str, str] | None = None


def same(*names: str) -> dict[str, tuple[str, ...]]:
    return {name: (name,) for name in names}


CASES = {
    "train.py": Case(
        (CONFIG, "pictures=128"),
        "data",
        "train_loader = DataLoader(",
        same(*LOADER, "evaluation"),
        {"steps": 32, "iterations": 32, "epochs": 2, "samples": 256, "evaluated": 16},
        finding=("serial_loading", "train_loader = DataLoader("),
    ),
    "healthy.py": Case(
        ("epochs=3", "samples=768"),
        "compute",
        None,
        same(*LOADER, "forward", "zero_grad", "backward", "optimizer", "evaluation"),
        {"steps": 36, "iterations": 36, "epochs": 3, "samples": 2304, "evaluated": 5},
    ),
    "slow_validation.py": Case(
        ("epochs=2", "pictures=256"),
        "evaluation",
        "validation_loader = DataLoader(validation_set, batch_size=1)",
        same(*LOADER, "evaluation"),
        {"steps": 32, "iterations": 32, "epochs": 2, "samples": 512, "evaluated": 128},
        finding=("slow_validation", "validation_loader = DataLoader("),
    ),
    "slow_checkpoints.py": Case(
        ("epochs=2", "save_every=10"),
        "checkpoint",
        "torch.save(state, file)",
        same(*LOADER, "checkpoint"),
        {"steps": 56, "iterations": 56, "epochs": 2, "samples": 3584, "evaluated": 0},
        finding=("slow_checkpoints", "torch.save(state, file)"),
    ),
    "python_heavy.py": Case(
        ("epochs=3",),
        "host",
        None,
        same(*LOADER),
        {"steps": 84, "iterations": 84, "epochs": 3, "samples": 5376, "evaluated": 0},
        other=("metrics",),
        finding=("python_in_loop", "ranking_quality"),
    ),
    "no_dataloader.py": Case(
        ("steps=50",),
        "host",
        None,
        {},
        {"steps": 50, "iterations": 50, "epochs": 0, "samples": None, "evaluated": 0},
        other=("get_batch",),
        finding=("python_in_loop", "get_batch"),
    ),
    "gan.py": Case(
        ("epochs=4", "samples=1024"),
        "compute",
        None,
        same(*LOADER, "forward", "backward", "optimizer"),
        {"steps": 32, "iterations": 64, "epochs": 4, "samples": 4096, "evaluated": 0},
    ),
}


Profiled = tuple[dict[str, Any], dict[str, Any]]


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Profiled]:
    """Runs a sample under trainprof; returns its summary and its truth.

    Again where a run was disturbed: the machine is not ours alone.
    """

    @cache
    def run(script: str) -> Profiled:
        case = CASES[script]
        for _ in range(ATTEMPTS):
            found = _profiled(script, case, tmp_path_factory.mktemp("sample"))
            if not missed(case, *found):
                break
        return found

    return run


def _profiled(script: str, case: Case, tmp_path: Path) -> Profiled:
    truth = tmp_path / "truth.json"
    arguments = list(case.arguments)
    if script == "slow_checkpoints.py":
        arguments.append(f"checkpoint={tmp_path / 'checkpoint.pt'}")
    words = ["-m", "trainprof", "run", "-q", "-o", str(tmp_path / "run"), str(SAMPLES / script)]
    done = subprocess.run(
        [sys.executable, *words, *arguments],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "SAMPLE_TRUTH": str(truth)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    return summary, json.loads(truth.read_text())


def missed(
    case: Case, summary: dict[str, Any], truth: dict[str, Any]
) -> dict[str, tuple[float, float]]:
    """Returns what does not come out: ledger key to (truth, ledger), in seconds."""
    found = {}
    for key, names in case.planted.items():
        planted_s = sum(truth[name]["seconds"] for name in names)
        seconds = summary["ledger"]["seconds"][key]
        # A step of several batches has as many spans of the loader.
        spans = max(summary["training"]["steps"], *(truth[name]["count"] for name in names))
        slack_s = max(SHARE * planted_s, STEP_S * spans) + ONCE_S.get(key, 0.0)
        if abs(seconds - planted_s) > slack_s:
            found[key] = (planted_s, seconds)
    return found


@pytest.mark.parametrize("script", CASES)
def test_a_sample_script_is_seen_as_it_is(script, profiled):
    case = CASES[script]
    summary, truth = profiled(script)
    seconds, training = summary["ledger"]["seconds"], summary["training"]
    loop_s = summary["phases"]["training_s"]

    assert summary["faults"] == []
    assert sum(seconds.values()) == pytest.approx(summary["ledger"]["wall_s"], rel=CLOSES)
    counts = {name: training[name] for name in case.counts if name != "evaluated"}
    assert counts | {"evaluated": summary["evaluation"]["iterations"]} == case.counts
    assert training["steps"] == truth["steps"]["count"]

    assert missed(case, summary, truth) == {}
    check_findings(case, script, summary["findings"])

    if case.other:
        planted_s = sum(truth[name]["seconds"] for name in case.other)
        # A pause of the garbage collector inside is gc, and is not what was planted.
        rest_s = seconds["other"] + seconds["gc"]
        assert seconds["other"] - planted_s <= REST * loop_s
        assert rest_s - planted_s >= -max(SHARE * planted_s, STEP_S * training["steps"])
    else:
        assert seconds["other"] <= REST * loop_s

    verdict = summary["verdict"]
    assert verdict["bottleneck"] == case.bottleneck, verdict
    if case.line is None:
        assert verdict["site"] is None
    else:
        file, line = verdict["site"].rsplit(":", 1)
        assert (ROOT / file).read_text().splitlines()[int(line) - 1].strip() == case.line


def check_findings(case: Case, script: str, found: list[dict[str, Any]]) -> None:
    """What holds a sample back is found first, with its line."""
    if case.finding is None:
        assert found == []
        return
    name, text = case.finding
    first = found[0]
    assert first["id"] == name
    line = int(first["site"].rpartition(":")[2])
    named = (SAMPLES / script).read_text().splitlines()[line - 1]
    assert text in named or text in first["advice"]
    low, high = first["predicted_speedup"]
    assert low < high
    assert high > 1.1
