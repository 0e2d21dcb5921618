"""What of a device's training comes but once: warming up, and compiling."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainprof.analysis.device.overlap import Meanwhile, gives_work
from trainprof.analysis.timeline.intervals import Coverage
from trainprof.analysis.timeline.ledger import within
from trainprof.analysis.timeline.steady_state import Steady


@dataclass(frozen=True, slots=True)
class Once:
    """What is apart from the steps as they come, in seconds, at most.

    Attributes:
        unknown_s: Of that cause, what the first steps took beyond as many steady ones (loading the
            device's libraries), and compiling in them.
        worked_s: What the device surely worked beyond as in steady steps meanwhile.
        again_s: Of the same cause, compiling once warm-up was over.
    """

    unknown_s: float = 0.0
    worked_s: float = 0.0
    again_s: float = 0.0


def once_of(meanwhile: Meanwhile, compiling: Coverage, steady: Steady) -> Once:
    """Returns what of training is apart from its steps as they come.

    Args:
        meanwhile: What the device did.
        compiling: When the host compiled in training.
        steady: Which steps are, and how many come before.
    """
    unknown_s, again_s = _once_s(meanwhile, compiling, steady)
    return Once(unknown_s, _worked_once_s(meanwhile, steady), again_s)


def _worked_once_s(meanwhile: Meanwhile, steady: Steady) -> float:
    timeline = meanwhile.timeline
    starts, ends = timeline.step_starts, timeline.steps.ends
    if not steady.warmup or not steady.mask.any():
        return 0.0
    worked = meanwhile.least.inside_ns(starts, ends)
    worked = worked - meanwhile.activity.copying.inside_ns(starts, ends)
    # Before the first mark nothing is known, and that is in it too.
    untold = np.clip(meanwhile.activity.first_ns - starts, 0, ends - starts)
    worked = np.maximum(worked - untold, 0)
    usual_ns = worked[steady.mask].mean()
    return max(float(worked[: steady.warmup].sum() - steady.warmup * usual_ns), 0.0) / 1e9


def _once_s(meanwhile: Meanwhile, compiling: Coverage, steady: Steady) -> tuple[float, float]:
    """Returns what warm-up took, and compiling after it, while the device did not surely work."""
    timeline = meanwhile.timeline
    events, ends = timeline.events, timeline.steps.ends
    gives = gives_work(timeline) & ~within(timeline.segments, events.start)
    gives &= events.start >= timeline.window.loop_start
    around = timeline.nesting.innermost(events, compiling.starts)
    # In Python between the phases it is the host's time.
    compiled_ns = np.where((around >= 0) & gives[around], compiling.ends - compiling.starts, 0)
    inside_ns = meanwhile.least.inside_ns(compiling.starts, compiling.ends)
    compiled_ns = np.maximum(compiled_ns - inside_ns, 0)
    given_ns = np.maximum(timeline.nesting.own_ns - meanwhile.least_ns, 0)[gives]
    of_step = np.zeros(len(ends) + 1)
    np.add.at(of_step, np.searchsorted(ends, events.start[gives], side="right"), given_ns)
    compiled_in = np.searchsorted(ends, compiling.starts, side="right")
    np.subtract.at(of_step, compiled_in, compiled_ns)
    of_step = np.maximum(of_step[:-1], 0)
    usual_ns = of_step[steady.mask].mean() if steady.mask.any() else np.inf
    warming_ns = of_step[: steady.warmup].sum() - steady.warmup * usual_ns if steady.warmup else 0.0
    again_ns = compiled_ns[compiled_in >= max(steady.warmup, 1)].sum()
    once_ns = compiled_ns.sum() - again_ns + max(warming_ns, 0.0)
    return float(once_ns) / 1e9, float(again_ns) / 1e9
