"""tune.json, read back: nothing in it is trusted."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.planted_trials import FakeRunner, Planted

from trainprof.record.run_directory import RunDirectory
from trainprof.tune.journal import (
    FILE,
    Asked,
    Journal,
    JournalDamaged,
    read_journal,
)
from trainprof.tune.trial import Limits, Measured, Trial

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


def measured(trial: Trial, **changes: object) -> Measured:
    run = FakeRunner(Planted(lambda _: 0.01)).run(trial, 1, Limits(30, 60.0))
    return replace(run, **changes)  # type: ignore[arg-type]


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path)


def text_of(directory: RunDirectory) -> str:
    return (directory.path / FILE).read_text()


def test_what_was_asked_for_and_done_is_read_as_it_was_saved(directory: RunDirectory) -> None:
    trial = Trial("num_workers=2", {"num_workers": {"a.py:1": 2}})
    journal = Journal(directory, ASKED)
    journal.add(
        measured(
            trial,
            seconds=12.5,
            left_running=("tensorboard",),
            failed_after="exit status 1",
        )
    )
    saved = text_of(directory)
    read = read_journal(directory)
    assert (read.asked, read.spent_s) == (ASKED, 12.5)
    read.save()
    assert text_of(directory) == saved


def test_a_run_is_known_by_its_name_number_and_changes_while_its_directory_is_there(
    directory: RunDirectory,
) -> None:
    trial = Trial("num_workers=2", {"num_workers": 2})
    Journal(directory, ASKED).add(measured(trial))
    read = read_journal(directory)
    assert not read.knows(trial, 1)
    (directory.trials / trial.name).mkdir(parents=True)
    assert read.knows(trial, 1)
    assert not read.knows(trial, 2)
    assert not read.knows(replace(trial, overrides={"num_workers": 3}), 1)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda values: (
        st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=5), values, max_size=3)
    ),
    max_leaves=8,
)
ENTRY = {
    "name": "baseline",
    "number": 1,
    "overrides": {},
    "directory": "trials/baseline",
    "outcome": "ok",
    "detail": None,
    "failed_after": None,
    "left_running": [],
    "seconds": 3.0,
}
HELD: dict[str, Any] = {
    "schema_version": 1,
    "words": ["train.py"],
    "module": None,
    "script_sha256": "ab",
    "budget_s": 600.0,
    "trial_steps": 80,
    "allow_numerics": False,
    "interval_s": 0.5,
    "cwd": "/home/u",
    "sources": {},
    "variables": {},
    "is_sandboxed": True,
    "done": [ENTRY],
}


def damaged() -> Iterator[st.SearchStrategy[object]]:
    """Yields all of tune.json as anything, one field of it, and one field of a trial."""
    yield JSON
    yield st.builds(lambda k, v: {**HELD, k: v}, st.sampled_from(sorted(HELD)), JSON)
    yield st.builds(
        lambda k, v: {**HELD, "done": [{**ENTRY, k: v}]}, st.sampled_from(sorted(ENTRY)), JSON
    )


@pytest.fixture(scope="module")
def place() -> Iterator[RunDirectory]:
    with tempfile.TemporaryDirectory() as path:
        yield RunDirectory(Path(path))


@settings(max_examples=200, deadline=None)
@given(value=st.one_of(*damaged()))
@example(value={**HELD, "budget_s": 10**400})
@example(value={**HELD, "trial_steps": float("inf")})
@example(value=HELD)
def test_whatever_it_holds_it_is_read_or_damaged(place: RunDirectory, value: object) -> None:
    (place.path / FILE).write_text(json.dumps(value))
    try:
        asked = read_journal(place).asked
    except JournalDamaged:
        return
    assert isinstance(asked, Asked)


@settings(max_examples=100, deadline=None)
@given(content=st.binary(max_size=200))
def test_whatever_bytes_it_holds_it_is_damaged(place: RunDirectory, content: bytes) -> None:
    (place.path / FILE).write_bytes(content)
    with pytest.raises(JournalDamaged):
        read_journal(place)
