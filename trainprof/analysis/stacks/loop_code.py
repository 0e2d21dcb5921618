"""The slowest lines of training, and what code between the parts of a step happens once."""

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

# Of all of it: with less of it the first steps are like the others.
_MUCH_OF_IT: Final = 0.1
# Steps in which first calls set up or compile something: the number that benchmarks leave out.
# A longer warm-up is a phase of training if its later half has this share of the earlier one.
_SET_UP_STEPS: Final = 10
_PHASE_SHARE: Final = 0.5


def _python_once(
    window: Window, own_ns: Int64, step_ends: Int64, warmup: int
) -> tuple[float, Coverage]:
    """Returns the seconds of code between the parts of a step that happens once, and when.

    Args:
        own_ns: Between the parts of each step, without calls to other ranks, shape (n_steps,).
        step_ends: Of the steps, ns, shape (n_steps,).
        warmup: Number of steps before the steady ones.
    """
    first_steps = _first_steps(own_ns, warmup)
    warming_ns = _beyond_later(own_ns, first_steps)
    spans = np.empty((0, 2), dtype=np.int64)
    if warming_ns > _MUCH_OF_IT * own_ns.sum():
        spans = np.array([[window.loop_start, step_ends[first_steps - 1]]])
    return warming_ns / 1e9, Coverage.of(spans, (window.loop_start, window.loop_end))


def _first_steps(own_ns: Int64, warmup: int) -> int:
    """Returns the number of steps that may set something up: the warm-up, unless it trains.

    A first stage of training comes before steady steps too, with its code in each step.
    """
    if warmup <= _SET_UP_STEPS:
        return warmup
    earlier, later = (np.median(half) for half in np.array_split(own_ns[:warmup], 2))
    return _SET_UP_STEPS if later >= _PHASE_SHARE * earlier else warmup


def _beyond_later(own_ns: Int64, first_steps: int) -> int:
    """Returns what the first steps have more than any later steps in a row of that number."""
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
    """Returns the slowest lines of training.

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
