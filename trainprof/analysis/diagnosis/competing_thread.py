"""Another thread of the script's runs Python code, and training waits for the interpreter.

What it means: Python lets one thread at a time run (the GIL). A thread that asks again and again
whether there is something to do, or that reads, decodes or logs in Python, takes it from training:
each of torch's calls then waits until the other thread lets go, as a rule 5 ms.

How it is measured: at looks, 25 times a second, for which share of the time since the last one the
other thread was on a core, and the training thread on one or waiting for one. What is left is
waiting for the interpreter at most: looks that found it free and the training thread asleep all
the same are taken off, and those that met it waiting for data, a file, another thread. On a device,
and in DistributedDataParallel, whose backward waits for others, it is not looked for.

When it is wrong: where a forward or backward waits for something that nobody here knows (a lock, a
server, other processes), or the training process sleeps over its data itself, beside such a thread.

What to do: let the thread wait instead of asking (queue.get() or Event.wait() with a timeout, not
get_nowait() or `while not done`), or do its work in another process (a DataLoader's worker).
"""

from __future__ import annotations

from typing import Final

from trainprof.analysis.beside import AT_WORK_FROM_SHARE, KEPT_FROM_SHARE
from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.diagnosis.plain import unmeasured_finding
from trainprof.analysis.diagnosis.rule import Threshold
from trainprof.analysis.diagnosis.wording import span
from trainprof.analysis.finding import Finding
from trainprof.analysis.verdict_level import percent

ID: Final = "competing_thread"
KEYS: Final[tuple[str, ...]] = ("forward", "backward", "optimizer", "other")
THRESHOLDS: Final = {
    "kept_share": Threshold(KEPT_FROM_SHARE, "of training, kept from running"),
    "at_work_share": Threshold(AT_WORK_FROM_SHARE, "of training, the other thread on a core"),
}


def find(case: Case) -> Finding | None:
    told = case.summary.competing
    if told is None or told.site is None:
        return None
    figures = {"kept_share": told.kept_share, "at_work_share": told.at_work_share}
    if any(
        figures[name] < case.threshold(ID, name, least.value) for name, least in THRESHOLDS.items()
    ):
        return None
    name = f" ({told.function})" if told.function else ""
    return unmeasured_finding(
        ID,
        f"another thread of the script's, at {told.site}{name}, runs for "
        f"{percent(told.at_work_share)} of training and holds Python's interpreter: training was "
        f"kept from running for about {span(told.kept_s)}, {percent(told.kept_share)} of it",
        site=told.site,
        advice="let that thread wait (queue.get(), Event.wait()) instead of asking again and "
        "again, or do its work in another process",
        evidence={**figures, "kept_s": told.kept_s, "looks": told.looks},
    )
