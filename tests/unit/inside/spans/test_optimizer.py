"""What is recorded of parameter updates."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.session import FakeClock, Recorder
from torch import nn

from trainprof.inside.limits.limit import RunLimitReached
from trainprof.inside.spans.optimizer import MOST_NAMED, OptimizerProbe
from trainprof.record.schema import Kind, Topic


def parameter() -> nn.Parameter:
    made = nn.Parameter(torch.ones(2))
    made.grad = torch.ones(2)
    return made


class Failing(torch.optim.SGD):
    fails = True

    def step(self, closure: Any = None) -> Any:
        if self.fails:
            raise MemoryError("update")
        return super().step(closure)


class Twice(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


def test_each_kind_of_call(recorder: Recorder) -> None:
    recorder.start(OptimizerProbe())
    p = parameter()
    optimizer = torch.optim.SGD([p], lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    nn.utils.clip_grad_norm_([p], 1.0)
    nn.utils.clip_grad_value_([p], 1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    nn.Linear(1, 1).zero_grad()
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    plateau.step(1.0)
    assert recorder.read().kinds() == [
        "SCHEDULER_STEP",  # its constructor's
        *("CLIP_GRADIENTS", "CLIP_GRADIENTS", "OPTIMIZER_STEP"),
        *("SCHEDULER_STEP", "ZERO_GRAD", "ZERO_GRAD", "SCHEDULER_STEP"),
    ]


def test_a_step_with_a_closure(recorder: Recorder) -> None:
    clock = FakeClock(1000)
    plain = vars(torch.optim.SGD)["_init_group"]
    recorder.start(OptimizerProbe(), now=clock)

    def closure() -> float:
        clock.advance(40)
        return 1.0

    torch.optim.SGD([parameter()], lr=0.1).step()
    assert vars(torch.optim.SGD)["_init_group"] is plain
    groups = [{"params": [parameter()]}, {"params": [parameter()]}]
    optimizer = Twice(groups, lr=0.1)
    optimizer.step(closure)
    optimizer.step(closure=closure)
    optimizer.step()
    torch.optim.LBFGS([parameter()], max_iter=1).step(lambda: torch.tensor(closure()))
    recorder.stop()
    assert vars(torch.optim.SGD)["_init_group"] is plain
    recording = recorder.read()
    assert [e.start for e in recording.of(Kind.UPDATE_BEGINS)] == [1040, 1080]
    steps = {(e.text, e.ns) for e in recording.of(Kind.OPTIMIZER_STEP)}
    assert steps == {("SGD#1", 0), ("Twice#2", 40), ("Twice#2", 0), ("LBFGS#3", 40)}


def test_a_step_that_raised_does_not_stay_open(recorder: Recorder) -> None:
    recorder.start(OptimizerProbe(), options={"max_steps": 2})
    failing = Failing([parameter()], lr=0.1)
    for _ in range(3):
        with pytest.raises(MemoryError):
            failing.step()
    failing.fails = False
    failing.step()
    failing.step()
    with pytest.raises(RunLimitReached):
        failing.step()
    # With a super().step() each where torch wraps that one, too.
    assert len(recorder.read().of(Kind.OPTIMIZER_STEP)) >= 2


def test_of_very_many_optimizers_only_the_first_have_texts(recorder: Recorder) -> None:
    recorder.start(OptimizerProbe())
    p = parameter()
    for _ in range(MOST_NAMED + 50):
        inner = torch.optim.SGD([p], lr=0.1)
        inner.step()
        inner.step()
    torch.optim.Adam([p]).step()
    recording = recorder.read()
    steps = recording.of(Kind.OPTIMIZER_STEP)
    assert len({event.site for event in steps}) == MOST_NAMED + 51  # as without a limit
    assert all(a.site == b.site for a, b in zip(steps[:-1:2], steps[1::2], strict=True))
    names = recording.notes(Topic.OPTIMIZER)
    first = [f"SGD#{number}" for number in range(1, MOST_NAMED + 1)]
    assert names == [*first, "SGD#", f"Adam#{MOST_NAMED + 51}"]
    assert [event.text for event in steps[2 * MOST_NAMED :]] == [None] * 100 + [names[-1]]


def test_a_step_that_a_scaler_skips_is_none(recorder: Recorder) -> None:
    recorder.start(OptimizerProbe())
    first_steps: list[Any] = []
    recorder.session.on_first_step.subscribe(first_steps.append)
    p = parameter()
    optimizer = torch.optim.SGD([p], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    for gradient in (float("inf"), float("inf"), 1.0, 1.0):
        scaler.scale(torch.ones(1))
        p.grad = torch.full((2,), gradient)
        scaler.step(optimizer)
        scaler.update()
        assert first_steps == ([] if gradient == float("inf") else [optimizer])
    recording = recorder.read()
    before, behind = "SCALER_UPDATE", ["SCALER_STEP", "SCALER_UPDATE"]
    assert recording.kinds() == [before, *behind] * 2 + [before, "OPTIMIZER_STEP", *behind] * 2
    steps = recording.of(Kind.OPTIMIZER_STEP, Kind.SCALER_STEP)
    assert {step.text for step in steps} == {"SGD#1"}
