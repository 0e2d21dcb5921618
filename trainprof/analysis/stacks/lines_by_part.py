"""Which lines the time goes to, by looks at where threads stood."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from trainprof.analysis.loading.fetches import FetchTable
from trainprof.analysis.run.place_names import UNKNOWN_SITE
from trainprof.analysis.stacks.samples import (
    MIN_LOOKS,
    LineNames,
    Looks,
    PartsOfLoop,
    Stack,
    distinct,
    function_of,
    is_more,
)
from trainprof.analysis.summary.code import HotLine
from trainprof.analysis.timeline.events import Bool, Int64
from trainprof.analysis.timeline.intervals import Coverage
from trainprof.analysis.timeline.ledger import KEY

# Of the moments at which a look was wanted: where fewer could be taken, those that could are no
# fair sample of the others, and tell only what a line takes at least; or nothing.
_FAIR_KNOWN_SHARE: Final = 0.9
_MIN_KNOWN_SHARE: Final = 1 / 3
SHOWN_FROM_SHARE: Final = 0.05
# Where even fewer could be taken in time, a line that most of them met all the same, and so much of
# which lies well inside of it, is likely the one.
LIKELY_FROM_SHARE: Final = 0.5
LIKELY_INSIDE_SHARE: Final = 1 / 3
_SHOWN_LINES: Final = 5
# Of the looks that were wanted in a part, those that were taken in one function.
_ENDS_SHARE: Final = 0.6
MAKING: Final = "making batches"


def lines_of_training(
    looks: Looks,
    parts: PartsOfLoop,
    seconds: Mapping[str, float],
    names: LineNames,
    *,
    steps: int,
    once: Coverage,
) -> list[HotLine]:
    """Returns the lines that the parts of the training loop go to, part by part.

    Args:
        looks: At the training thread.
        parts: Its.
        seconds: Of each part inside the loop, by ledger key.
        names: Of what was seen.
        steps: How many there were.
        once: What of "other" does not come again: its lines are those of the rest.
    """
    in_order = np.argsort(looks.wanted_ns, kind="stable")
    taken, wanted = (
        _lasting(parts.at(times), times, once)
        for times in (looks.taken_ns, looks.wanted_ns[in_order])
    )
    found: list[HotLine] = []
    for name, key in KEY.items():
        asked = int(np.count_nonzero(wanted == key))
        met = looks.stack[(taken == key) & looks.is_known]
        lines = lines_met(name, names.stacks(met), asked, seconds.get(name))
        if name == "other":
            here = looks.where(taken == key)
            lines = lines or _likely_line(name, here, names, seconds.get(name), visits=steps)
            if not lines:
                here = looks.where(in_order[wanted == key])
                lines = _where_it_ends(name, here, names)
            lines = [replace(line, waits_share=_waits_share(line, here, names)) for line in lines]
        found += lines
    return found


def _lasting(keys: Int64, times: Int64, once: Coverage) -> Int64:
    """Returns the parts at some times, none of them where "other" comes but once."""
    comes_once = (keys == KEY["other"]) & (once.inside_ns(times, times + 1) > 0)
    return np.where(comes_once, -1, keys)


def _waits_share(line: HotLine, looks: Looks, names: LineNames) -> float:
    """Returns which share of the looks at a line's function met it waiting for somebody."""
    here = is_met_at(line, looks, names)
    return float(looks.waits[here].mean()) if here.any() else 0.0


def is_met_at(line: HotLine, looks: Looks, names: LineNames) -> Bool:
    """Returns which looks met a line's function, shape (n,)."""
    numbers, which = np.unique(looks.stack, return_inverse=True)
    asked = function_of(line.site, line.function)
    is_there = np.zeros(len(numbers), dtype=bool)
    for index, number in enumerate(numbers.tolist()):
        [frames] = names.stacks(np.array([number]))
        is_there[index] = bool(frames) and function_of(*frames[0]) == asked
    met: Bool = is_there[which]
    return met


def _likely_line(
    part: str, looks: Looks, names: LineNames, seconds: float | None, *, visits: int
) -> list[HotLine]:
    """Returns the line where most of a part seems to go, by looks that mostly came late.

    Code that lets go of the GIL by itself (NumPy, say) is met where it does so. What held the GIL
    until then, for twice as long as looks waited on average, may have been a line before: once at
    each visit of the line, which is not the case of a part within long stretches of it.
    """
    if len(looks) < MIN_LOOKS or not seconds:
        return []
    stacks = {number: names.stacks(np.array([number])) for number in set(looks.stack.tolist())}
    met = Counter[Stack]()
    waited_ns = Counter[tuple[str, str]]()
    for number, stack in stacks.items():
        [frames] = stack
        here = looks.stack == number
        met[frames] += int(np.count_nonzero(here))
        if frames:
            late = here & ~looks.is_known
            waited_ns[function_of(*frames[0])] += int(
                (looks.taken_ns - looks.wanted_ns)[late].sum()
            )
    lines = lines_met(part, met, len(looks), None)
    if not lines or lines[0].share < LIKELY_FROM_SHARE:
        return []
    line = lines[0]
    held_s = 2 * waited_ns[function_of(line.site, line.function)] / line.looks / 1e9
    if line.share - visits * held_s / seconds < LIKELY_INSIDE_SHARE:
        return []
    # Its line is where it let go, at one look after another.
    return [replace(line, is_likely=True, is_line_known=False)]


def _where_it_ends(part: str, looks: Looks, names: LineNames) -> list[HotLine]:
    """Returns the function in which most looks that were wanted in a part met its end.

    Python of a few milliseconds at a time is over when a look can be taken.

    Args:
        part: Ledger key.
        looks: That were wanted in it.
        names: Of what was seen.
    """
    lines = lines_met(part, names.stacks(looks.stack), len(looks), None)
    if not lines or lines[0].share < _ENDS_SHARE:
        return []
    return [replace(lines[0], is_likely=True, is_end=True, line_share=None)]


def lines_of_making(
    fetches: FetchTable, loader: int, looks_by: Mapping[tuple[int, int], tuple[Looks, LineNames]]
) -> list[HotLine]:
    """Returns the lines that the making of one loader's batches goes to.

    Args:
        fetches: Of all loaders.
        loader: Its id.
        looks_by: Looks, and the names of what was seen, by pid and thread.
    """
    met = looks_at_making(fetches, loader, looks_by)
    seconds = float(fetches.wall_ns[fetches.loader == loader].sum() / 1e9)
    return lines_met(MAKING, met.stacks, met.asked, seconds)


@dataclass(frozen=True, slots=True)
class LooksAtMaking:
    """Looks at those that make a loader's batches.

    Attributes:
        asked: How many were wanted.
        stacks: That those met which came in time.
        distinct: How many of `stacks` were taken, as looks.py's `distinct` counts them.
    """

    asked: int
    stacks: Counter[Stack]
    distinct: int


def looks_at_making(
    fetches: FetchTable, loader: int, looks_by: Mapping[tuple[int, int], tuple[Looks, LineNames]]
) -> LooksAtMaking:
    """Returns what looks met while one loader's batches were made.

    Args:
        fetches, loader, looks_by: As `lines_of_making` has them.
    """
    asked, taken, stacks = 0, 0, Counter[Stack]()
    is_mine = fetches.loader == loader
    for (pid, thread), (looks, names) in looks_by.items():
        chosen = is_mine & (fetches.pid == pid) & (fetches.thread == thread)
        start = fetches.start_ns[chosen]
        if len(start) == 0:
            continue
        in_order = np.argsort(start, kind="stable")
        start, end = start[in_order], (start + fetches.wall_ns[chosen])[in_order]

        def is_fetching(times: Int64, start: Int64 = start, end: Int64 = end) -> Bool:
            place = np.searchsorted(start, times, side="right") - 1
            found: Bool = (place >= 0) & (times < end[np.maximum(place, 0)])
            return found

        asked += int(np.count_nonzero(is_fetching(looks.wanted_ns)))
        is_met = is_fetching(looks.taken_ns)
        stacks += names.stacks(looks.stack[is_met & looks.is_known], of_dataset=True)
        taken += distinct(looks.where(is_met & looks.is_known))
    return LooksAtMaking(asked, stacks, taken)


def lines_met(
    part: str, stacks: Counter[Stack], asked: int, seconds: float | None
) -> list[HotLine]:
    """Counts the functions that looks met, each by the line of it that was met most.

    Args:
        part: Ledger key, or another name of what the looks were at.
        stacks: That they met.
        asked: How many looks were wanted; none is returned where too few of them could be taken.
        seconds: Of the part, None where that is not known.
    """
    known = stacks.total()
    if asked < MIN_LOOKS or known < _MIN_KNOWN_SHARE * asked:
        return []
    is_at_least = known < _FAIR_KNOWN_SHARE * asked
    counted = asked if is_at_least else known
    by_function: dict[tuple[str, str], Counter[str]] = {}
    callers: dict[tuple[str, str], Counter[tuple[str, ...]]] = {}
    for frames, count in stacks.items():
        if not frames or frames[0][0] == UNKNOWN_SITE:
            continue
        (site, function), *outer = frames
        key = function_of(site, function)
        by_function.setdefault(key, Counter())[site] += count
        callers.setdefault(key, Counter())[tuple(of for of, _ in outer)] += count
    found = []
    for key, lines in by_function.items():
        met = lines.total()
        share = met / counted
        if share >= SHOWN_FROM_SHARE:
            (site, here), *others = lines.most_common(2)
            [(called_from, _)] = callers[key].most_common(1)
            found.append(
                HotLine(
                    part=part,
                    site=site,
                    function=key[1],
                    called_from=list(called_from),
                    looks=met,
                    share=share,
                    seconds=None if seconds is None else share * seconds,
                    is_at_least=is_at_least,
                    line_share=here / counted,
                    is_line_known=is_more(here, sum(count for _, count in others)),
                )
            )
    return sorted(found, key=lambda line: -line.share)[:_SHOWN_LINES]


def hottest(
    lines: Sequence[HotLine], part: str, leaving_out: Collection[str] = ()
) -> HotLine | None:
    """Returns the line that most of a part goes to, of those that are not left out."""
    told = (line for line in lines if line.part == part and line.site not in leaving_out)
    return next(told, None)
