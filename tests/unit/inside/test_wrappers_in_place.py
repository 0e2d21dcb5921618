"""What scripts may notice of all probes: results, exceptions, signatures, pickles, signals."""

from __future__ import annotations

import functools
import gc
import inspect
import io
import operator
import pickle
import signal
import sys
import threading
import weakref
from _thread import start_new_thread
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from support import fake_device
from support.fake_device import transfer_probe
from support.loaders import Numbers, Stream, loader_probes
from support.package import PACKAGE
from support.session import FakeClock, Recorder, Recording
from support.torch_owners import OWNERS
from torch import nn
from torch.distributed import device_mesh, distributed_c10d
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils import pin_memory as pinning

from trainprof.inside.catalogue import default_probes
from trainprof.inside.patching.patcher import Patcher
from trainprof.inside.session import Probe
from trainprof.inside.spans.collective import CollectiveProbe
from trainprof.inside.spans.delivery import DeliveryProbe
from trainprof.inside.spans.fetch import FetchProbe
from trainprof.inside.spans.forward import ForwardProbe
from trainprof.inside.spans.garbage_collection import MIN_PAUSE_NS, GarbageProbe
from trainprof.inside.spans.loader import LoaderProbe
from trainprof.inside.spans.optimizer import OptimizerProbe
from trainprof.inside.spans.sync import SyncProbe
from trainprof.inside.spans.transfer import TransferProbe
from trainprof.record.schema import Kind, Topic

Compare = Callable[..., Any]
GPU = "fakegpu"


@pytest.fixture(scope="module", autouse=True)
def device() -> None:
    fake_device.register()


# What each call returns or raises.


def fails(*_: Any, **__: Any) -> Any:
    raise KeyError("theirs")


def failing(base: type, *methods: str) -> Any:
    return type("Failing", (base,), dict.fromkeys(methods, fails))


class FailingGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    backward = staticmethod(fails)


def leaf() -> torch.Tensor:
    return torch.ones(2, requires_grad=True)


def parameter() -> nn.Parameter:
    made = nn.Parameter(torch.ones(2))
    made.grad = torch.ones(2)
    return made


def traced() -> str:
    class Model(nn.Linear):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return F.cross_entropy(super().forward(x), y)

    return torch.fx.symbolic_trace(Model(3, 2)).code


def step_with_closure(closure: Callable[[], Any]) -> None:
    given = parameter()
    optimizer = torch.optim.Adam([given], lr=0.1)
    optimizer.step(lambda: 1.0)
    given.grad = torch.ones(2).to_sparse()  # which Adam refuses
    optimizer.step(closure)


def epochs(dataset: Any = None, **options: Any) -> list[Any]:
    loader = DataLoader(dataset or Numbers(), batch_size=2, **options)
    return [[batch.tolist() for batch in loader] for _ in range(2)]


READS = (bool, float, int, operator.index, torch.Tensor.item, torch.Tensor.tolist)
# A whole training is compared in test_missing_hooks.py.
RETURNED: dict[str, Callable[[], Any]] = {
    "fx": traced,
    "autograd.grad": lambda: torch.autograd.grad((leaf() ** 2).sum(), leaf(), allow_unused=True),
    "reads": lambda: [call(torch.tensor(3)) for call in READS],
    "epochs": lambda: epochs(shuffle=True),
    "epochs of workers": lambda: epochs(shuffle=True, num_workers=2),
    "a stream": lambda: list(DataLoader(Stream(), batch_size=2)),
}
RAISED: dict[str, Callable[[], Any]] = {
    "deep in a model": lambda: nn.Sequential(failing(nn.Module, "forward")())(torch.ones(2)),
    "in a model": lambda: nn.Linear(3, 2)(torch.ones(1, 4)),
    "at a model's call": lambda: nn.Linear(3, 2)(nothing=1),
    "in a loss": lambda: F.cross_entropy(torch.ones(2), torch.zeros(7)),
    "in a loss module": lambda: nn.MSELoss()(torch.ones(2), None),
    "no module": lambda: nn.Module.__call__(1),  # type: ignore[arg-type]
    "no scalar": lambda: leaf().backward(),
    "in a backward": lambda: FailingGradient.apply(leaf()).sum().backward(),
    "in a step": lambda: failing(torch.optim.SGD, "step")([parameter()], 0.1).step(),
    "in a closure": lambda: step_with_closure(fails),
    "behind a closure": lambda: step_with_closure(lambda: 1.0),
    "in clipping": lambda: nn.utils.clip_grad_norm_([parameter()], "much"),  # type: ignore[arg-type]
    "no file": lambda: torch.load("/nonexistent/none"),
    "nothing to pickle": lambda: torch.save(lambda: 0, io.BytesIO()),
    "no device": lambda: torch.zeros(2).to("no such device"),
    "other sizes": lambda: torch.zeros(2).copy_(torch.zeros(3)),
    **{f"read {n}": functools.partial(call, torch.ones(2)) for n, call in enumerate(READS[:5])},
    "in a dataset": lambda: epochs(failing(Numbers, "__getitem__")()),
    "in a worker": lambda: epochs(failing(Numbers, "__getitem__")(), num_workers=1),
    "in collating": lambda: epochs(collate_fn=fails),
    "in a worker's collating": lambda: epochs(collate_fn=fails, num_workers=1),
    "in pinning": lambda: pinning.pin_memory([{"x": failing(object, "pin_memory")()}]),
    "no process group": dist.barrier,
    "refused group": lambda: dist.init_process_group(
        "gloo", init_method="nonsense://", rank=0, world_size=1
    ),
}


@pytest.mark.parametrize("action", RETURNED.values(), ids=RETURNED)
def test_what_a_call_returns_is_the_same(same_with_us: Compare, action: Callable[[], Any]) -> None:
    assert same_with_us(action)[0] == "returned"


@pytest.mark.parametrize("action", RAISED.values(), ids=RAISED)
def test_an_exception_looks_the_same(
    same_with_us: Compare, recorder: Recorder, action: Callable[[], Any]
) -> None:
    kind, text = same_with_us(action)
    assert kind == "raised"
    assert PACKAGE not in text
    without_faults(recorder)


@pytest.mark.usefixtures("group")
def test_collectives_are_the_same(same_with_us: Compare) -> None:
    def communicate() -> Any:
        ones, gathered = torch.ones(3), [torch.zeros(3)]
        dist.all_reduce(ones)
        dist.all_gather(gathered, ones)
        objects = [None]
        dist.all_gather_object(objects, {"a": 1})
        work = dist.broadcast(ones, 0, async_op=True)
        return work.wait(), gathered[0].tolist(), objects, dist.barrier()

    assert same_with_us(communicate)[0] == "returned"
    assert same_with_us(lambda: dist.all_reduce("x"))[0] == "raised"
    assert same_with_us(lambda: dist.broadcast(torch.ones(1)))[0] == "raised"


READ: list[str] = []


@dataclass(frozen=True)
class Frozen(Exception):
    """An exception whose attributes, its traceback included, cannot be set."""

    code: Any


class Watching(Exception):
    """Sees which of its attributes are read and set."""

    def __getattribute__(self, name: str) -> Any:
        READ.append(name)
        return super().__getattribute__(name)

    def __setattr__(self, name: str, value: object) -> None:
        READ.append(name)
        super().__setattr__(name, value)


class Raising(torch.nn.Module, Dataset[int]):
    def __init__(self, error: type[Exception]) -> None:
        super().__init__()
        self.error = error

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        raise self.error(index)

    def forward(self, x: int) -> int:
        raise self.error(x)


@pytest.mark.parametrize("error", [Frozen, Watching])
@pytest.mark.parametrize(
    "act",
    [
        lambda error: torch.nn.Sequential(Raising(error))(3),
        lambda error: list(DataLoader(Raising(error))),
    ],
    ids=["module", "dataset"],
)
def test_an_exception_class_of_the_scripts_own(
    same_with_us: Compare, act: Callable[[Any], Any], error: type[Exception]
) -> None:
    def caught() -> tuple[str, list[str]]:
        READ.clear()
        with pytest.raises(error) as raised:
            act(error)
        return raised.type.__name__, list(READ)

    assert same_with_us(caught)[1][0] == error.__name__


# Faults of ours.

_ROOM = "trainprof.inside"
FAULTS: list[tuple[Callable[[], list[Probe]], str, Callable[[], Any]]] = [
    (
        lambda: [ForwardProbe()],
        "spans.forward.ForwardProbe._name",
        lambda: nn.ReLU()(torch.ones(2)).tolist(),
    ),
    (
        lambda: [transfer_probe()],
        "spans.transfer.TransferProbe._note_device",
        lambda: torch.zeros(2).to(GPU).device.type,
    ),
    (
        lambda: [OptimizerProbe()],
        "spans.optimizer.OptimizerProbe._number",
        lambda: torch.optim.SGD([parameter()], lr=0.5).step(),
    ),
    (loader_probes, "loading.loader_metadata.describe", epochs),
    (lambda: loader_probes(FetchProbe), "spans.fetch._TimedCollate", epochs),
    (lambda: [SyncProbe()], "patching.call_site.CallSites.name", lambda: torch.tensor(3).item()),
]


@pytest.mark.parametrize(
    ("probes", "part", "act"), FAULTS, ids=[part.split(".")[1] for _, part, _ in FAULTS]
)
def test_a_fault_of_ours_is_reported_once_and_harms_nothing(
    recorder: Recorder,
    monkeypatch: pytest.MonkeyPatch,
    probes: Callable[[], list[Probe]],
    part: str,
    act: Callable[[], Any],
) -> None:
    def broken(*_: object) -> Any:
        raise ZeroDivisionError("ours")

    expected, attached = act(), probes()
    recorder.start(*attached)
    monkeypatch.setattr(f"{_ROOM}.{part}", broken)
    assert [act(), act()] == [expected] * 2
    assert recorder.read().notes(Topic.PROBE_FAILED) == [
        {"probe": attached[-1].name, "error": "ZeroDivisionError: ours"}
    ]


# Functions that the script finds by name.


def test_pickle_finds_the_functions(recorder: Recorder) -> None:
    recorder.start(*default_probes())
    for function in (
        *(torch.save, torch.load, torch.Tensor.item, F.mse_loss, nn.Module.__call__),
        *(dist.all_reduce, dist.init_process_group),
    ):
        assert pickle.loads(pickle.dumps(function)) is function
    assert torch.save is torch.serialization.save
    assert dist.all_reduce is distributed_c10d.all_reduce
    joins = (distributed_c10d.init_process_group, device_mesh.init_process_group)
    assert joins == (dist.init_process_group,) * 2


def classes_of_schedulers() -> list[Any]:
    return [cls for cls in vars(torch.optim.lr_scheduler).values() if isinstance(cls, type)]


def functions() -> dict[tuple[str, str], Any]:
    return {
        (owner.__name__, name): value.__func__ if type(value) is staticmethod else value
        for owner in (*OWNERS, *classes_of_schedulers())
        for name, value in vars(owner).items()
        if type(value) in (FunctionType, staticmethod)
    }


def shown(function: Callable[..., Any]) -> list[Any]:
    names = function.__name__, function.__module__, function.__doc__
    return [names, inspect.signature(function), inspect.getfullargspec(function)]


def defaults(function: Any) -> list[Any]:
    return [function.__defaults__, function.__kwdefaults__]


def test_all_that_is_wrapped_shows_its_name_and_parameters(recorder: Recorder) -> None:
    bare = functions()
    recorder.start(*default_probes())
    wrapped = {name: ours for name, ours in functions().items() if ours is not bare.get(name, ours)}
    assert len(wrapped) > 50
    assert [name for name, ours in wrapped.items() if shown(ours) != shown(bare[name])] == []
    of_torchs = [name for name in wrapped if not name[0].startswith("_")]  # not of its iterators
    assert len(of_torchs) > 40
    assert [name for name in of_torchs if defaults(wrapped[name]) != defaults(bare[name])] == []


def optimizer_steps() -> Iterator[Any]:
    class Own(torch.optim.SGD):
        def step(self, closure: Any = None, *, extra: int = 0) -> Any:
            return super().step(closure)

    for cls in (torch.optim.Adam, Own):
        optimizer = cls([nn.Parameter(torch.ones(1))], lr=0.1)
        step = optimizer.step
        yield inspect.signature(step), inspect.getfullargspec(step)
        yield step.__func__.__wrapped__.__qualname__, type(step), inspect.isfunction(cls.step)
        StepLR(optimizer, 1)  # which stands around `step` by then
        yield inspect.signature(optimizer.step), inspect.getfullargspec(optimizer.step)


def test_an_optimizers_step_looks_as_it_did(same_with_us: Compare) -> None:
    outcome = same_with_us(lambda: list(map(str, optimizer_steps())), OptimizerProbe())
    assert outcome[0] == "returned"


# Wrapped functions that no Python code calls, as at exit: there is no frame above ours.


def without_faults(recorder: Recorder) -> Recording:
    recording = recorder.read()
    assert recording.notes(Topic.PROBE_FAILED) == []
    return recording


def by_python_itself(function: Callable[..., Any], *arguments: Any) -> list[BaseException]:
    """Has C code alone call a function, in a thread; returns what that printed as ignored."""
    ignored: list[BaseException] = []
    ended = threading.Event()

    def note(error: Any) -> None:
        ignored.append(error.exc_value)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "unraisablehook", note)
        call = functools.partial(function, *arguments)
        # The thread lets go of it at its very end.
        reference = weakref.ref(call, lambda _: ended.set())
        start_new_thread(call, ())
        del call
        assert ended.wait(60.0)
    assert reference() is None
    return ignored


def test_python_itself_shuts_workers_down(recorder: Recorder) -> None:
    recorder.start(LoaderProbe())
    iterator: Any = iter(DataLoader(Numbers(), num_workers=1))
    next(iterator)
    assert by_python_itself(iterator._shutdown_workers) == []
    assert iterator._shutdown is True
    assert not any(worker.is_alive() for worker in iterator._workers)
    assert len(without_faults(recorder).of(Kind.LOADER_CLOSE)) == 1


# Signal handlers of the script's run wherever Python code does: in ours too.


class Late(Exception):
    """What the script's handler raises."""


class Handler:
    def __init__(self, error: type[BaseException]) -> None:
        self.error, self.calls = error, 0

    def __call__(self, *arguments: Any) -> None:
        self.calls += 1
        raise self.error("now")

    def method(self, *arguments: Any) -> None:
        self(*arguments)


Install = Callable[[type[BaseException]], Handler]


@pytest.fixture(params=["object", "method", "partial"])
def handle(request: pytest.FixtureRequest) -> Iterator[Install]:
    before = signal.getsignal(signal.SIGALRM)

    def install(error: type[BaseException]) -> Handler:
        made = Handler(error)
        forms = {"object": made, "method": made.method, "partial": functools.partial(made, 1)}
        signal.signal(signal.SIGALRM, forms[request.param])
        return made

    yield install
    signal.signal(signal.SIGALRM, before)


class Interrupting(FakeClock):
    """A clock in Python, as that of a device's phases is; a signal comes in at one reading."""

    readings_left = 0

    def __call__(self) -> int:
        if self.readings_left:
            self.readings_left -= 1
            if not self.readings_left:
                signal.raise_signal(signal.SIGALRM)
        self.advance(MIN_PAUSE_NS)
        return super().__call__()


def collect_on() -> None:
    for _ in range(3):
        gc.collect()


@pytest.mark.parametrize("error", [Late, KeyboardInterrupt, Frozen])
def test_what_a_handler_raises_in_a_collection_reaches_the_script(
    recorder: Recorder, handle: Install, error: type[BaseException]
) -> None:
    clock, handler = Interrupting(), handle(error)
    session = recorder.start(GarbageProbe(), now=clock)
    session.emit(Kind.BACKWARD, 1, 2)
    installed = list(gc.callbacks)
    clock.readings_left = 1
    with pytest.raises(error, match="now"):
        collect_on()
    assert handler.calls == 1
    assert gc.callbacks == installed
    gc.collect(1)
    assert without_faults(recorder).of(Kind.GC)[-1].value == 1  # pauses are recorded as before


@dataclass(frozen=True)
class Outermost:
    """A call of which only the outermost of a thread is recorded."""

    kind: Kind
    probes: Callable[[], list[Probe]]
    call: Callable[[], Any]


MODEL, INPUT = nn.Linear(2, 2), torch.zeros(1, 2)
LOADER = DataLoader(Numbers())
OUTERMOST = (
    Outermost(Kind.FORWARD, lambda: [ForwardProbe()], lambda: MODEL(INPUT)),
    Outermost(Kind.PLACEMENT, lambda: [TransferProbe()], lambda: MODEL.to(torch.float32)),
    Outermost(Kind.COLLECTIVE, lambda: [CollectiveProbe()], lambda: dist.all_reduce(INPUT)),
    Outermost(Kind.PIN, lambda: loader_probes(DeliveryProbe), lambda: pinning.pin_memory([1])),
    Outermost(Kind.LOADER_EPOCH, lambda: loader_probes(DeliveryProbe), lambda: iter(LOADER)),
)


@pytest.mark.parametrize("reading", [1, 2])
@pytest.mark.parametrize("outermost", OUTERMOST, ids=lambda outermost: outermost.kind.name)
def test_what_a_handler_raises_at_a_clock_leaves_no_thread_inside(
    recorder: Recorder, handle: Install, outermost: Outermost, reading: int
) -> None:
    clock = Interrupting()
    recorder.start(*outermost.probes(), now=clock)
    with suppress(ValueError):  # without a process group
        outermost.call()
    handle(KeyboardInterrupt)
    clock.readings_left = reading
    with pytest.raises(KeyboardInterrupt):
        outermost.call()
    before = len(recorder.read().of(outermost.kind))
    for _ in range(3):
        with suppress(ValueError):
            outermost.call()
    assert len(without_faults(recorder).of(outermost.kind)) == before + 3


@pytest.mark.parametrize("is_ours", [False, True])
def test_what_is_raised_in_a_callback_is_our_fault_if_we_raise_it(
    handle: Install, is_ours: bool
) -> None:
    faults: list[BaseException] = []
    patcher = Patcher("test", lambda _, error: faults.append(error), lambda *_: None)
    handle(Late)

    def ours() -> None:
        raise Late("ours")

    if is_ours:
        patcher.guarded(ours)()
    else:
        with pytest.raises(Late):
            patcher.guarded(lambda: signal.raise_signal(signal.SIGALRM))()
    assert [str(error) for error in faults] == ["ours"] * is_ours
    assert patcher.is_silent is is_ours
