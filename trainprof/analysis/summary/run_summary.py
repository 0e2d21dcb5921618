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
    PythonInModel,
    UnsharedData,
)
from trainprof.analysis.summary.device import (
    AFTER_WARMUP,
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


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Everything a run showed.

    Attributes:
        lines: What timing lines took, None in a run that timed none.
        together: How many times as fast training would be at most with all findings mended: their
            gains do not add up. None of fewer than two.
        passed_over: What rules found besides, and why it is not told.
        findings_from: From which gain of steps on a finding is told, by the noise of this run.
        rules: That were asked, by id.
        hot_lines: Of the user's, those that a step spends most time in, largest share first.
        part_lines: Where each part of the training loop is spent, by functions.
        python_in_model: What of the model's time is Python code; None where too few looks tell it,
            with torch.compile, whose code looks like it, and in older runs. On a device it is the
            host's time: the device may have worked meanwhile.
        element_reads: Of tensors inside the model, one by one, where they are many.
        loss_in_loop_s: Of "other": torch that is the model's own work, as a loss without a module
            is; None where too few looks tell it, and in older runs.
        loss_by_place: The same, split as a ledger's `other_by_place`; empty in older runs.
        once_in_loop_s: Of "other": what comes but once, in the first steps and as torch.compile
            compiles; None in older runs.
        beside_share: Of the looks at training, those that met another thread of the process at
            work; None of too few.
        ranks: {rank, host, pid, steps, step_s, ledger: {wall_s, seconds}, exit} of each, in runs of
            several; `run`, `phases`, `ledger`, `training` and `verdict` are then of all of them.
        out_of_memory: The state in which a device ran out of it, where the run ended by that.
        found_syncs: What --find-syncs found, None where it was not asked for or could not.
        compilations: What torch.compile took, by line; empty where nothing was compiled.
        emptied_caches: Lines of the training loop that give memory which torch keeps back to a
            device.
        collectives: Calls of torch.distributed by line, means over ranks; in the ledger they are
            part of `other`.
        memory_growth: Of the process that trains; None where it does not grow with the steps. Of
            several ranks the one that grows most.
        unshared: Loaders that train and whose data the ranks do not share out.
        torch_threads: That torch computes with on the CPU, in each rank.
        numerics: In what the model computes; None where that is not known.
        outliers: Longest first, at most 100.
        outlier_count: How many there are; None in older runs.
        trained_apart: The same of processes that trained besides the one that is shown, without
            being ranks of it (hogwild, a script that starts trainings).
        hung: Where it stood, if it was ended while no step came; else None.
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
    outlier_count: int | None = None
    hot_lines: list[HottestLine] = field(default_factory=list)
    part_lines: list[HotLine] = field(default_factory=list)
    python_in_model: PythonInModel | None = None
    element_reads: ElementReads | None = None
    loss_in_loop_s: float | None = None
    loss_by_place: dict[str, float] = field(default_factory=dict)
    once_in_loop_s: float | None = None
    beside_share: float | None = None
    placements: list[Placement] = field(default_factory=list)
    together: float | None = None
    passed_over: list[PassedOver] = field(default_factory=list)
    findings_from: float | None = None
    rules: list[str] = field(default_factory=list)
    out_of_memory: OutOfMemory | None = None
    found_syncs: FoundSyncs | None = None
    compilations: list[Compilation] = field(default_factory=list)
    emptied_caches: list[EmptiedCache] = field(default_factory=list)
    collectives: list[Collective] = field(default_factory=list)
    memory_growth: MemoryGrowth | None = None
    unshared: list[UnsharedData] = field(default_factory=list)
    torch_threads: int | None = None
    numerics: Numerics | None = None
    hung: Hung | None = None
    trials: list[TrialSummary] = field(default_factory=list)
    recommended: Recommended | None = None
    tuning: Tuning | None = None
    schema_version: int = SUMMARY_SCHEMA_VERSION

    @property
    def outliers_in_all(self) -> int:
        """How many there are: of older runs those that are listed."""
        return len(self.outliers) if self.outlier_count is None else self.outlier_count

    @property
    def has_workers(self) -> bool:
        """Whether any of its loaders has some."""
        return any(loader.num_workers for loader in self.loaders)

    @property
    def time_of_devices(self) -> str:
        """What shares of a device's time are of, in words."""
        return AFTER_WARMUP if any(device.warmup_s for device in self.devices or ()) else "training"

    @property
    def without_evaluation_s(self) -> float:
        """Seconds of the training phase without the evaluation in it, of ranks the first's."""
        told_s = self.training.without_evaluation_s
        return self.phases.training_s - self.evaluation.seconds if told_s is None else told_s

    @property
    def device_busy_share(self) -> float | None:
        """The share of `time_of_devices` in which the least busy is at work, at least."""
        known = (device.busy_share for device in self.devices or [])
        return min((share[0] for share in known if share), default=None)
