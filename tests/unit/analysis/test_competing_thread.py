"""A thread beside training, from planted looks at what both had of the cores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.events import LEARNS, MS, FakeRun

from trainprof.analysis.summary import RunSummary
from trainprof.record.schema import Kind, LookFlag, Topic

STEPS = 60
STEP = 40 * MS


def train(
    tmp_path: Path,
    *,
    on_core: float,
    at_work: int = 70,
    is_free: bool = False,
    runs: bool = False,
    waits: bool = False,
    met_in: int = STEPS,
    of_user: int = STEPS,
    environment: dict[str, Any] | None = None,
) -> RunSummary:
    """Steps of 20 ms of forward and 20 of backward, each looked at as it ends.

    Args:
        on_core: Share of them that the training thread is on a core, or waits for one.
        at_work: Percent of the time that the other thread is on a core.
        is_free: The looks find the interpreter free.
        runs: They find the training thread on a core, or waiting for one.
        waits: They meet the training thread waiting for a thread or a process.
        met_in: In so many steps looks meet the other thread.
        of_user: In so many of them it stands at the user's line, else in a library.
        environment: What the process told besides.
    """
    run = FakeRun()
    loader, optimizer = run.loader(), run.optimizer()
    if environment:
        run.text(Topic.ENVIRONMENT, environment)
    site = run.text(Topic.SITE, ["writer.py", 29, "run"])
    stack = run.text(Topic.STACK, [site])
    flags = LookFlag.KNOWN | (LookFlag.WAITS if waits else 0)
    flags |= LookFlag.RUNS if runs else 0
    run.iterate(loader)
    for step in range(STEPS):
        run.next(loader, 0)
        for kind, learns in ((Kind.FORWARD, LEARNS), (Kind.BACKWARD, 0)):
            with run.span(kind, flags=learns):
                run.passes_time(STEP // 2)
        run.record(Kind.LOOK, run.now - MS, run.now - 1, value=0 if is_free else MS, flags=flags)
        if step < met_in:
            run.record(
                Kind.BESIDE,
                run.now - STEP,
                run.now - 1,
                site=stack if step < of_user else 0,
                value=round(on_core * STEP),
                flags=at_work,
            )
        run.update(optimizer)
    run.stop(loader)
    return run.summary(tmp_path)


@pytest.mark.parametrize("on_core", [0.3, 0.9])
def test_what_training_was_kept_from(tmp_path: Path, on_core: float) -> None:
    found = train(tmp_path, on_core=on_core).competing
    assert found is not None
    assert (found.site, found.function) == ("writer.py:29", "run")
    assert found.at_work_share == pytest.approx(0.7, rel=0.01)
    assert found.kept_share == pytest.approx(1 - on_core, abs=0.02)
    assert found.kept_s == pytest.approx((1 - on_core) * STEPS * 0.04, rel=0.05)
    assert found.looks == STEPS


@pytest.mark.parametrize("why", ["is_free", "waits"])
def test_who_waits_for_something_else_does_not_wait_for_the_interpreter(
    tmp_path: Path, why: str
) -> None:
    told = train(tmp_path, on_core=0.3, **{why: True})
    assert told.competing is not None
    assert told.competing.kept_share == 0
    assert "interpreter" not in told.verdict.headline


def test_who_runs_while_the_interpreter_is_free_may_have_waited_for_it_before(
    tmp_path: Path,
) -> None:
    found = train(tmp_path, on_core=0.3, is_free=True, runs=True).competing
    assert found is not None
    assert found.kept_share == pytest.approx(0.7, abs=0.02)


def test_a_thread_that_is_there_for_a_while_runs_for_that(tmp_path: Path) -> None:
    found = train(tmp_path, on_core=0.3, met_in=STEPS // 4).competing
    assert found is not None
    assert found.at_work_share == pytest.approx(0.7 / 4, rel=0.02)
    assert found.kept_share == pytest.approx(0.7 / 4, rel=0.05)


def test_a_line_is_named_where_most_looks_met_it(tmp_path: Path) -> None:
    mostly = train(tmp_path / "a", on_core=0.3, of_user=STEPS * 3 // 4).competing
    assert mostly is not None
    assert mostly.site == "writer.py:29"
    assert mostly.kept_share == pytest.approx(0.7 - 0.25, abs=0.02)
    rarely = train(tmp_path / "b", on_core=0.3, of_user=STEPS // 4).competing
    assert rarely is not None
    assert rarely.site is None


@pytest.mark.parametrize(
    ("met_in", "environment"), [(0, None), (STEPS, {"device": "cuda:0"}), (5, None)]
)
def test_without_looks_at_one_or_on_a_device_nothing_is_known(
    tmp_path: Path, met_in: int, environment: dict[str, Any] | None
) -> None:
    assert train(tmp_path, on_core=0.3, met_in=met_in, environment=environment).competing is None


@pytest.mark.parametrize(("on_core", "is_told"), [(0.5, True), (0.95, False)])
def test_the_headline_names_what_held_all_else_up(
    tmp_path: Path, on_core: float, is_told: bool
) -> None:
    told = train(tmp_path, on_core=on_core).verdict
    assert told.headline.startswith("PYTHON-BOUND: another thread") is is_told
    assert (told.site == "writer.py:29") is is_told
