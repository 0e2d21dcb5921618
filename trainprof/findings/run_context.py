"""What rules judge: the summary, and the pipeline model of each loader."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from trainprof.analysis.loading.loader_builder import BuilderSettings, settings_of
from trainprof.analysis.model.torch_settings import TorchSettings
from trainprof.analysis.pipeline.bounds import predict
from trainprof.analysis.run.evidence import NAMED_FROM_SHARE, DeviceEvidence
from trainprof.analysis.run.metadata import Notes
from trainprof.analysis.statistics.step_noise import (
    Floats,
    half_split_noise,
    half_split_noise_without,
    pace_half_width,
    share_half_width,
)
from trainprof.analysis.summary.code import PREPARATION, HotLine, hottest
from trainprof.analysis.summary.levels import MANY_STEPS, MOST_NOISE, pair, percent
from trainprof.analysis.summary.loader import cost_s, starts_s, total_s
from trainprof.analysis.timeline.iterations import EVALUATION, TRAINING
from trainprof.analysis.timeline.ledger import LOADER_KEYS
from trainprof.findings.loading.model_inputs import without_others
from trainprof.findings.loading.waiting import Cause, Limits, cause_of, runnable_share
from trainprof.findings.wording import span

# They import the whole analysis, which `report` of a saved run does not need.
if TYPE_CHECKING:
    from trainprof.analysis.pipeline.bounds import PipelineInputs, Prediction, Rates
    from trainprof.analysis.pipeline.fit import LoaderModel
    from trainprof.analysis.run.one_process import ProcessNumbers
    from trainprof.analysis.summary.loader import Loader
    from trainprof.analysis.summary.run_summary import RunSummary
    from trainprof.analysis.timeline.checkpoints import Checkpoints
    from trainprof.analysis.timeline.events import Int64
    from trainprof.analysis.timeline.step_table import StepTable


_MOST_LOADERS: Final = 4
# A loader that costs less of training is not modelled, unless its workers run for the second share
# of training, and wait for a free core for that share of their time.
_MODELLED_FROM_SHARE: Final = 0.03
_CROWDED_FROM_SHARE: Final = 0.1
# Of training, that workers need at least for all batches of a loader: waiting for another loader
# may hide that.
_HIDDEN_FROM_SHARE: Final = 0.25
# Of the time under some ledger keys: with less of it in steady steps it is not a part of a step.
_IN_STEPS_SHARE: Final = 0.5
# A part of steps is taken to be at most this share.
_MOST_OF_STEPS: Final = 0.99


@dataclass(frozen=True, slots=True)
class Feeder:
    """A loader that the training thread consumes.

    Attributes:
        inputs: Of the pipeline model, None where it does not apply.
        measured: Its steps and waits as recorded, in the model's windows.
        now: Its steps and waits as modelled.
        exposed: Share of the waiting for it that delayed training: on a GPU, while that was idle.
        cause: Why training waits for it, None where it hardly does or that is unknown.
        training_s: Of the run's training phase.
        steps_share: Of training's steps, by time, those with its batches.
    """

    loader: Loader
    inputs: PipelineInputs | None
    measured: Rates | None
    now: Prediction | None
    cause: Cause | None
    training_s: float
    exposed: float = 1.0
    steps_share: float = 1.0

    @property
    def wait_share(self) -> float:
        """Share of training spent waiting for batches, and for the first batch of workers."""
        if self.training_s <= 0:
            return 0.0
        waited_s = self.loader.wait_total_s + self.loader.made_first_s
        if self.loader.role == TRAINING:
            waited_s -= self.loader.evaluation_wait_s
        return self.exposed * waited_s / self.training_s

    def speedup_of_all_steps(self, times: float) -> float:
        """Returns the speedup of all steps from that of the steps with its batches."""
        return times_of_part(times, self.steps_share)

    @property
    def starts_s(self) -> float:
        """Seconds spent on iterators, with the start of workers, and on first batches."""
        return starts_s(self.loader)

    @property
    def later_starts_s(self) -> float:
        """Seconds of those in later epochs: the first epoch's start may take far longer.

        An equal share where the first start is unknown.
        """
        loader = self.loader
        if not loader.later_passes:
            return 0.0
        if loader.later_passes == loader.passes:
            return self.starts_s
        first_s = loader.first_start_s
        if first_s is None:
            first_s = self.starts_s / loader.passes
        return loader.later_share * max(self.starts_s - first_s, 0.0)

    @property
    def recorded_starts(self) -> tuple[int, float]:
        """The number of starts that `measured` covers, and their seconds.

        Without workers, an iterator for each step counts as one start.
        """
        if self.loader.num_workers == 0 and self.loader.is_each_step:
            return 1, max(self.starts_s - self.loader.made_first_s, 0.0)
        return max(self.loader.passes, 1), self.starts_s

    @property
    def cost_s(self) -> float:
        return cost_s(self.loader)

    def hot_line(self) -> HotLine | None:
        """Returns the function that most of batch preparation goes to, if that is much."""
        line = self.likely_line()
        return None if line is None or line.is_likely else line

    def likely_line(self) -> HotLine | None:
        """Returns the same, or the function that most of it seems to go to."""
        return named_line(self.loader.hot_lines, PREPARATION)


@dataclass(frozen=True, slots=True)
class RunContext:
    """A run to be judged.

    Attributes:
        summary: Without findings.
        training_s: Of the training phase.
        training: Seconds per ledger key inside it.
        loaders: Of the training phase, with the figures of its epochs alone.
        feeding: Those that training consumes, costliest first.
        evaluating: Those of evaluation.
        checkpoints: Saves and loads in the training phase.
        full_collections: Full garbage collections in training.
        clips_gradients: By torch.nn.utils, which does not support sparse ones.
        backwards: Runs of the autograd engine in training.
        noise: Difference between the halves of the run, as a share of the mean steady step, up to
            MOST_NOISE; with few steps at least the error of their mean.
        steps: Of the training phase.
        settings: The thresholds of all rules, by "rule.name", from `catalogue.with_usual`.
        torch: Its settings.
        notes: Of probes that have a rule of their own.
    """

    summary: RunSummary
    training_s: float
    training: Mapping[str, float]
    loaders: Sequence[Loader]
    feeding: list[Feeder]
    evaluating: list[Feeder]
    checkpoints: Checkpoints
    noise: float
    steps: StepTable
    settings: Mapping[str, float] = field(default_factory=dict)
    full_collections: int = 0
    clips_gradients: bool = False
    backwards: int = 0
    torch: TorchSettings = field(default_factory=TorchSettings)
    notes: Notes = field(default_factory=Notes)

    @property
    def wall_s(self) -> float:
        return self.summary.run.wall_s

    def share(self, *keys: str) -> float:
        """Returns the share of training that some ledger keys take."""
        spent_s = sum(self.training.get(key, 0.0) for key in keys)
        return spent_s / self.training_s if self.training_s > 0 else 0.0

    def noise_of(self, keys: Sequence[str]) -> float:
        """Returns the difference between the run's halves in some ledger keys' cost of a step.

        As a share of the pace. On a GPU, and for keys outside of steps, it is the noise of whole
        steps: the host's times say little there.
        """
        spent, steady = self._spent(keys), self.steps.steady.mask
        if self.is_on_device or spent is None or not spent[steady].any():
            return self.noise
        wall, part = self.steps.wall_ns.astype(np.float64), spent.astype(np.float64)
        if np.count_nonzero(steady) < MANY_STEPS:
            return _noise_of_few(wall, part, self.steps)
        return min(self.noise, half_split_noise_without(wall[steady], part[steady]))

    def _spent(self, keys: Sequence[str]) -> Int64 | None:
        """Returns the time of some ledger keys in each step, ns; None where no step has them."""
        per_step = [self.steps.per_step[key] for key in keys if key in self.steps.per_step]
        return np.sum(per_step, axis=0) if per_step and len(self.steps) else None

    def steps_with_most(self, keys: Sequence[str], at_most: int = 5) -> list[dict[str, float]]:
        """Returns the steps where some ledger keys took most: index, seconds, those of the keys."""
        spent = self._spent(keys)
        if spent is None:
            return []
        most = np.argsort(-spent, kind="stable")[:at_most]
        return [
            {
                "step": int(step),
                "seconds": float(self.steps.wall_ns[step] / 1e9),
                "part_s": float(spent[step] / 1e9),
            }
            for step in most.tolist()
            if spent[step] > 0
        ]

    def idle_s(self, cause: str) -> float | None:
        """Returns for how long a GPU idled because of `cause`; None without one, or if unknown."""
        idle = [device.idle_because for device in self.summary.devices or ()]
        return idle[0].get(cause) if idle and idle[0] is not None else None

    def idle_for_host_s(self) -> float:
        """Returns for how long a GPU idled while the host was busy, at most."""
        return sum(self.idle_s(cause) or 0.0 for cause in ("host_s", "launch_s", "unknown_s"))

    def hot_line(self, part: str) -> HotLine | None:
        """Returns the function that most of a part of training goes to, if that is much."""
        return named_line(self.summary.part_lines, part)

    def launching_s(self) -> float | None:
        """Returns for how long a GPU waited for kernel launches, at most; None if unknown."""
        devices = self.summary.devices or ()
        known = DeviceEvidence.of(devices[0], self.training_s) if devices else None
        return None if known is None else known.launching * self.settled_s

    @property
    def settled_s(self) -> float:
        """Training without its warm-up, where a GPU shows how long that took."""
        return self.training_s - min(self.idle_s("warmup_s") or 0.0, self.training_s)

    def as_share(self, seconds: float) -> str:
        """Returns the share of training in words."""
        share = seconds / self.settled_s if self.settled_s > 0 else 0.0
        return f"{percent(share)} of {self.summary.time_of_devices}"

    def step_part(
        self, seconds: float, *keys: str, once_s: float = 0.0
    ) -> tuple[float, float] | None:
        """Returns what some seconds of training are in a steady step, and that step.

        None where most of what the ledger keys have lies outside of steady steps.

        Args:
            keys: Of the ledger: what the seconds are part of.
            once_s: Of those keys' time, what does not come again.
        """
        per_step = self.summary.training.per_step_s or {}
        step_s, in_step_s = sum(per_step.values()), sum(per_step.get(key, 0.0) for key in keys)
        lasting_s = sum(self.training.get(key, 0.0) for key in keys) - once_s
        in_steps_s = in_step_s * self.summary.training.steps
        if step_s <= 0 or lasting_s <= 0 or in_steps_s < _IN_STEPS_SHARE * lasting_s:
            return None
        return in_step_s * min(seconds / lasting_s, 1.0), step_s

    def of_step(self, seconds: float, *keys: str, once_s: float = 0.0) -> str:
        """Returns `step_part` in words: "6.00 ms of each 95.0 ms step (6 %)"."""
        known = self.step_part(seconds, *keys, once_s=once_s)
        part_s, whole_s = known or (seconds, self.settled_s)
        share = percent(part_s / whole_s if whole_s > 0 else 0.0)
        if known is None:
            return f"{pair(part_s, whole_s)} of {self.summary.time_of_devices} ({share})"
        return f"{span(part_s)} of each {span(whole_s)} step ({share})"

    @property
    def is_on_device(self) -> bool:
        return self.summary.run.is_on_device

    def held_up_s(self, key: str, cause: str) -> float:
        """Returns for how long a ledger key delayed training: on a GPU, its idle time."""
        spent_s = self.training.get(key, 0.0)
        if not self.is_on_device:
            return spent_s
        idle_s = self.idle_s(cause) or 0.0
        if key == "other":  # the GPU's idle time counts a loss without a module as Python, too
            idle_s = max(idle_s - (self.summary.loss_in_loop_s or 0.0), 0.0)
        return min(spent_s, idle_s)

    def builder(self) -> BuilderSettings | None:
        """Returns the settings of the library that builds all loaders of training, if known."""
        builders = {feeder.loader.built_by: feeder.loader.builder_lacks for feeder in self.feeding}
        return settings_of(*builders.popitem()) if len(builders) == 1 else None

    def threads_of_training(self) -> int | None:
        """Returns the number of threads of the training process, as the system counts them."""
        system = self.summary.system
        for process in system.processes if system is not None else ():
            if process.get("role") == "main" and isinstance(process.get("threads"), int):
                return int(process["threads"])
        return None

    def cores(self, name: str = "cores_usable") -> float | None:
        """Returns the number of cores the run could use; "cores_physical": no hyper-threads."""
        known = self.summary.system.cpu.get(name) if self.summary.system else None
        return float(known) if isinstance(known, (int, float)) else None


def times_of_part(times: float, share: float) -> float:
    """Returns the speedup of the whole from that of a share of its time."""
    return times if share >= 1 or times <= 0 else 1 / (1 - share * (1 - 1 / times))


def named_line(lines: Sequence[HotLine], part: str) -> HotLine | None:
    """Returns the line that most of a part goes to, if that is much."""
    line = hottest(lines, part)
    return line if line is not None and line.share >= NAMED_FROM_SHARE else None


def context_of_process(numbers: ProcessNumbers, settings: Mapping[str, float]) -> RunContext:
    """Returns the rules' context from the numbers of the training process."""
    evidence, steps, summary = numbers.evidence, numbers.steps, numbers.summary

    def loaders_of(role: str, exposed: float) -> list[Feeder]:
        here = [x for x in evidence.loaders if x.thread == "training" and x.role == role]
        results = []
        here.sort(key=lambda loader: -(loader.wait_total_s + total_s(loader.first_batch_s)))
        for loader in here[:_MOST_LOADERS]:
            feeder = Feeder(loader, None, None, None, None, evidence.training_s, exposed)
            feeder = _modelled(feeder, numbers.model_of, _limits(settings), summary)
            results.append(replace(feeder, steps_share=numbers.steps_shares.get(loader.id, 1.0)))
        return results

    in_training = _exposed_share(summary, evidence.training, LOADER_KEYS, "loader_s")
    in_evaluation = _exposed_share(summary, evidence.training, ("evaluation",), "evaluation_s")
    return RunContext(
        summary=summary,
        training_s=evidence.training_s,
        training=evidence.training,
        loaders=evidence.loaders,
        feeding=loaders_of(TRAINING, in_training),
        evaluating=loaders_of(EVALUATION, in_evaluation),
        checkpoints=evidence.checkpoints,
        noise=_noise_of_steps(steps),
        steps=steps,
        settings=settings,
        full_collections=numbers.full_collections,
        clips_gradients=numbers.clips_gradients,
        backwards=numbers.backwards,
        torch=numbers.torch,
        notes=numbers.notes,
    )


def _noise_of_steps(steps: StepTable) -> float:
    wall = steps.wall_ns[steps.steady.mask].astype(np.float64)
    noise = min(half_split_noise(wall), MOST_NOISE)
    if not 0 < len(wall) < MANY_STEPS:
        return noise
    return max(noise, pace_half_width(wall, cycle=steps.cycle))


def _noise_of_few(wall: Floats, part: Floats, steps: StepTable) -> float:
    """Returns the error of the gain of steps without a part, as a share of the pace.

    It includes what the first, unsteady steps have more of that part: later ones don't gain it.
    """
    steady = steps.steady.mask
    share, all_share = (
        min(float(part[chosen].sum() / wall[chosen].sum()), _MOST_OF_STEPS)
        for chosen in (steady, np.ones_like(steady))
    )
    reach = share_half_width(part[steady], wall[steady], cycle=steps.cycle)
    return reach / (1 - share) + max((1 - share) / (1 - all_share) - 1, 0.0)


def _exposed_share(
    summary: RunSummary, training: Mapping[str, float], keys: Sequence[str], cause: str
) -> float:
    """Returns the share of some ledger keys that delayed training, by a GPU's idle time."""
    if not summary.run.is_on_device:
        return 1.0
    idle = [device.idle_because for device in summary.devices or ()]
    waited_s = sum(training.get(key, 0.0) for key in keys)
    if not idle or idle[0] is None or waited_s <= 0:
        return 0.0
    return min(idle[0].get(cause, 0.0) / waited_s, 1.0)


def _limits(settings: Mapping[str, float]) -> Limits:
    """Returns the thresholds of rules that distinguish causes, with the lowest share of waiting."""
    return Limits(
        wait=min(value for name, value in settings.items() if name.endswith(".wait_share")),
        slow_samples=settings["slow_samples.excess_share"],
        receive=settings["slow_receive.receive_share"],
        receive_s=settings["slow_receive.receive_s"],
        collate=settings["slow_collate.collate_share"],
        sample_by_sample=settings["sample_by_sample.wait_share"],
        cheap_sample_s=settings["sample_by_sample.sample_s"],
        fair_shares=settings["too_few_workers.fair_shares"],
    )


def _modelled(
    feeder: Feeder,
    model_of: Callable[[int], LoaderModel | None],
    limits: Limits,
    summary: RunSummary,
) -> Feeder:
    """Returns a loader with its pipeline model, if it costs enough."""
    loader, training_s = feeder.loader, feeder.training_s
    is_cheap = feeder.cost_s < _MODELLED_FROM_SHARE * training_s
    if is_cheap and not (_may_crowd(loader, training_s) or _may_be_hidden(loader, training_s)):
        return feeder
    model = model_of(loader.id)
    if model is None:
        return feeder
    inputs, now, is_disturbed = model.inputs, model.now, bool(summary.taken_by_others)
    if is_disturbed:
        inputs = without_others(inputs)
        now = predict(inputs)
    felt = feeder.exposed if summary.run.is_on_device else None
    cause = cause_of(
        loader, inputs, now, feeder.wait_share, limits, felt=felt, is_disturbed=is_disturbed
    )
    return replace(feeder, inputs=inputs, measured=model.measured, now=now, cause=cause)


def _may_crowd(loader: Loader, training_s: float) -> bool:
    """Whether workers may compete with training for cores."""
    fetch, least = loader.fetch, _CROWDED_FROM_SHARE
    if not loader.num_workers or fetch is None:
        return False
    return (fetch.running_s or 0.0) >= least * training_s and runnable_share(fetch) >= least


def _may_be_hidden(loader: Loader, training_s: float) -> bool:
    """Whether training may wait for it once it does not wait for another loader."""
    fetch, workers = loader.fetch, loader.num_workers
    if loader.role != TRAINING or not workers or fetch is None or fetch.wall_s is None:
        return False
    return fetch.wall_s.mean * fetch.n / workers >= _HIDDEN_FROM_SHARE * training_s
