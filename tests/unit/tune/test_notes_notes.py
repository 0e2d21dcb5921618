"""What a trial noted, read back; nothing in a recording is trusted."""

from __future__ import annotations

import math
from pathlib import Path

from support.events import FakeRun

from trainprof.record.schema import Topic
from trainprof.tune.trial_output import read_trial_notes


def run_that_trains(pid: int = 4242) -> FakeRun:
    run = FakeRun(pid=pid)
    run.learn(run.optimizer())
    return run


def test_the_last_note_of_each_kind_counts(tmp_path: Path) -> None:
    run = run_that_trains()
    run.text(Topic.TRIAL, {"applied": {"a": 1, "b": True}, "refused": {}})
    run.text(Topic.TRIAL, {"written": ["logs/x"], "was_there": True})
    run.text(Topic.TRIAL, {"applied": {"a": 1}, "refused": {"b": "gone"}})
    run.text(Topic.TRIAL, {"losses": [0.5, None, 2]})
    run.text(Topic.TRIAL, {"written": ["y"], "was_there": False})
    notes = read_trial_notes(run.write(tmp_path))
    assert (notes.applied, notes.refused) == ({"a": 1}, {"b": "gone"})
    assert notes.losses[::2] == (0.5, 2.0)
    assert math.isnan(notes.losses[1])
    assert notes.written == {"logs/x": True, "y": False}


def test_other_processes_tell_only_what_they_wrote(tmp_path: Path) -> None:
    run = run_that_trains()
    run.text(Topic.TRIAL, {"applied": {"a": 1}, "refused": {}})
    run.write(tmp_path)
    worker = FakeRun(pid=5, role="child", header={"ppid": 4242, "ancestors": [4242]})
    worker.text(Topic.TRIAL, {"applied": {}, "refused": {"a": "no"}})
    worker.text(Topic.TRIAL, {"losses": [1.0]})
    worker.text(Topic.TRIAL, {"written": ["of a worker"]})
    notes = read_trial_notes(worker.write(tmp_path, script_pid=4242))
    assert (notes.applied, notes.refused, notes.losses) == ({"a": 1}, {}, ())
    assert notes.written == {"of a worker": False}


def test_damaged_notes_and_a_run_without_any(tmp_path: Path) -> None:
    run = run_that_trains()
    for wrong in (
        *(7, ["x"], {"written": {"x": 1}}),
        {"applied": 3, "refused": [], "losses": "none", "written": 1},
    ):
        run.text(Topic.TRIAL, wrong)
    run.text(Topic.TRIAL, {"losses": ["x", True], "refused": {"a": 3}})
    notes = read_trial_notes(run.write(tmp_path))
    assert (notes.applied, notes.refused, notes.written) == ({}, {"a": "3"}, {})
    assert all(math.isnan(loss) for loss in notes.losses)
    assert len(notes.losses) == 2
