"""Stack samples in a summary: the lines that each part of training goes to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum

from trainprof.analysis.distributed.collectives import Collectives, python_ns
from trainprof.analysis.model.model_part import ModelPart
from trainprof.analysis.run.analysed import Analysed
from trainprof.analysis.stacks.hot_lines import WorkerFetches, hottest_lines, lines_of_training
from trainprof.analysis.stacks.loop_code import python_once, torch_in_loop
from trainprof.analysis.stacks.python_in_model import element_reads, python_in_model
from trainprof.analysis.stacks.samples import (
    LineNames,
    PartsOfLoop,
    concurrent_share,
    thread_samples,
)
from trainprof.analysis.summary.code import ElementReads, HotLine, HottestLine, PythonInModel
from trainprof.analysis.timeline.intervals import Coverage
from trainprof.analysis.timeline.timeline_part import TimelinePart


@dataclass(frozen=True, slots=True)
class StacksPart:
    """What stack samples tell of training; as RunSummary has it.

    Attributes:
        loss_by_place: None of too few samples.
        loss_s: Of the code between the parts of a step that comes again, what is a loss.
    """

    part_lines: list[HotLine]
    hot_lines: list[HottestLine]
    python_in_model: PythonInModel | None
    element_reads: ElementReads | None
    loss_by_place: dict[str, float] | None
    loss_s: float
    once_s: float
    beside_share: float | None


def stacks_part(
    run: Analysed,
    time: TimelinePart,
    model: ModelPart,
    collectives: Collectives,
    compiling: Coverage,
    *,
    step_s: Mapping[str, float],
    fetches: Sequence[WorkerFetches],
) -> StacksPart:
    """Returns which lines training goes to.

    Args:
        run: The run.
        time: Of its training thread.
        model: How it was compiled and torch set.
        collectives: Of torch.distributed.
        compiling: When torch.compile compiled.
        step_s: Mean of a steady step per ledger key.
        fetches: What the workers of loaders that feed training were seen at.
    """
    timeline, metadata, steps = run.timeline, run.metadata, time.steps
    sites, until, spent_s = run.sites(), metadata.reads_counted_until(), time.spent_s
    samples, names = (
        thread_samples(run.process.details, timeline.thread),
        LineNames(metadata.texts, sites),
    )
    parts = PartsOfLoop(timeline.events, timeline.nesting, time.attribution, timeline.window)
    own_ns = python_ns(steps.per_step, collectives)
    once = python_once(parts, compiling, own_ns, timeline.steps.ends, steps.steady.warmup)
    lasting = spent_s | {"other": max(spent_s["other"] - once.seconds, 0.0)}
    lines = lines_of_training(samples, parts, lasting, names, steps=len(steps), once=once.spans)
    by_torch = torch_in_loop(samples, parts, spent_s, names, lines, until)
    in_model = reads = None
    settled_ns = time.settled_ns
    if not (model.compilations or model.torch.detects_anomalies):
        in_model = python_in_model(samples, parts, spent_s, names, settled_ns=settled_ns)
    if not model.compilations:
        reads = element_reads(parts, spent_s, sites, until, settled_ns=settled_ns)
    return StacksPart(
        part_lines=by_torch.lines,
        hot_lines=hottest_lines(samples, parts, step_s, names, fetches, settled_ns=settled_ns),
        python_in_model=in_model,
        element_reads=reads,
        loss_by_place=by_torch.loss_by_place,
        loss_s=min(fsum((by_torch.loss_by_place or {}).values()), lasting["other"]),
        once_s=once.seconds,
        beside_share=concurrent_share(samples, parts),
    )
