"""The noise of one run's steps, by a circular block bootstrap: neighbouring steps are alike.

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
# Steps with a smaller autocorrelation count as independent.
_UNLIKE: Final = 0.1
_SEED: Final = 20_261_121  # the same runs give the same interval
NORMAL: Final = 1.959964
# Of a half's steps: this share may be unusual.
_SLOWEST_SHARE: Final = 0.1
# The least share of a step that remains without its largest part.
_LEAST_REST: Final = 0.01
# Of the integration of Student's density.
_POINTS: Final = 20_001
# Of degrees of freedom: from here on it is the normal distribution.
_MANY: Final = 1000.0


def block_length(steps: Floats, *, cycle: int = 1) -> int:
    """Returns the number of consecutive steps in a block.

    Three times the lag from which on steps are independent, at least the square root of their
    number, at most a sixth of it. In whole cycles, with room for two blocks.

    Args:
        steps: Durations in order of time.
        cycle: Steps after which waits repeat, as loader workers take turns.
    """
    count = len(steps)
    cycle = cycle if 2 * cycle <= count else 1
    longest = max(count // _FEWEST_BLOCKS, 1)
    length = max(3 * _alike_for(steps, longest), math.ceil(math.sqrt(count)))
    cycles = min(math.ceil(length / cycle), longest // cycle)
    return max(cycles, 1) * cycle


def _alike_for(steps: Floats, longest: int) -> int:
    """Returns the first lag with an autocorrelation below `_UNLIKE`, at most `longest`."""
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
    """Returns the standard error of the mean step, scaled to a normal 95 %; needs steps."""
    length = block_length(steps, cycle=cycle)
    blocks = max(len(steps) // length, 1)
    starts = np.random.default_rng(_SEED).integers(0, len(steps), (DRAWS, blocks))
    sums = np.concatenate([[0.0], np.cumsum(np.concatenate([steps, steps[:length]]))])
    means = (sums[starts + length] - sums[starts]).sum(axis=1) / (blocks * length)
    # With few blocks, draws vary less than the mean.
    few = max(blocks - 1, 1)
    widening = t_quantile((1 + CONFIDENCE) / 2, few) / NORMAL * math.sqrt(blocks / few)
    return float(means.std()) * widening


def half_split_noise(steps: Floats) -> float:
    """Returns the difference between the two halves of a run, as a share of their mean.

    Without the slowest steps of each half: slow samples and checkpoints are not noise.
    """
    if len(steps) < 2:
        return 0.0
    first, second = (_mean_of_most(half) for half in np.array_split(steps, 2))
    middle = (first + second) / 2
    return abs(first - second) / middle if middle > 0 else 0.0


def half_split_noise_without(steps: Floats, part: Floats) -> float:
    """Returns the difference between the halves in the gain of steps without a part.

    A machine that gets slower within a run slows the part and the rest alike.
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


def share_half_width(part: Floats, steps: Floats, *, cycle: int = 1) -> float:
    """Returns the half width of the 95 % interval of a part's share of steps.

    Source:
        The linearised ratio of two means (Cochran, Sampling Techniques, 1977, chapter 6).
    """
    mean = float(steps.mean())
    share = float(part.mean()) / mean
    return NORMAL * standard_error(part - share * steps, cycle=cycle) / mean


def pace_half_width(steps: Floats, *, cycle: int = 1) -> float:
    """Returns the half width of the 95 % interval of the mean step, as a share of it."""
    mean = float(steps.mean())
    return NORMAL * standard_error(steps, cycle=cycle) / mean if mean > 0 else 1.0


def half_split_drift(steps: Floats, *, cycle: int = 1) -> float:
    """Returns the share by which a run's halves differ, 0 where noise explains it."""
    half = len(steps) // 2
    return drift_between(steps[:half], steps[half:], cycle=cycle)


def drift_between(first: Floats, second: Floats, *, cycle: int = 1) -> float:
    """Returns the share by which two stretches of a run differ, 0 where noise explains it."""
    stretches = first, second
    means = [float(stretch.mean()) for stretch in stretches]
    if min(means) <= 0:
        return 0.0
    errors = [standard_error(part, cycle=cycle) / part.mean() for part in stretches]
    apart = abs(math.log(means[1] / means[0]))
    return apart if apart > NORMAL * math.hypot(*errors) else 0.0


@cache
def t_quantile(probability: float, degrees: float) -> float:
    """Returns the quantile of Student's t for a probability above 0.5.

    Source:
        With t = sqrt(degrees) tan(a) its density is cos(a) ** (degrees - 1), up to a constant.
    """
    degrees = min(degrees, _MANY)
    angles = np.linspace(0.0, math.pi / 2, _POINTS)
    density = np.cos(angles) ** (degrees - 1)
    areas = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    angle = float(np.interp((2 * probability - 1) * areas[-1], areas, angles))
    return math.sqrt(degrees) * math.tan(angle)
