"""Why a change is not to be taken, or only with care, however fast its steps were."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Final

from trainprof.analysis.least_gain import LEAST_GAIN
from trainprof.analysis.loader_figures import Loader
from trainprof.analysis.tuning import BASELINE
from trainprof.experiments.beside_steps import EndedPasses
from trainprof.experiments.found import Found
from trainprof.experiments.trial import Measured, Trial
from trainprof.experiments.whole_runs import of_whole_runs

# Passes of a stream differ by a batch of each worker, whose last one is not full or is left out.
# Beyond that by less than this share where files are not shared out evenly, or samples are left out
# at random; workers that give all of it each make a pass twice as long at the least.
_OTHER_PASS: Final = 0.1
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
    if whole is not None and whole.mid < 1 - LEAST_GAIN and not _is_slower(found, trial):
        told.append(
            f"the whole script was {whole.mid:.2f} times as fast from start to end with it, if not "
            "by chance: steps are not all of it"
        )
    longer = _longer_evaluation(found, trial)
    return told if longer is None else [*told, f"with it {longer}"]


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
    return not any(True for _ in _passes(found, trial, loader.site))


def _of_other_passes(found: Found, trial: Trial) -> list[str]:
    """Returns of which streams a pass is not as long as in the script as it is."""
    told = []
    for site in trial.sites if trial.loader_arguments() else ():
        for base, other in _passes(found, trial, site):
            if _are_other(base, other):
                now, then = (statistics.fmean(map(_batches, x)) for x in (base, other))
                told.append(
                    f"a pass over {site} has {then:,.0f} batches with it, and {now:,.0f} in the "
                    "script as it is: an epoch is another one then, whatever a step takes; look "
                    "at how its __iter__ shares the data out among workers (get_worker_info())"
                )
    return list(dict.fromkeys(told))


def _passes(
    found: Found, trial: Trial, site: str
) -> Iterator[tuple[list[EndedPasses], list[EndedPasses]]]:
    """Yields, loader by loader, the passes that runs of both sides came to the end of.

    Later ones may be longer or shorter for what training does.
    """
    base, other = (
        [run.passes[site] for run in found.of(name) if run.is_ok and site in run.passes]
        for name in (BASELINE, trial.name)
    )
    if not base or not other:
        return
    for number in range(min(map(len, (*base, *other)))):
        sides = [
            [run[number] for run in side if run[number].batches and trial.data == "real"]
            for side in (base, other)
        ]
        if all(sides):
            fewest = min(len(one.batches) for side in sides for one in side)
            of_base, of_other = (
                [EndedPasses(one.batches[:fewest], one.workers) for one in side] for side in sides
            )
            yield of_base, of_other


def _batches(passes: EndedPasses) -> float:
    return statistics.fmean(passes.batches)


def _are_other(base: Sequence[EndedPasses], other: Sequence[EndedPasses]) -> bool:
    """Whether the passes of each run are longer than those of all others, or shorter.

    By more than passes of one run differ.
    """
    now, then = sorted(map(_batches, base)), sorted(map(_batches, other))
    unlike = max(max(one.batches) - min(one.batches) for one in base)
    more = max(one.workers for one in (*base, *other)) + _OTHER_PASS * now[-1] + unlike
    return then[0] > now[-1] + more or then[-1] < now[0] - more


def _of_longer_runs(found: Found, trial: Trial) -> list[str]:
    if not trial.overrides or not _is_slower(found, trial):
        return []
    whole, longer = of_whole_runs(found, trial), _longer_evaluation(found, trial)
    assert whole is not None
    why = "" if longer is None else f": {longer}"
    return [f"the whole script was {whole.mid:.2f} times as fast from start to end{why}"]


def _is_slower(found: Found, trial: Trial) -> bool:
    """Whether whole runs of it surely took longer."""
    whole = of_whole_runs(found, trial)
    return whole is not None and whole.high is not None and whole.high < 1


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
