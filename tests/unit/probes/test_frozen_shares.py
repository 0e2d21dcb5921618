"""What is told of how much of a model needs no gradient."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from support.session import FakeClock, Recorder
from torch import nn

from trainprof.probes import frozen_shares
from trainprof.probes.forward import ForwardProbe
from trainprof.probes.session import ModuleCall, Session
from trainprof.record.schema import Kind, Topic

X = torch.ones(1, 3)


class Net(nn.Module):
    def __init__(self, *, frozen: bool = False) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 2)
        self.inner.weight.requires_grad_(not frozen)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")


def told(recorder: Recorder) -> list[dict[str, Any]]:
    return [x for x in recorder.read().notes(Topic.ENVIRONMENT) if "frozen" in x]


def shares(recorder: Recorder) -> list[tuple[int, int, bool]]:
    return [(x["model"], x["frozen"], x["has_gradients"]) for x in told(recorder)]


def looked_at(recorder: Recorder, clock: FakeClock | None = None) -> Session:
    """Records while each call is looked at for another reason."""
    session = recorder.start(ForwardProbe(), now=clock or FakeClock())
    session.tell_modules(_nothing, True)
    return session


def _nothing(_: ModuleCall) -> None:
    pass


def test_of_a_model_a_part_of_which_is_frozen_it_is_noted_once(recorder: Recorder) -> None:
    recorder.start(ForwardProbe())
    frozen, trained = Net(frozen=True), nn.Linear(3, 2)
    for model in (frozen, trained, frozen):
        model(X)
    recording = recorder.read()
    [note] = told(recorder)
    calls = [event for event in recording.of(Kind.FORWARD) if event.text == "Net"]
    expected = {"frozen": 6, "numbers": 8, "class": calls[0].site, "model": 0}
    assert note == {**expected, "has_gradients": True, "at": calls[0].start}


@pytest.mark.parametrize("is_first", [False, True])
def test_a_teacher_and_its_student_are_of_one_class(recorder: Recorder, is_first: bool) -> None:
    looked_at(recorder)
    teacher, student = Net(frozen=True), Net()
    for model in (teacher, student) if is_first else (student, teacher):
        model(X)
    expected = [(0, 6, True), (1, 0, True)] if is_first else [(0, 0, True), (1, 6, True)]
    assert shares(recorder) == expected


def test_one_that_is_first_called_without_gradients_is_asked_again_with_them(
    recorder: Recorder,
) -> None:
    looked_at(recorder)
    model = Net(frozen=True)
    with torch.no_grad():
        model(X)
        model(X)
    model(X)
    with torch.no_grad():
        model(X)
    assert shares(recorder) == [(0, 6, False), (0, 6, True)]


def test_a_model_that_is_unfrozen_later(recorder: Recorder) -> None:
    looked_at(recorder)
    model = Net(frozen=True)
    model(X)
    model.requires_grad_(True)
    model(X)
    model(X)
    assert shares(recorder) == [(0, 6, True), (0, 0, True)]


def test_of_classes_that_have_nothing_frozen_nothing_is_noted(recorder: Recorder) -> None:
    looked_at(recorder)
    for _ in range(3):
        Net()(X)
        nn.ReLU()(X)
    assert told(recorder) == []


def test_asking_takes_a_small_share_of_the_time(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    session = looked_at(recorder, clock)
    asked: list[Any] = []

    def parameters(module: Any) -> Any:
        asked.append(module)
        clock.advance(10)
        return iter(module.parameters())

    monkeypatch.setattr(frozen_shares, "parameters_of", parameters)
    model = Net(frozen=True)
    for _ in range(20):
        model(X)
        clock.advance(4000)
    assert len(asked) == 4  # a thousandth at most, and less as time goes on
    assert session.looked_ns == 40


def test_of_very_many_models_of_a_class_only_the_first_are_asked(recorder: Recorder) -> None:
    looked_at(recorder)
    models = [Net(frozen=True) for _ in range(30)]
    for model in models:
        model(X)
    assert len(told(recorder)) == frozen_shares._MOST_OF_A_CLASS


def test_a_trace_has_nothing_of_it(recorder: Recorder) -> None:
    looked_at(recorder)
    model = Net(frozen=True)
    torch.jit.trace(model, X, check_trace=False)  # warnings are errors here
    assert told(recorder) == []
    assert recorder.read().notes(Topic.PROBE_FAILED) == []


def test_no_model_is_kept_alive(recorder: Recorder) -> None:
    probe = ForwardProbe()
    recorder.start(probe)
    Net(frozen=True)(X)
    gc.collect()
    assert probe._frozen._models == {}
