"""Batches of streams: of what size they are, and how many an epoch has.

Where workers share a stream out, each one's last batch is not full: an epoch has more of them then,
and a step is less work.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Final

# Batches are of another size that differ by more than this share, on average: what they take to
# train on does so by as much at the least.
_OTHER_SIZE: Final = 0.1
# And by so many standard errors: chance does that in one of a hundred cases.
_CERTAIN: Final = 2.6
# Nobody minds a step that is so much less work, as of last batches that are not full.
_SAME_EPOCH: Final = 0.02

# Epochs of a stream differ by a batch of each worker, whose last one is not full or is left out.
# Beyond that by less than this share where files are not shared out evenly, or samples are left out
# at random. Workers that each yield all of it make an epoch at least twice as long.
_OTHER_EPOCH: Final = 0.1


def are_other_sizes(means: tuple[float, float], errors: tuple[float, float]) -> bool:
    """Whether batches are of another size, and not by chance."""
    apart = abs(means[0] - means[1])
    is_chance = apart <= _CERTAIN * math.hypot(*errors)
    return not is_chance and apart > _OTHER_SIZE * max(means)


def are_as_many(base: Sequence[Sequence[int]], other: Sequence[Sequence[int]]) -> bool:
    """Whether the epochs that all runs came to their end of have as many batches on both sides.

    Args:
        base, other: Batches of the epochs that ended, in order, run by run; each run ended one at
            the least.
    """
    common = range(min(map(len, (*base, *other))))
    means = [fmean(_mean_of(batches, common) for batches in side) for side in (base, other)]
    return max(means) <= (1 + _SAME_EPOCH) * min(means)


def exceed(long: Sequence[Sequence[int]], usual: Sequence[Sequence[int]], workers: int) -> bool:
    """Whether all epochs have more batches than the usual ones, by more than sharing out explains.

    Args:
        long, usual: Batches, run by run.
        workers: The most that prepared them.
    """
    long = [epochs for epochs in long if epochs]
    if not long or not usual:
        return False
    return all(
        min(epochs[k] for epochs in long)
        > (1 + _OTHER_EPOCH) * max(epochs[k] for epochs in usual) + workers
        for k in range(min(map(len, (*long, *usual))))
    )


def _mean_of(batches: Sequence[int], common: range) -> float:
    return fmean(batches[k] for k in common)
