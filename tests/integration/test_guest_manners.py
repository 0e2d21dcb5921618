"""A script cannot tell plain python from trainprof, but for what docs/limits.md says."""

from __future__ import annotations

import json
import re
import resource
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.session import ROOT, Recording, read_recordings, run_hooked, run_plain, run_under
from support.styles import IMPORT_TORCH, without_compiler

from trainprof.record.schema import Kind, Topic

Done = subprocess.CompletedProcess[str]


def same(text: str) -> pytest.MarkDecorator:
    return pytest.mark.proves("Same as under plain python", text)


def both(
    directory: Path,
    text: str,
    *arguments: str,
    module: str | None = None,
    env: dict[str, str] | None = None,
    compiler: bool = False,
) -> tuple[Done, Done]:
    """Runs a script plain and under trainprof, in folders of the same path."""
    (directory / "script.py").write_text(text if compiler else without_compiler(text))
    words = ["-m", module] if module else ["script.py"]
    plain = run_plain([*words, *arguments], directory, env=env or {})
    ours = run_hooked([*words, *arguments], directory, directory / "run", env=env or {})
    return plain, ours


def assert_same(plain: Done, ours: Done) -> None:
    assert ours.stdout == plain.stdout
    assert ours.stderr == plain.stderr
    assert ours.returncode == plain.returncode


# Importing torch takes longer than most of what is looked at here: parts that do not disturb each
# other are run one after another in one process, each as if it were a script of its own.
PARTS = """
import gc, os, sys, warnings
usual = warnings.catch_warnings()
usual.__enter__()
warnings.simplefilter("always")
os.environ["OMP_NUM_THREADS"] = "1"
import torch
print(torch.get_num_threads(), torch.ones(1))
usual.__exit__(None, None, None)
for part in sys.argv[1:]:
    for stream in (sys.stdout, sys.stderr):
        print("-- part:", part, file=stream, flush=True)
    path = os.path.abspath(part + ".py")
    with open(path) as file, warnings.catch_warnings():
        exec(compile(file.read(), path, "exec"), {"__name__": "__main__", "__file__": path})
    gc.enable()
"""


@dataclass(frozen=True)
class Part:
    """What one part wrote, under plain python and under trainprof."""

    plain: str
    ours: str
    plain_stderr: str
    ours_stderr: str


def parts_of(
    directory: Path, texts: dict[str, str], *, compiler: bool = False
) -> tuple[dict[str, Part], Done, Done, Recording]:
    """Runs the parts both ways; gives what each wrote, both ends, and our record of it all."""
    for name, text in texts.items():
        (directory / f"{name}.py").write_text(text)
    plain, ours = both(directory, PARTS, *texts, compiler=compiler)
    wrote = [split_by_part(text) for text in (plain.stdout, ours.stdout, plain.stderr, ours.stderr)]
    assert list(wrote[0]) == ["", *texts], plain.stderr
    assert list(wrote[1]) == ["", *texts], ours.stderr
    parts = {name: Part(*(of.get(name, "") for of in wrote)) for name in wrote[0]}
    [main] = [
        recording
        for recording in read_recordings(directory / "run" / "events")
        if recording.header["role"] == "script"
    ]
    assert main.notes(Topic.PROBE_FAILED) == []
    return parts, plain, ours, main


def split_by_part(text: str) -> dict[str, str]:
    """Returns what was written by part; before the first one under ""."""
    before, *rest = re.split(r"^-- part: (\w+)\n", text, flags=re.MULTILINE)
    return {"": before, **dict(zip(rest[::2], rest[1::2], strict=True))}


TRAINING = """
import hashlib, io, pickle, random
import numpy
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    def forward(self, x):
        return self.layers(x)

def train(workers):
    random.seed(0); numpy.random.seed(0); torch.manual_seed(0)
    data = TensorDataset(torch.randn(32, 4), torch.randint(0, 2, (32,)))
    net = Net()
    optimizer = torch.optim.Adam(net.parameters())
    for epoch in range(2):
        loader = DataLoader(data, batch_size=4, shuffle=True, num_workers=workers)
        for x, y in loader:
            loss = nn.functional.cross_entropy(net(x.to("cpu")), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
        print(loss.item().hex(), type(iter(loader)), iter(loader).__class__.__mro__)
    torch.save(net.state_dict(), f"state-{workers}.out")
    torch.save(net, f"net-{workers}.out")
    def digest(thing): return hashlib.sha256(thing).hexdigest()
    # The pickle of a tensor holds its address; what is around it is the same.
    class Pickler(pickle.Pickler):
        def reducer_override(self, thing):
            return (list, ()) if isinstance(thing, torch.Tensor) else NotImplemented
    stream = io.BytesIO()
    Pickler(stream).dump((net, Net, optimizer, x))
    print(digest(stream.getvalue()))
    print(digest(torch.get_rng_state().numpy().tobytes()), random.random(), numpy.random.rand())
    print(sorted(vars(net)), sorted(vars(loader)), sorted(vars(optimizer)))

if __name__ == "__main__":
    for workers in (0, 2):
        train(workers)
"""


@same("losses, weights, checkpoints and random numbers to the bit")
def test_training_computes_the_same(tmp_path: Path) -> None:
    """Without and with workers, under the command itself."""
    (tmp_path / "script.py").write_text(without_compiler(TRAINING))
    plain = run_plain(["script.py"], tmp_path)
    for left in tmp_path.glob("*.out"):
        left.rename(left.with_suffix(".plain"))
    ours = run_under(["script.py"], tmp_path, tmp_path / "run")
    assert_same(plain, ours)
    assert (plain.stderr, plain.returncode) == ("", 0)
    saved = sorted(tmp_path.glob("*.out"))
    assert len(saved) == 4
    for path in saved:
        assert path.read_bytes() == path.with_suffix(".plain").read_bytes(), path.name
    main, *others = read_recordings(tmp_path / "run" / "events")
    assert main.notes(Topic.PROBE_FAILED) == []
    assert len(main.of(Kind.OPTIMIZER_STEP)) == len(main.of(Kind.LOADER_NEXT)) == 2 * 16
    assert len(main.of(Kind.FETCH)) >= 16
    assert sum(len(log.of(Kind.FETCH)) for log in others) >= 16


SURROUNDINGS = """
import atexit, os, signal, sys, threading
IMPORT
print(sys.argv, sys.orig_argv[1:], sys.path, __file__, __name__, __package__)
print(__spec__ and (__spec__.name, __spec__.origin), type(__loader__), sys.flags)
print(sorted(globals()), sorted(vars(__import__("builtins"))))
print([(n, str(signal.getsignal(n))) for n in sorted(signal.valid_signals())])
print(sys.gettrace(), sys.getprofile(), sys.excepthook, sys.displayhook, sys.getrecursionlimit())
print([t.name for t in threading.enumerate()], os.getcwd())
print(sys.meta_path, sys.path_hooks[0])
print({k: v for k, v in sorted(os.environ.items())
       if not k.startswith("TRAINPROF_") and k != "PYTHONPATH"})
print(sys.getswitchinterval(), sys.getdlopenflags(), sys.implementation.name)
mine = open(__file__)
print(atexit._ncallbacks() < 50)
sys.stdout.flush()
"""


def normal(text: str) -> str:
    text = re.sub(r"0x[0-9a-f]{6,}", "0x", text)
    # Python names a method in an error after the class or its base by how it was called.
    return text.replace("TensorBase.item()", "Tensor.item()")


@same("arguments, paths, import hooks, signal handlers, threads")
@pytest.mark.parametrize("module", [None, "script"])
def test_the_surroundings_are_the_same(tmp_path: Path, module: str | None) -> None:
    """As a module beside a stand-in for torch, which is enough for all hooks to come and go."""
    if module:
        (tmp_path / "torch.py").write_text("")
    text = SURROUNDINGS.replace("IMPORT", "import torch as torch" if module else "import torch")
    plain, ours = both(tmp_path, text, "a", "--help", "-o", "x", module=module)
    assert normal(ours.stdout) == normal(plain.stdout)
    assert (ours.stderr, ours.returncode) == (plain.stderr, plain.returncode) == ("", 0)


ASKS = """
import atexit, builtins, json
try:
    profile
except NameError:
    def profile(function): return function
if hasattr(builtins, "profile"):
    atexit.register(profile.print_stats)
@profile
def count(): return 1
print(count(), "profile" in vars(builtins), json.dumps([*map(str, globals())]))
"""


def test_who_asks_for_kernprof_hears_that_it_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(ASKS)
    plain = run_plain(["script.py"], tmp_path)
    assert_same(plain, run_under(["script.py"], tmp_path, tmp_path / "run"))
    assert plain.returncode == 0


def test_who_was_written_for_kernprof_alone_runs_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("@profile\ndef f(): return 1\nprint(f())\n")
    done = run_under(["script.py"], tmp_path, tmp_path / "run")
    assert (done.stdout, done.stderr, done.returncode) == ("1\n", "", 0)


DESCRIPTORS = """
import os, torch
torch.nn.Linear(1, 1)(torch.ones(1))
print(sorted(os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")
             if os.path.exists(f"/proc/self/fd/{n}") and int(n) > 2))
"""


FAILURES = {
    "in a module": "nn.Sequential(nn.Linear(2, 2))(torch.ones(3))",
    "in a loss": "nn.functional.cross_entropy(torch.ones(3), torch.ones(4))",
    "in backward": "torch.ones(1).backward()",
    "in a dataset": "list(DataLoader([1, None]))",
    "in a worker": "list(DataLoader([1, None], num_workers=1, batch_size=2))",
    "in a step": "torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=-1)",
    "in a load": "torch.load('nothing')",
    "in a copy": "torch.ones(1).to('mars')",
    "in item": "torch.ones(3).item()",
    "chained": """
try:
    torch.ones(3).item()
except RuntimeError as e:
    raise KeyError(1) from e
""",
    "exit with text": "raise SystemExit('told')",
    "exit 3": "import sys; sys.exit(3)",
    "of syntax": "def (",
    "recursion": "def f(): return f()\nf()",
    "in a thread": """
import threading
t = threading.Thread(target=lambda: 1 / 0)
t.start()
t.join()
""",
    "a warning": "import warnings\nwarnings.warn('odd')",
}
HEAD = "import torch\nfrom torch import nn\nfrom torch.utils.data import DataLoader\n"
FAILING = HEAD + "import traceback\n"
for _name, _code in FAILURES.items():
    FAILING += f"print({_name!r})\ntry:\n    exec(compile({_code!r}, 'user.py', 'exec'))\n"
    FAILING += "except BaseException:\n    traceback.print_exc()\n"


CHILDREN = """
import atexit, multiprocessing, pickle, sys, threading, time
if __name__ == "__main__":  # to import it in each child would take long
    IMPORT_TORCH

class Mine:
    def __init__(self, value): self.value = value
    def __eq__(self, other): return vars(self) == vars(other)

def work(thing, queue):
    queue.put(Mine(thing.value + 1))

def at_the_end(where):
    assert pickle.loads(pickle.dumps(Mine(1))) == Mine(1)
    print(where, pickle.dumps(Mine))

def outlive():
    threading.main_thread().join()
    at_the_end("thread")

if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        queue = context.Queue()
        process = context.Process(target=work, args=(Mine(4), queue))
        process.start()
        print(method, queue.get().value)
        process.join()
        print(process.exitcode)
    atexit.register(at_the_end, "atexit")
    threading.Thread(target=outlive).start()
"""


@same("pickling across processes, in late threads and at exit")
def test_classes_of_main_cross_to_children_threads_and_the_end(tmp_path: Path) -> None:
    plain, ours = both(tmp_path, CHILDREN.replace("IMPORT_TORCH", IMPORT_TORCH.strip()))
    assert_same(plain, ours)
    assert plain.stdout.count("Mine") == 2
    assert (plain.stderr, plain.returncode) == ("", 0)


TOOLS = """
import cProfile, io, pstats, sys, torch
from torch import nn
net = nn.Linear(2, 2)
def step():
    net(torch.ones(1, 2)).sum().backward()
with torch.profiler.profile() as profiler:
    step()
names = {e.key for e in profiler.key_averages()}
print("aten::linear" in names, "aten::sum" in names)
profile = cProfile.Profile()
profile.runcall(step)
print(any(name == "step" for _, _, name in pstats.Stats(profile).stats))
lines = set()
def trace(frame, event, arg):
    if frame.f_code.co_filename == __file__:
        lines.add(frame.f_lineno)
        return trace
sys.settrace(trace)
step()
sys.settrace(None)
print(sorted(lines))
"""


COMPILED = """
import json, pickle, re, torch
import torch.nn.functional as F
from torch import nn
import torch._dynamo as dynamo

x, y = torch.ones(5, 4), torch.zeros(5, dtype=torch.long)

def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))

def module(compile):
    net = compile(network())
    return [net(x).sum().item() for _ in range(2)]

def full_graph_with_losses(compile):
    net, criterion = network(), nn.CrossEntropyLoss()
    def function(x, y):
        return criterion(net(x), y) + F.mse_loss(x, x) + F.cross_entropy(net(x), y).to("cpu")
    return compile(function, fullgraph=True)(x, y).item()

def with_breaks(compile):
    net = network()
    def function(x, y):
        loss = F.cross_entropy(net(x), y)
        if loss.item() > 0:
            loss = loss * 2
        print(end="")
        return F.relu(loss) + F.mse_loss(x, x)
    function = compile(function)
    return [function(x, y).item() for _ in range(2)]

def whole_step(compile):
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        return loss
    step = compile(step)
    return [step(x, y).item() for _ in range(3)]

def update(compile):
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    net(x).sum().backward()
    step = compile(optimizer.step)
    step()
    step()
    return [p.sum().item() for p in net.parameters()]

def backend(graph, inputs):
    sizes.append(len(graph.graph.nodes))
    return graph.forward

for scenario in (module, full_graph_with_losses, with_breaks, whole_step, update):
    dynamo.reset()
    dynamo.utils.counters.clear()
    sizes = []
    result = scenario(lambda thing, **more: torch.compile(thing, backend=backend, **more))
    breaks = sum(dynamo.utils.counters["graph_break"].values())
    print(scenario.__name__, sizes, breaks, result)

def losses(a: torch.Tensor, b: torch.Tensor):
    return F.mse_loss(a, b) + F.cross_entropy(a, b)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.criterion = network(), nn.CrossEntropyLoss()
    def forward(self, x, y):
        return self.criterion(self.net(x), y) + F.mse_loss(x, x)

script = torch.jit.script(losses)
print(script.code, script(x, x).item(), torch.jit.script(Model()).code)
def saved(x: torch.Tensor):
    torch.save(x, "scripted.pt")

def threads():
    torch.set_num_threads(1)
    torch.cuda.synchronize()

# Those of torch.distributed and torch.accelerator cannot be scripted, as the errors tell.
def barrier():
    torch.distributed.barrier()

def emptied():
    torch.accelerator.empty_cache()

def loaded():
    return torch.load("scripted.pt")

def clipped(x: torch.Tensor):
    return nn.utils.clip_grad_value_(x, 1.0)

for function in (saved, threads, barrier, emptied, loaded, clipped):
    try:
        print(torch.jit.script(function).graph)
    except Exception as error:
        print(type(error), re.sub("0x[0-9a-f]+", "0x", str(error)))
torch.jit.script(saved)(x)
print(torch.load("scripted.pt"))

traced = torch.fx.symbolic_trace(Model())
# The pickle of a tensor holds its address, as a decimal number of varying length.
pickled = re.sub(rb"\\d{5,}", b"", pickle.dumps(traced))
print(traced.code, traced(x, y).item(), len(pickled))
print(torch.export.export(Model(), (x, y)).graph)
"""


LOUD = """
import sys, warnings
import numpy, torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
torch.set_warn_always(True)
complex_one, with_gradient = torch.ones(1, dtype=torch.complex64), torch.ones(1, requires_grad=True)

def warned(level, name):
    try:
        warnings.warn(f"{name} {level}", stacklevel=level)
    except UserWarning as error:
        print(error)

class Data(Dataset):
    def __len__(self):
        return 1
    def __getitem__(self, index):
        [warned(level, "sample") for level in range(1, 8)]
        return index

class Loud(nn.Module):
    def forward(self, x):
        [warned(level, "forward") for level in range(1, 6)]
        return x

class Own(torch.optim.SGD):
    def step(self, closure=None):
        [warned(level, "step") for level in range(1, 6)]
        return super().step(closure)

def gradient_seen(*_):
    [warned(level, "backward") for level in range(1, 5)]

class Short(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter([1, 2])

deeper = nn.Linear(1, 1)
optimizer = Own(deeper.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
loud = [
    # By torch's C code, through a wrapper of ours.
    lambda: complex_one.to(torch.float32),
    lambda: torch.zeros(1).copy_(complex_one),
    lambda: float(with_gradient),
    lambda: int(with_gradient) + int(with_gradient),
    lambda: with_gradient.sum().item(),
    lambda: complex_one.real.cpu().tolist(),
    # By torch's Python code, and the script's.
    lambda: F.mse_loss(torch.ones(2), torch.ones(2, 2)),
    lambda: F.kl_div(torch.ones(2), torch.ones(2)),
    lambda: nn.CrossEntropyLoss(size_average=True)(torch.ones(1, 2), torch.zeros(1).long()),
    lambda: nn.Softmax()(torch.ones(2)),
    lambda: next(iter(DataLoader(Data(), pin_memory=True))),
    lambda: next(iter(DataLoader([1], collate_fn=lambda b: warned(2, "collate")))),
    lambda: list(DataLoader(Short(), num_workers=1)),
    lambda: Loud()(1),
    lambda: nn.Sequential(Loud())(1),
    lambda: schedule.step(),
    lambda: optimizer.step(),
    lambda: schedule.step(3),
    lambda: with_gradient.sum().backward(create_graph=True),
    lambda: nn.utils.clip_grad_norm_(deeper.parameters(), 1.0, foreach=False),
]
deeper.register_full_backward_hook(gradient_seen)
loud.append(lambda: deeper(torch.ones(1, 1, requires_grad=True)).sum().backward())
for action in ("default", "always", "once", "module", "error"):
    print(action, file=sys.stderr)
    warnings.simplefilter(action)
    for call in loud * 2:
        try:
            call()
        except Warning as error:
            print(type(error), error)
for action in ("error", "ignore", "default", "module", "once"):
    for base in ("always", "default"):
        warnings.simplefilter(base)
        warnings.filterwarnings(action, module="__main__")
        for _ in range(2):
            try:
                print(action, base, float(with_gradient), complex_one.to(torch.float32))
                print(int(with_gradient))
            except Warning as error:
                print(type(error), error)
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    float(with_gradient)
print([(w.filename, w.lineno, w.category, str(w.message)) for w in seen])
"""


LIVES = """
import gc, sys, traceback, weakref
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
gc.disable()
torch.manual_seed(0)

def gone(name, references):
    print(name, [reference() is None for reference in references])

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)
    def forward(self, x):
        return self.layer(x)

net = Net()
optimizer = torch.optim.Adam(net.parameters())
data = TensorDataset(torch.randn(12, 4), torch.randint(0, 2, (12,)))
for workers in (0, 2):
    references = []
    iterator = iter(DataLoader(data, batch_size=4, num_workers=workers))
    for _ in range(3):
        x, y = next(iterator)
        p = net(x)
        loss = F.cross_entropy(p, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        references += map(weakref.ref, (x, y, p, loss))
        print(*map(sys.getrefcount, (x, y, p, loss, net, optimizer)))
        del x, y, p, loss
        gone("batch", references)
    references = [weakref.ref(iterator)]
    del iterator
    gone("iterator", references)

x = torch.ones(3)
copies = [x.to(torch.float64), torch.zeros(3).copy_(x), x.clone()]
references = [weakref.ref(copied) for copied in copies]
del copies
gone("copies", references)

def fails():
    large = torch.ones(10)
    references.append(weakref.ref(large))
    net(large)

for way in (1, 2):
    try:
        fails()
    except RuntimeError as error:
        gone("in an exception", references[-1:])
gone("after an exception", references)

class Stream(IterableDataset):
    def __iter__(self):
        try:
            yield 1
            yield 2
        finally:
            print("closed")

iterator = iter(DataLoader(Stream(), batch_size=None))
print(next(iterator))
del iterator
print("deleted")
for _ in DataLoader(Stream()):
    break
print("left")

# What a library built is asked for its line; the library's variables are its own.
import framework
framework.fit()

class Loader(DataLoader):
    def __init__(self, dataset, batch_size=1):
        arguments = locals()
        super().__init__(dataset, batch_size=batch_size)
        print(sorted(arguments))

print(list(Loader([1])))
for thing in (net, optimizer, Net):
    reference = weakref.ref(thing)
    del thing
    gone("none", [reference])
del net, optimizer
reference = weakref.ref(Net)
del Net
gc.collect()
gone("class", [reference])
"""

FRAMEWORK = """
import weakref
from torch.utils.data import DataLoader

class Batch:
    pass

def evaluate():
    return list(DataLoader([1]))

def fit():
    for epoch in range(2):
        batch = Batch()
        reference = weakref.ref(batch)
        evaluate()
        del batch
        print("the framework's batch", reference() is None)
"""


INTERRUPTED = """
import dataclasses, signal, sys, traceback
import torch
from torch import nn
from torch.utils.data import DataLoader

def interrupt(*_):
    signal.raise_signal(signal.SIGINT)

class Interrupted(nn.Module):
    def forward(self, x):
        interrupt()

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        if index == 2:
            interrupt()
        return index

class Own(torch.optim.SGD):
    def step(self, closure=None):
        interrupt()

class Saved:
    def __reduce__(self):
        interrupt()

@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    code: int

class Freezing(nn.Module):
    def forward(self, x):
        raise Frozen(3)

class Chained(nn.Module):
    def forward(self, x):
        try:
            raise ValueError(1)
        except ValueError:
            print(sys.exc_info()[0])
            raise TypeError(2)

layer = nn.Linear(2, 1)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)

def backward():
    p = layer(torch.ones(1, 2))
    p.register_hook(interrupt)
    p.sum().backward()

def schedule():
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: interrupt() if epoch else 1.0).step()

def in_a_handler():
    try:
        raise OSError("before")
    except OSError:
        nn.Sequential(Chained())(torch.ones(1))

places = {
    "module": lambda: Interrupted()(1),
    "modules": lambda: nn.Sequential(nn.Sequential(Interrupted()))(1),
    "dataset": lambda: list(DataLoader(Data())),
    "collate": lambda: list(DataLoader(Data(), collate_fn=interrupt)),
    "step": lambda: Own(layer.parameters(), lr=0.1).step(),
    "closure": lambda: optimizer.step(interrupt),
    "backward": backward,
    "save": lambda: torch.save(Saved(), "saved.out"),
    "schedule": schedule,
    "placement": lambda: layer._apply(interrupt),
    "handler": in_a_handler,
    "frozen": lambda: nn.Sequential(Freezing())(1),
}
for name, action in places.items():
    try:
        action()
    except BaseException as error:
        print(name)
        traceback.print_exc()
        while error is not None:
            names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
            print(type(error), error.__suppress_context__, names)
            error = error.__cause__ or error.__context__
print(sys.exc_info())
for batch in DataLoader(torch.ones(4, 2), batch_size=2):
    optimizer.zero_grad()
    layer(batch).sum().backward()
    optimizer.step()
# Uncaught, one while another is handled.
try:
    list(DataLoader([1, None]))
finally:
    try:
        nn.Sequential(nn.Linear(2, 2))(torch.ones(3))
    finally:
        interrupt()
"""


LOOKS = """
import copy, inspect, pickle, pydoc, typing
from unittest import mock
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, dataloader

def tried(function, *arguments, **options):
    try:
        return function(*arguments, **options)
    except BaseException as error:
        return f"{type(error).__name__}: {error}"

functions = [
    torch.Tensor.to, torch.Tensor.item, torch.Tensor.copy_, torch.Tensor.__bool__,
    nn.Module.__call__, nn.Module._apply, nn.Module.zero_grad, torch.optim.SGD.step,
    torch.optim.Adam.step, torch.optim.Optimizer.zero_grad, torch.save, torch.load,
    F.cross_entropy, F.mse_loss, nn.utils.clip_grad_norm_, torch.amp.GradScaler.step,
    torch.cuda.synchronize, dataloader._BaseDataLoaderIter.__next__, DataLoader.__setattr__,
    torch.optim.lr_scheduler.StepLR.step,
]
for function in functions:
    print(function.__name__, function.__doc__, callable(function), inspect.isroutine(function))
    print(tried(inspect.signature, function), tried(typing.get_type_hints, function))
    print(tried(inspect.getsource, function))
    if function not in functions[:4]:  # in Python
        print(inspect.getfullargspec(function), function.__defaults__, function.__kwdefaults__)
    print(tried(function), tried(function, 1, 2, 3, 4, 5, 6, 7, 8, 9))
x, y = torch.ones(2, 4), torch.zeros(2, dtype=torch.long)
print(tried(x.item, 1), tried(x.copy_), tried(nn.Linear(4, 1)), tried(x.to, "mars"))
for function in (torch.Tensor.to, torch.save, F.cross_entropy):
    assert pickle.loads(pickle.dumps(function)) is function is copy.deepcopy(function)

with mock.patch("torch.nn.functional.cross_entropy", return_value=5) as mocked:
    print(F.cross_entropy(1, 2), mocked.called)
with mock.patch.object(torch.Tensor, "item", lambda self: 7):
    print(x.sum().item())
with mock.patch.object(torch.Tensor, "to", autospec=True) as mocked:
    x.to("cpu")
    print(mocked.call_args)
with mock.patch.object(nn.Module, "__call__", lambda self, *_: "mocked"):
    print(nn.Linear(4, 1)(x))
with mock.patch.object(torch.optim.SGD, "step", lambda self: "stepped"):
    print(torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1).step())
with mock.patch("torch.save", autospec=True):
    print(tried(torch.save))
print(x.sum().item(), x.to(torch.int8).dtype, F.cross_entropy(x, y).item())

# The script wraps, and puts back.
call, calls = nn.Module.__call__, []
def counted(self, *arguments, **options):
    calls.append(type(self).__name__)
    return call(self, *arguments, **options)
nn.Module.__call__ = counted
nn.Sequential(nn.Linear(4, 4), nn.ReLU())(x)
nn.Module.__call__ = call
nn.ReLU()(x)
print(calls)

class Own(nn.Module):
    def __call__(self, *arguments, **options):
        return "own", super().__call__(*arguments, **options)
    def forward(self, x, *, factor=1):
        return x.sum().item() * factor
print(Own()(x, factor=3))

model = nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters())
loader = DataLoader(list(range(4)), batch_size=2)
for thing in (model, optimizer, loader):
    list(loader), model(x)
    twin = copy.deepcopy(thing)
    print(type(twin), sorted(vars(twin)), sorted(vars(thing)))
"""


MODES = """
import torch
from torch import nn
from torch.func import functional_call, grad, hessian, jacrev, vmap
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader
torch.manual_seed(0)
model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

class Functions(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        print(getattr(function, "__name__", function), end=" ")
        return function(*args, **(kwargs or {}))

class Operators(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        print(function, end=" ")
        return function(*args, **(kwargs or {}))

class Watched(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        print(function.__name__, end=" ")
        return super().__torch_function__(function, types, args, kwargs or {})

def work(x):
    x.to(torch.float64), x.sum().item(), x.cpu(), x.clone().copy_(x), bool(x.sum() > 0)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), x[:1]).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    next(iter(DataLoader([1, 2])))

for mode in (Functions, Operators):
    with mode():
        work(torch.ones(2))
    print()
work(torch.ones(2).as_subclass(Watched))
print(vmap(lambda x: x.to(torch.float64).sum())(torch.ones(2, 3)))
print(grad(lambda x: (x.to(torch.float64) ** 2).sum())(torch.ones(2)))
print(jacrev(model)(torch.ones(2)), hessian(lambda x: model(x).sum() ** 2)(torch.ones(2)))
print(functional_call(model, dict(model.named_parameters()), torch.ones(2)))
try:
    vmap(lambda x: x.item())(torch.ones(2))
except RuntimeError as error:
    print(error)
with torch.inference_mode():
    print(model(torch.ones(2)).is_inference())
with torch.device("meta"):
    print(torch.ones(2).to("meta"), nn.Linear(1, 1)(torch.ones(1)))
"""


@same("graphs and graph breaks of torch.compile, jit, fx, export")
@same("function modes, dispatch modes, tensor subclasses, torch.func")
@same("torch.profiler, cProfile, sys.settrace")
def test_what_needs_torchs_compiler(tmp_path: Path) -> None:
    texts = {"modes": MODES, "tools": TOOLS, "compiled": COMPILED}
    parts, plain, ours, _ = parts_of(tmp_path, texts, compiler=True)
    for name, part in parts.items():
        assert part.ours == part.plain, name
    assert parts["modes"].ours_stderr == parts["modes"].plain_stderr
    assert parts["tools"].plain.startswith("True True\nTrue\n[")
    assert plain.returncode == 0, plain.stderr
    assert ours.returncode == 0, ours.stderr


FINDERS = """
import importlib, importlib.util, sys
asked = []
class Mine:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name in ("torch", "beside"):
            asked.append(name)
sys.meta_path.insert(0, Mine)
spec = importlib.util.find_spec("torch")
print(asked, type(spec.loader), spec.origin, spec.name)
if sys.argv[1] == "lazy":
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = sys.modules["torch"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    print(type(module))
import torch
print(torch.ones(1).sum().item(), type(torch), asked, sys.meta_path[0] is Mine, len(sys.meta_path))
print(torch.__spec__.loader is torch.__loader__, sorted(vars(torch.__loader__)))
import beside
print(importlib.reload(beside) is beside, asked)
"""


DEEP = """
import sys, torch
from torch import nn

class Deep(nn.Module):
    def forward(self, x, depth):
        return self(x, depth - 1) if depth else x

def item(depth):
    return item(depth - 1) if depth else torch.ones(1).item()

def deepest(function):
    low, high = 1, 2000
    while low < high:
        middle = (low + high + 1) // 2
        try:
            function(middle)
            low = middle
        except RecursionError:
            high = middle - 1
    return low

model = Deep()
print(deepest(lambda depth: model(1, depth)), deepest(item))
"""


UNTOUCHED = """
import os
torch.manual_seed(0)
from torch.utils.data import DataLoader
x = torch.nn.Linear(2, 1)(torch.ones(1, 2))
x.sum().backward()
x.item(), x.to("cpu"), list(DataLoader([1], num_workers=1))
print(torch.cuda.is_initialized(), torch.cuda._is_in_bad_fork(), torch.accelerator.is_available())
sys.stdout.flush()  # else the child would print it again
child = os.fork()
if not child:
    print(torch.cuda.is_initialized(), torch.cuda._is_in_bad_fork(), x.item(), flush=True)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@same("your import hooks, lazy imports")
@same("CUDA is left alone until the script uses it")
@pytest.mark.parametrize(("way", "then"), [("plain", UNTOUCHED), ("lazy", "")])
def test_finders_of_the_script_and_its_device(tmp_path: Path, way: str, then: str) -> None:
    (tmp_path / "beside.py").write_text("")
    plain, ours = both(tmp_path, FINDERS + then, way)
    assert_same(plain, ours)
    assert plain.returncode == 0, plain.stderr
    assert plain.stdout.count("False False") == (2 if then else 0)


STRICT = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    data = TensorDataset(torch.randn(8, 2), torch.randn(8, 1))
    for x, y in DataLoader(data, batch_size=2, num_workers=2):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    torch.save(model.state_dict(), "state.out")
    print(loss.item().hex(), sys.flags, sys.warnoptions, sys.path)
"""


@same("strict and odd interpreters: -W error, -X dev, -OO, -P")
def test_strict_and_odd_interpreters(tmp_path: Path) -> None:
    """All at once: none of them hides what another one shows."""
    env = {
        "PYTHONWARNINGS": "error",
        "PYTHONDEVMODE": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONOPTIMIZE": "2",
        "PYTHONSAFEPATH": "1",
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
    }
    plain, ours = both(tmp_path, STRICT, env=env)
    assert_same(plain, ours)
    assert (plain.stderr, plain.returncode) == ("", 0)


DEBUGGED = """
import bdb, io, pdb, sys, torch

def step():
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in torch.utils.data.DataLoader([torch.ones(2)]):
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        loss.item()
    return 3

class Lines(bdb.Bdb):
    def __init__(self):
        super().__init__()
        self.seen = []
    def user_line(self, frame):
        self.seen.append((frame.f_code.co_name, frame.f_lineno))
        self.set_next(frame)

lines = Lines()
print(lines.runcall(step), lines.seen)
keys = io.StringIO("n\\n" * 8 + "w\\np loss.item() < 9\\nu\\nd\\nunt 15\\nc\\n")
debugger = pdb.Pdb(stdin=keys, stdout=sys.stdout, nosigint=True)
debugger.use_rawinput = False
debugger.runcall(step)
print(sys.gettrace(), sys.getprofile())
"""


SECTIONS = {
    "descriptors": DESCRIPTORS,
    "deep": DEEP,
    "debugged": DEBUGGED,
    "loud": LOUD,
    "lives": "import sys\nsys.path.insert(0, 'site-packages')\n" + LIVES,
    "looks": LOOKS,
    "failing": FAILING,
    "interrupted": INTERRUPTED,
}
OF_PROCESS = re.compile(r"pid\(s\) \d+|Thread-\d+")


@same("open files, but for the log")
@same("settings made before torch is imported")
@same("tracebacks, exit status")
@same("where warnings are shown, and how often")
@same("when batches, tensors, iterators and models are freed")
@same("Ctrl-C and chained exceptions, wherever they come")
@same("signatures, sources and error messages of torch's functions, mocks of them")
@same("how deep modules may nest")
@same("bdb and pdb")
def test_what_a_script_sees(tmp_path: Path) -> None:
    """Everything in one process each; the last part ends it by an uncaught interrupt."""
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "framework.py").write_text(FRAMEWORK)
    parts, plain, ours, main = parts_of(tmp_path, SECTIONS)
    for name, part in parts.items():
        if name not in ("descriptors", "deep"):  # see below
            assert normal(part.ours) == normal(part.plain), name
        at = [OF_PROCESS.sub("", text) for text in (part.ours_stderr, part.plain_stderr)]
        assert at[0] == at[1], name
    assert ours.returncode == plain.returncode == -signal.SIGINT

    # Before all of them: no word of ours, and what was set before torch's import counts.
    assert parts[""] == Part(*(["1 tensor([1.])\n"] * 2), "", "")

    theirs, files = (
        json.loads(text.replace("'", '"'))
        for text in (parts["descriptors"].plain, parts["descriptors"].ours)
    )
    # The directory that is being listed shows as /proc/PID/fd.
    added = {path for path in set(files) - set(theirs) if not path.startswith("/proc/")}
    assert all(path.startswith(str(tmp_path / "run" / "events")) for path in added)
    assert len(added) <= 1

    (modules, calls), (our_modules, our_calls) = (
        map(int, text.split()) for text in (parts["deep"].plain, parts["deep"].ours)
    )
    assert our_modules == modules
    assert calls - 2 <= our_calls <= calls  # a wrapper of ours, and what it calls

    assert "KeyError: 1" in parts["failing"].plain_stderr
    assert parts["loud"].plain_stderr.count("float(with_gradient)") >= 2
    assert parts["lives"].plain.count("the framework's batch True") == 2
    for name in ("deep", "looks"):
        assert parts[name].plain_stderr == "", name

    stderr = parts["interrupted"].plain_stderr
    assert stderr.count("KeyboardInterrupt") == 11
    assert "TypeError: default_collate" in stderr.rpartition("During handling")[0]
    assert "RuntimeError: mat1" in stderr.rpartition("During handling")[0]
    # The last one is that of the uncaught failure.
    last = main.of(Kind.FORWARD, Kind.BACKWARD, Kind.OPTIMIZER_STEP)[-4:]
    assert [event.kind for event in last] == [
        *(Kind.FORWARD, Kind.BACKWARD, Kind.OPTIMIZER_STEP, Kind.FORWARD)
    ]


OWN_NAMES = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(2000, 64), nn.Flatten(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
data = TensorDataset(torch.arange(256)[:, None], torch.ones(256, 1))
if __name__ == "__main__":
    for number in (0, 0, 1):
        for x, y in DataLoader(data, 4, num_workers=number):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
    print(loss.item())
    print("modules", *sorted({name.partition(".")[0] for name in sys.modules}), file=sys.stderr)
"""


@same("modules named like Python's, next to the script")
def test_no_file_beside_the_script_is_run_that_it_does_not_import(tmp_path: Path) -> None:
    text = without_compiler(OWN_NAMES)
    (tmp_path / "script.py").write_text(text)
    known = run_plain(["script.py"], tmp_path)
    assert known.returncode == 0, known.stderr
    loaded = set(known.stderr.split("modules", 1)[1].split())
    ran = tmp_path / "ran"
    for name in sys.stdlib_module_names - loaded:
        (tmp_path / f"{name}.py").write_text(
            f"with open({str(ran)!r}, 'a') as file: print({name!r}, file=file)\n"
            f"raise ModuleNotFoundError({name!r})\n"
        )

    def outcome(done: Done) -> tuple[int, str, str, set[str]]:
        names = set(ran.read_text().split()) if ran.exists() else set()
        ran.unlink(missing_ok=True)
        return done.returncode, done.stdout, done.stderr.split("modules")[0], names

    plain = outcome(run_plain(["script.py"], tmp_path))
    for name in plain[3]:  # those of workers, and of other platforms
        (tmp_path / f"{name}.py").unlink()
    plain = outcome(run_plain(["script.py"], tmp_path))
    ours = outcome(run_hooked(["script.py"], tmp_path, tmp_path / "run"))
    assert plain[0] == 0, plain
    assert ours == plain
    assert read_recordings(tmp_path / "run" / "events")[0].notes(Topic.PROBE_FAILED) == []


OPENS_ALL = """
import torch
kept = []
try:
    while True:
        kept.append(open(__file__))
except OSError as error:
    count = len(kept)
    del kept[:]
    print(count, error.strerror)
"""


@same("how many files the script may still open, where the limit is low")
@pytest.mark.parametrize("limit", [7, 12, 16, 20])
def test_a_low_limit_of_open_files_is_the_scripts_alone(tmp_path: Path, limit: int) -> None:
    (tmp_path / "torch.py").write_text("")
    (tmp_path / "script.py").write_text(OPENS_ALL)

    def lower() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

    plain = run_plain(["script.py"], tmp_path, preexec_fn=lower)
    ours = run_plain(
        ["-m", "trainprof", "run", "-o", "run", "script.py"], tmp_path, preexec_fn=lower
    )
    assert (ours.stdout, ours.returncode) == (plain.stdout, plain.returncode)
    assert "Too many open files" in plain.stdout
    assert f"Recording off: ulimit -n is {limit}, below 64" in ours.stderr


OUR_NAMES = ("trainprof", "typer", "rich", "psutil", "numpy", "click", "line_profiler")
IMPORTS_THEM = f"""
import sys
print(sorted(name for name in sys.modules if name.partition(".")[0] in {OUR_NAMES}), sys.path)
for name in {OUR_NAMES}:
    module = __import__(name)
    print(name, module.__file__, module.value)
"""


@same("modules of the script's that are called like ours, trainprof.py too")
@pytest.mark.parametrize("place", [".", "library"])
def test_modules_of_our_names_are_the_scripts(tmp_path: Path, place: str) -> None:
    """Beside the script, and on PYTHONPATH, which also leads to the command itself."""
    (tmp_path / "library").mkdir()
    for name in OUR_NAMES:
        (tmp_path / place / f"{name}.py").write_text(f"value = {name!r}\n")
    (tmp_path / "script.py").write_text(IMPORTS_THEM)
    env = {"PYTHONPATH": str(tmp_path / "library")}
    plain = run_plain(["script.py"], tmp_path, env=env)
    command = f"import sys; sys.path.append({str(ROOT)!r}); import trainprof_command as command\n"
    console = ["-c", f"{command}command.main()", "run", "-o", "run", "script.py"]
    ours = run_plain(console, tmp_path, env=env)
    assert (ours.stdout, ours.returncode) == (plain.stdout, plain.returncode)
    assert (plain.stderr, plain.returncode) == ("", 0)
    assert "Recording off: your module has our name" in ours.stderr
    assert "Traceback" not in ours.stderr


def test_python_m_trainprof_needs_no_module_of_the_working_directory(tmp_path: Path) -> None:
    for name in (*OUR_NAMES[1:], "random", "json", "dataclasses"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('shadowed')\n")
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    (scripts / "script.py").write_text("print('ran')\n")
    ours = run_plain(["-m", "trainprof", "run", "-q", "-o", "run", "scripts/script.py"], tmp_path)
    assert (ours.stdout, ours.stderr, ours.returncode) == ("ran\n", "", 0)


CUSTOMIZES = """
import os
with open(os.path.join(os.path.dirname(__file__), "ran"), "a") as file:
    file.write(f"{os.getpid()} {__name__}\\n")
"""
STARTS_CHILDREN = """
import multiprocessing, os, site, subprocess, sys
def work():
    print(os.getpid(), flush=True)
if __name__ == "__main__":
    site.execusercustomize()  # a virtual environment keeps Python from it
    print(os.getpid(), flush=True)
    subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"])
    for method in ("fork", "spawn"):
        process = multiprocessing.get_context(method).Process(target=work)
        process.start()
        process.join()
"""


@same("sitecustomize and usercustomize, once in each process")
def test_customizations_run_once_in_each_process(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    for name in ("sitecustomize", "usercustomize"):
        (place / f"{name}.py").write_text(CUSTOMIZES)
    (tmp_path / "script.py").write_text(STARTS_CHILDREN)
    env = {"PYTHONPATH": str(place)}
    plain = run_plain(["script.py"], tmp_path, env=env)
    known = of_numbered(plain, place / "ran")
    ours = run_plain(["-m", "trainprof", "run", "-q", "-o", "run", "script.py"], tmp_path, env=env)
    assert of_numbered(ours, place / "ran") == known
    assert known[0] == ["sitecustomize", "usercustomize"]
    assert known[1:] == [["sitecustomize"], [], ["sitecustomize"]]


def of_numbered(done: Done, ran: Path) -> list[list[str]]:
    """Returns what ran in each process, in the order in which they wrote their numbers."""
    lines = [line.split() for line in ran.read_text().splitlines()]
    ran.unlink()
    assert (done.stderr, done.returncode) == ("", 0)
    return [[name for number, name in lines if number == pid] for pid in done.stdout.split()]


@same("signals that the caller ignores, SIGCHLD too")
@pytest.mark.parametrize("target", ["script.py", "env"])
def test_signals_that_the_caller_ignores_stay_ignored(tmp_path: Path, target: str) -> None:
    (tmp_path / "script.py").write_text(
        "import signal\nnumbers = sorted(signal.valid_signals())\n"
        "print([int(n) for n in numbers if signal.getsignal(n) is signal.SIG_IGN])\nexit(3)\n"
    )

    def ignore() -> None:
        for number in (signal.SIGCHLD, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)

    script = ["script.py"] if target == "script.py" else ["env", sys.executable, "script.py"]
    command = [*([sys.executable] if target == "script.py" else []), *script]
    under = [sys.executable, "-m", "trainprof", "run", "-q", "-o", "run", *script]
    plain, ours = (
        subprocess.run(
            words, cwd=tmp_path, preexec_fn=ignore, capture_output=True, text=True, check=False
        )
        for words in (command, under)
    )
    assert_same(plain, ours)
    assert f", {signal.SIGCHLD.value}," in plain.stdout
    assert plain.returncode == 3
