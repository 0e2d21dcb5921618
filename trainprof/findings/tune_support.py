"""Which changes `trainprof tune` has trials for.

What it chooses its candidates by, and what lets a finding say that it measures them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from trainprof.analysis.pipeline.model import USUAL_PREFETCH
from trainprof.analysis.summary.finding import LOADER_ID, Finding
from trainprof.analysis.summary.levels import LEAST_GAIN
from trainprof.findings.loading.loader_cautions import needed_first, shards_of
from trainprof.findings.loading.waiting import TRIED_PREFETCH, TRIED_WORKERS, most_workers
from trainprof.findings.run_context import Feed, RunContext

# Of a training step: from which share on copies, and updates, are worth changing something for.
_TRANSFER_SHARE: Final = 0.03
_OPTIMIZER_SHARE: Final = 0.05
_MEASURED: Final = "trainprof tune SCRIPT measures it, without an edit of yours"


def told_of_tune(finding: Finding, context: RunContext) -> Finding:
    """Returns a finding that says so where `tune` has a trial of its change."""
    if not is_tried(context, finding):
        return finding
    return replace(finding, is_tried_by_tune=True, verify=_MEASURED)


def is_tried(context: RunContext, finding: Finding) -> bool:
    """Whether `tune` has a trial of what a finding's change gains by."""
    change = finding.change
    if not change:
        return False
    if "fused" in change:
        return may_fuse(context)
    if "pin_memory" in change:
        return bool(pageable_loaders(context))
    number = finding.evidence.get(LOADER_ID)
    feed = next((one for one in context.feeding if one.loader.id == number), None)
    return feed is not None and _is_tried_of(context, feed, change)


def _is_tried_of(context: RunContext, feed: Feed, change: Mapping[str, Any]) -> bool:
    if "num_workers" in change:
        return tries_workers(context, feed, change["num_workers"])
    if "prefetch_factor" in change:
        return _is_modelled(context, feed) and may_have_ahead(feed, change["prefetch_factor"])
    return "persistent_workers" in change and may_be_kept(context, feed)


def tries_workers(context: RunContext, feed: Feed, workers: int) -> bool:
    """Whether `tune` may try so many workers for a loader, if the model likes them."""
    is_known = workers == 0 or workers in TRIED_WORKERS
    return is_known and _is_modelled(context, feed) and may_have_workers(feed, workers)


def rerun_words(context: RunContext, feed: Feed, workers: int) -> str:
    """Returns which command tells whether so many workers help."""
    return "trainprof tune" if tries_workers(context, feed, workers) else "trainprof compare"


def _is_modelled(context: RunContext, feed: Feed) -> bool:
    """Whether `tune` has a model of a loader, by which it chooses its workers."""
    is_known = feed.inputs is not None and feed.measured is not None and feed.measured.step_s > 0
    return is_known and any(one is feed for one in waited_for(context))


def waited_for(context: RunContext) -> list[Feed]:
    """Returns the loader that costs most, and the others whose batches training waits for."""
    return context.feeding[:1] + [x for x in context.feeding[1:] if x.wait_share >= LEAST_GAIN]


def keeps_multiplicity(feed: Feed) -> bool:
    """Whether other numbers of workers give each sample as often as now."""
    return shards_of(feed) is not None or bool(feed.loader.shares_stream)


def may_have_workers(feed: Feed, workers: int) -> bool:
    """Whether another number of workers for a loader may be worth trying, and gives the same."""
    if feed.inputs is None or workers == (feed.loader.num_workers or 0):
        return False
    is_few = workers <= max(most_workers(feed.inputs), 1)
    is_ready = not needed_first(feed.loader, {"num_workers": workers})
    return is_few and is_ready and keeps_multiplicity(feed)


def may_have_ahead(feed: Feed, factor: int) -> bool:
    """Whether so many batches ahead of each worker are more than now, and give the same."""
    now = feed.loader.prefetch_factor or USUAL_PREFETCH
    is_more = bool(feed.loader.num_workers) and factor > now and factor in TRIED_PREFETCH
    return is_more and keeps_multiplicity(feed)


def may_be_kept(context: RunContext, feed: Feed) -> bool:
    """Whether workers that live on save enough to be tried, and see what training changes."""
    return restart_share(context, feed) >= LEAST_GAIN and feed.loader.may_keep_workers


def restart_share(context: RunContext, feed: Feed) -> float:
    """Returns the share of training that goes to starting workers that were there before."""
    loader = feed.loader
    if not loader.num_workers or loader.persistent_workers:
        return 0.0
    return feed.later_starts_s / context.training_s if context.training_s > 0 else 0.0


def copied_share(context: RunContext) -> float:
    """Returns the share of training in which a device had nothing to do but wait for copies."""
    copied_s = context.idle_s("copy_s") or 0.0
    return copied_s / context.training_s if context.training_s > 0 else 0.0


def pageable_loaders(context: RunContext) -> list[Feed]:
    """Returns the loaders that are worth pinning: their batches are copied to a device."""
    if not context.is_on_device or copied_share(context) < _TRANSFER_SHARE:
        return []
    return [
        feed
        for feed in context.feeding
        if not feed.loader.pin_memory and not feed.loader.touches_device
    ]


def may_fuse(context: RunContext) -> bool:
    """Whether optimizers are worth fusing: on a CPU where they take parameter by parameter."""
    is_much = context.share("optimizer") >= _OPTIMIZER_SHARE
    return is_much and (context.is_on_device or bool(context.torch.looped))
