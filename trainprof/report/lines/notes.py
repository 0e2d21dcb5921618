"""What is to be known of line times besides the times: of what processes, at what cost."""

from __future__ import annotations

from collections.abc import Sequence

from trainprof.analysis.lines.times import LineProfile
from trainprof.analysis.run.process_name import ProcessName
from trainprof.analysis.summary.code import LineCost
from trainprof.report.text.units import NOT_MEASURED, count, counted, seconds


def line_notes(profile: LineProfile, *, is_merged: bool = True) -> list[str]:
    """Returns one sentence each.

    Args:
        profile: The run's line times.
        is_merged: Those of all processes were added up.
    """
    notes: list[str] = []
    processes = profile.processes()
    if not profile.functions:
        notes.append("No function's lines were timed.")
    if is_merged and len(processes) > 1:
        notes.append(
            f"Times are added up over {processes_in_words(processes)} and may exceed the run's; "
            "--per-process shows each."
        )
    changed = {
        profile.site(function).rpartition(":")[0]
        for function in profile.functions
        if function.source is not None and function.source.has_changed
    }
    if changed:
        verb = "has" if len(changed) == 1 else "have"
        files = ", ".join(sorted(changed))
        notes.append(f"{files} {verb} changed since the run: the lines are shown as they ran.")
    cost = profile.cost
    if cost is not None:
        more = ""
        if cost.traces_callees:
            more = (
                "Python code that timed lines call (a library's, say) is slowed as well, before "
                "Python 3.12, by an unknown time. "
            )
        notes.append(
            f"Timing cost {_overhead(cost)}. {more}It slows some parts of the script more than "
            "others: for a verdict use trainprof run."
        )
    return [*notes, *(f"Missing: {sentence}." for sentence in profile.damage)]


def unseen_notes(profile: LineProfile) -> list[str]:
    """Returns why functions have no times, one sentence each."""
    return [
        f"{function.name} at {profile.site(function)} has no times: {function.unseen}."
        for function in profile.functions
        if not function.rows
    ]


def cost_in_short(cost: LineCost) -> list[str]:
    """Returns what was timed, and what that took, in fragments."""
    timed = [counted(cost.functions, "function"), counted(cost.processes, "process", "processes")]
    return [f"{timed[0]} timed in {timed[1]}", f"timing cost {_overhead(cost)}"]


def processes_in_words(processes: Sequence[ProcessName]) -> str:
    """Returns "main, 4 workers"; one alone by its name."""
    if len(processes) == 1:
        return processes[0].label
    mains = [name for name in processes if name == ProcessName()]
    ranks = [name for name in processes if name.rank is not None and _leads(name)]
    workers = [name for name in processes if name.worker is not None]
    others = len(processes) - len(mains) - len(ranks) - len(workers)
    told = [
        "main" if mains else "",
        counted(len(ranks), "rank") if ranks else "",
        counted(len(workers), "worker") if workers else "",
        counted(others, "other process", "other processes") if others else "",
    ]
    return ", ".join(part for part in told if part)


def _leads(name: ProcessName) -> bool:
    return name.worker is None and name.pid is None


def _overhead(cost: LineCost) -> str:
    times = f"{count(cost.hits)} times"
    if cost.overhead_ns is None or cost.added_s is None:
        return f"a timed line {NOT_MEASURED}, {times}"
    return (
        f"about {_nanoseconds(cost.overhead_ns)} a timed line, {times}: about "
        f"{seconds(cost.added_s)} in all"
    )


def _nanoseconds(ns: float) -> str:
    return f"{ns:.0f} ns" if ns < 1000 else seconds(ns * 1e-9)
