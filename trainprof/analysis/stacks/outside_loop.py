"""The lines and imports of start-up and shutdown, by stack samples of the main thread."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from trainprof.analysis.run.analysed import Analysed
from trainprof.analysis.stacks.samples import (
    MIN_SAMPLES,
    Frames,
    LineNames,
    PartsOfLoop,
    StackSamples,
    thread_samples,
)
from trainprof.analysis.summary.code import ImportTime, OutsideLine, OutsideLoop
from trainprof.analysis.timeline.ledger import KEY, Attribution, Window, uncovered_ns
from trainprof.record.schema import Kind

# A sample stands for the time since the last one, up to this: a fork takes none.
_LONGEST_NS: Final = 500_000_000
# Of the time: a line with less counts for its caller.
_LEAST_SHARE: Final = 0.1
_MOST_LINES: Final = 10
_UNKNOWN_PACKAGE: Final = "unknown"

# Seconds of a stack, its import, and the caller of the user's innermost frame.
_Met = tuple[float, Frames, str | None, str | None]


def startup_and_shutdown(
    run: Analysed, attribution: Attribution
) -> tuple[OutsideLoop | None, OutsideLoop | None]:
    """Returns the lines and imports of both; None of one with too few samples."""
    process, timeline = run.process, run.timeline
    window, events = timeline.window, timeline.events
    parts = PartsOfLoop(events, timeline.nesting, attribution, window)
    main = timeline.thread if process.main_thread is None else process.main_thread
    samples = thread_samples(process.details, main)
    names = LineNames(run.metadata.texts, run.sites())
    startup, shutdown = (
        _outside(samples, replace(parts, window=Window(start, start, end, end)), names)
        for start, end in ((window.start, window.loop_start), (window.loop_end, window.end))
    )
    marks = process.logs[-1].marks if process.logs else []
    ended = next((at for kind, _, at, *_ in marks if kind == Kind.PROCESS_END), window.end)
    if window.loop_end <= ended < window.end:
        exit_ns = uncovered_ns(events, attribution, ended, window.end)
        shutdown = replace(shutdown or OutsideLoop(), exit_s=exit_ns / 1e9)
    return startup, shutdown


def _outside(samples: StackSamples, parts: PartsOfLoop, names: LineNames) -> OutsideLoop | None:
    """Returns the lines and imports of a time span, without those of other ledger keys."""
    is_here = (samples.wanted_ns >= parts.window.start) & (samples.wanted_ns < parts.window.end)
    is_here &= parts.at(samples.taken_ns) == KEY["other"]
    if np.count_nonzero(is_here) < MIN_SAMPLES:
        return None
    since = np.diff(samples.wanted_ns, prepend=samples.wanted_ns[:1])
    numbers, which = np.unique(samples.stack[is_here], return_inverse=True)
    ns = np.bincount(which, weights=np.clip(since, 0, _LONGEST_NS)[is_here])
    met = list(_named(numbers.tolist(), (ns / 1e9).tolist(), names))
    return OutsideLoop(_lines([x for x in met if x[1] and x[2] is None]), _imports(met))


def _named(numbers: list[int], seconds: list[float], names: LineNames) -> Iterator[_Met]:
    for number, spent_s in zip(numbers, seconds, strict=True):
        frames = names.frames(number)
        imported, caller = names.libraries(number)
        if not frames and caller is not None:  # an installed package, or Python at its end
            frames = (("", caller),)
        yield spent_s, frames, imported, caller


def _imports(met: list[_Met]) -> list[ImportTime]:
    """Returns imports by package; before any of its code ran, by others of the same line."""
    by_site: dict[tuple[str, str], float] = {}
    for spent_s, frames, package, _ in met:
        if package is not None:
            key = frames[0][0] if frames else "", package
            by_site[key] = by_site.get(key, 0.0) + spent_s
    in_order = sorted(by_site.items(), key=lambda item: -item[1])
    known = {site: package for (site, package), _ in reversed(in_order) if package}
    spent: dict[str, dict[str, float]] = {}
    for (site, package), seconds in in_order:
        sites = spent.setdefault(package or known.get(site, _UNKNOWN_PACKAGE), {})
        sites[site] = sites.get(site, 0.0) + seconds
    imports = [
        ImportTime(package, max(sites, key=lambda site: sites[site]) or None, sum(sites.values()))
        for package, sites in spent.items()
    ]
    return sorted(imports, key=lambda package: -package.seconds)[:_MOST_LINES]


def _lines(met: list[_Met]) -> list[OutsideLine]:
    """Returns lines with the time of their calls, innermost as far as one has enough."""
    reached: dict[Frames, float] = {}
    for spent_s, frames, *_ in met:
        for at in range(len(frames)):
            reached[frames[at:]] = reached.get(frames[at:], 0.0) + spent_s
    least_s = _LEAST_SHARE * sum(spent_s for spent_s, *_ in met)
    spent: dict[Frames, float] = {}
    callers: dict[Frames, str | None] = {}
    for spent_s, frames, _, caller in sorted(met, key=lambda x: x[0]):
        ends = (frames[at:] for at in range(len(frames)))
        line = next((x for x in ends if reached[x] >= least_s), frames[-1:])
        spent[line] = spent.get(line, 0.0) + spent_s
        if line == frames and frames[0][0]:  # the last is that of most samples
            callers[line] = caller
    lines = [
        OutsideLine(
            site=frames[0][0] or None,
            function=frames[0][1],
            seconds=seconds,
            called_by=callers.get(frames),
            called_from=list(dict.fromkeys(site for site, _ in frames[1:])),
        )
        for frames, seconds in spent.items()
        if seconds > 0
    ]
    return sorted(lines, key=lambda line: -line.seconds)[:_MOST_LINES]
