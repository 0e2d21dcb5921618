"""The sample scripts under plain python: each ends well, repeats itself and keeps its promise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from support.styles import ATTEMPTS

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "sample_scripts"
CONFIG = str(ROOT / "configs" / "example_config.py")


class Claim(NamedTuple):
    """What a script's docstring says, for a run shortened by `arguments`.

    Attributes:
        arguments: Of the command line, after the script.
        planted: Names in the truth file whose seconds count together.
        whole: Names of which they are said to be a part.
        share: Least share of `planted` in `whole`, below what the docstring says: machines differ.
        counts: What the truth file must count.
    """

    arguments: list[str]
    planted: list[str]
    whole: list[str]
    share: float
    counts: dict[str, int]


CLAIMS = {
    "train.py": Claim(
        [CONFIG, "epochs=1", "pictures=96"],
        planted=["first_batch", "data_wait"],
        whole=["training"],
        share=0.5,
        counts={"epochs": 1, "iterations": 12, "steps": 12, "samples": 96, "brighten": 96},
    ),
    "healthy.py": Claim(
        ["epochs=2", "samples=512"],
        planted=["forward", "backward"],
        whole=["training"],
        share=0.8,
        counts={"epochs": 2, "iterations": 16, "steps": 16, "samples": 1024, "optimizer": 16},
    ),
    "slow_validation.py": Claim(
        ["epochs=1", "pictures=160"],
        planted=["evaluation"],
        whole=["training", "evaluation"],
        share=0.4,
        counts={"epochs": 1, "steps": 10, "evaluation": 1, "slow_storage": 64},
    ),
    "slow_checkpoints.py": Claim(
        ["epochs=1", "width=512", "save_every=10", "disk_mb_per_s=20"],
        planted=["checkpoint"],
        whole=["training"],
        share=0.4,
        counts={"epochs": 1, "iterations": 28, "steps": 28, "checkpoint": 2},
    ),
    "python_heavy.py": Claim(
        ["epochs=1"],
        planted=["metrics"],
        whole=["training"],
        share=0.4,
        counts={"epochs": 1, "iterations": 28, "steps": 28, "metrics": 28},
    ),
    "no_dataloader.py": Claim(
        ["steps=12"],
        planted=["get_batch"],
        whole=["training"],
        share=0.15,
        counts={"steps": 12, "get_batch": 12},
    ),
    "gan.py": Claim(
        ["epochs=2", "samples=384"],
        planted=["forward", "backward"],
        whole=["training"],
        share=0.8,
        counts={"epochs": 2, "iterations": 12, "steps": 6, "optimizer": 6, "forward": 24},
    ),
}


def start(script: str, arguments: list[str], folder: Path, **environment: str) -> subprocess.Popen:
    """Starts a sample script in an empty folder, on one thread: two of them share the cores."""
    folder.mkdir()
    inherited = {key: value for key, value in os.environ.items() if key != "SAMPLE_TRUTH"}
    return subprocess.Popen(
        [sys.executable, str(SAMPLES / script), *arguments],
        cwd=folder,
        env=inherited | {"OMP_NUM_THREADS": "1"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("script", CLAIMS)
def test_a_sample_script_repeats_itself_and_holds_what_its_docstring_claims(script, tmp_path):
    claim = CLAIMS[script]
    truth_file = tmp_path / "truth.json"
    runs = []
    for name, environment in [("timed", {"SAMPLE_TRUTH": str(truth_file)}), ("untimed", {})]:
        folder = tmp_path / name
        arguments = list(claim.arguments)
        if script == "slow_checkpoints.py":
            arguments.append(f"checkpoint={tmp_path / name}.pt")
        runs.append(start(script, arguments, folder, **environment))
    (timed_out, timed_err), (untimed_out, untimed_err) = [run.communicate() for run in runs]

    assert [run.returncode for run in runs] == [0, 0], timed_err + untimed_err
    assert "warning" not in (timed_err + untimed_err).lower()
    assert timed_out.splitlines()[-1].startswith("final loss ")
    assert timed_out == untimed_out
    assert not any((tmp_path / "untimed").iterdir())

    # What computes is slowed by whatever else the machine does, what sleeps is not.
    for attempt in range(ATTEMPTS):
        truth = json.loads(truth_file.read_text())
        planted = sum(truth[name]["seconds"] for name in claim.planted)
        whole = sum(truth[name]["seconds"] for name in claim.whole)
        if claim.share < planted / whole:
            break
        arguments = [word.replace("timed.pt", f"{attempt}.pt") for word in runs[0].args[2:]]
        alone = start(script, arguments, tmp_path / str(attempt), SAMPLE_TRUTH=str(truth_file))
        assert alone.communicate()[0] == timed_out
    assert {name: truth[name]["count"] for name in claim.counts} == claim.counts
    assert claim.share < planted / whole < 1


def test_every_sample_script_has_a_claim_and_knows_nothing_of_trainprof():
    shared = {"truth.py", "overrides.py", "pictures.py"}
    assert {path.name for path in SAMPLES.glob("*.py")} - shared == set(CLAIMS)
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
    run = start(script, arguments, tmp_path / "run")
    _, stderr = run.communicate()
    assert run.returncode == 1
    assert stderr.startswith(message)
    assert stderr.count("\n") == 1
