"""Why a change is not to be taken, or only with care, however fast its steps were."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final

from trainprof.analysis.least_gain import LEAST_GAIN
from trainprof.analysis.loader_figures import Loader
from trainprof.analysis.stream_batches import exceed
from trainprof.analysis.tuning import BASELINE, Times
from trainprof.experiments.beside_steps import SeenPasses
from trainprof.experiments.found import Found
from trainprof.experiments.shared_streams import passes_at
from trainprof.experiments.trial import Measured, Trial
from trainprof.experiments.whole_runs import of_whole_runs

# Evaluation that takes so many times as long is not made so by chance: two runs of a side, on
# virtual machines, differ by less (_TRIALS_WANDER of reading.py).
_OTHER_EVALUATION: Final = 1.25
# Fewer batches of it are mostly its start.
_FEWEST_EVALUATED: Final = 10


def against(found: Found, trial: Trial) -> list[str]:
    """Returns why a trial is not to be recommended; [] where nothing speaks against it."""
    return [*_of_other_passes(found, trial), *_of_longer_runs(found, trial)]


def to_be_minded(found: Found, trial: Trial, loaders: Sequence[Loader]) -> list[str]:
    """Returns what is to be seen to before a trial's change is taken.

    Args:
        found: What was measured.
        trial: That is recommended.
        loaders: That it changes, as the script has them.
    """
    told = [_SHARED.format(one.site) for one in loaders if _is_taken_to_share(found, trial, one)]
    whole = of_whole_runs(found, trial)
    if whole is not None and whole.mid < 1 - LEAST_GAIN and not _is_slower(whole):
        told.append(
            f"the whole script was {whole.mid:.2f} times as fast from start to end with it, if not "
            "by chance: steps are not all of it"
        )
    longer = _longer_evaluation(found, trial)
    told += [] if longer is None else [f"with it {longer}"]
    times = found.steps_for_one(trial)
    return told if times == 1 else [*told, _SMALLER.format(times)]


_SMALLER: Final = (
    "with it a pass over the stream has {:.2g} times as many batches, since each worker's last one "
    "is not full: an update sees fewer samples on average"
)
_SHARED: Final = (
    "{}: that each worker gives only its share is taken from its code's asking get_worker_info(); "
    "no trial saw a pass end: count the batches of an epoch before you take it"
)


def _is_taken_to_share(found: Found, trial: Trial, loader: Loader) -> bool:
    """Whether workers of a stream may each give all of it, as far as anybody has seen."""
    now = loader.num_workers or 0
    workers = trial.arguments_at(loader.site).get("num_workers", now)
    is_asked = bool(loader.is_iterable and loader.shares_samples)
    if not is_asked or workers == now or max(workers, now) < 2:
        return False
    sides = _passes(found, trial, loader.site)
    return not any(all(one.ended for side in both for one in side) for both in sides)


def _of_other_passes(found: Found, trial: Trial) -> list[str]:
    """Returns of which streams a pass is not as long as in the script as it is."""
    told = []
    for site in trial.sites if trial.loader_arguments() else ():
        for base, other in _passes(found, trial, site):
            is_longer, is_shorter = _are_longer(other, base), _are_longer(base, other)
            if is_longer or is_shorter:
                then, now = _told(other, at_least=is_longer), _told(base, at_least=is_shorter)
                told.append(
                    f"a pass over {site} has {then} batches with it, and {now} in the script as it "
                    "is: an epoch is another one then, whatever a step takes; look at how its "
                    "__iter__ shares the data out among workers"
                )
    return list(dict.fromkeys(told))


def _passes(
    found: Found, trial: Trial, site: str
) -> list[tuple[Sequence[SeenPasses], Sequence[SeenPasses]]]:
    return passes_at(found.of(BASELINE), found.of(trial.name), site)


def _are_longer(some: Sequence[SeenPasses], others: Sequence[SeenPasses]) -> bool:
    """Whether the passes of each of some runs are longer than those of all others.

    Each that all of them came to: passes of one run may differ as training goes on, or at random.
    One that was not over may have been longer still.
    """
    workers = max(one.workers for one in (*some, *others))
    usual = [one.ended for one in others if one.ended]
    so_far = [(*one.ended, one.begun) if one.begun else one.ended for one in some]
    return exceed([one.ended for one in some], usual, workers) or exceed(so_far, usual, workers)


def _told(runs: Sequence[SeenPasses], *, at_least: bool) -> str:
    """Returns how many batches a pass has, or that it has more than were seen.

    Args:
        runs: Of one side.
        at_least: Its passes are the longer ones: those that were not over count, too.
    """
    ended = [statistics.fmean(one.ended) for one in runs if one.ended]
    if ended or not at_least:
        return f"{statistics.fmean(ended):,.0f}"
    return f"over {max(one.begun for one in runs):,}"


def _of_longer_runs(found: Found, trial: Trial) -> list[str]:
    whole = of_whole_runs(found, trial) if trial.overrides else None
    if whole is None or not _is_slower(whole):
        return []
    longer = _longer_evaluation(found, trial)
    why = "" if longer is None else f": {longer}"
    return [f"the whole script was {whole.mid:.2f} times as fast from start to end{why}"]


def _is_slower(whole: Times) -> bool:
    """Whether whole runs surely took longer, by as much as counts."""
    return whole.high is not None and whole.high < 1 and whole.mid < 1 - LEAST_GAIN


def _longer_evaluation(found: Found, trial: Trial) -> str | None:
    base, other = (
        [run for run in found.comparable(name) if _batch_s(run) is not None]
        for name in (BASELINE, trial.name)
    )
    if trial.data != "real" or not base or not other or not any(map(_evaluates_much, base)):
        return None
    now, then = ([_batch_s(run) or 0.0 for run in side] for side in (base, other))
    if min(then) <= _OTHER_EVALUATION * max(now):
        return None
    times = statistics.median(then) / statistics.median(now)
    return f"evaluation takes {times:.1f} times as long"


def _batch_s(run: Measured) -> float | None:
    told = run.evaluated
    return None if told is None or told.batches < _FEWEST_EVALUATED else told.seconds / told.batches


def _evaluates_much(run: Measured) -> bool:
    """Whether evaluation takes so much of a run that its pace counts."""
    return run.evaluated is not None and run.evaluated.seconds >= LEAST_GAIN * run.training_s
