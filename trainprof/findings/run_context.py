"""What rules look at: the summary, and of each loader what the pipeline model says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from trainprof.analysis.loading.loader_builder import BuilderSettings, settings_of
from trainprof.analysis.loading.loader_cost import cost_s, starts_s
from trainprof.analysis.model.torch_settings import TorchSettings
from trainprof.analysis.pipeline.bounds import PipelineInputs, Prediction, Rates
from trainprof.analysis.run.notes import Notes
from trainprof.analysis.stacks.lines_by_part import MAKING, hottest
from trainprof.analysis.statistics.step_noise import half_split_noise_without
from trainprof.analysis.summary.code import HotLine
from trainprof.analysis.summary.levels import percent
from trainprof.analysis.summary.loader import Loader
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.analysis.timeline.checkpoints import Checkpoints
from trainprof.analysis.timeline.events import Int64
from trainprof.analysis.timeline.iterations import TRAINING
from trainprof.analysis.timeline.step_table import StepTable
from trainprof.analysis.verdict.device_headline import DeviceEvidence
from trainprof.findings.loading.waiting import Cause

# A function that takes less of the making of a batch is not named with it.
NAMED_FROM_SHARE: Final = 0.25


@dataclass(frozen=True, slots=True)
class LoaderCase:
    """A loader that the training thread consumes.

    Attributes:
        inputs: What its recording tells, None where the pipeline model does not apply.
        measured: Its steps and waits as recorded, in the model's windows.
        now: The model of the setting it was recorded with.
        exposed: Share of what is waited for it that held training up: on a device, that in which it
            had run dry.
        cause: Why training waits for it, None where it hardly does or that is not known.
        training_s: Of the run's training phase.
        steps_share: Of training's steps, by their time, those that its batches go into.
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
        """Share of training spent waiting for batches, and for workers to make the first of a pass.

        What the training process makes itself it waits for, be it the first or a later one.
        """
        if self.training_s <= 0:
            return 0.0
        waited_s = self.loader.wait_total_s + self.loader.made_first_s
        if self.loader.role == TRAINING:
            waited_s -= self.loader.evaluation_wait_s
        return self.exposed * waited_s / self.training_s

    def of_all_steps(self, times: float) -> float:
        """Returns how many times as fast all steps are if those are that it feeds."""
        return times_of_part(times, self.steps_share)

    @property
    def starts_s(self) -> float:
        """Seconds spent on iterators, with the start of workers, and on first batches."""
        return starts_s(self.loader)

    @property
    def later_starts_s(self) -> float:
        """Seconds of those that later passes took: the first of a loader may take far longer.

        As if all took alike, where nothing tells the first one apart.
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
        """How often a pass began in what `measured` was measured from, and seconds spent on that.

        An iterator for each step, without workers, is told as if there were but one.
        """
        if self.loader.num_workers == 0 and self.loader.is_each_step:
            return 1, max(self.starts_s - self.loader.made_first_s, 0.0)
        return max(self.loader.passes, 1), self.starts_s

    @property
    def cost_s(self) -> float:
        return cost_s(self.loader)

    def hot_line(self) -> HotLine | None:
        """Returns the function that most of the making of its batches goes to, if it is much."""
        return named_line(self.loader.hot_lines, MAKING)


@dataclass(frozen=True, slots=True)
class Case:
    """A run to be judged.

    Attributes:
        summary: Without findings.
        training_s: Of the training phase.
        training: Seconds per ledger key inside it.
        loaders: As it has them: with the figures of passes in it alone.
        feeding: Those of them that training consumes, costliest first.
        evaluating: Those of evaluation.
        checkpoints: What was saved and loaded in the training phase.
        full_collections: How often the garbage collector walked all objects in training.
        clips_gradients: By torch.nn.utils, which takes no sparse ones.
        backwards: Runs of the autograd engine in training.
        noise: Of the mean steady step, as a share: by how much the halves of the run differ.
        steps: Of the training phase.
        settings: Thresholds that the user has set, by "rule.name".
        torch: How it was set.
        notes: Of probes that have a rule of their own.
    """

    summary: RunSummary
    training_s: float
    training: Mapping[str, float]
    loaders: Sequence[Loader]
    feeding: list[LoaderCase]
    evaluating: list[LoaderCase]
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

    def threshold(self, rule: str, name: str, usual: float) -> float:
        """Returns a rule's threshold: as the user has set it, else the usual one."""
        return self.settings.get(f"{rule}.{name}", usual)

    def share(self, *keys: str) -> float:
        """Returns the share of training that some ledger keys take."""
        spent_s = sum(self.training.get(key, 0.0) for key in keys)
        return spent_s / self.training_s if self.training_s > 0 else 0.0

    def noise_of(self, keys: Sequence[str]) -> float:
        """Returns by how much the halves of the run differ in what some ledger keys cost a step.

        As a share of the pace. On a device, and of what does not lie in steps, it is the noise of
        whole steps: the host's own times say little there.
        """
        spent, steady = self._spent(keys), self.steps.steady.mask
        if self.is_on_device or spent is None or not spent[steady].any():
            return self.noise
        wall = self.steps.wall_ns[steady].astype(np.float64)
        return min(self.noise, half_split_noise_without(wall, spent[steady].astype(np.float64)))

    def _spent(self, keys: Sequence[str]) -> Int64 | None:
        """Returns what some ledger keys took of each step, ns; None where no step has them."""
        per_step = [self.steps.per_step[key] for key in keys if key in self.steps.per_step]
        return np.sum(per_step, axis=0) if per_step and len(self.steps) else None

    def steps_with_most(self, keys: Sequence[str], at_most: int = 5) -> list[dict[str, float]]:
        """Returns the steps in which some ledger keys took most: index, seconds, of these keys."""
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
        """Returns for how long a device had nothing to do because of `cause`.

        None without one, and where it is not known: on a device the host's own times say little.
        """
        told = [device.idle_because for device in self.summary.devices or ()]
        return told[0].get(cause) if told and told[0] is not None else None

    def idle_for_host_s(self) -> float:
        """Returns for how long a device had nothing to do while the host was at work, at most."""
        return sum(self.idle_s(cause) or 0.0 for cause in ("host_s", "launch_s", "unknown_s"))

    def hot_line(self, part: str) -> HotLine | None:
        """Returns the function that most of a part of training goes to, if it is much."""
        return named_line(self.summary.part_lines, part)

    def launching_s(self) -> float | None:
        """Returns for how long a device waited for the host to give out work, at most.

        None without one, and where it is not known.
        """
        devices = self.summary.devices or ()
        told = DeviceEvidence.of(devices[0], self.training_s) if devices else None
        return None if told is None else told.launching * self.settled_s

    @property
    def settled_s(self) -> float:
        """Training without its warm-up, where a device tells what that took."""
        return self.training_s - min(self.idle_s("warmup_s") or 0.0, self.training_s)

    def of_settled(self, seconds: float) -> str:
        """Returns what share of training that is, in words."""
        share = seconds / self.settled_s if self.settled_s > 0 else 0.0
        return f"{percent(share)} of {self.summary.time_of_devices}"

    @property
    def is_on_device(self) -> bool:
        return self.summary.run.is_on_device

    def held_up_s(self, key: str, cause: str) -> float:
        """Returns for how long a ledger key held training up.

        Args:
            key: Of the ledger.
            cause: What a device is idle for meanwhile.
        """
        spent_s = self.training.get(key, 0.0)
        return min(spent_s, self.idle_s(cause) or 0.0) if self.is_on_device else spent_s

    def builder(self) -> BuilderSettings | None:
        """Returns who builds the loaders that feed training, where it is told how, and is one."""
        builders = {fed.loader.built_by for fed in self.feeding}
        return settings_of(builders.pop()) if len(builders) == 1 else None

    @property
    def recomputes_forwards(self) -> bool:
        """Whether activations are checkpointed, or forwards computed again in another way."""
        return self.training.get("recompute", 0.0) > 0

    def threads_of_training(self) -> int | None:
        """Returns how many threads the training process had, as the system counts them."""
        system = self.summary.system
        for process in system.processes if system is not None else ():
            if process.get("role") == "main" and isinstance(process.get("threads"), int):
                return int(process["threads"])
        return None

    def cores(self) -> float | None:
        """Returns how many cores the run could use, hyper-threads counted each."""
        return self._of_cpu("cores_usable")

    def physical_cores(self) -> float | None:
        """Returns the same with the hyper-threads of a core counted as one."""
        return self._of_cpu("cores_physical")

    def _of_cpu(self, name: str) -> float | None:
        told = self.summary.system.cpu.get(name) if self.summary.system else None
        return float(told) if isinstance(told, (int, float)) else None


def times_of_part(times: float, share: float) -> float:
    """Returns how many times as fast all is if a share of its time is so many times as fast."""
    return times if share >= 1 or times <= 0 else 1 / (1 - share * (1 - 1 / times))


def named_line(lines: Sequence[HotLine], part: str) -> HotLine | None:
    """Returns the line that most of a part goes to, if it is much."""
    line = hottest(lines, part)
    return line if line is not None and line.share >= NAMED_FROM_SHARE else None
