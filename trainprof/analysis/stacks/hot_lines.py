"""The slowest lines by stack samples: of each part, of fetches, of a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from trainprof.analysis.loading.fetches import FetchTable
from trainprof.analysis.stacks.samples import (
    MIN_SAMPLES,
    LineNames,
    PartsOfLoop,
    Stack,
    StackSamples,
    distinct,
    function_of,
    is_more,
    least_share,
)
from trainprof.analysis.summary.code import PREPARATION, HotLine, HottestLine
from trainprof.analysis.timeline.events import Bool, Int64
from trainprof.analysis.timeline.intervals import Coverage
from trainprof.analysis.timeline.ledger import KEY
from trainprof.record.names import UNKNOWN_SITE

FETCH: Final = "fetch"
TRAINING_THREAD: Final = "training"
WORKER_THREAD: Final = "worker"
_MOST_LINES: Final = 20
# Of a step, in the middle of the interval: less is noise.
_SHOWN_FROM_SHARE: Final = 0.01
# Of the wanted samples: with fewer taken they show only a line's lower bound, or nothing.
_FAIR_KNOWN_SHARE: Final = 0.9
_MIN_KNOWN_SHARE: Final = 1 / 3
SHOWN_FROM_SHARE: Final = 0.05
# With even fewer taken in time, a line is likely if most of them met it, and met it well inside.
LIKELY_FROM_SHARE: Final = 0.5
LIKELY_INSIDE_SHARE: Final = 1 / 3
_SHOWN_LINES: Final = 5
_OTHER_LINES: Final = 3
# Of the samples wanted in a part: taken in one function or below it.
_ENDS_SHARE: Final = 0.85


@dataclass(frozen=True, slots=True)
class WorkerFetches:
    """Samples of a training loader's workers while they prepared batches.

    Attributes:
        busy_share: Of training, in which a worker prepared batches, on average.
    """

    samples: FetchSamples
    busy_share: float


def hottest_lines(
    samples: StackSamples,
    parts: PartsOfLoop,
    step_s: Mapping[str, float],
    names: LineNames,
    fetches: Iterable[WorkerFetches],
    *,
    settled_ns: int,
) -> list[HottestLine]:
    """Returns the lines with most self time, the largest share first.

    The innermost frame of the user's counts: torch and other packages count for the line that
    called them, backward for the line of its call, except for Python hooks in it.

    Args:
        step_s: Seconds of a steady step by ledger key.
        settled_ns: When warm-up ended.
    """
    samples = samples.where(samples.wanted_ns >= settled_ns)
    taken, wanted = parts.keys_of(samples)
    asked = {key: int(np.count_nonzero(wanted == KEY[key])) for key in step_s}
    whole_s = sum(step_s.values())
    lines: list[HottestLine] = []
    for part, seconds in _with_device_waits(step_s, asked).items():
        if seconds > 0:
            here = samples.where((taken == KEY[part]) & samples.is_known)
            lines += lines_of_part(
                names.stacks(here.stack),
                asked[part],
                part,
                TRAINING_THREAD,
                seconds / whole_s,
                independent=distinct(here),
            )
    for worker in fetches:
        met = worker.samples
        lines += lines_of_part(
            met.stacks, met.asked, FETCH, WORKER_THREAD, worker.busy_share, independent=met.distinct
        )
    return sorted(lines, key=lambda line: -sum(line.share))[:_MOST_LINES]


def _with_device_waits(step_s: Mapping[str, float], asked: Mapping[str, int]) -> dict[str, float]:
    """Returns a step's seconds with waits for a device counted for the calls that waited."""
    waiting = ("sync", "transfer")
    together = sum(step_s.get(key, 0.0) for key in (*waiting, "device_wait"))
    samples = sum(asked.get(key, 0) for key in waiting)
    if not samples:
        return dict(step_s)
    return {**step_s, "device_wait": 0.0} | {
        key: together * asked.get(key, 0) / samples for key in waiting
    }


def lines_of_part(
    stacks: Counter[Stack],
    asked: int,
    part: str,
    thread: str,
    of_step: float,
    *,
    independent: int,
) -> list[HottestLine]:
    """Returns the lines of one part, with their shares of a step.

    Args:
        asked: Number of samples due: late ones may have been anywhere in it.
        of_step: The part's share of a step.
        independent: Number of stacks taken: a late one stands for all samples due meantime.
    """
    known = stacks.total()
    total = max(asked, known)
    if known < MIN_SAMPLES:
        return []
    effective = total * independent / known
    counted = Counter[tuple[str, str]]()
    for stack, count in stacks.items():
        if stack.frames and stack.frames[0][0] != UNKNOWN_SITE:
            counted[stack.frames[0]] += count
    lines = []
    for (site, function), count in counted.items():
        low = least_share(count / total, effective)
        high = 1 - least_share((known - count) / total, effective)
        if (low + high) / 2 * of_step >= _SHOWN_FROM_SHARE:
            share = [low * of_step, high * of_step]
            lines.append(HottestLine(site, function, part, thread, share, count))
    return lines


def lines_of_training(
    samples: StackSamples,
    parts: PartsOfLoop,
    seconds: Mapping[str, float],
    names: LineNames,
    *,
    steps: int,
    once: Coverage,
) -> list[HotLine]:
    """Returns the slowest lines of the training loop, part by part.

    Args:
        once: When code of "other" ran that happens once: it is left out.
    """
    in_order = np.argsort(samples.wanted_ns, kind="stable")
    taken, wanted = parts.keys_of(samples)
    taken = _lasting(taken, samples.taken_ns, once)
    wanted = _lasting(wanted, samples.wanted_ns, once)[in_order]
    shown: list[HotLine] = []
    for name, key in KEY.items():
        asked = int(np.count_nonzero(wanted == key))
        met = samples.stack[(taken == key) & samples.is_known]
        lines = lines_met(name, names.stacks(met), asked, seconds.get(name))
        if name == "other":
            here = samples.where(taken == key)
            lines = lines or _likely_line(name, here, names, seconds.get(name), visits=steps)
            if not lines:
                here = samples.where(in_order[wanted == key])
                lines = _where_it_ends(name, names.stacks(here.stack))
            lines = [replace(line, waits_share=_waits_share(line, here, names)) for line in lines]
        shown += lines
    return shown


def _lasting(keys: Int64, times: Int64, once: Coverage) -> Int64:
    """Returns the parts at some times, -1 for code of "other" that happens once."""
    comes_once = (keys == KEY["other"]) & (once.inside_ns(times, times + 1) > 0)
    return np.where(comes_once, -1, keys)


def _waits_share(line: HotLine, samples: StackSamples, names: LineNames) -> float:
    """Returns the share of samples at a line's function that met it waiting."""
    here = is_met_at(line, samples, names)
    return float(samples.waits[here].mean()) if here.any() else 0.0


def is_met_at(line: HotLine, samples: StackSamples, names: LineNames) -> Bool:
    """Returns which samples met a line's function, shape (n,)."""
    numbers, which = np.unique(samples.stack, return_inverse=True)
    asked = function_of(line.site, line.function)
    is_there = np.zeros(len(numbers), dtype=bool)
    for index, number in enumerate(numbers.tolist()):
        frames = names.frames(number)
        is_there[index] = bool(frames) and function_of(*frames[0]) == asked
    met: Bool = is_there[which]
    return met


def _likely_line(
    part: str, samples: StackSamples, names: LineNames, seconds: float | None, *, visits: int
) -> list[HotLine]:
    """Returns the line that seems to take most of a part, by samples that mostly came late.

    Samples meet code that releases the GIL itself, such as NumPy, where it does so. An earlier line
    may have held the GIL, for twice the average wait of samples, once per visit of the line. Such
    time is subtracted.
    """
    if len(samples) < MIN_SAMPLES or not seconds:
        return []
    stacks = {number: names.stacks(np.array([number])) for number in set(samples.stack.tolist())}
    met = Counter[Stack]()
    waited_ns = Counter[tuple[str, str]]()
    for number, [stack] in stacks.items():
        here = samples.stack == number
        met[stack] += int(np.count_nonzero(here))
        if stack.frames:
            late = here & ~samples.is_known
            waited_ns[function_of(*stack.frames[0])] += int(
                (samples.taken_ns - samples.wanted_ns)[late].sum()
            )
    lines = lines_met(part, met, len(samples), None)
    if not lines or lines[0].share < LIKELY_FROM_SHARE:
        return []
    line = lines[0]
    held_s = 2 * waited_ns[function_of(line.site, line.function)] / line.samples / 1e9
    if line.share - visits * held_s / seconds < LIKELY_INSIDE_SHARE:
        return []
    # Its line is where it released the GIL, in each sample.
    return [replace(line, is_likely=True, is_line_known=False)]


def _where_it_ends(part: str, stacks: Counter[Stack]) -> list[HotLine]:
    """Returns the innermost function that nearly all samples of a part met, or one below it.

    Late samples meet the next code that releases the GIL, such as reading a file. The slow code is
    what nearly all of them have in common.
    """
    met, depth = Counter[tuple[str, str]](), dict[tuple[str, str], int]()
    functions_of = {stack: [function_of(*frame) for frame in stack.frames] for stack in stacks}
    for stack, functions in functions_of.items():
        for function in {*functions}:
            met[function] += stacks[stack]
            outer = len(functions) - functions.index(function)
            depth[function] = max(depth.get(function, 0), outer)
    common = [x for x, count in met.items() if count >= _ENDS_SHARE * stacks.total()]
    if not common:
        return []
    within, cut = max(common, key=lambda x: depth[x]), Counter[Stack]()
    for stack, functions in functions_of.items():
        if within in functions:
            cut[replace(stack, frames=stack.frames[functions.index(within) :])] += stacks[stack]
    lines = lines_met(part, cut, stacks.total(), None)
    return [replace(x, is_likely=True, is_end=True, line_share=None) for x in lines[:1]]


def fetch_lines(
    fetches: FetchTable,
    loader: int,
    samples_by_thread: Mapping[tuple[int, int], tuple[StackSamples, LineNames]],
) -> tuple[list[HotLine], str | None]:
    """Returns the slowest lines in the preparation of a loader's batches.

    Also the library function that has most of it, without a line of the user's above.
    """
    met = fetch_samples(fetches, loader, samples_by_thread)
    by_library = Counter[tuple[str, ...]]()
    for stack, count in met.stacks.items():
        by_library[() if stack.frames else stack.calls] += count
    seconds = float(fetches.wall_ns[fetches.loader == loader].sum() / 1e9)
    lines = lines_met(PREPARATION, met.stacks, met.asked, seconds)
    lines = lines or _where_it_ends(PREPARATION, met.stacks + met.late)
    return lines, _library_call(by_library)


@dataclass(frozen=True, slots=True)
class FetchSamples:
    """Samples of a loader's batch preparation: the number wanted, and those in time.

    Attributes:
        late: Those that met the end of code that held the GIL at the wanted moment.
        distinct: Number of `stacks` taken, as `distinct` counts them.
    """

    asked: int
    stacks: Counter[Stack]
    late: Counter[Stack]
    distinct: int


def fetch_samples(
    fetches: FetchTable,
    loader: int,
    samples_by_thread: Mapping[tuple[int, int], tuple[StackSamples, LineNames]],
) -> FetchSamples:
    asked, taken, stacks, late = 0, 0, Counter[Stack](), Counter[Stack]()
    is_mine = fetches.loader == loader
    for (pid, thread), (samples, names) in samples_by_thread.items():
        chosen = is_mine & (fetches.pid == pid) & (fetches.thread == thread)
        start = fetches.start_ns[chosen]
        if len(start) == 0:
            continue
        in_order = np.argsort(start, kind="stable")
        start, end = start[in_order], (start + fetches.wall_ns[chosen])[in_order]

        def is_fetching(times: Int64, start: Int64 = start, end: Int64 = end) -> Bool:
            place = np.searchsorted(start, times, side="right") - 1
            inside: Bool = (place >= 0) & (times < end[np.maximum(place, 0)])
            return inside

        asked += int(np.count_nonzero(is_fetching(samples.wanted_ns)))
        is_met = is_fetching(samples.taken_ns)
        stacks += names.stacks(samples.stack[is_met & samples.is_known], of_dataset=True)
        late += names.stacks(samples.stack[is_met & ~samples.is_known], of_dataset=True)
        taken += distinct(samples.where(is_met & samples.is_known))
    return FetchSamples(asked, stacks, late, taken)


def lines_met(
    part: str, stacks: Counter[Stack], asked: int, seconds: float | None
) -> list[HotLine]:
    """Counts the functions that samples met, each with its most frequent line.

    Args:
        part: Ledger key, or another name of what was sampled.
        asked: Number of samples wanted; no line is returned if too few were taken.
    """
    known = stacks.total()
    if asked < MIN_SAMPLES or known < _MIN_KNOWN_SHARE * asked:
        return []
    is_at_least = known < _FAIR_KNOWN_SHARE * asked
    counted = asked if is_at_least else known
    by_function: dict[tuple[str, str], Counter[str]] = {}
    callers: dict[tuple[str, str], Counter[tuple[str, ...]]] = {}
    calls: dict[str, Counter[tuple[str, ...]]] = {}
    for stack, count in stacks.items():
        if not stack.frames or stack.frames[0][0] == UNKNOWN_SITE:
            continue
        (site, function), *outer = stack.frames
        key = function_of(site, function)
        by_function.setdefault(key, Counter())[site] += count
        callers.setdefault(key, Counter())[tuple(frame for frame, _ in outer)] += count
        calls.setdefault(site, Counter())[stack.calls] += count
    shown = []
    for key, lines in by_function.items():
        met = lines.total()
        share = met / counted
        if share >= SHOWN_FROM_SHARE:
            (site, here), *others = lines.most_common()
            is_line_known = is_more(here, max((count for _, count in others), default=0))
            of_all = sum((calls[line] for line in lines), Counter[tuple[str, ...]]())
            [(called_from, _)] = callers[key].most_common(1)
            shown.append(
                HotLine(
                    part=part,
                    site=site,
                    function=key[1],
                    called_from=list(called_from),
                    samples=met,
                    share=share,
                    seconds=None if seconds is None else share * seconds,
                    is_at_least=is_at_least,
                    line_share=here / counted,
                    is_line_known=is_line_known,
                    other_lines={
                        other: count / counted
                        for other, count in others[:_OTHER_LINES]
                        if count >= SHOWN_FROM_SHARE * known
                    },
                    library_call=_library_call(calls[site] if is_line_known else of_all),
                )
            )
    return sorted(shown, key=lambda line: -line.share)[:_SHOWN_LINES]


def _library_call(calls: Counter[tuple[str, ...]]) -> str | None:
    """Returns the innermost library function that most samples were in; None with too few.

    Args:
        calls: From library to library, outermost first, as a `Stack` has them.
    """
    total, met, depth = calls.total(), Counter[str](), Counter[str]()
    for entered, count in calls.items():
        for at, call in enumerate(dict.fromkeys(entered)):
            met[call] += count
            depth[call] = max(depth[call], at)
    most = [call for call, count in met.items() if is_more(count, total - count)]
    if total < MIN_SAMPLES or not most:
        return None
    return max(most, key=lambda call: depth[call])
