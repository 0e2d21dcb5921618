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
# In a uint8 share of a core or a GPU: not observed. Others are percent.
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
        epoch: 0-based, of its first step; -1 without one.
        parts_s: Sums by ledger key; the keys add up to `total_s`. Keys that are 0 are left out.
    """

    per_bin: int
    first: Integers
    count: Integers
    start_s: Times
    end_s: Times
    total_s: Floats
    min_s: Floats
    p50_s: Floats
    p95_s: Floats
    max_s: Floats
    slowest: Integers
    epoch: Integers
    parts_s: dict[str, Floats]


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """Counts of values.

    Attributes:
        unit: "s" or "%".
        edges: Shape (n + 1,). Of percents: 0 to 100, and the last bin includes 100.
        counts: Shape (n,): steps, or seconds of the run.
    """

    name: str
    unit: str
    edges: Floats
    counts: Floats


@dataclass(frozen=True, kw_only=True)
class Series:
    """A figure of the machine at `Machine.time_s`.

    Attributes:
        panel: cpu|memory|disk|network|gpu_utilization|gpu_memory|gpu_power.
        unit: "%" (100 is one core, or a GPU), "bytes", "bytes/s" or "W".
        mean, peak: Of each bin; `peak` is None where a bin is one sample.
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
    """

    kind: str
    start_s: float
    end_s: float
    label: str


@dataclass(frozen=True, kw_only=True)
class Events:
    """The longest things that happened, in order of time; arrays of shape (n,).

    Attributes:
        kinds: outlier|slow fetch|sync|transfer|checkpoint|gc|evaluation|compile|collective ...
        kind: Index into `kinds`.
        labels: Distinct descriptions: a line, "sample 4711, worker 2", "generation 2".
        label: Index into `labels`.
        step: 0-based number of the step it lies in or belongs to, -1 outside of steps.
        dropped: How many more were too short to be kept.
    """

    kinds: list[str]
    kind: Bytes
    labels: list[str]
    label: Integers
    start_s: Times
    seconds: Floats
    step: Integers
    dropped: int = 0


@dataclass(frozen=True, kw_only=True)
class Lane:
    """A loader's worker over time, shape (n_bins,) each, of `Charts.lane_edges_s`.

    Attributes:
        name: "train.py:84 worker 0".
        running: Percent of the bin in which it prepared a batch on a core.
        blocked: In which it prepared one but did not run: storage, sleep, lock, or no free core.
            The rest it is idle; UNKNOWN_PERCENT before it started and after it ended.
    """

    loader: int
    name: str
    running: Bytes
    blocked: Bytes


# Frames of Stacks without a place. Of a deep stack both ends are recorded; a late sample met the line
# that is above MET_LATE, or another phase.
BETWEEN: Final = "..."
RARER: Final = "rarer calls"
NO_LINE: Final = "no line of your code"
MET_LATE: Final = "met late"
UNKNOWN_LINE: Final = "line unknown"


@dataclass(frozen=True, kw_only=True)
class Stacks:
    """Stack samples, equal ones added up.

    Attributes:
        frames: [function, "file.py:84"] of each distinct frame; a library's has its module's name
            as place, those that stand for others "".
        stacks: [thread, phase, samples, [frame numbers, outermost first], seconds], in order of
            thread and frames. `thread` is "training", "workers" or the name of another thread; `phase` is the ledger key that the
            training thread was in, or "fetch" where the thread itself prepared a batch.
    """

    frames: list[tuple[str, str]] = field(default_factory=list)
    stacks: list[tuple[str, str, int, list[int], float]] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Charts:
    """All pictures of a run's first training process.

    Attributes:
        wall_s: Length of the run.
        steps: None in a run without steps.
        machine: None where nothing was sampled.
        part: "epoch 2" or "steps 5:9" where they show a part of the run.
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
