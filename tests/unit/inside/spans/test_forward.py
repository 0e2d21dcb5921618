"""What is recorded of module calls and losses."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.session import FakeClock, Recorder
from torch import nn

from trainprof.inside.spans.forward import ForwardProbe
from trainprof.record.schema import ForwardFlag, Kind, Topic


class Net(nn.Module):
    def __init__(self, clock: FakeClock | None = None) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 2)
        self.clock = clock

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.clock:
            self.clock.advance(500)
        return self.inner(x)


def test_only_the_outermost_call_is_recorded(recorder: Recorder) -> None:
    clock = FakeClock()
    recorder.start(ForwardProbe(), now=clock)
    nn.Sequential(Net(clock), nn.ReLU(), nn.Sequential(nn.ReLU()))(torch.ones(1, 3))
    [event] = recorder.read().events
    assert (event.kind, event.ns, event.text) == (Kind.FORWARD, 500, "Sequential")


class Compiled(nn.Module):
    """As torch.compile returns it: it says what the module inside does, and has no flag itself."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self._modules["_orig_mod"] = inner

    training = property(lambda self: self._modules["_orig_mod"].training, lambda *_: None)

    def forward(self, x: torch.Tensor) -> Any:
        return self._modules["_orig_mod"](x)  # type: ignore[misc]


Compiled.__module__ = "torch._dynamo.eval_frame"


class Hiding(Compiled):
    """Of the script's: nobody may ask it."""

    def _asked(self) -> bool:
        raise AssertionError("asked")

    training = property(_asked, lambda *_: None)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "make",
    [Compiled, Hiding, torch.jit.script, lambda net: torch.jit.trace(net, torch.ones(1, 3))],
    ids=["compiled", "hiding", "scripted", "traced"],
)
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_the_mode_of_what_hides_it(
    recorder: Recorder, make: Callable[[nn.Module], Any], training: bool
) -> None:
    model = make(nn.Linear(3, 2).train(training))
    recorder.start(ForwardProbe())
    for _ in range(2):
        model(torch.ones(1, 3))
    flags = [event.flags for event in recorder.read().of(Kind.FORWARD)]
    is_seen = training and make is not Hiding
    assert flags == [ForwardFlag.GRAD | (ForwardFlag.TRAINING if is_seen else 0)] * 2
    assert recorder.read().notes(Topic.PROBE_FAILED) == []


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("grad", [True, False])
def test_flags(recorder: Recorder, training: bool, grad: bool) -> None:
    recorder.start(ForwardProbe())
    net = Net().train(training)
    with torch.set_grad_enabled(grad):
        net(torch.ones(1, 3))
        F.mse_loss(torch.ones(1), torch.ones(1))
    forward, loss = recorder.read().events
    expected = (ForwardFlag.GRAD if grad else 0) | (ForwardFlag.TRAINING if training else 0)
    assert forward.flags == expected
    assert loss.flags == (ForwardFlag.GRAD if grad else 0)


def test_losses_are_told_from_models(recorder: Recorder) -> None:
    recorder.start(ForwardProbe())
    out, target = torch.rand(4, 3), torch.zeros(4, dtype=torch.long)
    with pytest.raises(RuntimeError):
        Net()(torch.ones(1, 4))
    nn.CrossEntropyLoss()(out, target)
    F.cross_entropy(out, target)
    F.mse_loss(out, out)
    Net()(out)
    assert [(e.kind, e.text) for e in recorder.read().events] == [
        (Kind.FORWARD, "Net"),
        (Kind.LOSS, "CrossEntropyLoss"),
        (Kind.LOSS, "cross_entropy"),
        (Kind.LOSS, "mse_loss"),
        (Kind.FORWARD, "Net"),
    ]


def test_threads_that_overlap_each_record_their_outermost_calls(recorder: Recorder) -> None:
    """A enters, B enters, A leaves, B leaves: neither is taken for the other's inside."""
    recorder.start(ForwardProbe())
    inside_a, inside_b, left_a = threading.Event(), threading.Event(), threading.Event()

    class Meeting(nn.Module):
        def forward(self, mine: threading.Event, other: threading.Event) -> None:
            mine.set()
            assert other.wait(60)
            nn.ReLU()(torch.ones(1))

    def thread_b() -> None:
        Meeting()(inside_b, left_a)
        Meeting()(inside_b, left_a)

    thread = threading.Thread(target=thread_b)

    class Starting(nn.Module):
        def forward(self) -> None:
            thread.start()
            Meeting()(inside_a, inside_b)

    Starting()()
    left_a.set()
    thread.join()
    for _ in range(3):
        Net()(torch.ones(1, 3))
    texts = [event.text.rsplit(".", 1)[-1] for event in recorder.read().events]
    assert sorted(texts) == ["Meeting"] * 2 + ["Net"] * 3 + ["Starting"]


def test_models_are_copied_and_pickled_as_before(recorder: Recorder) -> None:
    torch.manual_seed(0)
    net = Net()
    net(torch.ones(1, 3))
    bare = pickle.dumps(net)
    recorder.start(ForwardProbe())
    net(torch.ones(1, 3))
    assert pickle.dumps(net) == bare
    assert pickle.loads(pickle.dumps(nn.Module.__call__)) is nn.Module.__call__
    assert copy.deepcopy(net)(torch.ones(1, 3)).tolist() == net(torch.ones(1, 3)).tolist()
    assert vars(net).keys() == vars(Net()).keys()
