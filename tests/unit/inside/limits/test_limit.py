"""How --max-steps and --max-time end a run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.session import FakeClock, Recorder, read_recordings, run_hooked
from support.styles import without_compiler
from torch.utils.data import DataLoader

from trainprof.inside.catalogue import default_probes
from trainprof.inside.limits.limit import STEPS_AHEAD, LastStep, Limit, RunLimitReached
from trainprof.record.event_log import EventLog
from trainprof.record.names import LAST_STEP
from trainprof.record.schema import Kind

SECOND = 10**9


def train(steps: int, after: Any = None) -> int:
    p = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([p], lr=0.1)
    done = 0
    for _ in DataLoader(list(range(steps))):
        p.grad = torch.ones(2)
        optimizer.step()
        done += 1
        if after:
            after()
    return done


def test_steps_are_counted_and_the_run_ends_between_two(recorder: Recorder) -> None:
    recorder.start(*default_probes(), options={"max_steps": 3})
    with pytest.raises(RunLimitReached) as reached:
        train(5)
    assert reached.value.code == 0
    recording = recorder.read()
    assert len(recording.of(Kind.OPTIMIZER_STEP)) == 3
    assert recording.of(Kind.LIMIT)[0].value == 1


def take_turns(turns: str, times: int) -> str:
    """Has an optimizer for each letter make its updates; returns those before the limit."""
    parameters = {letter: torch.nn.Parameter(torch.ones(2)) for letter in turns}
    optimizers = {letter: torch.optim.SGD([p], lr=0.1) for letter, p in parameters.items()}
    done = ""
    for letter in turns * times:
        parameters[letter].grad = torch.ones(2)
        try:
            optimizers[letter].step()
        except RunLimitReached:
            return done
        done += letter
    return done


@pytest.mark.parametrize(
    ("turns", "steps", "made"),
    [
        ("AB", 1, "AB"),
        ("AB", 4, "AB" * 4),
        ("ABCDEF", 3, "ABCDEF" * 3),
        ("AAAAAB", 10, "AAAAAB" * 2),
        ("A" * 20 + "B" * 20, 50, "A" * 20 + "B" * 20 + "A" * 10),
        ("A" * 20 + "B" * 20, 30, "A" * 20 + "B" * 10),
        # The third may have been about to end a step, and its update is none in the report.
        ("AAAABBBBCCCCDDDD", 24, "AAAABBBBCCCCDDDDAAAABBBB" + "C"),
    ],
)
def test_steps_of_several_optimizers_are_those_of_the_report(
    recorder: Recorder, turns: str, steps: int, made: str
) -> None:
    recorder.start(*default_probes(), options={"max_steps": steps})
    assert take_turns(turns, 30) == made


# 60 s in all, of which 5 are training; 600 at the latest. A step takes one.
TRIAL: dict[str, object] = {"enough_s": [60.0, 5.0]}
LONG_TRIAL = {**TRIAL, "enough_steps": 30}


@pytest.mark.parametrize(
    ("limit_s", "trial", "start_up_s", "steps"),
    [
        (10.0, None, 0, 10),
        # One that takes long to begin has its time from the first step on.
        *((600.0, TRIAL, start_up_s, steps) for start_up_s, steps in (
            (0, 60), (20, 40), (54, 6), (70, 5), (200, 5), (596, 4),
        )),
        # It makes the steps that are enough even if its time is over.
        *((600.0, LONG_TRIAL, start_up_s, steps) for start_up_s, steps in (
            (0, 60), (54, 30), (200, 30), (596, 4),
        )),
    ],
)  # fmt: skip
def test_time_ends_it_too(
    recorder: Recorder, limit_s: float, trial: object, start_up_s: int, steps: int
) -> None:
    clock = timed(recorder, limit_s, trial)
    clock.advance(start_up_s * SECOND)
    with pytest.raises(RunLimitReached):
        train(100, after=lambda: clock.advance(SECOND))
    assert len(recorder.read().of(Kind.OPTIMIZER_STEP)) == steps


def timed(recorder: Recorder, limit_s: float, trial: object = None) -> FakeClock:
    clock = FakeClock()
    options = {"max_time_s": limit_s, "spawned_ns": clock(), "trial": trial}
    recorder.start(*default_probes(), options=options, now=clock)
    return clock


def test_a_trial_without_a_step_ends_after_as_long_since_its_first_batch(
    recorder: Recorder,
) -> None:
    clock = timed(recorder, 600.0, TRIAL)
    clock.advance(100 * SECOND)

    def evaluate() -> None:
        for _ in DataLoader(list(range(100))):
            clock.advance(SECOND)

    with pytest.raises(RunLimitReached):
        evaluate()
    assert len(recorder.read().of(Kind.LOADER_NEXT)) == 60


def test_only_the_main_thread_is_ended(recorder: Recorder) -> None:
    recorder.start(*default_probes(), options={"max_steps": 2})
    done: list[int] = []
    thread = threading.Thread(target=lambda: done.append(train(5)))
    thread.start()
    thread.join()
    assert done == [5]


SCRIPT = """
import atexit, sys
import torch
from torch.utils.data import DataLoader, Dataset

class Nested(Dataset):
    # A loader inside the dataset, so that workers ask a hooked iterator too.
    def __len__(self): return 40
    def __getitem__(self, index): return next(iter(DataLoader([index])))

atexit.register(print, "atexit")
p = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([p], lr=0.1)
try:
    for batch in DataLoader(Nested(), num_workers=int(sys.argv[1])):
        try:
            p.grad = torch.ones(1)
            optimizer.step()
        except Exception:
            print("swallowed")
finally:
    print("finally")
print("never")
"""


@pytest.mark.parametrize("workers", [0, 1])
def test_finally_blocks_run_and_the_status_is_0(tmp_path: Path, workers: int) -> None:
    (tmp_path / "script.py").write_text(without_compiler(SCRIPT))
    words = ["script.py", str(workers)]
    done = run_hooked(words, tmp_path, tmp_path / "run", options={"max_steps": 5})
    assert (done.returncode, done.stdout, done.stderr) == (0, "finally\natexit\n", "")
    main = read_recordings(tmp_path / "run" / "events")[0]
    assert len(main.of(Kind.OPTIMIZER_STEP)) == 5
    assert len(main.of(Kind.LIMIT)) == 1


# At which step ranks end whose time is over, by what each of them does by itself


class Rank:
    """A loop that goes as fast as the clock lets it; notes after how many steps it ended, where."""

    def __init__(self, directory: Path, clock: FakeClock) -> None:
        (directory / "events").mkdir(exist_ok=True)
        log = EventLog(str(directory / "events"), role="script")
        options = {"max_time_s": 10.0, "spawned_ns": clock()}
        self.limit = Limit(log, options, clock)
        self.limit.join(2)
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


def train_together(clock: FakeClock, *ranks: Rank, between_ns: int, seconds: float = 60.0) -> None:
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
    train_together(clock, *ranks, between_ns=SECOND // 4)
    assert ranks[0].ended == ranks[1].ended == (10 + STEPS_AHEAD, "step")


@pytest.mark.parametrize(("steps", "patience_s"), [(9, 17), (0, 10)])
def test_a_rank_that_makes_no_more_steps_ends_by_itself(
    tmp_path: Path, steps: int, patience_s: int
) -> None:
    """As rank 0 does that evaluates in the end: after twice the 8 steps, each a ninth of 10 s."""
    clock = FakeClock()
    rank = Rank(tmp_path, clock)
    train_together(clock, rank, between_ns=0, seconds=steps)
    clock.advance((10 - steps) * SECOND)
    rank.begin_step()  # the first look at which the time is over
    seconds = 0
    while rank.ended is None and seconds < 60:
        clock.advance(SECOND)
        seconds += 1
        rank.begin_step()
    assert patience_s <= seconds <= patience_s + 1
    assert rank.ended == (steps, "batch")


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
