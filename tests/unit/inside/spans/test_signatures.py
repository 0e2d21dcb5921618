"""Who asks torch's functions for their parameters hears what they are without us."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.session import Recorder
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

from trainprof.inside.catalogue import default_probes
from trainprof.inside.spans.forward import ForwardProbe
from trainprof.inside.spans.optimizer import OptimizerProbe

OWNERS: tuple[Any, ...] = (
    torch,
    torch.nn.Module,
    torch.nn.functional,
    torch.nn.utils,
    torch.autograd,
    torch.serialization,
    torch.cuda,
    torch.amp.GradScaler,
    torch.distributed,
    torch.distributed.distributed_c10d,
    torch.optim.Optimizer,
    *(cls for cls in vars(torch.optim.lr_scheduler).values() if isinstance(cls, type)),
    torch.utils.data.DataLoader,
    torch.utils.data.dataloader._BaseDataLoaderIter,
    torch.utils.data.dataloader._SingleProcessDataLoaderIter,
    torch.utils.data.dataloader._MultiProcessingDataLoaderIter,
)


def functions() -> dict[tuple[str, str], Any]:
    return {
        (owner.__name__, name): value.__func__ if type(value) is staticmethod else value
        for owner in OWNERS
        for name, value in vars(owner).items()
        if type(value) in (FunctionType, staticmethod)
    }


def shown(function: Callable[..., Any]) -> list[Any]:
    return [inspect.signature(function), inspect.getfullargspec(function)]


def defaults(function: Any) -> list[Any]:
    return [function.__defaults__, function.__kwdefaults__]


def test_all_that_is_wrapped_shows_its_parameters(recorder: Recorder) -> None:
    bare = functions()
    recorder.start(*default_probes())
    wrapped = {name: one for name, one in functions().items() if one is not bare.get(name, one)}
    assert len(wrapped) > 50
    differing = [name for name, ours in wrapped.items() if shown(ours) != shown(bare[name])]
    assert differing == []
    of_torchs = [name for name in wrapped if not name[0].startswith("_")]  # not of its iterators
    assert len(of_torchs) > 40
    assert [name for name in of_torchs if defaults(wrapped[name]) != defaults(bare[name])] == []


def test_arguments_are_given_as_without_us(recorder: Recorder) -> None:
    recorder.start(ForwardProbe(), OptimizerProbe())
    parameter = torch.nn.Parameter(torch.ones(1))
    parameter.grad = torch.ones(1)
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    for scheduler in (StepLR(optimizer, 1), ReduceLROnPlateau(optimizer)):
        optimizer.step()
        asks = "metrics" in inspect.getfullargspec(scheduler.step).args
        assert asks is isinstance(scheduler, ReduceLROnPlateau)
        scheduler.step(*([0.5] if asks else []))
    known = inspect.getfullargspec(F.cross_entropy).args
    settings = {"label_smoothing": 0.1, "other": 1}
    kept = {name: value for name, value in settings.items() if name in known}
    assert kept == {"label_smoothing": 0.1}


def optimizer_steps() -> Iterator[Any]:
    class Own(torch.optim.SGD):
        def step(self, closure: Any = None, *, extra: int = 0) -> Any:
            return super().step(closure)

    for cls in (torch.optim.Adam, Own):
        parameter = torch.nn.Parameter(torch.ones(1))
        optimizer = cls([parameter], lr=0.1)
        step = optimizer.step
        yield inspect.signature(step), inspect.getfullargspec(step)
        yield step.__func__.__wrapped__.__qualname__, type(step), inspect.isfunction(cls.step)
        StepLR(optimizer, 1)  # which stands around `step` by then
        yield inspect.signature(optimizer.step), inspect.getfullargspec(optimizer.step)


def test_an_optimizers_step_looks_as_it_did(same_with_us: Callable[..., Any]) -> None:
    assert same_with_us(lambda: list(map(str, optimizer_steps())), OptimizerProbe())[0] == (
        "returned"
    )


def test_what_somebody_puts_around_ours_shows_that_of_the_function(recorder: Recorder) -> None:
    def wrapped() -> inspect.Signature:
        @functools.wraps(F.mse_loss)
        def own(*args: Any, **kwargs: Any) -> Any:
            return F.mse_loss(*args, **kwargs)

        return inspect.signature(own)

    bare = wrapped()
    recorder.start(ForwardProbe())
    assert wrapped() == bare


def test_what_cannot_be_shown_harms_nothing(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(_: object) -> Any:
        raise NameError("an annotation's")

    with monkeypatch.context() as patched:
        patched.setattr(inspect, "signature", refuses)
        recorder.start(ForwardProbe())
    assert F.mse_loss(torch.ones(1), torch.ones(1)).item() == 0
    assert recorder.read().kinds() == ["LOSS"]
