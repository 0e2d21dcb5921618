"""How --max-steps and --max-time end a run."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from support.session import FakeClock, Recorder, read_recordings, run_hooked
from support.styles import without_compiler
from torch.utils.data import DataLoader

from trainprof.inside.catalogue import default_probes
from trainprof.inside.limits.limit import Limit, RunLimitReached
from trainprof.record.event_log import EventLog
from trainprof.record.limit_met import LIMIT_MET, processes_at_limit
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


def take_turns(turns: str, times: int, *, has_loader: bool) -> str:
    """Has an optimizer for each letter make its updates; returns those before the limit."""
    parameters = {letter: torch.nn.Parameter(torch.ones(2)) for letter in turns}
    optimizers = {letter: torch.optim.SGD([p], lr=0.1) for letter, p in parameters.items()}
    done = ""
    batches = list(turns * times)
    for letter in DataLoader(batches, batch_size=None) if has_loader else batches:
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
    assert take_turns(turns, 30, has_loader=False) == made


def test_ahead_of_a_batch_a_block_of_updates_ends_at_its_step(recorder: Recorder) -> None:
    recorder.start(*default_probes(), options={"max_steps": 40})
    with pytest.raises(RunLimitReached):
        take_turns("A" * 20 + "B" * 20, 30, has_loader=True)
    assert len(recorder.read().of(Kind.OPTIMIZER_STEP)) == 40


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


def test_without_a_step_the_next_forward_ends_it(recorder: Recorder) -> None:
    clock = timed(recorder, 1.0)
    layer = torch.nn.Sequential(torch.nn.Linear(1, 1))
    layer(torch.ones(1))
    clock.advance(SECOND)
    with pytest.raises(RunLimitReached):
        layer(torch.ones(1))


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


@pytest.mark.parametrize("trial", [{}, None])
def test_only_a_trial_notes_once_that_it_has_met_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trial: dict[str, object] | None
) -> None:
    registered: list[object] = []
    monkeypatch.setattr(threading, "_register_atexit", lambda *what: registered.append(what))
    (tmp_path / "events").mkdir()
    log = EventLog(str(tmp_path / "events"), role="script")
    limit = Limit(log, {"max_steps": 0, "trial": trial}, lambda: 1)
    for _ in range(2):  # a script may go on all the same
        with pytest.raises(RunLimitReached):
            limit.end_trial()
    at_limit = {} if trial is None else {os.getpid(): LIMIT_MET}
    assert processes_at_limit(str(tmp_path)) == at_limit
    assert len(registered) == len(at_limit)
