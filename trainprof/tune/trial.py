"""A trial: the same unmodified script once more, with something changed from outside."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, Protocol

from trainprof.analysis.statistics.speedup import Pace
from trainprof.analysis.summary.tune import BASELINE, CEILING, LOADER_ALONE, OK
from trainprof.analysis.timeline.step_table import SeenSteps

# Comes first and counts for nothing: it fills caches, and tells how long trials are to be.
WARM_UP: Final = "warm_up"
# A file's name may have 255 bytes, and some are put before and behind it.
_LONGEST_NAME: Final = 120

# Arguments of DataLoader; what else is changed are settings of torch's.
LOADER_ARGUMENTS: Final = (
    "num_workers",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory",
    "multiprocessing_context",
)


@dataclass(frozen=True, slots=True)
class Trial:
    """What is changed; `data` and `pass_batches` as TrialOptions has them.

    `overrides` are DataLoader arguments, torch_threads, fused, ... The value of an argument is for
    all loaders of `sites`, the lines that build them, or a mapping from line to value.
    """

    name: str
    overrides: Mapping[str, Any] = field(default_factory=dict)
    data: Literal["real", "free", "alone"] = "real"
    sites: tuple[str, ...] = ()
    pass_batches: int | None = None

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
    """Returns how many workers are asked for, of all loaders together."""
    asked = overrides.get("num_workers", 0)
    return sum(asked.values()) if isinstance(asked, Mapping) else int(asked)


def baseline() -> Trial:
    return Trial(BASELINE)


def ceiling(sites: tuple[str, ...], pass_batches: int | None) -> Trial:
    return Trial(CEILING, data="free", sites=sites, pass_batches=pass_batches)


def loader_alone(sites: tuple[str, ...]) -> Trial:
    return Trial(LOADER_ALONE, data="alone", sites=sites)


@dataclass(frozen=True, slots=True)
class Limits:
    """How long one run of a trial may go on.

    Attributes:
        steps, seconds: It is ended after so many, at a step; None: it takes what it takes.
        is_of_budget: `seconds` is what the budget leaves it: a run that is cut off too early by
            that is no result.
        enough_s, enough_steps: As TrialOptions has them.
    """

    steps: int | None
    killed_after_s: float
    seconds: float | None = None
    is_of_budget: bool = False
    enough_s: tuple[float, float] | None = None
    enough_steps: int = 1


@dataclass(frozen=True, slots=True)
class FirstPass:
    """The first pass over a stream: its batches, at the least where the run ended in it."""

    batches: int
    is_ended: bool


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of a trial, `number` of them from 1 on; `outcome` and `detail` as TrialSummary's.

    Attributes:
        directory: Relative to the `tune` run's.
        seconds: From start to results.
        pace: Of its steady steps, or of the batches of a loader alone, each time as many as an
            update takes.
        training_pace: With starts of passes, spread over their steps; of free data as `pace`.
        saves_s: What checkpoints inside passes added to a mean steady step; in neither pace.
        run_s: From the script's start to its end, where it came to its own end.
        steps: Of a loader alone, those that its batches would do for.
        was_cut: Its time was over before its steps were made.
        failed_after: How it failed once all its training had been ended at a limit.
        left_running: Names of what it had started and was ended with it.
        written: Files that it changed outside of its scratch directory, where it had no sandbox.
        disturbance: By what share other processes may have slowed it.
        ground: The machine and libraries, as `comparability.ground_of` has them.
        seen: Its steps; None of a loader alone.
        is_least: As FreeSteps has it; of trials on free data.
        batches, passes: Mean bytes of the batches of training, and the first passes over streams,
            by the line that builds their loader.
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
    passes: Mapping[str, FirstPass] = field(default_factory=dict)

    @property
    def is_ok(self) -> bool:
        return self.outcome == OK and self.pace is not None

    def by_updates(self, steps_per_batch: float) -> Measured:
        """Returns the same of a loader alone, by updates in place of its batches."""
        steps = round(self.steps * steps_per_batch)
        if self.pace is None or self.pace.steps_s is None:
            return replace(self, steps=steps)
        steps_s = self.pace.steps_s / steps_per_batch
        pace = replace(self.pace, mean_s=self.pace.mean_s / steps_per_batch, steps_s=steps_s)
        return replace(self, pace=pace, steps=steps)

    def up_to(self, steps: int) -> Measured:
        """Returns the same as if it had been ended after so many steps, in what tells its pace."""
        if self.seen is None or self.seen.until <= steps:
            return self
        paces = self.seen.paces(steps)
        return replace(self, pace=paces.steps, training_pace=paces.training)

    def starts_share(self) -> float:
        """Returns what starts of passes add to its steady steps, as a share of them."""
        if self.pace is None or self.training_pace is None:
            return 0.0
        return self.training_pace.mean_s / self.pace.mean_s - 1

    def saves_share(self) -> float:
        """Returns what checkpoints inside passes take of the time of steady steps with them."""
        return 0.0 if self.pace is None else self.saves_s / (self.pace.mean_s + self.saves_s)


def was_in_vain(run: Measured, limits: Limits) -> bool:
    """Whether the budget was over before a run had told anything: more time would make it tell."""
    return limits.is_of_budget and run.was_cut and not run.is_ok


class TrialRunner(Protocol):
    """What `tune` asks for runs of trials; tests put a fake one in its place."""

    def run(self, trial: Trial, number: int, limits: Limits) -> Measured:
        """Runs a trial once; a script that fails is a result."""
        ...


def label_of(trial: Trial, number: int) -> str:
    """Returns a trial's name as a file's: the first run of it has its plain name."""
    plain = re.sub(r"[^A-Za-z0-9._=,-]+", "_", trial.name)[:_LONGEST_NAME]
    return plain if number == 1 else f"{plain}.{number}"


def argument_of(trial: Trial, number: int) -> str:
    """Returns a trial's name as it may stand in an argument: letters, digits, `-` and `_`.

    Hydra and mmengine take what stands around a `=` or a `,` apart.
    """
    plain = re.sub(r"[^A-Za-z0-9_-]+", "_", trial.name.replace("=", "-"))[:_LONGEST_NAME]
    return plain if number == 1 else f"{plain}-run{number}"
