"""How much padding is told of in what a model is given."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support import fake_device
from support.session import FakeClock, Recorder
from torch import nn

from trainprof.probes.forward import ForwardProbe
from trainprof.probes.optimizer import OptimizerProbe
from trainprof.probes.padding import PaddingProbe
from trainprof.probes.session import Probe
from trainprof.probes.transfer import TransferProbe
from trainprof.record.schema import Topic

CLOCK = FakeClock()
ROWS, WIDTH, STEPS = 8, 32, 60
PAD = 3


class Reader(nn.Module):
    """Embeds whatever tables of whole numbers it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(1_000, 4)

    def forward(self, *given: Any, **named: Any) -> torch.Tensor:
        CLOCK.advance(1_000_000_000)
        return self.table.weight.square().mean()


def probes() -> list[Probe]:
    return [TransferProbe(), ForwardProbe(), PaddingProbe(), OptimizerProbe()]


def train(batches: Iterable[Callable[[nn.Module], torch.Tensor]]) -> list[float]:
    torch.manual_seed(0)
    model = Reader()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for batch in batches:
        loss = batch(model)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return losses


def texts(
    longest: int = 20, *, width: int = WIDTH, is_left: bool = False, pad: int = PAD
) -> torch.Tensor:
    """Returns rows of numbers from 10 on: the first is `longest`, the others half of that."""
    table = torch.full((ROWS, width), pad)
    for row in range(ROWS):
        length = longest if row == 0 else longest // 2
        words = torch.arange(10, 10 + length)
        if is_left:
            table[row, width - length :] = words
        else:
            table[row, :length] = words
    return table


def features(*, is_full: bool = False) -> torch.Tensor:
    """Returns ones here and there: of each row a few, or most."""
    table = torch.zeros(ROWS, WIDTH).long()
    for row in range(ROWS):
        table[row, row::3] = 1
    return 1 - table if is_full else table


def drawn(low: int, high: int, *shape: int) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(0))


def mazes() -> torch.Tensor:
    """Returns cells of mazes with a wall around them, as they are read."""
    cells = drawn(0, 5, 32, 10, 10)
    cells[:, 0] = cells[:, -1] = 1
    cells[:, :, 0] = cells[:, :, -1] = 1
    return cells.flatten(1)


def digits() -> torch.Tensor:
    """Returns pixels of pictures with a black margin, more of it below than above."""
    pixels = torch.zeros(16, 28, 28).long()
    for row in range(16):
        pixels[row, 3 : 20 + row % 5, 5:23] = drawn(0, 256, 17 + row % 5, 18)
    return pixels.flatten(1)


def openings() -> torch.Tensor:
    """Returns boards whose columns are filled from below, as they are read from there."""
    board = torch.zeros(64, 6, 7).long()
    heights = drawn(0, 4, 64, 7)
    for height in range(6):
        board[:, height] = (heights > height) * drawn(1, 3, 64, 7)
    return board.flatten(1)


def categories(least: int = 1) -> torch.Tensor:
    """Returns twenty categories of each row, and four flags of which few are set."""
    table = drawn(least, 50, 64, 24)
    table[:, 20:] = 0
    table[0, 20] = table[1, 21] = 1
    return table


def cut_short() -> torch.Tensor:
    """Returns columns of which the last four are always zero, the one ahead of them at times."""
    table = drawn(1, 50, 64, 24)
    table[:, 20:] = 0
    table[:20, 19] = 0
    table[0, 10:] = 0
    return table


def words_to_guess() -> torch.Tensor:
    """Returns the labels of those words of `texts` that a model is to guess."""
    return torch.where((texts() != PAD) & (torch.arange(WIDTH) % 6 == 2), texts(), -100)


def second_parts() -> torch.Tensor:
    """Returns ones for all that is in the second half of each row."""
    return (torch.arange(WIDTH) >= WIDTH // 2).long().expand(ROWS, WIDTH)


def ranks() -> torch.Tensor:
    """Returns a one for each rank that a row reaches, as ordinal regression learns them."""
    return (texts() != PAD).long()


def sounds() -> torch.Tensor:
    """Returns fractions for all places."""
    return torch.linspace(-1, 1, ROWS * WIDTH).reshape(ROWS, WIDTH)


def like_lengths() -> torch.Tensor:
    return torch.cat([drawn(10, 50, ROWS, 20), torch.full((ROWS, WIDTH - 20), PAD)], 1)


def often(value: int) -> torch.Tensor:
    """Returns `texts` in which every fourth word is one and the same."""
    table = texts()
    table[:, 1:9:4] = value
    return table


def told(recorder: Recorder) -> dict[str, Any]:
    recording = recorder.read()
    assert recording.notes(Topic.PROBE_FAILED) == []
    notes = [x["padding"] for x in recording.notes(Topic.ENVIRONMENT) if "padding" in x]
    return notes[-1] if notes else {}


def read_by(recorder: Recorder, call: Callable[[nn.Module], torch.Tensor]) -> dict[str, Any]:
    recorder.start(*probes(), now=CLOCK)
    train([call] * STEPS)
    return told(recorder)


def test_the_same_with_and_without(same_with_us: Callable[..., Any]) -> None:
    def script() -> Any:
        losses = train([lambda model: model(texts())] * STEPS)
        return losses, torch.rand(1).item()

    assert same_with_us(script, *probes())[0] == "returned"


@pytest.mark.parametrize(
    "call",
    [
        lambda model: model(texts()),
        lambda model: model(texts(is_left=True)),
        lambda model: model(texts(pad=-100)),
        lambda model: model({"ids": [texts(), torch.ones(ROWS, 4)]}),
        lambda model: model(input_ids=texts(), attention_mask=(texts() != PAD).long()),
        lambda model: model(input_ids=texts(), token_type_ids=torch.zeros(ROWS, WIDTH).long()),
        lambda model: model(texts(), labels=torch.full((ROWS, WIDTH), -100)),
        lambda model: model(texts().int(), torch.rand(ROWS, WIDTH), torch.arange(WIDTH)),
        lambda model: model(texts(), attention_mask=texts() != PAD),
        lambda model: model(sounds(), attention_mask=(texts() != PAD).long()),
        lambda model: model(sounds(), attention_mask=(texts(is_left=True) != PAD).long()),
        lambda model: model(texts(), features(is_full=True)),
        lambda model: model(input_ids=texts(), labels=words_to_guess()),
        lambda model: model(
            input_ids=texts(), attention_mask=(texts() != PAD).long(), labels=words_to_guess()
        ),
        lambda model: model(often(PAD), attention_mask=(texts() != PAD).long()),
        lambda model: model(often(20)),
    ],
    ids=[
        "right",
        "left",
        "-100",
        "nested",
        "mask",
        "types",
        "labels",
        "others",
        "a mask of flags",
        "a mask of fractions",
        "one of the left",
        "features beside",
        "labels of a few words",
        "those beside a mask",
        "a word that pads, beside a mask",
        "a word that is frequent",
    ],
)
def test_what_rows_of_numbers_hold(
    recorder: Recorder, call: Callable[[nn.Module], torch.Tensor]
) -> None:
    found = read_by(recorder, call)
    looks = found["looks"]
    assert looks >= 6
    assert found["rows"] == looks * ROWS
    assert found["places"] == looks * ROWS * WIDTH
    assert found["longest"] == looks * ROWS * 20
    assert found["filled"] == looks * (20 + 7 * 10)
    assert "sites" in found


@pytest.mark.parametrize(
    "call",
    [
        lambda model: model(torch.arange(10, 10 + ROWS * WIDTH).reshape(ROWS, WIDTH)),
        lambda model: model(texts(longest=WIDTH)),
        lambda model: model(sounds(), attention_mask=(texts(longest=WIDTH) != PAD).long()),
        lambda model: model(sounds(), attention_mask=torch.ones(ROWS, WIDTH).long()),
        lambda model: model(torch.cat([torch.full((ROWS, 20), 7), texts(longest=12)[:, :12]], 1)),
        lambda model: model(mazes()),
        lambda model: model(mazes().flip(1)),
        lambda model: model(digits()),
        lambda model: model(openings()),
        lambda model: model(categories()),
        lambda model: model(categories(least=0)),
        lambda model: model(cut_short()),
        lambda model: model(often(PAD)),
        lambda model: model(often(PAD), token_type_ids=second_parts()),
        lambda model: model(often(PAD), attention_mask=torch.ones(ROWS, WIDTH).long()),
        lambda model: model(like_lengths()),
    ],
    ids=[
        "none",
        "to the longest",
        "a mask of fractions",
        "a mask of ones",
        "an image's places",
        "mazes",
        "mazes from behind",
        "digits",
        "boards",
        "categories and flags",
        "zero is a category as well",
        "columns of zeros",
        "a frequent word",
        "that and two parts",
        "that and a mask of ones",
        "rows of one length",
    ],
)
def test_what_the_longest_of_a_batch_needs_is_no_needless_padding(
    recorder: Recorder, call: Callable[[nn.Module], torch.Tensor]
) -> None:
    found = read_by(recorder, call)
    assert found["longest"] == found["places"] > 0
    assert "sites" not in found


@pytest.mark.parametrize(
    "call",
    [
        lambda model: model(torch.rand(ROWS, WIDTH)),
        lambda model: model(texts(width=15, longest=8)),
        lambda model: model(texts()[0]),
        lambda model: model(texts()[:1]),
        lambda model: model(torch.zeros(ROWS, WIDTH).long()),
        lambda model: model(texts() > PAD),
        lambda model: model.eval()(texts()),
        lambda model: model(texts(), torch.rand(ROWS, 3, 32, 32)),
        lambda model: model(texts().to_sparse()),
        lambda model: model(features()),
        lambda model: model(features(is_full=True)),
        lambda model: model(features(), torch.rand(ROWS, 4)),
        lambda model: model(torch.eye(WIDTH).long()[:ROWS]),
        lambda model: model(torch.rand(ROWS, 12), ranks()),
        lambda model: model(torch.rand(ROWS, 12), 1 - ranks()),
        lambda model: model(torch.rand(ROWS, 12), torch.ones(ROWS, WIDTH).long()),
        lambda model: model(torch.rand(ROWS, 12), ranks(), torch.eye(WIDTH).long()[:ROWS]),
        lambda model: model(torch.rand(ROWS, 12), ranks(), 1 - ranks()),
        lambda model: model(torch.rand(ROWS, 12), ranks(), torch.rand(WIDTH)),
        lambda model: model(logits=sounds().requires_grad_(), levels=ranks()),
    ],
    ids=[
        "no whole numbers",
        "narrow",
        "one row",
        "one of a batch",
        "types",
        "flags",
        "eval",
        "beside pictures",
        "sparse",
        "several ones",
        "ones mostly",
        "beside others",
        "a one in each row",
        "ranks to learn",
        "times that somebody is away",
        "somebody seen to the end",
        "times that somebody was seen at and what happened",
        "both of these times",
        "ranks and their weights",
        "ranks compared with what is computed",
    ],
)
def test_nothing_is_told_of_others(
    recorder: Recorder, call: Callable[[nn.Module], torch.Tensor]
) -> None:
    assert read_by(recorder, call) == {}


@pytest.mark.parametrize("first", [1, 4], ids=["one", "begins with a word several times"])
def test_a_mask_tells_what_pads_rows_of_one_length(recorder: Recorder, first: int) -> None:
    table = like_lengths()
    table[0, :first] = 50
    mask = (table != PAD).long()
    found = read_by(recorder, lambda model: model(table, attention_mask=mask))
    assert found["longest"] == found["filled"] == found["looks"] * ROWS * 20


@pytest.mark.parametrize(
    ("padded", "alike", "full"), [(2, 1, 0), (1, 2, 2), (1, 1, 1)], ids=["few", "most", "half"]
)
def test_tables_of_one_length_count_as_full_unless_more_are_padded(
    recorder: Recorder, padded: int, alike: int, full: int
) -> None:
    def call(model: nn.Module) -> torch.Tensor:
        for _ in range(alike):
            model(like_lengths())
        return sum(model(texts()) for _ in range(padded))  # type: ignore[return-value]

    found = read_by(recorder, call)
    assert found["longest"] == found["looks"] * ROWS * (20 * padded + WIDTH * full)
    assert found["places"] == found["looks"] * ROWS * WIDTH * (padded + full)


def test_texts_most_of_which_are_cut_at_the_width_count_among_padded_ones(
    recorder: Recorder,
) -> None:
    cut = drawn(10, 50, ROWS, WIDTH)
    cut[0, 20:] = PAD

    def call(model: nn.Module) -> torch.Tensor:
        return model(cut) + model(texts()) + model(texts())  # type: ignore[no-any-return]

    found = read_by(recorder, call)
    assert found["longest"] == found["looks"] * ROWS * (WIDTH + 20 + 20)
    assert found["places"] == found["looks"] * ROWS * WIDTH * 3


def test_texts_are_padded_though_the_word_that_pads_is_in_them_too(recorder: Recorder) -> None:
    table = texts()
    table[0, 4] = PAD
    found = read_by(recorder, lambda model: model(table))
    assert found["longest"] == found["looks"] * ROWS * 20


@pytest.mark.parametrize(
    ("call", "is_left"),
    [
        (lambda model: model(texts()), False),
        (lambda model: model(texts(is_left=True)), True),
        (lambda model: model(sounds(), (texts() != PAD).long()), False),
        (lambda model: model(sounds(), (texts(is_left=True) != PAD).long()), True),
        (lambda model: model(sounds(), torch.ones(ROWS, WIDTH).long()), False),
    ],
    ids=["right", "left", "a mask", "one of the left", "none"],
)
def test_padding_in_front_is_told(
    recorder: Recorder, call: Callable[[nn.Module], torch.Tensor], is_left: bool
) -> None:
    found = read_by(recorder, call)
    assert found["left"] == (found["rows"] if is_left else 0)


@pytest.mark.parametrize(
    ("call", "has_labels"),
    [
        (lambda model: model(input_ids=texts(), labels=texts(pad=-100)), True),
        (lambda model: model({"input_ids": texts(), "labels": texts()}), True),
        (lambda model: model(input_ids=texts(), labels=texts(width=24)), True),
        (lambda model: model(input_ids=texts(), lm_labels=texts()), True),
        (lambda model: model(input_ids=texts(), labels=torch.arange(ROWS)), False),
        (lambda model: model(input_ids=texts(), labels=features()[:, :20]), False),
        (lambda model: model(input_ids=texts(), labels=torch.rand(ROWS, WIDTH)), False),
        (lambda model: model(input_ids=texts(), attention_mask=texts()), False),
        (lambda model: model({1: texts(), "labels": None}), False),
    ],
    ids=[
        "of each place",
        "in a batch",
        "of another width",
        "another name",
        "of each text",
        "several of each text",
        "no whole numbers",
        "a mask",
        "none",
    ],
)
def test_labels_that_have_to_be_padded_as_well_are_told(
    recorder: Recorder, call: Callable[[nn.Module], torch.Tensor], has_labels: bool
) -> None:
    assert read_by(recorder, call)["has_labels"] is has_labels


def test_classes_of_the_scripts_are_not_compared(recorder: Recorder) -> None:
    compared = []

    class Comparing(type):
        def __eq__(cls, other: object) -> bool:
            compared.append(other)
            return True

        __hash__ = type.__hash__

    class Odd(metaclass=Comparing):
        pass

    assert read_by(recorder, lambda model: model(texts(), Odd()))["rows"] > 0
    assert compared == []


def test_a_few_batches_spread_over_the_run_are_looked_at(recorder: Recorder) -> None:
    recorder.start(*probes(), now=CLOCK)
    seen = []

    def of_step(step: int) -> Callable[[nn.Module], torch.Tensor]:
        def call(model: nn.Module) -> torch.Tensor:
            return model(texts(longest=2 + step % 20))  # type: ignore[no-any-return]

        return call

    for steps in (20, 100, 1_000):
        train(of_step(step) for step in range(steps))
        seen.append(told(recorder)["looks"])
    assert seen[0] < seen[1] < seen[2] <= 32


def test_where_no_sequences_come_nothing_is_watched_for_long(recorder: Recorder) -> None:
    recorder.start(*probes(), now=CLOCK)
    train([lambda model: model(torch.rand(ROWS, WIDTH))] * 2 * STEPS)
    assert (recorder.session.copy_watches, recorder.session.step_watches) == ((), ())


def start_with_fake_device(recorder: Recorder) -> None:
    fake_device.register()
    padding, transfer = PaddingProbe(), TransferProbe()
    recorder.start(transfer, ForwardProbe(), padding, OptimizerProbe(), now=CLOCK)
    transfer.plain_types.add(fake_device.FakeTensor)
    padding._autograd._plain_types = (torch.Tensor, nn.Parameter, fake_device.FakeTensor)


@pytest.mark.parametrize("cut", [0, 1], ids=["all", "all but the last"])
def test_on_a_device_what_was_copied_there_is_told(recorder: Recorder, cut: int) -> None:
    start_with_fake_device(recorder)

    def call(model: nn.Module) -> torch.Tensor:
        moved = texts().to("fakegpu")
        given = fake_device.FakeTensor(torch.zeros(ROWS, WIDTH - cut).long())
        assert moved.shape[0] == given.shape[0]
        return model(given)  # type: ignore[no-any-return]

    train([call] * STEPS)
    found = told(recorder)
    assert found["longest"] == found["looks"] * ROWS * 20
    assert found["places"] == found["looks"] * ROWS * WIDTH


@pytest.mark.parametrize("has_texts", [True, False])
def test_on_a_device_a_mask_is_one_of_what_was_copied_beside_it(
    recorder: Recorder, has_texts: bool
) -> None:
    start_with_fake_device(recorder)

    def call(model: nn.Module) -> torch.Tensor:
        ranks().to("fakegpu")
        given = [torch.zeros(ROWS, WIDTH).long()]
        if has_texts:
            often(PAD).to("fakegpu")
            given *= 2
        return model(*map(fake_device.FakeTensor, given))  # type: ignore[no-any-return]

    train([call] * STEPS)
    found = told(recorder)
    assert bool(found) is has_texts
    if has_texts:
        assert found["longest"] == found["looks"] * ROWS * 20


def test_on_a_device_a_model_that_is_given_less_is_not_told_of(recorder: Recorder) -> None:
    start_with_fake_device(recorder)

    def call(model: nn.Module) -> torch.Tensor:
        texts().to("fakegpu")
        return model(fake_device.FakeTensor(texts(width=20)))  # type: ignore[no-any-return]

    train([call] * STEPS)
    assert told(recorder) == {}


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
    train([lambda model: model(texts())] * STEPS)
    found = told(recorder)
    sites = [json.loads(recorder.read().texts[site][1])[1] for site in found["sites"]]
    assert (sites, found["is_left_out"]) == (lines, is_left_out)


def test_what_losses_and_other_models_take_is_none_of_it(recorder: Recorder) -> None:
    class Other(nn.Linear):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            CLOCK.advance(3_000_000_000)
            return super().forward(inputs)

    class Loss(nn.CrossEntropyLoss):
        def forward(self, given: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return given

    other, loss = Other(4, 4), Loss()

    def call(model: nn.Module) -> torch.Tensor:
        other(torch.rand(2, 4))
        read = model(texts())
        return loss(read, texts(longest=4))  # type: ignore[no-any-return]

    found = read_by(recorder, call)
    assert found["longest"] == found["looks"] * ROWS * 20
    # Of four seconds one.
    assert found["of_calls"] == pytest.approx(0.25)
