"""Batches of streams: of what size they are, and how many an epoch has.

Where workers share a stream, each one's last batch is not full: an epoch has more, smaller ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Final

# Mean sizes that differ by more than this share are other sizes.
_OTHER_SIZE: Final = 0.1
# And by this many standard errors: chance does that in one of a hundred cases.
_CERTAIN: Final = 2.6
# Last batches that are not full make no more of a difference.
_SAME_EPOCH: Final = 0.02
# Beyond a last batch of each worker, epochs of a stream differ by less where files or samples are
# shared unevenly. Workers that each yield all of it make an epoch at least twice as long.
_OTHER_EPOCH: Final = 0.1


def are_other_sizes(means: tuple[float, float], errors: tuple[float, float]) -> bool:
    """Whether batches are of another size, and not by chance."""
    apart = abs(means[0] - means[1])
    is_chance = apart <= _CERTAIN * math.hypot(*errors)
    return not is_chance and apart > _OTHER_SIZE * max(means)


def are_as_many(base: Sequence[Sequence[int]], other: Sequence[Sequence[int]]) -> bool:
    """Whether the epochs that all runs ended have as many batches on both sides.

    Args:
        base, other: Batches of the epochs that ended, in order, run by run, at least one each.
    """
    common = min(map(len, (*base, *other)))
    means = [fmean(fmean(batches[:common]) for batches in side) for side in (base, other)]
    return max(means) <= (1 + _SAME_EPOCH) * min(means)


def exceed(long: Sequence[Sequence[int]], usual: Sequence[Sequence[int]], workers: int) -> bool:
    """Whether all epochs have more batches than usual, by more than `workers` sharing explains."""
    long = [epochs for epochs in long if epochs]
    if not long or not usual:
        return False
    return all(
        min(epochs[k] for epochs in long)
        > (1 + _OTHER_EPOCH) * max(epochs[k] for epochs in usual) + workers
        for k in range(min(map(len, (*long, *usual))))
    )
