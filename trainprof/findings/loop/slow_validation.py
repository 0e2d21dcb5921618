"""Evaluation takes a large part of training.

What it means: passes without updates (validation, tests between epochs) hold training up.

How it is measured: the time of evaluation passes inside the training phase, loading included. It is
named where the code that trains calls for it, and by its loader where that is what it mostly waits
for. Without a loader, what a model computes without gradients in evaluation mode counts, or for a
loss behind the updates of a batch, and stack samples tell who calls for it.

When it is wrong: where the evaluation is what the run is for, or what training learns from: the
labels or features of a pass over all samples, hard samples that it picks, what a policy collects.
What goes by its figures (ReduceLROnPlateau, early stopping, the best checkpoint) sees fewer of them
where they come less often: its patience is to be shortened to match.

What to do: if its loader makes batches in the training process, give it workers, as the finding
says. Where most of its forwards have gradients enabled, put it under torch.no_grad(). Take larger
batches: without gradients there is room for them. Where it goes over the samples that train, count
while training. Else evaluate less often, or on fewer samples. Hugging Face's Trainer keeps all
logits for compute_metrics: keep less of them (preprocess_logits_for_metrics).
"""

from __future__ import annotations

from typing import Any, Final

from trainprof.analysis.loading.loader_builder import settings_of
from trainprof.analysis.run.evidence import called_for_at, is_over_loaders
from trainprof.analysis.summary.code import HotLine, hottest
from trainprof.analysis.summary.finding import Finding, RuleTraits, Threshold
from trainprof.analysis.summary.levels import percent
from trainprof.analysis.timeline.iterations import TRAINING
from trainprof.findings.gain import Gain, outside_steps, plain_finding, start_of_workers
from trainprof.findings.loading.loader_change import advised, loader_finding, with_workers
from trainprof.findings.loading.waiting import more_workers
from trainprof.findings.loading.worker_restart import lost_s
from trainprof.findings.rule import Rule
from trainprof.findings.run_context import Feeder, RunContext
from trainprof.findings.wording import its_share, number_of, place, span

# Of its forwards.
_MOSTLY_WITH_GRADIENTS: Final = 0.5
_CAUTION: Final = (
    "leave it where training learns from it (labels, hard samples, a policy's experience); what "
    "goes by its figures (ReduceLROnPlateau, early stopping) sees fewer: shorten patience to match"
)


def find(context: RunContext) -> Finding | None:
    least = RULE.threshold(context.settings, "share")
    loading_share = RULE.threshold(context.settings, "loading_share")
    spent_s = context.training.get("evaluation", 0.0)
    if context.share("evaluation") < least or spent_s <= 0:
        return None
    what = f"evaluation takes {span(spent_s)}, {percent(context.share('evaluation'))} of training"
    feeder = _longest(context, spent_s)
    if feeder is None or feeder.loader.evaluation_s <= 0:
        return _without_loader(context, spent_s, what)
    is_of_what_trains = feeder.loader.role == TRAINING
    passes = max(_passes(context), 1 if is_of_what_trains else feeder.loader.passes)
    # Where most of it is starting workers, that is what there is to change.
    if not is_of_what_trains and feeder.exposed * lost_s(feeder) >= loading_share * spent_s:
        return None
    own_s = min(feeder.loader.evaluation_s, spent_s) if is_of_what_trains else spent_s
    # An iterator that is asked again and again may have been so outside of training, too.
    loading = 0.0 if is_of_what_trains else min(feeder.cost_s / spent_s, 1.0)
    is_loading = loading >= loading_share
    evidence = {"evaluation_s": spent_s, "passes": passes, "loading_share": loading}
    slow = f"; {percent(loading)} of it waiting for its loader" if is_loading else ""
    changed = _with_workers(context, feeder, spent_s) if is_loading else None
    if changed is not None:
        gain, wanted = changed
        advice, change = advised(feeder.loader, wanted)
        return loader_finding(
            context,
            feeder,
            RULE.id,
            f"{what}{slow}",
            gain,
            advice=advice,
            change=change,
            alters=wanted,
            evidence=evidence,
        )
    over = f" over {feeder.loader.site}" if feeder.loader.called_at else ""
    most = None if is_loading else hottest(context.summary.part_lines, "evaluation")
    counted = ["count while training what is wanted of its samples"] if is_of_what_trains else []
    return loader_finding(
        context,
        feeder,
        RULE.id,
        f"{what} in {number_of(passes, 'pass', 'passes')}{over}{slow}",
        outside_steps(context, own_s),
        advice="; ".join(
            [*_no_grad(context), *counted, _less_often(own_s, feeder.loader.built_by)]
        ),
        cautions=[_CAUTION],
        also=_most_of_it(most, feeder.loader.called_at),
        evidence=evidence,
        site=feeder.loader.called_at,
        is_of_making=is_loading,
    )


def _longest(context: RunContext, spent_s: float) -> Feeder | None:
    """Returns the loader that evaluation goes over for longest; None where most is over none."""
    if not is_over_loaders(context.loaders, spent_s):
        return None
    every = (*context.evaluating, *context.feeding)
    return max(every, key=lambda x: x.loader.evaluation_s, default=None)


def _passes(context: RunContext) -> int:
    evaluation = context.summary.evaluation
    inside = evaluation.passes_in_training
    return evaluation.passes if inside is None else inside


def _without_loader(context: RunContext, spent_s: float, what: str) -> Finding:
    passes = max(_passes(context), 1)
    called = called_for_at(context.summary.part_lines)
    return plain_finding(
        RULE.id,
        f"{what} in {number_of(passes, 'pass', 'passes')}",
        outside_steps(context, spent_s),
        site=called,
        advice="; ".join([*_no_grad(context), _less_often(spent_s)]),
        cautions=[_CAUTION],
        also=_most_of_it(hottest(context.summary.part_lines, "evaluation"), called),
        evidence={"evaluation_s": spent_s, "passes": passes},
    )


def _less_often(spent_s: float, package: str | None = None) -> str:
    settings = settings_of(package)
    by = f" (in {settings.call}: {settings.evaluates})" if settings and settings.evaluates else ""
    return (
        f"evaluate less often{by} or on fewer samples: every second time saves {span(spent_s / 2)}"
    )


def _no_grad(context: RunContext) -> list[str]:
    with_gradients = context.summary.evaluation.with_gradients_share or 0.0
    return ["put it under torch.no_grad()"] if with_gradients >= _MOSTLY_WITH_GRADIENTS else []


def _most_of_it(most: HotLine | None, named: str | None) -> list[str]:
    if most is None or most.site == named:
        return []
    return [f"most of it goes to {place(most)}: {its_share(most)}"]


def _with_workers(
    context: RunContext, feeder: Feeder, spent_s: float
) -> tuple[Gain, dict[str, Any]] | None:
    """Returns what workers for the loader of evaluation would give; None where they do not help."""
    if feeder.inputs is None or feeder.now is None or feeder.measured is None:
        return None
    more = more_workers(feeder.inputs, feeder.now, stay=feeder.loader.may_keep_workers)
    if more is None:
        return None
    setting, result = more
    passes = max(feeder.loader.passes, 1)
    started = 1 if setting.is_persistent else passes
    if feeder.loader.is_of_several and setting.is_persistent:
        started = passes - feeder.loader.later_passes
    longer_s = start_of_workers(feeder.inputs, setting).mid - feeder.now.first_batch_s.mid
    starts_s = started * max(longer_s, 0.0) + (passes - started) * result.reset_s.mid
    saved_s = [
        min(max(feeder.loader.iterations * (feeder.measured.step_s - s) - starts_s, 0.0), spent_s)
        for s in (result.step_s.high, result.step_s.mid, result.step_s.low)
    ]
    if saved_s[1] <= 0:
        return None
    low, likely, high = (context.training_s / (context.training_s - s) for s in saved_s)
    run = [context.wall_s / (context.wall_s - s) for s in saved_s]
    run_gain = (run[0], run[2])
    gain = Gain((low, high), run_gain, likely, saved_s[1], is_at_most=False, of_steps=False)
    return gain, with_workers(feeder, setting)


RULE: Final = Rule(
    id="slow_validation",
    thresholds={
        "share": Threshold(0.2, "of training"),
        "loading_share": Threshold(0.5, "of the evaluation: from here on its loader is the cause"),
    },
    find=find,
    explanation=__doc__,
    order=120,
    noise_matters=False,
    of_evaluation=True,
    traits=RuleTraits(keys=["evaluation"]),
)
