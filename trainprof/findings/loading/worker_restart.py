"""Workers, or passes over the data, cost training what they need not: to begin, or to hand over.

What it means: without persistent_workers=True each pass ends its workers, and the next one starts
new ones. Ahead of the first batch of each pass something may be worked out or read anew: by a
sampler, or by the __iter__ of a stream. The first batch of the run may take long by itself. Or
batches are made sooner than workers can hand them over, so that all of the workers cost more than
they save.

How it is measured: making the iterator, waiting for the first batch and ending the workers, in all
passes after the first, less what the first batch of a pass takes where workers live on (by the
pipeline model), or what a usual batch takes. The first pass of a run, against the later ones; not
in a part of a run. Whether workers save anything: the recorded making of each batch played without
them, with what it takes to start them.

When it is wrong: where the dataset must be opened anew in each epoch; where a pass has to begin
with what takes long, as a new shuffle of shards does. What comes once is no matter in a run of
hours.

What to do: persistent_workers=True, for a loader that is built once, ahead of all passes. The
workers then keep their memory between epochs, and their copies of the dataset: a change made to it
in the training process does not reach them, nor one to what collate_fn uses. Where each pass has
another sampler, collate_fn or dataset: one that is changed in place, in shared memory. Work out
once what a sampler or a stream begins each pass with (torch.argsort of lengths, not sorted with a
key), and draw anew what is random in it. Keep one iterator instead of next(iter(loader)). For the
first batch: a dataset object that opens its data lazily, fewer imports that spawned workers repeat.
Where workers save nothing: num_workers=0, without the arguments that are for workers alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from trainprof.analysis.pipeline.bounds import Prediction, predict, running_of
from trainprof.analysis.summary.code import HotLine
from trainprof.analysis.summary.finding import COMES_ONCE, Finding, RuleTraits, Threshold
from trainprof.analysis.summary.levels import percent
from trainprof.analysis.summary.loader import Loader
from trainprof.analysis.timeline.iterations import EVALUATION
from trainprof.findings.gain import Gain, limited_by_device, outside_steps
from trainprof.findings.loading.loader_cautions import DRAWN_ANEW, needed_first, one_iterator
from trainprof.findings.loading.loader_change import advised, loader_finding
from trainprof.findings.loading.model_inputs import like_the_usual
from trainprof.findings.loading.waiting import NEEDLESS_WORKERS, SAMPLE_BY_SAMPLE
from trainprof.findings.rule import Rule
from trainprof.findings.run_context import Feeder, RunContext
from trainprof.findings.wording import caller, place, share_of, span, waited_of_batch

# The changes themselves.
KEPT: Final[dict[str, Any]] = {"persistent_workers": True}
WITHOUT: Final[dict[str, Any]] = {"num_workers": 0}
# Batches as quick as these are made up to so many times as fast one after the other, by code and
# from data that no step has driven out of the caches meanwhile (sample_scripts/python_heavy.py: 3).
QUICK_BATCH_S: Final = 0.001
WARM_TIMES: Final = 4.0
# Of what is lost: a part that is most of it is the one to change.
_MOST: Final = 0.5
# The making of a batch, while all workers make their first: on fewer cores, as a rule.
_AT_ONCE: Final = 2.0
_IF_THE_SAME: Final = "if its dataset, sampler and collate_fn may stay the same"
_NO_RELOAD: Final = "Trainer(..., reload_dataloaders_every_n_epochs=0)"


def find(context: RunContext) -> Finding | None:
    fed_by = (*context.feeding, *context.evaluating)
    results = [x for feeder in fed_by for x in _of_loader(context, feeder) if x is not None]
    return max(results, key=lambda x: x.recoverable_s or 0.0, default=None)


def _of_loader(context: RunContext, feeder: Feeder) -> list[Finding | None]:
    cause = None if feeder.cause is None else feeder.cause.name
    if cause == NEEDLESS_WORKERS:
        return [_needless(context, feeder), _of_starts(context, feeder)]
    first = _of_first_batch(context, feeder) if any(feeder is x for x in context.feeding) else None
    # Workers that are to go are not to be kept.
    restart = None if cause == SAMPLE_BY_SAMPLE else _of_restarts(context, feeder)
    return [first, restart, _of_starts(context, feeder)]


def _needless(context: RunContext, feeder: Feeder) -> Finding | None:
    result, loader = feeder.cause.prediction if feeder.cause is not None else None, feeder.loader
    made_s = loader.fetch.wall_s.mean if loader.fetch and loader.fetch.wall_s else None
    if result is None or made_s is None or feeder.measured is None:
        return None
    advice, change = advised(loader, WITHOUT)
    return loader_finding(
        context,
        feeder,
        RULE.id,
        f"workers cost more than they save: making a batch takes {span(made_s)}, and training "
        f"waits {waited_of_batch(feeder.measured, feeder.wait_share)} to be handed one, "
        f"{percent(feeder.wait_share)} of training",
        _gain_without(context, feeder, result),
        advice=advice,
        change=change,
        alters=WITHOUT,
        is_of_making=False,
    )


def _gain_without(context: RunContext, feeder: Feeder, prediction: Prediction) -> Gain:
    """Returns what training gains with the starts of workers, and the steps."""
    assert feeder.measured is not None
    loader, step_s = feeder.loader, feeder.measured.step_s
    around_s = feeder.starts_s + loader.end_s - loader.passes * prediction.first_batch_s.mid
    # What the sampler takes meanwhile stays, in all passes.
    around_s -= (loader.sampler_starts_s or 0.0) * loader.passes / max(loader.passes - 1, 1)
    around_s = feeder.exposed * max(around_s, 0.0)
    shortest_s = _shortest_step_s(context, feeder, prediction)
    low, mid, high = (
        outside_steps(context, max(loader.iterations * (step_s - x) + around_s, 0.0))
        for x in (prediction.step_s.high, prediction.step_s.mid, shortest_s)
    )
    gain = replace(
        mid,
        training=(low.likely, high.training[1]),
        run=(low.run[1], high.run[1]),
        is_at_most=False,
    )
    return limited_by_device(context, feeder, gain)


def _shortest_step_s(context: RunContext, feeder: Feeder, prediction: Prediction) -> float:
    """Returns what a step takes at the least, where batches are quick and the cores were full.

    No recording has by how much workers slowed computing: at most by as many as shared its core.
    """
    cores, inputs = context.cores(), feeder.inputs
    if inputs is None or cores is None or context.is_on_device:
        return prediction.step_s.low
    cores = min(cores, inputs.cores / inputs.ranks_per_core)
    sharing = max(((feeder.loader.num_workers or 0) + 1) / cores, 1.0)
    making_s = float(running_of(inputs, "mid").mean())
    if making_s >= QUICK_BATCH_S * sharing:
        return prediction.step_s.low
    alone_s = float(inputs.compute_s.mean()) / sharing + making_s / WARM_TIMES
    return min(prediction.step_s.low, alone_s)


def _of_restarts(context: RunContext, feeder: Feeder) -> Finding | None:
    loader, later = feeder.loader, feeder.loader.later_passes
    spent_s = _worth(context, feeder, lost_s(feeder))
    if spent_s is None:
        return None
    who = "its worker is" if loader.num_workers == 1 else f"its {loader.num_workers} workers are"
    when = f"again for each of {later} later passes" if later > 1 else "again for a later pass"
    if loader.is_each_step:
        when = "again for each batch"
    elif loader.starts > loader.passes:
        when = f"{loader.starts} times for {loader.passes} passes"
    each_s = _later_s(feeder) / (later + loader.starts - loader.passes)
    advice, change = _to_keep_them(loader, is_reloaded=context.torch.reloads_loaders)
    return loader_finding(
        context,
        feeder,
        RULE.id,
        f"{who} started {when}, {span(each_s)} each time: "
        f"{percent(spent_s / context.training_s)} of training",
        limited_by_device(context, feeder, outside_steps(context, spent_s)),
        advice=advice,
        change=change,
        alters={} if loader.is_each_step else KEPT,
        evidence={
            "starts_s": feeder.starts_s,
            "later_starts_s": feeder.later_starts_s,
            "passes": loader.passes,
            "starts": loader.starts,
        },
        is_of_making=False,
    )


def _to_keep_them(loader: Loader, *, is_reloaded: bool) -> tuple[str, dict[str, Any]]:
    """Returns what has workers live on, and its arguments where it takes no more."""
    if loader.is_each_step:
        return one_iterator(loader), {}
    if not loader.is_rebuilt:
        return advised(loader, KEPT)
    first = "".join(f"{x}, then " for x in needed_first(loader, KEPT))
    once = _NO_RELOAD if is_reloaded else "build it once, ahead of all passes,"
    return f"{first}{_IF_THE_SAME}, {once} with persistent_workers=True", {}


def lost_s(feeder: Feeder) -> float:
    """Returns what starting workers again took, beyond what a pass begins with anyway."""
    loader = feeder.loader
    if not loader.num_workers or _live_on(loader) or not loader.later_passes:
        return 0.0
    wall_s = loader.fetch.wall_s if loader.fetch else None
    each_s = wall_s.min if wall_s is not None else 0.0
    if loader.is_each_step:
        each_s = wall_s.mean / loader.num_workers if wall_s is not None else 0.0
    elif feeder.inputs is not None:
        # At least: what is gained is the most that it may be.
        kept = predict(feeder.inputs, replace(feeder.inputs.setting, is_persistent=True))
        each_s = kept.first_batch_s.low + kept.reset_s.low
    return max(_later_s(feeder) - loader.later_passes * each_s, 0.0)


def _later_s(feeder: Feeder) -> float:
    """Returns what all passes but the first took to begin, and workers to end; not a sampler."""
    loader = feeder.loader
    ends_s = loader.end_s * loader.later_passes / loader.passes
    sampler_s = 0.0 if loader.is_each_step else loader.later_share * (loader.sampler_starts_s or 0)
    return max(feeder.later_starts_s + ends_s - sampler_s, 0.0)


def _live_on(loader: Loader) -> bool:
    return bool(loader.persistent_workers) and not loader.is_rebuilt


def _of_starts(context: RunContext, feeder: Feeder) -> Finding | None:
    """Returns that passes take long to begin, and not for their workers."""
    loader, took_s = feeder.loader, _slow_starts_s(feeder)
    spent_s = _worth(context, feeder, took_s)
    if spent_s is None:
        return None
    is_of_sampler = (loader.sampler_starts_s or 0.0) >= _MOST * took_s
    line = _line_of_starts(context, feeder, is_of_sampler=is_of_sampler)
    is_each = loader.is_each_step
    what = "what the sampler needs" if is_of_sampler else "what each of them begins with"
    where = [] if line is None or is_each else [f"{share_of(line)} of it goes to {place(line)}"]
    return loader_finding(
        context,
        feeder,
        RULE.id,
        f"each of {loader.passes} passes takes {span(took_s / (loader.passes - 1))} longer to "
        f"begin than a usual batch takes, {percent(spent_s / context.training_s)} of training",
        limited_by_device(context, feeder, outside_steps(context, spent_s)),
        advice=one_iterator(loader) if is_each else f"work out once, ahead of all passes, {what}",
        cautions=[] if is_each or loader.draws_in_order else [DRAWN_ANEW],
        also=["; ".join([*where, *caller(line)])] if line is not None and where else [],
        evidence={
            "starts_s": feeder.starts_s,
            "passes": loader.passes,
            "lost_s": spent_s,
            "sampler_at_starts_s": loader.sampler_starts_s,
        },
        site=line.site if line is not None else None,
        is_of_making=False,
    )


def _slow_starts_s(feeder: Feeder) -> float:
    """Returns what the beginnings of all passes but the first take beyond a usual batch."""
    loader, fetch = feeder.loader, feeder.loader.fetch
    if loader.passes < 2:
        return 0.0
    sampler_s = loader.sampler_starts_s or 0.0
    if loader.num_workers and not _live_on(loader):
        return 0.0 if loader.is_each_step else sampler_s
    if fetch is None or fetch.wall_s is None or loader.later_starts_s is None:
        return sampler_s
    usual_s = fetch.wall_s.mean
    if loader.num_workers:
        usual_s = _AT_ONCE * usual_s + (loader.receive_s or 0.0) / max(loader.iterations, 1)
        if feeder.inputs is not None:
            # Many on few cores take longer for their first, all at once, than twice a usual one.
            first = predict(like_the_usual(feeder.inputs)).first_batch_s
            usual_s = max(usual_s, first.high + feeder.inputs.reset_s)
    return max(loader.later_starts_s - (loader.passes - 1) * usual_s, 0.0)


def _line_of_starts(context: RunContext, feeder: Feeder, *, is_of_sampler: bool) -> HotLine | None:
    """Returns the line that most of the beginnings goes to, if it is much."""
    if feeder.loader.num_workers and not is_of_sampler:
        return feeder.hot_line()  # the training thread only waits
    if feeder.loader.role == EVALUATION:
        return None
    lines = (context.hot_line(part) for part in ("first_batch", "loader_start"))
    known = (line for line in lines if line is not None)
    return max(known, key=lambda x: x.seconds or 0.0, default=None)


def _of_first_batch(context: RunContext, feeder: Feeder) -> Finding | None:
    loader, first_s = feeder.loader, feeder.loader.first_start_s
    if first_s is None and loader.passes == 1:
        first_s = feeder.starts_s
    # A part does not tell what comes once in the whole run.
    if first_s is None or context.summary.run.part is not None:
        return None
    usual_s = feeder.measured.step_s if feeder.measured is not None else 0.0
    later_s = max(feeder.starts_s - first_s, 0.0) / max(loader.passes - 1, 1)
    # A stream that shuffles saves later on for what it read ahead.
    back_s = (loader.first_given_back_s or 0.0) if loader.is_iterable else 0.0
    spent_s = first_s - max(usual_s, later_s) - back_s
    least_share = RULE.threshold(context.settings, "once_share")
    least_s = RULE.threshold(context.settings, "once_s")
    if spent_s < max(least_s, least_share * context.wall_s):
        return None
    made = loader.fetch.wall_s if loader.fetch is not None else None
    is_of_making = made is not None and made.max >= _MOST * first_s
    line = None if is_of_making else _line_of_first(context, feeder)
    advice = (
        "a smaller dataset object that opens its data lazily, in the worker; fewer imports at the "
        "top of the script, which spawned workers repeat"
    )
    if is_of_making or not loader.num_workers:
        advice = "less to open, read or work out before the first sample"
    if line is not None:
        advice = f"less work at {place(line)} before the first batch, or keep its result in a file"
    return loader_finding(
        context,
        feeder,
        RULE.id,
        f"the first batch came {span(first_s)} after it was asked for: "
        f"{percent(first_s / context.wall_s)} of the run",
        outside_steps(context, spent_s),
        advice=advice,
        also=[]
        if line is None
        else ["; ".join([f"{share_of(line)} of it goes there", *caller(line)])],
        evidence={"first_batch_s": first_s, COMES_ONCE: True},
        site=line.site if line is not None else None,
        is_of_making=is_of_making,
    )


def _line_of_first(context: RunContext, feeder: Feeder) -> HotLine | None:
    """Returns the line that most goes to ahead of the first batch, unless training waits there."""
    line = _line_of_starts(context, feeder, is_of_sampler=True)
    if line is None or not feeder.loader.num_workers:
        return line
    waits = context.hot_line("data_wait")
    return line if waits is not None and waits.site != line.site else None


def _worth(context: RunContext, feeder: Feeder, seconds: float) -> float | None:
    """Returns what of some seconds of the host's training felt, None where that is too little."""
    least = RULE.threshold(context.settings, "share")
    spent_s = feeder.exposed * seconds
    return spent_s if spent_s > 0 and spent_s >= least * context.training_s else None


RULE: Final = Rule(
    id="worker_restart",
    thresholds={
        "share": Threshold(0.03, "of training: what starts are worth a change"),
        "once_share": Threshold(0.1, "of the run: what comes once matters in short runs alone"),
        "once_s": Threshold(2.0, "nobody changes a script for less that comes once"),
    },
    find=find,
    explanation=__doc__,
    order=80,
    traits=RuleTraits(keys=["data_wait", "first_batch", "loader_start"]),
    noise_matters=False,
    old_names=("needless_workers", "slow_pass_starts", "slow_first_batch"),
)
