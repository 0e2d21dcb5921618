"""A saved run for a comparison: its summary, its single steps and its manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from trainprof.analysis.run.metadata import integer, number_at
from trainprof.analysis.run.recording import manifest_of_first
from trainprof.analysis.statistics.speedup import Pace
from trainprof.analysis.statistics.step_noise import Floats
from trainprof.analysis.summary.loader import Loader
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.analysis.timeline.iterations import TRAINING
from trainprof.analysis.timeline.steady_state import CHECKPOINT, MIN_STEADY_STEPS, few_that_save
from trainprof.analysis.timeline.step_series import StepSeries, read_step_series
from trainprof.record.run_directory import RunDirectory

# Cost of busy neighbours through caches, memory and clocks, without waiting for a core. With one of
# two cores busy, equal runs of 2 ms steps differed by up to 10 %
# (benchmarks/compare_false_alarms.py).
_SHARED_COST: Final = 0.2
# Cost of lost CPU time: torch's threads wait for each other, so a step slows by more than the lost
# share. With a third lost, the mean step of sample_scripts/healthy.py took 4x longer.
_STALL_POWER, _STALL_POWER_ALONE = 3, 2
_MOST_TAKEN: Final = 0.9
# Run-to-run variation of a virtual machine's cores: hidden neighbours, clocks, hyperthreads. Ten
# equal runs of benchmarks/scripts/two_ms.py took 2.03 to 2.71 ms a step (standard deviation 11 %),
# so 95 % of pairs differ by less than 35 %. With two threads it was 12 %, plus two workers 16 %.
_VIRTUAL_WANDERS, _VIRTUAL_WANDERS_ALONE = 0.5, 0.35
_ONE_CORE_PERCENT: Final = 100.0


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """One run; without `series` if its events are gone.

    `checkpoints_s`: time that excluded checkpoint steps would add to the mean steady step.
    """

    summary: RunSummary
    series: StepSeries | None
    manifest: Mapping[str, Any]
    directory: str
    checkpoints_s: float = 0.0

    @property
    def name(self) -> str:
        return self.summary.run.name

    def section(self, name: str) -> Mapping[str, Any]:
        """Returns an object of the manifest, {} if missing."""
        section = self.manifest.get(name)
        return section if isinstance(section, Mapping) else {}

    def feeder(self) -> Loader | None:
        """Returns the training loader with the most batches."""
        training = [loader for loader in self.summary.loaders if loader.role == TRAINING]
        return max(training, key=lambda loader: loader.iterations, default=None)

    def samples_per_step(self) -> float | None:
        """Returns samples per optimizer step over all ranks, None if unknown."""
        training, feeder = self.summary.training, self.feeder()
        if training.samples and training.steps:
            return training.samples / training.steps
        if feeder is None or not feeder.batch_size or not training.steps:
            return None
        ranks = len(self.summary.ranks) or 1
        return feeder.batch_size * training.iterations / training.steps * ranks

    def steady_steps(self) -> int:
        if self.series is not None:
            return len(self.series.steady_s)
        return self.summary.training.steady_steps

    def why_unusable(self) -> str | None:
        """Returns why its step time cannot be compared, None if it can."""
        if self.summary.lines is not None:
            return "was slowed by line timing"
        if self.summary.run.device_timing == "synchronized":
            return "was slowed by --cuda-sync"
        steps = self.steady_steps()
        if steps < MIN_STEADY_STEPS or self.mean_step_s() is None:
            return f"has {steps} steady steps ({MIN_STEADY_STEPS} needed)"
        return None

    def mean_step_s(self) -> float | None:
        """Returns the mean steady step, in s."""
        if self.series is not None and len(self.series.steady_s):
            mean = float(self.series.steady_s.mean())
            return mean if mean > 0 else None
        step = self.summary.training.step_s
        return step.mean if step is not None and step.mean > 0 else None

    def parts_s(self) -> Mapping[str, float]:
        """Returns the mean steady step by the ledger's keys, in s."""
        if self.series is not None and len(self.series.steady_s):
            return {key: float(part.mean()) for key, part in self.series.parts_s.items()}
        return self.summary.training.per_step_s or {}

    @property
    def is_whole(self) -> bool:
        """Whether the script ran to its end."""
        return self.summary.run.exit.is_whole

    def pace(self) -> Pace | None:
        """Returns the pace of its steady steps, None without any."""
        mean_s = self.mean_step_s()
        if mean_s is None:
            return None
        steps_s = self.series.steady_s if self.series is not None else None
        return Pace(mean_s, steps_s, self.cycle(), self.disturbance(), self.wandering())

    def training_pace(self) -> Pace | None:
        """Returns the pace with epoch starts spread over the steps of their epoch.

        Counts all epochs of a run that ended by itself, else those after the first, or the first
        alone. Excludes other work between epochs (checkpoints, plots), which depends on where a run
        was ended.
        """
        return self._with(self._starts_per_step())

    def later_pace(self) -> Pace | None:
        """Returns the same by the starts of later epochs alone, comparable at any run length."""
        return self._with(self._later_starts_s())

    def _with(self, starts_s: Floats) -> Pace | None:
        pace = self.pace()
        if pace is None or len(starts_s) == 0:
            return pace
        mean_s = pace.mean_s + float(starts_s.mean())
        return replace(pace, mean_s=mean_s, starts_s=starts_s) if mean_s > 0 else pace

    def _starts_per_step(self) -> Floats:
        """Returns what each epoch start adds to a step; empty if no epoch's length is known."""
        if self.series is None or len(self.series.starts_s) == 0:
            return np.zeros(0)
        starts_s, steps = self.series.starts_s, self.series.steps_of_epochs
        if self.is_whole:
            per_step: Floats = starts_s / max(float(steps.mean()), 1.0)
            return per_step
        if len(starts_s) > 1:
            return self._later_starts_s()
        length = self._steps_of_epoch()
        if length is None:
            return starts_s[:0]
        first_epoch: Floats = starts_s / max(float(steps[0]), length, 1.0)
        return first_epoch

    def _later_starts_s(self) -> Floats:
        """Returns what each epoch start after the first adds to a step, shape (n_epochs - 1,).

        The last epoch may be cut short, so it counts with the length of the longest.
        """
        if self.series is None or len(self.series.starts_s) < 2:
            return np.zeros(0)
        steps = self.series.steps_of_epochs.astype(np.float64)
        steps[-1] = steps.max()
        per_step: Floats = self.series.starts_s[1:] / max(float(steps[1:].mean()), 1.0)
        return per_step

    def _steps_of_epoch(self) -> float | None:
        """Returns steps per epoch from len(loader), None without a length."""
        feeder, training = self.feeder(), self.summary.training
        if feeder is None or not feeder.length or not training.iterations:
            return None
        return feeder.length * training.steps / training.iterations

    def cycle(self) -> int:
        """Returns the period of waits in steps: workers deliver in turn."""
        feeder = self.feeder()
        workers = integer(feeder.num_workers) if feeder is not None else None
        return min(max(workers or 1, 1), max(self.steady_steps(), 1))

    def disturbance(self) -> float:
        """Returns the share by which other processes may have slowed the run, 0 if unknown.

        Lost CPU time is at most what others used, and at most the time that threads waited for a
        CPU core.
        """
        system = self.summary.system
        cpu = None if system is None else system.shared_cpu
        if cpu is None:
            return 0.0
        taken = min(cpu.others_share, cpu.waited_share, _MOST_TAKEN)
        power = _STALL_POWER_ALONE if self._computes_alone() else _STALL_POWER
        cost = max((1 - taken) ** -power - 1, _SHARED_COST * cpu.others_share)
        return cost * self._host_share()

    def wandering(self) -> float:
        """Returns the share by which possibly virtual cores may have changed its pace."""
        system = self.summary.system
        if system is None or self.section("host").get("is_virtual") is False:
            return 0.0
        used = number_at(system.cpu, "tree_percent", "mean")
        most = _VIRTUAL_WANDERS_ALONE if self._computes_alone() else _VIRTUAL_WANDERS
        share = 0.0 if used is None else min(used / _ONE_CORE_PERCENT, 1.0)
        return most * share * self._host_share()

    def _computes_alone(self) -> bool:
        """Whether a single thread trains, without workers or ranks to wait for."""
        summary = self.summary
        return summary.torch_threads == 1 and not summary.has_workers and not summary.ranks

    def _host_share(self) -> float:
        """Returns the share of time paced by the host: 1 on CPU, else the device's idle share."""
        if not self.summary.run.is_on_device:
            return 1.0
        return 1.0 - (self.summary.device_busy_share or 0.0)


def without_saves(run: ComparedRun) -> ComparedRun:
    """Returns a run without the few of its steady steps that save checkpoints."""
    series = run.series
    if series is None:
        return run
    saving_s = series.parts_s.get(CHECKPOINT, np.zeros(len(series.steady_s)))
    kept = ~few_that_save(saving_s)
    if kept.all():
        return run
    parts_s = {key: part[kept] for key, part in series.parts_s.items()}
    left = replace(series, steady_s=series.steady_s[kept], parts_s=parts_s)
    return replace(run, series=left, checkpoints_s=float(saving_s.mean()))


def named_apart(runs: Sequence[ComparedRun]) -> list[ComparedRun]:
    """Returns the runs, with paths in place of names that are not unique."""
    names = Counter(run.name for run in runs)

    def by_path(run: ComparedRun) -> ComparedRun:
        called = replace(run.summary.run, name=run.directory)
        return replace(run, summary=replace(run.summary, run=called))

    return [run if names[run.name] < 2 else by_path(run) for run in runs]


def read_compared_run(directory: RunDirectory, summary: RunSummary) -> ComparedRun:
    """Reads a saved run's steps and manifest."""
    series = read_step_series(directory)
    return ComparedRun(summary, series, manifest_of_first(directory), str(directory.path))
