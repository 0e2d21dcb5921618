"""Student's t distribution, without scipy."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

_POINTS: Final = 20_001
# From here on it cannot be told from the normal distribution.
_MANY: Final = 1000.0


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
