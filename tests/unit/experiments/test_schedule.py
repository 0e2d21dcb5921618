"""What fits into a budget is said before trials run, by a saved run of the same script."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support import summaries

from trainprof.analysis.summary_json import to_jsonable
from trainprof.analysis.tuning import OK
from trainprof.experiments.schedule import Earlier, Rest, earlier_run, said_before, said_of_rest
from trainprof.experiments.trial import WARM_UP, Measured, Trial
from trainprof.record.run_directory import RunDirectory

# It starts in 10 s, and makes 1,000 steps of 0.1 s.
FIRST = Measured(
    Trial(WARM_UP), 1, "", OK, None, 110.0, steps=1000, startup_s=9.0, training_s=100.0, run_s=110.0
)
EARLIER = Earlier("train-1", FIRST)


@pytest.mark.parametrize(
    ("budget_s", "said"),
    [
        (
            180.0,
            "plan: up to 11 trials of about 16 s each (from run train-1), each ended at a step ",
        ),
        (20.0, "plan: trials take about 13 s each (from run train-1); a baseline and one change "),
    ],
)
def test_a_saved_run_tells_how_many_trials_fit(budget_s: float, said: str) -> None:
    assert said_before(budget_s, None, EARLIER).startswith(said)


def test_too_small_a_budget_says_what_it_needs_before_it_starts() -> None:
    said = said_before(20.0, None, EARLIER)
    assert said.endswith("need --budget 45s, with 20 s there may be no time for a change")
    assert "up to" in said_before(45.0, None, EARLIER)


def test_without_a_saved_run_the_limit_of_each_trial_is_said() -> None:
    said = said_before(180.0, None, None)
    assert "the first run shows how many trials fit into 3m 00s" in said
    assert "each ended at a step after about 1m 30s;" in said


@pytest.mark.parametrize(
    ("left_s", "names", "said"),
    [
        (100.0, ("a",), "the setting a fits into the remaining 1m 40s"),
        (100.0, ("a", "b", "c"), "all 3 settings fit into the remaining 1m 40s"),
        (45.0, ("a", "b", "c", "d"), "3 of 4 settings fit into the remaining 45 s; left out: d"),
        (15.0, ("a", "b"), "1 of 2 settings fit into the remaining 15 s; left out: b (about 10 s"),
        (8.0, ("a",), "the setting a fits into the remaining 8 s"),
        (7.0, ("a", "b"), "no setting fits into the remaining 7 s; left out: a, b (about 20 s"),
    ],
)
def test_what_does_not_fit_is_named(left_s: float, names: tuple[str, ...], said: str) -> None:
    told = said_of_rest(Rest(10.0, left_s, 0, names))
    assert told.startswith(f"each trial takes about 10 s: {said}")


def saved(runs: Path, name: str, *, reason: str = "completed", sha256: str = "a1") -> None:
    directory = RunDirectory(runs / name)
    directory.create()
    summary = summaries.slow_loader()
    ended = replace(summary.run, exit=replace(summary.run.exit, reason=reason))
    summary = replace(summary, run=ended)
    manifest = {"script": "train.py", "script_sha256": sha256}
    directory.manifest.write_text(json.dumps(manifest))
    directory.summary.write_text(json.dumps(to_jsonable(summary)))


def test_the_newest_run_of_the_same_script_that_trained_is_taken(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    assert earlier_run(runs, "train.py", "a1") is None
    for name in ("one", "two"):
        saved(runs, name)
    saved(runs, "edited", sha256="b2")
    saved(runs, "crashed", reason="exception")
    (runs / "latest").symlink_to("one")
    earlier = earlier_run(runs, "train.py", "a1")
    assert earlier is not None
    assert earlier.name == "two"
    summary = summaries.slow_loader()
    assert earlier.first.steps == summary.training.steps
    assert earlier_run(runs, "other.py", "a1") is None
    assert earlier_run(runs, "train.py", None) is None
