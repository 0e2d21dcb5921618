"""Which lines training goes to, and what of the loop's own code happens only once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from trainprof.analysis.distributed.collectives import Collectives, python_ns
from trainprof.analysis.run.analysed import Analysed
from trainprof.analysis.stacks.hot_lines import (
    WorkerFetches,
    hottest_lines,
    lines_of_training,
)
from trainprof.analysis.stacks.loss_in_loop import SampledLoop, with_torch_share
from trainprof.analysis.stacks.python_in_model import element_reads, python_in_model
from trainprof.analysis.stacks.samples import concurrent_share
from trainprof.analysis.summary.code import ElementReads, HotLine, HottestLine, PythonInModel
from trainprof.analysis.timeline.events import Int64
from trainprof.analysis.timeline.intervals import Coverage
from trainprof.analysis.timeline.ledger import Window
from trainprof.analysis.timeline.timeline_part import TimelinePart

# Of all of it: with less in the first steps they show what the others do.
_MUCH_OF_IT: Final = 0.1
# Steps until what is set up, or compiled, as it is first called has been: as many as benchmarks
# leave out. And what of the earlier half of a longer warm-up the later one has where that is a
# phase of training, with code of its own.
_SET_UP_STEPS: Final = 10
_PHASE_SHARE: Final = 0.5


def _python_once(
    window: Window, own_ns: Int64, step_ends: Int64, warmup: int
) -> tuple[float, Coverage]:
    """Returns what of the loop's own code happens once, s, and when: in the first steps.

    Args:
        own_ns: Between the parts of each step, calls to other ranks left out, shape (n_steps,).
        step_ends: Of the steps, ns, shape (n_steps,).
        warmup: So many steps lead up to steady ones.
    """
    first_steps = _first_steps(own_ns, warmup)
    warming_ns = _beyond_later(own_ns, first_steps)
    spans = np.empty((0, 2), dtype=np.int64)
    if warming_ns > _MUCH_OF_IT * own_ns.sum():
        spans = np.array([[window.loop_start, step_ends[first_steps - 1]]])
    return warming_ns / 1e9, Coverage.of(spans, (window.loop_start, window.loop_end))


def _first_steps(own_ns: Int64, warmup: int) -> int:
    """Returns in how many steps something may be set up: in all of warm-up, unless they train.

    A first stage of training leads up to steady steps as well, with its code in each of them.
    """
    if warmup <= _SET_UP_STEPS:
        return warmup
    earlier, later = (np.median(half) for half in np.array_split(own_ns[:warmup], 2))
    return _SET_UP_STEPS if later >= _PHASE_SHARE * earlier else warmup


def _beyond_later(own_ns: Int64, first_steps: int) -> int:
    """Returns what the first steps have beyond as many later ones in a row: those with most."""
    later = own_ns[first_steps:]
    if not first_steps or not len(later):
        return 0
    until, width = np.append(0, np.cumsum(later)), min(first_steps, len(later))
    most = (until[width:] - until[:-width]).max()
    return max(int(own_ns[:first_steps].sum() - most), 0)


@dataclass(frozen=True, slots=True)
class StacksPart:
    """What stack samples show of training, as RunSummary has it."""

    part_lines: list[HotLine]
    hot_lines: list[HottestLine]
    python_in_model: PythonInModel | None
    element_reads: ElementReads | None
    once_s: float
    beside_share: float | None


def stacks_part(
    run: Analysed,
    time: TimelinePart,
    loop: SampledLoop,
    collectives: Collectives,
    *,
    is_compiled: bool,
    detects_anomalies: bool,
    step_s: Mapping[str, float],
    fetches: Sequence[WorkerFetches],
) -> StacksPart:
    """Returns which lines training goes to.

    Args:
        step_s: Mean of a steady step per ledger key.
        fetches: Of loaders that feed training.
    """
    timeline, steps, spent_s, settled_ns = run.timeline, time.steps, time.spent_s, time.settled_ns
    samples, parts, names = loop.samples, loop.parts, loop.names
    own_ns = python_ns(steps.per_step, collectives)
    once_s, once = _python_once(timeline.window, own_ns, timeline.steps.ends, steps.steady.warmup)
    lasting = spent_s | {"other": max(spent_s["other"] - once_s, 0.0)}
    lines = lines_of_training(samples, parts, lasting, names, steps=len(steps), once=once)
    loss = time.attribution.loss
    in_modules = spent_s | {"loss": spent_s["loss"] - (0.0 if loss is None else loss.seconds)}
    in_model = reads = None
    if not (is_compiled or detects_anomalies):
        in_model = python_in_model(samples, parts, in_modules, names, settled_ns=settled_ns)
    if not is_compiled:
        reads = element_reads(parts, in_modules, run.sites(), (settled_ns, loop.until_ns))
    return StacksPart(
        part_lines=with_torch_share(lines, samples, names),
        hot_lines=hottest_lines(samples, parts, step_s, names, fetches, settled_ns=settled_ns),
        python_in_model=in_model,
        element_reads=reads,
        once_s=once_s,
        beside_share=concurrent_share(samples, parts),
    )
