"""The loader's workers are started again for each pass.

What it means: without persistent_workers=True each pass ends its workers and the next starts new
ones; training waits until they are up and the first batch is made.

How it is measured: making the iterator, waiting for the first batch and ending the workers, in all
passes of training after the first (of each loader, where some are built for several passes each, as
for folds of the data; the first may have come ahead of training, as Lightning's sanity check),
less what the first batch of a pass takes where workers live on (by the pipeline model). Where
passes are left before their end (break) workers that live on first make all that they were asked
for, which counts as well.

When it is wrong: where the dataset must be opened anew in each epoch, which a fresh worker does.

What to do: persistent_workers=True, for a loader that is built once: one that each pass builds anew
takes its workers with it. The workers then keep their memory between epochs, and their copies of
the dataset: a change made to it in the training process does not reach them, nor one to what
collate_fn uses. They serve one iterator at a time: where two go through a loader at once, each
needs a loader of its own. Where each pass has another sampler, one that is changed in place: the
training process draws by it; where each has another collate_fn, one with what is new in a tensor in
shared memory. Where each pass has another dataset, fewer workers, or none; or one
dataset, whose new content is drawn in __getitem__ or lies in shared memory.

Where an iterator is made for each step, as next(iter(loader)) does, or is left after so many of
them, one iterator, kept, instead: workers that live on would make batches that are thrown away. So
it is with passes that are left by break, unless persistent_workers=True saves nearly as much. One
for all steps gives other batches: all of a pass in turn, where each step had the first of a new
one.

Where two passes of a loader overlap, or training changes attributes of the dataset between passes,
it is said what to do first, nothing is patched, and trainprof tune does not try it. Seen is another
number, word or object, and a list or dict of another length; not what is changed in place in an
array or a tensor, nor in what else makes batches.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from trainprof.analysis.diagnosis.case import Case, LoaderCase
from trainprof.analysis.diagnosis.gains import as_a_device_lets, outside_steps
from trainprof.analysis.diagnosis.loader_cautions import (
    needed_first,
    one_iterator,
    others_of_line,
)
from trainprof.analysis.diagnosis.loader_change import (
    advised,
    costliest,
    fewer_workers,
    finding,
)
from trainprof.analysis.diagnosis.needless_workers import (
    HARDLY_LONGER,
    WITHOUT,
    as_good_without,
    gain_without,
    made_in,
    shorter_without,
)
from trainprof.analysis.diagnosis.rule import Threshold
from trainprof.analysis.diagnosis.waiting import NEEDLESS_WORKERS, SAMPLE_BY_SAMPLE
from trainprof.analysis.diagnosis.wording import number_of, span
from trainprof.analysis.finding import Finding
from trainprof.analysis.least_gain import LEAST_GAIN
from trainprof.analysis.loader_figures import Loader
from trainprof.analysis.passes import TRAINING
from trainprof.analysis.pipeline import PipelineInputs, Prediction, predict
from trainprof.analysis.pipeline_model import USUAL_PREFETCH
from trainprof.analysis.verdict_level import percent

ID: Final = "worker_restart"
KEYS: Final[tuple[str, ...]] = ("loader_start", "first_batch")
THRESHOLDS: Final = {
    "share": Threshold(0.03, "of training: what is worth a change"),
}

_SHORTER: Final = "without workers its passes would be shorter"
# Workers that are to go are not to be kept.
TO_GO: Final = (NEEDLESS_WORKERS, SAMPLE_BY_SAMPLE)
# Of training, what it takes to start workers once: those that live on are started, too.
_MUCH_ONCE: Final = 0.05
# Of what it takes to start workers: from here on it is told what it takes to end them.
_MUCH_OF_IT: Final = 0.1
_KEPT: Final[dict[str, Any]] = {"persistent_workers": True}
_BUILD_ONCE: Final = (
    "if its sampler and collate_fn may stay the same, build it once, ahead of all epochs, with "
    "persistent_workers=True: now each epoch builds another"
)
_NEW_DATASETS: Final = (
    "where all passes may have the same samples, or what is new in each is drawn in __getitem__ or "
    "lies in a tensor in shared memory, one dataset and one loader for all, with "
    "persistent_workers=True"
)
# Of what one iterator for all passes saves: from here on persistent_workers=True will do, for it
# leaves each pass as it is.
_NEARLY_AS_MUCH: Final = 0.8
_GOES_ON: Final = (
    "each pass then goes on where the one before was left, and has other samples than now: all of "
    "them get their turn"
)
_FEWER: Final = "; elsewhere fewer workers, which start sooner"
_NOT_SEEN: Final = ": now each has another dataset, which workers that live on would not see"


def find(case: Case) -> Finding | None:
    least = case.threshold(ID, "share", THRESHOLDS["share"].value)
    fed_by = (*case.feeding, *case.evaluating)
    may_stay = [one for one in fed_by if one.cause is None or one.cause.name not in TO_GO]
    found = costliest(case, may_stay, lost_s, least)
    if found is None:
        return None
    spent_s, fed = found
    if fed.loader.is_each_step:
        return _for_each_step(case, fed, spent_s)
    loader, without = fed.loader, as_good_without(fed)
    how = HARDLY_LONGER
    # Where training's own workers are to go, others are not advised to stay.
    if without is None and len(may_stay) < len(fed_by):
        without, how = shorter_without(fed), _SHORTER
    if without is None and loader.is_of_new_parts:
        without, how = _worthwhile_without(case, fed), _SHORTER
    beside = [one for one in may_stay if _is_kept_with(one, fed)]
    later = loader.later_passes
    once_s = fed.starts_s - fed.later_starts_s
    is_once_much = fed.exposed * once_s >= _MUCH_ONCE * case.training_s
    # What the sampler takes meanwhile is no matter of workers.
    each_s = (fed.later_starts_s - _sampler_starts_s(loader)) / later
    who = "its worker is" if loader.num_workers == 1 else f"its {loader.num_workers} workers are"
    end_s = loader.end_s / loader.passes
    ending = f" and {span(end_s)} to end them" if end_s >= _MUCH_OF_IT * each_s else ""
    around_s = each_s + (end_s if ending else 0.0)
    each = "each time " if later > 1 else ""
    title = (
        f"{who} started again for {_again(loader)}: "
        f"{each}{span(each_s)} until the first batch is there{ending}, "
        f"{percent(fed.exposed * later * around_s / case.training_s)} of training"
    )
    evidence = _evidence(fed)
    # Without any no first start is left either, and nothing has to be built elsewhere.
    is_to_go = loader.is_rebuilt or is_once_much or len(may_stay) < len(fed_by)
    if without is not None and is_to_go:
        advice, change = advised(loader, WITHOUT)
        return finding(
            case,
            fed,
            ID,
            f"{title}; {how}, for a batch is made in {made_in(fed)}",
            gain_without(case, fed, without),
            advice=advice,
            change=change,
            alters=WITHOUT,
            evidence=evidence,
            is_of_making=False,
        )
    if _wants_one_iterator(fed):
        return _for_left_passes(case, fed, title, spent_s, evidence)
    advice, change = _to_keep_them(loader)
    apart = [one for one in may_stay if one is not fed and one not in beside]
    if beside:
        more_s = sum(one.exposed * lost_s(one) for one in beside)
        spent_s += more_s
        others = others_of_line(replace(loader, also_builds=[one.loader.role for one in beside]))
        title += (
            f"; so are those of {others}, built by the same line: "
            f"{percent(more_s / case.training_s)} more"
        )
    return finding(
        case,
        fed,
        ID,
        title,
        as_a_device_lets(case, fed, outside_steps(case, spent_s)),
        advice=advice,
        change=change,
        alters=_KEPT,
        also=[
            *(fewer_workers(fed) if without is None else [_without(fed)]),
            *(
                f"the loader of {one.loader.role} at {one.loader.site} loses {span(lost)} likewise"
                for one in apart
                if (lost := one.exposed * lost_s(one)) >= least * case.training_s
            ),
        ],
        evidence=evidence,
        is_of_making=False,
    )


def _is_kept_with(other: LoaderCase, fed: LoaderCase) -> bool:
    """Whether the change that keeps a loader's workers keeps those of another one as well."""
    both = (other.loader, fed.loader)
    if other is fed or lost_s(other) <= 0 or other.loader.site != fed.loader.site:
        return False
    if other.loader.role not in fed.loader.also_builds:
        return False
    return not any(one.is_rebuilt or one.is_each_step or one.is_of_new_parts for one in both)


def _again(loader: Loader) -> str:
    """Returns for which passes workers are started again."""
    later = loader.later_passes
    if loader.is_of_several:
        which = f"each of {later} passes after the first" if later > 1 else "a second pass"
        return f"{which} in {'each' if later > 1 else 'one'} of {loader.built} loaders"
    over = ""
    if loader.is_of_new_parts:
        over = ", each over another dataset" if later > 1 else ", over another dataset"
    if loader.begun_ahead:
        which = f"each of the {later} passes" if later > 1 else "the pass"
        return f"{which} in training (the first was ahead of it){over}"
    if later == 1:
        return f"the second pass{over}"
    return f"each of the {later} passes after the first{over}"


def _worthwhile_without(case: Case, fed: LoaderCase) -> Prediction | None:
    """Returns the loader without any workers, where training gains by that."""
    found = shorter_without(fed)
    if found is None or gain_without(case, fed, found).likely < 1 + LEAST_GAIN:
        return None
    return found


def _to_keep_them(loader: Loader) -> tuple[str, dict[str, Any]]:
    """Returns what has workers live on, in words, and its arguments where it takes no more."""
    if loader.is_of_new_parts:
        fewer = _FEWER if (loader.num_workers or 0) > 1 else ""
        return f"{_NEW_DATASETS}{fewer}{_NOT_SEEN}", {}
    if not loader.is_rebuilt:
        return advised(loader, dict(_KEPT))
    told = "".join(f"{one}, then " for one in needed_first(loader, _KEPT))
    return f"{told}{_BUILD_ONCE}", {}


def _for_each_step(case: Case, fed: LoaderCase, spent_s: float) -> Finding:
    """Workers that live on would go on making batches that nobody takes."""
    loader, workers = fed.loader, fed.loader.num_workers or 0
    later = loader.later_passes
    each_s = fed.later_starts_s / later + loader.end_s / loader.passes
    ahead = workers * (loader.prefetch_factor or USUAL_PREFETCH)
    who = "its worker is" if workers == 1 else f"its {workers} workers are"
    return finding(
        case,
        fed,
        ID,
        f"an iterator is made for each of {loader.iterations} batches, and {who} started again for "
        f"it: {span(each_s)} each time, "
        f"{percent(fed.exposed * later * each_s / case.training_s)} of training",
        as_a_device_lets(case, fed, outside_steps(case, spent_s)),
        advice=one_iterator(loader),
        also=[
            f"up to {ahead} batches are asked of the workers each time, and one is taken: with "
            "persistent_workers=True the others would be waited for, and thrown away"
        ],
        evidence=_evidence(fed),
        is_of_making=False,
    )


def _evidence(fed: LoaderCase) -> dict[str, float]:
    return {
        "starts_s": fed.starts_s,
        "later_starts_s": fed.later_starts_s,
        "passes": fed.loader.passes,
    }


def _for_left_passes(
    case: Case, fed: LoaderCase, title: str, spent_s: float, evidence: dict[str, float]
) -> Finding:
    """Workers that live on would make first what a pass that was left had asked of them."""
    loader, inputs = fed.loader, fed.inputs
    assert inputs is not None
    once = "build it once, ahead of all passes, then " if loader.is_rebuilt else ""
    kept = _played_with_workers_kept(inputs)
    asked = min(inputs.setting.workers * inputs.setting.prefetch, inputs.left)
    batches = f"up to {asked} batches" if asked > 1 else "a batch"
    return finding(
        case,
        fed,
        ID,
        f"{title}; each is left after {number_of(inputs.batches, 'batch', 'batches')}",
        as_a_device_lets(case, fed, outside_steps(case, spent_s)),
        advice=f"{once}{one_iterator(loader)}",
        cautions=[_GOES_ON],
        also=[
            f"with persistent_workers=True alone each pass would begin with {batches} that the one "
            f"before had asked for, about {span(kept.reset_s.mid)}, to be thrown away"
        ],
        evidence=evidence,
        is_of_making=False,
    )


def _without(fed: LoaderCase) -> str:
    first = "".join(f"; {one} first" for one in needed_first(fed.loader, WITHOUT))
    return (
        "without workers (num_workers=0) steps would take hardly longer: a batch is made in "
        f"{made_in(fed)}{first}"
    )


def lost_s(fed: LoaderCase) -> float:
    """Returns what starting workers again took, beyond what a pass begins with anyway."""
    loader = fed.loader
    live_on = loader.persistent_workers and not loader.is_rebuilt
    if not loader.num_workers or live_on or not loader.later_passes:
        return 0.0
    if loader.is_each_step or _wants_one_iterator(fed):
        return _saved_by_one_iterator_s(fed)
    return _saved_by_keeping_s(fed)


def _wants_one_iterator(fed: LoaderCase) -> bool:
    """Whether passes are left, so that it does not save much to keep the workers alone."""
    loader = fed.loader
    # Each evaluation is to have the same samples.
    if fed.inputs is None or not fed.inputs.left or loader.role != TRAINING:
        return False
    if loader.is_of_new_parts or not loader.later_passes or loader.is_each_step:
        return False
    return _saved_by_keeping_s(fed) < _NEARLY_AS_MUCH * _saved_by_one_iterator_s(fed)


def _later_s(fed: LoaderCase) -> float:
    """Returns what all passes but the first of a loader took to begin, and workers to end.

    Workers that live on are ended once.
    """
    loader = fed.loader
    return fed.later_starts_s + loader.end_s * loader.later_passes / loader.passes


def _saved_by_one_iterator_s(fed: LoaderCase) -> float:
    loader = fed.loader
    # Its workers make batches meanwhile: each is waited for at most so long.
    sampler_s = 0.0 if loader.is_each_step else _sampler_starts_s(loader)
    each_s = _made_in_s(loader) / max(loader.num_workers or 0, 1)
    return max(_later_s(fed) - sampler_s - loader.later_passes * each_s, 0.0)


def _saved_by_keeping_s(fed: LoaderCase) -> float:
    loader = fed.loader
    if fed.inputs is None:
        each_s = _made_in_s(loader)
    else:
        # At least: what is gained is told as the most that it may be.
        kept = _played_with_workers_kept(fed.inputs)
        each_s = kept.first_batch_s.low + kept.reset_s.low
    later_s = _later_s(fed) - _sampler_starts_s(loader)
    return max(later_s - loader.later_passes * each_s, 0.0)


def _sampler_starts_s(loader: Loader) -> float:
    """Returns the sampler's part of what later passes took to begin."""
    return loader.later_share * (loader.sampler_starts_s or 0.0)


def _made_in_s(loader: Loader) -> float:
    """Returns what making a batch takes, 0 where that is not known.

    At least, where half of them are the first of a worker, which may have to open something.
    """
    wall_s = loader.fetch.wall_s if loader.fetch else None
    if wall_s is None:
        return 0.0
    are_mostly_first = 2 * loader.passes * (loader.num_workers or 0) >= wall_s.n
    return wall_s.min if are_mostly_first and not loader.is_each_step else wall_s.mean


def _played_with_workers_kept(inputs: PipelineInputs) -> Prediction:
    return predict(inputs, replace(inputs.setting, is_persistent=True))
