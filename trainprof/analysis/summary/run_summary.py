"""The summary of a run: one frozen tree, all that renderers see and `summary.json` holds.

Times are seconds, sizes bytes, shares 0 to 1. None means "not observed":
`RunSummary.not_observed` has the reason under the field's path.
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
# A fault of a process that continued without being recorded begins with this.
RECORDING_STOPPED: Final = "recording stopped"


@dataclass(frozen=True, kw_only=True)
class RunTimes:
    """How the run ended, and where its time went.

    Attributes:
        outliers: Longest first, at most 100.
        outlier_count: Of all, None in older runs.
        hung: Where its processes stood, if it was ended without progress.
        not_observed: Why a field is empty, by its path.
        faults: Of trainprof, as sentences.
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
        """The number of outliers; of older runs those listed."""
        return len(self.outliers) if self.outlier_count is None else self.outlier_count

    @property
    def without_evaluation_s(self) -> float:
        """Seconds of the training phase without evaluation, of the first rank."""
        training_s = self.training.without_evaluation_s
        return (
            self.phases.training_s - self.evaluation.seconds if training_s is None else training_s
        )


@dataclass(frozen=True, kw_only=True)
class DataAndDevices:
    """Loaders, copies, devices and the machine.

    Attributes:
        out_of_memory: The device's state, if its memory ended the run.
        found_syncs: By --find-syncs, or None.
        emptied_caches: Lines of the training loop that call empty_cache().
        copied_pages: By forked workers, of the rank whose workers copied most.
        memory_growth: Of the training process, of the rank that grows most; None where memory does
            not grow with the steps.
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
        """The cores that other programs kept busy, if that changes the run's times, else ""."""
        cpu = None if self.system is None else self.system.shared_cpu
        if cpu is None or not cpu.is_disturbed:
            return ""
        return f"other programs kept {cpu.others_share * cpu.cores:.1f} of {cpu.cores} cores busy"

    @property
    def time_of_devices(self) -> str:
        """The base of shares of a device's time, in words."""
        return AFTER_WARMUP if any(device.warmup_s for device in self.devices or ()) else "training"

    @property
    def device_busy_share(self) -> float | None:
        """The lower bound of the busy share of `time_of_devices`, of the least busy device."""
        known = (device.busy_share for device in self.devices or [])
        return min((share[0] for share in known if share), default=None)


@dataclass(frozen=True, kw_only=True)
class CodeTimes:
    """Your lines, and the cost of Python in the model and in the loop.

    Attributes:
        lines: The cost of timing lines; None in a run that timed none.
        hot_lines: Your lines with most time of a step, largest share first.
        part_lines: Where each part of the training loop is spent, by function.
        python_in_model: Python code in the model's time, on the host; None with too few stack
            samples, with torch.compile, and in older runs.
        element_reads: Tensors read element by element inside the model, by the thousands.
        loss_in_loop_s: The part of "loss" that is not a module, by stack samples; None with too
            few, and in older runs.
        loss_by_place: The same, split as a ledger's `other_by_place`.
        once_in_loop_s: The part of "other" that happens once, in the first steps; None in older
            runs.
        startup, shutdown: Where those rows of the ledger are spent; None: not sampled.
        beside_share: Of the stack samples of training, those with another busy Python thread; None
            with too few.
        optimizers: The first few that took a step, most time first.
        compilations: By torch.compile, by line.
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
    """Runs of several training processes.

    Attributes:
        ranks: {rank, host, pid, steps, step_s, ledger: {wall_s, seconds}, exit} of each; `run`,
            `phases`, `ledger`, `training` and `verdict` are then of all ranks.
        trained_apart: The same of processes that trained without being ranks (hogwild, a script
            that starts trainings), except for the one shown.
        collectives: Calls of torch.distributed by line, means over ranks; part of `other` in the
            ledger.
        unshared: Training loaders whose data the ranks do not share.
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
        together: Upper bound of training's speedup with all changes: gains do not add up. None with
            fewer than two findings.
        passed_over: Findings that are not reported, and why.
        findings_from: The gain of steps from which on findings are reported, by this run's noise.
        rules: The ids of applied rules.
    """

    findings: list[Finding]
    verdict: Verdict
    together: float | None = None
    passed_over: list[PassedOver] = field(default_factory=list)
    findings_from: float | None = None
    rules: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """Of a `tune` run, whose other fields are its first baseline's."""

    trials: list[TrialSummary] = field(default_factory=list)
    recommended: Recommended | None = None
    tuning: Tuning | None = None


@dataclass(frozen=True, kw_only=True)
class RunSummary(Tuned, Diagnosed, Processes, CodeTimes, DataAndDevices, RunTimes):
    """The whole summary: six groups, one object in the JSON."""

    schema_version: int = SUMMARY_SCHEMA_VERSION

    @property
    def is_judged(self) -> bool:
        """Whether rules were applied, with enough steps."""
        if self.verdict.bottleneck != "unknown":
            return self.training.steady_steps >= MIN_STEADY_STEPS
        # Why a device was idle may be unknown.
        return self.findings_from is not None and self.training.steady_steps >= MANY_STEPS
