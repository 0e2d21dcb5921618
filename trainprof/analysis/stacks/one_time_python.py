"""What of the loop's own code comes but once: in the first steps, and as torch.compile compiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from trainprof.analysis.stacks.samples import PartsOfLoop
from trainprof.analysis.timeline.events import Int64
from trainprof.analysis.timeline.intervals import Coverage
from trainprof.analysis.timeline.ledger import KEY

# Of all of it: with less in the first steps they show what the others do.
_MUCH_OF_IT: Final = 0.1
# Steps until what is set up, or compiled, as it is first called has been: as many as benchmarks
# leave out. And what of the earlier half of a longer warm-up the later one has where that is a
# phase of training, with code of its own.
_SET_UP_STEPS: Final = 10
_PHASE_SHARE: Final = 0.5


@dataclass(frozen=True, slots=True)
class PythonOnce:
    """What lies between the parts of a step and does not come again.

    Attributes:
        seconds: Of the training phase.
        spans: When: compiling, and the first steps where they have much of it.
    """

    seconds: float
    spans: Coverage


def python_once(
    parts: PartsOfLoop, compiling: Coverage, own_ns: Int64, step_ends: Int64, warmup: int
) -> PythonOnce:
    """Returns what of the loop's own code comes but once.

    Args:
        parts: Of the training thread.
        compiling: When torch.compile did in the loop, evaluation left out.
        own_ns: Between the parts of each step, calls to other ranks left out, shape (n_steps,).
        step_ends: Of the steps, ns, shape (n_steps,).
        warmup: So many steps lead up to steady ones.
    """
    window = parts.window
    compiled_ns = _between_ns(compiling, parts)
    compiled_in = np.searchsorted(step_ends, compiling.starts, side="right")
    without = np.append(own_ns, 0)
    np.subtract.at(without, compiled_in, compiled_ns)
    lasting_ns = np.maximum(without[:-1], 0)
    first_steps = _first_steps(lasting_ns, warmup)
    warming_ns = _beyond_later(lasting_ns, first_steps)
    spans = compiling.spans()
    if warming_ns > _MUCH_OF_IT * own_ns.sum():
        spans = np.append(spans, [[window.loop_start, step_ends[first_steps - 1]]], axis=0)
    return PythonOnce(
        seconds=(int(compiled_ns.sum()) + warming_ns) / 1e9,
        spans=Coverage.of(spans, (window.loop_start, window.loop_end)),
    )


def _between_ns(compiling: Coverage, parts: PartsOfLoop) -> Int64:
    """Returns what of each stretch lies between the parts of a step, ns, shape (n,)."""
    events, apart = parts.events, parts.attribution.key
    own_ns = np.where((apart >= 0) & (apart != KEY["other"]), parts.nesting.own_ns, 0)
    first, behind = (np.searchsorted(events.start, t) for t in (compiling.starts, compiling.ends))
    # What the compiler runs, or collects as garbage, has keys of its own.
    inner_ns = [own_ns[a:b].sum() for a, b in zip(first.tolist(), behind.tolist(), strict=True)]
    left = compiling.ends - compiling.starts - np.array(inner_ns, dtype=np.int64)
    is_between = parts.at(compiling.starts) == KEY["other"]
    found: Int64 = np.where(is_between, np.maximum(left, 0), 0)
    return found


def _first_steps(own_ns: Int64, warmup: int) -> int:
    """Returns in how many steps something may be set up: in all that lead up, unless they train.

    A first stage of training leads up to steady steps as well, and its code comes in each of them.
    """
    if warmup <= _SET_UP_STEPS:
        return warmup
    earlier, later = (np.median(half) for half in np.array_split(own_ns[:warmup], 2))
    return _SET_UP_STEPS if later >= _PHASE_SHARE * earlier else warmup


def _beyond_later(own_ns: Int64, first_steps: int) -> int:
    """Returns what the first steps have beyond as many later ones in a row: those with most.

    What comes now and then, or with each epoch, comes in the first step too.
    """
    later = own_ns[first_steps:]
    if not first_steps or not len(later):
        return 0
    until, width = np.append(0, np.cumsum(later)), min(first_steps, len(later))
    most = (until[width:] - until[:-width]).max()
    return max(int(own_ns[:first_steps].sum() - most), 0)
