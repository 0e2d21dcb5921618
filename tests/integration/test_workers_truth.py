"""Where the time of a fetch went, in workers and without: against what the script measured itself.

The scripts take their own measure inside the dataset and the collate function, from the first
sample to the batch, into a file that outlives the worker. Ours is compared with it, never with a
time that a machine ought to take.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from support.machine import attempts
from support.styles import profile, without_compiler

pytestmark = pytest.mark.truth

WITHIN: Final = 0.03
# Workers of a loader, by start method: what has to import torch again is as dear as a script.
WORKERS_OF: Final = {"fork": 2, "spawn": 1, "forkserver": 1}

# A fetch's truth: wall, dataset, collate, CPU of the thread, of the process, and for each fetch
# the least of wall and the process's CPU.
FIGURES: Final = ("wall", "dataset", "collate", "thread_cpu", "cpu", "running")
TRUTH: Final = struct.Struct(f"{len(FIGURES)}d")

PREAMBLE: Final = without_compiler("""
import json, mmap, os, signal, struct, sys, threading, time
from collections import Counter
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, default_collate

TRUTH = struct.Struct("6d")
BATCH = 16


def burn(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def cpu_clocks():
    return time.thread_time(), time.process_time()


class Notes:
    "What this process measured of its fetches, in a file that outlives it."

    def __init__(self, name):
        self.name, self.pid = name, None

    def begin(self):
        if self.pid != os.getpid():
            self.pid, self.fetches = os.getpid(), 0
            path = f"truth-{self.name}-{self.pid}"
            with open(path, "wb") as file:
                file.truncate(1 << 16)
            with open(path, "r+b") as file:
                self.told = mmap.mmap(file.fileno(), 0)
        # The wall clock outermost: asking for the others is where the scheduler steps in.
        self.began = time.perf_counter()
        self.cpu_began = cpu_clocks()

    def collating(self):
        self.collated = time.perf_counter()

    def end(self):
        thread_cpu, cpu = (now - then for now, then in zip(cpu_clocks(), self.cpu_began))
        wall = time.perf_counter() - self.began
        dataset = self.collated - self.began
        figures = wall, dataset, wall - dataset, thread_cpu, cpu, min(wall, cpu)
        TRUTH.pack_into(self.told, TRUTH.size * self.fetches, *figures)
        self.fetches += 1

    def __getstate__(self):
        return self.name

    def __setstate__(self, name):
        self.__init__(name)


class Planted(Dataset):
    "Notes when a batch was begun; what a sample costs is planted by those below."

    def __init__(self, notes, batches, spoil=None):
        self.notes, self.samples, self.spoil = notes, BATCH * batches, spoil

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        if index % BATCH == 0:
            self.notes.begin()
        if self.spoil and index >= self.spoil:
            self.spoiled()
        self.cost(index)
        return torch.full((8,), float(index))

    def cost(self, index):
        time.sleep(0.005)
        burn(0.003)


class Collate:
    def __init__(self, notes):
        self.notes = notes

    def __call__(self, samples):
        self.notes.collating()
        self.cost()
        batch = self.batch_of(samples)
        self.notes.end()
        return batch

    def cost(self):
        burn(0.01)

    def batch_of(self, samples):
        return default_collate(samples)


class Cheap(Collate):
    def cost(self):
        pass


class Copied(Collate):
    "In no shared memory, which cannot be opened any more when the worker has died."

    def batch_of(self, samples):
        return super().batch_of(samples).numpy()


def noted(dataset, collate=Cheap):
    return {"dataset": dataset, "batch_size": BATCH, "collate_fn": collate(dataset.notes)}


model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
said = Counter()


def train(batch):
    optimizer.zero_grad()
    model(torch.as_tensor(batch)).sum().backward()
    optimizer.step()


def say():
    if __name__ == "__main__":
        print(json.dumps(said))


torch.set_num_threads(1)
""")


def truth_of(directory: Path, name: str) -> dict[int, list[dict[str, float]]]:
    """Returns what the workers of a loader measured: pid to one entry per finished fetch."""
    fetches = {}
    for path in directory.glob(f"truth-{name}-*"):
        rows = (dict(zip(FIGURES, row, strict=True)) for row in TRUTH.iter_unpack(_whole(path)))
        fetches[int(path.name.rsplit("-", 1)[1])] = [row for row in rows if row["wall"]]
    return fetches


def _whole(path: Path) -> bytes:
    content = path.read_bytes()
    return content[: len(content) // TRUTH.size * TRUTH.size]


def total(truth: Mapping[int, list[dict[str, float]]], figure: str) -> float:
    return sum(row[figure] for rows in truth.values() for row in rows)


def loader_at(summary: Mapping[str, Any], script: str, line: str) -> dict[str, Any]:
    """Returns the loader that the line holding a text builds."""
    number = next(n for n, text in enumerate(script.splitlines(), 1) if line in text)
    (loader,) = (x for x in summary["loaders"] if x["site"] == f"script.py:{number}")
    return loader


class Run:
    """A script under trainprof.

    Attributes:
        summary: Of the run.
        said: The last line of the script's stdout.
        directory: Where the script ran.
    """

    def __init__(self, directory: Path, script: str, **options: Any) -> None:
        directory.mkdir()
        self.script, self.directory = f"{PREAMBLE}{script}\nsay()\n", directory
        self.summary, self.said = profile(directory, self.script, **options)
        assert self.summary["faults"] == []

    @property
    def loader(self) -> dict[str, Any]:
        (only,) = self.summary["loaders"]
        return only

    @property
    def fetch(self) -> dict[str, Any]:
        return self.loader["fetch"]

    def truth(self, figure: str, name: str = "all") -> float:
        return total(truth_of(self.directory, name), figure)


def measured(
    tmp_path: Path,
    script: str,
    pairs: Callable[[Run], Mapping[str, tuple[float, float]]],
    **more: Any,
) -> Run:
    """Runs the script until each pair of (ours, truth) is within 3 %.

    The scheduler may take the processor away between the script's clock and ours.
    """
    for attempt in attempts():
        run = Run(tmp_path / str(attempt), script, **more)
        missed = {name: pair for name, pair in pairs(run).items() if not is_near(*pair)}
        if not missed:
            return run
    raise AssertionError(missed, run.loader["fetch"] if len(run.summary["loaders"]) == 1 else None)


def of_running(run: Run) -> tuple[float, float]:
    """Returns the seconds that fetches are said to have run, and the truth.

    That lies between two figures, of which the nearest is taken. Threads that wait for the
    interpreter wake up all the time, and what they take while the one that fetches is off its core
    is running, or not, by when that was.
    """
    ours = run.fetch["running_s"]
    return ours, min(max(ours, run.truth("thread_cpu")), run.truth("running"))


def of_waiting(run: Run, ours: float) -> tuple[float, float]:
    """Returns the same of what is left of the fetches' time."""
    wall = run.truth("wall")
    return ours, min(max(ours, wall - run.truth("running")), wall - run.truth("thread_cpu"))


def is_near(ours: float, truth: float) -> bool:
    return ours == pytest.approx(truth, rel=WITHIN)


def assert_parts_are_whole(fetch: Mapping[str, Any]) -> None:
    """The five seconds partition the fetches' wall time; None of them is what is not told."""
    for row in (fetch, *fetch["per_worker"]):
        names = ("running_s", "runnable_s", "throttled_s", "reading_s", "asleep_s")
        wall_s = row["seconds"] if "seconds" in row else row["dataset_s"] + row["collate_s"]
        assert sum(row[name] or 0.0 for name in names) == pytest.approx(wall_s)


# Every start method

WORKERS = """
class Frail(Planted):
    def spoiled(self):
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    options = {{"num_workers": {workers}, "multiprocessing_context": "{method}"}}
    planted = DataLoader(**noted(Planted(Notes("planted"), 12), Collate), **options)
    frail = DataLoader(**noted(Frail(Notes("frail"), 8, spoil=6.5 * BATCH), Copied), **options)
    for batch in planted:
        train(batch)
    try:
        for batch in frail:
            train(batch)
    except RuntimeError as error:
        said["killed"] = "is killed by signal" in str(error) or "exited unexpectedly" in str(error)
"""


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(m, marks=pytest.mark.proves("Inside workers", f"fetches, started by {m}"))
        for m in WORKERS_OF
    ],
)
def test_what_workers_fetched_by_every_start_method(method: str, tmp_path: Path) -> None:
    def pairs(run: Run) -> dict[str, tuple[float, float]]:
        compared = {}
        for name in ("planted", "frail"):
            fetch = loader_at(run.summary, run.script, f"{name} = DataLoader")["fetch"]
            compared |= {
                f"{name} wall": (fetch["wall_s"]["mean"] * fetch["n"], run.truth("wall", name)),
                f"{name} dataset": (fetch["dataset_s"], run.truth("dataset", name)),
                f"{name} collate": (fetch["collate_s"], run.truth("collate", name)),
                f"{name} CPU": (fetch["cpu_s"], run.truth("cpu", name)),
            }
        return compared

    script = WORKERS.format(method=method, workers=WORKERS_OF[method])
    run = measured(tmp_path, script, pairs)
    assert run.said["killed"]
    for name in ("planted", "frail"):
        loader = loader_at(run.summary, run.script, f"{name} = DataLoader")
        truth = truth_of(run.directory, name)
        ours = {row["pid"]: row["n"] for row in loader["fetch"]["per_worker"]}
        # A fetch that ended in the moment in which torch ended the others is in both or in one.
        assert ours.keys() == {pid for pid, rows in truth.items() if rows}
        assert_parts_are_whole(loader["fetch"])
        if name == "planted":
            assert ours == {pid: len(rows) for pid, rows in truth.items()}
            assert sum(ours.values()) == 12
            assert loader["lost_workers"] == []
        else:
            dead = {lost["pid"] for lost in loader["lost_workers"]}
            assert dead
            assert {lost["signal"] for lost in loader["lost_workers"]} == {9}
            assert {pid: ours[pid] for pid in dead} == {pid: len(truth[pid]) for pid in dead}


# Each cause in its own column

FETCHING = """
loader = DataLoader(**noted({dataset}(Notes("all"), {batches})), num_workers=1)
for batch in loader:
    train(batch)
"""

SLEEP = """
class Asleep(Planted):
    def cost(self, index):
        time.sleep(0.004)
"""

BURN = """
class Busy(Planted):
    def cost(self, index):
        burn(0.004)
"""

# The fetch's own thread only waits for those that decode.
DECODE = """
import zlib
from multiprocessing.pool import ThreadPool

class Decoded(Planted):
    pool, pieces = None, [os.urandom(1 << 19)] * 2
    def cost(self, index):
        self.pool = self.pool or ThreadPool(2)
        self.pool.map(zlib.compress, self.pieces)
"""

# On one core.
CROWD = """
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

class Busy(Planted):
    def cost(self, index):
        burn(0.004)

loader = DataLoader(**noted(Busy(Notes("all"), 12)), num_workers=3)
for batch in loader:
    train(batch)
"""


def cause(text: str) -> pytest.MarkDecorator:
    return pytest.mark.proves("Inside workers", text)


@cause("a sleep is asleep")
def test_a_sleep_is_asleep(tmp_path: Path) -> None:
    def pairs(run: Run) -> dict[str, tuple[float, float]]:
        return {"asleep": of_waiting(run, run.fetch["asleep_s"] + run.fetch["runnable_s"])}

    run = measured(tmp_path, SLEEP + FETCHING.format(dataset="Asleep", batches=5), pairs)
    assert run.fetch["asleep_s"] > 0.5 * run.truth("wall")
    assert run.fetch["runnable_s"] < run.fetch["asleep_s"]
    assert run.fetch["throttled_s"] == 0
    assert_parts_are_whole(run.fetch)


@cause("a CPU burn is running")
def test_a_burn_is_running(tmp_path: Path) -> None:
    def pairs(run: Run) -> dict[str, tuple[float, float]]:
        return {"running": of_running(run), "CPU": (run.fetch["cpu_s"], run.truth("cpu"))}

    run = measured(tmp_path, BURN + FETCHING.format(dataset="Busy", batches=5), pairs)
    fetch = run.fetch
    assert fetch["asleep_s"] < WITHIN * (fetch["running_s"] + fetch["runnable_s"])
    assert_parts_are_whole(fetch)


@cause("decoding by several threads is running")
def test_threads_that_decode_are_running(tmp_path: Path) -> None:
    def pairs(run: Run) -> dict[str, tuple[float, float]]:
        return {"CPU": (run.fetch["cpu_s"], run.truth("cpu"))}

    run = measured(tmp_path, DECODE + FETCHING.format(dataset="Decoded", batches=4), pairs)
    fetch, worked_s = run.fetch, run.truth("running")
    assert run.truth("thread_cpu") < 0.2 * worked_s
    # What the thread itself waited for a core is no running.
    assert worked_s - fetch["runnable_s"] <= fetch["running_s"] * (1 + WITHIN)
    assert fetch["running_s"] <= worked_s * (1 + WITHIN)
    if run.truth("cpu") > run.truth("wall"):
        assert fetch["cpu_s"] > fetch["running_s"]
    assert_parts_are_whole(fetch)


@cause("more busy workers than cores are runnable")
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs CPU affinity")
def test_busy_workers_on_one_core_are_runnable(tmp_path: Path) -> None:
    def pairs(run: Run) -> dict[str, tuple[float, float]]:
        return {
            "runnable": of_waiting(run, run.fetch["runnable_s"]),
            "running": of_running(run),
        }

    run = measured(tmp_path, CROWD, pairs)
    assert run.fetch["runnable_s"] > 0.4 * run.truth("wall")
    assert run.fetch["asleep_s"] < WITHIN * run.truth("wall")
    assert_parts_are_whole(run.fetch)


# A quota

THROTTLED = """
class Busy(Planted):
    def cost(self, index):
        burn(0.004)

def set_quota(share):
    with open(os.environ["QUOTA_FILE"], "w") as file:
        file.write(os.environ["QUOTA"] if share else os.environ["NO_QUOTA"])

loader = DataLoader(**noted(Busy(Notes("all"), 10)), num_workers=1)
batches = iter(loader)
train(next(batches))
set_quota(True)
for batch in batches:
    train(batch)
set_quota(False)
"""

PERIOD_US: Final = 100_000


class CpuGroup:
    """A control group with a quota of 4 cores: none that could be felt, but one that we know of."""

    def __init__(self) -> None:
        first = Path("/sys/fs/cgroup/cpu")
        self.is_first = first.is_dir()
        root = first if self.is_first else Path("/sys/fs/cgroup")
        self.path = root / f"trainprof-test-{os.getpid()}"
        self.path.mkdir()
        try:
            self.file.write_text(self.quota(4.0))
        except OSError:
            self.path.rmdir()
            raise

    @property
    def file(self) -> Path:
        return self.path / ("cpu.cfs_quota_us" if self.is_first else "cpu.max")

    def quota(self, cores: float) -> str:
        quota = str(round(cores * PERIOD_US))
        return quota if self.is_first else f"{quota} {PERIOD_US}"


@pytest.fixture
def cpu_group() -> Iterator[CpuGroup]:
    try:
        group = CpuGroup()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error.strerror}")
    yield group
    group.path.rmdir()


@cause("a CPU quota is throttled")
def test_a_quota_is_throttled(tmp_path: Path, cpu_group: CpuGroup) -> None:
    def pairs(run: Run) -> dict[str, tuple[float, float]]:
        return {"waited": of_waiting(run, run.fetch["throttled_s"] + run.fetch["runnable_s"])}

    run = measured(
        tmp_path,
        THROTTLED,
        pairs,
        env={
            "QUOTA_FILE": str(cpu_group.file),
            "QUOTA": cpu_group.quota(0.2),
            "NO_QUOTA": cpu_group.quota(4.0),
        },
        enter=cpu_group.path / "cgroup.procs",
    )
    assert run.fetch["throttled_s"] > 0.3 * run.truth("wall")
    assert_parts_are_whole(run.fetch)


# Reading

READ = """
PIECE = 1 << 16
PATH = os.path.abspath("samples.bin")

class Stored(Planted):
    def cost(self, index):
        file = os.open(PATH, os.O_RDONLY | os.O_DIRECT)
        block = mmap.mmap(-1, PIECE)  # at the start of a page, as the kernel asks
        said["read"] += os.preadv(file, [block], index * PIECE)
        os.close(file)
        time.sleep(0.002)  # of short fetches only some are measured

SAMPLES = 6 * BATCH
with open(PATH, "wb") as file:
    file.write(os.urandom(PIECE * SAMPLES))
    os.fsync(file.fileno())
for batch in DataLoader(**noted(Stored(Notes("here"), 6))):
    train(batch)
for batch in DataLoader(**noted(Stored(Notes("worker"), 6)), num_workers=1):
    train(batch)
said["planted"] = PIECE * SAMPLES
"""


def _reads_directly(directory: Path) -> bool:
    path = directory / "probe"
    path.write_bytes(bytes(1 << 16))
    try:
        os.close(os.open(path, os.O_RDONLY | getattr(os, "O_DIRECT", 0)))
    except OSError:
        return False
    return hasattr(os, "O_DIRECT")


@cause("bytes read from disk, and no storage without them")
def test_what_is_read_from_disk(tmp_path: Path) -> None:
    if not _reads_directly(tmp_path):
        pytest.skip("files here are not on a disk")

    def fetch(run: Run, where: str) -> dict[str, Any]:
        return loader_at(run.summary, run.script, f'Notes("{where}")')["fetch"]

    def pairs(run: Run) -> dict[str, tuple[float, float]]:
        planted = run.said["planted"]
        return {where: (fetch(run, where)["read_bytes"], planted) for where in ("here", "worker")}

    run = measured(tmp_path, READ, pairs)
    for where in ("here", "worker"):
        reading_s = fetch(run, where)["reading_s"]
        assert reading_s is None or 0 < reading_s < run.truth("wall", where)
        assert_parts_are_whole(fetch(run, where))


LARGE_READS = """
PIECE, PIECES = 4 << 20, 32
PATH = os.path.abspath("samples.bin")

class Stored(Planted):
    block = mmap.mmap(-1, PIECE)
    def cost(self, index):
        file = os.open(PATH, os.O_RDONLY | os.O_DIRECT)
        began, used = time.perf_counter(), time.thread_time()
        os.preadv(file, [self.block], index % PIECES * PIECE)
        waited = time.perf_counter() - began - (time.thread_time() - used)
        os.close(file)
        with open(f"waited-{os.getpid()}.txt", "a") as notes:
            print(waited, file=notes)

with open(PATH, "wb") as file:
    for piece in range(PIECES):
        file.write(os.urandom(PIECE))
    os.fsync(file.fileno())
began = time.perf_counter()
for piece in range(PIECES):
    Stored(Notes("timed"), 1).cost(piece)
os.remove(f"waited-{os.getpid()}.txt")
# For some seconds, however fast the disk is.
batches = round(3 * PIECES / (time.perf_counter() - began) / BATCH)
for batch in DataLoader(**noted(Stored(Notes("read"), max(batches, 2))), num_workers={workers}):
    train(batch)
"""
# Looks at a process are some hundred.
READING_WITHIN = 0.15


@pytest.mark.parametrize("workers", [0, 2])
@cause("waiting for a disk, where the kernel keeps no account of it")
def test_what_waits_for_a_disk(tmp_path: Path, workers: int) -> None:
    if not _reads_directly(tmp_path):
        pytest.skip("files here are not on a disk")
    accounting = Path("/proc/sys/kernel/task_delayacct")
    if accounting.exists() and accounting.read_text().strip() == "1":
        pytest.skip("the kernel keeps account")
    for attempt in attempts():
        run = Run(tmp_path / str(attempt), LARGE_READS.replace("{workers}", str(workers)))
        fetch = loader_at(run.summary, run.script, 'Notes("read")')["fetch"]
        notes = [path.read_text().split() for path in run.directory.glob("waited-*.txt")]
        truth = sum(float(waited) for lines in notes for waited in lines)
        assert_parts_are_whole(fetch)
        if fetch["reading_s"] == pytest.approx(truth, rel=READING_WITHIN):
            return
    raise AssertionError((fetch["reading_s"], truth))


# Controls

# What the loop waits for its batches but the first, by its own clock.
TIMED_LOOP = """
def timed_next(batches):
    iterator = iter(batches)
    yield next(iterator)
    while True:
        began = time.perf_counter()
        batch = next(iterator, None)
        if batch is None:
            return
        said["waited"] += time.perf_counter() - began
        yield batch
"""

FAST = (
    TIMED_LOOP
    + """
class Quick(Planted):
    def cost(self, index):
        pass

for batch in timed_next(DataLoader(**noted(Quick(Notes("all"), 40)), num_workers=1)):
    train(batch)
    time.sleep(0.05)
    said["computed"] += 0.05
"""
)


@cause("workers that are fast enough")
def test_workers_that_are_fast_enough_have_the_batch_ready(tmp_path: Path) -> None:
    def pairs(run: Run) -> dict[str, tuple[float, float]]:
        return {"ready": (run.loader["ready_share"], 1.0)}

    run = measured(tmp_path, FAST, pairs)
    assert run.loader["blocked_s"] < WITHIN * run.said["computed"]
    (worker,) = run.fetch["per_worker"]
    assert worker["busy_share"] < 0.2


# The worker has made its next batch, and its other thread pickled it, while the loop computes.
LARGE = (
    TIMED_LOOP
    + """
class Quick(Planted):
    def cost(self, index):
        pass

class Many(Cheap):
    parts = {str(number): str(-number) for number in range(60_000)}
    def __call__(self, samples):
        return super().__call__(samples), self.parts

for batch, parts in timed_next(DataLoader(**noted(Quick(Notes("all"), 12), Many), num_workers=1)):
    train(batch)
    time.sleep(0.2)
"""
)


@cause("a batch that is ready but slow to unpickle")
def test_a_batch_that_is_slow_to_unpickle_is_received_not_waited_for(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", LARGE)
    loader = run.loader
    received_s = run.said["waited"] - loader["blocked_s"]
    assert loader["blocked_s"] < 0.2 * loader["receive_s"]
    assert loader["ready_share"] > 0.8
    # The rest is the sending of the next indices.
    assert 0.8 * received_s < loader["receive_s"] < received_s


# Each writes down what its samples took.
SLOW_SAMPLE = """
class OneSlow(Planted):
    def cost(self, index):
        began = time.perf_counter()
        time.sleep(0.06 if index % 50 == 7 else 0.001)
        with open(f"samples-{self.notes.name}.txt", "a") as file:
            print(index, time.perf_counter() - began, file=file)

class Stream(IterableDataset):
    def __init__(self, dataset):
        self.dataset = dataset
    def __iter__(self):
        return (self.dataset[index] for index in range(160))

class Lists(OneSlow):
    def __getitems__(self, indices):
        assert type(indices) is list
        return [self[index] for index in indices]

class MadeUp(OneSlow):
    def __getattr__(self, name):
        if name != "__getitems__":
            raise AttributeError(name)
        def take(indices):
            assert type(indices) is list
            return [self[index] for index in indices]
        return take

def made(name, kind=OneSlow):
    return kind(Notes(name), 10)

def collate(samples):
    return default_collate(samples)

backwards, forwards = list(reversed(range(160))), list(range(160))
"""

SLOW_SAMPLES = {
    "workers": "DataLoader(**noted(made({name})), num_workers=2)",
    "no workers": "DataLoader(**noted(made({name})))",
    "a subset": "DataLoader(Subset(made({name}), backwards), BATCH, collate_fn=collate)",
    "a subset of a subset": (
        "DataLoader(Subset(Subset(made({name}), forwards), forwards), BATCH, collate_fn=collate)"
    ),
    "an iterable dataset": "DataLoader(Stream(made({name})), BATCH)",
    "a dataset that takes the list": "DataLoader(**noted(made({name}, Lists)))",
    "a dataset that makes up attributes": "DataLoader(**noted(made({name}, MadeUp)))",
}

# What index each slow sample has in the dataset that the loader knows; {} where it is not known.
SLOW_INDEX: Mapping[str, Mapping[int, int]] = {
    **{name: {} for name in SLOW_SAMPLES},
    "workers": {7: 7, 57: 57, 107: 107, 157: 157},
    "no workers": {7: 7, 57: 57, 107: 107, 157: 157},
    "a subset": {152: 7, 102: 57, 52: 107, 2: 157},
}


@cause("slow samples: workers")
@cause("slow samples: no workers")
@cause("slow samples: a subset")
def test_slow_samples_are_named_by_their_indices(tmp_path: Path) -> None:
    script = SLOW_SAMPLE
    for style, loader in SLOW_SAMPLES.items():
        line = loader.format(name=repr(style))
        script += f"for batch in {line}:\n    train(batch)\n"

    def slow_samples(run: Run, style: str) -> list[dict[str, Any]]:
        # Of several loaders, and the first line in the script with this text is that of the loader.
        return loader_at(run.summary, run.script, repr(style))["fetch"]["slow_samples"]

    def pairs(run: Run) -> dict[str, tuple[float, float]]:
        compared = {}
        for style, expected in SLOW_INDEX.items():
            seen = slow_samples(run, style)[: len(expected)]
            # Another one may have been held up for longer than a slow one takes.
            ours = dict.fromkeys(expected, 0.0) | {x["index"]: x["seconds"] for x in seen}
            lines = (run.directory / f"samples-{style}.txt").read_text().splitlines()
            truth = {int(index): float(seconds) for index, seconds in map(str.split, lines)}
            compared |= {
                f"{style} {mine}": (ours[mine], truth[its]) for mine, its in expected.items()
            }
        return compared

    run = measured(tmp_path, script, pairs)
    for style, expected in SLOW_INDEX.items():
        if not expected:
            assert slow_samples(run, style) == [], style


# Workers that die

DEATHS = {
    "SIGKILL": ("os.kill(os.getpid(), signal.SIGKILL)", {"signal": 9, "status": None}),
    "SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM)", {"signal": 15, "status": None}),
    "sys.exit": ("sys.exit(3)", {"signal": None, "status": 3}),
    "sys.exit(0)": ("sys.exit(0)", {"signal": None, "status": 0}),
    "os._exit": ("os._exit(0)", {"signal": None, "status": 0}),
    "an exception": ("raise ValueError(index)", None),
}

DEADLY = """
class Deadly(Planted):
    def cost(self, index):
        super().cost(index)
        if index == 3 * BATCH:
            self.die(index)
"""

# Torch looks whether workers with status 0 are there after five seconds, or the loader's timeout.
ONE_DEATH = """
class Dies(Deadly):
    def die(self, index):
        {action}

try:
    for batch in DataLoader(**noted(Dies(Notes({name}), 5), Copied), num_workers=2{more}):
        train(batch)
except (RuntimeError, ValueError) as error:
    said[{name}] = type(error).__name__
"""
IN_PEACE = ("sys.exit(0)", "os._exit")

# Worker 0 has no sample left, and has gone in peace, when worker 1 fails.
UNEVEN = """
class Stream(IterableDataset):
    def __iter__(self):
        if torch.utils.data.get_worker_info().id:
            for index in range(4 * BATCH):
                time.sleep(0.002)
                yield torch.full((8,), float(index))
            raise ValueError("no more")

try:
    for batch in DataLoader(Stream(), BATCH, num_workers=2):
        train(batch)
except ValueError as error:
    said["uneven"] = type(error).__name__
"""

# The loop is computing; torch's handler of SIGCHLD raises there.
KILLED_MEANWHILE = """
loader = DataLoader(**noted(Planted(Notes("meanwhile"), 4)), num_workers=2)
batches = iter(loader)
train(next(batches))
try:
    os.kill(batches._workers[1].pid, signal.SIGKILL)
    while True:
        burn(0.001)
except RuntimeError as error:
    said["killed"] = "is killed by signal" in str(error)
"""


def test_workers_that_die_are_told_and_those_with_nothing_left_to_do_are_not(
    tmp_path: Path,
) -> None:
    script = DEADLY
    for death, (action, _) in DEATHS.items():
        more = ", timeout=2" if death in IN_PEACE else ""
        script += ONE_DEATH.format(action=action, name=repr(death), more=more)
    run = Run(tmp_path / "run", script + UNEVEN + KILLED_MEANWHILE)

    def lost_at(line: str) -> list[tuple[Any, ...]]:
        lost = loader_at(run.summary, run.script, line)["lost_workers"]
        return [(worker["worker"], worker["signal"], worker["status"]) for worker in lost]

    assert run.said["uneven"] == "ValueError"
    assert lost_at("DataLoader(Stream()") == []
    assert run.said["killed"]
    assert lost_at('Notes("meanwhile")') == [(1, 9, None)]
    for death, (_, end) in DEATHS.items():
        loader = loader_at(run.summary, run.script, f"Dies(Notes({death!r})")
        assert run.said[death] == ("ValueError" if end is None else "RuntimeError"), death
        truth = truth_of(run.directory, death)
        assert {row["pid"] for row in loader["fetch"]["per_worker"]} == truth.keys(), death
        assert_parts_are_whole(loader["fetch"])
        lost = [] if end is None else [(1, end["signal"], end["status"])]
        assert lost_at(f"Dies(Notes({death!r})") == lost, death


STATEFUL = """
from torchdata.stateful_dataloader import StatefulDataLoader

def passed_over(loader, batches):
    for number, batch in enumerate(loader, 1):
        train(batch)
        if number == batches:
            return

torch.manual_seed(0)
loader = StatefulDataLoader(**noted(Planted(Notes("all"), 6), Collate), num_workers=2)
passed_over(loader, 3)
loader.load_state_dict(loader.state_dict())
passed_over(loader, 3)
"""


@pytest.mark.frameworks("torchdata")
@pytest.mark.proves("Inside workers", "torchdata's StatefulDataLoader, resumed in mid-epoch")
def test_what_workers_of_a_stateful_loader_fetched(tmp_path: Path) -> None:
    def pairs(run: Run) -> dict[str, tuple[float, float]]:
        return {
            "wall": (run.fetch["wall_s"]["mean"] * run.fetch["n"], run.truth("wall")),
            "CPU": (run.fetch["cpu_s"], run.truth("cpu")),
        }

    run = measured(tmp_path, STATEFUL, pairs)
    assert run.loader["blocked_s"] is not None
    assert run.loader["lost_workers"] == []
