"""The run as a whole: its times, steps, epochs, machine and cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from trainprof.analysis.summary.device import Energy, Gpu
from trainprof.analysis.summary.free_cores import SharedCpu, shared_cpu
from trainprof.analysis.summary.levels import number_at
from trainprof.record.names import MASK

_MODULE: Final = "-m"
# Stacks are sampled once a second: without a sample no Python code ran.
STALE_FROM_S: Final = 3.0
# From this share of a step on, the cost of recording is reported first.
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
    "compile",
    "sync",
    "device_wait",
    "checkpoint",
    "evaluation",
    "gc",
    "other",
    "shutdown",
)
LOADER_KEYS: Final = ("loader_start", "first_batch", "data_wait", "loader_end")
COMPUTE_KEYS: Final = ("forward", "loss", "backward", "recompute", "optimizer", "zero_grad")
COMPILE_KEY: Final = "compile"
# Where in the ledger a verdict's bottleneck shows.
BOTTLENECK_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "data": LOADER_KEYS,
    "transfer": ("transfer",),
    "compute": (*COMPUTE_KEYS, COMPILE_KEY),
    "host": ("other", "gc"),
    "sync": ("sync",),
    "checkpoint": ("checkpoint",),
    "evaluation": ("evaluation",),
    "communication": ("communication",),
    "startup": ("startup",),
}


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
        after_limit: The limit that ended all training processes, where the run then ended in
            another way: a parent that misses its child's files.
    """

    status: int | None
    signal: int | None
    reason: str
    detail: str | None = None
    after_limit: str | None = None

    @property
    def limit(self) -> str | None:
        """Returns the limit that ended training, whatever followed, or None."""
        return self.detail if self.reason == "limit" else self.after_limit

    @property
    def was_limited(self) -> bool:
        """Whether a limit ended training."""
        return self.reason == "limit" or self.after_limit is not None

    @property
    def is_whole(self) -> bool:
        """Whether the script completed, and no limit ended a part of it."""
        return self.reason == "completed" and not self.was_limited


@dataclass(frozen=True, slots=True)
class Stood:
    """Where the training thread, or the main thread of another process, stood at the end.

    Attributes:
        process: main, rank 1, worker 0, process 4711.
        site: The innermost line of your code; without any, of all code.
        function: That the line is in.
        called: What the line called, by its qualified name; None: nothing, or native code.
        innermost: Innermost line and function.
        waits_for: "a batch" or "its first batch" in a DataLoader's iterator, "work" in an idle
            worker, else None.
        for_s: Time at that line and call.
        age_s: Time from the sample to the end: no Python code ran since.
    """

    process: str
    site: str
    function: str
    called: str | None
    innermost: str | None
    waits_for: str | None
    for_s: float
    age_s: float
    rank: int | None = None
    worker: int | None = None

    @property
    def is_stale(self) -> bool:
        """Whether no Python code ran for the last seconds, as native code held the GIL."""
        return self.age_s >= STALE_FROM_S

    @property
    def doing(self) -> str:
        """What it was doing: "waiting for its first batch", "read, in Future.result()"."""
        if self.waits_for is not None:
            return f"waiting for {self.waits_for}"
        return self.function if self.called is None else f"{self.function}, in {self.called}()"


@dataclass(frozen=True, slots=True)
class Hung:
    """A run that was ended while it made no progress.

    Attributes:
        idle_s: Time since the last batch, forward or step, or the start of a loader or of the run.
        stood: Of each process, the one that trains first.
    """

    idle_s: float
    stood: list[Stood]


@dataclass(frozen=True, slots=True)
class Run:
    """The run as a whole. `device_timing`: cpu|async|synchronized; `part`: the part shown."""

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

    @property
    def words_again(self) -> list[str]:
        """Returns the words that repeat the run; [] without a script, or with masked words."""
        words = self.command
        is_module = words[:1] == [_MODULE] and len(words) > 1
        is_known = bool(words) and (is_module or not words[0].startswith("-"))
        return words if is_known and not any(MASK in word for word in words) else []


@dataclass(frozen=True, slots=True)
class Phases:
    """Before the first iteration, until the end of the last, and after it."""

    initialization_s: float
    training_s: float
    finalization_s: float


@dataclass(frozen=True, slots=True)
class Ledger:
    """The training thread's wall time, without gap or overlap.

    Attributes:
        seconds: One entry per LEDGER_KEYS; sums to `wall_s`.
        other_by_place: `seconds["other"]` by its place in the loop.
    """

    wall_s: float
    seconds: dict[str, float]
    other_by_place: dict[str, float]


@dataclass(frozen=True, slots=True)
class Training:
    """Steps and throughput.

    Attributes:
        step_source: optimizer|backward|batches|none: what a step is counted by.
        step_s: Steady steps' wall time.
        per_step_s: Mean of a steady step per ledger key.
        warmup_excluded: Leading steps that are not in the steady statistics.
        steady_steps: Steps in them.
        steady_s: Their wall time.
        free_from_step: In a trial, 0-based: from there on batches are free, and `samples` unknown.
        without_evaluation_s: The training phase without evaluation, the base of throughput. The
            first rank's; None in older runs.
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
    free_from_step: int | None = None
    without_evaluation_s: float | None = None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """All evaluation together.

    Attributes:
        passes: Iterations over loaders, or stretches of forwards without one.
        data_wait_s: `next` calls after the first of each iteration.
        loaders: Ids.
        first_batch_s: First `next` calls.
        in_training_s, passes_in_training: The part in the training phase; None in older runs.
        with_gradients_share: Of the time of its forwards, those with gradients enabled; 0 if it
            computes gradients, None without forwards, and in older runs.
    """

    iterations: int
    passes: int
    seconds: float
    data_wait_s: float
    loaders: list[int]
    first_batch_s: float = 0.0
    in_training_s: float | None = None
    passes_in_training: int | None = None
    with_gradients_share: float | None = None

    @property
    def waited_s(self) -> float:
        """All waiting for batches, first batches included."""
        return self.data_wait_s + self.first_batch_s


@dataclass(frozen=True, slots=True)
class Epoch:
    """One iteration over a loader.

    Attributes:
        stage: training|evaluation|other.
        loader: Loader id, or None.
        seconds: From the iterator's creation to its end, without time before training. Where
            evaluation takes a few batches at a time, the time of those alone.
        data_wait_s: `next` calls after the first, with those of loaders used alongside.
        slow_batches: Waits over --wait-threshold, with the first batch's.
        slow_total_s: Their seconds.
        slow_excess_s: Their seconds over the threshold.
        steps: Updates in it.
        loader_start_s: Creating the iterator, which mostly starts workers.
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
class Outlier:
    """A step >= 2 x median and >= median + 10 ms.

    Attributes:
        grew: Ledger key that grew most, compared with the median step.
        grew_s: Its growth.
        every: Spacing in steps, where outliers repeat regularly.
        samples: Means of the system samples during the step, or None.
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
class Verdict:
    """The largest share of training, as a measured fact.

    Attributes:
        bottleneck: data|transfer|compute|host|sync|checkpoint|evaluation|communication|startup|
            none|unknown.
        headline: One sentence with numbers, units and your line.
        level: not|moderately|highly, None where no level applies.
        share: Of the training phase.
        site: Your file:line, or None.
    """

    bottleneck: str
    headline: str
    level: str | None = None
    share: float | None = None
    site: str | None = None


UNJUDGED: Final = Verdict("unknown", "")


@dataclass(frozen=True, slots=True)
class System:
    """Host, process tree and GPUs over the run; statistics are time-weighted.

    Attributes:
        interval_s: The sampler's nominal interval.
        cpu: {cores_usable, cores_physical, core_numbers[], host_percent{stat}, tree_percent{stat},
            per_core_percent[], iowait_share, pressure_some_share, stolen_share, throttled_share,
            cpu_mhz{stat}, context_switches_per_s};
            in tree_percent 100 is one core; in cores_physical hyper-threads of one count once;
            core_numbers are those that the run may use, or None. Of ranks also cores_launched_on,
            where the run was started on more cores; recorded_on[], the cores of all ranks that one
            trainprof recorded, where they differ; and other_ranks_percent, the mean of ranks on the
            same cores with their own trainprof, or None.
        memory: {host_total_bytes, host_available_bytes{stat}, tree_rss_bytes{stat},
            tree_pss_bytes{stat} or None, swap_used_bytes{stat}, shm_used_bytes{stat},
            shm_total_bytes, limit_bytes or None}; `shm` is the file system for shared memory.
        disk: {read_bytes_per_s{stat}, write_bytes_per_s{stat}}.
        network: {received_bytes_per_s{stat}, sent_bytes_per_s{stat}}.
        processes: [{pid, name, role: main|child, cpu_percent{stat}, rss_bytes{stat}, threads,
            first_s, last_s}], most CPU time first.
        cost: {share_of_core, samples} of the sampler.
        last_sample: {at_s, main_rss_bytes, children_rss_bytes, host_available_bytes,
            grown_bytes{main, children}}: before the end; growth since the first third.
        energy: Of the script's GPUs, or None.
        gpus_not_observed: Why GPUs were not sampled (any longer), or None.
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

    @property
    def shared_cpu(self) -> SharedCpu | None:
        """How other programs shared the CPU; None where unknown."""
        return shared_cpu(self.cpu)

    @property
    def bound_to(self) -> str:
        """The cores that the script is bound to, "" where it may use all it was started on."""
        numbers, whole = self.cpu.get("core_numbers"), number_at(self.cpu, "cores_launched_on")
        if whole is None or not isinstance(numbers, list) or not 0 < len(numbers) < whole:
            return ""
        return f"{len(numbers)} of {whole:.0f} cores"


@dataclass(frozen=True, slots=True)
class Overhead:
    """The cost of recording, from trainprof's records.

    Attributes:
        synchronizations: Number of waits of --cuda-sync for devices, or None.
        synchronized_s: Their total, an upper bound of what they added.
        looks_s: Total time of inspecting loaders, calls and steps; None without any, or if unknown,
            as in a killed run.
        in_c: The hooks of a step ran in C, not in Python; None in older runs.
    """

    events: int
    bytes: int
    per_step_us: float | None
    share: float | None
    synchronizations: int | None = None
    synchronized_s: float | None = None
    looks_s: float | None = None
    in_c: bool | None = None
