"""Which steps save checkpoints, where few of them do: such are no noise of the others."""

from __future__ import annotations

from typing import Final

import numpy as np

from trainprof.analysis.statistics.step_noise import Floats
from trainprof.analysis.timeline.events import Bool, Int64

CHECKPOINT: Final = "checkpoint"
# What so many of the steps do is a part of each. Saving at each second or third step lies far
# below, at each step above: no run is taken for one of these and its equal for one of those.
_A_PART_OF_EACH: Final = 0.75


def few_that_save(saving: Floats | Int64) -> Bool:
    """Returns the steps that save; none of them where nearly all do.

    Args:
        saving: What saving checkpoints takes of each step, in any unit, shape (n,).
    """
    saves: Bool = saving > 0
    is_usual = np.count_nonzero(saves) > _A_PART_OF_EACH * len(saves)
    return np.zeros_like(saves) if is_usual else saves
