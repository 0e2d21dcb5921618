"""A thread beside training, from planted looks at what both had of the cores."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.events import LEARNS, MS, FakeRun

from trainprof.analysis.summary import RunSummary
from trainprof.record.schema import Kind, Topic

STEPS = 60


def train(
    tmp_path: Path, *, on_core: float, at_work: int, wait: int = 0, of_user: bool = True
) -> RunSummary:
    """Steps of 20 ms of forward and 20 of backward, after so long a wait for a batch.

    Args:
        on_core: Share of forward and backward that the training thread is on a core, or waits for
            one; in the rest of it, and in waits, it is on none.
        at_work: Percent of the time that the other thread is on a core; 0: no look met it.
        wait: For a batch, ns.
        of_user: Whether a line of the user's is known of it.
    """
    run = FakeRun()
    loader, optimizer = run.loader(num_workers=2 if wait else 0), run.optimizer()
    site = run.text(Topic.SITE, ["writer.py", 29, "run"])
    stack = run.text(Topic.STACK, [site]) if of_user else 0
    run.iterate(loader)
    last = run.now
    for step in range(STEPS):
        run.next(loader, wait)
        parts = [(Kind.FORWARD, LEARNS, 20 * MS), (Kind.BACKWARD, 0, 20 * MS)]
        for kind, flags, length in parts:
            with run.span(kind, flags=flags):
                run.passes_time(length)
        run.update(optimizer)
        if not at_work:
            continue
        # A look at a moment of the step that comes with the share of its length.
        inside = run.now - MS if (step % 4) * 10 * MS + wait < 40 * MS or not wait else None
        at = inside if inside is not None else run.now - 40 * MS - wait // 2
        own = round(on_core * 40 * MS)
        run.record(Kind.BESIDE, last, at, site=stack, value=own, flags=at_work)
        last = at
    run.stop(loader)
    return run.summary(tmp_path)


@pytest.mark.parametrize("on_core", [0.3, 0.9])
def test_what_training_was_kept_from(tmp_path: Path, on_core: float) -> None:
    found = train(tmp_path, on_core=on_core, at_work=70).competing
    assert found is not None
    assert (found.site, found.function) == ("writer.py:29", "run")
    assert found.at_work_share == pytest.approx(0.7)
    assert found.kept_share == pytest.approx(1 - on_core, abs=0.05)
    assert found.kept_s == pytest.approx((1 - on_core) * STEPS * 0.04, rel=0.1)
    assert found.looks == STEPS


def test_waiting_for_data_is_no_matter_of_the_other_thread(tmp_path: Path) -> None:
    # Half of the looks meet the wait, which is half of the time.
    found = train(tmp_path, on_core=1.0, at_work=70, wait=40 * MS).competing
    assert found is not None
    assert found.kept_share < 0.1


def test_without_another_thread_or_a_line_of_it_nothing_is_known(tmp_path: Path) -> None:
    assert train(tmp_path / "a", on_core=0.3, at_work=0).competing is None
    found = train(tmp_path / "b", on_core=0.3, at_work=70, of_user=False).competing
    assert found is not None
    assert found.site is None


@pytest.mark.parametrize(("on_core", "is_told"), [(0.5, True), (0.95, False)])
def test_the_headline_names_what_held_all_else_up(
    tmp_path: Path, on_core: float, is_told: bool
) -> None:
    told = train(tmp_path, on_core=on_core, at_work=70).verdict
    assert told.headline.startswith("HOST-BOUND: another thread") is is_told
    assert (told.site == "writer.py:29") is is_told
