"""The device runs dry while the host waits for a value of it.

What it means: .item(), .cpu(), printing a tensor and the like wait until the device has done all it
was given. While it is busy anyway that costs nothing; once it is done it waits for the host, which
only then goes on to give it work.

How it is measured: marks in the device's stream: the part of each such wait in which the device had
surely nothing to do. The line named is the one that cost most of that in training, evaluation left
out.

When it is wrong: where the device would wait for the host even without it (Python that is slower
than the device): then another wait takes its place.

What to do: keep values on the device (add losses up there), and ask for them every 100th step.
"""

from __future__ import annotations

from typing import Final

from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.diagnosis.gains import outside_steps
from trainprof.analysis.diagnosis.plain import plain_finding
from trainprof.analysis.diagnosis.rule import Threshold
from trainprof.analysis.diagnosis.wording import span
from trainprof.analysis.finding import Finding
from trainprof.analysis.traffic import dearest_in_training

ID: Final = "exposed_syncs"
KEYS: Final[tuple[str, ...]] = ("sync", "device_wait")
THRESHOLDS: Final = {
    "share": Threshold(0.1, "of training, the device idle for it"),
}


def find(case: Case) -> Finding | None:
    least = case.threshold(ID, "share", THRESHOLDS["share"].value)
    spent_s = case.idle_s("sync_s") or 0.0
    worst, are_several = dearest_in_training(case.summary.sync_points)
    if worst is None or case.settled_s <= 0 or spent_s < least * case.settled_s:
        return None
    calls = worst.count - worst.on_cpu if worst.in_training is None else worst.in_training
    here = f"{calls} calls of {worst.kind}"
    here = f"most of it in {here} at {worst.site}" if are_several else f"{here} here"
    return plain_finding(
        ID,
        f"the device has nothing to do for {span(spent_s)}, {case.of_settled(spent_s)}, while the "
        f"host waits for its values: {here}",
        outside_steps(case, spent_s),
        site=worst.site,
        advice="ask for the value every 100th step, or keep it on the device",
        evidence={
            "sync_idle_s": spent_s,
            "sync_idle_share": spent_s / case.settled_s,
            "exposed_here_s": worst.exposed_s
            if worst.exposed_in_training_s is None
            else worst.exposed_in_training_s,
            "calls": calls,
        },
    )
