"""How much padding is told of in what a model is given."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support import fake_device
from support.session import FakeClock, Recorder
from torch import nn

from trainprof.findings.model.padded_batches.probe import PaddingProbe
from trainprof.inside.session import Probe
from trainprof.inside.spans.forward import ForwardProbe
from trainprof.inside.spans.optimizer import OptimizerProbe
from trainprof.inside.spans.transfer import TransferProbe
from trainprof.record.schema import Topic

CLOCK = FakeClock()
ROWS, WIDTH, LONGEST, STEPS = 8, 32, 20, 30
PAD = 3
Call = Callable[[nn.Module], torch.Tensor]


class Reader(nn.Module):
    """Takes whatever it is given for a second."""

    def __init__(self, pad: int | None = PAD) -> None:
        super().__init__()
        self.table = nn.Embedding(1_000, 4, padding_idx=pad)

    def forward(self, *given: Any, **named: Any) -> torch.Tensor:
        CLOCK.advance(1_000_000_000)
        return self.table.weight.square().mean()


def probes() -> list[Probe]:
    return [TransferProbe(), ForwardProbe(), PaddingProbe(), OptimizerProbe()]


def train(call: Call, model: nn.Module | None = None, steps: int = STEPS) -> list[float]:
    torch.manual_seed(0)
    model = model or Reader()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        loss = call(model)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return losses


def texts(*, width: int = WIDTH, is_left: bool = False) -> torch.Tensor:
    """Returns rows of numbers from 10 on: the first is `LONGEST`, the others half of that."""
    table = torch.full((ROWS, width), PAD)
    for row in range(ROWS):
        length = LONGEST if row == 0 else LONGEST // 2
        start = width - length if is_left else 0
        table[row, start : start + length] = torch.arange(10, 10 + length)
    return table


def mask() -> torch.Tensor:
    return (texts() != PAD).long()


def padding(recorder: Recorder) -> dict[str, Any]:
    recording = recorder.read()
    assert recording.notes(Topic.PROBE_FAILED) == []
    notes = [x["padding"] for x in recording.notes(Topic.ENVIRONMENT) if "padding" in x]
    return notes[-1] if notes else {}


def test_the_same_with_and_without(same_with_us: Callable[..., Any]) -> None:
    def script() -> Any:
        return train(lambda model: model(texts())), torch.rand(1).item()

    assert same_with_us(script, *probes())[0] == "returned"


COUNTED: dict[str, tuple[int | None, Call]] = {
    "right": (PAD, lambda model: model(texts())),
    "left": (PAD, lambda model: model(texts(is_left=True))),
    "nested": (PAD, lambda model: model({"ids": [texts().int()]})),
    "mask": (None, lambda model: model(input_ids=texts(), attention_mask=mask())),
}
NOT_COUNTED: dict[str, tuple[int | None, Call]] = {
    "no known pad": (None, lambda model: model(texts())),
    "sounds": (PAD, lambda model: model(texts(), torch.rand(ROWS, 2 * WIDTH))),
    "fractions": (PAD, lambda model: model(texts().float())),
    "one row": (PAD, lambda model: model(texts()[:1])),
    "evaluated": (PAD, lambda model: model.eval()(texts())),
}


@pytest.mark.parametrize("name", [*COUNTED, *NOT_COUNTED])
def test_what_is_counted(recorder: Recorder, name: str) -> None:
    pad, call = (COUNTED | NOT_COUNTED)[name]
    recorder.start(*probes(), now=CLOCK)
    train(call, Reader(pad))
    note = padding(recorder)
    assert bool(note) is (name in COUNTED)
    if note:
        rows = note["looks"] * ROWS
        assert note["looks"] == 3
        assert (note["rows"], note["places"]) == (rows, rows * WIDTH)
        assert note["longest"] == rows * LONGEST
        assert note["filled"] == note["looks"] * (ROWS + 1) * LONGEST // 2


def test_few_batches_are_looked_at(recorder: Recorder) -> None:
    recorder.start(*probes(), now=CLOCK)
    train(lambda model: model(texts()), steps=400)
    assert padding(recorder)["looks"] == 24
    session = recorder.session
    assert (session.on_h2d_copy.watchers, session.on_step.watchers) == ((), ())


@pytest.mark.parametrize("is_masked", [True, False])
@pytest.mark.parametrize("width", [WIDTH, LONGEST])
def test_copies_to_a_device_count(recorder: Recorder, width: int, is_masked: bool) -> None:
    fake_device.register()
    probe = PaddingProbe()
    spans = fake_device.transfer_probe(), ForwardProbe(), probe, OptimizerProbe()
    recorder.start(*spans, now=CLOCK)
    probe._plain._plain_types = (torch.Tensor, nn.Parameter, fake_device.FakeTensor)

    def call(model: nn.Module) -> torch.Tensor:
        texts().to("fakegpu")
        mask().to("fakegpu")
        given = fake_device.FakeTensor(torch.zeros(ROWS, width).long())
        named = {"attention_mask": given} if is_masked else {}
        return model(given, **named)  # type: ignore[no-any-return]

    train(call)
    note = padding(recorder)
    assert bool(note) is (width == WIDTH)
    if note:
        assert note["longest"] == note["looks"] * ROWS * LONGEST


@pytest.mark.parametrize(
    ("text", "lines", "is_left_out"),
    [
        ('x = 1\ntokens = tokenizer(texts, padding="max_length")\n', [2], False),
        ("options = {'padding': 'max_length'}\n", [1], False),
        ("collate(pad_to_max_length=True)\n", [1], False),
        ("tokenizer(texts, padding=True)  # not padding='max_length'\n", [], False),
        ("packed = nn.utils.rnn.pack_padded_sequence(x, lengths)\n", [], True),
        ("flash_attn_varlen_func(q, k, v)\n", [], True),
    ],
)
def test_who_pads_and_who_leaves_padding_out(
    recorder: Recorder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    lines: list[int],
    is_left_out: bool,
) -> None:
    script = tmp_path / "script.py"
    script.write_text(text)
    monkeypatch.setitem(sys.modules, "script", SimpleNamespace(__file__=str(script)))
    recorder.start(*probes(), now=CLOCK)
    monkeypatch.setattr(recorder.session.sites, "is_user_file", lambda path: path == str(script))
    train(lambda model: model(texts()))
    note = padding(recorder)
    sites = [json.loads(recorder.read().texts[site][1])[1] for site in note["sites"]]
    assert (sites, note["is_left_out"]) == (lines, is_left_out)


def test_what_other_models_take_is_none_of_it(recorder: Recorder) -> None:
    class Other(nn.Linear):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            CLOCK.advance(3_000_000_000)
            return super().forward(inputs)

    other = Other(4, 4)
    recorder.start(*probes(), now=CLOCK)
    train(lambda model: model(texts()) + 0 * other(torch.rand(2, 4)).sum())
    note = padding(recorder)
    assert note["reading_ns"] / note["all_ns"] == pytest.approx(0.25)
