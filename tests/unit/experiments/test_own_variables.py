"""Which environment variables a script's own texts read, and whether those are others by now."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainprof.experiments.own_modules import own_of
from trainprof.experiments.own_variables import (
    changed_variables,
    digests_of_variables,
    variables_read,
)
from trainprof.experiments.trackers import SWITCHES
from trainprof.launch.target import resolve


def read_by(directory: Path, text: str, *words: str) -> set[str]:
    """Returns what a script reads, beside what switches trackers."""
    (directory / "train.py").write_text(text)
    found = variables_read(own_of(resolve(["train.py", *words]), directory))
    assert set(found) >= SWITCHES
    assert found == sorted(found)
    return set(found) - SWITCHES


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "text",
    [
        'import os\nbatch = int(os.environ["BATCH"])\n',
        'import os\nbatch = int(os.environ.get("BATCH", 32))\n',
        'import os as system\nsystem.environ.setdefault("BATCH", "32")\n',
        'import os\nbatch = os.getenv("BATCH")\n',
        'import os\nbatch = os.getenv(key="BATCH")\n',
        'from os import environ\nbatch = environ.pop("BATCH")\n',
        'from os import getenv\nbatch = getenv("BATCH") or 32\n',
        'import os\nif "BATCH" not in os.environ:\n    pass\n',
    ],
)
def test_what_a_text_reads_is_found(here: Path, text: str) -> None:
    assert read_by(here, text) == {"BATCH"}


@pytest.mark.parametrize(
    "text",
    [
        'import os\nos.environ["BATCH"] = "32"\n',
        'batches = {}\nprint(batches["BATCH"], batches.get("BATCH"), "BATCH" in batches)\n',
        "import os\nfor name in os.environ:\n    print(os.environ[name], os.getenv(name))\n",
        # Of a session, of a job, and what is secret: training is the same.
        'import os\nprint(os.environ["PATH"], os.getenv("SLURM_JOB_ID"), os.environ["TMPDIR"])\n',
        'import os\nprint(os.environ.get("WANDB_API_KEY"), os.getenv("HF_TOKEN"))\n',
    ],
)
def test_what_tells_nothing_of_training_is_not(here: Path, text: str) -> None:
    assert read_by(here, text) == set()


def test_so_is_what_modules_and_settings_of_its_own_read(here: Path) -> None:
    (here / "data.py").write_text('import os\nroot = os.environ["DATA_ROOT"]\n')
    (here / "a.yaml").write_text("x: ${oc.env:SIZE}\ny: ${env:OLD,3}\nz: ${other}\n")
    assert read_by(here, "import data\n", "--config=a.yaml") == {"DATA_ROOT", "SIZE", "OLD"}


def test_only_what_is_another_is_said() -> None:
    before = digests_of_variables(["A", "B", "C"], {"A": "1", "B": "2", "D": "3"})
    assert changed_variables(before, {"A": "1", "B": "2", "D": "4"}) == []
    assert changed_variables(before, {"A": "2", "C": "1"}) == [
        "A is another one by now",
        "B was set and is not",
        "C was not set and is",
    ]
    # Of one that was begun before they were kept nothing is known.
    assert changed_variables({}, {"A": "1"}) == []


def test_set_to_nothing_is_another_than_not_set() -> None:
    before = digests_of_variables(["A", "B"], {"A": ""})
    assert changed_variables(before, {"A": ""}) == []
    assert changed_variables(before, {"B": ""}) == ["A was set and is not", "B was not set and is"]


def test_their_values_are_not_kept() -> None:
    value = "/data/somebody/private"
    told = [digests_of_variables(["A"], {"A": value}) for _ in range(3)]
    assert value not in json.dumps(told)
    assert all(len(one["A"]) == 4 for one in told)
    assert len({one[""] for one in told}) == 3
    assert changed_variables(digests_of_variables(["A"], {"A": "\udcff"}), {"A": "\udcff"}) == []
    assert changed_variables({"": "é", "A": "\ud800"}, {"A": "x"}) == ["A is another one by now"]
