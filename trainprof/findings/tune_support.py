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
from trainprof.findings.run_context import Case, LoaderCase

# Of a training step: from which share on copies, and updates, are worth changing something for.
_TRANSFER_SHARE: Final = 0.03
_OPTIMIZER_SHARE: Final = 0.05
_MEASURED: Final = "trainprof tune SCRIPT measures it, without an edit of yours"


def told_of_tune(finding: Finding, case: Case) -> Finding:
    """Returns a finding that says so where `tune` has a trial of its change."""
    if not is_tried(case, finding):
        return finding
    return replace(finding, is_tried_by_tune=True, verify=_MEASURED)


def is_tried(case: Case, finding: Finding) -> bool:
    """Whether `tune` has a trial of what a finding's change gains by."""
    change = finding.change
    if not change:
        return False
    if "fused" in change:
        return may_fuse(case)
    if "pin_memory" in change:
        return bool(pageable_loaders(case))
    number = finding.evidence.get(LOADER_ID)
    fed = next((one for one in case.feeding if one.loader.id == number), None)
    return fed is not None and _is_tried_of(case, fed, change)


def _is_tried_of(case: Case, fed: LoaderCase, change: Mapping[str, Any]) -> bool:
    if "num_workers" in change:
        return tries_workers(case, fed, change["num_workers"])
    if "prefetch_factor" in change:
        return _is_modelled(case, fed) and may_have_ahead(fed, change["prefetch_factor"])
    return "persistent_workers" in change and may_be_kept(case, fed)


def tries_workers(case: Case, fed: LoaderCase, workers: int) -> bool:
    """Whether `tune` may try so many workers for a loader, if the model likes them."""
    is_known = workers == 0 or workers in TRIED_WORKERS
    return is_known and _is_modelled(case, fed) and may_have_workers(fed, workers)


def rerun_words(case: Case, fed: LoaderCase, workers: int) -> str:
    """Returns which command tells whether so many workers help."""
    return "trainprof tune" if tries_workers(case, fed, workers) else "trainprof compare"


def _is_modelled(case: Case, fed: LoaderCase) -> bool:
    """Whether `tune` has a model of a loader, by which it chooses its workers."""
    is_known = fed.inputs is not None and fed.measured is not None and fed.measured.step_s > 0
    return is_known and any(one is fed for one in waited_for(case))


def waited_for(case: Case) -> list[LoaderCase]:
    """Returns the loader that costs most, and the others whose batches training waits for."""
    return case.feeding[:1] + [x for x in case.feeding[1:] if x.wait_share >= LEAST_GAIN]


def keeps_multiplicity(fed: LoaderCase) -> bool:
    """Whether other numbers of workers give each sample as often as now."""
    return shards_of(fed) is not None or bool(fed.loader.shares_stream)


def may_have_workers(fed: LoaderCase, workers: int) -> bool:
    """Whether another number of workers for a loader may be worth trying, and gives the same."""
    if fed.inputs is None or workers == (fed.loader.num_workers or 0):
        return False
    is_few = workers <= max(most_workers(fed.inputs), 1)
    is_ready = not needed_first(fed.loader, {"num_workers": workers})
    return is_few and is_ready and keeps_multiplicity(fed)


def may_have_ahead(fed: LoaderCase, factor: int) -> bool:
    """Whether so many batches ahead of each worker are more than now, and give the same."""
    now = fed.loader.prefetch_factor or USUAL_PREFETCH
    is_more = bool(fed.loader.num_workers) and factor > now and factor in TRIED_PREFETCH
    return is_more and keeps_multiplicity(fed)


def may_be_kept(case: Case, fed: LoaderCase) -> bool:
    """Whether workers that live on save enough to be tried, and see what training changes."""
    return restart_share(case, fed) >= LEAST_GAIN and fed.loader.may_keep_workers


def restart_share(case: Case, fed: LoaderCase) -> float:
    """Returns the share of training that goes to starting workers that were there before."""
    loader = fed.loader
    if not loader.num_workers or loader.persistent_workers:
        return 0.0
    return fed.later_starts_s / case.training_s if case.training_s > 0 else 0.0


def copied_share(case: Case) -> float:
    """Returns the share of training in which a device had nothing to do but wait for copies."""
    copied_s = case.idle_s("copy_s") or 0.0
    return copied_s / case.training_s if case.training_s > 0 else 0.0


def pageable_loaders(case: Case) -> list[LoaderCase]:
    """Returns the loaders that are worth pinning: their batches are copied to a device."""
    if not case.is_on_device or copied_share(case) < _TRANSFER_SHARE:
        return []
    return [
        fed for fed in case.feeding if not fed.loader.pin_memory and not fed.loader.touches_device
    ]


def may_fuse(case: Case) -> bool:
    """Whether optimizers are worth fusing: on a CPU where they take parameter by parameter."""
    is_much = case.share("optimizer") >= _OPTIMIZER_SHARE
    return is_much and (case.is_on_device or bool(case.torch.looped))
