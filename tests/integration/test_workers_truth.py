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
from support.control_groups import control_group
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
                self.file = mmap.mmap(file.fileno(), 0)
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
        TRUTH.pack_into(self.file, TRUTH.size * self.fetches, *figures)
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

class Busy(Planted):
    def cost(self, index):
        burn(0.004)

class Quick(Planted):
    def cost(self, index):
        pass

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


class Run:
    """A script under trainprof: its summary, the last line of its stdout, and where it ran."""

    def __init__(self, directory: Path, script: str, **options: Any) -> None:
        directory.mkdir()
        self.script, self.directory = f"{PREAMBLE}{script}\nsay()\n", directory
        self.summary, self.said = profile(directory, self.script, **options)
        assert self.summary["faults"] == []

    def loader_at(self, text: str) -> dict[str, Any]:
        """Returns the loader that the line holding a text builds."""
        number = next(n for n, line in enumerate(self.script.splitlines(), 1) if text in line)
        (loader,) = (x for x in self.summary["loaders"] if x["site"] == f"script.py:{number}")
        return loader

    def loader(self, name: str = "all") -> dict[str, Any]:
        return self.loader_at(f'Notes("{name}")')

    def fetch(self, name: str = "all") -> dict[str, Any]:
        return self.loader(name)["fetch"]

    def workers(self, name: str = "all") -> dict[int, list[dict[str, float]]]:
        """Returns what the workers of a loader measured: pid to one entry per finished fetch."""
        fetches = {}
        for path in self.directory.glob(f"truth-{name}-*"):
            content = path.read_bytes()
            whole = content[: len(content) // TRUTH.size * TRUTH.size]
            rows = (dict(zip(FIGURES, row, strict=True)) for row in TRUTH.iter_unpack(whole))
            fetches[int(path.name.rsplit("-", 1)[1])] = [row for row in rows if row["wall"]]
        return fetches

    def truth(self, figure: str, name: str = "all") -> float:
        return sum(row[figure] for rows in self.workers(name).values() for row in rows)


Pairs = dict[str, tuple[float, float]]


def measured(tmp_path: Path, script: str, pairs: Callable[[Run], Pairs], **more: Any) -> Run:
    """Runs the script until each pair of (ours, truth) is within 3 %.

    The scheduler may take the processor away between the script's clock and ours.
    """
    for attempt in attempts():
        run = Run(tmp_path / str(attempt), script, **more)
        missed = {name: pair for name, pair in pairs(run).items() if not is_near(*pair)}
        if not missed:
            return run
    raise AssertionError(missed)


def running(run: Run, name: str = "all") -> tuple[float, float]:
    """Returns the seconds that fetches are said to have run, and the truth.

    That lies between two figures, of which the nearest is taken. Threads that wait for the
    interpreter wake up all the time, and what they take while the one that fetches is off its core
    is running, or not, by when that was.
    """
    ours = run.fetch(name)["running_s"]
    return ours, min(max(ours, run.truth("thread_cpu", name)), run.truth("running", name))


def waiting(run: Run, *parts: str, name: str = "all") -> tuple[float, float]:
    """Returns the same of what is left of the fetches' time; `parts` is what that is."""
    ours, wall = sum(run.fetch(name)[part] for part in parts), run.truth("wall", name)
    least, most = wall - run.truth("running", name), wall - run.truth("thread_cpu", name)
    return ours, min(max(ours, least), most)


def cpu(run: Run, name: str = "all") -> tuple[float, float]:
    return run.fetch(name)["cpu_s"], run.truth("cpu", name)


def wall(run: Run, name: str = "all") -> tuple[float, float]:
    fetch = run.fetch(name)
    return fetch["wall_s"]["mean"] * fetch["n"], run.truth("wall", name)


def is_near(ours: float, truth: float) -> bool:
    return ours == pytest.approx(truth, rel=WITHIN)


def assert_parts_are_whole(fetch: Mapping[str, Any]) -> None:
    """The five seconds partition the fetches' wall time; None of them is what is not told."""
    for row in (fetch, *fetch["per_worker"]):
        names = ("running_s", "runnable_s", "throttled_s", "reading_s", "asleep_s")
        wall_s = row["seconds"] if "seconds" in row else row["dataset_s"] + row["collate_s"]
        assert sum(row[name] or 0.0 for name in names) == pytest.approx(wall_s)


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


def cause(text: str) -> pytest.MarkDecorator:
    return pytest.mark.proves("Inside workers", text)


@pytest.mark.parametrize(
    "method", [pytest.param(m, marks=cause(f"fetches, started by {m}")) for m in WORKERS_OF]
)
def test_what_workers_fetched_by_every_start_method(method: str, tmp_path: Path) -> None:
    def pairs(run: Run) -> Pairs:
        return {
            pair: value
            for name in ("planted", "frail")
            for pair, value in {
                f"{name} wall": wall(run, name),
                f"{name} dataset": (run.fetch(name)["dataset_s"], run.truth("dataset", name)),
                f"{name} collate": (run.fetch(name)["collate_s"], run.truth("collate", name)),
                f"{name} CPU": cpu(run, name),
            }.items()
        }

    script = WORKERS.format(method=method, workers=WORKERS_OF[method])
    run = measured(tmp_path, script, pairs)
    assert run.said["killed"]
    for name in ("planted", "frail"):
        loader, truth = run.loader(name), run.workers(name)
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


# Each cause in its own column. The fetch's own thread only waits for those that decode.
CAUSES = """
import zlib
from multiprocessing.pool import ThreadPool

class Asleep(Planted):
    def cost(self, index):
        time.sleep(0.004)

class Decoded(Planted):
    pool, pieces = None, [os.urandom(1 << 19)] * 2
    def cost(self, index):
        self.pool = self.pool or ThreadPool(2)
        self.pool.map(zlib.compress, self.pieces)

for batch in DataLoader(**noted(Asleep(Notes("asleep"), 5)), num_workers=1):
    train(batch)
for batch in DataLoader(**noted(Busy(Notes("busy"), 5)), num_workers=1):
    train(batch)
for batch in DataLoader(**noted(Decoded(Notes("decoded"), 4)), num_workers=1):
    train(batch)
"""


@cause("a sleep is asleep")
@cause("a CPU burn is running")
@cause("decoding by several threads is running")
def test_each_cause_is_in_its_own_column(tmp_path: Path) -> None:
    def pairs(run: Run) -> Pairs:
        busy = run.fetch("busy")
        return {
            "asleep": waiting(run, "asleep_s", "runnable_s", name="asleep"),
            "busy": running(run, "busy"),
            "busy, not asleep": (busy["running_s"] + busy["runnable_s"], run.truth("wall", "busy")),
            "busy CPU": cpu(run, "busy"),
            "decoded CPU": cpu(run, "decoded"),
        }

    run = measured(tmp_path, CAUSES, pairs)
    asleep, busy, decoded = map(run.fetch, ("asleep", "busy", "decoded"))
    for fetch in (asleep, busy, decoded):
        assert_parts_are_whole(fetch)
    assert asleep["asleep_s"] > 0.5 * run.truth("wall", "asleep")
    assert asleep["runnable_s"] < asleep["asleep_s"]
    assert asleep["throttled_s"] == 0
    worked_s = run.truth("running", "decoded")
    assert run.truth("thread_cpu", "decoded") < 0.2 * worked_s
    # What the thread itself waited for a core is no running.
    assert worked_s - decoded["runnable_s"] <= decoded["running_s"] * (1 + WITHIN)
    assert decoded["running_s"] <= worked_s * (1 + WITHIN)
    if run.truth("cpu", "decoded") > run.truth("wall", "decoded"):
        assert decoded["cpu_s"] > decoded["running_s"]


CROWD = """
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
for batch in DataLoader(**noted(Busy(Notes("all"), 12)), num_workers=3):
    train(batch)
"""


@cause("more busy workers than cores are runnable")
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs CPU affinity")
def test_busy_workers_on_one_core_are_runnable(tmp_path: Path) -> None:
    def pairs(run: Run) -> Pairs:
        return {"runnable": waiting(run, "runnable_s"), "running": running(run)}

    run = measured(tmp_path, CROWD, pairs)
    assert run.fetch()["runnable_s"] > 0.4 * run.truth("wall")
    assert run.fetch()["asleep_s"] < WITHIN * run.truth("wall")
    assert_parts_are_whole(run.fetch())


# A quota

THROTTLED = """
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
NO_QUOTA: Final = round(
    4.0 * PERIOD_US
)  # of 4 cores: none that could be felt, but one that is known


@pytest.fixture
def cpu_quota() -> Iterator[Path]:
    """The file of a control group's quota."""
    files = ("cpu.cfs_quota_us", f"{NO_QUOTA}"), ("cpu.max", f"{NO_QUOTA} {PERIOD_US}")
    with control_group("cpu", *files) as file:
        yield file


@cause("a CPU quota is throttled")
def test_a_quota_is_throttled(tmp_path: Path, cpu_quota: Path) -> None:
    period = f" {PERIOD_US}" if cpu_quota.name == "cpu.max" else ""
    env = {
        "QUOTA_FILE": str(cpu_quota),
        "QUOTA": f"{round(0.2 * PERIOD_US)}{period}",
        "NO_QUOTA": f"{NO_QUOTA}{period}",
    }
    enter = cpu_quota.parent / "cgroup.procs"

    def pairs(run: Run) -> Pairs:
        return {"waited": waiting(run, "throttled_s", "runnable_s")}

    run = measured(tmp_path, THROTTLED, pairs, env=env, enter=enter)
    assert run.fetch()["throttled_s"] > 0.3 * run.truth("wall")
    assert_parts_are_whole(run.fetch())


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
    loaders = ("here", "worker")

    def pairs(run: Run) -> Pairs:
        return {name: (run.fetch(name)["read_bytes"], run.said["planted"]) for name in loaders}

    run = measured(tmp_path, READ, pairs)
    for name in loaders:
        reading_s = run.fetch(name)["reading_s"]
        assert reading_s is None or 0 < reading_s < run.truth("wall", name)
        assert_parts_are_whole(run.fetch(name))


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
        fetch = run.fetch("read")
        notes = [path.read_text().split() for path in run.directory.glob("waited-*.txt")]
        truth = sum(float(waited) for lines in notes for waited in lines)
        assert_parts_are_whole(fetch)
        if fetch["reading_s"] == pytest.approx(truth, rel=READING_WITHIN):
            return
    raise AssertionError((fetch["reading_s"], truth))


# The worker has made its next batch, and its other thread pickled it, while the loop computes.
LARGE = """
class Many(Cheap):
    parts = {str(number): str(-number) for number in range(60_000)}
    def __call__(self, samples):
        return super().__call__(samples), self.parts

batches = iter(DataLoader(**noted(Quick(Notes("all"), 12), Many), num_workers=1))
batch, parts = next(batches)
for _ in range(11):
    train(batch)
    time.sleep(0.2)
    began = time.perf_counter()
    batch, parts = next(batches)
    said["waited"] += time.perf_counter() - began
"""


@cause("a batch that is ready but slow to unpickle")
def test_a_batch_that_is_slow_to_unpickle_is_received_not_waited_for(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", LARGE)
    loader = run.loader()
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

for batch in DataLoader(**noted(OneSlow(Notes("workers"), 10)), num_workers=2):
    train(batch)
for batch in DataLoader(**noted(OneSlow(Notes("no workers"), 10))):
    train(batch)
backwards = list(reversed(range(160)))
subset = Subset(OneSlow(Notes("a subset"), 10), backwards)
for batch in DataLoader(subset, BATCH, collate_fn=lambda samples: default_collate(samples)):
    train(batch)
"""

# What index each slow sample has in the dataset that the loader knows.
ITS_OWN = {index: index for index in (7, 57, 107, 157)}
SLOW_INDEX: Mapping[str, Mapping[int, int]] = {
    "workers": ITS_OWN,
    "no workers": ITS_OWN,
    "a subset": {152: 7, 102: 57, 52: 107, 2: 157},
}


@cause("slow samples: workers")
@cause("slow samples: no workers")
@cause("slow samples: a subset")
def test_slow_samples_are_named_by_their_indices(tmp_path: Path) -> None:
    def pairs(run: Run) -> Pairs:
        compared = {}
        for name, expected in SLOW_INDEX.items():
            built = "DataLoader(subset" if name == "a subset" else f'Notes("{name}")'
            seen = run.loader_at(built)["fetch"]["slow_samples"][: len(expected)]
            # Another one may have been held up for longer than a slow one takes.
            ours = dict.fromkeys(expected, 0.0) | {x["index"]: x["seconds"] for x in seen}
            lines = (run.directory / f"samples-{name}.txt").read_text().splitlines()
            truth = {int(index): float(seconds) for index, seconds in map(str.split, lines)}
            compared |= {
                f"{name} {mine}": (ours[mine], truth[its]) for mine, its in expected.items()
            }
        return compared

    measured(tmp_path, SLOW_SAMPLE, pairs)
