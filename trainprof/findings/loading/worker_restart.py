"""Starting workers or an epoch costs training time, or the workers cost more than they save.

What it means: without persistent_workers=True each epoch ends its workers, and the next one starts
new ones. Or each epoch begins with a computation: in a sampler, or in __iter__ of a stream. Or the
first batch of the run takes long. Or batches are so cheap that the IPC transfer from a worker costs
more than their preparation.

How it is measured: trainprof times the creation of the iterator, the first batch and the end of the
workers, in all epochs but the first. It subtracts what persistent workers (by the pipeline model)
or a usual batch would take. To judge the workers it replays the recorded preparation without them.

When it is wrong: the dataset may have to be opened again in each epoch. An epoch may also have to
begin with a slow step, such as a new shuffle of shards. In a run of hours a slow first batch
matters little.

What to do: build the loader once, before the first epoch, with persistent_workers=True. The workers
then keep their copies of the dataset and of what collate_fn uses: later changes do not reach them.
If each epoch needs another sampler or dataset, change it in place, in shared memory. Compute once
what a sampler or a stream begins each epoch with, and draw again what is random. torch.argsort of
lengths is faster than sorted with a key. Keep one iterator instead of next(iter(loader)). For the
first batch: open data lazily, and import less at the top of a script that spawned workers repeat.
If workers save nothing, set num_workers=0 and remove the arguments that only workers use.
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
from trainprof.findings.loading.loader_cautions import RANDOM_AGAIN, needed_first, one_iterator
from trainprof.findings.loading.loader_change import advised, loader_finding, waits_words
from trainprof.findings.loading.model_inputs import like_the_usual
from trainprof.findings.loading.waiting import NEEDLESS_WORKERS, SAMPLE_BY_SAMPLE
from trainprof.findings.rule import Rule
from trainprof.findings.run_context import Feeder, RunContext
from trainprof.findings.wording import caller, number_of, place, share_of, span

# The changes themselves.
KEPT: Final[dict[str, Any]] = {"persistent_workers": True}
WITHOUT: Final[dict[str, Any]] = {"num_workers": 0}
# Batches as fast as these are prepared up to WARM_TIMES faster one after the other: no step drives
# their code and data out of the caches in between (sample_scripts/python_heavy.py: 3).
QUICK_BATCH_S: Final = 0.001
WARM_TIMES: Final = 4.0
# Of what is lost: a part that is most of it is the one to change.
_MOST: Final = 0.5
# Times as long as usual: preparing a batch while all workers prepare their first, on fewer cores.
_AT_ONCE: Final = 2.0
_SAME: Final = "only if its dataset, sampler and collate_fn stay the same each epoch"
_NO_RELOAD: Final = "Trainer(..., reload_dataloaders_every_n_epochs=0)"
_ONE_ITERATOR: Final = "Create the iterator once"


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
    prepared_s = loader.fetch.wall_s.mean if loader.fetch and loader.fetch.wall_s else None
    if result is None or prepared_s is None or feeder.measured is None:
        return None
    advice, change = advised(loader, WITHOUT)
    return loader_finding(
        context,
        feeder,
        RULE.id,
        f"workers cost more than they save: a batch takes {span(prepared_s)} to prepare, and "
        f"{waits_words(context, feeder)}",
        _gain_without(context, feeder, result),
        action="Load data without workers",
        advice=advice,
        change=change,
        alters=WITHOUT,
        is_of_making=False,
    )


def _gain_without(context: RunContext, feeder: Feeder, prediction: Prediction) -> Gain:
    """Returns what training gains without workers: in steps, and at their starts."""
    assert feeder.measured is not None
    loader, step_s = feeder.loader, feeder.measured.step_s
    around_s = feeder.starts_s + loader.end_s - loader.passes * prediction.first_batch_s.mid
    # What the sampler takes at starts stays, in all epochs.
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
    """Returns the shortest that a step may get, where batches are fast and the cores were full.

    How much workers slowed computing is unknown: at most by the number that shared its core.
    """
    cores, inputs = context.cores(), feeder.inputs
    if inputs is None or cores is None or context.is_on_device:
        return prediction.step_s.low
    cores = min(cores, inputs.cores / inputs.ranks_per_core)
    sharing = max(((feeder.loader.num_workers or 0) + 1) / cores, 1.0)
    prepared_s = float(running_of(inputs, "mid").mean())
    if prepared_s >= QUICK_BATCH_S * sharing:
        return prediction.step_s.low
    alone_s = float(inputs.compute_s.mean()) / sharing + prepared_s / WARM_TIMES
    return min(prediction.step_s.low, alone_s)


def _of_restarts(context: RunContext, feeder: Feeder) -> Finding | None:
    loader, later = feeder.loader, feeder.loader.later_passes
    spent_s = _worth(context, feeder, lost_s(feeder))
    if spent_s is None:
        return None
    workers, is_each = number_of(loader.num_workers or 0, "worker"), loader.is_each_step
    often = f"again for each of {later} later epochs" if later > 1 else "again for a later epoch"
    if is_each:
        often = "again for each batch"
    elif loader.starts > loader.passes:
        often = f"{loader.starts} times in {loader.passes} epochs"
    each_s = _later_s(feeder) / (later + loader.starts - loader.passes)
    advice, change = _to_keep_them(loader, is_reloaded=context.torch.reloads_loaders)
    return loader_finding(
        context,
        feeder,
        RULE.id,
        f"starting {workers} {often} takes {span(each_s)} each time: "
        f"{percent(spent_s / context.training_s)} of training",
        limited_by_device(context, feeder, outside_steps(context, spent_s)),
        action=_ONE_ITERATOR if is_each else "",
        advice=advice,
        change=change,
        alters={} if is_each else KEPT,
        cautions=[_SAME] if loader.is_rebuilt and not is_each else [],
        evidence={
            "starts_s": feeder.starts_s,
            "later_starts_s": feeder.later_starts_s,
            "passes": loader.passes,
            "starts": loader.starts,
        },
        is_of_making=False,
    )


def _to_keep_them(loader: Loader, *, is_reloaded: bool) -> tuple[str, dict[str, Any]]:
    """Returns what makes workers persistent, and its arguments if nothing else is needed."""
    if loader.is_each_step:
        return one_iterator(loader), {}
    if not loader.is_rebuilt:
        return advised(loader, KEPT)
    first = "".join(f"{x}, then " for x in needed_first(loader, KEPT))
    once = _NO_RELOAD if is_reloaded else "build the loader once, before the first epoch,"
    return f"{first}{once} with persistent_workers=True", {}


def lost_s(feeder: Feeder) -> float:
    """Returns what starting workers again took, beyond what an epoch begins with anyway."""
    loader = feeder.loader
    if not loader.num_workers or _are_persistent(loader) or not loader.later_passes:
        return 0.0
    wall_s = loader.fetch.wall_s if loader.fetch else None
    each_s = wall_s.min if wall_s is not None else 0.0
    if loader.is_each_step:
        each_s = wall_s.mean / loader.num_workers if wall_s is not None else 0.0
    elif feeder.inputs is not None:
        # At the least, so that the gain is the most that it may be.
        kept = predict(feeder.inputs, replace(feeder.inputs.setting, is_persistent=True))
        each_s = kept.first_batch_s.low + kept.reset_s.low
    return max(_later_s(feeder) - loader.later_passes * each_s, 0.0)


def _later_s(feeder: Feeder) -> float:
    """Returns what later epochs took to begin, and their workers to end, without samplers."""
    loader = feeder.loader
    ends_s = loader.end_s * loader.later_passes / loader.passes
    sampler_s = 0.0 if loader.is_each_step else loader.later_share * (loader.sampler_starts_s or 0)
    return max(feeder.later_starts_s + ends_s - sampler_s, 0.0)


def _are_persistent(loader: Loader) -> bool:
    return bool(loader.persistent_workers) and not loader.is_rebuilt


def _of_starts(context: RunContext, feeder: Feeder) -> Finding | None:
    """Returns that epochs take long to begin, and not because of their workers."""
    loader, took_s = feeder.loader, _slow_starts_s(feeder)
    spent_s = _worth(context, feeder, took_s)
    if spent_s is None:
        return None
    is_of_sampler = (loader.sampler_starts_s or 0.0) >= _MOST * took_s
    line = _line_of_starts(context, feeder, is_of_sampler=is_of_sampler)
    is_each, longer = loader.is_each_step, span(took_s / (loader.passes - 1))
    title = f"each of {loader.passes} epochs begins {longer} later than a usual batch takes"
    if is_each:
        title = f"an iterator is created for each batch, {longer} each time"
    what = "the sampler needs" if is_of_sampler else "each epoch begins with"
    return loader_finding(
        context,
        feeder,
        RULE.id,
        f"{title}: {percent(spent_s / context.training_s)} of training",
        limited_by_device(context, feeder, outside_steps(context, spent_s)),
        action=_ONE_ITERATOR if is_each else "Set up once what each epoch repeats",
        advice=one_iterator(loader) if is_each else f"compute once, before training, what {what}",
        cautions=[] if is_each or loader.draws_in_order else [RANDOM_AGAIN],
        also=[] if line is None or is_each else _takes_of_start(line),
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
    """Returns what the starts of all epochs but the first take beyond a usual batch."""
    loader, fetch = feeder.loader, feeder.loader.fetch
    if loader.passes < 2:
        return 0.0
    sampler_s = loader.sampler_starts_s or 0.0
    if loader.num_workers and not _are_persistent(loader):
        return 0.0 if loader.is_each_step else sampler_s
    if fetch is None or fetch.wall_s is None or loader.later_starts_s is None:
        return sampler_s
    usual_s = fetch.wall_s.mean
    if loader.num_workers:
        usual_s = _AT_ONCE * usual_s + (loader.receive_s or 0.0) / max(loader.iterations, 1)
        if feeder.inputs is not None:
            # Many workers on few cores take longer for their first batches than _AT_ONCE says.
            first = predict(like_the_usual(feeder.inputs)).first_batch_s
            usual_s = max(usual_s, first.high + feeder.inputs.reset_s)
    return max(loader.later_starts_s - (loader.passes - 1) * usual_s, 0.0)


def _line_of_starts(context: RunContext, feeder: Feeder, *, is_of_sampler: bool) -> HotLine | None:
    """Returns the line that takes most of the starts, if it is much."""
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
    # In a part of a run this is unknown.
    if first_s is None or context.summary.run.part is not None:
        return None
    usual_s = feeder.measured.step_s if feeder.measured is not None else 0.0
    later_s = max(feeder.starts_s - first_s, 0.0) / max(loader.passes - 1, 1)
    # A stream that shuffles saves later what it read ahead.
    back_s = (loader.first_given_back_s or 0.0) if loader.is_iterable else 0.0
    spent_s = first_s - max(usual_s, later_s) - back_s
    least_share = RULE.threshold(context.settings, "once_share")
    least_s = RULE.threshold(context.settings, "once_s")
    if spent_s < max(least_s, least_share * context.wall_s):
        return None
    prepared = loader.fetch.wall_s if loader.fetch is not None else None
    is_of_making = prepared is not None and prepared.max >= _MOST * first_s
    line = None if is_of_making else _line_of_first(context, feeder)
    advice = "open the dataset's data lazily, in the workers; import less at the top of the script"
    if is_of_making or not loader.num_workers:
        advice = "open, read and compute less before the first sample"
    if line is not None:
        advice = f"do less at {place(line)} before the first batch, or cache its result"
    return loader_finding(
        context,
        feeder,
        RULE.id,
        f"the first batch took {span(first_s)}: {percent(first_s / context.wall_s)} of the run",
        outside_steps(context, spent_s),
        action="Get the first batch sooner",
        advice=advice,
        also=[] if line is None else _takes_of_start(line),
        evidence={"first_batch_s": first_s, COMES_ONCE: True},
        site=line.site if line is not None else None,
        is_of_making=is_of_making,
    )


def _line_of_first(context: RunContext, feeder: Feeder) -> HotLine | None:
    """Returns the line that takes most of the first batch, unless training always waits there."""
    line = _line_of_starts(context, feeder, is_of_sampler=True)
    if line is None or not feeder.loader.num_workers:
        return line
    waits = context.hot_line("data_wait")
    return line if waits is not None and waits.site != line.site else None


def _takes_of_start(line: HotLine) -> list[str]:
    return [f"{place(line)} takes {share_of(line)} of it", *caller(line)]


def _worth(context: RunContext, feeder: Feeder, seconds: float) -> float | None:
    """Returns what some seconds of the host cost training; None where that is too little."""
    least = RULE.threshold(context.settings, "share")
    spent_s = feeder.exposed * seconds
    return spent_s if spent_s > 0 and spent_s >= least * context.training_s else None


RULE: Final = Rule(
    id="worker_restart",
    thresholds={
        "share": Threshold(0.03, "of training: starts that are worth a change"),
        "once_share": Threshold(0.1, "of the run: a slow first batch matters in short runs only"),
        "once_s": Threshold(2.0, "less than that, once a run, is not worth a change"),
    },
    find=find,
    explanation=__doc__,
    order=80,
    traits=RuleTraits(
        keys=["data_wait", "first_batch", "loader_start"], action="Keep the workers between epochs"
    ),
    noise_matters=False,
    old_names=("needless_workers", "slow_pass_starts", "slow_first_batch"),
)
