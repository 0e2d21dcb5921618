"""fused and foreach in a trial: where torch allows it and the script has not chosen."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.session import Recorder
from support.trials import faults, start_trial, told

from trainprof.inside.catalogue import default_probes
from trainprof.launch.options import TrialOptions

SGD, Adam, AdamW = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW


def parameters(count: int = 2, **options: Any) -> list[torch.nn.Parameter]:
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(3, **options)) for _ in range(count)]


def step(optimizer: Any) -> list[list[float]]:
    found = optimizer.param_groups[0]["params"]
    for p in found:
        p.grad = torch.full_like(p, 0.5)
    optimizer.step()
    return [p.tolist() for p in found]


def settings_of(optimizer: Any, name: str = "fused") -> list[Any]:
    return [optimizer.defaults.get(name), *(g.get(name) for g in optimizer.param_groups)]


@pytest.mark.parametrize("make", [SGD, Adam, AdamW, torch.optim.Adagrad])
def test_fused_as_torchs_own_constructor_makes_it(recorder: Recorder, make: Any) -> None:
    own = make(parameters(), fused=True)
    start_trial(recorder, settings={"fused": True})
    ours = make(
        [{"params": parameters()}, {"params": parameters(1), "lr": 0.5}], lr=own.defaults["lr"]
    )
    assert settings_of(ours) == [True] * 3
    assert ours._step_supports_amp_scaling is own._step_supports_amp_scaling is True
    assert step(ours) == step(own)
    keys = [sorted(state) for state in ours.state.values()]
    assert keys[:2] == [sorted(state) for state in own.state.values()]
    assert told(recorder)["applied"] == {"fused": True}
    assert (told(recorder)["refused"], faults(recorder)) == ({}, [])


@pytest.mark.parametrize("make", [SGD, Adam, torch.optim.RMSprop])
def test_foreach(recorder: Recorder, make: Any) -> None:
    own = make(parameters(), foreach=True, lr=0.1)
    start_trial(recorder, settings={"foreach": True})
    ours = make(parameters(), lr=0.1)
    assert settings_of(ours, "foreach") == [True, True]
    assert step(ours) == step(own)


class Own(torch.optim.Optimizer):
    def __init__(self, params: Any) -> None:
        super().__init__(params, {"fused": None})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        return None


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Adam(parameters(), fused=False), "fused=False"),
        (lambda: Adam(parameters(), foreach=True), "foreach=True"),
        (lambda: Adam(parameters(), foreach=False), "foreach=False"),
        (lambda: Adam([{"params": parameters(), "fused": False}]), "fused=False"),
        (lambda: Adam(parameters(), differentiable=True), "differentiable"),
        (lambda: Adam(parameters(), capturable=True), "capturable"),
        (lambda: torch.optim.RMSprop(parameters()), "does not know fused"),
        (lambda: Own(parameters()), "does not know fused"),
    ],
)
def test_where_it_is_not_to_be(recorder: Recorder, make: Callable[[], Any], why: str) -> None:
    bare = settings_of(make())
    start_trial(recorder, settings={"fused": True})
    optimizer = make()
    assert settings_of(optimizer) == bare
    assert not getattr(optimizer, "_step_supports_amp_scaling", False)
    assert told(recorder)["applied"] == {}
    assert why in told(recorder)["refused"]["fused"]


def test_a_group_that_is_added_later(recorder: Recorder) -> None:
    start_trial(recorder, settings={"fused": True})
    optimizer = Adam(parameters())
    optimizer.add_param_group({"params": parameters(1)})
    assert settings_of(optimizer) == [True] * 3


@pytest.mark.parametrize("by_name", [False, True])
def test_a_state_that_is_loaded_does_not_undo_it(recorder: Recorder, by_name: bool) -> None:
    saved = Adam(parameters())
    step(saved)
    state = saved.state_dict()
    before = copy.deepcopy(state)
    start_trial(recorder, settings={"fused": True})
    optimizer, own = Adam(parameters()), Adam(parameters(), fused=True)
    for one in (optimizer, own):
        one.load_state_dict(state_dict=state) if by_name else one.load_state_dict(state)
    assert str(state) == str(before)
    assert settings_of(optimizer) == [True, True]
    assert step(optimizer) == step(own)


def test_an_error_of_the_constructor_looks_the_same(same_with_us: Callable[..., Any]) -> None:
    trial = TrialOptions(settings={"fused": True}).to_json()
    for wrong in (lambda: SGD([], lr=1), lambda: Adam(parameters(), lr=-1)):
        assert same_with_us(wrong, *default_probes(trial))[0] == "raised"


def test_a_fault_of_ours_leaves_the_optimizer(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("ours")

    place = "trainprof.inside.trial.settings.OptimizerSettingsProbe._why_not"
    monkeypatch.setattr(place, broken)
    start_trial(recorder, settings={"fused": True})
    assert settings_of(Adam(parameters())) == [None, None]
    assert faults(recorder) == [{"probe": "trial_optimizer", "error": "ZeroDivisionError: ours"}]
