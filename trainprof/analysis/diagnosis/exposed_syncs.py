"""The device runs dry because the host waits for a value of it.

What it means: .item(), .tolist(), printing a tensor and the like wait until the device has done all
it was given. While it is busy anyway that costs nothing by itself. But then it has nothing left to
do, and waits while the value is brought and while the host goes on: through Python, and until it
has given out work again. A host that had not waited would be ahead of the device by then.

How it is measured: marks in the device's stream: the part of each such wait in which the device had
surely nothing to do, and what it idles after it, as far as the host had waited while the device
worked, by two steps at most. What takes time in a loader is not counted, and a copy that blocks,
which waits by itself, ends it. The line named is the one that cost most of that in training,
evaluation left out.

When it is wrong: where the device would wait for the host even without it, for a wait that comes
later in a step then takes its place. How much of the time in which the host gives out work the
device idles is not known: with all of that the gain is told as "up to". Values that are asked for
less often need not be computed either, which is not counted. Work given out between the parts of a
step is not seen, and counts as idle time.

What to do: keep values on the device (add losses up there), and ask for them every 100th step.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.diagnosis.gains import outside_steps
from trainprof.analysis.diagnosis.plain import plain_finding
from trainprof.analysis.diagnosis.python_in_loop import may_be_waiting
from trainprof.analysis.diagnosis.rule import Threshold
from trainprof.analysis.diagnosis.wording import span
from trainprof.analysis.finding import Finding
from trainprof.analysis.traffic import dearest_in_training, idle_for_s

ID: Final = "exposed_syncs"
KEYS: Final[tuple[str, ...]] = ("sync", "device_wait")
# Of all that is told.
_NOTICEABLE: Final = 0.1
# The kind of sync by which a package looks whether a loss is a number.
_CHECK: Final = "bool"
# Of the evidence: what the device idles after its values were there.
AFTER_S: Final = "idle_after_syncs_s"
THRESHOLDS: Final = {
    "share": Threshold(0.05, "of training, the device idle for it"),
}


def find(case: Case) -> Finding | None:
    least = case.threshold(ID, "share", THRESHOLDS["share"].value)
    inside_s = case.idle_s("sync_s") or 0.0
    # Else what the device idles may be for whom the loop waits next.
    after_s, most_after_s = (0.0, 0.0) if may_be_waiting(case) else _held_back_s(case)
    spent_s = inside_s + after_s
    worst, are_several = dearest_in_training(case.summary.sync_points, idle_for_s)
    if worst is None or case.settled_s <= 0 or spent_s < least * case.settled_s:
        return None
    calls = worst.count - worst.on_cpu if worst.in_training is None else worst.in_training
    here = f"{calls} calls of {worst.kind}"
    here = f"most of it in {here} at {worst.site}" if are_several else f"{here} here"
    after = ", and as it goes on from there" if after_s > _NOTICEABLE * spent_s else ""
    gain = outside_steps(case, inside_s + after_s)
    most_s = _most_inside_s(case, inside_s) + most_after_s
    most = outside_steps(case, min(most_s, inside_s + max(case.idle_for_host_s(), after_s)))
    return plain_finding(
        ID,
        f"the device has nothing to do for {span(spent_s)}, {case.of_settled(spent_s)}, while the "
        f"host waits for its values{after}: {here}",
        replace(gain, training=most.training, run=most.run),
        site=worst.site,
        advice=_advice(case, worst.kind),
        evidence={
            "sync_idle_s": inside_s,
            AFTER_S: after_s,
            "sync_idle_share": spent_s / case.settled_s,
            "exposed_here_s": worst.exposed_s
            if worst.exposed_in_training_s is None
            else worst.exposed_in_training_s,
            "idle_after_here_s": worst.held_back_s[0] if worst.held_back_s else None,
            "calls": calls,
        },
    )


def _advice(case: Case, kind: str) -> str:
    builder = case.builder()
    if builder is None or builder.checks is None or kind != _CHECK:
        return "ask for the value every 100th step, or keep it on the device"
    return (
        f"{builder.call}(..., {builder.checks}): it looks at the loss of each step, which may be "
        "not a number"
    )


def _most_inside_s(case: Case, inside_s: float) -> float:
    """Returns for how long the device idles in syncs, at most: it may do next to nothing there."""
    devices = case.summary.devices or ()
    most_s = max((one.exposed_s.get("sync", [0.0])[-1] for one in devices), default=0.0)
    return min(max(most_s, inside_s), inside_s + (case.idle_s("unknown_s") or 0.0))


def _held_back_s(case: Case) -> tuple[float, float]:
    """Returns for how long the device idles after syncs because of them, at least and at most.

    No longer than it idles while the host is in Python or gives out work.
    """
    told = [one.held_back_s for one in case.summary.sync_points if one.held_back_s is not None]
    least_s, most_s = (sum(one[bound] for one in told) for bound in (0, 1))
    surely_s = (case.idle_s("host_s") or 0.0) + (case.idle_s("launch_s") or 0.0)
    return min(least_s, surely_s), min(most_s, surely_s + (case.idle_s("unknown_s") or 0.0))
