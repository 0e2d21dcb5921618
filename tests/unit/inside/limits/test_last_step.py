"""At which step ranks end whose time is over, told by what each of them does by itself."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from support.session import FakeClock

from trainprof.inside.limits import limit as last_step
from trainprof.inside.limits.limit import STEPS_AHEAD, LastStep, Limit, RunLimitReached
from trainprof.record.event_log import EventLog
from trainprof.record.names import LAST_STEP

SECOND = 10**9


class Rank:
    """A loop that goes as fast as the clock lets it; notes after how many steps it ended, where."""

    def __init__(self, directory: Path, clock: FakeClock, *, world_size: int = 2) -> None:
        (directory / "events").mkdir(exist_ok=True)
        log = EventLog(str(directory / "events"), role="script")
        options = {"max_time_s": 10.0, "spawned_ns": clock()}
        self.limit = Limit(log, options, clock)
        self.limit.join(world_size)
        self.steps = 0
        self.ended: tuple[int, str] | None = None

    def _do(self, name: str, action: Callable[[], None]) -> None:
        if self.ended is None:
            try:
                action()
            except RunLimitReached:
                self.ended = (self.steps, name)

    def begin_step(self) -> None:
        assert self.limit.before_batch is not None
        assert self.limit.before_forward is not None
        self._do("batch", self.limit.before_batch)
        self._do("forward", self.limit.before_forward)

    def end_step(self) -> None:
        before_step = self.limit.before_step
        assert before_step is not None
        self._do("step", lambda: before_step(1))
        if self.ended is None:
            self.limit.stepped(1)
            self.steps += 1


def train(clock: FakeClock, *ranks: Rank, between_ns: int, seconds: float = 60.0) -> None:
    """One step a second; each rank begins it a little later than the one before."""
    for _ in range(int(seconds)):
        began = clock()
        for rank in ranks:
            rank.begin_step()
            clock.advance(between_ns)
        for rank in ranks:
            rank.end_step()
        clock.advance(began + SECOND - clock())


@pytest.mark.parametrize("earlier_ns", [0, SECOND // 8])
def test_ranks_between_whose_looks_the_time_is_over_end_at_one_step(
    tmp_path: Path, earlier_ns: int
) -> None:
    clock = FakeClock()
    ranks = [Rank(tmp_path, clock), Rank(tmp_path, clock)]
    # Begun earlier, the time is over between the looks of both: then the second alone sees it.
    clock.advance(-earlier_ns)
    train(clock, *ranks, between_ns=SECOND // 4)
    assert ranks[0].ended == ranks[1].ended == (10 + STEPS_AHEAD, "step")


def test_one_process_ends_at_its_next_look(tmp_path: Path) -> None:
    clock = FakeClock()
    rank = Rank(tmp_path, clock, world_size=1)
    train(clock, rank, between_ns=0)
    assert rank.ended == (10, "batch")
    assert not (tmp_path / LAST_STEP).exists()


@pytest.mark.parametrize(("steps", "patience_s"), [(9, 17), (0, 10)])
def test_a_rank_that_makes_no_more_steps_ends_by_itself(
    tmp_path: Path, steps: int, patience_s: int
) -> None:
    """As rank 0 does that evaluates in the end: after twice the 8 steps, each a ninth of 10 s."""
    clock = FakeClock()
    rank = Rank(tmp_path, clock)
    train(clock, rank, between_ns=0, seconds=steps)
    clock.advance((10 - steps) * SECOND)
    rank.begin_step()  # the first look at which the time is over
    seconds = 0
    while rank.ended is None and seconds < 60:
        clock.advance(SECOND)
        seconds += 1
        rank.begin_step()
    assert patience_s <= seconds <= patience_s + 1
    assert rank.ended == (steps, "batch")


def test_a_step_that_another_rank_is_about_to_write_is_read_at_the_next_look(
    tmp_path: Path,
) -> None:
    ours = LastStep(str(tmp_path))
    (tmp_path / LAST_STEP).write_text("")
    assert not ours.is_out_of_reach(5, 0, 10 * SECOND)
    assert not ours.is_reached(1000)
    (tmp_path / LAST_STEP).write_text("11")
    assert not ours.is_out_of_reach(6, 1, 10 * SECOND)
    assert not ours.is_reached(10)
    assert ours.is_reached(11)


@pytest.mark.parametrize("text", ["", "x", "1e3", "\xff", None])
def test_nonsense_and_no_directory_end_nobody_too_early_and_everybody_in_the_end(
    tmp_path: Path, text: str | None
) -> None:
    if text is not None:
        (tmp_path / LAST_STEP).write_text(text, encoding="latin-1")
    ours = LastStep(str(tmp_path if text is not None else tmp_path / "gone"))
    assert not ours.is_out_of_reach(100, 0, SECOND)
    assert not ours.is_reached(1000)
    assert not ours.is_out_of_reach(100, 9 * SECOND, SECOND)
    assert ours.is_out_of_reach(100, 10 * SECOND, SECOND)


def test_a_full_disk_leaves_no_file_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(descriptor: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(last_step.os, "write", write)
    ours = LastStep(str(tmp_path))
    assert not ours.is_out_of_reach(100, 0, SECOND)
    monkeypatch.undo()
    assert not (tmp_path / LAST_STEP).exists()
    assert not ours.is_out_of_reach(100, 1, SECOND)
    assert (tmp_path / LAST_STEP).read_text() == str(100 + STEPS_AHEAD)


def test_a_child_of_a_rank_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = LastStep(str(tmp_path))
    own = os.getpid()
    monkeypatch.setattr(last_step.os, "getpid", lambda: own + 1)
    assert ours.is_out_of_reach(3, 0, SECOND)
    assert not (tmp_path / LAST_STEP).exists()


def test_an_optimizer_that_steps_on_another_thread_is_no_way_on(tmp_path: Path) -> None:
    clock = FakeClock()
    rank = Rank(tmp_path, clock)
    for _ in range(60):
        rank.begin_step()
        if rank.ended is not None:
            break
        thread = threading.Thread(target=rank.end_step)
        thread.start()
        thread.join()
        clock.advance(SECOND)
    assert rank.ended == (10 + STEPS_AHEAD + 1, "batch")
