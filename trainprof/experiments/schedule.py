"""How many trials fit into a budget: said before the first run, and again after the baseline."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trainprof.analysis.saved_summary import saved_summary
from trainprof.analysis.summary import RunSummary
from trainprof.analysis.tuning import OK
from trainprof.experiments.trial import WARM_UP, Measured, Trial
from trainprof.experiments.trial_limits import (
    as_option,
    budget_of_a_change,
    longest_trial_s,
    steps_of_trials,
    trial_s,
)
from trainprof.record.run_directory import RunDirectory
from trainprof.record.run_file import read_run_json

FIRST_COUNTS: Final = (
    "the first run counts as the baseline, as the budget has no time for another: it may be slower "
    "than later runs, which find files and caches in memory"
)
# So many changes are measured between two baselines.
SINGLES_PER_BASELINE: Final = 3
# A bound of what loading costs is measured where this many trials fit: it, a change, the last
# baseline.
TRIALS_BEHIND_BOUND: Final = (3.0, 4.0)
# The first change is tried with this part of a usual trial's time: 22 of 30 steps still count.
LEAST_OF_CHANGE: Final = 0.75
_MINUTE_S: Final = 60


@dataclass(frozen=True, slots=True)
class Rest:
    """What is to be run after the first baseline.

    Attributes:
        trial_s: What the baseline took.
        left_s: Of the budget.
        bounds: Trials of what loading costs, ahead of the settings where there is time for both.
        names: Of the settings, the most promising first.
    """

    trial_s: float
    left_s: float
    bounds: int
    names: tuple[str, ...]

    def fitting(self) -> int:
        """Returns how many of the settings fit, each as long as the baseline."""
        left, since_baseline, count = self.left_s / self.trial_s, 0, 0
        for behind in TRIALS_BEHIND_BOUND[: self.bounds]:
            if left >= behind:
                left, since_baseline = left - 1, since_baseline + 1
        for count in range(len(self.names)):
            baselines = int(since_baseline >= SINGLES_PER_BASELINE)
            # The last baseline has its time set aside, but for the first setting.
            if left < baselines + (LEAST_OF_CHANGE if count == 0 else 2):
                return count
            left -= baselines + 1
            since_baseline = 1 if baselines else since_baseline + 1
        return len(self.names)


def said_of_rest(rest: Rest) -> str:
    """Returns what fits into the rest of the budget, and what does not, in one sentence."""
    count, names = rest.fitting(), rest.names
    each = f"each trial takes about {duration(rest.trial_s)}"
    left = f"the remaining {duration(max(rest.left_s, 0.0))}"
    if count == len(names):
        one = f"the setting {names[0]} fits" if count == 1 else f"all {count} settings fit"
        return f"{each}: {one} into {left}"
    more = len(names) - count
    needed_s = (more + more // SINGLES_PER_BASELINE) * rest.trial_s
    fits = f"{count} of {len(names)} settings fit" if count else "no setting fits"
    return (
        f"{each}: {fits} into {left}; left out: {', '.join(names[count:])} "
        f"(about {duration(needed_s)} more)"
    )


@dataclass(frozen=True, slots=True)
class Earlier:
    """A saved run of the same script.

    Attributes:
        name: The run's.
        first: What it took, as the first trial of a search would tell it.
    """

    name: str
    first: Measured


def said_before(budget_s: float, asked_steps: int | None, earlier: Earlier | None) -> str:
    """Returns how many trials a budget holds and the limit of each, before any has run.

    Args:
        budget_s: Of all trials.
        asked_steps: After which trials are to be stopped, None: the budget decides.
        earlier: Tells how long the script's steps are, None: not known.
    """
    longest = f"each ended at a step after about {duration(longest_trial_s(budget_s))}"
    takes_s = None
    if earlier is not None:
        takes_s = trial_s(earlier.first, asked_steps or steps_of_trials(earlier.first, budget_s))
    if earlier is None or takes_s is None:
        return (
            f"plan: the first run shows how many trials fit into {duration(budget_s)}, {longest}; "
            "no saved run of this script shows its pace"
        )
    each = f"about {duration(takes_s)} each (from run {earlier.name})"
    enough_s = budget_of_a_change(takes_s, takes_s)
    if budget_s < enough_s:
        return (
            f"plan: trials take {each}; a baseline and one change need {as_option(enough_s)}, "
            f"with {duration(budget_s)} there may be no time for a change"
        )
    return (
        f"plan: up to {int(budget_s / takes_s)} trials of {each}, {longest}; "
        f"budget {duration(budget_s)}"
    )


def earlier_run(runs: Path, script: str | None, sha256: str | None) -> Earlier | None:
    """Returns the newest saved run of a script that came to its end or limit, None without one.

    Args:
        runs: The directory of all runs.
        script: As the manifest names it.
        sha256: Of the script's text, as the manifest has it.
    """
    if script is None or sha256 is None:
        return None
    try:
        paths = [path for path in runs.iterdir() if not path.is_symlink()]
        paths.sort(key=os.path.getmtime, reverse=True)
    except OSError:
        return None
    for path in paths:
        directory = RunDirectory(path)
        manifest = read_run_json(directory.manifest)
        if not isinstance(manifest, dict) or manifest.get("script") != script:
            continue
        summary = saved_summary(directory) if manifest.get("script_sha256") == sha256 else None
        first = None if summary is None else _as_first_run(summary)
        if first is not None:
            return Earlier(path.name, first)
    return None


def _as_first_run(summary: RunSummary) -> Measured | None:
    training, end = summary.training, summary.run.exit
    if not training.steps or end.reason not in ("completed", "limit"):
        return None
    return Measured(
        Trial(WARM_UP),
        1,
        "",
        OK,
        None,
        summary.run.wall_s,
        run_s=summary.run.wall_s if end.is_whole else None,
        steps=training.steps,
        startup_s=summary.phases.initialization_s,
        training_s=summary.phases.training_s,
    )


def duration(seconds: float) -> str:
    """Returns "18 s" or "2m 10s"."""
    minutes, rest = divmod(round(seconds), _MINUTE_S)
    return f"{minutes}m {rest:02d}s" if minutes else f"{rest} s"
