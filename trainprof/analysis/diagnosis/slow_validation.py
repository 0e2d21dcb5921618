"""Evaluation takes a large part of training.

What it means: passes without updates (validation, tests between epochs) hold training up.

How it is measured: the time of evaluation passes inside the training phase, loading included. It is
named where the code that trains calls for it, as told when passes begin; by its loader where that
is what it mostly waits for. Without a loader, what a model computes without gradients while it is
in evaluation mode counts, or for a loss behind the updates of a batch, and looks tell who calls for
it; so they do where most of it lies in no pass over a loader, as where a model generates samples
after it was validated. Where no loader feeds training either, or one of data made since, a policy's
rollouts look the same: they are none of it if an environment has a quarter of the time or more
between the forwards, and else both are said, without a gain.

When it is wrong: where the evaluation is what the run is for, or what training learns from: the
labels or features of a pass over all samples, hard samples that it picks, what a policy collects.
What goes by its figures (ReduceLROnPlateau, early stopping, the best checkpoint) sees fewer of them
where they come less often: its patience is to be shortened to match.

What to do: if its loader makes batches in the training process, give it workers, as the finding
says. Hugging Face's Trainer keeps all logits for compute_metrics: keep less of them
(preprocess_logits_for_metrics). Where most of its forwards have gradients
enabled, put it under torch.no_grad(). Where its batches are at most a quarter as large as
training's, take larger ones: without gradients there is room for them. Where it goes over the
samples that train, count while training. Else evaluate less often, or on fewer samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from trainprof.analysis.code_figures import HotLine
from trainprof.analysis.diagnosis.case import Case, LoaderCase
from trainprof.analysis.diagnosis.gains import Gain, outside_steps, start_of_workers
from trainprof.analysis.diagnosis.loader_change import advised, finding, with_workers
from trainprof.analysis.diagnosis.plain import plain_finding, unmeasured_finding
from trainprof.analysis.diagnosis.rule import Threshold
from trainprof.analysis.diagnosis.waiting import more_workers
from trainprof.analysis.diagnosis.wording import its_share, place, span
from trainprof.analysis.diagnosis.worker_restart import lost_s
from trainprof.analysis.finding import Finding
from trainprof.analysis.hot_lines import MAKING, hottest
from trainprof.analysis.loader_builder import settings_of
from trainprof.analysis.loader_figures import Loader
from trainprof.analysis.passes import EVALUATION, TRAINING
from trainprof.analysis.verdict_level import percent

ID: Final = "slow_validation"
KEYS: Final[tuple[str, ...]] = ()
THRESHOLDS: Final = {
    "share": Threshold(0.2, "of training"),
    "loading_share": Threshold(0.5, "of the evaluation: from here on its loader is the cause"),
}

# Of the evaluation, in passes over loaders: else what comes behind them is most of it.
_OVER_LOADERS_FROM_SHARE: Final = 0.5
# Of it, what may be rollouts: from here on both are said.
_ROLLOUTS_FROM_SHARE: Final = 0.5
# Of the longest of its passes, in batches: a shorter one ahead of training only tries it out.
_WHOLE_PASS_SHARE: Final = 0.5
_LEARNED_FROM: Final = "leave it where training learns from it (labels, features, hard samples)"
# Also where none was seen: a patience of the script's own is a number like any other.
_GOES_BY_IT: Final = (
    "what goes by its figures (ReduceLROnPlateau, early stopping, the best checkpoint) sees fewer "
    "of them: shorten patience to match"
)
# Of its forwards.
_MOSTLY_WITH_GRADIENTS: Final = 0.5
# Of training's batches; a pass of so few of evaluation's would hardly gain by fewer.
_SMALL_SHARE: Final = 0.25
_MANY_BATCHES: Final = 4
_UNLIKE_SIZES: Final = "samples that differ in size have to be padded for larger batches"
# Of forwards that no loader feeds: a policy's look the same, and may fill what a loader reads.
_MAY_BE_ROLLOUTS: Final = (
    "if training learns from what these forwards give (a policy that collects experience), they "
    "are needed"
)


def find(case: Case) -> Finding | None:
    least = case.threshold(ID, "share", THRESHOLDS["share"].value)
    of_loading = case.threshold(ID, "loading_share", THRESHOLDS["loading_share"].value)
    spent_s = case.training.get("evaluation", 0.0)
    fed = _fed(case, spent_s)
    if case.share("evaluation") < least:
        return None
    what = f"evaluation takes {span(spent_s)}, {percent(case.share('evaluation'))} of training"
    is_of_what_trains = fed is not None and fed.loader.role == TRAINING
    if fed is None or (is_of_what_trains and fed.loader.evaluation_s <= 0):
        return _without_loader(case, spent_s, what)
    if is_of_what_trains:
        return _of_what_trains(case, fed, spent_s, what)
    # Where most of it is starting workers, that is what there is to change.
    if fed.exposed * lost_s(fed) >= of_loading * spent_s:
        return None
    passes = max(_passes(case), fed.loader.passes, 1)
    # An iterator that is asked again and again may have been so outside of training, too.
    loading = min(fed.cost_s / spent_s, 1.0) if spent_s > 0 else 0.0
    evidence = {"evaluation_s": spent_s, "passes": passes, "loading_share": loading}
    changed = _with_workers(case, fed, spent_s) if loading >= of_loading else None
    if changed is not None:
        gain, wanted = changed
        advice, change = advised(fed.loader, wanted)
        return finding(
            case,
            fed,
            ID,
            f"{what}; {percent(loading)} of it waiting for its loader",
            gain,
            advice=advice,
            change=change,
            alters=wanted,
            evidence=evidence,
        )
    often = _often(passes)
    is_of_making = loading >= of_loading
    slow = f"; {percent(loading)} of it waiting for its loader" if is_of_making else ""
    called = fed.loader.called_at
    over = f" over the loader of {fed.loader.site}" if called else ""
    size = _larger_size(case, fed.loader)
    most = None if is_of_making else hottest(case.summary.part_lines, "evaluation")
    most = None if most is not None and most.site == called else most
    learned_from = [_LEARNED_FROM] if _may_be_learned_from(case, fed.loader) else []
    return finding(
        case,
        fed,
        ID,
        f"{what} in {often}{over}{slow}",
        outside_steps(case, spent_s),
        advice="; ".join([*_cheaper(case, size), _less_often(spent_s, fed.loader.built_by)]),
        cautions=[_GOES_BY_IT, *learned_from, *([] if size is None else [_UNLIKE_SIZES])],
        also=_most_of_it(most),
        evidence=evidence,
        site=called,
        is_of_making=is_of_making,
    )


def is_over_loaders(loaders: Sequence[Loader], spent_s: float) -> bool:
    """Whether passes over loaders are most of what evaluation takes."""
    return sum(one.evaluation_s for one in loaders) >= _OVER_LOADERS_FROM_SHARE * spent_s


def may_be_rollouts(seconds: float, spent_s: float) -> bool:
    """Whether most of evaluation may be none, by the seconds that may be rollouts."""
    return seconds >= _ROLLOUTS_FROM_SHARE * spent_s > 0


def _may_be_learned_from(case: Case, loader: Loader) -> bool:
    """Whether training may learn from what passes over a loader give.

    They go over data that trains, or come ahead of training each time and never after it.
    """
    if loader.has_training_data:
        return True
    told = case.summary.epochs
    passes = [one for one in told if one.stage == EVALUATION and one.loader == loader.id]
    trained = [one.start_s for one in told if one.stage == TRAINING]
    if len(passes) < 2 or not trained:
        return False
    most = max(one.iterations for one in passes)
    is_first = passes[0].iterations >= _WHOLE_PASS_SHARE * most
    is_first &= passes[0].start_s < trained[0]
    return is_first and passes[-1].start_s < trained[-1]


def _fed(case: Case, spent_s: float) -> LoaderCase | None:
    """Returns the loader that evaluation goes over for longest; None where most is over none."""
    if not is_over_loaders(case.loaders, spent_s):
        return None
    every = (*case.evaluating, *case.feeding)
    return max(every, key=lambda one: one.loader.evaluation_s, default=None)


def _passes(case: Case) -> int:
    told = case.summary.evaluation
    return told.passes if told.passes_in_training is None else told.passes_in_training


def _without_loader(case: Case, spent_s: float, what: str) -> Finding:
    passes = max(_passes(case), 1)
    most = hottest(case.summary.part_lines, "evaluation")
    called = called_for_at(case.summary.part_lines)
    also = [] if most is None or most.site == called else _most_of_it(most)
    evidence = {"evaluation_s": spent_s, "passes": passes}
    if may_be_rollouts(case.summary.evaluation.may_be_rollouts_s, spent_s):
        return unmeasured_finding(
            ID,
            f"forwards that no loader feeds, evaluation or rollouts, take {span(spent_s)}, "
            f"{percent(case.share('evaluation'))} of training in {_often(passes)}",
            site=called,
            advice=f"if it is evaluation, {_less_often(spent_s)}",
            cautions=[_GOES_BY_IT, _MAY_BE_ROLLOUTS],
            also=also,
            evidence=evidence,
            unknown="whether training does as well with less of it",
        )
    return plain_finding(
        ID,
        f"{what} in {_often(passes)}",
        outside_steps(case, spent_s),
        site=called,
        advice=_less_often(spent_s),
        cautions=[_GOES_BY_IT, _MAY_BE_ROLLOUTS],
        also=also,
        evidence=evidence,
    )


def called_for_at(lines: Sequence[HotLine]) -> str | None:
    """Returns the outermost line that leads to evaluation, and to no other part of training.

    Where nothing is known of the others that may be any of them: the line itself is told then. None
    where looks met none of it.
    """
    most = hottest(lines, "evaluation")
    if most is None:
        return None
    elsewhere = {
        site
        for line in lines
        if line.part not in (most.part, MAKING)
        for site in (line.site, *line.called_from)
    }
    leading = [site for site in (most.site, *most.called_from) if site not in elsewhere]
    return leading[-1] if leading and elsewhere else most.site


def _often(passes: int) -> str:
    return f"{passes} passes" if passes > 1 else "1 pass"


def _less_often(spent_s: float, package: str | None = None) -> str:
    settings = settings_of(package)
    by = f" (in {settings.call}: {settings.evaluates})" if settings and settings.evaluates else ""
    return (
        f"evaluate less often{by} or on fewer samples: every second time saves {span(spent_s / 2)}"
    )


def _cheaper(case: Case, size: int | None) -> list[str]:
    """Returns what to change that leaves the figures as they are, ahead of evaluating less.

    Args:
        case: The run.
        size: Of batches that may be larger; None where they are large enough.
    """
    with_gradients = case.summary.evaluation.with_gradients_share or 0.0
    told = ["put it under torch.no_grad()"] if with_gradients >= _MOSTLY_WITH_GRADIENTS else []
    if size is not None:
        told.append(
            f"take larger batches (of {size} now): without gradients there is room for them"
        )
    return told


def _larger_size(case: Case, loader: Loader) -> int | None:
    """Returns how large batches of evaluation are where training's show that they may be larger."""
    known = [one.loader.batch_size for one in case.feeding if one.loader.batch_size]
    size = loader.batch_size
    if not known or not size or loader.iterations < _MANY_BATCHES * max(loader.passes, 1):
        return None
    return size if size <= _SMALL_SHARE * min(known) else None


def _most_of_it(most: HotLine | None) -> list[str]:
    return [f"most of it goes to {place(most)}: {its_share(most)}"] if most else []


def _of_what_trains(case: Case, fed: LoaderCase, spent_s: float, what: str) -> Finding:
    """Returns what to say of passes of evaluation over a loader that trains."""
    own_s = min(fed.loader.evaluation_s, spent_s)
    share = percent(own_s / spent_s)
    advice = (
        "count while training what is wanted of the samples that train, or evaluate them less "
        f"often: every second time saves {span(own_s / 2)}"
    )
    return finding(
        case,
        fed,
        ID,
        f"{what}, {share} of it over the loader that trains, {fed.loader.site}",
        outside_steps(case, own_s),
        advice="; ".join([*_cheaper(case, None), advice]),
        cautions=[_GOES_BY_IT, _LEARNED_FROM],
        evidence={"evaluation_s": spent_s, "of_training_loader_s": own_s},
        site=fed.loader.called_at,
        is_of_making=False,
    )


def _with_workers(
    case: Case, fed: LoaderCase, spent_s: float
) -> tuple[Gain, dict[str, Any]] | None:
    """Returns what workers for the loader of evaluation would give; None where they do not help."""
    if fed.inputs is None or fed.now is None or fed.measured is None:
        return None
    more = more_workers(fed.inputs, fed.now, stay=fed.loader.may_keep_workers)
    if more is None:
        return None
    setting, found = more
    batches = fed.loader.iterations
    passes = max(fed.loader.passes, 1)
    started = 1 if setting.is_persistent else passes
    if fed.loader.is_of_several and setting.is_persistent:
        started = passes - fed.loader.later_passes
    longer_s = start_of_workers(fed.inputs, setting).mid - fed.now.first_batch_s.mid
    starts_s = started * max(longer_s, 0.0) + (passes - started) * found.reset_s.mid
    saved_s = [
        min(max(batches * (fed.measured.step_s - s) - starts_s, 0.0), spent_s)
        for s in (found.step_s.high, found.step_s.mid, found.step_s.low)
    ]
    if saved_s[1] <= 0:
        return None
    low, likely, high = (case.training_s / (case.training_s - s) for s in saved_s)
    run = [case.wall_s / (case.wall_s - s) for s in saved_s]
    of_run = (run[0], run[2])
    gain = Gain((low, high), of_run, likely, saved_s[1], is_at_most=False, of_steps=False)
    return gain, with_workers(fed, setting)
