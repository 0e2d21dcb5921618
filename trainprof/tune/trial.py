"""A trial: another run of the unmodified script, with settings changed from outside."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, Protocol

from trainprof.analysis.statistics.speedup import Pace
from trainprof.analysis.summary.tune import BASELINE, CEILING, LOADER_ALONE, OK
from trainprof.analysis.timeline.step_table import SeenSteps

# The first run is not compared: it warms caches and shows the duration of trials.
WARM_UP: Final = "warm_up"
# File names are limited to 255 bytes, affixes included.
_LONGEST_NAME: Final = 120

# Arguments of DataLoader; other overrides are torch settings.
LOADER_ARGUMENTS: Final = (
    "num_workers",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory",
    "multiprocessing_context",
)


@dataclass(frozen=True, slots=True)
class Trial:
    """What is changed; `data` and `epoch_batches` as TrialOptions has them.

    `overrides` are DataLoader arguments, torch_threads, fused, ... A loader argument has one value
    for all of `sites`, the lines that build loaders, or a mapping from line to value.
    """

    name: str
    overrides: Mapping[str, Any] = field(default_factory=dict)
    data: Literal["real", "free", "alone"] = "real"
    sites: tuple[str, ...] = ()
    epoch_batches: int | None = None

    def loader_arguments(self) -> dict[str, Any]:
        return {name: self.overrides[name] for name in LOADER_ARGUMENTS if name in self.overrides}

    def arguments_at(self, site: str) -> dict[str, Any]:
        """Returns the arguments of the loaders that a line builds."""
        return {
            name: value[site] if isinstance(value, Mapping) else value
            for name, value in self.loader_arguments().items()
            if not isinstance(value, Mapping) or site in value
        }

    def settings(self) -> dict[str, Any]:
        return {k: value for k, value in self.overrides.items() if k not in LOADER_ARGUMENTS}


def name_of(overrides: Mapping[str, Any]) -> str:
    """Returns "num_workers=4,pin_memory=True"; "num_workers=4+2" of two loaders."""
    return (
        ",".join(f"{name}={_value_words(value)}" for name, value in overrides.items()) or BASELINE
    )


def _value_words(value: Any) -> str:
    if not isinstance(value, Mapping):
        return str(value)
    values = list(value.values())
    return "True" if all(value is True for value in values) else "+".join(map(str, values))


def workers_of(overrides: Mapping[str, Any]) -> int:
    """Returns the total number of workers of all loaders."""
    asked = overrides.get("num_workers", 0)
    return sum(asked.values()) if isinstance(asked, Mapping) else int(asked)


def baseline() -> Trial:
    return Trial(BASELINE)


def ceiling(sites: tuple[str, ...], epoch_batches: int | None) -> Trial:
    return Trial(CEILING, data="free", sites=sites, epoch_batches=epoch_batches)


def loader_alone(sites: tuple[str, ...]) -> Trial:
    return Trial(LOADER_ALONE, data="alone", sites=sites)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one run of a trial.

    Attributes:
        steps, seconds: The run ends at the step that reaches either; None for no limit.
        is_of_budget: `seconds` is the rest of the budget, so a run cut short by it may be useless.
        enough_s, enough_steps: As TrialOptions has them.
    """

    steps: int | None
    killed_after_s: float
    seconds: float | None = None
    is_of_budget: bool = False
    enough_s: tuple[float, float] | None = None
    enough_steps: int = 1


@dataclass(frozen=True, slots=True)
class FirstEpoch:
    """Batches of the first epoch of a stream, a lower bound unless `is_ended`."""

    batches: int
    is_ended: bool


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of a trial, `number` counts from 1; `outcome` and `detail` as TrialSummary's.

    Attributes:
        directory: Relative to the `tune` run's.
        seconds: From start to results.
        pace: Of steady steps; for loader_alone, of the batches of a step.
        training_pace: With epoch starts spread over their steps; with replayed batches as `pace`.
        saves_s: Checkpoint time per mean steady step, in neither pace.
        run_s: Duration of the script, if it ran to its end.
        steps: For loader_alone, the steps that its batches suffice for.
        was_cut: A time limit ended it before its number of steps.
        failed_after: How it failed after a limit had ended its training.
        left_running: Names of processes that it left running, ended with it.
        written: Files changed outside its scratch directory, without a sandbox.
        disturbance: Share by which other processes may have slowed it.
        ground: Machine and libraries, as `comparability.ground_of` has them.
        seen: Its steps; None for loader_alone.
        is_least: As FreeSteps has it, with replayed batches.
        batches, first_epochs: Mean batch bytes of training loaders, and first epochs of streams,
            by the line that builds the loader.
    """

    trial: Trial
    number: int
    directory: str
    outcome: str
    detail: str | None
    seconds: float
    pace: Pace | None = None
    training_pace: Pace | None = None
    saves_s: float = 0.0
    run_s: float | None = None
    steps: int = 0
    training_s: float = 0.0
    was_cut: bool = False
    failed_after: str | None = None
    left_running: tuple[str, ...] = ()
    losses: tuple[float, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    written: tuple[str, ...] = ()
    read_bytes: float | None = None
    peak_memory_bytes: float | None = None
    disturbance: float = 0.0
    ground: Mapping[str, str] = field(default_factory=dict)
    seen: SeenSteps | None = None
    is_least: bool = False
    batches: Mapping[str, float] = field(default_factory=dict)
    first_epochs: Mapping[str, FirstEpoch] = field(default_factory=dict)

    @property
    def is_ok(self) -> bool:
        return self.outcome == OK and self.pace is not None

    def by_updates(self, steps_per_batch: float) -> Measured:
        """Returns loader_alone's run per optimizer step in place of per batch."""
        steps = round(self.steps * steps_per_batch)
        if self.pace is None or self.pace.steps_s is None:
            return replace(self, steps=steps)
        steps_s = self.pace.steps_s / steps_per_batch
        pace = replace(self.pace, mean_s=self.pace.mean_s / steps_per_batch, steps_s=steps_s)
        return replace(self, pace=pace, steps=steps)

    def up_to(self, steps: int) -> Measured:
        """Returns the run with the paces of its first `steps` steps."""
        if self.seen is None or self.seen.until <= steps:
            return self
        paces = self.seen.paces(steps)
        return replace(self, pace=paces.steps, training_pace=paces.training)

    def starts_share(self) -> float:
        """Returns epoch starts as a share of steady step time."""
        if self.pace is None or self.training_pace is None:
            return 0.0
        return self.training_pace.mean_s / self.pace.mean_s - 1

    def saves_share(self) -> float:
        """Returns checkpoints as a share of step time."""
        return 0.0 if self.pace is None else self.saves_s / (self.pace.mean_s + self.saves_s)


def was_cut_early(run: Measured, limits: Limits) -> bool:
    """Whether the budget ran out before a run had a result."""
    return limits.is_of_budget and run.was_cut and not run.is_ok


class TrialRunner(Protocol):
    """Runs trials for the search; tests use a fake one."""

    def run(self, trial: Trial, number: int, limits: Limits) -> Measured:
        """Runs a trial once; a failing script is a result."""
        ...


def label_of(trial: Trial, number: int) -> str:
    """Returns a trial's name as a file name; later runs have a number."""
    plain = re.sub(r"[^A-Za-z0-9._=,-]+", "_", trial.name)[:_LONGEST_NAME]
    return plain if number == 1 else f"{plain}.{number}"


def argument_of(trial: Trial, number: int) -> str:
    """Returns a trial's name for an argument, without `=` and `,`, which Hydra splits."""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "_", trial.name.replace("=", "-"))[:_LONGEST_NAME]
    return plain if number == 1 else f"{plain}-run{number}"
