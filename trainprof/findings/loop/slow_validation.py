"""Validation takes a large part of training.

What it means: validation, or a test between epochs, runs without updates. Training waits for it.

How it is measured: trainprof adds up the time of iterations without updates during training,
loading included. The finding names the line that calls validation, or its loader if that is what it
waits for. Without a loader, forwards without gradients in evaluation mode count, and stack samples
show who calls them.

When it is wrong: training may learn from it, as from labels for all samples, hard samples, or the
experience of a policy. Evaluation can also be the purpose of the run.

What to do: give its loader workers if it waits for data. Use torch.no_grad() if most of its
forwards track gradients, and larger batches. Over training samples, compute the metrics during
training. Otherwise validate less often, or on fewer samples. ReduceLROnPlateau, early stopping and
the best checkpoint then see fewer results: shorten their patience. Hugging Face's Trainer keeps all
logits for compute_metrics: reduce them by preprocess_logits_for_metrics. Its load_best_model_at_end
needs save_steps to be a multiple of eval_steps.
"""

from __future__ import annotations

from typing import Any, Final

from trainprof.analysis.loading.loader_builder import settings_of
from trainprof.analysis.run.evidence import called_for_at, is_over_loaders
from trainprof.analysis.summary.code import HotLine, hottest
from trainprof.analysis.summary.finding import Finding, RuleTraits, Threshold
from trainprof.analysis.summary.levels import pair, percent
from trainprof.analysis.summary.loader import Loader
from trainprof.analysis.timeline.iterations import TRAINING
from trainprof.findings.gain import Gain, outside_steps, plain_finding, start_of_workers
from trainprof.findings.loading.loader_change import advised, loader_finding, with_workers
from trainprof.findings.loading.waiting import more_workers
from trainprof.findings.loading.worker_restart import lost_s
from trainprof.findings.rule import Rule
from trainprof.findings.run_context import Feeder, RunContext
from trainprof.findings.wording import is_nameless, share_of, span

# Of its forwards.
_MOSTLY_WITH_GRADIENTS: Final = 0.5
_WITH_WORKERS: Final = "Load validation data in worker processes"
_NO_GRAD: Final = "Disable gradients in validation"
_COUNTED: Final = "Compute training metrics during training"


def find(context: RunContext) -> Finding | None:
    least = RULE.threshold(context.settings, "share")
    loading_share = RULE.threshold(context.settings, "loading_share")
    spent_s = context.training.get("evaluation", 0.0)
    if context.share("evaluation") < least or spent_s <= 0:
        return None
    what = (
        f"validation takes {pair(spent_s, context.training_s)} of training "
        f"({percent(context.share('evaluation'))})"
    )
    feeder = _longest(context, spent_s)
    if feeder is None or feeder.loader.evaluation_s <= 0:
        return _without_loader(context, spent_s, what)
    is_of_what_trains = feeder.loader.role == TRAINING
    passes = max(_passes(context), 1 if is_of_what_trains else feeder.loader.passes)
    # If most of it is the start of workers, worker_restart reports that.
    if not is_of_what_trains and feeder.exposed * lost_s(feeder) >= loading_share * spent_s:
        return None
    own_s = min(feeder.loader.evaluation_s, spent_s) if is_of_what_trains else spent_s
    # The waits of a loader that trains too may be those of training.
    loading = 0.0 if is_of_what_trains else min(feeder.cost_s / spent_s, 1.0)
    is_loading = loading >= loading_share
    evidence = {"evaluation_s": spent_s, "passes": passes, "loading_share": loading}
    slow = f", {percent(loading)} of it waiting for its loader" if is_loading else ""
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
            action=_WITH_WORKERS,
            advice=advice,
            change=change,
            alters=wanted,
            evidence=evidence,
        )
    most = None if is_loading else hottest(context.summary.part_lines, "evaluation")
    built = [f"its loader is built at {feeder.loader.site}"] if feeder.loader.called_at else []
    action, advice = _change(context, own_s, feeder.loader, counted=is_of_what_trains)
    return loader_finding(
        context,
        feeder,
        RULE.id,
        f"{what}{_times(passes)}{slow}",
        outside_steps(context, own_s),
        action=action,
        advice=advice,
        costliest=_costliest(most, feeder.loader.called_at),
        also=built,
        evidence=evidence,
        site=feeder.loader.called_at,
        is_of_making=is_loading,
    )


def _longest(context: RunContext, spent_s: float) -> Feeder | None:
    """Returns the loader that validation iterates over longest; None if most is over none."""
    if not is_over_loaders(context.loaders, spent_s):
        return None
    every = (*context.evaluating, *context.feeding)
    return max(every, key=lambda x: x.loader.evaluation_s, default=None)


def _passes(context: RunContext) -> int:
    evaluation = context.summary.evaluation
    inside = evaluation.passes_in_training
    return evaluation.passes if inside is None else inside


def _without_loader(context: RunContext, spent_s: float, what: str) -> Finding:
    passes, called = max(_passes(context), 1), called_for_at(context.summary.part_lines)
    action, advice = _change(context, spent_s)
    return plain_finding(
        RULE.id,
        f"{what}{_times(passes)}",
        outside_steps(context, spent_s),
        site=called,
        action=action,
        advice=advice,
        costliest=_costliest(hottest(context.summary.part_lines, "evaluation"), called),
        evidence={"evaluation_s": spent_s, "passes": passes},
    )


def _change(
    context: RunContext, spent_s: float, loader: Loader | None = None, *, counted: bool = False
) -> tuple[str, str]:
    """Returns what to do in short, "" for the rule's own action, and how."""
    settings = settings_of(loader.built_by, loader.builder_lacks) if loader is not None else None
    less = f"validate every second time (saves {span(spent_s / 2)}), or on fewer samples"
    if settings is not None and settings.evaluates is not None:
        less = f"{settings.call}: {settings.evaluates} (half as often saves {span(spent_s / 2)})"
    with_gradients = context.summary.evaluation.with_gradients_share or 0.0
    if with_gradients >= _MOSTLY_WITH_GRADIENTS:
        return _NO_GRAD, f"put it under torch.no_grad(); {less}"
    return (_COUNTED, f"collect them in the training loop; {less}") if counted else ("", less)


def _times(passes: int) -> str:
    return ", run once" if passes == 1 else f", run {passes} times"


def _costliest(most: HotLine | None, site: str | None) -> str:
    if most is None or most.site == site:
        return ""
    function = "" if is_nameless(most) else f" {most.function}()"
    return f"{share_of(most)} of validation: {most.site}{function}"


def _with_workers(
    context: RunContext, feeder: Feeder, spent_s: float
) -> tuple[Gain, dict[str, Any]] | None:
    """Returns what workers for the validation loader would gain; None if they do not help."""
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
        "loading_share": Threshold(0.5, "of validation: from here on its loader is the cause"),
    },
    find=find,
    explanation=__doc__,
    order=120,
    noise_matters=False,
    of_evaluation=True,
    traits=RuleTraits(keys=["evaluation"], action="Validate less often"),
)
