"""The user's lines that a training step spends most time in, by stack samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from trainprof.analysis.run.place_names import UNKNOWN_SITE
from trainprof.analysis.stacks.lines_by_part import LooksAtMaking
from trainprof.analysis.stacks.samples import (
    MIN_LOOKS,
    LineNames,
    Looks,
    PartsOfLoop,
    Stack,
    distinct,
    least_share,
)
from trainprof.analysis.summary.code import HottestLine
from trainprof.analysis.timeline.ledger import KEY

FETCH: Final = "fetch"
TRAINING_THREAD: Final = "training"
WORKER_THREAD: Final = "worker"
_MOST_LINES: Final = 20
# A step, in the middle of the interval: less is noise on the page.
_SHOWN_FROM_SHARE: Final = 0.01


@dataclass(frozen=True, slots=True)
class WorkerFetches:
    """What the workers of a training loader were seen at while they prepared batches.

    Attributes:
        samples: Of their stacks.
        busy_share: Of training, for which each of them prepared batches, on average.
    """

    samples: LooksAtMaking
    busy_share: float


def hottest_lines(
    looks: Looks,
    parts: PartsOfLoop,
    step_s: Mapping[str, float],
    names: LineNames,
    fetches: Iterable[WorkerFetches],
    *,
    settled_ns: int,
) -> list[HottestLine]:
    """Returns the lines with most self time, the largest share first.

    The innermost frame of the user's counts: torch's operators, and other packages, count for the
    line that called them; backward for the line of its call, but for Python hooks in it.

    Args:
        looks: At the training thread.
        parts: Its.
        step_s: Seconds of a steady step by ledger key.
        names: Of what was seen.
        fetches: Of the workers, by loader.
        settled_ns: When warm-up was over.
    """
    looks = looks.where(looks.wanted_ns >= settled_ns)
    wanted, taken = parts.at(looks.wanted_ns), parts.at(looks.taken_ns)
    asked = {key: int(np.count_nonzero(wanted == KEY[key])) for key in step_s}
    whole_s = sum(step_s.values())
    found: list[HottestLine] = []
    for part, seconds in _with_device_waits(step_s, asked).items():
        if seconds > 0:
            here = looks.where((taken == KEY[part]) & looks.is_known)
            found += lines_of_part(
                names.stacks(here.stack),
                asked[part],
                part,
                TRAINING_THREAD,
                seconds / whole_s,
                independent=distinct(here),
            )
    for of in fetches:
        met = of.samples
        found += lines_of_part(
            met.stacks, met.asked, FETCH, WORKER_THREAD, of.busy_share, independent=met.distinct
        )
    return sorted(found, key=lambda line: -sum(line.share))[:_MOST_LINES]


def _with_device_waits(step_s: Mapping[str, float], asked: Mapping[str, int]) -> dict[str, float]:
    """Returns a step's seconds with waits for a device in the calls that they were part of."""
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
        stacks: Seen in it.
        asked: How many samples were due: those that came too late may have been anywhere in it.
        part, thread: Where that was.
        of_step: What share of a step the part is.
        independent: How many stacks were taken: one stands for all samples due while it waited.
    """
    known = stacks.total()
    total = max(asked, known)
    if known < MIN_LOOKS:
        return []
    effective = total * independent / known
    counted = Counter[tuple[str, str]]()
    for frames, count in stacks.items():
        if frames and frames[0][0] != UNKNOWN_SITE:
            counted[frames[0]] += count
    lines = []
    for (site, function), count in counted.items():
        low = least_share(count / total, effective)
        high = 1 - least_share((known - count) / total, effective)
        if (low + high) / 2 * of_step >= _SHOWN_FROM_SHARE:
            share = [low * of_step, high * of_step]
            lines.append(HottestLine(site, function, part, thread, share, count))
    return lines
