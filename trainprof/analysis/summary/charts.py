"""A run over time: the figures behind the HTML page's charts.

Times are seconds since the run began, sizes bytes, shares 0 to 1, NaN is "not observed". The page's
scripts see the same names, see report/html/payload.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]
    Times = npt.NDArray[np.float64]
    Bytes = npt.NDArray[np.uint8]
    Integers = npt.NDArray[np.int32]

# Runs of more steps are drawn in bins, at least this many.
MIN_BINS: Final = 2_000
# Of all events, the longest.
MAX_EVENTS: Final = 2_000
# Of spans of one kind, the longest; of epochs, every n-th.
MAX_SPANS: Final = 1_000
# In a uint8 share of a core, a GPU or a worker's time: not observed. Others are percent.
UNKNOWN_PERCENT: Final = 255


@dataclass(frozen=True, kw_only=True)
class StepBins:
    """The training thread's steps, in bins of consecutive ones; arrays of shape (n_bins,).

    Attributes:
        per_bin: Steps in each bin but the last; 1 where all steps are kept apart.
        first: 0-based number of each bin's first step.
        count: Steps in each bin.
        start_s, end_s: Of its first and of its last step, with evaluation between them.
        total_s: Sum of its steps' times, without evaluation.
        min_s, p50_s, p95_s, max_s: Of its steps' times.
        slowest: 0-based number of its longest step.
        outliers: How many of its steps are outliers; the run's sum is the summary's.
        epoch: 0-based, of its first step; -1 without one.
        parts_s: Sums by ledger key, exact to the ns like `total_s`, to which they add up. Keys that
            are 0 throughout are left out.
    """

    per_bin: int
    first: Integers
    count: Integers
    start_s: Times
    end_s: Times
    total_s: Times
    min_s: Floats
    p50_s: Floats
    p95_s: Floats
    max_s: Floats
    slowest: Integers
    outliers: Integers
    epoch: Integers
    parts_s: dict[str, Times]


@dataclass(frozen=True, kw_only=True)
class SlowStretch:
    """Consecutive steps of which most were slow.

    Attributes:
        first, last: 0-based numbers of its steps.
        mean_s, other_s: Mean time of its steps, and of the others after warm-up.
        part: The ledger key that grew most.
        part_s: By how much, per step.
    """

    start_s: float
    end_s: float
    first: int
    last: int
    mean_s: float
    other_s: float
    part: str
    part_s: float


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """Counts of values.

    Attributes:
        unit: "s" or "%".
        name: "step time", "cores" or "GPU 0".
        edges: Shape (n + 1,), the last bin includes the last edge. Of percents: 0 to 100.
            Log-spaced where step times differ by much; the first bin then includes shorter ones.
        counts: Shape (n,): steps, or seconds of the run; of "cores" the mean of all cores.
        is_log: The edges are log-spaced.
    """

    name: str
    unit: str
    edges: Floats
    counts: Floats
    is_log: bool = False


@dataclass(frozen=True, kw_only=True)
class Series:
    """A figure of the machine at `Machine.time_s`.

    Attributes:
        name: Of cpu "host" or "process tree", of memory "process tree (RSS)", "process tree (PSS)"
            or "host available", of disk "read" or "written", of network "received" or "sent", else
            "GPU 0".
        panel: cpu|memory|disk|network|gpu_utilization|gpu_memory|gpu_power.
        unit: "%" (100 is one core, or a GPU), "bytes", "bytes/s" or "W".
        mean, peak: Of each bin, NaN where it was not sampled; `peak` is None where a bin is one
            sample.
    """

    name: str
    panel: str
    unit: str
    mean: Floats
    peak: Floats | None = None


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Host, process tree and GPUs as sampled.

    Attributes:
        time_s: Middle of each bin, shape (n,), ascending.
        series: Only what was observed.
        cores: Rows of the heatmap, by name: "core 0", "GPU 0". Shape (n,) each, percent or
            UNKNOWN_PERCENT.
    """

    time_s: Times
    series: list[Series]
    cores: dict[str, Bytes]


@dataclass(frozen=True, kw_only=True)
class Span:
    """A stretch of the run that is shaded, or the start of an epoch (start_s == end_s).

    Attributes:
        kind: startup|warmup|evaluation|shutdown|epoch.
        label: Of an epoch "epoch 2"; of evaluation its loader's line, "" where unknown; else "".
    """

    kind: str
    start_s: float
    end_s: float
    label: str


@dataclass(frozen=True, kw_only=True)
class Events:
    """The longest things that happened, in order of time; arrays of shape (n,).

    Attributes:
        kinds: Of outlier|slow fetch|slow batch|sync|transfer|checkpoint|gc|evaluation|compile|
            collective|empty_cache those that happened. A slow batch is a wait for one above the
            run's wait threshold. Outliers and slow fetches (of their loader's) take at least
            MIN_RATIO of the median and MIN_EXCESS_NS more.
        kind: Index into `kinds`.
        labels: Distinct descriptions: "H2D at train.py:50", "train.py:84 worker 2, sample 4711",
            "generation 2"; of an outlier the ledger key that grew most.
        label: Index into `labels`.
        seconds: Of an outlier without evaluation, as its step's.
        step: 0-based number of the step in which it began, -1 outside of steps and in evaluation.
        dropped: By kind, how many more happened that were shorter than those kept.
    """

    kinds: list[str]
    kind: Bytes
    labels: list[str]
    label: Integers
    start_s: Times
    seconds: Floats
    step: Integers
    dropped: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Lane:
    """A loader's worker over time, shape (n_bins,) each, of `Charts.lane_edges_s`.

    Workers of the same number share a lane where each epoch starts new ones. Percents are of the
    part of the bin in which there was one; UNKNOWN_PERCENT where there was none.

    Attributes:
        name: "train.py:84 worker 0".
        running: In which it prepared a batch on a core.
        blocked: In which it prepared one but did not run: storage, sleep, lock, or no free core.
            The rest it is idle.
        is_split: False where its CPU time is unknown: `running` then includes what was blocked.
    """

    loader: int
    name: str
    running: Bytes
    blocked: Bytes
    is_split: bool = True


# Frames of Stacks without a place. Of a deep stack both ends are recorded; a late sample met what
# is above MET_LATE, or another phase.
BETWEEN: Final = "..."
RARER: Final = "rarer calls"
NO_LINE: Final = "no line of your code"
MET_LATE: Final = "sampled late"
UNKNOWN_LINE: Final = "line unknown"


@dataclass(frozen=True, kw_only=True)
class Stacks:
    """Stack samples, equal ones added up.

    Attributes:
        frames: [function, "file.py:84"] of each distinct frame; a library's has its module's name
            as place, those that stand for others "".
        stacks: [thread, phase, samples, [frame numbers, outermost first], seconds], in order of
            thread and frames. `thread` is "training", "workers" or the name of another thread;
            `phase` is the ledger key that the training thread was in, or "fetch" where the thread
            itself prepared a batch.
    """

    frames: list[tuple[str, str]] = field(default_factory=list)
    stacks: list[tuple[str, str, int, list[int], float]] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Charts:
    """All pictures of a run's first training process.

    Attributes:
        wall_s: Length of the run, or of the part shown.
        start_s: When that part begins.
        steps: None in a run without steps. Steps and epochs are numbered as in the whole run.
        slow: None where no stretch was slow.
        machine: None where nothing was sampled.
        part: "epoch 2" or "steps 5:9" where they show a part of the run.
        rank: Of several ranks, the one shown.
    """

    wall_s: float
    steps: StepBins | None
    machine: Machine | None
    spans: list[Span]
    events: Events
    histograms: list[Histogram]
    lane_edges_s: Times
    lanes: list[Lane]
    stacks: Stacks
    part: str | None = None
    start_s: float = 0.0
    rank: int | None = None
    slow: SlowStretch | None = None
