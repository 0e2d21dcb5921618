"""tune.json, read back: nothing in it is trusted; and what trials that go on need to be alike."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support import summaries
from support.compared_runs import made_up
from support.events import FakeRun
from support.planted_trials import FakeRunner, Planted, workers

from trainprof.analysis.summary.tune import FAILED
from trainprof.compare.comparability import ground_of
from trainprof.launch.sources import installed_torch
from trainprof.launch.target import Target
from trainprof.record.run_directory import RunDirectory
from trainprof.tune.journal import (
    FILE,
    Asked,
    CannotResume,
    Journal,
    JournalDamaged,
    RememberingRunner,
    check_ground,
    check_variables,
    ground_now,
    read_journal,
    variables_of_pace,
)
from trainprof.tune.session import AlreadyTuning, alone_in
from trainprof.tune.trial import WARM_UP, Limits, Measured, Trial, baseline

ASKED = Asked(
    words=("train.py", "--lr", "1"),
    module=None,
    script_sha256="ab",
    budget_s=600.0,
    trial_steps=80,
    allow_numerics=True,
    interval_s=2.0,
    cwd="/home/u/project",
    sources={"data.py": "cd"},
    variables={"OMP_NUM_THREADS": "2"},
    is_sandboxed=False,
)
TRIAL = Trial("num_workers=2", {"num_workers": {"a.py:1": 2}})


def measured(trial: Trial, **changes: object) -> Measured:
    return FakeRunner(Planted(lambda _: 0.01), lambda *_: changes).run(trial, 1, Limits(30, 60.0))


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path)


def test_what_was_asked_for_and_done_is_read_as_it_was_saved(directory):
    run = measured(TRIAL, seconds=12.5, left_running=("tensorboard",), failed_after="exit status 1")
    Journal(directory, ASKED).add(run)
    saved = (directory.path / FILE).read_text()
    journal = read_journal(directory)
    assert (journal.asked, journal.spent_s) == (ASKED, 12.5)
    journal.save()
    assert (directory.path / FILE).read_text() == saved
    FakeRun().write(directory.trials).path.rename(directory.trials / TRIAL.name)
    again = journal.remembered(TRIAL, 1)
    assert (again.failed_after, again.left_running) == ("exit status 1", ("tensorboard",))


def test_a_run_is_known_by_its_name_number_and_changes_while_its_directory_is_there(directory):
    Journal(directory, ASKED).add(measured(TRIAL))
    journal = read_journal(directory)
    assert not journal.knows(TRIAL, 1)
    (directory.trials / TRIAL.name).mkdir(parents=True)
    assert journal.knows(TRIAL, 1)
    assert not journal.knows(TRIAL, 2)
    assert not journal.knows(replace(TRIAL, overrides={"num_workers": 3}), 1)


@pytest.mark.parametrize(
    ("trial", "is_kept"), [(Trial(WARM_UP), False), (baseline(), False), (workers(2).trial(), True)]
)
def test_what_all_stands_on_is_tried_again_when_it_failed(trial, is_kept, directory):
    journal = Journal(directory, ASKED)
    planted = Planted(lambda _: 0.01, failing={trial.name: FAILED})
    RememberingRunner(FakeRunner(planted), journal).run(trial, 1, Limits(60, 60.0))
    (directory.trials / trial.name).mkdir(parents=True)
    assert journal.knows(trial, 1) is is_kept


def test_a_single_tune_at_a_time_is_at_work_in_a_directory(directory):
    with alone_in(directory), pytest.raises(AlreadyTuning), alone_in(directory):
        raise AssertionError("two at work")
    with alone_in(directory):
        pass


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda values: (
        st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=5), values, max_size=3)
    ),
    max_leaves=8,
)
with tempfile.TemporaryDirectory() as _path:
    _journal = Journal(RunDirectory(Path(_path)), ASKED)
    _journal.add(measured(baseline()))
    HELD: dict[str, Any] = json.loads((_journal.directory.path / FILE).read_text())
ENTRY = HELD["done"][0]


def damaged() -> Iterator[st.SearchStrategy[object]]:
    """Yields one field of tune.json as anything, and one field of a trial in it."""
    yield st.builds(lambda k, v: {**HELD, k: v}, st.sampled_from(sorted(HELD)), JSON)
    yield st.builds(
        lambda k, v: {**HELD, "done": [{**ENTRY, k: v}]}, st.sampled_from(sorted(ENTRY)), JSON
    )


@pytest.fixture(scope="module")
def place() -> Iterator[RunDirectory]:
    with tempfile.TemporaryDirectory() as path:
        yield RunDirectory(Path(path))


@settings(max_examples=150, deadline=None)
@given(value=st.one_of(*damaged()))
@example(value={**HELD, "budget_s": 10**400})
@example(value={**HELD, "trial_steps": float("inf")})
def test_whatever_it_holds_it_is_read_or_damaged(place, value):
    (place.path / FILE).write_text(json.dumps(value))
    try:
        asked = read_journal(place).asked
    except JournalDamaged:
        return
    assert isinstance(asked, Asked)


# The machine, the libraries and the environment


OURS = Target("/p", ("/p", "t.py"), ("t.py",), "t.py", "t", True)
HOST = {"platform": "linux 6.1 x86_64", "cpu": "EPYC", "usable_cores": 8.0, "cores": 64}


def test_the_ground_is_the_machine_and_its_libraries():
    run = made_up(summaries.healthy(), "a", script="t.py", script_sha256="0", host=HOST)
    ground = ground_of(run)
    expected = {"platform": "linux x86_64", "CPU": "EPYC", "CPU cores": "8", "torch": "2.13.0"}
    assert {what: ground[what] for what in expected} == expected
    assert not {"script", "the script's text"} & ground.keys()
    here = ground_now(replace(OURS, is_ours=False))
    assert float(here["CPU cores"]) <= (os.cpu_count() or 1)
    assert "torch" not in here  # whose Python that is nobody knows


def test_torchs_version_is_read_and_nothing_imported(tmp_path, monkeypatch):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise SystemExit('imported')\n")
    version = tmp_path / "torch" / "version.py"
    version.write_text("from typing import Optional\n__version__ = '2.9.1+cu128'\ncuda = '12.8'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert installed_torch(OURS) == "2.9.1+cu128"
    version.write_text("from .other import __version__\n")
    assert installed_torch(OURS) is None


def refusal(check: Any, before: dict[str, str], now: dict[str, str]) -> str | None:
    """Returns what is another, None where nothing is refused."""
    try:
        check(before, now)
    except CannotResume as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("before", "now", "changed"),
    [
        ({"torch": "2.9.1"}, {"CPU": "Xeon"}, None),
        ({"torch": "2.9.1"}, {"torch": "2.10.0"}, "torch"),
        ({"GPU": "NVIDIA H100"}, {"GPU": "NVIDIA H100, NVIDIA T4"}, None),
        ({"GPU": "NVIDIA H100"}, {"GPU": "NVIDIA T4"}, "GPU"),
    ],
)
def test_only_what_is_known_to_be_another_is_refused(before, now, changed):
    why = refusal(check_ground, before, now)
    assert why is None if changed is None else f"{changed} was {before[changed]} and is" in why


DEVICES = "the number of devices in CUDA_VISIBLE_DEVICES"


def test_of_the_environment_only_what_decides_the_pace_is_kept():
    environ = {
        "OMP_NUM_THREADS": "1",
        "LD_PRELOAD": "/lib/libtcmalloc.so",
        "MALLOC_ARENA_MAX": "2",
        "PYTORCH_CUDA_ALLOC_CONF": "backend:native",
        "CUDA_VISIBLE_DEVICES": "3, 5",
        "WANDB_API_KEY": "abcdef0123456789",
        "HOME": "/home/me",
    }
    kept = {name: environ[name] for name in list(environ)[:4]}
    assert variables_of_pace(environ) == kept | {DEVICES: "2"}


@pytest.mark.parametrize(
    ("before", "now", "changes"),
    [
        # A batch system gives another one each time; without the variable all are seen.
        ({"CUDA_VISIBLE_DEVICES": "3"}, {"CUDA_VISIBLE_DEVICES": "5"}, []),
        ({"CUDA_VISIBLE_DEVICES": "0"}, {}, []),
        (
            {"CUDA_VISIBLE_DEVICES": "0,1"},
            {"CUDA_VISIBLE_DEVICES": "0"},
            [f"{DEVICES} was 2 and is 1"],
        ),
        ({"OMP_NUM_THREADS": "1"}, {}, ["OMP_NUM_THREADS was 1 and is unset"]),
        ({}, {"LD_PRELOAD": "/x.so"}, ["LD_PRELOAD was unset and is /x.so"]),
    ],
)
def test_an_environment_that_gives_another_pace_is_refused(before, now, changes):
    why = refusal(check_variables, variables_of_pace(before), variables_of_pace(now))
    assert (why is None) is (not changes)
    assert all(change in why for change in changes)
