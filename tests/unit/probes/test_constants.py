"""Which results of a model's are told as the same in each step, and which are not."""

from __future__ import annotations

import sysconfig
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import dear_function
from support.dear_function import CLOCK, COST_NS, EDGES, Model, dear, lines_told, train
from support.session import Recorder
from torch import nn
from torch.overrides import TorchFunctionMode

from trainprof.probes import constants
from trainprof.probes.compilation import CompilationProbe
from trainprof.probes.constants import ConstantsProbe
from trainprof.probes.forward import ForwardProbe
from trainprof.probes.optimizer import OptimizerProbe
from trainprof.probes.session import Probe
from trainprof.probes.warning_place import WarningPlaceProbe
from trainprof.record.schema import Topic


@pytest.fixture(autouse=True)
def _nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever other tests have compiled in this process."""
    monkeypatch.setattr(constants, "_has_compiled", lambda: False)


def probes() -> list[Probe]:
    return [ForwardProbe(), ConstantsProbe(), OptimizerProbe(), CompilationProbe()]


def told(recorder: Recorder) -> dict[int, float]:
    """Returns the lines that were told last, with their ms."""
    found = lines_told(recorder, "constants", __file__)
    return {line: one["step_ns"] / 1e6 for line, one in found.items()}


def lines_of(recorder: Recorder, made: Callable[..., Any]) -> dict[int, float]:
    """Returns the same of a model, by the number of each line within `made`."""
    recorder.start(*probes(), now=CLOCK)
    train(Model(made))
    first = made.__code__.co_firstlineno
    return {line - first: ms for line, ms in told(recorder).items()}


def of_a_buffer(model: Any, x: torch.Tensor, step: int) -> Any:
    degree = model.edges.sum(1)
    return dear(torch.diag(degree) - model.edges)


def of_nothing(model: Any, x: torch.Tensor, step: int) -> Any:
    place = torch.arange(8.0)
    return dear((place[:, None] - place).abs() / 9)


def filled(model: Any, x: torch.Tensor, step: int) -> Any:
    table = torch.empty(8, 8)
    table[:, 0::2] = torch.arange(4.0)
    table[:, 1::2] = 0.5
    rows = table[2:4]
    rows.mul_(2)
    return dear(table / 9)


def beside_the_batch(model: Any, x: torch.Tensor, step: int) -> Any:
    near = dear(torch.cdist(x, x)).mean()
    return dear(model.edges) + near


@pytest.mark.parametrize(
    ("made", "line"), [(of_a_buffer, 2), (of_nothing, 2), (filled, 6), (beside_the_batch, 2)]
)
def test_what_never_changes_is_told_by_its_line(
    recorder: Recorder, made: Callable[..., Any], line: int
) -> None:
    found = lines_of(recorder, made)
    assert found[line] == COST_NS / 1e6
    assert all(ms == 0 for other, ms in found.items() if other != line)


def of_the_batch(model: Any, x: torch.Tensor, step: int) -> Any:
    return dear(x.T @ x / 100)


def of_what_is_learnt(model: Any, x: torch.Tensor, step: int) -> Any:
    return dear(model.linear.weight.T @ model.linear.weight)


def of_chance(model: Any, x: torch.Tensor, step: int) -> Any:
    return dear(nn.functional.dropout(model.edges, 0.5))


def of_the_step(model: Any, x: torch.Tensor, step: int) -> Any:
    return dear(model.edges * step / 100)


def of_what_is_written(model: Any, x: torch.Tensor, step: int) -> Any:
    model.edges.mul_(0.99)
    return dear(model.edges)


def of_what_is_written_elsewhere(model: Any, x: torch.Tensor, step: int) -> Any:
    model.edges.data[0, 0] = step
    return dear(model.edges / 100)


def of_the_batch_in_the_end(model: Any, x: torch.Tensor, step: int) -> Any:
    table = torch.zeros(8, 8)
    table[0] = x.mean(0)
    return dear(table)


def by_the_batch_through_a_view(model: Any, x: torch.Tensor, step: int) -> Any:
    table = torch.zeros(8, 8)
    row = table[0]
    row.copy_(x.mean(0))
    return dear(table)


def scratch_for_the_batch(model: Any, x: torch.Tensor, step: int) -> Any:
    """As one-hot rows are: of zeros, to which what comes of the batch is written."""
    table = dear(torch.zeros(8, 8))
    return table.scatter_(1, x[:, :1].abs().long().clamp(max=7), 1.0)


def a_buffers_copy_for_the_batch(model: Any, x: torch.Tensor, step: int) -> Any:
    table = dear(model.edges)
    table[:4] = x.detach()
    return table


def by_lengths_of_the_batch(model: Any, x: torch.Tensor, step: int) -> Any:
    table = torch.empty(8, 8)
    length = 1 + step % 5
    table[:, :length], table[:, length:] = 0.0, -1.0
    return dear(table)


def far_apart(model: Any, x: torch.Tensor, step: int) -> Any:
    """A mask of the batch's lengths, whose first columns are always the same."""
    hidden = torch.zeros(4, 512, 512)
    hidden[:, :, 500 - step :] = 1.0
    return (hidden * 2)[0, :8, :8]


def of_the_mask_of_a_batch_that_is_always_full(model: Any, x: torch.Tensor, step: int) -> Any:
    full = (x < 1e9).float()
    return dear(full.T @ full / 100)


def once(model: Any, x: torch.Tensor, step: int) -> Any:
    if "kernel" not in model.kept:
        model.kept["kernel"] = dear(model.edges)
    return model.kept["kernel"]


def now_and_then(model: Any, x: torch.Tensor, step: int) -> Any:
    return dear(model.edges) if step % 40 == 0 else model.edges


@pytest.mark.parametrize(
    "made",
    [
        of_the_batch,
        of_what_is_learnt,
        of_chance,
        of_the_step,
        of_what_is_written,
        of_what_is_written_elsewhere,
        of_the_batch_in_the_end,
        by_the_batch_through_a_view,
        of_the_mask_of_a_batch_that_is_always_full,
        scratch_for_the_batch,
        a_buffers_copy_for_the_batch,
        once,
        now_and_then,
    ],
)
def test_what_changes_is_not_told(recorder: Recorder, made: Callable[..., Any]) -> None:
    assert not any(lines_of(recorder, made).values())


@pytest.mark.parametrize("made", [by_lengths_of_the_batch, far_apart])
def test_no_line_of_a_table_that_changes_is_told(
    recorder: Recorder, made: Callable[..., Any]
) -> None:
    assert 1 not in lines_of(recorder, made)
    assert lines_of(recorder, made).keys() <= {0}


def test_what_changes_after_all_is_told_no_longer(recorder: Recorder) -> None:
    def late(model: Any, x: torch.Tensor, step: int) -> Any:
        return dear(model.edges / (1 if step < 40 else 2))

    assert not any(lines_of(recorder, late).values())
    notes = [x for x in recorder.read().notes(Topic.ENVIRONMENT) if "constants" in x]
    assert any(one["step_ns"] for one in notes[0]["constants"]["lines"])


def test_what_changes_late_is_told_no_longer(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dear_function, "STEPS", 200)

    def thawed(model: Any, x: torch.Tensor, step: int) -> Any:
        if step == 1:
            model.inner = nn.Linear(8, 8).requires_grad_(False)
        if step == 100:
            model.inner.requires_grad_(True)
        return dear(model.inner.weight)

    assert not any(lines_of(recorder, thawed).values())
    notes = [x for x in recorder.read().notes(Topic.ENVIRONMENT) if "constants" in x]
    assert any(one["step_ns"] for one in notes[-2]["constants"]["lines"])
    assert 80 <= notes[-2]["constants"]["steps"] < 100


@pytest.mark.parametrize(("apart", "is_told"), [(1, True), (2, False)])
def test_only_what_is_told_is_looked_at_on_and_on(
    recorder: Recorder, apart: int, is_told: bool
) -> None:
    def at_one_line_or_another(model: Any, x: torch.Tensor, step: int) -> Any:
        if step % apart:
            return dear(model.edges)
        return dear(model.edges)

    assert any(lines_of(recorder, at_one_line_or_another).values()) is is_told
    assert bool(recorder.session.step_watches) is is_told


def test_one_batch_that_is_given_again_and_again_stays_the_same(recorder: Recorder) -> None:
    recorder.start(*probes(), now=CLOCK)
    train(Model(of_the_batch), [torch.ones(4, 8) / 9])
    assert sum(told(recorder).values()) == COST_NS / 1e6


@pytest.mark.parametrize("made", [of_a_buffer, of_the_batch, of_chance, filled])
def test_losses_are_as_without_us(recorder: Recorder, made: Callable[..., Any]) -> None:
    def losses() -> list[float]:
        torch.manual_seed(0)
        return train(Model(made))

    plain = losses()
    recorder.start(*probes(), now=CLOCK)
    assert losses() == plain
    assert torch._C._len_torch_function_stack() == 0


def test_an_error_in_a_step_that_is_looked_at_is_as_without_us(recorder: Recorder) -> None:
    def fails(model: Any, x: torch.Tensor, step: int) -> Any:
        return x @ x if step == 13 else x

    def shown() -> list[tuple[str, int | None]]:
        with pytest.raises(RuntimeError) as caught:
            train(Model(fails))
        assert torch._C._len_torch_function_stack() == 0
        return [(one.filename, one.lineno) for one in traceback.extract_tb(caught.tb)]

    plain = shown()
    recorder.start(*probes(), now=CLOCK)
    assert shown() == plain


_LIBRARY = """
def smoothed(edges):
    degree = edges.sum(1)
    return dear(torch.diag(degree) - edges)

def inner(model, x):
    return model(x)

class Whole(torch.nn.Module):
    def __init__(self, edges):
        super().__init__()
        self.linear = torch.nn.Linear(8, 1)
        self.register_buffer("edges", edges)

    def forward(self, x):
        return self.linear(x + smoothed(self.edges)[:1])
"""
_INSTALLED: dict[str, Any] = {"dear": dear, "torch": torch, "__name__": "graphs"}
exec(compile(_LIBRARY, f"{sysconfig.get_path('purelib')}/graphs/inside.py", "exec"), _INSTALLED)


def by_a_library(model: Any, x: torch.Tensor, step: int) -> Any:
    return _INSTALLED["smoothed"](model.edges)


def test_what_a_library_computes_is_told_by_the_line_that_calls_it(recorder: Recorder) -> None:
    assert lines_of(recorder, by_a_library)[1] == COST_NS / 1e6
    notes = [x for x in recorder.read().notes(Topic.ENVIRONMENT) if "constants" in x]
    assert {one["package"] for one in notes[-1]["constants"]["lines"]} == {"graphs"}


def test_what_a_librarys_own_model_computes_is_not_told(recorder: Recorder) -> None:
    recorder.start(*probes(), now=CLOCK)
    train(_INSTALLED["Whole"](EDGES.clone()))
    assert not any(told(recorder).values())


class Encoded(nn.Module):
    """A frozen transformer in evaluation mode, which torch computes in a way of its own."""

    def __init__(self, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
        self.encoder.requires_grad_(False)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True).eval().requires_grad_(False)
        self.linear, self.dtype = nn.Linear(8, 1), dtype

    def train(self, mode: bool = True) -> Encoded:
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", self.dtype, enabled=self.dtype is not None):
            x = self.encoder(x[None])
            x = self.attention(x, x, x, need_weights=False)[0]
            out: torch.Tensor = self.linear(x).float()
        return out


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_a_frozen_transformer_is_computed_in_the_same_way(
    recorder: Recorder, dtype: torch.dtype | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trained() -> list[float]:
        torch.manual_seed(0)
        return train(Encoded(dtype))

    ways: list[str] = []
    for name in ("_transformer_encoder_layer_fwd", "_native_multi_head_attention"):
        way = getattr(torch, name)
        monkeypatch.setattr(
            torch, name, lambda *x, way=way, **y: (ways.append(""), way(*x, **y))[1]
        )
    asks = torch.overrides.has_torch_function, torch.nn.functional.has_torch_function_unary
    plain, seen = trained(), len(ways)
    recorder.start(*probes(), now=CLOCK)
    assert trained() == plain
    assert len(ways) == 2 * seen
    assert seen > 0 or dtype is not None
    assert torch.overrides.has_torch_function is asks[0]
    assert torch.nn.functional.has_torch_function_unary is asks[1]


def test_warnings_stand_where_they_stand_without_us(recorder: Recorder) -> None:
    def warns(model: Any, x: torch.Tensor, step: int) -> Any:
        told = nn.Softmax()(x)  # of torch's Python functions, by levels of the stack
        return told + torch.view_as_complex(x.detach().view(-1, 2)).to(torch.float32).sum()  # C

    def shown() -> set[tuple[str, int]]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            train(Model(warns))
        return {(one.filename, one.lineno) for one in caught}

    torch.set_warn_always(True)
    try:
        plain = shown()
        recorder.start(*probes(), WarningPlaceProbe(), now=CLOCK)
        assert shown() == plain
    finally:
        torch.set_warn_always(False)
    assert len(plain) == 2


class Doubled(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("how", ["around", "inside", "left on"])
def test_the_scripts_own_mode_is_left_as_it_is(recorder: Recorder, how: str) -> None:
    mode, depths = Doubled(), set()

    def made(model: Any, x: torch.Tensor, step: int) -> Any:
        depths.add(torch._C._len_torch_function_stack())
        if how == "inside":
            with mode:
                return dear(model.edges)
        if how == "left on" and step == 13:
            mode.__enter__()
        return dear(model.edges)

    recorder.start(*probes(), now=CLOCK)
    if how == "around":
        with mode:
            train(Model(made))
        assert depths == {1}
        assert told(recorder) == {}
    else:
        train(Model(made))
    if how == "left on":
        assert torch._C._get_function_stack_at(0) is mode
        mode.__exit__(None, None, None)
    assert torch._C._len_torch_function_stack() == 0


@pytest.mark.parametrize("is_asked", [True, False])
def test_where_something_was_compiled_no_look_is_taken(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, is_asked: bool
) -> None:
    recorder.start(*probes(), now=CLOCK)
    recorder.session.compiler.was_asked = is_asked
    monkeypatch.setattr(constants, "_has_compiled", lambda: not is_asked)
    train(Model(of_a_buffer))
    assert told(recorder) == {}


def test_torch_s_own_functional_transforms_are_not_looked_into(recorder: Recorder) -> None:
    def mapped(model: Any, x: torch.Tensor, step: int) -> Any:
        return torch.func.vmap(lambda row: (row * model.edges).sum(0))(model.edges)

    assert not any(lines_of(recorder, mapped).values())


def test_evaluation_is_not_looked_at(recorder: Recorder) -> None:
    recorder.start(*probes(), now=CLOCK)
    model, looked_at = Model(of_a_buffer), Model(of_the_batch)

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = looked_at

        def __call__(self, x: torch.Tensor) -> Any:
            with torch.no_grad():
                model(x)
            return self.inner(x)

    train(Both())
    assert not any(told(recorder).values())


def test_what_takes_little_is_looked_at_no_longer(recorder: Recorder) -> None:
    recorder.start(*probes(), now=CLOCK)
    train(Model(of_the_batch))
    assert not recorder.session.step_watches


class Steps(nn.Module):
    """Its forward trains, as that of a learner of learners does."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.inner.parameters(), lr=0.1)

    def forward(self, x: torch.Tensor) -> float:
        loss = self.inner(x).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.modes = torch._C._len_torch_function_stack()
        return float(loss.detach())


def test_an_optimizer_that_steps_inside_a_module_leaves_no_mode_behind(recorder: Recorder) -> None:
    recorder.start(*probes(), now=CLOCK)
    model, modes = Steps(), []
    for _ in range(60):
        model(torch.randn(8, 4))
        modes.append((model.modes, torch._C._len_torch_function_stack()))
        CLOCK.advance(10_000_000_000)
    assert {after for _, after in modes} == {0}
    # It opens and closes behind a step.
    assert {inside for inside, _ in modes} == {0}
    assert "trainprof" not in torch.overrides.has_torch_function.__module__
    assert recorder.read().notes(Topic.PROBE_FAILED) == []


def test_a_fault_of_ours_inside_a_model_takes_the_mode_off(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(ConstantsProbe, "_see_repeat", fails)
    recorder.start(*probes(), now=CLOCK)
    train(Model(of_nothing))
    assert torch._C._len_torch_function_stack() == 0
    [fault] = recorder.read().notes(Topic.PROBE_FAILED)
    assert "planted" in str(fault)
