"""What a run showed: one frozen tree, the only thing renderers see and `summary.json` holds.

Times are seconds, sizes bytes, shares 0 to 1. None means "not observed"; why stands in
`RunSummary.not_observed` under the field's path.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from trainprof.analysis.summary.code import (
    Collective,
    Compilation,
    ElementReads,
    HotLine,
    HottestLine,
    LineCost,
    Numerics,
    OptimizerUse,
    OutsideLoop,
    PythonInModel,
    UnsharedData,
)
from trainprof.analysis.summary.device import (
    AFTER_WARMUP,
    CopiedPages,
    Device,
    EmptiedCache,
    FoundSyncs,
    MemoryGrowth,
    OutOfMemory,
    Placement,
    SyncPoint,
    Transfer,
)
from trainprof.analysis.summary.finding import Finding, PassedOver
from trainprof.analysis.summary.levels import MANY_STEPS, MIN_STEADY_STEPS
from trainprof.analysis.summary.loader import Loader
from trainprof.analysis.summary.run import (
    Epoch,
    Evaluation,
    Hung,
    Ledger,
    Outlier,
    Overhead,
    Phases,
    Run,
    System,
    Training,
    Verdict,
)
from trainprof.analysis.summary.tune import Recommended, TrialSummary, Tuning

SUMMARY_SCHEMA_VERSION: Final = 1
# A fault begins so where a process went on without being recorded.
RECORDING_STOPPED: Final = "recording stopped"


@dataclass(frozen=True, kw_only=True)
class RunTimes:
    """How the run ended, and where its time went.

    Attributes:
        outliers: Longest first, at most 100; `outlier_count`: all of them, None in older runs.
        hung: Where its processes stood, if it was ended while no step came.
        not_observed: Why a field is None, by its path.
        faults: Of trainprof's own, as sentences.
    """

    run: Run
    phases: Phases
    ledger: Ledger
    training: Training
    evaluation: Evaluation
    epochs: list[Epoch]
    outliers: list[Outlier]
    overhead: Overhead
    wait_threshold_s: float
    outlier_count: int | None = None
    hung: Hung | None = None
    not_observed: dict[str, str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    @property
    def outliers_in_all(self) -> int:
        """How many there are: of older runs those that are listed."""
        return len(self.outliers) if self.outlier_count is None else self.outlier_count

    @property
    def without_evaluation_s(self) -> float:
        """Seconds of the training phase without the evaluation in it, of ranks the first's."""
        training_s = self.training.without_evaluation_s
        return (
            self.phases.training_s - self.evaluation.seconds if training_s is None else training_s
        )


@dataclass(frozen=True, kw_only=True)
class DataAndDevices:
    """Loaders, copies, devices and the machine.

    Attributes:
        out_of_memory: The device's state, where the run ended because its memory did.
        found_syncs: What --find-syncs found; None where it was not asked for or could not.
        emptied_caches: Lines of the training loop that return cached memory to a device.
        copied_pages: By forked workers, of several ranks the one whose workers copied most.
        memory_growth: Of the training process, of several ranks the one that grows most; None
            where memory does not grow with the steps.
        torch_threads: Threads of torch's CPU operators, in each rank.
    """

    loaders: list[Loader]
    transfers: list[Transfer]
    sync_points: list[SyncPoint]
    devices: list[Device] | None
    system: System | None
    placements: list[Placement] = field(default_factory=list)
    out_of_memory: OutOfMemory | None = None
    found_syncs: FoundSyncs | None = None
    emptied_caches: list[EmptiedCache] = field(default_factory=list)
    memory_growth: MemoryGrowth | None = None
    copied_pages: CopiedPages | None = None
    torch_threads: int | None = None

    @property
    def has_workers(self) -> bool:
        """Whether any loader has workers."""
        return any(loader.num_workers for loader in self.loaders)

    @property
    def taken_by_others(self) -> str:
        """That other programs took so much of the CPU that the run's times show it, else ""."""
        cpu = None if self.system is None else self.system.shared_cpu
        if cpu is None or not cpu.is_disturbed:
            return ""
        return f"other programs kept {cpu.others_share * cpu.cores:.1f} of {cpu.cores} cores busy"

    @property
    def time_of_devices(self) -> str:
        """What shares of a device's time are of, in words."""
        return AFTER_WARMUP if any(device.warmup_s for device in self.devices or ()) else "training"

    @property
    def device_busy_share(self) -> float | None:
        """The share of `time_of_devices` in which the least busy is at work, at least."""
        known = (device.busy_share for device in self.devices or [])
        return min((share[0] for share in known if share), default=None)


@dataclass(frozen=True, kw_only=True)
class CodeTimes:
    """The user's lines, and what the model's and the loop's own code costs.

    Attributes:
        lines: The cost of timing lines; None in a run that timed none.
        hot_lines: The user's lines with most time of a step, largest share first.
        part_lines: Where each part of the training loop is spent, by function.
        python_in_model: Python code in the model's time, on the host; None with too few stack
            samples, with torch.compile, and in older runs.
        element_reads: Tensors read element by element inside the model, where they are many.
        loss_in_loop_s: Of "loss": what is no module, by stack samples; None with too few, and in
            older runs. `loss_by_place`: the same, split as a ledger's `other_by_place`.
        once_in_loop_s: Of "other": what happens once, in the first steps; None in older runs.
        startup, shutdown: Where those rows of the ledger are spent; None: not sampled.
        beside_share: Of the stack samples of training, those that met another Python thread at
            work; None with too few.
        optimizers: The first few that made a step, most time first.
        compilations: What torch.compile took, by line.
        numerics: Number formats of the model's computation; None: unknown.
    """

    lines: LineCost | None = None
    hot_lines: list[HottestLine] = field(default_factory=list)
    part_lines: list[HotLine] = field(default_factory=list)
    python_in_model: PythonInModel | None = None
    element_reads: ElementReads | None = None
    loss_in_loop_s: float | None = None
    loss_by_place: dict[str, float] = field(default_factory=dict)
    once_in_loop_s: float | None = None
    startup: OutsideLoop | None = None
    shutdown: OutsideLoop | None = None
    beside_share: float | None = None
    optimizers: list[OptimizerUse] = field(default_factory=list)
    compilations: list[Compilation] = field(default_factory=list)
    numerics: Numerics | None = None


@dataclass(frozen=True, kw_only=True)
class Processes:
    """Runs of several processes that train.

    Attributes:
        ranks: {rank, host, pid, steps, step_s, ledger: {wall_s, seconds}, exit} of each; `run`,
            `phases`, `ledger`, `training` and `verdict` are then of all of them.
        trained_apart: The same of processes that trained without being ranks (hogwild, a script
            that starts trainings), but for the one that is shown.
        collectives: Calls of torch.distributed by line, means over ranks; in the ledger they are
            part of `other`.
        unshared: Training loaders whose data the ranks do not divide among them.
    """

    ranks: list[dict[str, Any]]
    stragglers: list[dict[str, Any]]
    trained_apart: list[dict[str, Any]] = field(default_factory=list)
    collectives: list[Collective] = field(default_factory=list)
    unshared: list[UnsharedData] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Diagnosed:
    """Verdict and findings.

    Attributes:
        together: How many times faster training would be at most with all findings mended: gains
            do not add up. None of fewer than two.
        passed_over: Findings that are not reported, and why.
        findings_from: The gain of steps from which findings are reported, by this run's noise.
        rules: Those that were applied, by id.
    """

    findings: list[Finding]
    verdict: Verdict
    together: float | None = None
    passed_over: list[PassedOver] = field(default_factory=list)
    findings_from: float | None = None
    rules: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """Of a `tune` run, whose other fields are those of its first baseline."""

    trials: list[TrialSummary] = field(default_factory=list)
    recommended: Recommended | None = None
    tuning: Tuning | None = None


@dataclass(frozen=True, kw_only=True)
class RunSummary(Tuned, Diagnosed, Processes, CodeTimes, DataAndDevices, RunTimes):
    """Everything a run showed: six groups, one object in the JSON."""

    schema_version: int = SUMMARY_SCHEMA_VERSION

    @property
    def is_judged(self) -> bool:
        """Whether rules were asked, and had data enough to find their causes."""
        if self.verdict.bottleneck != "unknown":
            return self.training.steady_steps >= MIN_STEADY_STEPS
        # Of a device it may be unknown what it was idle for.
        return self.findings_from is not None and self.training.steady_steps >= MANY_STEPS
