"""What is known of a DataLoader."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from trainprof.analysis.summary.code import HotLine
from trainprof.analysis.summary.run import Statistics

# Batches of a pass: fewer are an iterator for each step.
_FEW: Final = 1.5
LATENCY: Final = "one worker's latency"
CPU: Final = "CPU"
STORAGE: Final = "storage"
RECEIVE: Final = "receive in the main process"
SAMPLER: Final = "sampler"
COMPUTE: Final = "compute"
# A part of the step: nothing to take yet, whatever the reason.
BLOCKED: Final = "blocked"
# The limit that receiving, sampler and compute make together: one process does them in turn.
MAIN_PROCESS: Final = "main process"


@dataclass(frozen=True, slots=True)
class Fetch:
    """Work of making one batch, where the dataset runs.

    `wall_s` and `batch_bytes` are per batch; the other figures are totals. running, runnable,
    throttled, reading and asleep partition the wall time; what the kernel does not tell is None,
    and in asleep. Totals are scaled up from the `measured` fetches. `typical_sample_s` is the
    median over batches of a sample's mean; `slow_samples` the slowest of all, slowest first.
    `batch_bytes_error` is the standard error of `batch_bytes`, None of fewer than two batches.
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


@dataclass(frozen=True, slots=True)
class LoaderBound:
    """What keeps a loader's batches from coming faster, by the pipeline model.

    Attributes:
        by: one worker's latency|CPU|storage|receive in the main process|sampler|compute.
        wait_cause: What most of the wait goes to: the same names but "compute".
        parts_s: Of a mean step in the model: blocked, receive, sampler, compute, by name.
        limits_s: What a step would take at least, were nothing but this in the way: a worker (or
            storage), the CPU, the main process.
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
        ends_at: The call's last line and the column behind it, in UTF-8 bytes; None where it is not
            known, or no call of the user's.
        takes: The names of its parameters, in order: those behind "*" by keyword alone, "**" where
            it takes any others.
        constructors: Where those that the user wrote begin, the outermost first.
    """

    ends_at: list[int] | None
    takes: list[str]
    constructors: list[str]


@dataclass(frozen=True, slots=True)
class WorkerThreads:
    """With how many threads torch computes inside each of a loader's workers.

    Attributes:
        torch: So many: 1, unless something has set another number there.
        set_at: The user's line that did, in a worker; None where none did.
    """

    torch: int
    set_at: str | None = None


@dataclass(frozen=True, slots=True)
class Loader:
    """A DataLoader, named by the user's line that built it.

    Attributes:
        role: training|evaluation|other, as its passes are used.
        receive_s, receive_cpu_s: Taking batches over; of that, what the training process itself
            worked. The rest it waited, mostly for the worker to let go.
        bound: None where the pipeline model does not apply.
        hot_lines: Those that the making of its batches goes to.
        collate_site: Where the user's own collate function begins, None where it is a library's.
        built_by: The installed package that builds it and has to be told its arguments, None where
            the call at `site` is.
        also_builds: Roles of the other loaders that its call builds, where that is the user's.
        built: How many DataLoaders of that line were used one after the other, each built anew as
            the last.
        datasets: How many datasets those had, each as long as the last; None where nobody knows.
        whole_batches: The arguments with which torch would ask the dataset for all of a batch at
            once, None where it does or they are not known.
        holds_tensors: Its dataset is torch's TensorDataset.
        is_stackable: Its dataset could be one, and takes no list of indices as it is.
        sampler_takes_epoch: Its sampler has set_epoch, as torch's DistributedSampler has.
        draws_in_order: Each pass has the dataset's samples in their order; None where nothing tells
            how its sampler draws.
        open_files: Attributes of the dataset that hold one, with their class.
        workers_started_by: fork|spawn|forkserver, if it had any.
        unpicklable: What workers that are no forks could not be given, with what it is.
        changed_between_passes: Attributes of the dataset that training changes then.
        generators: Attributes of the user's dataset that are random generators, of which workers
            would have equal copies.
        guards_main: Whether the script may be imported by such workers; None where it need not be.
        call: Of its constructor, None where nothing is known of it.
        shares_samples: Each worker gives its own part of an IterableDataset of the user's; None of
            other datasets, and where nobody knows.
        equal_workers: Of an IterableDataset: how many workers of an epoch yield the same first
            samples; 1 where all differ, None where they were not compared.
        has_asked_for_worker: Something called get_worker_info() where its batches are prepared.
        set_up_as_workers_start: A function of the user's, called as each worker starts, comes to
            the worker's dataset; None where it may.
        touches_device: Making its batches copies to a device or from it, or makes them there.
        called_at: Where a function that trains calls for passes of evaluation over it, None where
            nobody knows.
        evaluation_s, evaluation_wait_s: What those took, and what of that was waiting, of a loader
            that also trains.
        draws_all: How many samples its dataset has, if torch's own sampler draws each of them in
            each pass, else None.
        ended: Passes that went on until there was no batch left; `ended_batches`: what each of the
            first of them gave.
        later_starts_s, sampler_starts_s: What iterators and first batches of passes after the
            first took (none where it made later batches as much quicker), and the sampler's part.
        first_start_s: What the iterator and the first batch of the first pass took.
        first_given_back_s: What later batches of the first pass were quicker for its start; 0 where
            that does not make up for it.
        worker_threads: None without workers, and where they did not tell.
        begun_ahead: Passes over it came ahead of those of the training phase that are told here.
        overlaps: It had two iterators at once, each with batches of its own: workers that live on
            serve one.
    """

    id: int
    site: str
    role: str
    kind: str
    dataset: str | None
    length: int | None
    num_workers: int | None
    prefetch_factor: int | None
    persistent_workers: bool | None
    pin_memory: bool | None
    batch_size: int | None
    start_method: str | None
    passes: int
    iterations: int
    init_s: Statistics | None
    first_batch_s: Statistics | None
    wait_s: Statistics | None
    wait_total_s: float
    end_s: float
    sampler_s: float | None
    pin_s: float | None
    lost_workers: list[dict[str, Any]]
    fetch: Fetch | None
    thread: str
    bound: LoaderBound | None = None
    blocked_s: float | None = None
    receive_s: float | None = None
    receive_cpu_s: float | None = None
    ready_share: float | None = None
    is_iterable: bool | None = None
    hot_lines: list[HotLine] = field(default_factory=list)
    collate_site: str | None = None
    built_by: str | None = None
    built: int = 1
    whole_batches: str | None = None
    holds_tensors: bool | None = None
    draws_in_order: bool | None = None
    open_files: list[str] = field(default_factory=list)
    workers_started_by: str | None = None
    unpicklable: list[str] = field(default_factory=list)
    changed_between_passes: list[str] = field(default_factory=list)
    generators: list[str] = field(default_factory=list)
    guards_main: bool | None = None
    call: LoaderCall | None = None
    shares_samples: bool | None = None
    touches_device: bool = False
    called_at: str | None = None
    evaluation_s: float = 0.0
    evaluation_wait_s: float = 0.0
    draws_all: int | None = None
    ended: int = 0
    ended_batches: list[int] = field(default_factory=list)
    later_starts_s: float | None = None
    sampler_starts_s: float | None = None
    first_start_s: float | None = None
    first_given_back_s: float | None = None
    set_up_as_workers_start: bool | None = None
    sampler_takes_epoch: bool | None = None
    is_stackable: bool | None = None
    also_builds: list[str] = field(default_factory=list)
    datasets: int | None = None
    worker_threads: WorkerThreads | None = None
    overlaps: bool = False
    begun_ahead: bool = False
    equal_workers: int | None = None
    has_asked_for_worker: bool = False

    @property
    def is_rebuilt(self) -> bool:
        """Whether the user's code builds it anew for most passes: its workers cannot live on."""
        return self.passes > 1 and 4 * self.built > 3 * self.passes and self.built_by is None

    @property
    def is_each_step(self) -> bool:
        """Whether an iterator is made for each batch that is asked for."""
        # Passes of one batch that go on to their end are none.
        return self.iterations < _FEW * self.passes and self.ended < self.passes / 2

    @property
    def later_passes(self) -> int:
        """How many passes begin with an iterator that could have been there before.

        None of them is the first of a loader that the user builds anew for some passes, but for
        one that came ahead of training.
        """
        first = self._built_for_passes
        return max(self.passes - (0 if self.begun_ahead and first == 1 else first), 0)

    @property
    def later_share(self) -> float:
        """Those of the passes after the first; over 1 where that came ahead of training."""
        return self.later_passes / (self.passes - 1) if self.passes > 1 else 0.0

    @property
    def _built_for_passes(self) -> int:
        """How many loaders the user builds for some passes each, as for each fold of the data."""
        return 1 if self.is_rebuilt or self.built_by is not None else self.built

    @property
    def is_of_several(self) -> bool:
        return self._built_for_passes > 1

    @property
    def made_first_s(self) -> float:
        """Seconds in which the training process itself made first batches of passes."""
        first, fetch = self.first_batch_s, self.fetch
        if self.num_workers != 0 or first is None or fetch is None or fetch.wall_s is None:
            return 0.0
        return first.n * min(first.mean, fetch.wall_s.mean)

    @property
    def is_of_new_parts(self) -> bool:
        """Whether it is built anew of another dataset each time: workers cannot keep their copy."""
        return self.is_rebuilt and 4 * (self.datasets or 1) > 3 * self.built

    @property
    def shares_stream(self) -> bool | None:
        """Whether each of several workers yields its own part of the dataset; None: unknown.

        What workers were seen to yield counts more than what the code says.
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
        """Whether it may have its data only in a worker: get_worker_info() gives None elsewhere."""
        is_shared = bool(self.is_iterable and self.shares_samples)
        return is_shared or self.set_up_as_workers_start is True

    @property
    def shares_files(self) -> bool:
        """Whether its workers read from files that were opened before they were forked."""
        are_several = (self.num_workers or 0) > 1 and self.start_method == "fork"
        return are_several and bool(self.open_files)

    @property
    def may_augment(self) -> bool:
        """Whether making its batches may draw random numbers: tensors that are there do not."""
        return not self.holds_tensors or self.collate_site is not None

    @property
    def may_shuffle(self) -> bool:
        """Whether a sampler may draw its samples by random numbers."""
        return not self.is_iterable and not self.draws_in_order

    @property
    def may_keep_workers(self) -> bool:
        """Whether persistent_workers=True has a later pass to keep them for, with the same data."""
        if self.overlaps:
            return False
        return self.passes > 1 and not self.is_rebuilt and not self.changed_between_passes
