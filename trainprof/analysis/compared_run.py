"""A saved run as `compare` looks at it: its summary, its steps one by one, and what it ran."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from trainprof.analysis.facts import integer, number_at
from trainprof.analysis.host_share import host_share
from trainprof.analysis.loader_figures import Loader
from trainprof.analysis.passes import EVALUATION, TRAINING
from trainprof.analysis.recording import manifest_of_first
from trainprof.analysis.shared_cpu import shared_cpu
from trainprof.analysis.speedup import Pace, Sampled
from trainprof.analysis.steady import MIN_STEADY_STEPS
from trainprof.analysis.step_noise import Floats, Resampling
from trainprof.analysis.step_series import StepSeries, read_step_series
from trainprof.analysis.summary import RunSummary
from trainprof.record.run_directory import RunDirectory

# Synchronized runs drain the device's queue, timed lines slow Python: neither tells of the pace.
SLOWED_BY_LINES: Final = "its lines were timed"
SLOWED_BY_SYNC: Final = "--cuda-sync waited for the device"
# What busy neighbours cost through caches, memory and clocks, where nobody waits for a core: with
# the other of two cores busy, equal runs of 2 ms steps differed by up to 10 %
# (benchmarks/compare_false_alarms.py).
_SHARED_COST: Final = 0.2
# What it costs when they take the core: torch's threads wait for one another, so that a step takes
# far longer than the share that was taken. With a third taken from sample_scripts/healthy.py its
# mean step became four times as long.
_STALL_POWER: Final = 3
# A single thread waits for no other: it is off the core for what was taken, and finds cold caches
# when it is back, so that what is left of the time counts for less as well.
_STALL_POWER_ALONE: Final = 2
_MOST_TAKEN: Final = 0.9
# What a virtual machine's cores may be faster or slower from run to run: neighbours, clocks and
# hyperthreads that it does not see. Ten equal runs of benchmarks/scripts/two_ms.py took 2.03 to
# 2.71 ms a step, a standard deviation of 11 %: two of them differ by less than 35 % in 95 of 100
# cases. Threads that wait for one another are as slow as the slowest: of 9 and 8 equal runs of two
# threads, without and with two workers, it was 12 and 16 %.
_VIRTUAL_WANDERS: Final = 0.5
_VIRTUAL_WANDERS_ALONE: Final = 0.35
_ONE_CORE_PERCENT: Final = 100.0
# Processors other than x86 do not say so, and in a container often nothing else does.
_MAY_BE_VIRTUAL: Final = (
    "nothing tells whether the cores are a virtual machine's, which change their pace"
)


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """One run.

    Attributes:
        summary: Of the run.
        series: Its steps, None where the events are gone.
        manifest: {} where it is missing or damaged.
        directory: Where it lies.
        full_step_samples: What an update sees, where steps that see less are left out; else None.
        checkpoints_s: What checkpoints inside passes added to a mean steady step, where steps that
            save some are left out.
    """

    summary: RunSummary
    series: StepSeries | None
    manifest: Mapping[str, Any]
    directory: str
    full_step_samples: float | None = None
    checkpoints_s: float = 0.0

    @property
    def name(self) -> str:
        return self.summary.run.name

    def section(self, name: str) -> Mapping[str, Any]:
        """Returns an object of the manifest, {} where it is not one."""
        told = self.manifest.get(name)
        return told if isinstance(told, Mapping) else {}

    def loaders(self, role: str) -> list[Loader]:
        """Returns the loaders of a role, that with most batches first."""
        of_role = [loader for loader in self.summary.loaders if loader.role == role]
        return sorted(of_role, key=lambda loader: -loader.iterations)

    def feeder(self) -> Loader | None:
        """Returns the loader that feeds training."""
        return next(iter(self.loaders(TRAINING)), None)

    def evaluator(self) -> Loader | None:
        return next(iter(self.loaders(EVALUATION)), None)

    def samples_per_step(self) -> float | None:
        """Returns how many samples an update sees, over all ranks; None where it is not told."""
        training, feeder = self.summary.training, self.feeder()
        if training.samples and training.steps:
            return training.samples / training.steps
        if feeder is None or not feeder.batch_size or not training.steps:
            return None
        ranks = len(self.summary.ranks) or 1
        return feeder.batch_size * training.iterations / training.steps * ranks

    def samples_of_a_steady_step(self) -> float | None:
        """Returns how many of them one of the steady steps sees."""
        return self.full_step_samples or self.samples_per_step()

    def samples_of_a_full_step(self) -> tuple[float, float] | None:
        """Returns how many samples an update sees that is no pass's last one: at least, at most.

        That one may see less, and what is accumulated when a pass ends may lead to none.
        """
        mean, training = self.samples_per_step(), self.summary.training
        if mean is None:
            return None
        steps, passes = training.steps, max(training.epochs, 1)
        if steps <= passes:
            return mean, mean
        seen = mean * steps
        return seen / (steps + passes), (seen - passes) / (steps - passes)

    def slowed_by(self) -> str | None:
        """Returns what slowed the run beyond what recording costs, None where nothing did."""
        if self.summary.lines is not None:
            return SLOWED_BY_LINES
        return SLOWED_BY_SYNC if self.summary.run.device_timing == "synchronized" else None

    def steady_steps(self) -> int:
        if self.series is not None:
            return len(self.series.steady_s)
        return self.summary.training.steady_steps

    def is_telling(self) -> bool:
        """Whether it has enough steady steps to say how fast training is."""
        return self.steady_steps() >= MIN_STEADY_STEPS and self.mean_step_s() is not None

    def mean_step_s(self) -> float | None:
        """Returns the mean steady step, in s."""
        if self.series is not None and len(self.series.steady_s):
            mean = float(self.series.steady_s.mean())
            return mean if mean > 0 else None
        step = self.summary.training.step_s
        return step.mean if step is not None and step.mean > 0 else None

    def pace(self) -> Pace | None:
        """Returns how fast its steady steps were, None where there is none."""
        mean_s = self.mean_step_s()
        if mean_s is None:
            return None
        steps_s = self.series.steady_s if self.series is not None else None
        return self._pace_of(mean_s, steps_s)

    def loop_pace(self) -> Pace | None:
        """The same of all steps: with warm-up and starts of passes, without evaluation."""
        if self.series is None or len(self.series.all_s) == 0:
            return None
        steps_s: Floats = self.series.all_s
        mean_s = float(steps_s.mean())
        return self._pace_of(mean_s, steps_s) if mean_s > 0 else None

    def passes(self) -> int | None:
        """Returns how many passes its steps lie in, None where the events are gone."""
        return None if self.series is None else len(self.series.steps_of_passes)

    @property
    def is_whole(self) -> bool:
        """Whether it went to its own end."""
        return self.summary.run.exit.is_whole

    def training_pace(self) -> Pace | None:
        """Returns how fast it trains, with starts of passes spread over their steps.

        Where it went to its end all of them count; else those after the first, which stand for what
        would have followed; of a run that was ended inside its first pass that one. What else comes
        between passes (checkpoints, plots) is no part of it: how often it came depends on where a
        run was ended.
        """
        return self._with(self._starts_per_step())

    def later_pace(self) -> Pace | None:
        """Returns the same by the starts of later passes alone, which runs of any length share."""
        return self._with(self._of_later(self._starts_s()))

    def _with(self, starts_s: Floats) -> Pace | None:
        pace = self.pace()
        if pace is None or len(starts_s) == 0:
            return pace
        return replace(pace, mean_s=pace.mean_s + float(starts_s.mean()), starts_s=starts_s)

    def _starts_s(self) -> Floats:
        return np.zeros(0) if self.series is None else self.series.starts_s

    def _starts_per_step(self) -> Floats:
        """Returns what each start of a pass adds to a step; none where no pass is known whole."""
        starts_s = self._starts_s()
        if self.series is None or len(starts_s) == 0:
            return starts_s
        if self.is_whole:
            of_all: Floats = starts_s / max(float(self.series.steps_of_passes.mean()), 1.0)
            return of_all
        if len(starts_s) > 1:
            return self._of_later(starts_s)
        length = self._steps_of_a_pass()
        if length is None:
            return starts_s[:0]
        of_first: Floats = starts_s / max(float(self.series.steps_of_passes[0]), length, 1.0)
        return of_first

    def _of_later(self, beyond_s: Floats) -> Floats:
        """Returns what each pass after the first adds to a step, shape (n_passes - 1,).

        The last one may have been cut short, and counts as long as the longest.

        Args:
            beyond_s: What each pass took beyond its steady steps, s.
        """
        if self.series is None or len(beyond_s) < 2:
            return np.zeros(0)
        steps = self.series.steps_of_passes.astype(np.float64)
        steps[-1] = steps.max()
        per_step: Floats = beyond_s[1:] / max(float(steps[1:].mean()), 1.0)
        return per_step

    def _steps_of_a_pass(self) -> float | None:
        """Returns it by the length of the loader that feeds training, None where it has none."""
        feeder, training = self.feeder(), self.summary.training
        if feeder is None or not feeder.length or not training.iterations:
            return None
        return feeder.length * training.steps / training.iterations

    def starts(self, seed: int) -> Sampled | None:
        """Returns what starts of passes after the first add to the mean step of those, in s.

        None where there is none, or the events are gone.

        Args:
            seed: Another one for each run.
        """
        return _mean_of(self._of_later(self._starts_s()), seed)

    def between_passes(self, seed: int) -> Sampled | None:
        """Returns the same of what comes between passes and is no loading: checkpoints, plots."""
        if self.series is None:
            return None
        return _mean_of(self._of_later(self.series.between_s), seed)

    def _pace_of(self, mean_s: float, steps_s: Floats | None) -> Pace:
        pace = Pace(mean_s, steps_s, self.cycle(), self.disturbance(), self.wandering())
        return pace if self._is_virtual() else replace(pace, why_wandering=_MAY_BE_VIRTUAL)

    def cycle(self) -> int:
        """Returns after how many steps waits repeat: loader workers take turns."""
        feeder = self.feeder()
        workers = integer(feeder.num_workers) if feeder is not None else None
        return min(max(workers or 1, 1), max(self.steady_steps(), 1))

    def disturbance(self) -> float:
        """Returns by what share other processes may have made the run longer.

        That is `host_disturbance`, as far as the host's pace is the run's.
        """
        return self.host_disturbance() * self.host_share()

    def host_disturbance(self) -> float:
        """Returns by what share they may have made longer what the host does.

        Taken from it was at most the CPU that others used, and no more of the time than somebody
        waited for a core. 0 where nothing is known.
        """
        system = self.summary.system
        if system is None:
            return 0.0
        cpu = shared_cpu(system.cpu)
        if cpu is None:
            return 0.0
        taken = min(cpu.others_share, cpu.waited_share, _MOST_TAKEN)
        power = _STALL_POWER_ALONE if self.computes_alone() else _STALL_POWER
        return max((1 - taken) ** -power - 1, _SHARED_COST * cpu.others_share)

    def computes_alone(self) -> bool:
        """Whether one thread trains, and waits for no other, no worker and no rank."""
        summary = self.summary
        return summary.torch_threads == 1 and not summary.has_workers and not summary.ranks

    def wandering(self) -> float:
        """Returns by what share cores that are not the run's own may have changed its pace.

        That is `host_wandering`, as far as the host's pace is the run's: on a device, in the time
        in which that waits.
        """
        return self.host_wandering() * self.host_share()

    def host_wandering(self) -> float:
        """Returns by what share such cores may have changed the pace of what the host does.

        Of a virtual machine, and of one that may be, in the time in which the run computes on them.
        0 where nothing was sampled.
        """
        system = self.summary.system
        if system is None or self._is_virtual() is False:
            return 0.0
        used = number_at(system.cpu, "tree_percent", "mean")
        most = _VIRTUAL_WANDERS_ALONE if self.computes_alone() else _VIRTUAL_WANDERS
        return 0.0 if used is None else most * min(used / _ONE_CORE_PERCENT, 1.0)

    def _is_virtual(self) -> bool | None:
        """Returns whether its machine is a virtual one, None where nothing told."""
        told = self.section("host").get("is_virtual")
        return told if isinstance(told, bool) else None

    def host_chance(self) -> float:
        """Returns by what share others or such cores may have changed the host's pace."""
        return max(self.host_disturbance(), self.host_wandering())

    def host_share(self) -> float:
        """Returns the share of its steps that the host's work decides, 0 to 1."""
        return host_share(self.summary)


def _mean_of(per_step_s: Floats, seed: int) -> Sampled | None:
    if len(per_step_s) == 0:
        return None
    draws = None
    if len(per_step_s) > 1:
        draws = Resampling(per_step_s, seed=seed).means(per_step_s)
    return Sampled(float(per_step_s.mean()), draws)


def told_apart(runs: Sequence[ComparedRun]) -> list[ComparedRun]:
    """Returns runs of one name with as much of their paths for names as tells them apart."""
    names = Counter(run.name for run in runs)
    return [
        one
        if names[one.name] < 2
        else replace(
            one, summary=replace(one.summary, run=replace(one.summary.run, name=_end(one, runs)))
        )
        for one in runs
    ]


def _end(one: ComparedRun, runs: Sequence[ComparedRun]) -> str:
    """Returns the end of a run's path that tells it from others of its name."""
    parts = Path(one.directory).parts
    others = [Path(x.directory).parts for x in runs if x.name == one.name and x is not one]
    for length in range(2, len(parts)):
        end = parts[-length:]
        if all(other[-length:] != end for other in others):
            return str(Path(*end))
    return one.directory


def read_compared_run(directory: RunDirectory, summary: RunSummary) -> ComparedRun:
    """Reads what `compare` needs of a run besides its summary.

    Raises:
        OSError: If a file is there but cannot be read.
    """
    return compared_run(directory, summary, read_step_series(directory))


def compared_run(
    directory: RunDirectory, summary: RunSummary, series: StepSeries | None
) -> ComparedRun:
    """Reads the same where its steps are read already.

    Raises:
        OSError: If a file is there but cannot be read.
    """
    return ComparedRun(summary, series, manifest_of_first(directory), str(directory.path))
