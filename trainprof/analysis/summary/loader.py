"""A DataLoader: its configuration, times and hazards."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Final

from trainprof.analysis.summary.code import HotLine
from trainprof.analysis.summary.run import Statistics
from trainprof.record.notes import known

# Batches of an epoch: with fewer it is an iterator for each step.
_FEW: Final = 1.5
LATENCY: Final = "one worker's latency"
CPU: Final = "CPU"
STORAGE: Final = "storage"
RECEIVE: Final = "receive in the main process"
SAMPLER: Final = "sampler"
COMPUTE: Final = "compute"
# A part of the step: waiting for a batch, whatever the reason.
BLOCKED: Final = "blocked"
# The limit of receiving, sampler and compute together: one process does them in turn.
MAIN_PROCESS: Final = "main process"

UNUSUAL_FROM: Final = 5.0
UNUSUAL_MIN_S: Final = 0.01
# Slow samples at the beginning of parts of the data: the least number of parts, and their length.
_FEWEST_PARTS: Final = 3
_SHORTEST_PART: Final = 8

Row = Mapping[str, Any]
_PARTS: Final = ("running_s", "runnable_s", "throttled_s", "reading_s", "asleep_s")
_SUMS: Final = ("n", "seconds", *_PARTS)
_HIGHEST: Final = ("rss_bytes",)
_MEANS: Final = ("read_bytes_per_s", "read_calls_per_s")


@dataclass(frozen=True, slots=True)
class Fetch:
    """Batch preparation, in the process of the dataset.

    `wall_s` and `batch_bytes` are per batch; the other figures are totals. running, runnable,
    throttled, reading and asleep partition the wall time; without the kernel's report a part
    stays None and counts as asleep. Totals are scaled up from the `measured` fetches.
    `typical_sample_s` is the median over batches of a sample's mean; `slow_samples` has the slowest
    of all, slowest first.
    `batch_tensors` is the mean number of tensors and arrays of a batch. `batch_bytes_error` is the
    standard error of `batch_bytes`, None with fewer than two batches.
    """

    n: int
    wall_s: Statistics | None
    running_s: float | None
    runnable_s: float | None
    throttled_s: float | None
    reading_s: float | None
    asleep_s: float | None
    cpu_s: float | None
    read_bytes: int | None
    major_faults: int | None
    measured: int
    samples: int
    batch_bytes: float | None
    dataset_s: float | None
    collate_s: float | None
    typical_sample_s: float | None
    slow_samples: list[dict[str, Any]]
    per_worker: list[dict[str, Any]]
    batch_bytes_error: float | None = None
    batch_tensors: float | None = None


@dataclass(frozen=True, slots=True)
class LoaderBound:
    """What limits a loader, by the pipeline model.

    Attributes:
        by: one worker's latency|CPU|storage|receive in the main process|sampler|compute.
        wait_cause: The cause of most of the wait: the same names without "compute".
        parts_s: Of a mean step in the model: blocked, receive, sampler, compute, by name.
        limits_s: The least time of a step with only this limit: a worker (or storage), the CPU, the
            main process.
        step_s, measured_step_s: A mean step with filled buffers, in the model and as recorded.
    """

    by: str
    wait_cause: str
    parts_s: dict[str, float]
    limits_s: dict[str, float]
    step_s: float
    measured_step_s: float


@dataclass(frozen=True, slots=True)
class LoaderCall:
    """How a loader is built.

    Attributes:
        ends_at: The call's last line and the column after it, in UTF-8 bytes; None where unknown,
            or not in your code.
        takes: The names of its parameters, in order: after "*" keyword-only ones, "**" for any
            others.
        constructors: Where those in your code begin, outermost first.
    """

    ends_at: list[int] | None
    takes: list[str]
    constructors: list[str]


@dataclass(frozen=True, slots=True)
class WorkerThreads:
    """Threads of torch's operators inside each of a loader's workers.

    Attributes:
        torch: Their number: 1, unless something set another one there.
        set_at: Your line that did, in a worker, or None.
    """

    torch: int
    set_at: str | None = None


@dataclass(frozen=True, kw_only=True)
class LoaderConfig:
    """The call that builds the loader, and its arguments.

    Attributes:
        site: Your line that builds it.
        built_by: The installed package that builds it from its own arguments; None where the call
            at `site` is in your code.
        builder_lacks: Arguments of that package that its installed version does not have.
        built: Number of DataLoaders of that line, used one after the other.
        datasets: Number of their datasets, all of one length; None: unknown.
        also_builds: Roles of the other loaders that your call builds.
        start_method: How its workers would be started.
        workers_started_by: fork|spawn|forkserver, if it had any.
        whole_batches: The arguments with which torch would fetch a whole batch at once; None where
            it does, and where unknown.
        holds_tensors: Its dataset is torch's TensorDataset.
        is_stackable: Its dataset could be one, and does not support a list of indices.
        collate_site: Where your collate function begins; None where it is a library's.
        draws_in_order: Each epoch has the dataset's samples in order; None: unknown.
        draws_all: Samples of its dataset, if torch's sampler draws each in each epoch.
        sampler_takes_epoch: Its sampler has set_epoch, as torch's DistributedSampler has.
        dataset_function: The dataset's function that torch calls: "module:Class.__getitem__"; None
            where it is not Python.
        runs_own_code: Whether its dataset runs functions of your code; None: unknown.
    """

    site: str
    kind: str
    dataset: str | None
    length: int | None
    num_workers: int | None
    prefetch_factor: int | None
    persistent_workers: bool | None
    pin_memory: bool | None
    batch_size: int | None
    start_method: str | None
    is_iterable: bool | None = None
    call: LoaderCall | None = None
    built_by: str | None = None
    builder_lacks: list[str] = field(default_factory=list)
    built: int = 1
    datasets: int | None = None
    also_builds: list[str] = field(default_factory=list)
    workers_started_by: str | None = None
    whole_batches: str | None = None
    holds_tensors: bool | None = None
    is_stackable: bool | None = None
    collate_site: str | None = None
    draws_in_order: bool | None = None
    draws_all: int | None = None
    sampler_takes_epoch: bool | None = None
    dataset_function: str | None = None
    runs_own_code: bool | None = None

    @property
    def may_augment(self) -> bool:
        """Whether preparing its batches may draw random numbers."""
        return not self.holds_tensors or self.collate_site is not None


@dataclass(frozen=True, kw_only=True)
class LoaderTimes:
    """Its iterations and their times.

    Attributes:
        passes: Iterators that were used, one per epoch in most scripts.
        iterations: Batches in all.
        init_s: Creating an iterator, used or not.
        first_batch_s: The first `next` of each.
        wait_s: `next` calls after the first.
        receive_s, receive_cpu_s: IPC transfer of batches from workers, and the training process's
            CPU time in it.
        bound: None where the pipeline model does not apply.
        hot_lines: Lines of its batch preparation.
        library_call: A library's function that most of it is in, below none of your lines.
        worker_threads: None without workers, and where not recorded.
        called_at: Where a training function calls evaluation over it; None: unknown.
        evaluation_s, evaluation_wait_s: Evaluation over a loader that also trains, and its waits.
        ended: Iterations until the last batch.
        ended_batches: Batches of the first of them.
        first_start_s: Iterator and first batch of the first epoch.
        first_given_back_s: Time that its later batches saved because of that start.
        later_starts_s, sampler_starts_s: Iterators and first batches of later epochs, without time
            that later batches saved, and the sampler's part of it.
        begun_ahead: An iteration over it came before those of the training phase.
        overlaps: It had two iterators at once: persistent workers serve only one.
    """

    passes: int
    iterations: int
    init_s: Statistics | None
    first_batch_s: Statistics | None
    wait_s: Statistics | None
    wait_total_s: float
    end_s: float
    sampler_s: float | None
    pin_s: float | None
    fetch: Fetch | None
    thread: str
    bound: LoaderBound | None = None
    blocked_s: float | None = None
    receive_s: float | None = None
    receive_cpu_s: float | None = None
    ready_share: float | None = None
    hot_lines: list[HotLine] = field(default_factory=list)
    library_call: str | None = None
    worker_threads: WorkerThreads | None = None
    called_at: str | None = None
    evaluation_s: float = 0.0
    evaluation_wait_s: float = 0.0
    ended: int = 0
    ended_batches: list[int] = field(default_factory=list)
    first_start_s: float | None = None
    first_given_back_s: float | None = None
    later_starts_s: float | None = None
    sampler_starts_s: float | None = None
    begun_ahead: bool = False
    overlaps: bool = False

    @property
    def is_each_step(self) -> bool:
        """Whether an iterator is created for each batch."""
        # Iterations of one batch that reach their end do not count.
        return self.iterations < _FEW * self.passes and self.ended < self.passes / 2


@dataclass(frozen=True, kw_only=True)
class LoaderHazards:
    """What makes other arguments unsafe: objects that workers cannot share, pickle or see.

    Attributes:
        lost_workers: Those that died.
        open_files: Attributes of the dataset that hold an open file, with their class.
        python_objects: Attributes of the dataset with thousands of Python objects, and their
            number: forked workers copy the memory of those they read.
        unpicklable: Objects that spawned workers could not receive, with their class.
        changed_between_passes: Attributes of the dataset that training changes between epochs.
        generators: Attributes of your dataset that are random generators: workers would have equal
            copies.
        guards_main: Whether spawned workers may import the script; None where they need not.
        shares_samples: Each worker yields its own part of your IterableDataset; None for other
            datasets, and where unknown.
        equal_workers: Workers of an IterableDataset that yield the same first samples in an epoch;
            1 where all differ, None where not compared.
        has_asked_for_worker: Batch preparation called get_worker_info().
        set_up_as_workers_start: Your worker_init_fn changes the worker's dataset; None: it may.
        touches_device: Batch preparation uses a GPU.
    """

    lost_workers: list[dict[str, Any]]
    open_files: list[str] = field(default_factory=list)
    python_objects: list[str] = field(default_factory=list)
    unpicklable: list[str] = field(default_factory=list)
    changed_between_passes: list[str] = field(default_factory=list)
    generators: list[str] = field(default_factory=list)
    guards_main: bool | None = None
    shares_samples: bool | None = None
    equal_workers: int | None = None
    has_asked_for_worker: bool = False
    set_up_as_workers_start: bool | None = None
    touches_device: bool = False


@dataclass(frozen=True, kw_only=True)
class Loader(LoaderHazards, LoaderTimes, LoaderConfig):
    """A DataLoader: its configuration, times and hazards, one object in the JSON.

    Attributes:
        role: training|evaluation|other, by its use.
    """

    id: int
    role: str

    @property
    def starts(self) -> int:
        """The number of iterators created: Lightning's reload creates two per epoch."""
        return self.passes if self.init_s is None else max(self.init_s.n, self.passes)

    @property
    def is_rebuilt(self) -> bool:
        """Whether your code recreates it for most epochs: its workers cannot persist."""
        return self.passes > 1 and 4 * self.built > 3 * self.passes and self.built_by is None

    @property
    def is_of_new_parts(self) -> bool:
        """Whether it is recreated with another dataset each time: workers cannot keep a copy."""
        return self.is_rebuilt and 4 * (self.datasets or 1) > 3 * self.built

    @property
    def is_of_several(self) -> bool:
        """Whether your code builds several for some epochs each, as for cross-validation."""
        return self._built_for_passes > 1

    @property
    def _built_for_passes(self) -> int:
        return 1 if self.is_rebuilt or self.built_by is not None else self.built

    @property
    def later_passes(self) -> int:
        """The number of epochs whose iterator could have been kept from an earlier epoch.

        The first epoch of each loader does not count, unless it came before training.
        """
        first = self._built_for_passes
        return max(self.passes - (0 if self.begun_ahead and first == 1 else first), 0)

    @property
    def later_share(self) -> float:
        """`later_passes` over all after the first; over 1 where the first came before training."""
        return self.later_passes / (self.passes - 1) if self.passes > 1 else 0.0

    @property
    def made_first_s(self) -> float:
        """Seconds in which the training process prepared first batches."""
        first, fetch = self.first_batch_s, self.fetch
        if self.num_workers != 0 or first is None or fetch is None or fetch.wall_s is None:
            return 0.0
        return first.n * min(first.mean, fetch.wall_s.mean)

    @property
    def shares_stream(self) -> bool | None:
        """Whether each of several workers yields its own part of the dataset; None: unknown.

        Recorded samples of workers count more than the code.
        """
        if not self.is_iterable or self.shares_samples or self.has_asked_for_worker:
            return True
        return self.shares_samples if self.equal_workers is None else self.equal_workers == 1

    @property
    def repeats_samples(self) -> bool:
        """Whether each of its workers yields all of its dataset."""
        return self.shares_stream is False and (self.num_workers or 0) > 1

    @property
    def asks_for_worker(self) -> bool:
        """Whether its data may exist in workers only: elsewhere get_worker_info() returns None."""
        is_shared = bool(self.is_iterable and self.shares_samples)
        return is_shared or self.set_up_as_workers_start is True

    @property
    def shares_files(self) -> bool:
        """Whether its workers read from files opened before the fork."""
        are_several = (self.num_workers or 0) > 1 and self.start_method == "fork"
        return are_several and bool(self.open_files)

    @property
    def may_keep_workers(self) -> bool:
        """Whether persistent_workers=True has a later epoch with the same data."""
        if self.overlaps:
            return False
        return self.passes > 1 and not self.is_rebuilt and not self.changed_between_passes


def unusual_samples(fetch: Fetch) -> list[Mapping[str, Any]]:
    """Returns the samples slower than UNUSUAL_FROM typical ones, slowest first.

    Time spent waiting for a core does not count.
    """
    typical = known(fetch.typical_sample_s)
    if typical is None or typical <= 0:
        return []
    least = max(UNUSUAL_FROM * typical, UNUSUAL_MIN_S)
    return [
        sample
        for sample in fetch.slow_samples
        if isinstance(sample, Mapping) and _own_s(sample) >= least
    ]


def are_begun_parts(slow: Sequence[Mapping[str, Any]]) -> bool:
    """Whether slow samples are the first ones of equal parts of the data."""
    indices = [int(index) for sample in slow if (index := known(sample.get("index"))) is not None]
    apart = math.gcd(*indices)
    return len(set(indices)) >= _FEWEST_PARTS and apart >= _SHORTEST_PART


def _own_s(sample: Mapping[str, Any]) -> float:
    return (known(sample.get("seconds")) or 0.0) - (known(sample.get("kept_off_s")) or 0.0)


def cost_s(loader: Loader) -> float:
    """Returns the time that training spends on a loader: waits and starts."""
    return loader.wait_total_s + starts_s(loader)


def starts_s(loader: Loader) -> float:
    """Returns the time of iterators, with the start of their workers, and of first batches."""
    return total_s(loader.init_s) + total_s(loader.first_batch_s)


def total_s(statistics: Statistics | None) -> float:
    """Returns the sum of a series, 0 without one."""
    if statistics is None or not math.isfinite(statistics.mean):
        return 0.0
    return statistics.mean * statistics.n


@dataclass(frozen=True, slots=True)
class WorkerTotals:
    """One worker over all epochs.

    Attributes:
        number: From 0; None for the process that trains.
        busy_share: Of the time in which it could have worked.
        figures: Sums, highest values and means by the names of `Fetch.per_worker`.
    """

    number: int | None
    busy_share: float | None
    figures: Mapping[str, float | None]

    @property
    def mean_s(self) -> float | None:
        n, seconds = self.figures["n"], self.figures["seconds"]
        return seconds / n if n and seconds is not None else None


def worker_totals(per_worker: Sequence[Any]) -> list[WorkerTotals]:
    """Joins the rows of each worker, by number; an edited summary may hold anything."""
    groups: dict[int | None, list[Row]] = {}
    for row in per_worker:
        if isinstance(row, Mapping):
            number = known(row.get("worker"))
            groups.setdefault(None if number is None else int(number), []).append(row)
    order = sorted(groups, key=lambda number: (number is not None, number or 0))
    return [_joined(number, groups[number]) for number in order]


def _joined(number: int | None, rows: list[Row]) -> WorkerTotals:
    figures: dict[str, float | None] = {}
    for names, join in ((_SUMS, sum), (_HIGHEST, max), (_MEANS, fmean)):
        figures |= {name: _over(rows, name, join) for name in names}
    return WorkerTotals(number, _busy_share(rows), figures)


def _over(rows: list[Row], name: str, join: Callable[[Iterable[float]], float]) -> float | None:
    values = [value for row in rows if (value := known(row.get(name))) is not None]
    return join(values) if values else None


def _busy_share(rows: list[Row]) -> float | None:
    busy_s = asked_s = 0.0
    for row in rows:
        share, seconds = known(row.get("busy_share")), known(row.get("seconds"))
        if share is None or seconds is None or not 0 < share <= 1 or seconds <= 0:
            continue
        busy_s += seconds
        asked_s += seconds / share
    return busy_s / asked_s if asked_s > 0 else None
