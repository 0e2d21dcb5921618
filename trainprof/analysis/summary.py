"""What a run showed: one frozen tree, the only thing renderers see and `summary.json` holds.

Times are seconds, sizes bytes, shares 0 to 1. None means "not observed"; why stands in
`RunSummary.not_observed` under the field's path.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from dataclasses import dataclass, field
from typing import Any, Final

from trainprof.analysis.finding import Finding, PassedOver
from trainprof.analysis.gpu_figures import Energy, Gpu
from trainprof.analysis.memory_figures import (
    DeviceMemory,
    FoundSyncs,
    MemoryGrowth,
    OutOfMemory,
    WorkersGrowth,
)
from trainprof.analysis.tuning import Recommended, TrialSummary, Tuning

SUMMARY_SCHEMA_VERSION: Final = 1
# Beyond it a number is damage, not a measurement (10^18 ns are 31 years, 10^18 bytes an exabyte);
# below it a time and its difference to another fit an int64.
MAX_NUMBER: Final = 1 << 62

# What recording takes of a step is told above all else from here on.
COSTLY_RECORDING: Final = 0.1

LEDGER_KEYS: Final = (
    "startup",
    "loader_start",
    "first_batch",
    "data_wait",
    "loader_end",
    "transfer",
    "forward",
    "loss",
    "backward",
    "recompute",
    "optimizer",
    "zero_grad",
    "sync",
    "device_wait",
    "checkpoint",
    "evaluation",
    "gc",
    "other",
    "shutdown",
)


@dataclass(frozen=True, slots=True)
class Statistics:
    """Distribution of a series, in the series' unit."""

    n: int
    mean: float
    std: float
    min: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class Exit:
    """How the script ended.

    Attributes:
        status: Exit status, None when a signal ended it or it is still running.
        signal: Number of the signal that ended it, or None.
        reason: completed|exception|interrupted|signal|killed|limit|running|unknown.
        detail: The exception's class, the limit's name, "out of memory: ..." and the like.
    """

    status: int | None
    signal: int | None
    reason: str
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """The run as a whole. `device_timing`: cpu|async|synchronized; `part`: what of it is shown."""

    name: str
    command: list[str]
    wall_s: float
    exit: Exit
    versions: dict[str, str]
    device_timing: str
    rank: int | None
    world_size: int | None
    started_at: str | None
    directory: str | None
    device: str | None
    part: str | None = None

    @property
    def is_on_device(self) -> bool:
        """Whether an accelerator was used."""
        return self.device not in (None, "cpu")


@dataclass(frozen=True, slots=True)
class Phases:
    """Before the first iteration, from it to the end of the last, and after it."""

    initialization_s: float
    training_s: float
    finalization_s: float


@dataclass(frozen=True, slots=True)
class Ledger:
    """The training thread's wall time, without gap or overlap.

    Attributes:
        seconds: One entry per LEDGER_KEYS; sums to `wall_s`.
        other_by_place: `seconds["other"]` split by where in the loop it lies.
    """

    wall_s: float
    seconds: dict[str, float]
    other_by_place: dict[str, float]


@dataclass(frozen=True, slots=True)
class Training:
    """Steps and throughput.

    Attributes:
        step_source: optimizer|backward|batches|none: what counted as a step.
        step_s: Steady steps' wall time.
        per_step_s: Mean of a steady step per ledger key.
        warmup_excluded: Leading steps left out of the steady statistics.
        steady_steps: Steps that remain.
        steady_s: Their wall time.
        forward_without_grad_s: Of a mean step, forwards that keep no graph: nothing goes back
            through them.
        frozen_share: What needs no gradient, of the parameters of models that have some.
    """

    steps: int
    iterations: int
    epochs: int
    samples: int | None
    samples_per_s: float | None
    step_source: str
    step_s: Statistics | None
    per_step_s: dict[str, float] | None
    warmup_excluded: int
    steady_steps: int
    steady_s: float
    forward_without_grad_s: float = 0.0
    frozen_share: float = 0.0


@dataclass(frozen=True, slots=True)
class Evaluation:
    """All evaluation passes together.

    Attributes:
        data_wait_s: `next` calls later than the first of a pass; those are `first_batch_s`.
        loaders: Ids.
    """

    iterations: int
    passes: int
    seconds: float
    data_wait_s: float
    loaders: list[int]
    first_batch_s: float = 0.0

    @property
    def waited_s(self) -> float:
        """All waiting for batches, the first of each pass included."""
        return self.data_wait_s + self.first_batch_s


@dataclass(frozen=True, slots=True)
class Epoch:
    """One pass of a loader.

    Attributes:
        stage: training|evaluation|other.
        loader: Loader id, None when no loader was seen.
        seconds: From the iterator's creation to the end of the pass.
        data_wait_s: `next` calls later than the first; with those for batches of loaders that
            training uses alongside.
        slow_batches: Waits over --wait-threshold, the first batch exempt.
        slow_total_s: Their whole seconds; `slow_excess_s` only what is over the threshold.
        steps: Updates inside the pass.
        loader_start_s: Making the iterator: starting workers, mostly.
    """

    index: int
    stage: str
    loader: int | None
    seconds: float
    data_wait_s: float
    first_batch_s: float | None
    iterations: int
    slow_batches: int
    slow_total_s: float
    slow_excess_s: float
    steps: int
    start_s: float
    loader_start_s: float = 0.0

    @property
    def waited_s(self) -> float:
        """All waiting for batches, the first included."""
        return self.data_wait_s + (self.first_batch_s or 0.0)


@dataclass(frozen=True, slots=True)
class Fetch:
    """Work of making one batch, where the dataset runs.

    `wall_s` and `batch_bytes` are per batch; the other figures are totals. running, runnable,
    throttled, reading and asleep partition the wall time; what the kernel does not tell is None,
    and in asleep. Totals are scaled up from the `measured` fetches. `typical_sample_s` is the
    median over batches of a sample's mean; `slow_samples` the slowest of all, slowest first.
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


@dataclass(frozen=True, slots=True)
class LoaderBound:
    """What keeps a loader's batches from coming faster, by the pipeline model.

    Attributes:
        by: one worker's latency|CPU|storage|receive in the main process|sampler|compute.
        margin: By which share the next limit lies below that one.
        wait_cause: What most of the wait goes to: the same names but "compute".
        parts_s: Of a mean step in the model: blocked, receive, sampler, compute, by name.
        limits_s: What a step would take at least, were nothing but this in the way: a worker (or
            storage), the CPU, the main process.
        step_s, measured_step_s: A mean step with filled buffers, in the model and as recorded.
    """

    by: str
    margin: float
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
        built: How many DataLoaders of that line were used one after the other, each built anew as
            the last.
        whole_batches: The arguments with which torch would ask the dataset for all of a batch at
            once, None where it does or they are not known.
        holds_tensors: Its dataset is torch's TensorDataset.
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
        set_up_as_workers_start: A function of the user's, called as each worker starts, comes to
            the worker's dataset; None where it may.
        touches_device: Making its batches copies to a device or from it, or makes them there.
        called_at: Where a function that trains calls for passes of evaluation over it, None where
            nobody knows.
        evaluation_s, evaluation_wait_s: What those took, and what of that was waiting, of a loader
            that also trains.
        draws_all: How many samples its dataset has, if torch's own sampler draws each of them in
            each pass, else None.
        memory_growth: Of its workers, None where it is not even.
        ended: Passes that went on until there was no batch left.
        later_starts_s, sampler_starts_s: What iterators and first batches of passes after the
            first took (none where it made later batches as much quicker), and the sampler's part.
        first_given_back_s: What later batches of the first pass were quicker for its start; 0 where
            that does not make up for it.
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
    blocked_s: float | None
    receive_s: float | None
    ready_share: float | None
    pin_s: float | None
    lost_workers: list[dict[str, Any]]
    fetch: Fetch | None
    thread: str
    bound: LoaderBound | None = None
    receive_cpu_s: float | None = None
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
    memory_growth: WorkersGrowth | None = None
    ended: int = 0
    later_starts_s: float | None = None
    sampler_starts_s: float | None = None
    first_given_back_s: float | None = None
    set_up_as_workers_start: bool | None = None

    @property
    def is_rebuilt(self) -> bool:
        """Whether the user's code builds it anew for most passes: its workers cannot live on."""
        return self.passes > 1 and 4 * self.built > 3 * self.passes and self.built_by is None

    @property
    def repeats_samples(self) -> bool:
        """Whether each of its workers gives all of its dataset."""
        is_shared = not self.is_iterable or self.shares_samples is not False
        return not is_shared and (self.num_workers or 0) > 1

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
        return self.passes > 1 and not self.is_rebuilt and not self.changed_between_passes


@dataclass(frozen=True, slots=True)
class Transfer:
    """Copies between devices from one line.

    Attributes:
        direction: h2d|d2h|d2d.
        device_s: What the `timed` ones of them took on the device, at most; None: none is.
        gb_per_s: Of those, in 10^9 bytes, at least.
        exposed_s: Time in which the device could do nothing else for them; None: not told.
        beside_share: Share that ran beside other work, on a stream of its own; None: not told.
        by_library_share: Share that a library made for the line, as a container's `to` does.
        exposed_in_training_s, in_training: Of `exposed_s` and `count`, what lies in the training
            phase; None where `exposed_s` is not told.
    """

    site: str
    direction: str
    count: int
    bytes: int
    host_s: float
    device_s: float | None
    gb_per_s: float | None
    pinned_share: float
    non_blocking_share: float
    timed: int = 0
    exposed_s: float | None = None
    beside_share: float | None = None
    by_library_share: float = 0.0
    exposed_in_training_s: float | None = None
    in_training: int | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """Models being moved or converted by one line (`Module.to` and its like)."""

    site: str
    count: int
    host_s: float


@dataclass(frozen=True, slots=True)
class SyncPoint:
    """Calls from one line that need a tensor's value on the host.

    `on_cpu`: calls whose tensor lived on the host already: counted, never waited for. `exposed_s`:
    what of `seconds` the device surely had nothing to do in. `exposed_in_training_s` and
    `in_training`: of that, and of the calls that waited, what lies in the training phase outside of
    evaluation; None where `exposed_s` is. `counted_until_s`: since the run's
    start: calls on the host were so many that later ones are not counted; None where all are.
    """

    site: str
    kind: str
    count: int
    on_cpu: int
    seconds: float | None
    exposed_s: float | None
    counted_until_s: float | None = None
    exposed_in_training_s: float | None = None
    in_training: int | None = None


@dataclass(frozen=True, slots=True)
class Outlier:
    """A step >= 2 x median and >= median + 10 ms.

    Attributes:
        grew: Ledger key that grew most against the median step, `grew_s` by how much.
        every: Regular spacing in steps, where outliers repeat regularly.
        samples: Means of the system samples inside the step's window, None where none fell in it.
    """

    step: int
    epoch: int | None
    start_s: float
    seconds: float
    grew: str
    grew_s: float
    every: int | None
    samples: dict[str, float] | None


@dataclass(frozen=True, slots=True)
class System:
    """Host, process tree and GPUs over the run; statistics are time-weighted.

    Attributes:
        interval_s: The sampler's nominal interval.
        cpu: {cores_usable, cores_physical, host_percent{stat}, tree_percent{stat},
            per_core_percent[], iowait_share, pressure_some_share, stolen_share, throttled_share,
            cpu_mhz{stat}, context_switches_per_s};
            in tree_percent 100 is one core; in cores_physical hyper-threads of one count once.
        memory: {host_total_bytes, host_available_bytes{stat}, tree_rss_bytes{stat},
            tree_pss_bytes{stat} or None, swap_used_bytes{stat}, shm_used_bytes{stat},
            shm_total_bytes, limit_bytes or None}; `shm` is the file system for shared memory.
        disk: {read_bytes_per_s{stat}, write_bytes_per_s{stat}}.
        network: {received_bytes_per_s{stat}, sent_bytes_per_s{stat}}.
        processes: [{pid, name, role: main|child, cpu_percent{stat}, rss_bytes{stat}, threads,
            first_s, last_s}], biggest CPU user first.
        cost: {share_of_core, samples, gpus: {seconds_per_sample, share, calls, slowed_s{metric}}
            or None}: what the sampler itself took; `gpus` is the time in calls to their driver.
        last_sample: {at_s, main_rss_bytes, children_rss_bytes, host_available_bytes,
            grown_bytes{main, children}}: the state before the end; `grown` against the first third.
        energy: Of the script's GPUs, None without any or where it is not known.
        gpus_not_observed: Why no (more) samples of GPUs came, or None.
    """

    interval_s: float
    samples: int
    cpu: dict[str, Any]
    memory: dict[str, Any]
    disk: dict[str, Any]
    network: dict[str, Any]
    processes: list[dict[str, Any]]
    gpus: list[Gpu]
    cost: dict[str, Any]
    last_sample: dict[str, Any] | None
    energy: Energy | None = None
    gpus_not_observed: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The largest share of training, as a measured fact.

    Attributes:
        bottleneck: data|transfer|compute|host|sync|checkpoint|evaluation|communication|startup|
            none|unknown.
        headline: One sentence with numbers, units and the user's line.
        level: not|moderately|highly, None where no level applies.
        share: Of the training phase.
        site: The user's file:line, or None.
    """

    bottleneck: str
    headline: str
    level: str | None = None
    share: float | None = None
    site: str | None = None


@dataclass(frozen=True, slots=True)
class Device:
    """A device that the script worked on, in the training phase.

    Attributes:
        index, name: As the script has it; such as "cuda:0".
        busy_share: Of the phase it was at work, at least and at most; copies to and from the host
            are no work. None: not told.
        idle_because: Seconds in which it was not surely at work, by what the training thread did:
            {loader_s, copy_s, sync_s, host_s, launch_s, evaluation_s, checkpoint_s, startup_s,
            unknown_s}. launch_s: between the kernels of phases, as far as looks tell; startup_s:
            before it was first given something; unknown_s: between the bounds of `busy_share`,
            mostly between the kernels of a phase that is being given out. They add up to the phase
            without its surely busy time. None: not told.
        per_step_s: Its time for the phases and copies of a mean steady step, by ledger key.
        queue_delay_s: How long after the host gave them out phases began there, on average, at
            least and at most. Near 0 it waits for the host.
        memory: What its allocator told; None: nothing.
        marks: Events in its streams that the figures rest on.
        seconds: Its time for phases and copies over the run, by ledger key.
        exposed_s: {data_wait, transfer, sync}: of the time that the host waited in them, that in
            which the device had run dry, at least and at most; copying itself is in `transfer`.
        ran_dry: {forward, backward, optimizer}: share of those at whose end it had next to nothing
            left to do: it keeps up with the host, and waits for it.
        launch_bound_share: Of the phase it was idle while the host was between launches, in Python
            or giving out work: at least and at most.
        looks: How often it was made to wait, so that work piled up and could be timed without gaps.
        looked_share: Of the phase, the part in which its work is known by them.
        paused_s: For how long it was made to wait, in all.
        copy_wait_s: Of `idle_because`'s `copy_s`, the time in which the host was in a copy and the
            device did not copy.
        not_launching_s: {launch_s, unknown_s}: what of those of `idle_because` was no waiting for
            pieces of work: compiling, and what warm-up took beyond as many usual steps.
    """

    index: int
    name: str
    busy_share: list[float] | None
    idle_because: dict[str, float] | None
    per_step_s: dict[str, float]
    queue_delay_s: list[float] | None
    memory: DeviceMemory | None
    marks: int
    seconds: dict[str, float] = field(default_factory=dict)
    exposed_s: dict[str, list[float]] = field(default_factory=dict)
    ran_dry: dict[str, float] = field(default_factory=dict)
    launch_bound_share: list[float] | None = None
    looks: int = 0
    looked_share: float = 0.0
    paused_s: float = 0.0
    copy_wait_s: float = 0.0
    not_launching_s: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Overhead:
    """What trainprof itself took, from its own records.

    Attributes:
        synchronizations: How often --cuda-sync waited for devices that were in use, else None.
        synchronized_s: How long in all: so much was added at most.
        looks_s: What closer looks at some passes and calls took in all; None where there were
            none, or nobody told, as in a run that was killed.
    """

    events: int
    bytes: int
    per_step_us: float | None
    share: float | None
    synchronizations: int | None = None
    synchronized_s: float | None = None
    looks_s: float | None = None


@dataclass(frozen=True, slots=True)
class HotLine:
    """A function of the user's that part of the run goes to, by looks at where threads stood.

    Attributes:
        part: Ledger key of the training thread's time.
        site: The line of the function that was met most, innermost of the user's own.
        function: Its name.
        called_from: The lines of the user's that it was called from, innermost first.
        looks: How many met it.
        share: Of the part, all of the function's lines.
        line_share: Likewise that line's alone; None in older runs.
        seconds: That share of the part's time; None where that is not known.
        is_at_least: It may be more: at most moments nobody could look.
        is_likely: Most of the part seems to go to it; `share` is of looks that came too late.
        waits_share: Of the looks at its function, those that met it waiting for another thread or
            process; None in older runs, and where it was not asked for.
        is_end: Most of the part ends there, where Python lets others run: what takes long stands
            there or before it. `share` is of the looks that were wanted in the part.
        with_calls: The line with all that it calls: no single function below takes most of it.
        torch_share, loss_share: Of the looks at its function, or at what the line calls, those that
            met torch computing, anywhere and between forward and backward; None in older runs, and
            of what is no code between the parts of a step.
    """

    part: str
    site: str
    function: str
    called_from: list[str]
    looks: int
    share: float
    seconds: float | None
    is_at_least: bool = False
    line_share: float | None = None
    is_likely: bool = False
    waits_share: float | None = None
    is_end: bool = False
    with_calls: bool = False
    torch_share: float | None = None
    loss_share: float | None = None


@dataclass(frozen=True, slots=True)
class PythonInModel:
    """Python code inside forward, loss and backward that is none of torch's operators.

    By looks at the training thread, once it has settled: torch's operators let others run Python
    meanwhile, other code (Python's own, NumPy's, a parser's) does not.

    Attributes:
        looks: At these parts.
        held: Of them, those that such code kept waiting for 0.1 ms or longer.
        seconds: Of the training phase, by ledger key, about: what lets others run more often is not
            counted.
        lines: Where it was, most looks first; shares are of those that tell it.
        behind: Where no line is known: the operator that comes behind it, at which most of those
            looks were let through.
    """

    looks: int
    held: int
    seconds: dict[str, float]
    lines: list[HotLine]
    behind: HotLine | None = None

    @property
    def total_s(self) -> float:
        """Of all parts."""
        return sum(self.seconds.values())


@dataclass(frozen=True, slots=True)
class ElementReads:
    """Values of host tensors that Python code inside the model reads one by one.

    Attributes:
        part: Ledger key: forward or loss.
        site: The line that reads most of them.
        per_pass: How many, in a pass that reads many.
        share: Of the part: the time from one read to the next, where that is short.
        seconds: Of the training phase, about.
    """

    part: str
    site: str
    per_pass: float
    share: float
    seconds: float


@dataclass(frozen=True, slots=True)
class LineCost:
    """What timing lines took: such a run is slower than the script alone, and gives no verdict.

    Attributes:
        functions: Whose lines were to be timed.
        processes: Those that reached one.
        hits: Timed lines reached, of all processes.
        overhead_ns: Added to each, as measured in the run; None where it was not.
        added_s: All together, summed over processes.
        traces_callees: Code that timed lines call was slowed, too: before Python 3.12, all that
            runs below a timed function is traced. How much that took is not known.
    """

    functions: int
    processes: int
    hits: int
    overhead_ns: float | None
    added_s: float | None
    traces_callees: bool = False


@dataclass(frozen=True, slots=True)
class Compilation:
    """What one line made torch compile, on the thread that trains.

    Attributes:
        site: The user's file:line that called what was compiled.
        count: How often, the parts of it that come later (its backward) not counted.
        seconds: All together, of the whole run.
        again: How many of them were of code that had been compiled before, in training.
        again_s: What those took, the evaluation's left out.
        most_versions: Of one piece of code.
        again_idle_s: Of `again_s`, in which a device was not surely at work; None without one.
    """

    site: str
    count: int
    seconds: float
    again: int
    again_s: float
    most_versions: int
    again_idle_s: float | None = None


@dataclass(frozen=True, slots=True)
class Collective:
    """Calls of torch.distributed by one line of the training loop.

    Attributes:
        site: The user's file:line.
        function: Its name, such as "all_reduce".
        count: Of calls.
        seconds: All together; waiting for other ranks is in it.
    """

    site: str
    function: str
    count: int
    seconds: float


@dataclass(frozen=True, slots=True)
class UnsharedData:
    """A loader of which each of several ranks takes as many samples as all there are.

    Attributes:
        site: The user's file:line that built it, on all ranks.
        samples: Of the dataset, the same number on all ranks.
        ranks: So many.
    """

    site: str
    samples: int
    ranks: int


@dataclass(frozen=True, slots=True)
class Numerics:
    """In what the model computes, as settings tell at the first update.

    Attributes:
        parameters: The type of most of them: "float32".
        products: On a device, torch's float32 matmul precision: "highest" is without TF32; else,
            and where it is not known, "unknown".
        sites: Lines of the user's that seem to make it float64, where it is that.
    """

    parameters: str
    products: str
    sites: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class HooksInForward:
    """Hooks of the script's on modules, that only look on.

    Attributes:
        looks: At the forward, that met one.
        share: Of the looks at the forward.
        seconds: Of the training phase, about.
        lines: Where they were met, most looks first; shares are of these looks.
    """

    looks: int
    share: float
    seconds: float
    lines: list[HotLine]


@dataclass(frozen=True, slots=True)
class CompetingThread:
    """Another thread of the process that trains, at work meanwhile.

    Attributes:
        site, function: The line of the user's where it was met most; None and "" where none is.
        at_work_share: Of training, for which it was on a core where looks met it at work.
        kept_s, kept_share: For how long the thread that trains was on no core and waited neither
            for one nor, as far as looks tell, for anything but the interpreter; of training.
        looks: That met it at work.
        asleep_s: For how long the thread that trains was on no core and waited for none, whatever
            for, where looks met the other one; None in older runs.
    """

    site: str | None
    function: str
    at_work_share: float
    kept_s: float
    kept_share: float
    looks: int
    asleep_s: float | None = None


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Everything a run showed.

    Attributes:
        lines: What timing lines took, None in a run that timed none.
        together: How many times as fast training would be at most with all findings mended: their
            gains do not add up. None of fewer than two.
        passed_over: What rules found besides, and why it is not told.
        findings_from: From which gain of steps on a finding is told, by the noise of this run.
        hot_lines: Where the parts of the training loop are spent, as far as it was looked at.
        python_in_model: What of the model's time is Python code; None where too few looks tell it,
            with torch.compile, whose code looks like it, and in older runs. On a device it is the
            host's time: the device may have worked meanwhile.
        element_reads: Of tensors inside the model, one by one, where they are many.
        loss_in_loop_s: Of "other": torch that computes between forward and backward, as a loss
            without a module does; None where too few looks tell it, and in older runs.
        beside_share: Of the looks at training, those that met another thread of the process at
            work; None of too few.
        hooks_in_forward: None where looks met none.
        competing: Another thread that was busy meanwhile; None where looks met none.
        ranks: {rank, host, pid, steps, step_s, ledger: {wall_s, seconds}, exit} of each, in runs of
            several; `run`, `phases`, `ledger`, `training` and `verdict` are then of all of them.
        out_of_memory: The state in which a device ran out of it, where the run ended by that.
        found_syncs: What --find-syncs found, None where it was not asked for or could not.
        compilations: What torch.compile took, by line; empty where nothing was compiled.
        collectives: Calls of torch.distributed by line, means over ranks; in the ledger they are
            part of `other`.
        memory_growth: Of the process that trains; None where it does not grow with the steps. Of
            several ranks the one that grows most.
        unshared: Loaders that train and whose data the ranks do not share out.
        torch_threads: That torch computes with on the CPU, in each rank.
        numerics: In what the model computes; None where that is not known.
        trained_apart: The same of processes that trained besides the one that is shown, without
            being ranks of it (hogwild, a script that starts trainings).
        trials, recommended, tuning: Of a `tune` run; all else is then of its first baseline.
    """

    run: Run
    phases: Phases
    ledger: Ledger
    training: Training
    evaluation: Evaluation
    epochs: list[Epoch]
    loaders: list[Loader]
    transfers: list[Transfer]
    sync_points: list[SyncPoint]
    devices: list[Device] | None
    system: System | None
    ranks: list[dict[str, Any]]
    stragglers: list[dict[str, Any]]
    outliers: list[Outlier]
    findings: list[Finding]
    verdict: Verdict
    overhead: Overhead
    wait_threshold_s: float
    not_observed: dict[str, str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    trained_apart: list[dict[str, Any]] = field(default_factory=list)
    lines: LineCost | None = None
    hot_lines: list[HotLine] = field(default_factory=list)
    python_in_model: PythonInModel | None = None
    element_reads: ElementReads | None = None
    loss_in_loop_s: float | None = None
    beside_share: float | None = None
    placements: list[Placement] = field(default_factory=list)
    together: float | None = None
    passed_over: list[PassedOver] = field(default_factory=list)
    findings_from: float | None = None
    out_of_memory: OutOfMemory | None = None
    found_syncs: FoundSyncs | None = None
    compilations: list[Compilation] = field(default_factory=list)
    collectives: list[Collective] = field(default_factory=list)
    memory_growth: MemoryGrowth | None = None
    unshared: list[UnsharedData] = field(default_factory=list)
    torch_threads: int | None = None
    numerics: Numerics | None = None
    hooks_in_forward: HooksInForward | None = None
    competing: CompetingThread | None = None
    trials: list[TrialSummary] = field(default_factory=list)
    recommended: Recommended | None = None
    tuning: Tuning | None = None
    schema_version: int = SUMMARY_SCHEMA_VERSION

    @property
    def has_workers(self) -> bool:
        """Whether any of its loaders has some."""
        return any(loader.num_workers for loader in self.loaders)

    @property
    def device_busy_share(self) -> float | None:
        """The share of training in which the least busy device is at work, at least."""
        known = (device.busy_share for device in self.devices or [])
        return min((share[0] for share in known if share), default=None)


def to_jsonable(summary: RunSummary) -> dict[str, Any]:
    """Returns the summary as plain JSON values, `schema_version` first; NaN becomes None."""
    plain = _finite(dataclasses.asdict(summary))
    return {"schema_version": plain.pop("schema_version"), **plain}


def from_jsonable(data: dict[str, Any]) -> RunSummary:
    """Builds a summary from what `to_jsonable` gave; unknown keys are left out.

    Raises:
        KeyError, TypeError, ValueError: If `data` does not have the summary's shape.
    """
    return typing.cast(RunSummary, _build(RunSummary, data))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def _build(kind: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, dict):
            raise TypeError(f"{kind} needs an object, not {type(value).__name__}")
        hints = typing.get_type_hints(kind)
        known = {f.name for f in dataclasses.fields(kind)}
        built = {name: _build(hints[name], item) for name, item in value.items() if name in known}
        return typing.cast(Any, kind)(**built)
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        if value is None:
            return None
        return _build(next(a for a in typing.get_args(kind) if a is not types.NoneType), value)
    if origin is list:
        (item_kind,) = typing.get_args(kind)
        return [_build(item_kind, item) for item in _checked(list, value)]
    if origin is dict:
        _, item_kind = typing.get_args(kind)
        return {key: _build(item_kind, item) for key, item in _checked(dict, value).items()}
    return value if kind is typing.Any else _checked(kind, value)


def _checked(kind: type, value: Any) -> Any:
    """Returns `value` if JSON would give it for `kind`; an integer may stand for a float."""
    accepted = (int, float) if kind is float else kind
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"{kind.__name__} expected, not {type(value).__name__}")
    # NaN fails the comparison too.
    if isinstance(value, (int, float)) and not -MAX_NUMBER < value < MAX_NUMBER:
        raise ValueError("a number that nothing can measure")
    return value
