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


def told(recorder: Recorder, key: str) -> list[Any]:
    notes = recorder.read().notes(Topic.ENVIRONMENT)
    return [note[key] for note in notes if key in note]


def update(make: Callable[..., Any], parameters: int = 3, **options: Any) -> None:
    updated = [torch.nn.Parameter(torch.ones(2)) for _ in range(parameters)]
    for parameter in updated:
        parameter.grad = torch.ones(2)
    make(updated, lr=0.1, **options).step()


class Own(torch.optim.SGD):
    """Made by the script: nobody knows whether it can be fused."""


class Marked(torch.Tensor):
    """A tensor that would notice being asked."""

    @classmethod
    def __torch_function__(cls, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("asked")


def test_an_optimizer_that_goes_through_its_parameters_one_by_one(recorder: Recorder) -> None:
    recorder.start(TorchSettingsProbe(), OptimizerProbe())
    update(torch.optim.Adam)
    [facts] = told(recorder, "looped_optimizer")
    assert (facts["class"], facts["tensors"]) == ("Adam", 3)
    sites = recorder.read().texts
    begins = inspect.getsourcelines(update)[1]
    for place in ("built", "site"):
        assert f'test_model_torch_settings.py", {begins + 4}' in sites[facts[place]][1]
    assert told(recorder, "torch_threads") == [torch.get_num_threads()]


def test_the_cores_that_training_may_be_on_are_those_at_its_first_step(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder.start(TorchSettingsProbe(), OptimizerProbe())
    monkeypatch.setattr(torch_settings, "own_cores", lambda: "4-5")  # bound since its start
    update(torch.optim.SGD)
    assert told(recorder, "cores") == ["4-5"]


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
def test_who_builds_an_optimizer(recorder: Recorder, file: str, package: str | None) -> None:
    names: dict[str, Any] = {"Adam": torch.optim.Adam}
    exec(compile(MAKES, file, "exec"), names)
    recorder.start(TorchSettingsProbe(), OptimizerProbe())
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = names["make"]([parameter])
    line = sys._getframe().f_lineno - 1
    parameter.grad = torch.ones(2)
    optimizer.step()
    [facts] = told(recorder, "built")
    sites = recorder.read().texts
    assert facts["built_by"] == package
    at = (file, 2) if file.startswith(("/home", "<")) else (__file__, line)
    assert json.loads(sites[facts["site"]][1])[:2] == [*at]
    assert told(recorder, "looped_optimizer")[0]["built"] == facts["site"]
    if package is not None:
        assert json.loads(sites[facts["built_at"]][1])[:2] == [file, 2]


def averages(*_: Any) -> None:
    """As an average of weights does, after each update."""


def test_functions_that_steps_call_are_told(recorder: Recorder) -> None:
    recorder.start(TorchSettingsProbe(), OptimizerProbe())

    def ours(*_: Any) -> None:
        """As --find-syncs registers."""

    ours.__module__ = torch_settings.__name__
    of_all = sys.modules["torch.optim.optimizer"].register_optimizer_step_post_hook
    for register in (None, ours, averages, "its own"):
        parameter = torch.nn.Parameter(torch.ones(2))
        parameter.grad = torch.ones(2)
        optimizer = torch.optim.Adam([parameter])
        handle = None
        if register == "its own":
            optimizer.register_step_post_hook(averages)
        elif callable(register):
            handle = of_all(register)
        optimizer.step()
        if handle is not None:
            handle.remove()
    has_hooks = [one["has_hooks"] for one in told(recorder, "looped_optimizer")]
    assert has_hooks == [False, False, True, True]


@pytest.mark.parametrize(
    ("options", "is_plain"),
    [({}, True), ({"momentum": 0.9}, False), ({"weight_decay": 0.1}, False)],
)
def test_whether_an_optimizer_has_more_than_one_operation_to_fuse(
    recorder: Recorder, options: dict[str, float], is_plain: bool
) -> None:
    recorder.start(TorchSettingsProbe(), OptimizerProbe())
    update(torch.optim.SGD, **options)
    [facts] = told(recorder, "looped_optimizer")
    assert facts["is_plain"] is is_plain


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (torch.optim.AdamW, {"fused": True}),
        (torch.optim.AdamW, {"foreach": True}),
        (torch.optim.Rprop, {}),  # torch cannot fuse it
        (Own, {}),
    ],
)
def test_an_optimizer_that_does_not_or_must(
    recorder: Recorder, make: Callable[..., Any], options: dict[str, Any]
) -> None:
    recorder.start(TorchSettingsProbe(), OptimizerProbe())
    update(make, **options)
    assert told(recorder, "looped_optimizer") == []
    assert len(told(recorder, "torch_threads")) == 1


@pytest.mark.parametrize(
    ("make", "options", "expected"),
    [
        (torch.optim.AdamW, {}, ["AdamW"]),
        (torch.optim.AdamW, {"fused": True}, []),
        (torch.optim.AdamW, {"foreach": True}, []),  # torch refuses both
        (torch.optim.Rprop, {}, []),
        (Own, {}, []),
    ],
)
def test_an_optimizer_that_could_be_fused_is_told_of_a_device_too(
    recorder: Recorder, make: Callable[..., Any], options: dict[str, Any], expected: list[str]
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(TorchSettingsProbe, "_is_on_host", lambda self, optimizer: False)
        recorder.start(TorchSettingsProbe(), OptimizerProbe())
        update(make, **options)
    assert told(recorder, "unfused") == expected
    assert told(recorder, "looped_optimizer") == []


def test_one_that_is_told_to_loop_does_so_on_a_device(recorder: Recorder) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(TorchSettingsProbe, "_is_on_host", lambda self, optimizer: False)
        recorder.start(TorchSettingsProbe(), OptimizerProbe())
        update(torch.optim.AdamW, foreach=False)
    [facts] = told(recorder, "looped_optimizer")
    assert (facts["class"], facts["tensors"]) == ("AdamW", 3)


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning", "lightning_fabric"])
def test_whether_lightning_has_a_trainer(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    for name in ("lightning.pytorch", "pytorch_lightning"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, package, SimpleNamespace())
    recorder.start(TorchSettingsProbe(), OptimizerProbe())
    update(torch.optim.SGD)
    assert told(recorder, "trains_by_lightning") == [package != "lightning_fabric"]


def test_optimizers_that_are_alike_are_told_each_with_its_number(recorder: Recorder) -> None:
    recorder.start(TorchSettingsProbe(), OptimizerProbe())
    for _ in range(2):
        update(torch.optim.Adam)
    numbers = [event.site for event in recorder.read().of(Kind.OPTIMIZER_STEP)]
    assert len(set(numbers)) == 2
    assert told(recorder, "optimizer") == numbers
    assert len(told(recorder, "looped_optimizer")) == 2


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adagrad])
@pytest.mark.parametrize("is_sparse", [True, False])
def test_sparse_gradients_cannot_be_fused(
    recorder: Recorder, make: Callable[..., Any], is_sparse: bool
) -> None:
    recorder.start(TorchSettingsProbe(), OptimizerProbe())
    table, dense = torch.nn.Embedding(10, 2, sparse=is_sparse), torch.nn.Linear(2, 1)
    dense(table(torch.tensor([1, 3]))).sum().backward()
    make([*dense.parameters(), *table.parameters()], lr=0.1).step()
    assert bool(told(recorder, "looped_optimizer")) is not is_sparse
    assert recorder.read().notes(Topic.PROBE_FAILED) == []


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


class Watched(ByHand):
    def step(self, closure: Any = None) -> None:
        super().step(closure)


@pytest.mark.parametrize(("told_by", "cores"), [({}, None), ({"SLURM_CPUS_PER_TASK": "3"}, 3)])
def test_how_many_cores_a_batch_system_has_given(
    recorder: Recorder,
    monkeypatch: pytest.MonkeyPatch,
    told_by: dict[str, str],
    cores: int | None,
) -> None:
    for name in _ALLOTTED:
        monkeypatch.delenv(name, raising=False)
    for name, value in told_by.items():
        monkeypatch.setenv(name, value)
    recorder.start(TorchSettingsProbe(), OptimizerProbe())
    update(torch.optim.SGD)
    assert told(recorder, "cores_allotted") == [cores]


def test_an_optimizer_that_the_script_wrote(recorder: Recorder) -> None:
    recorder.start(TorchSettingsProbe(), OptimizerProbe())
    update(ByHand)
    [facts] = told(recorder, "own_optimizer")
    assert (facts["class"], facts["tensors"]) == ("ByHand", 3)
    begins = inspect.getsourcelines(ByHand.step)[1]
    assert f'test_model_torch_settings.py", {begins}' in recorder.read().texts[facts["site"]][1]
    assert told(recorder, "looped_optimizer") == []


@pytest.mark.parametrize("make", [torch.optim.Adam, Own, Together, Watched])
def test_an_optimizer_whose_step_is_not_the_scripts_loop(
    recorder: Recorder, make: Callable[..., Any]
) -> None:
    recorder.start(TorchSettingsProbe(), OptimizerProbe())
    update(make)
    assert told(recorder, "own_optimizer") == []


def test_in_what_the_model_computes(recorder: Recorder) -> None:
    recorder.start(TorchSettingsProbe(), OptimizerProbe())
    update(torch.optim.SGD)
    assert told(recorder, "numerics") == [{"parameters": "float32"}]
    few, many = torch.ones(2, dtype=torch.float32), torch.ones(30, dtype=torch.float64)
    torch.optim.SGD([torch.nn.Parameter(few), torch.nn.Parameter(many)], lr=0.1).step()
    assert [one["parameters"] for one in told(recorder, "numerics")[1:]] == ["float64"]


def test_lines_that_make_a_model_double_are_told(
    recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "model = Net()  # .double() is slow\n"
        "model = model.double()\n"
        "torch.set_default_dtype(torch.float64)\n"
        "self.net = Net().to(device, torch.float64)\n"
        "torch.set_default_dtype(torch.float32)\n"
        "total += loss.double().item()\n"
        "net.double()\n"
    )
    monkeypatch.setitem(sys.modules, "script", SimpleNamespace(__file__=str(script)))
    recorder.start(TorchSettingsProbe(), OptimizerProbe())
    monkeypatch.setattr(recorder.session.sites, "is_user_file", lambda path: path == str(script))
    torch.optim.SGD([torch.nn.Parameter(torch.ones(3, dtype=torch.float64))], lr=0.1).step()
    [facts] = told(recorder, "numerics")
    lines = [json.loads(recorder.read().texts[site][1])[1] for site in facts["sites"]]
    assert lines == [3, 2, 4]  # no more are told than three


@pytest.mark.parametrize(
    ("shape", "kind", "convolves"),
    [
        ((4, 3, 3), torch.float64, [True]),
        ((4, 3), torch.float64, [False]),
        ((4, 3, 3), torch.float32, []),
    ],
)
def test_weights_of_three_dimensions_may_be_convolutions(
    recorder: Recorder, shape: tuple[int, ...], kind: torch.dtype, convolves: list[bool]
) -> None:
    recorder.start(TorchSettingsProbe(), OptimizerProbe())
    torch.optim.SGD([torch.nn.Parameter(torch.ones(shape, dtype=kind))], lr=0.1).step()
    assert told(recorder, "convolves_in_float64") == convolves


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
    recorder: Recorder, loss_of: Callable[[torch.Tensor], torch.Tensor], operators: int
) -> None:
    recorder.start(TorchSettingsProbe(), OptimizerProbe(), BackwardProbe())
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(10):
        loss_of(weight).backward()
        weight.grad.sum()
        torch.ones((), requires_grad=True).backward()  # of no operator
        optimizer.step()
    assert told(recorder, "backward_nodes") == [operators]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("y = torch.linalg.solve(a, b)", True),
        ("y = torch.linalg.cholesky(a)", True),
        ("y = a.logdet()", True),
        ("y = torch.lgamma(a)", True),
        ("import gpytorch", True),
        ("resolved(a); details(b); model.eval()", False),
    ],
)
def test_texts_that_take_matrices_apart_mean_double_precision(
    recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, expected: bool
) -> None:
    script = tmp_path / "script.py"
    script.write_text(text)
    monkeypatch.setitem(sys.modules, "script", SimpleNamespace(__file__=str(script)))
    recorder.start(TorchSettingsProbe(), OptimizerProbe())
    monkeypatch.setattr(recorder.session.sites, "is_user_file", lambda path: path == str(script))
    torch.optim.SGD([torch.nn.Parameter(torch.ones(3, dtype=torch.float64))], lr=0.1).step()
    assert told(recorder, "decomposes_in_float64") == [expected]


def line_of(recorder: Recorder, site: int) -> int | None:
    return json.loads(recorder.read().texts[site][1])[1] if site else None


def test_where_the_script_sets_torchs_threads_is_told(recorder: Recorder) -> None:
    before = torch.get_num_threads()
    recorder.start(TorchSettingsProbe(), OptimizerProbe())
    set_them = torch.set_num_threads
    try:
        assert torch.set_num_threads(before) is None
        with pytest.raises(RuntimeError):
            torch.set_num_threads(0)
        update(torch.optim.SGD)
    finally:
        set_them(before)
    [site] = told(recorder, "threads_set_at")
    begins = inspect.getsourcelines(test_where_the_script_sets_torchs_threads_is_told)[1]
    assert line_of(recorder, site) == begins + 7
    assert torch.set_num_threads.__name__ == "set_num_threads"


def test_in_what_a_device_computes(recorder: Recorder) -> None:
    recorder.start(TorchSettingsProbe(), OptimizerProbe())
    elsewhere = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16, device="meta"))
    elsewhere.grad = torch.ones_like(elsewhere)
    torch.optim.SGD([elsewhere], lr=0.1).step()
    products = torch.get_float32_matmul_precision()
    assert told(recorder, "numerics") == [{"parameters": "bfloat16", "products": products}]


def test_tensors_of_the_scripts_own_are_not_asked(recorder: Recorder) -> None:
    recorder.start(TorchSettingsProbe())
    marked = torch.ones(2).as_subclass(Marked)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    optimizer.param_groups[0]["params"] = [marked]
    [tell] = recorder.session.at_first_step
    tell(optimizer)
    assert told(recorder, "looped_optimizer") == []
    assert recorder.read().notes(Topic.PROBE_FAILED) == []


def test_many_optimizers_do_not_fill_the_log(recorder: Recorder) -> None:
    recorder.start(TorchSettingsProbe(), OptimizerProbe())
    for number in range(1, 21):
        update(torch.optim.SGD, parameters=number)
    assert len(told(recorder, "looped_optimizer")) == 8


@pytest.mark.parametrize(("passes", "expected"), [(19, []), (20, [True]), (45, [True])])
def test_anomaly_detection_that_stays_on(
    recorder: Recorder, passes: int, expected: list[bool]
) -> None:
    recorder.start(TorchSettingsProbe(), BackwardProbe())
    x = torch.ones(2, requires_grad=True)
    for _ in range(30):
        x.sum().backward()
    torch.autograd.set_detect_anomaly(True)
    for _ in range(passes):
        x.sum().backward()
    torch.autograd.set_detect_anomaly(False)
    assert told(recorder, "detects_anomalies") == expected
