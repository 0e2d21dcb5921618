"""How a run ended and how far it got, in words; for the terminal and for markdown."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from itertools import groupby
from typing import Final

from trainprof.analysis.summary.levels import number_at
from trainprof.analysis.summary.run import Exit, Run, Stood
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report.text.units import (
    byte_count,
    count,
    counted,
    is_known,
    seconds,
    signal_name,
    three_digits,
)

# Of training: from this share on, steps/s is noted to be without evaluation.
_MUCH_EVALUATION: Final = 0.15
# Of processes of a run that hung, rows; and from when on it is said how long one stood there.
_PLACES_SHOWN: Final = 9
_STAYED_FROM_S: Final = 2.0
_WHOLE_SECONDS_TO: Final = 600.0


def ending(summary: RunSummary) -> str:
    """Returns how the script ended and when: a sentence without its full stop."""
    run = summary.run
    if run.part is not None:
        return f"{_what(run)}, only {run.part}, {seconds(run.wall_s)}"
    return f"{_what(run)} {_verb(run.exit, run.wall_s)}"


def outcome(summary: RunSummary) -> str:
    """Returns how the script ended and how fast it ran, as a sentence or two."""
    if not summary.training.steps:
        return f"{ending(summary)}. {no_steps(summary)}"
    return f"{ending(summary)}: {', '.join(progress(summary))}"


def no_steps(summary: RunSummary) -> str:
    """Returns that nothing was trained, and what was seen in place of it."""
    spent, end = summary.ledger.seconds, summary.run.exit
    if summary.hung is not None:
        return f"No step in the last {_about(summary.hung.idle_s)}."
    if end.reason == "limit":
        start_up = seconds(spent.get("startup", 0.0))
        return f"No step: the limit counts from the script's start, and start-up took {start_up}."
    inferring_s = spent.get("forward", 0.0) + spent.get("evaluation", 0.0)
    if is_known(inferring_s) and inferring_s > 0:
        return f"No training step seen: forward passes took {seconds(inferring_s)}, no backward."
    return "No training step seen (trainprof needs backward or optimizer calls)."


def cause(summary: RunSummary) -> str | None:
    """Returns what more is known of the end than `ending` says."""
    end = summary.run.exit
    detail = None if end.reason in ("exception", "limit") else end.detail
    if end.after_limit is None:
        return detail
    limit = f"training was ended by {end.after_limit} before"
    return limit if detail is None else f"{limit}; {detail}"


def progress(summary: RunSummary) -> list[str]:
    """Returns steps and throughput as far as they are known."""
    training = summary.training
    parts = [counted(training.steps, "step")]
    rate = steps_per_second(summary)
    if rate is not None:
        evaluated_s = summary.evaluation.in_training_s
        evaluated_s = summary.evaluation.seconds if evaluated_s is None else evaluated_s
        is_much = evaluated_s >= _MUCH_EVALUATION * summary.phases.training_s
        parts.append(f"{three_digits(rate)} steps/s{' without validation' if is_much else ''}")
    if is_known(training.samples_per_s):
        parts.append(f"{three_digits(training.samples_per_s)} samples/s")
    return [*parts, *_processes(summary)]


def standstill(summary: RunSummary) -> list[tuple[str, str, str]]:
    """Returns where each process stood in a run that was ended while no step came.

    A row has the process, its line, and what it did there; processes that stood alike share a row.
    [] where steps came, or it is unknown where it stood.
    """
    places: dict[tuple[object, ...], list[Stood]] = {}
    for stood in summary.hung.stood if summary.hung is not None else ():
        who = () if stood.worker is None else (stood.rank,)
        key = (who, stood.site, stood.doing, stood.is_stale)
        places.setdefault(key, []).append(stood)
    rows = [(_who(group), group[0].site, _doing(group)) for group in places.values()]
    left = sum(map(len, list(places.values())[_PLACES_SHOWN:]))
    return [*rows[:_PLACES_SHOWN], *([(f"{count(left)} more", "", "")] if left else [])]


def _doing(group: Sequence[Stood]) -> str:
    doing = group[0].doing
    if group[0].is_stale:
        age = _about(min(stood.age_s for stood in group))
        return f"{doing}, last seen {age} before the end: native code held the GIL"
    stayed_s = min(stood.for_s for stood in group)
    return f"{doing}, for {_about(stayed_s)}" if stayed_s >= _STAYED_FROM_S else doing


def _about(value_s: float) -> str:
    return f"{value_s:.0f} s" if value_s < _WHOLE_SECONDS_TO else seconds(value_s)


def _who(group: Sequence[Stood]) -> str:
    first = group[0]
    if len(group) == 1:
        return "training thread" if first.process == "main" else first.process
    if first.worker is None:
        return ", ".join(stood.process for stood in group)
    rank = "" if first.rank is None else f"rank {first.rank} "
    return f"{rank}workers {_ranges(sorted({stood.worker or 0 for stood in group}))}"


def _ranges(numbers: Sequence[int]) -> str:
    """Returns sorted numbers as "0-3, 5"."""
    in_a_row = groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    runs = [[number for _, number in group] for _, group in in_a_row]
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _processes(summary: RunSummary) -> list[str]:
    """Returns which of several training processes the figures are of."""
    ranks, world_size = len(summary.ranks), summary.run.world_size or 1
    if ranks:
        world_note = f" of {world_size}" if world_size > ranks else ""
        return [f"mean of {counted(ranks, 'rank')}{world_note}"]
    if world_size > 1:
        return [f"rank {summary.run.rank} of {world_size}"]
    if summary.trained_apart:
        return [f"the busiest of {1 + len(summary.trained_apart)} training processes"]
    return []


def steps_per_second(summary: RunSummary) -> float | None:
    """Returns steps per second of training, from the first step, evaluation left out."""
    trained_s = summary.without_evaluation_s
    return summary.training.steps / trained_s if summary.training.steps and trained_s > 0 else None


def is_failure(summary: RunSummary) -> bool:
    """Whether the script ended by itself with an error, which it has printed."""
    end = summary.run.exit
    return end.reason == "exception" or (end.reason == "completed" and bool(end.status))


def is_memory_death(summary: RunSummary) -> bool:
    """Whether memory is the known or the likely cause of the end."""
    end, detail = summary.run.exit, (summary.run.exit.detail or "").lower()
    return end.reason == "killed" or "out of memory" in detail or detail == "memoryerror"


def memory_before_the_end(summary: RunSummary) -> list[str]:
    """Returns what the last sample saw: whose memory stood where, and what had grown."""
    sample = summary.system.last_sample if summary.system else None
    if sample is None:
        return ["Memory before the end: not measured."]
    return [_last_sample(summary), _growth(summary)]


def _what(run: Run) -> str:
    """Returns what was run as the user typed it: the script's file, the module, the command."""
    words = [word for word in run.command if word != "-m"]
    return posixpath.basename(words[0]) if words and words[0] else run.name


def _verb(end: Exit, wall_s: float) -> str:
    after = f" after {seconds(wall_s)}" if is_known(wall_s) else ""
    if end.reason == "completed" and not end.status:
        return f"finished in {seconds(wall_s)}" if after else "finished"
    verbs = {
        "completed": f"exited with status {end.status}",
        "exception": f"failed with {end.detail or 'an exception'}",
        "interrupted": "was interrupted (Ctrl-C)",
        "signal": f"was ended by {signal_name(end.signal)}",
        "killed": f"was killed by {signal_name(end.signal)}",
        "limit": f"was ended by {end.detail or 'a limit'}",
        "running": "is still running",
    }
    return f"{verbs.get(end.reason, 'ended in an unknown way')}{after}"


def _last_sample(summary: RunSummary) -> str:
    sample = summary.system.last_sample if summary.system else None
    at_s = number_at(sample, "at_s")
    before_s = None if at_s is None else summary.run.wall_s - at_s
    when = f", {seconds(before_s)} before the end" if before_s is not None and before_s > 0 else ""
    workers_bytes = number_at(sample, "children_rss_bytes")
    held = [
        f"main process {byte_count(number_at(sample, 'main_rss_bytes'))}",
        "no workers" if workers_bytes == 0 else f"workers {byte_count(workers_bytes)}",
        f"free on the host {byte_count(number_at(sample, 'host_available_bytes'))}",
    ]
    limit = number_at(summary.system.memory if summary.system else None, "limit_bytes")
    if limit is not None:
        held.append(f"limit {byte_count(limit)}")
    return f"Memory at the last sample{when}: {', '.join(held)}."


def _growth(summary: RunSummary) -> str:
    sample = summary.system.last_sample if summary.system else None
    grown = [
        (who, number_at(sample, "grown_bytes", key))
        for key, who in (("children", "the workers"), ("main", "the main process"))
    ]
    known = sorted(((who, size) for who, size in grown if size is not None), key=lambda g: -g[1])
    if not known:
        return "What grew: not measured."
    grew = [
        f"{who} by {byte_count(size)}" if size > 0 else f"{who} did not"
        for who, size in known
        if size > 0 or who != "the workers" or number_at(sample, "children_rss_bytes")
    ]
    return f"What grew since the first third of the run: {', '.join(grew)}."
