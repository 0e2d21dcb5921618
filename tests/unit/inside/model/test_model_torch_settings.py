"""What is noted of torch's settings while it trains."""

from __future__ import annotations

import inspect
import json
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
import torch
from support.session import Recorder

from trainprof.inside.model import torch_settings
from trainprof.inside.model.torch_settings import _ALLOTTED, TorchSettingsProbe
from trainprof.inside.spans.backward import BackwardProbe
from trainprof.inside.spans.optimizer import OptimizerProbe
from trainprof.record.schema import Kind, Topic

SGD, Adam, AdamW, Rprop = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Rprop
Noted = Callable[[str], list[Any]]


@pytest.fixture
def noted(recorder: Recorder) -> Noted:
    """Starts the probes; returns what was noted by a key."""
    recorder.start(TorchSettingsProbe(), OptimizerProbe(), BackwardProbe())

    def values(key: str) -> list[Any]:
        assert recorder.read().notes(Topic.PROBE_FAILED) == []
        notes = recorder.read().notes(Topic.ENVIRONMENT)
        return [note[key] for note in notes if key in note]

    return values


def line_of(recorder: Recorder, site: int) -> tuple[str, int]:
    file, line, _ = json.loads(recorder.read().texts[site][1])
    return file, line


def update(make: Callable[..., Any], count: int = 3, like: Any = None, **options: Any) -> None:
    like = torch.ones(2) if like is None else like
    parameters = [torch.nn.Parameter(like.clone()) for _ in range(count)]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    make(parameters, lr=0.1, **options).step()


class Own(torch.optim.SGD):
    """The script's class: unknown whether it can be fused."""


class ByHand(torch.optim.Optimizer):
    """As scripts write them: a few operations for each parameter."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(parameter.grad, alpha=-group["lr"])


class Together(ByHand):
    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            grads = [parameter.grad for parameter in group["params"]]
            torch._foreach_add_(group["params"], grads, alpha=-group["lr"])


class Marked(torch.Tensor):
    """A tensor that would notice being asked."""

    @classmethod
    def __torch_function__(cls, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("asked")


@pytest.mark.parametrize(
    ("options", "is_plain"),
    [({}, True), ({"momentum": 0.9}, False), ({"weight_decay": 0.1}, False)],
)
def test_an_optimizer_that_loops_over_its_parameters(
    recorder: Recorder, noted: Noted, options: dict[str, Any], is_plain: bool
) -> None:
    update(SGD, **options)
    [record] = noted("looped_optimizer")
    assert (record["class"], record["tensors"], record["is_plain"]) == ("SGD", 3, is_plain)
    here = (__file__, inspect.getsourcelines(update)[1] + 5)
    assert line_of(recorder, record["built"]) == line_of(recorder, record["site"]) == here
    assert noted("torch_threads") == [torch.get_num_threads()]


@pytest.mark.parametrize(
    ("make", "options", "device", "looped", "unfused"),
    [
        (AdamW, {}, "cpu", ["AdamW"], ["AdamW"]),
        (AdamW, {}, "meta", [], ["AdamW"]),
        (AdamW, {"foreach": False}, "meta", ["AdamW"], ["AdamW"]),
        (AdamW, {"fused": True}, "cpu", [], []),
        (Rprop, {}, "cpu", [], []),  # torch cannot fuse it
        (Own, {}, "cpu", [], []),
    ],
)
def test_which_optimizers_could_be_fused(
    noted: Noted,
    make: Callable[..., Any],
    options: dict[str, Any],
    device: str,
    looped: list[str],
    unfused: list[str],
) -> None:
    update(make, like=torch.ones(2, device=device), **options)
    assert [record["class"] for record in noted("looped_optimizer")] == looped
    assert noted("unfused") == unfused
    assert len(noted("torch_threads")) == 1


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ([{}, {}, {}], 1),
        ([{}, {"lr": 0.2}, {}], 2),
        ([{"betas": (0.9, 0.99)}, {"betas": (0.9, 0.99)}, {"betas": (0.8, 0.99)}], 2),
        ([{}, {"lr": torch.tensor(0.1)}, {"lr": torch.tensor(0.1)}], 3),  # as they may change
    ],
)
def test_groups_of_parameters_are_counted_by_their_settings(
    noted: Noted, options: list[dict[str, Any]], settings: int
) -> None:
    parameters = [torch.nn.Parameter(torch.ones(2)) for _ in options]
    groups = [{"params": [x], **own} for x, own in zip(parameters, options, strict=True)]
    optimizer = AdamW(groups, lr=0.1, foreach=False)
    torch.stack(parameters).sum().backward()
    optimizer.step()
    [note] = noted("update")
    assert (note["tensors"], note["groups"], note["settings"]) == (3, 3, settings)
    assert (note["class"], note["is_torchs"]) == ("AdamW", True)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
@pytest.mark.parametrize("is_sparse", [True, False])
def test_sparse_gradients_cannot_be_fused(noted: Noted, is_sparse: bool) -> None:
    table, dense = torch.nn.Embedding(10, 2, sparse=is_sparse), torch.nn.Linear(2, 1)
    dense(table(torch.tensor([1, 3]))).sum().backward()
    SGD([*dense.parameters(), *table.parameters()], lr=0.1).step()
    assert bool(noted("looped_optimizer")) is not is_sparse


MAKES: Final = "def make(parameters):\n    return Adam(parameters, lr=0.1)\n"


@pytest.mark.parametrize(
    ("file", "package"),
    [
        (f"{sysconfig.get_path('purelib')}/planted_trainer/policies.py", "planted_trainer"),
        ("/home/somebody/policies.py", None),  # a module of the user's own
        ("<stdin>", None),
        (f"{sysconfig.get_path('stdlib')}/statistics.py", None),  # nobody can be told
    ],
)
def test_who_builds_an_optimizer(
    recorder: Recorder, noted: Noted, file: str, package: str | None
) -> None:
    names: dict[str, Any] = {"Adam": Adam}
    exec(compile(MAKES, file, "exec"), names)
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = names["make"]([parameter])
    line = sys._getframe().f_lineno - 1
    parameter.grad = torch.ones(2)
    optimizer.step()
    [built] = noted("built")
    assert built["built_by"] == package
    at = (file, 2) if file.startswith(("/home", "<")) else (__file__, line)
    assert line_of(recorder, built["site"]) == at
    assert noted("looped_optimizer")[0]["built"] == built["site"]
    if package is not None:
        assert line_of(recorder, built["built_at"]) == (file, 2)


def averages(*_: Any) -> None:
    """As an average of weights does, after each update."""


def ours(*_: Any) -> None:
    """As --find-syncs registers."""


ours.__module__ = torch_settings.__name__


@pytest.mark.parametrize(
    ("hook", "is_of_all", "has_hooks"),
    [(ours, True, False), (averages, True, True), (averages, False, True)],
)
def test_functions_that_steps_call(
    noted: Noted, hook: Callable[..., None], is_of_all: bool, has_hooks: bool
) -> None:
    of_all = sys.modules["torch.optim.optimizer"].register_optimizer_step_post_hook
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    optimizer = Adam([parameter])
    handle = (of_all if is_of_all else optimizer.register_step_post_hook)(hook)
    optimizer.step()
    handle.remove()
    assert [record["has_hooks"] for record in noted("looped_optimizer")] == [has_hooks]


@pytest.mark.parametrize("make", [ByHand, Adam, Own, Together])
def test_an_optimizer_by_hand(recorder: Recorder, noted: Noted, make: Callable[..., Any]) -> None:
    update(make)
    begins = inspect.getsourcelines(ByHand.step)[1]
    records = noted("own_optimizer")
    seen = [(x["class"], x["tensors"], line_of(recorder, x["site"])[1]) for x in records]
    # The step of the others is no loop of the user's.
    assert seen == ([("ByHand", 3, begins)] if make is ByHand else [])


def test_the_first_optimizers_have_notes_with_numbers(recorder: Recorder, noted: Noted) -> None:
    for count in range(1, 21):
        update(Adam, count)
    numbers = [event.site for event in recorder.read().of(Kind.OPTIMIZER_STEP)]
    assert len(set(numbers)) == 20
    assert noted("optimizer") == numbers[:8]
    assert len(noted("looped_optimizer")) == 8


def test_tensors_of_the_scripts_own_classes_are_not_asked(recorder: Recorder, noted: Noted) -> None:
    optimizer = SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    optimizer.param_groups[0]["params"] = [torch.ones(2).as_subclass(Marked)]
    recorder.session.on_first_step.watchers[0](optimizer)
    assert noted("looped_optimizer") == []


@pytest.mark.parametrize(
    ("package", "slurm", "cores"),
    [
        ("lightning.pytorch", None, None),
        ("pytorch_lightning", "3", 3),
        ("lightning_fabric", None, None),
    ],
)
def test_who_trains_on_which_cores(
    noted: Noted,
    monkeypatch: pytest.MonkeyPatch,
    package: str,
    slurm: str | None,
    cores: int | None,
) -> None:
    for name in ("lightning.pytorch", "pytorch_lightning"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, package, SimpleNamespace())
    for name in _ALLOTTED:
        monkeypatch.delenv(name, raising=False)
    if slurm is not None:
        monkeypatch.setenv("SLURM_CPUS_PER_TASK", slurm)
    monkeypatch.setattr(torch_settings, "own_cores", lambda: "4-5")  # bound since its start
    update(SGD)
    assert noted("trains_by_lightning") == [package != "lightning_fabric"]
    assert noted("cores_allotted") == [cores]
    assert noted("cores") == ["4-5"]


def test_where_the_script_sets_torchs_threads(recorder: Recorder, noted: Noted) -> None:
    before, set_them = torch.get_num_threads(), torch.set_num_threads
    try:
        assert torch.set_num_threads(before) is None
        with pytest.raises(RuntimeError):
            torch.set_num_threads(0)
        line = sys._getframe().f_lineno - 1
        update(SGD)
    finally:
        set_them(before)
    assert line_of(recorder, noted("threads_set_at")[0]) == (__file__, line)
    assert torch.set_num_threads.__name__ == "set_num_threads"


F64 = torch.float64


@pytest.mark.parametrize(
    ("tensors", "parameters", "convolves"),
    [
        ([torch.ones(2)], "float32", []),
        ([torch.ones(2), torch.ones(30, dtype=F64)], "float64", [False]),
        ([torch.ones(4, 3, 3, dtype=F64)], "float64", [True]),
        ([torch.ones(4, 3, 3)], "float32", []),
        ([torch.ones(2, dtype=torch.bfloat16, device="meta")], "bfloat16", []),
    ],
)
def test_the_precision_of_parameters(
    noted: Noted, tensors: list[torch.Tensor], parameters: str, convolves: list[bool]
) -> None:
    SGD([torch.nn.Parameter(tensor) for tensor in tensors], lr=0.1).step()
    [numerics] = noted("numerics")
    is_on_device = tensors[0].device.type != "cpu"
    products = torch.get_float32_matmul_precision() if is_on_device else None
    assert (numerics["parameters"], numerics.get("products")) == (parameters, products)
    assert noted("convolves_in_float64") == convolves


DOUBLES = """\
model = Net()  # .double() is slow
model = model.double()
torch.set_default_dtype(torch.float64)
self.net = Net().to(device, torch.float64)
torch.set_default_dtype(torch.float32)
total += loss.double().item()
net.double()
"""


@pytest.mark.parametrize(
    ("text", "lines", "decomposes"),
    [
        (DOUBLES, [3, 2, 4], False),  # three at most
        ("y = torch.linalg.solve(a, b)", [], True),
        ("y = a.logdet()", [], True),
        ("y = torch.lgamma(a)", [], True),
        ("import gpytorch", [], True),
        ("resolved(a); details(b); model.eval()", [], False),
    ],
)
def test_lines_that_make_a_model_double_and_texts_that_may_need_it(
    recorder: Recorder,
    noted: Noted,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    lines: list[int],
    decomposes: bool,
) -> None:
    script = tmp_path / "script.py"
    script.write_text(text)
    monkeypatch.setitem(sys.modules, "script", SimpleNamespace(__file__=str(script)))
    monkeypatch.setattr(recorder.session.sites, "is_user_file", lambda path: path == str(script))
    update(SGD, like=torch.ones(3, dtype=F64))
    [numerics] = noted("numerics")
    assert [line_of(recorder, site)[1] for site in numerics["sites"]] == lines
    assert noted("decomposes_in_float64") == [decomposes]


def linear(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(x, torch.nn.Parameter(torch.ones(4, 4).to(x.device)))


def attended(x: torch.Tensor) -> torch.Tensor:
    return torch.bmm(torch.nn.functional.softmax(torch.bmm(x, x), -1), x)


def convolved(x: torch.Tensor) -> torch.Tensor:
    weight = torch.nn.Parameter(torch.ones(4, 4, 1, 1).to(x.device))
    return torch.nn.functional.conv2d(x.reshape(1, 4, 2, -1), weight)


def mixed(x: torch.Tensor) -> torch.Tensor:
    return linear(x.bfloat16().float()) + torch.mm(x.bfloat16(), x.bfloat16()).float()


def checkpointed(x: torch.Tensor) -> torch.Tensor:
    return torch.utils.checkpoint.checkpoint(linear, x, use_reentrant=True)


@pytest.mark.parametrize(
    ("model", "shape", "counts"),
    [
        (linear, (4, 4), {"matmuls": 1}),
        (lambda x: linear(linear(x).relu()), (4, 4), {"matmuls": 2}),
        (attended, (2, 4, 4), {"matmuls": 2}),
        (convolved, (4, 4), {"convolutions": 1, "convolutions_2d": 1}),
        (mixed, (4, 4), {"matmuls": 2, "lower": 1}),
        (checkpointed, (4, 4), {"opaque": 1}),
        (lambda x: x * x + x.sigmoid(), (4, 4), {}),
    ],
)
def test_how_products_are_computed_on_a_device(
    noted: Noted, model: Callable[..., Any], shape: tuple[int, ...], counts: dict[str, int]
) -> None:
    parameter = torch.nn.Parameter(torch.empty(shape, device="meta"))
    train = SGD([parameter], lr=0.1)
    for _ in range(3):
        loss = model(parameter).sum()
        loss.backward()
        train.step()
    [operators] = noted("operators")
    assert {key: x for key, x in operators.items() if x and key != "mixes"} == counts


def test_nothing_is_asked_of_products_on_a_cpu(noted: Noted) -> None:
    parameter = torch.nn.Parameter(torch.ones(4, 4))
    train = SGD([parameter], lr=0.1)
    for _ in range(3):
        linear(parameter).sum().backward()
        train.step()
    assert noted("operators") == []
    assert "capability" not in noted("numerics")[0]


@pytest.mark.parametrize("hip", [None, "6.0"])
def test_what_a_device_can_compute(
    noted: Noted, monkeypatch: pytest.MonkeyPatch, hip: str | None
) -> None:
    monkeypatch.setattr(torch.version, "hip", hip)
    device = SimpleNamespace(get_device_capability=lambda index: (8, 0))
    monkeypatch.setattr(torch, "meta", device, raising=False)
    SGD([torch.nn.Parameter(torch.empty(2, device="meta"))], lr=0.1).step()
    [numerics] = noted("numerics")
    assert numerics["capability"] == (None if hip else [8, 0])
    assert numerics["convolutions_tf32"] is torch.backends.cudnn.allow_tf32


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return 2 * gradients[0]


@pytest.mark.parametrize(
    ("loss_of", "operators"),
    [(lambda x: x.exp().sum(), 2), (lambda x: Doubled.apply(x.exp()).sum(), 3)],
)
def test_operators_of_a_graph(
    noted: Noted, loss_of: Callable[[torch.Tensor], torch.Tensor], operators: int
) -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = SGD([weight], lr=0.1)
    for _ in range(10):
        loss_of(weight).backward()
        weight.grad.sum()
        torch.ones((), requires_grad=True).backward()  # of no operator
        optimizer.step()
    assert noted("backward_nodes") == [operators]


@pytest.mark.parametrize(("passes", "expected"), [(19, []), (45, [True])])
def test_anomaly_detection_that_stays_on(noted: Noted, passes: int, expected: list[bool]) -> None:
    x = torch.ones(2, requires_grad=True)
    for number in range(30 + passes):
        torch.autograd.set_detect_anomaly(number >= 30)
        x.sum().backward()
    torch.autograd.set_detect_anomaly(False)
    assert noted("detects_anomalies") == expected
