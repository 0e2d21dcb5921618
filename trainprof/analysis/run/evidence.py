"""What the verdict over one training process rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Final

from trainprof.analysis.summary.code import (
    PREPARATION,
    Collective,
    HotLine,
    OutsideLoop,
    PythonInModel,
    hottest,
)
from trainprof.analysis.summary.device import KEEPS_UP_IN, Device
from trainprof.analysis.summary.loader import Loader
from trainprof.analysis.summary.run import Training
from trainprof.analysis.timeline.checkpoints import Checkpoints
from trainprof.analysis.timeline.step_table import StepTable

# A function that takes less of batch preparation is not named.
NAMED_FROM_SHARE: Final = 0.25
# Of evaluation, in iterations over loaders: with less, what follows them is most of it.
_OVER_LOADERS_FROM_SHARE: Final = 0.5
# Of the samples at a line.
_WAITS_FROM_SHARE: Final = 0.5
# Of forwards, of backwards and of updates: the share that must leave the GPU idle.
_LEFT_IDLE_SHARE: Final = 0.8


@dataclass(frozen=True, slots=True)
class DeviceEvidence:
    """What a GPU did in the training phase; shares of that phase without warm-up.

    Attributes:
        busy: Low and high.
        idle: By cause, as `Device.idle_because`.
        keeps_up: It is idle at the end of nearly all forwards, backwards and updates: the host sets
            the pace.
        warmup: As a share of the whole phase.
    """

    busy: tuple[float, float]
    idle: Mapping[str, float]
    keeps_up: bool
    warmup: float = 0.0

    @property
    def while_launching(self) -> float:
        """The share in which it may have been idle or busy while the host launched kernels.

        0 where it does not keep up with the host and does not wait most of that time.
        """
        waits_mostly = self.idle.get("launch_s", 0.0) > self.idle.get("unknown_s", 0.0)
        return self.idle.get("unknown_s", 0.0) if self.keeps_up or waits_mostly else 0.0

    @property
    def launching(self) -> float:
        """The share in which it waited for kernel launches, at most."""
        return self.idle.get("launch_s", 0.0) + self.while_launching

    @classmethod
    def of(cls, device: Device, training_s: float) -> DeviceEvidence | None:
        if device.busy_share is None:
            return None
        low, high = device.busy_share
        settled_s = max(training_s - device.warmup_s, 0.0) or 1.0
        idle_s = device.idle_because or {}
        shares = {x: spent_s / settled_s for x, spent_s in idle_s.items() if x != "warmup_s"}
        dry = [device.ran_dry.get(name, 0.0) for name in KEEPS_UP_IN]
        warmup = device.warmup_s / (training_s or 1.0)
        return cls((low, high), shares, min(dry) >= _LEFT_IDLE_SHARE, warmup)

    @classmethod
    def common(cls, each: Sequence[DeviceEvidence]) -> DeviceEvidence:
        """Returns the mean over ranks."""
        lows, highs = zip(*(rank.busy for rank in each), strict=True)
        return cls(
            (min(lows), max(highs)),
            {cause: fmean(rank.idle.get(cause, 0.0) for rank in each) for cause in each[0].idle},
            all(rank.keeps_up for rank in each),
            fmean(rank.warmup for rank in each),
        )


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the verdict rests on.

    Attributes:
        training: Seconds per ledger key inside the training phase.
        transfer_site, sync_site: The lines whose copies and syncs cost most.
        collectives: Calls of torch.distributed, most time first: part of "other".
        waits_at: The slowest line of "other", if it waits for a thread or process.
        loss_in_loop_s: Of "loss", what is not a module.
        loss_at: The slowest line of "loss".
        evaluation_site: The line of evaluation's main loader.
        evaluation_wait_share: Of evaluation over that loader, waiting for it.
        ranks: Number of ranks that times are means over.
        few_steps: Its steps, where fewer than MANY_STEPS are steady; those of the first rank.
    """

    wall_s: float
    startup_s: float
    training_s: float
    training: dict[str, float]
    has_device: bool
    steps: Training
    loaders: list[Loader]
    checkpoints: Checkpoints
    evaluation_site: str | None
    evaluation_call: str | None
    other_place: str | None
    has_timed_lines: bool = False
    was_synchronized: bool = False
    device: DeviceEvidence | None = None
    transfer_site: str | None = None
    sync_site: str | None = None
    collectives: list[Collective] = field(default_factory=list)
    waits_at: str | None = None
    python_in_model: PythonInModel | None = None
    loss_in_loop_s: float = 0.0
    loss_at: str | None = None
    startup: OutsideLoop | None = None
    evaluation_wait_share: float = 0.0
    ranks: int = 1
    few_steps: StepTable | None = None

    @property
    def communication_s(self) -> float:
        return sum(call.seconds for call in self.collectives)


def is_over_loaders(loaders: Sequence[Loader], spent_s: float) -> bool:
    """Whether iterations over loaders are most of what evaluation takes."""
    return sum(loader.evaluation_s for loader in loaders) >= _OVER_LOADERS_FROM_SHARE * spent_s


def called_for_at(lines: Sequence[HotLine]) -> str | None:
    """Returns the outermost line that calls evaluation and no other part of training.

    The line itself where other parts have no lines. None without samples of evaluation.
    """
    most = hottest(lines, "evaluation")
    if most is None:
        return None
    elsewhere = {
        site
        for line in lines
        if line.part not in (most.part, PREPARATION)
        for site in (line.site, *line.called_from)
    }
    leading = [site for site in (most.site, *most.called_from) if site not in elsewhere]
    return leading[-1] if leading and elsewhere else most.site


def is_waiting(line: HotLine) -> bool:
    return (line.waits_share or 0.0) >= _WAITS_FROM_SHARE
