"""A script cannot tell plain python from trainprof, but for what the README says."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from support.session import read_recordings, run_hooked, run_plain, run_under

from trainprof.record.schema import Kind

Done = subprocess.CompletedProcess[str]


def both(
    directory: Path, text: str, *arguments: str, module: str | None = None
) -> tuple[Done, Done]:
    """Runs a script plain and under the tracee, in folders of the same path."""
    (directory / "script.py").write_text(text)
    words = ["-m", module] if module else ["script.py"]
    plain = run_plain([*words, *arguments], directory)
    for left in directory.glob("*.out"):
        left.rename(left.with_suffix(".plain"))
    ours = run_hooked([*words, *arguments], directory, directory / "run")
    return plain, ours


def assert_same(plain: Done, ours: Done) -> None:
    assert ours.stdout == plain.stdout
    assert ours.stderr == plain.stderr
    assert ours.returncode == plain.returncode


TRAINING = """
import hashlib, io, pickle, random, sys
import numpy, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    def forward(self, x):
        return self.layers(x)

if __name__ == "__main__":
    random.seed(0); numpy.random.seed(0); torch.manual_seed(0)
    data = TensorDataset(torch.randn(32, 4), torch.randint(0, 2, (32,)))
    net = Net()
    optimizer = torch.optim.Adam(net.parameters())
    for epoch in range(2):
        loader = DataLoader(data, batch_size=4, shuffle=True, num_workers=int(sys.argv[1]))
        for x, y in loader:
            loss = nn.functional.cross_entropy(net(x.to("cpu")), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
        print(loss.item().hex(), type(iter(loader)), iter(loader).__class__.__mro__)
    torch.save(net.state_dict(), "state.out")
    torch.save(net, "net.out")
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
"""


@pytest.mark.parametrize("workers", ["0", "2"])
def test_training_computes_the_same(tmp_path: Path, workers: str) -> None:
    plain, ours = both(tmp_path, TRAINING, workers)
    assert_same(plain, ours)
    assert plain.returncode == 0, plain.stderr
    for name in ("state", "net"):
        saved = (tmp_path / f"{name}.out").read_bytes()
        assert saved == (tmp_path / f"{name}.plain").read_bytes()
    main, *others = read_recordings(tmp_path / "run" / "events")
    assert len(main.of(Kind.OPTIMIZER_STEP)) == len(main.of(Kind.LOADER_NEXT)) == 16
    fetches = [event for log in (main, *others) for event in log.of(Kind.FETCH)]
    assert len(fetches) >= 16


def test_training_under_the_command(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(TRAINING)
    plain = run_plain(["script.py", "0"], tmp_path)
    ours = run_under(["script.py", "0"], tmp_path, tmp_path / "named")
    assert (ours.stdout, ours.stderr, ours.returncode) == (plain.stdout, "", 0)


SURROUNDINGS = """
import atexit, os, signal, sys, threading
IMPORT
print(sys.argv, sys.orig_argv[1:], sys.path, __file__, __name__, __package__)
print(__spec__ and (__spec__.name, __spec__.origin), type(__loader__), sys.flags)
print(sorted(set(globals()) - {"profile"}))
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
    return re.sub(r"0x[0-9a-f]{6,}", "0x", text)


@pytest.mark.parametrize("module", [None, "script"])
def test_the_surroundings_are_the_same(tmp_path: Path, module: str | None) -> None:
    text = SURROUNDINGS.replace("IMPORT", "import torch")
    plain, ours = both(tmp_path, text, "a", "--help", "-o", "x", module=module)
    assert normal(ours.stdout) == normal(plain.stdout)
    assert (ours.stderr, ours.returncode) == (plain.stderr, plain.returncode) == ("", 0)


DESCRIPTORS = """
import os, torch
torch.nn.Linear(1, 1)(torch.ones(1))
print(sorted(os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")
             if os.path.exists(f"/proc/self/fd/{n}") and int(n) > 2))
"""


def test_only_the_log_is_open_besides(tmp_path: Path) -> None:
    plain, ours = both(tmp_path, DESCRIPTORS)
    theirs = set(json.loads(plain.stdout.replace("'", '"')))
    added = set(json.loads(ours.stdout.replace("'", '"'))) - theirs
    # The directory that is being listed shows as /proc/PID/fd.
    added = {path for path in added if not path.startswith("/proc/")}
    assert all(path.startswith(str(tmp_path / "run" / "events")) for path in added)
    assert len(added) <= 1


def test_threads_set_before_torchs_import_count(tmp_path: Path) -> None:
    text = """
import os
os.environ["OMP_NUM_THREADS"] = "1"
import torch
print(torch.get_num_threads())
"""
    plain, ours = both(tmp_path, text)
    assert_same(plain, ours)
    assert ours.stdout == "1\n"


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


def test_failures_look_the_same(tmp_path: Path) -> None:
    """All in one process each, as importing torch takes long; the last ones end it."""
    text = HEAD + "import traceback\n"
    for name, code in FAILURES.items():
        body = f"compile({code!r}, 'user.py', 'exec')"
        text += f"print({name!r})\ntry:\n    exec({body})\n"
        text += "except BaseException:\n    traceback.print_exc()\n"
    plain, ours = both(tmp_path, text)
    at = re.compile(r"pid\(s\) \d+|Thread-\d+")
    assert at.sub("", ours.stderr) == at.sub("", plain.stderr)
    assert "KeyError: 1" in plain.stderr
    assert (ours.stdout, ours.returncode) == (plain.stdout, plain.returncode)


@pytest.mark.parametrize("name", ["in a module", "in a dataset", "exit with text", "of syntax"])
def test_an_uncaught_failure_ends_it_the_same(tmp_path: Path, name: str) -> None:
    plain, ours = both(tmp_path, HEAD + FAILURES[name])
    assert_same(plain, ours)
    assert plain.returncode == 1


CHILDREN = """
import atexit, multiprocessing, pickle, sys, threading, time
import torch

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


def test_classes_of_main_cross_to_children_threads_and_the_end(tmp_path: Path) -> None:
    plain, ours = both(tmp_path, CHILDREN)
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


def test_tools_of_the_script_still_work(tmp_path: Path) -> None:
    plain, ours = both(tmp_path, TOOLS)
    assert (ours.stdout, ours.returncode) == (plain.stdout, plain.returncode)
    assert plain.stdout.startswith("True True\nTrue\n[")


COMPILED = """
import json, pickle, torch
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
    optimizer = torch.optim.Adam(net.parameters())
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
traced = torch.fx.symbolic_trace(Model())
print(traced.code, traced(x, y).item(), len(pickle.dumps(traced)))
print(torch.export.export(Model(), (x, y)).graph)
"""


def test_compiled_graphs_and_breaks_are_the_same(tmp_path: Path) -> None:
    plain, ours = both(tmp_path, COMPILED)
    assert plain.returncode == 0, plain.stderr
    assert ours.stdout == plain.stdout
    assert ours.returncode == 0


def test_no_word_of_ours_on_the_scripts_stderr(tmp_path: Path) -> None:
    text = "import warnings\nwarnings.simplefilter('always')\nimport torch\nprint(torch.ones(1))\n"
    plain, ours = both(tmp_path, text)
    assert_same(plain, ours)
