"""The GPU idles because the host waits for a value of it.

What it means: .item(), .cpu(), print(tensor) and the like block the host until the GPU has finished
all queued kernels. A host that did not wait would launch kernels ahead of the GPU. After the wait
the queue is empty, and the GPU idles until the next launch. torch.cuda.empty_cache() waits too, and
frees memory that the next forward and backward have to allocate again.

How it is measured: CUDA events around each synchronizing call show when the GPU was idle in it.
Idle time after a call counts if the host had waited while the GPU was busy, for two steps at most.
Calls in a loader and blocking copies are not counted. Nor are reads that cannot be avoided: those
of a GradScaler, a checkpoint or torch's optimizers (LBFGS). The finding names the line that cost
most in training. For empty_cache() the gain includes allocating again, up to three times the time
of its calls (measured: 0.4 to 2.4 times).

When it is wrong: the gain is smaller if a later call waits instead. How long the GPU idles while
the host launches kernels is unknown, so the gain is an upper bound. Kernels that are launched
between the parts of a step are not seen, and count as idle time. What the omitted values cost to
compute is not counted.

What to do: keep values on the GPU: sum losses there and read the sum every 100th step. Don't read a
value less often if it decides what comes next, as a NaN check does. Let the GPU decide with
torch.where, or check one step later. Remove torch.cuda.synchronize():
torch.cuda.Event(enable_timing=True) times work without it. If a library synchronizes, change its
settings. Remove empty_cache(): torch reuses cached memory anyway.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from trainprof.analysis.device.host_waits import costliest_in_training, idle_for_s
from trainprof.analysis.summary.device import SyncPoint
from trainprof.analysis.summary.finding import EXPLAINS_S, Finding, RuleTraits, Threshold
from trainprof.findings.gain import outside_steps, plain_finding
from trainprof.findings.library_loop import advice_for, is_called_at
from trainprof.findings.loop.python_in_loop import may_be_waiting
from trainprof.findings.rule import Rule
from trainprof.findings.run_context import RunContext
from trainprof.findings.wording import number_of, span

# Of all idle time.
_NOTICEABLE: Final = 0.1
# Of a line's calls.
_MOSTLY: Final = 0.5
# The kind of sync that decides a branch: a package checks so whether a loss is NaN.
_CHECK: Final = "bool"
_SYNCHRONIZE: Final = "synchronize"
_INDEX: Final = "keep the index a tensor: it can index other tensors"
_LESS_OFTEN: Final = "keep the value on the GPU and read it every 100th step"
# Kinds of sync that are Python's own functions.
_BUILTINS: Final = frozenset(("bool", "int", "float", "index", "complex"))
# By the kind of sync.
_ADVICE: Final = {
    _CHECK: "decide on the GPU with torch.where, or check one step later",
    _SYNCHRONIZE: "delete the call; torch.cuda.Event(enable_timing=True) times work without it",
    "nonzero": "use the mask instead of its indices: torch.where(mask, a, b)",
    "int": _INDEX,
    "index": _INDEX,
}
_BY_LIBRARY: Final = (
    "check or log less in the library's settings (torchmetrics: validate_args=False)"
)
_MAY_BE_NEEDED: Final = "if the value decides what comes next, it is needed in each step"
# Of the evidence: how long the GPU idles after its values have arrived.
AFTER_S: Final = "idle_after_syncs_s"
# Allocating memory again, as a multiple of the calls that freed it: 0.4 for a transformer, 1.8 and
# 2.4 for two ResNets (22 to 62 allocations a step, H200).
_ALLOCATING_TIMES: Final = 3.0
# Calls a step, from which on they may be the cause of all that is slow.
_IN_MOST_STEPS: Final = 0.5


def find(context: RunContext) -> Finding | None:
    results = [x for x in (_of_values(context), _of_emptied_caches(context)) if x is not None]
    return max(results, key=lambda x: x.recoverable_s or 0.0, default=None)


def _of_emptied_caches(context: RunContext) -> Finding | None:
    known = context.summary.emptied_caches
    spent_s = sum(x.idle_s for x in known)
    if not known or not context.is_on_device or context.settled_s <= 0:
        return None
    if spent_s < RULE.threshold(context.settings, "emptying_share") * context.settled_s:
        return None
    calls, steps = sum(x.count for x in known), max(context.summary.training.steps, 1)
    # How long the GPU idles while the host allocates again is unknown.
    allocating_s = min(_ALLOCATING_TIMES * spent_s, max(context.idle_for_host_s() - spent_s, 0.0))
    most = outside_steps(context, spent_s + max(context.launching_s() or 0.0, allocating_s))
    return plain_finding(
        RULE.id,
        f"the GPU idles {span(spent_s)}, {context.as_share(spent_s)}, in "
        f"{number_of(calls, 'call')} of empty_cache() in {number_of(steps, 'step')}",
        replace(outside_steps(context, spent_s), training=most.training, run=most.run),
        site=known[0].site,
        action="Remove empty_cache()",
        advice="delete the calls: torch reuses the memory of freed tensors anyway",
        evidence={
            "idle_in_calls_s": spent_s,
            "calls": calls,
            EXPLAINS_S: None if calls >= _IN_MOST_STEPS * steps else spent_s,
        },
    )


def _of_values(context: RunContext) -> Finding | None:
    least = RULE.threshold(context.settings, "share")
    needed_s = sum(point.needed_s for point in context.summary.sync_points)
    inside_s = max((context.idle_s("sync_s") or 0.0) - needed_s, 0.0)
    # Else the GPU may idle for what the loop waits for next.
    after_s, most_after_s = (0.0, 0.0) if may_be_waiting(context) else _held_back_s(context)
    spent_s = inside_s + after_s
    worst, are_several = costliest_in_training(context.summary.sync_points, idle_for_s)
    if worst is None or context.settled_s <= 0 or spent_s < least * context.settled_s:
        return None
    calls = worst.count - worst.on_cpu if worst.in_training is None else worst.in_training
    call = f"{worst.kind}(tensor)" if worst.kind in _BUILTINS else f".{worst.kind}()"
    where = f"synchronizing calls, mostly {calls} of {call}"
    if not are_several:
        where = f"{number_of(calls, 'synchronizing call')} ({call})"
    after = " and after" if after_s > _NOTICEABLE * spent_s else ""
    gain = outside_steps(context, inside_s + after_s)
    most_s = _most_inside_s(context, inside_s, needed_s) + most_after_s
    most = outside_steps(context, min(most_s, inside_s + max(context.idle_for_host_s(), after_s)))
    action, advice, cautions = _advice(context, worst)
    return plain_finding(
        RULE.id,
        f"the GPU idles {span(spent_s)}, {context.as_share(spent_s)}, in{after} {where}",
        replace(gain, training=most.training, run=most.run),
        site=worst.site,
        action=action,
        advice=advice,
        cautions=cautions,
        evidence={
            "sync_idle_s": inside_s,
            AFTER_S: after_s,
            "sync_idle_share": spent_s / context.settled_s,
            "exposed_here_s": worst.exposed_s
            if worst.exposed_in_training_s is None
            else worst.exposed_in_training_s,
            "idle_after_here_s": worst.held_back_s[0] if worst.held_back_s else None,
            "calls": calls,
            "left_out_as_needed_s": needed_s,
            EXPLAINS_S: 0.0,
        },
    )


def _advice(context: RunContext, worst: SyncPoint) -> tuple[str, str, list[str]]:
    """Returns what to do about a line's calls, in short and in full, with cautions."""
    builder, share = context.builder(), worst.library_share
    is_check = builder is not None and builder.checks is not None and worst.kind == _CHECK
    # Older runs do not record whose calls they are.
    if builder is not None and is_check and (share is None or share > _MOSTLY):
        return "Turn off the NaN check of each step", f"{builder.call}(..., {builder.checks})", []
    if share is not None and share > _MOSTLY:
        is_loop = is_called_at(context, worst.site)
        advice = advice_for(context, worst.site, is_sure=True) if is_loop else _BY_LIBRARY
        return "Let the library read values less often", advice, []
    if worst.kind == _SYNCHRONIZE:
        return "Remove torch.cuda.synchronize()", _ADVICE[_SYNCHRONIZE], []
    if worst.kind in _ADVICE:
        return "", _ADVICE[worst.kind], []
    return "", _LESS_OFTEN, [_MAY_BE_NEEDED]


def _most_inside_s(context: RunContext, inside_s: float, needed_s: float) -> float:
    """Returns for how long the GPU idles in syncs, at most."""
    devices = context.summary.devices or ()
    most_s = (
        max((device.exposed_s.get("sync", [0.0])[-1] for device in devices), default=0.0) - needed_s
    )
    return min(max(most_s, inside_s), inside_s + (context.idle_s("unknown_s") or 0.0))


def _held_back_s(context: RunContext) -> tuple[float, float]:
    """Returns for how long the GPU idles after syncs because of them, at least and at most.

    At most for as long as it idles while the host is in Python or launches kernels.
    """
    bounds = [
        point.held_back_s for point in context.summary.sync_points if point.held_back_s is not None
    ]
    least_s, most_s = (sum(x[bound] for x in bounds) for bound in (0, 1))
    surely_s = (context.idle_s("host_s") or 0.0) + (context.idle_s("launch_s") or 0.0)
    return min(least_s, surely_s), min(most_s, surely_s + (context.idle_s("unknown_s") or 0.0))


RULE: Final = Rule(
    id="exposed_syncs",
    thresholds={
        "share": Threshold(0.05, "of training, the GPU idle in and after the calls"),
        "emptying_share": Threshold(0.03, "of training, the GPU idle in empty_cache()"),
    },
    find=find,
    explanation=__doc__,
    order=100,
    traits=RuleTraits(
        keys=["sync", "device_wait", "other"],
        action="Synchronize with the GPU less often",
    ),
    old_names=("emptied_cache",),
)
