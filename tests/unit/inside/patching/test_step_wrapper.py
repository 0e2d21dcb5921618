"""Classes of optimizers that the script wrote: sent to other processes, and freed."""

from __future__ import annotations

import gc
import pickle
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.session import Recorder, run_hooked, run_plain

from trainprof.inside.patching.step_wrapper import StepHook, hooked_elsewhere
from trainprof.inside.spans.optimizer import OptimizerProbe
from trainprof.record.schema import Kind

cloudpickle = pytest.importorskip("cloudpickle")

SENT = """
import cloudpickle, torch

class Own(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {})

    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data -= 0.5 * parameter.grad
        return closure() if closure is not None else None

def make():
    parameter = torch.nn.Parameter(torch.ones(1))
    parameter.grad = torch.ones(1)
    return Own([parameter]), parameter

optimizer, parameter = make()
optimizer.step()
print(parameter.item())
with open("class.pickle", "wb") as file:
    file.write(cloudpickle.dumps(Own))
"""
ARRIVED = """
import pickle, sys
sys.modules["trainprof"] = None  # an import of it fails
import torch
with open("class.pickle", "rb") as file:
    cls = pickle.load(file)
parameter = torch.nn.Parameter(torch.ones(1))
parameter.grad = torch.ones(1)
optimizer = cls([parameter])
optimizer.step()
print(parameter.item(), optimizer.step(lambda: 7.0), parameter.item())
try:
    optimizer.step(1, 2)
except TypeError as error:
    print("step() takes" in str(error))
"""


def own_class(held: object = None) -> type[torch.optim.Optimizer]:
    class Own(torch.optim.Optimizer):
        kept = held

        def __init__(self, parameters: Any) -> None:
            torch.optim.Optimizer.__init__(self, parameters, {})

        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.data -= 0.5 * parameter.grad
            return closure() if closure is not None else None

    return Own


def stepped(cls: type[torch.optim.Optimizer]) -> torch.optim.Optimizer:
    parameter = torch.nn.Parameter(torch.ones(1))
    parameter.grad = torch.ones(1)
    optimizer: torch.optim.Optimizer = cls([parameter])  # type: ignore[call-arg]
    optimizer.step()
    return optimizer


def test_a_class_that_is_sent_by_value_works_where_trainprof_is_not(tmp_path: Path) -> None:
    (tmp_path / "sent.py").write_text(SENT)
    (tmp_path / "arrived.py").write_text(ARRIVED)
    here = run_hooked(["sent.py"], tmp_path, tmp_path / "run")
    assert (here.stdout, here.stderr) == ("0.5\n", "")
    arrived = run_plain(["arrived.py"], tmp_path)
    assert arrived.stdout.split() == ["0.5", "7.0", "0.0", "True"], arrived.stderr


def sent(cls: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """As it arrives; in the same process cloudpickle would give the very class back."""
    step = pickle.loads(cloudpickle.dumps(vars(cls)["step"]))
    return type("Own", cls.__bases__, {**vars(cls), "step": step})


def test_a_class_that_came_from_another_process_is_watched_in_this_one(recorder: Recorder) -> None:
    recorder.start(OptimizerProbe())
    cls = own_class()
    stepped(cls)
    arrived = sent(cls)
    assert hooked_elsewhere(vars(arrived)["step"]) is not None
    for _ in range(2):
        stepped(arrived)
    assert vars(arrived)["step"].hooked is True
    steps = recorder.read().of(Kind.OPTIMIZER_STEP)
    assert len(steps) == 3  # each once
    stepped(sent(arrived))
    assert len(recorder.read().of(Kind.OPTIMIZER_STEP)) == 4
    recorder.stop()
    assert hooked_elsewhere(vars(arrived)["step"]) is None
    stepped(arrived)
    assert len(recorder.read().of(Kind.OPTIMIZER_STEP)) == 4


@pytest.mark.parametrize("closes", [False, True])
def test_a_class_is_freed_with_what_it_holds(recorder: Recorder, closes: bool) -> None:
    probe = OptimizerProbe()
    recorder.start(probe)
    gone: list[Callable[[], Any]] = []
    for _ in range(3):
        model = torch.nn.Linear(2, 2)
        cls = own_class(model)
        optimizer = stepped(cls)
        if closes:
            optimizer.step(lambda: 1.0)
        gone += [weakref.ref(model), weakref.ref(cls)]
        del model, cls, optimizer
    gc.collect()
    assert [reference() for reference in gone] == [None] * 6
    assert probe._asked == {}


def test_a_hook_of_ours_among_torchs_can_be_sent_and_does_nothing_there() -> None:
    called: list[Any] = []
    hook = StepHook(called.append)
    assert hook("optimizer", (), {}) is None  # type: ignore[func-returns-value]
    assert called == ["optimizer"]
    sent = pickle.loads(pickle.dumps(hook))
    assert sent("optimizer", (), {}) is None
    assert called == ["optimizer"]
