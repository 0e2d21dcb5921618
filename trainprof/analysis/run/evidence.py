"""What the verdict over one training process rests on, and what rules ask of its lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Final

from trainprof.analysis.device.device_part import DevicePart
from trainprof.analysis.device.host_waits import dearest_in_training, idle_during_s
from trainprof.analysis.device.idle import KEEPS_UP_IN
from trainprof.analysis.run.analysed import Analysed
from trainprof.analysis.stacks.hot_lines import MAKING, hottest
from trainprof.analysis.stacks.stacks_part import StacksPart
from trainprof.analysis.summary.code import Collective, HotLine, PythonInModel
from trainprof.analysis.summary.device import Device, SyncPoint, Transfer
from trainprof.analysis.summary.loader import Loader
from trainprof.analysis.summary.loader_figures import cost_s
from trainprof.analysis.summary.run import Training
from trainprof.analysis.timeline.checkpoints import Checkpoints
from trainprof.analysis.timeline.iterations import TRAINING
from trainprof.analysis.timeline.ledger import BEFORE_BACKWARD
from trainprof.analysis.timeline.timeline_part import TimelinePart

# A function that takes less of the making of a batch is not named with it.
NAMED_FROM_SHARE: Final = 0.25
# Of the evaluation, in passes over loaders: else what comes behind them is most of it.
_OVER_LOADERS_FROM_SHARE: Final = 0.5
# Of the samples at a line.
_WAITS_FROM_SHARE: Final = 0.5
# Of forwards, of backwards and of updates so many must leave the device without work.
_RAN_DRY_SHARE: Final = 0.8


@dataclass(frozen=True, slots=True)
class DeviceEvidence:
    """What a device tells of the training phase; shares of that phase without warm-up.

    Attributes:
        busy: At work at least, and at most.
        idle: By cause, as `Device.idle_because`.
        keeps_up: It has next to nothing left at the end of nearly all forwards, backwards and
            updates: the host's pace is its pace.
        warmup: Of the whole phase, its warm-up.
    """

    busy: tuple[float, float]
    idle: Mapping[str, float]
    keeps_up: bool
    warmup: float = 0.0

    @property
    def given_out(self) -> float:
        """The share in which it may have waited for more, or worked, while work was given out.

        0 where it does not keep up with the host, and is not known to wait most of that time.
        """
        waits_mostly = self.idle.get("launch_s", 0.0) > self.idle.get("unknown_s", 0.0)
        return self.idle.get("unknown_s", 0.0) if self.keeps_up or waits_mostly else 0.0

    @property
    def launching(self) -> float:
        """The share in which it waited for the host to give out work, at most."""
        return self.idle.get("launch_s", 0.0) + self.given_out

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
        return cls((low, high), shares, min(dry) >= _RAN_DRY_SHARE, warmup)

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
        wall_s: Of the run.
        startup_s: Of the run.
        training_s: Of the training phase.
        training: Seconds per ledger key inside the training phase.
        has_device: An accelerator was used.
        has_timed_lines: Timing lines slowed the script.
        was_synchronized: Devices were waited for around each phase.
        device: What the device tells, None where it tells nothing.
        transfer_site, sync_site: The lines whose copies and syncs cost the device most.
        collectives: Calls of torch.distributed, most time first: part of "other".
        waits_at: The line of "other" that takes most, where it waits for a thread or process.
        python_in_model: What of the model's parts is Python code, where that is known.
        loss_in_loop_s: Of "other", torch that is the model's own work, as a loss by hand is.
        compiling_s: Of forward, backward and optimizer, in which torch compiled.
        evaluation_site: The line of the loader that evaluation mostly goes over.
        evaluation_call: Where evaluation is called.
        evaluation_wait_share: Of the evaluation over that loader, what it waits for it.
        ranks: Whose loaders they are: times are means over so many.
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
    compiling_s: float = 0.0
    evaluation_wait_share: float = 0.0
    ranks: int = 1

    @property
    def communication_s(self) -> float:
        return sum(call.seconds for call in self.collectives)


def evidence_of(
    run: Analysed,
    time: TimelinePart,
    training: Training,
    loaders: list[Loader],
    device: DevicePart,
    stacks: StacksPart,
    collectives: list[Collective],
    compiling_s: float,
) -> Evidence:
    """Puts together what the verdict rests on.

    Args:
        run: Of one training process.
        time: Of its training thread.
        training: Of the run.
        loaders: As its training phase has them.
        device: What is known of its device.
        stacks: What stack samples tell.
        collectives: Calls of torch.distributed, most time first.
        compiling_s: In which torch compiled.
    """
    window, spent_s = run.timeline.window, time.spent_s
    training_s = (window.loop_end - window.loop_start) / 1e9
    longest = _evaluated_loader(loaders, spent_s["evaluation"], training)
    rest = places_of_rest(time.account.other_by_place, stacks.loss_by_place or {}, stacks.loss_s)
    line = hottest(stacks.part_lines, "other")
    is_wait = line is not None and line.share >= NAMED_FROM_SHARE and is_waiting(line)
    return Evidence(
        wall_s=time.account.wall_s,
        startup_s=time.account.seconds["startup"],
        training_s=training_s,
        training=spent_s,
        has_device=run.metadata.device() is not None,
        steps=training,
        loaders=loaders,
        checkpoints=time.checkpoints,
        evaluation_site=None if longest is None else longest.site,
        evaluation_call=called_for_at(stacks.part_lines) if longest is None else longest.called_at,
        evaluation_wait_share=0.0 if longest is None else _waited_share(longest),
        other_place=max(rest, key=lambda name: rest[name], default=None),
        has_timed_lines=run.has_timed_lines(),
        was_synchronized=run.synchronized() is not None,
        device=None if device.timed is None else DeviceEvidence.of(device.timed, training_s),
        transfer_site=_dearest_site(device.transfers),
        sync_site=_dearest_site(device.sync_points),
        collectives=collectives,
        waits_at=line.site if line is not None and is_wait else None,
        python_in_model=stacks.python_in_model,
        loss_in_loop_s=stacks.loss_s,
        compiling_s=compiling_s,
    )


def _evaluated_loader(loaders: list[Loader], spent_s: float, training: Training) -> Loader | None:
    """Returns the loader that evaluation goes over for longest; None where most is over none."""
    # Of inference alone its loader is all that can be named.
    if training.steps and not is_over_loaders(loaders, spent_s):
        return None
    evaluating = [loader for loader in loaders if loader.evaluation_s > 0]
    return max(evaluating, key=lambda loader: loader.evaluation_s, default=None)


def _waited_share(loader: Loader) -> float:
    waited_s = loader.evaluation_wait_s if loader.role == TRAINING else cost_s(loader)
    return waited_s / loader.evaluation_s


def _dearest_site(rows: Sequence[Transfer | SyncPoint]) -> str | None:
    """Returns the line that cost training most of them, None where the device felt none."""
    dearest, _ = dearest_in_training(rows)
    return dearest.site if dearest is not None and idle_during_s(dearest) > 0 else None


def is_over_loaders(loaders: Sequence[Loader], spent_s: float) -> bool:
    """Whether passes over loaders are most of what evaluation takes."""
    return sum(loader.evaluation_s for loader in loaders) >= _OVER_LOADERS_FROM_SHARE * spent_s


def called_for_at(lines: Sequence[HotLine]) -> str | None:
    """Returns the outermost line that leads to evaluation, and to no other part of training.

    Where nothing is known of the others that may be any of them: then it is the line itself. None
    where samples met none of it.
    """
    most = hottest(lines, "evaluation")
    if most is None:
        return None
    elsewhere = {
        site
        for line in lines
        if line.part not in (most.part, MAKING)
        for site in (line.site, *line.called_from)
    }
    leading = [site for site in (most.site, *most.called_from) if site not in elsewhere]
    return leading[-1] if leading and elsewhere else most.site


def places_of_rest(
    places: Mapping[str, float], of_loss: Mapping[str, float], loss_s: float
) -> dict[str, float]:
    """Returns where in the loop what is no loss lies, in seconds.

    Args:
        places: Of all of it, as a ledger's `other_by_place` has them.
        of_loss: Of the loss; empty where that is not known.
        loss_s: What of that counts.
    """
    of_loss = of_loss or {BEFORE_BACKWARD: loss_s}
    times = loss_s / max(sum(of_loss.values()), loss_s, 1e-9)
    return {
        name: max(spent_s - times * of_loss.get(name, 0.0), 0.0) for name, spent_s in places.items()
    }


def is_waiting(line: HotLine) -> bool:
    """Whether a line mostly waits for another thread or process."""
    return (line.waits_share or 0.0) >= _WAITS_FROM_SHARE
