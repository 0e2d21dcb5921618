"""What is noted of the logits that models give."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.session import Recorder
from torch import nn
from torch.overrides import TorchFunctionMode

from trainprof.probes.forward import ForwardProbe
from trainprof.record.schema import Topic

LOGITS = torch.zeros(4, 6, 100)


class Output(OrderedDict[str, Any]):
    """As Hugging Face's; what a script does with it is not to be noticed."""

    def get(self, *_: Any) -> Any:
        raise AssertionError


class Model(nn.Module):
    def forward(self, output: Any) -> Any:
        return output


def told(recorder: Recorder) -> list[int]:
    notes = recorder.read().notes(Topic.ENVIRONMENT)
    return [note["logits_bytes"] for note in notes if "logits_bytes" in note]


def test_the_bytes_of_a_sample_are_told_once_of_a_class(recorder: Recorder) -> None:
    recorder.start(ForwardProbe())
    for _ in range(3):
        Model()(Output(loss=torch.zeros(()), logits=LOGITS))
    assert told(recorder) == [6 * 100 * 4]
    nn.Identity()({"logits": torch.zeros(8, 2, dtype=torch.bfloat16)})
    assert told(recorder) == [2400, 4]


@pytest.mark.parametrize(
    "output",
    [
        LOGITS,
        None,
        [LOGITS],
        {"logits": None},
        {"logits": [LOGITS]},
        {"predictions": LOGITS},
        {"logits": torch.zeros(8)},
        {"logits": torch.zeros(0, 8)},
        {"logits": nn.Parameter(LOGITS)},
    ],
)
def test_of_others_nothing_is(recorder: Recorder, output: Any) -> None:
    recorder.start(ForwardProbe())
    Model()(output)
    assert told(recorder) == []


def test_a_mode_of_the_scripts_sees_no_question(recorder: Recorder) -> None:
    seen = []

    class Sees(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    recorder.start(ForwardProbe())
    with Sees():
        Model()({"logits": LOGITS})
    assert (seen, told(recorder)) == ([], [])


def test_a_call_gives_the_same(same_with_us: Callable[..., Any]) -> None:
    assert same_with_us(lambda: Model()({"logits": LOGITS})["logits"], ForwardProbe())
