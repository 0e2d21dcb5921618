"""Which changes `trainprof tune` can try: for its candidates, and for findings to name it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from trainprof.analysis.pipeline.model import USUAL_PREFETCH
from trainprof.analysis.summary.code import TENSOR_CORES_FROM, TF32_FROM, Numerics, Operators
from trainprof.analysis.summary.finding import LOADER_ID, Finding
from trainprof.analysis.summary.levels import LEAST_GAIN
from trainprof.analysis.summary.run import COMPUTE_KEYS
from trainprof.findings.loading.loader_cautions import needed_first, shards_of
from trainprof.findings.loading.waiting import TRIED_PREFETCH, TRIED_WORKERS, most_workers

if TYPE_CHECKING:
    from trainprof.findings.run_context import Feeder, RunContext

# Shares of a training step from which on copies, and updates, are worth a trial.
_TRANSFER_SHARE: Final = 0.03
_OPTIMIZER_SHARE: Final = 0.05
_MEASURED: Final = "trainprof tune{} SCRIPT measures it without editing your code"
# Subjects of trials that use tensor cores.
_PRECISIONS: Final = frozenset(("matrix products", "mixed precision"))
# Share of a training step, or of a GPU's time, from which on precision is worth a trial.
_COMPUTE_SHARE: Final = 0.2


def marked_if_tried(finding: Finding, context: RunContext) -> Finding:
    """Returns a finding that names `tune` where that can try its change."""
    if not is_tried(context, finding):
        return finding
    option = " --allow-numerics" if finding.traits.changes_numbers else ""
    return replace(finding, is_tried_by_tune=True, verify=_MEASURED.format(option))


def is_tried(context: RunContext, finding: Finding) -> bool:
    """Whether `tune` can try a finding's change."""
    change = finding.change
    if finding.traits.changes_numbers:
        return not _PRECISIONS.isdisjoint(numerics_changes(context))
    if not change:
        return False
    if "fused" in change:
        return may_fuse(context)
    if "pin_memory" in change:
        return bool(pageable_loaders(context))
    number = finding.evidence.get(LOADER_ID)
    feeder = next((x for x in context.feeding if x.loader.id == number), None)
    if feeder is None:
        return False
    if "num_workers" in change:
        return tries_workers(context, feeder, change["num_workers"])
    if "prefetch_factor" in change:
        return _is_modelled(context, feeder) and may_have_ahead(feeder, change["prefetch_factor"])
    return "persistent_workers" in change and may_be_kept(context, feeder)


def tries_workers(context: RunContext, feeder: Feeder, workers: int) -> bool:
    """Whether `tune` may try a number of workers for a loader."""
    is_known = workers == 0 or workers in TRIED_WORKERS
    return is_known and _is_modelled(context, feeder) and may_have_workers(feeder, workers)


def rerun_words(context: RunContext, feeder: Feeder, workers: int) -> str:
    """Returns the command that measures whether that number of workers helps."""
    return "trainprof tune" if tries_workers(context, feeder, workers) else "trainprof compare"


def _is_modelled(context: RunContext, feeder: Feeder) -> bool:
    """Whether `tune` has a model of a loader to choose its workers by."""
    is_known = (
        feeder.inputs is not None and feeder.measured is not None and feeder.measured.step_s > 0
    )
    return is_known and any(x is feeder for x in waited_for(context))


def waited_for(context: RunContext) -> list[Feeder]:
    """Returns the costliest loader, and the others that training waits for."""
    return context.feeding[:1] + [x for x in context.feeding[1:] if x.wait_share >= LEAST_GAIN]


def keeps_multiplicity(feeder: Feeder) -> bool:
    """Whether other numbers of workers yield each sample the same number of times."""
    return shards_of(feeder) is not None or bool(feeder.loader.shares_stream)


def may_have_workers(feeder: Feeder, workers: int) -> bool:
    """Whether another number of workers is worth a trial and yields the same samples."""
    if feeder.inputs is None or workers == (feeder.loader.num_workers or 0):
        return False
    is_few = workers <= max(most_workers(feeder.inputs), 1)
    is_ready = not needed_first(feeder.loader, {"num_workers": workers})
    return is_few and is_ready and keeps_multiplicity(feeder)


def may_have_ahead(feeder: Feeder, factor: int) -> bool:
    """Whether this prefetch_factor is larger than now and yields the same samples."""
    now = feeder.loader.prefetch_factor or USUAL_PREFETCH
    is_more = bool(feeder.loader.num_workers) and factor > now and factor in TRIED_PREFETCH
    return is_more and keeps_multiplicity(feeder)


def may_be_kept(context: RunContext, feeder: Feeder) -> bool:
    """Whether persistent workers save enough for a trial, and see what training changes."""
    return restart_share(context, feeder) >= LEAST_GAIN and feeder.loader.may_keep_workers


def restart_share(context: RunContext, feeder: Feeder) -> float:
    """Returns the share of training spent on restarting workers."""
    loader = feeder.loader
    if not loader.num_workers or loader.persistent_workers:
        return 0.0
    return feeder.later_starts_s / context.training_s if context.training_s > 0 else 0.0


def copied_share(context: RunContext) -> float:
    """Returns the share of training in which a GPU idled for copies."""
    copied_s = context.idle_s("copy_s") or 0.0
    return copied_s / context.training_s if context.training_s > 0 else 0.0


def pageable_loaders(context: RunContext) -> list[Feeder]:
    """Returns the loaders that are worth pinning: their batches are copied to a GPU."""
    if not context.is_on_device or copied_share(context) < _TRANSFER_SHARE:
        return []
    return [
        feeder
        for feeder in context.feeding
        if not feeder.loader.pin_memory and not feeder.loader.touches_device
    ]


def numerics_changes(context: RunContext) -> dict[str, dict[str, Any]]:
    """Returns by subject the trials' settings of precision that the GPU supports."""
    numerics = context.torch.numerics or Numerics("unknown", "unknown")
    share = max(context.share(*COMPUTE_KEYS), context.summary.device_busy_share or 0.0)
    if not context.is_on_device or share < _COMPUTE_SHARE:
        return {}
    seen, changes = numerics.operators or Operators(), dict[str, dict[str, Any]]()
    has_tensor_cores = numerics.major >= TENSOR_CORES_FROM
    if numerics.may_use_tf32 and not seen.lower:
        changes["matrix products"] = {"float32_matmul_precision": "high"}
    if has_tensor_cores and "autocast" in seen.mixes and not seen.lower:
        if numerics.major >= TF32_FROM:
            changes["mixed precision"] = {"autocast": "bfloat16"}
        elif "GradScaler" in seen.mixes:  # without one, small gradients are lost
            changes["mixed precision"] = {"autocast": "float16"}
    if has_tensor_cores and seen.convolutions_2d:
        changes["memory format"] = {"channels_last": True}
    if numerics.operators is None or seen.convolutions or seen.opaque:
        changes["convolutions"] = {"cudnn_benchmark": True}
    return changes


def may_fuse(context: RunContext) -> bool:
    """Whether optimizers are worth fusing: on a CPU, those that loop over parameters."""
    is_much = context.share("optimizer") >= _OPTIMIZER_SHARE
    return is_much and (context.is_on_device or bool(context.torch.looped))
