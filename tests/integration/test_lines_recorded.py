"""Line times as they are recorded: right hits, right times, from every process, and no trace."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.session import hooked_environment, run_hooked, run_plain
from support.styles import without_compiler

from trainprof.analysis.timeline.events import ProcessLog, load_process
from trainprof.record.log_reader import log_paths, read_log
from trainprof.record.schema import Kind, Topic

# Hits and ns.
Times = tuple[int, int]


@dataclass(frozen=True)
class TimedLines:
    """What one process, or all of them together, recorded of lines, by qualified name."""

    metadata: dict[str, dict[str, Any]]
    rows: dict[str, dict[int, Times]]

    def hits(self, function: str) -> dict[int, int]:
        return {line: hits for line, (hits, _) in sorted(self.rows.get(function, {}).items())}

    def why(self) -> dict[str, str]:
        return {name: metadata["why"] for name, metadata in self.metadata.items()}


@dataclass(frozen=True)
class LinesRun:
    """A run with its processes, the script first."""

    processes: list[tuple[ProcessLog, TimedLines]]
    stdout: str

    @property
    def script(self) -> TimedLines:
        return self.processes[0][1]

    def together(self) -> TimedLines:
        metadata: dict[str, dict[str, Any]] = {}
        rows: dict[str, dict[int, Times]] = {}
        for _, lines in self.processes:
            metadata |= lines.metadata
            for name, times in lines.rows.items():
                total = rows.setdefault(name, {})
                for line, (hits, ns) in times.items():
                    before = total.get(line, (0, 0))
                    total[line] = (before[0] + hits, before[1] + ns)
        return TimedLines(metadata, rows)

    def notes(self, topic: Topic) -> list[Any]:
        return [note for log, _ in self.processes for note in log.texts_of(topic).values()]

    def overheads(self) -> list[float]:
        notes = self.notes(Topic.ENVIRONMENT)
        return [note["line_overhead_ns"] for note in notes if "line_overhead_ns" in note]


def read_lines(directory: Path, stdout: str) -> LinesRun:
    logs = [load_process(read_log(path)) for path in log_paths(directory / "events")]
    logs.sort(key=lambda log: (log.role != "script", log.header["perf_ns"]))
    return LinesRun([(log, _timed(log)) for log in logs], stdout)


def _timed(log: ProcessLog) -> TimedLines:
    functions = log.texts_of(Topic.LINE_FUNCTION)
    rows: dict[str, dict[int, Times]] = {}
    for record in log.details[log.details["kind"] == Kind.LINE]:
        line = int(record["thread"]) | int(record["flags"]) << 16
        assert record["start"] > 0
        times = (int(record["value"]), int(record["end"] - record["start"]))
        rows.setdefault(functions[int(record["site"])]["name"], {})[line] = times
    return TimedLines({x["name"]: x for _, x in sorted(functions.items())}, rows)


def run_timed(
    tmp_path: Path,
    *words: str,
    functions: Sequence[str] = (),
    only: str | None = None,
    env: dict[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    options = {"lines": {"functions": list(functions), "only": only}}
    return run_hooked(words, tmp_path, tmp_path / "run", options=options, env=env or {})


def time_lines(
    tmp_path: Path, script: str, words: Sequence[str] = ("script.py",), **more: Any
) -> LinesRun:
    """Runs a script plainly and with its lines timed; both look the same from outside."""
    (tmp_path / "script.py").write_text(script)
    plain, ours = run_plain(words, tmp_path), run_timed(tmp_path, *words, **more)
    assert (ours.stdout, ours.stderr) == (plain.stdout, plain.stderr)
    assert ours.returncode == plain.returncode
    return read_lines(tmp_path / "run", ours.stdout)


def time_lines_alone(
    tmp_path: Path, script: str, *arguments: str, status: int = 0, **more: Any
) -> LinesRun:
    """Runs a script with its lines timed only."""
    (tmp_path / "script.py").write_text(script)
    done = run_timed(tmp_path, "script.py", *arguments, **more)
    assert done.returncode == status, done.stderr
    assert status or done.stderr == ""
    return read_lines(tmp_path / "run", done.stdout)


def kernprof_hits(tmp_path: Path, script: Path) -> dict[str, dict[int, int]]:
    """Returns hits by function and line, as line_profiler's own command counts them."""
    command = ["-m", "kernprof", "-q", "-l", "-o", "kernprof.lprof", str(script)]
    done = subprocess.run(
        [sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    reader = (
        "import json, line_profiler\n"
        "timings = line_profiler.load_stats('kernprof.lprof').timings\n"
        "print(json.dumps([[*key, rows] for key, rows in timings.items()]))"
    )
    read = subprocess.run(
        [sys.executable, "-c", reader], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    hits: dict[str, Counter[int]] = {}
    for _, _, name, rows in json.loads(read.stdout):
        hits.setdefault(name, Counter()).update({line: count for line, count, _ in rows})
    return {name: dict(sorted(counted.items())) for name, counted in hits.items()}


GUARD = "if 'profile' not in globals():\n    profile = lambda function: function\n"

DECORATED = (
    GUARD
    + """
import asyncio

@profile
def summed(n):
    total = 0
    for i in range(n):
        if i % 3:
            total += i
    return total

@profile
def fibonacci(n):
    if n < 2:
        return n
    return fibonacci(n - 1) + fibonacci(n - 2)

@profile
def numbers(n):
    for i in range(n):
        try:
            yield i
        except ValueError:
            pass
    return n

@profile
async def awaited(n):
    for i in range(n):
        await asyncio.sleep(0)
    return n

@profile
async def streamed(n):
    for i in range(n):
        yield i

async def consumed():
    return [i async for i in streamed(3)], await asyncio.gather(awaited(2), awaited(3))

class Box:
    @profile
    def method(self):
        return [summed(i) for i in range(3)]

    @staticmethod
    @profile
    def static():
        return 1

    @profile
    @classmethod
    def of_class(cls):
        return cls.__name__

    @property
    @profile
    def value(self):
        return self._value

    @value.setter
    @profile
    def value(self, value):
        self._value = value

@profile
def raising(x):
    x += 1
    raise KeyError(x)

def helper(x):
    x += 1
    return x

def not_timed(x):
    return helper(x)

print(summed(7), fibonacci(6), list(numbers(4)), asyncio.run(consumed()))
box = Box(); box.value = 3
print(box.method(), Box.static(), box.of_class(), box.value)
for i in range(2):
    try:
        raising(i)
    except KeyError as error:
        print(error)
"""
)


@pytest.mark.proves("Line times", "`@profile` on functions, methods, generators and coroutines")
def test_hits_are_kernprofs(tmp_path: Path) -> None:
    run = time_lines(tmp_path, DECORATED)
    # kernprof puts its own where this guard does not look.
    (tmp_path / "script.py").write_text(DECORATED.replace(GUARD, "#\n#\n"))
    theirs = kernprof_hits(tmp_path, tmp_path / "script.py")
    ours = {name: run.script.hits(name) for name in run.script.metadata}
    assert ours == theirs
    assert ours["fibonacci"] == {16: 25, 17: 13, 18: 12}
    assert set(run.script.why().values()) == {"profile"}
    assert run.notes(Topic.PROBE_FAILED) == run.notes(Topic.PROBE_UNAVAILABLE) == []


EXPLICIT = """
import line_profiler
from line_profiler import profile

@profile
def decorated(n):
    for i in range(n):
        added(i)

def added(i):
    return i

def counted(n):
    return n + 1

def in_a_block(n):
    return n + 2

added(7)
if hasattr(profile, "_profile") and profile._profile is not None:
    profile._profile.add_function(added)
decorated(3)
"""


@pytest.mark.proves("Line times", "`from line_profiler import profile`")
def test_line_profilers_own_decorator_feeds_ours_and_writes_no_files(tmp_path: Path) -> None:
    run = time_lines(tmp_path, EXPLICIT)
    assert run.script.hits("decorated") == {7: 4, 8: 3}
    assert run.script.hits("added") == {11: 3}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "script.py"]


# As of plain python in every way that a script can tell.
GUEST = (
    GUARD
    + """
import functools, inspect, sys, traceback, warnings
from contextlib import contextmanager

print(sys.gettrace())

@profile
def warns():
    warnings.warn("shown at the caller's line", stacklevel=2)

@profile
def generator():
    received = []
    for i in range(3):
        try:
            received.append((yield i))
        except ValueError as error:
            received.append(str(error))
    return received

@contextmanager
@profile
def suppressing():
    try:
        yield 1
    except KeyError as error:
        print("suppressed", error)

@profile
def closing():
    try:
        yield 1
    finally:
        print("closed")

@functools.lru_cache
@profile
def cached(x):
    print(sys.gettrace())
    return x

def delegating():
    result = yield from generator()
    print(result)

print(profile(3), profile("text"))
warns()
running = delegating()
print(next(running), running.send("sent"), running.throw(ValueError("thrown")))
try:
    next(running)
except StopIteration:
    pass
with suppressing():
    raise KeyError("inside")
for one in closing():
    break
print(cached(1), cached(1), inspect.signature(cached), cached.__name__)
print(inspect.isgeneratorfunction(generator))
1 / 0 if False else cached(2)

@profile
def outer(x):
    return inner(x)

@profile
def inner(x):
    return 1 / x

try:
    outer(0)
except ZeroDivisionError:
    traceback.print_exc()
outer(0)
"""
)


def test_a_decorated_function_behaves_as_it_does_plainly(tmp_path: Path) -> None:
    """What Python warns of when it compiles the files is told once, as always."""
    (tmp_path / "other.py").write_text("text = '\\d'\n")
    script = GUEST.replace("import functools", "import other\nimport functools")
    run = time_lines(tmp_path, f"{script}'\\d'\n", ("-Wdefault", "-B", "script.py"))
    assert run.script.hits("inner") == {71: 2}


TRAINING = without_compiler("""
import sys, time
import torch
from torch.utils.data import DataLoader, Dataset

def load(index):
    return torch.full((8,), index / 100)

class Items(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        x = load(index)
        return x, self.target()

    def target(self):
        return torch.zeros(1)

    def unused(self):
        return None

def collate(samples):
    xs, ys = zip(*samples)
    return torch.stack(xs), torch.stack(ys)

class Order:
    def __iter__(self):
        for index in range(24):
            yield 23 - index

    def __len__(self):
        return 24

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 1)

    def forward(self, x):
        y = self.linear(x)
        return y.relu()

def elsewhere():
    return None

def main():
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Items(), 4, sampler=Order(), collate_fn=collate)
    for epoch in range(2):
        for x, y in loader:
            loss = (model(x) - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, loss.item().hex(), sys.gettrace())
    elsewhere

if __name__ == "__main__":
    main()
""")


@pytest.mark.proves("Line times", "without `@profile`: the training loop and what it calls")
def test_without_a_decorator_the_training_loop_and_what_it_calls_is_timed(tmp_path: Path) -> None:
    run = time_lines(tmp_path, TRAINING)
    lines = run.script
    assert lines.why() == {
        "main": "training loop",
        "Net.__init__": "called by main",
        "Net.forward": "called by main",
        "Items.__getitem__": "dataset",
        "Items.target": "called by Items.__getitem__",
        "load": "called by Items.__getitem__",
        "collate": "collate",
        "Order.__iter__": "sampler",
    }
    once, each_step = dict.fromkeys([48, 49, 50, 51, 59], 1), dict.fromkeys(range(54, 58), 12)
    assert lines.hits("main") == once | each_step | {52: 3, 53: 14, 58: 2}
    assert lines.hits("Items.__getitem__") == {14: 48, 15: 48}
    assert lines.hits("load") == {7: 48}
    assert lines.hits("collate") == {24: 12, 25: 12}
    assert lines.hits("Order.__iter__") == {29: 50, 30: 48}
    assert lines.hits("Net.forward") == {41: 12, 42: 12}
    assert run.notes(Topic.PROBE_FAILED) == run.notes(Topic.PROBE_UNAVAILABLE) == []


MODULE_LEVEL = """
import json.tool, sys
import torch

total = 0 if sys.gettrace() else 4
model = torch.nn.Linear(1, 1)
for step in range(3):
    import wave
    total += 0 if sys.gettrace() else step
    if total > 5:
        model(torch.ones(1)).backward()
print(total)
"""


@pytest.mark.proves("Line times", "a training loop at module level")
def test_a_loop_at_module_level_is_timed_from_the_scripts_first_line(tmp_path: Path) -> None:
    """A script that asks whether it is debugged gets the same answer."""
    run = time_lines(tmp_path, MODULE_LEVEL)
    assert run.stdout == "7\n"
    assert run.script.why() == {"<module>": "module level"}
    expected = {2: 1, 3: 1, 5: 1, 6: 1, 7: 4, 8: 3, 9: 3, 10: 3, 11: 1, 12: 1}
    assert run.script.hits("<module>") == expected


SLEEPING = """
import json, os, sys, time
from pathlib import Path
import torch
from torch.utils.data import DataLoader, Dataset
{guard}
class Sleeping(Dataset):
    def __len__(self):
        return 40
{profile}
    def __getitem__(self, index):
        started = time.perf_counter()
        time.sleep(0.005)
        took = time.perf_counter() - started
        return took, os.getpid()

def main():
    took, pids = 0.0, {{}}
    for method in sys.argv[1:]:
        loader = DataLoader(Sleeping(), 4, num_workers=2, multiprocessing_context=method)
        for seconds, pid in loader:
            took += seconds.sum().item()
            pids |= dict.fromkeys(pid.tolist(), method)
    print(json.dumps([took, pids]))

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(
    ("methods", "is_decorated"),
    [
        pytest.param(
            methods,
            is_decorated,
            id="decorated" if is_decorated else "not decorated",
            marks=[pytest.mark.proves("Line times", f"in workers by {m}") for m in methods],
        )
        for methods, is_decorated in ((["fork", "spawn"], False), (["fork", "forkserver"], True))
    ],
)
def test_lines_of_workers(tmp_path: Path, methods: list[str], is_decorated: bool) -> None:
    """Each worker starts from zero: hits are exact, and the sleep takes what it took."""
    guard, profile = (GUARD, "    @profile") if is_decorated else ("\n", "")
    script = SLEEPING.format(guard=guard, profile=profile)
    run = time_lines_alone(tmp_path, script, *methods)
    took, workers = json.loads(run.stdout)
    first = run.script.metadata["Sleeping.__getitem__"]["line"] + is_decorated
    hits_of = {
        str(log.header["pid"]): lines.hits("Sleeping.__getitem__")
        for log, lines in run.processes[1:]
    }
    assert hits_of == {pid: {first + offset: 20 for offset in range(1, 5)} for pid in workers}
    assert sorted(workers.values()) == sorted(2 * methods)
    assert run.script.hits("Sleeping.__getitem__") == {}
    hits, ns = run.together().rows["Sleeping.__getitem__"][first + 2]
    assert hits == 20 * len(workers)
    assert ns / 1e9 == pytest.approx(took, rel=0.02)
    why = run.together().why()
    assert why["Sleeping.__getitem__"] == ("profile" if is_decorated else "dataset")
    assert ("main" in why) is not is_decorated
    assert run.notes(Topic.PROBE_FAILED) == run.notes(Topic.PROBE_UNAVAILABLE) == []
    assert all(0 < overhead_ns < 1e5 for overhead_ns in run.overheads())
    assert len(run.overheads()) == len(workers) + (not is_decorated)


@pytest.mark.parametrize(
    ("only", "in_workers", "in_main"), [("workers", 160, False), ("main", 0, True)]
)
def test_only_the_processes_asked_for(
    tmp_path: Path, only: str, in_workers: int, in_main: bool
) -> None:
    run = time_lines_alone(tmp_path, SLEEPING.format(guard="", profile=""), "fork", only=only)
    assert sum(run.together().hits("Sleeping.__getitem__").values()) == in_workers
    assert bool(run.script.hits("main")) == in_main


KILLED = """
import os, signal, sys, time
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        time.sleep(0.01)
        if index >= 250:
            os.kill(os.getpid() if sys.argv[1] == "worker" else os.getppid(), signal.SIGKILL)
            os._exit(1)
        return index

for batch in DataLoader(Slow(), 4, num_workers=1):
    pass
"""


@pytest.mark.proves("Line times", "a worker killed by SIGKILL keeps all but its last second")
@pytest.mark.parametrize("whom", ["worker", "script"])
def test_a_killed_process_loses_about_a_second(tmp_path: Path, whom: str) -> None:
    status = 1 if whom == "worker" else -signal.SIGKILL
    run = time_lines_alone(tmp_path, KILLED, whom, status=status)
    # 250 of 10 ms and more are 2.5 s: what is left of them is not below 1 s.
    assert 100 < run.together().hits("Slow.__getitem__")[10] <= 251
    assert run.script.hits("<module>")


NAMED = """
import json
import other

def outer(n):
    def inner(i):
        return i + 1
    return [inner(i) for i in range(n)]

def not_this(n):
    return n

class Thing:
    def go_on(self):
        return not_this(1)

    def go_off(self):
        return 2

print(outer(3), Thing().go_on(), Thing().go_off(), other.imported(2), json.loads("[1]"))
"""

NAMES = {
    "script:Thing.go_*": {"Thing.go_on", "Thing.go_off"},
    "__main__:outer*": {"outer", "outer.<locals>.inner"},
    "other:imported": {"imported"},
    "json.decoder:JSONDecoder.raw_decode": {"JSONDecoder.raw_decode"},
    "*:not_this": {"not_this"},
    "nowhere:nothing": set(),
}


@pytest.mark.proves("Line times", "functions named by `-f`, those of libraries too")
def test_functions_by_name(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("def imported(n):\n    return n + 1\n")
    run = time_lines(tmp_path, NAMED, functions=list(NAMES))
    assert run.script.metadata.keys() == set().union(*NAMES.values())
    assert {name for name in run.script.rows if run.script.hits(name)} == run.script.metadata.keys()
    assert set(run.script.why().values()) == {"-f"}


PACKAGE = {
    "__init__.py": "",
    "engine.py": """\
def one_epoch(n):
    for batch in range(n):
        update(batch)

def update(batch):
    batch.bit_length()
""",
    "train.py": """\
from .engine import one_epoch
from trainer import engine
def main():
    for epoch in range(2):
        one_epoch(3)
        engine.update(1)
if __name__ == '__main__':
    main()
""",
}


def test_a_module_that_is_run_and_the_modules_that_it_imports(tmp_path: Path) -> None:
    (tmp_path / "trainer").mkdir()
    for name, text in PACKAGE.items():
        (tmp_path / "trainer" / name).write_text(text)
    run = time_lines(tmp_path, "", ("-m", "trainer.train"))
    assert run.script.why() == {
        "main": "training loop",
        "one_epoch": "called by main",
        "update": "called by one_epoch",
    }
    assert run.script.hits("one_epoch") == {2: 8, 3: 6}
    assert run.script.hits("update") == {6: 8}


TRACING = """
import sys

events = []

def tracer(frame, event, argument):
    if frame.f_code.co_filename != __file__:
        return None
    events.append((frame.f_code.co_name, event, frame.f_lineno))
    return tracer

def called(n):
    return n + 1

def main():
    for epoch in range(2):
        called(epoch)

main()
sys.settrace(sys.gettrace())
main()
sys.settrace(tracer)
main()
print(sys.gettrace() is tracer)
sys.settrace(None)
main()
sys.settrace(None)
print(sys.gettrace(), events)
"""


@pytest.mark.proves("Line times", "stand down where the script traces by itself")
def test_the_scripts_own_tracer_sees_what_it_sees_plainly(tmp_path: Path) -> None:
    run = time_lines(tmp_path, TRACING)
    assert run.script.hits("called") == {13: 4}
    [note] = run.notes(Topic.PROBE_UNAVAILABLE)
    assert note["probe"] == "lines"
    assert run.overheads() == []


def test_a_tracer_inside_a_decorated_function_is_left_alone(tmp_path: Path) -> None:
    inside = TRACING.replace("def main():", "@profile\ndef main():\n    sys.settrace(tracer)")
    run = time_lines(tmp_path, GUARD + inside)
    assert len(run.notes(Topic.PROBE_UNAVAILABLE)) == 1
    assert run.script.hits("main") == {}


COMPILED = (
    GUARD
    + """
import torch

graphs = []

def backend(module, examples):
    graphs.append(len(list(module.graph.nodes)))
    return module

def named(x):
    y = x * 2
    return y + 1

def named_scripted(x):
    return x + 1

@profile
def decorated(x):
    y = x * 2
    return y + 1

@profile
def decorated_scripted(x):
    return x + 1

compiled = [torch.compile(one, backend=backend) for one in (named, decorated)]
scripts = [torch.jit.script(one) for one in (named_scripted, decorated_scripted)]
def main():
    for epoch in range(3):
        print([one(torch.ones(3)) for one in compiled], [one(torch.ones(1)) for one in scripts])
main()
print(graphs)
"""
)


def test_compiled_functions_compile_to_the_same_and_are_called_so(tmp_path: Path) -> None:
    run = time_lines(tmp_path, COMPILED, functions=["script:named*", "script:main"])
    for name in ("named", "named_scripted", "decorated", "decorated_scripted"):
        assert run.script.metadata[name]["kind"] == "compiled"
        assert run.script.hits(name) == {}
    assert sum(run.script.hits("main").values()) == 7


def test_without_line_profiler_the_script_runs_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    (tmp_path / "place" / "line_profiler.py").write_text("raise ImportError('not here')")
    path = hooked_environment(tmp_path / "run")["PYTHONPATH"]
    env = {"PYTHONPATH": os.pathsep.join([path, str(tmp_path / "place")])}
    run = time_lines_alone(tmp_path, "@profile\ndef f(): return 1\nprint(f())\n", env=env)
    assert run.stdout == "1\n"
    [note] = run.notes(Topic.PROBE_UNAVAILABLE)
    assert note == {
        "probe": "lines",
        "reason": "your Python cannot import line_profiler: not here",
    }


def test_the_text_is_kept_as_it_ran(tmp_path: Path) -> None:
    script = "open(__file__, 'a').write('# changed')\nfor epoch in 'é\u2603':\n    pass\n"
    run = time_lines_alone(tmp_path, script)
    metadata = run.script.metadata["<module>"]
    saved = tmp_path / "run" / "sources" / metadata["source"]
    assert (metadata["file"], saved.read_text()) == (str(tmp_path / "script.py"), script)
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600
    assert stat.S_IMODE(saved.parent.stat().st_mode) == 0o700
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]
