"""The device runs dry because the host waits for a value of it.

What it means: .item(), .tolist(), printing a tensor and the like wait until the device has done all
it was given. While it is busy anyway that costs nothing by itself. But then it has nothing left to
do, and waits while the value is brought and while the host goes on: through Python, and until it
has given out work again. A host that had not waited would be ahead of the device by then.
torch.cuda.empty_cache() waits, too, and gives back memory that forward and backward ask for again.

How it is measured: marks in the device's stream: the part of each such wait in which the device had
surely nothing to do, and what it idles after it, as far as the host had waited while the device
worked, by two steps at most. What takes time in a loader is not counted, and a copy that blocks,
which waits by itself, ends it. Nor is what no script can leave out: the reads of a gradient scaler,
of a checkpoint, and of torch's own optimizers in their steps (LBFGS). The line named is the one
that cost most of that in training, evaluation left out. Of empty_cache(): what the device idles in
its calls; asking again lies in what it waits for the host, up to three times as long (seen: 0.4 to
2.4 times).

When it is wrong: where the device would wait for the host even without it, for a wait that comes
later in a step then takes its place. How much of the time in which the host gives out work the
device idles is not known: with all of that the gain is told as "up to". Values that are asked for
less often need not be computed either, which is not counted. Work given out between the parts of a
step is not seen, and counts as idle time.

What to do: keep values on the device (add losses up there), and ask for them every 100th step. Not
so a value that decides what comes next, a check for NaN say: every 100th step it would let through
what it is to stop. The device can decide (torch.where), or the value is looked at one step later.
torch.cuda.synchronize() brings nothing: take it out; torch.cuda.Event(enable_timing=True) times
without it. Where it is a library that asks, its settings say how often. Leave empty_cache() out:
it frees nothing that the script could not have used anyway.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from trainprof.analysis.device.host_waits import dearest_in_training, idle_for_s
from trainprof.analysis.summary.device import SyncPoint
from trainprof.analysis.summary.finding import EXPLAINS_S, Finding, RuleTraits, Threshold
from trainprof.findings.gain import outside_steps, plain_finding
from trainprof.findings.library_loop import advice_for, is_called_at
from trainprof.findings.loop.python_in_loop import may_be_waiting
from trainprof.findings.rule import Rule
from trainprof.findings.run_context import RunContext
from trainprof.findings.wording import number_of, span

# Of all that is told.
_NOTICEABLE: Final = 0.1
# Of a line's calls.
_MOSTLY: Final = 0.5
# The kind of sync that decides which way the code goes: a package looks so whether a loss is a
# number.
_CHECK: Final = "bool"
_SYNCHRONIZE: Final = "synchronize"
_LESS_OFTEN: Final = "ask for the value every 100th step, or keep it on the device"
# By the kind of sync.
_ADVICE: Final = {
    _CHECK: "keep the check, but let the device decide (torch.where between what is to change and "
    "what was), or look at the value one step later, where that is soon enough",
    _SYNCHRONIZE: "take torch.cuda.synchronize() out of the loop: values are waited for when they "
    "are asked for; torch.cuda.Event(enable_timing=True) times work without waiting for each step",
    "nonzero": "a mask in place of its indices (torch.where(mask, a, b), or multiplied by it): how "
    "many there are the device alone knows",
    "int": "keep it a tensor, by which others can be indexed, or ask for it less often",
    "index": "keep it a tensor, by which others can be indexed, or ask for it less often",
}
_BY_LIBRARY: Final = (
    "a library that this line calls asks for it: have it check or show less by its settings "
    "(torchmetrics: validate_args=False), or call it every 100th step"
)
_NEEDED: Final = {
    _CHECK: "asked for every 100th step only, a check would let through what it is to stop"
}
_LOOKS_AT_EACH: Final = "it looks at the loss of each step, which may be not a number"
_MAY_BE_NEEDED: Final = (
    "a value that decides what comes next (a check for NaN, an action) is needed each time: of one "
    "that only ends the run, or is only shown, one step later is soon enough"
)
# Of the evidence: what the device idles after its values were there.
AFTER_S: Final = "idle_after_syncs_s"
# What asking for memory again took, times the calls that gave it back: 0.4 for a transformer, 1.8
# and 2.4 for two ResNets (22 to 62 pieces of memory a step, H200).
_ASKING_TIMES: Final = 3.0
# Calls for each step, from which on all that is slow may come of them.
_IN_MOST_STEPS: Final = 0.5


def find(context: RunContext) -> Finding | None:
    results = [
        cache for cache in (_of_values(context), _of_emptied_caches(context)) if cache is not None
    ]
    return max(results, key=lambda x: x.recoverable_s or 0.0, default=None)


def _of_emptied_caches(context: RunContext) -> Finding | None:
    known = context.summary.emptied_caches
    spent_s = sum(x.idle_s for x in known)
    if not known or not context.is_on_device or context.settled_s <= 0:
        return None
    if spent_s < RULE.threshold(context.settings, "emptying_share") * context.settled_s:
        return None
    calls, steps = sum(x.count for x in known), max(context.summary.training.steps, 1)
    # The device is idle then for what the host does; nobody knows for how long.
    asking_s = min(_ASKING_TIMES * spent_s, max(context.idle_for_host_s() - spent_s, 0.0))
    most = outside_steps(context, spent_s + max(context.launching_s() or 0.0, asking_s))
    return plain_finding(
        RULE.id,
        f"the device has nothing to do for {span(spent_s)}, {context.as_share(spent_s)}, while "
        f"{number_of(calls, 'call')} of empty_cache() in {number_of(steps, 'step')} give back "
        "memory, which is asked for again",
        replace(outside_steps(context, spent_s), training=most.training, run=most.run),
        site=known[0].site,
        advice="leave empty_cache() out: torch uses the memory of tensors that are gone again",
        evidence={
            "idle_in_calls_s": spent_s,
            "calls": calls,
            EXPLAINS_S: None if calls >= _IN_MOST_STEPS * steps else spent_s,
        },
        cautions=["another process on the same device may need that memory meanwhile"],
    )


def _of_values(context: RunContext) -> Finding | None:
    least = RULE.threshold(context.settings, "share")
    needed_s = sum(point.needed_s for point in context.summary.sync_points)
    inside_s = max((context.idle_s("sync_s") or 0.0) - needed_s, 0.0)
    # Else what the device idles may be for whom the loop waits next.
    after_s, most_after_s = (0.0, 0.0) if may_be_waiting(context) else _held_back_s(context)
    spent_s = inside_s + after_s
    worst, are_several = dearest_in_training(context.summary.sync_points, idle_for_s)
    if worst is None or context.settled_s <= 0 or spent_s < least * context.settled_s:
        return None
    calls = worst.count - worst.on_cpu if worst.in_training is None else worst.in_training
    here = f"{number_of(calls, 'call')} of {worst.kind}"
    here = f"most of it in {here} at {worst.site}" if are_several else f"{here} here"
    after = ", and as it goes on from there" if after_s > _NOTICEABLE * spent_s else ""
    gain = outside_steps(context, inside_s + after_s)
    most_s = _most_inside_s(context, inside_s, needed_s) + most_after_s
    most = outside_steps(context, min(most_s, inside_s + max(context.idle_for_host_s(), after_s)))
    advice, cautions = _advice(context, worst)
    return plain_finding(
        RULE.id,
        f"the device has nothing to do for {span(spent_s)}, {context.as_share(spent_s)}, while "
        f"the host waits for its values{after}: {here}",
        replace(gain, training=most.training, run=most.run),
        site=worst.site,
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


def _advice(context: RunContext, worst: SyncPoint) -> tuple[str, list[str]]:
    """Returns what to do about a line's calls, and what to mind."""
    builder, share = context.builder(), worst.library_share
    is_check = builder is not None and builder.checks is not None and worst.kind == _CHECK
    # Older runs do not tell whose calls they are.
    if builder is not None and is_check and (share is None or share > _MOSTLY):
        return f"{builder.call}(..., {builder.checks}): {_LOOKS_AT_EACH}", []
    if share is not None and share > _MOSTLY:
        if is_called_at(context, worst.site):
            return advice_for(context, worst.site, is_sure=True), []
        return _BY_LIBRARY, []
    if worst.kind == _SYNCHRONIZE:
        return _ADVICE[_SYNCHRONIZE], []
    return _ADVICE.get(worst.kind, _LESS_OFTEN), [_NEEDED.get(worst.kind, _MAY_BE_NEEDED)]


def _most_inside_s(context: RunContext, inside_s: float, needed_s: float) -> float:
    """Returns for how long the device idles in syncs, at most: it may do next to nothing there."""
    devices = context.summary.devices or ()
    most_s = (
        max((device.exposed_s.get("sync", [0.0])[-1] for device in devices), default=0.0) - needed_s
    )
    return min(max(most_s, inside_s), inside_s + (context.idle_s("unknown_s") or 0.0))


def _held_back_s(context: RunContext) -> tuple[float, float]:
    """Returns for how long the device idles after syncs because of them, at least and at most.

    No longer than it idles while the host is in Python or gives out work.
    """
    words = [
        point.held_back_s for point in context.summary.sync_points if point.held_back_s is not None
    ]
    least_s, most_s = (sum(x[bound] for x in words) for bound in (0, 1))
    surely_s = (context.idle_s("host_s") or 0.0) + (context.idle_s("launch_s") or 0.0)
    return min(least_s, surely_s), min(most_s, surely_s + (context.idle_s("unknown_s") or 0.0))


RULE: Final = Rule(
    id="exposed_syncs",
    thresholds={
        "share": Threshold(0.05, "of training, the device idle for it"),
        "emptying_share": Threshold(0.03, "of training, the device idle in empty_cache()"),
    },
    find=find,
    explanation=__doc__,
    order=100,
    traits=RuleTraits(keys=["sync", "device_wait", "other"], gain="estimate"),
    old_names=("emptied_cache",),
)
