"""What the steps of one run tell of their own noise: steps that follow one another are alike.

Neighbouring steps share what slows them (clocks, caches, neighbours on the machine), so that n of
them tell far less than n independent ones would. All intervals here come from a circular block
bootstrap: stretches of steps are drawn, not single ones.

Source:
    Politis and Romano, A Circular Block-Resampling Procedure for Stationary Data, 1992.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

DRAWS: Final = 2000
CONFIDENCE: Final = 0.95
_FEWEST_BLOCKS: Final = 6
# Steps so little alike count as independent.
_UNLIKE: Final = 0.1
_SEED: Final = 20_261_121  # the same runs give the same interval
NORMAL: Final = 1.959964
# Of a half's steps: so many may have met something that others did not.
_SLOWEST_SHARE: Final = 0.1
# Of a step that would remain without its largest part.
_LEAST_REST: Final = 0.01


def block_length(steps: Floats, *, cycle: int = 1) -> int:
    """Returns how many steps in a row are drawn together.

    Three times as many as it takes until two steps are unlike, at least the square root of their
    number; and never so many that fewer than six blocks remain. All that in whole cycles, of which
    there are two blocks at least: parts of them are as unlike as one step and another.

    Args:
        steps: Durations in order of time, shape (n,).
        cycle: Steps after which waits repeat, as loader workers take turns.
    """
    count = len(steps)
    cycle = cycle if 2 * cycle <= count else 1
    longest = max(count // _FEWEST_BLOCKS, 1)
    length = max(3 * _alike_for(steps, longest), math.ceil(math.sqrt(count)))
    cycles = min(math.ceil(length / cycle), longest // cycle)
    return max(cycles, 1) * cycle


def _alike_for(steps: Floats, longest: int) -> int:
    """Returns the first lag with an autocorrelation below `_UNLIKE`, `longest` if none before."""
    centred = steps - steps.mean()
    power = float(centred @ centred)
    if power <= 0:
        return 1
    size = 1 << (2 * len(steps) - 1).bit_length()
    spectrum = np.fft.rfft(centred, size)
    correlation = np.fft.irfft(spectrum * spectrum.conj(), size)[1 : longest + 1] / power
    unlike = np.flatnonzero(correlation < _UNLIKE)
    return int(unlike[0]) + 1 if len(unlike) else longest


def standard_error(steps: Floats, *, cycle: int = 1) -> float:
    """Returns that of the mean step, by draws of whole blocks of steps.

    So wide that 1.96 of it hold 95 %, few blocks taken into account.

    Args:
        steps: Durations in order of time, shape (n,), n > 0.
    """
    length = block_length(steps, cycle=cycle)
    blocks = max(len(steps) // length, 1)
    starts = np.random.default_rng(_SEED).integers(0, len(steps), (DRAWS, blocks))
    sums = np.concatenate([[0.0], np.cumsum(np.concatenate([steps, steps[:length]]))])
    means = (sums[starts + length] - sums[starts]).sum(axis=1) / (blocks * length)
    # Few blocks vary less in their draws than the mean does.
    few = max(blocks - 1, 1)
    widening = t_quantile((1 + CONFIDENCE) / 2, few) / NORMAL * math.sqrt(blocks / few)
    return float(means.std()) * widening


def half_split_noise(steps: Floats) -> float:
    """Returns by how much the two halves of a run differ, as a share of their mean.

    The slowest steps of each half are left out: a few samples or checkpoints that take long are no
    noise, and they fall into one half or the other by chance.

    Args:
        steps: Durations in order of time, shape (n,).
    """
    if len(steps) < 2:
        return 0.0
    first, second = (_mean_of_most(half) for half in np.array_split(steps, 2))
    middle = (first + second) / 2
    return abs(first - second) / middle if middle > 0 else 0.0


def half_split_noise_without(steps: Floats, part: Floats) -> float:
    """Returns by how much the halves differ in what steps would gain without a part of them.

    A machine that gets slower in the midst of a run slows the part and the rest alike: that says
    nothing against the part.

    Args:
        steps: Durations in order of time, shape (n,).
        part: Of each, what it is about, shape (n,).
    """
    if len(steps) < 2:
        return 0.0
    halves = zip(np.array_split(steps, 2), np.array_split(part, 2), strict=True)
    first, second = (_factor_without(*half) for half in halves)
    return abs(first - second) / ((first + second) / 2)


def _factor_without(steps: Floats, part: Floats) -> float:
    most = np.argsort(steps, kind="stable")[: _count_of_most(steps)]
    whole = float(steps[most].sum())
    rest = max(whole - float(part[most].sum()), whole * _LEAST_REST)
    return whole / rest if rest > 0 else 1.0


def _mean_of_most(steps: Floats) -> float:
    return float(np.sort(steps)[: _count_of_most(steps)].mean())


def _count_of_most(steps: Floats) -> int:
    return max(int(len(steps) * (1 - _SLOWEST_SHARE)), 1)


def half_split_drift(steps: Floats, *, cycle: int = 1) -> float:
    """Returns by what share the two halves of a run differ, 0 where their own noise explains it.

    Args:
        steps: Durations in order of time, shape (n,), n > 1.
    """
    half = len(steps) // 2
    return drift_between(steps[:half], steps[half:], cycle=cycle)


def drift_between(first: Floats, second: Floats, *, cycle: int = 1) -> float:
    """Returns by what share two stretches of a run differ, 0 where their own noise explains it.

    Args:
        first, second: Durations in order of time, shapes (n,) and (m,), n > 0 and m > 0.
    """
    stretches = first, second
    means = [float(stretch.mean()) for stretch in stretches]
    if min(means) <= 0:
        return 0.0
    errors = [standard_error(part, cycle=cycle) / part.mean() for part in stretches]
    apart = abs(math.log(means[1] / means[0]))
    return apart if apart > NORMAL * math.hypot(*errors) else 0.0


_POINTS: Final = 20_001
# From here on it cannot be told from the normal distribution.
_MANY: Final = 1000.0


@cache
def t_quantile(probability: float, degrees: float) -> float:
    """Returns the quantile of Student's t.

    Args:
        probability: Above 0.5 and below 1.
        degrees: Degrees of freedom, from 1 on, not always whole.

    Source:
        With t = sqrt(degrees) tan(a) its density is cos(a) ** (degrees - 1), up to a constant.
    """
    degrees = min(degrees, _MANY)
    angles = np.linspace(0.0, math.pi / 2, _POINTS)
    density = np.cos(angles) ** (degrees - 1)
    areas = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    angle = float(np.interp((2 * probability - 1) * areas[-1], areas, angles))
    return math.sqrt(degrees) * math.tan(angle)
