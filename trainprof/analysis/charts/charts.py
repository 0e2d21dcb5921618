"""Builds the charts of a run from its directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trainprof.analysis.charts.events import Longest, evaluated_lines, events_of, slow_fetches
from trainprof.analysis.charts.lanes import lanes_of
from trainprof.analysis.charts.machine import machine_of
from trainprof.analysis.charts.slow_stretch import slow_stretch
from trainprof.analysis.charts.stack_samples import stacks_of
from trainprof.analysis.charts.step_bins import step_bins, step_histogram
from trainprof.analysis.device.devices import overlap_of
from trainprof.analysis.loading.batch_preparation import batch_preparation
from trainprof.analysis.run.run_numbers import FirstProcess, first_analysed
from trainprof.analysis.stacks.loss_in_loop import sampled_loop
from trainprof.analysis.summary.charts import MAX_SPANS, Charts, Span
from trainprof.analysis.timeline.iterations import epoch_starts
from trainprof.analysis.timeline.step_table import attributed, step_table

if TYPE_CHECKING:
    from trainprof.analysis.run.analysed import Analysed
    from trainprof.analysis.summary.charts import Lane, Stacks
    from trainprof.analysis.timeline.events import Int64
    from trainprof.analysis.timeline.step_table import StepTable
    from trainprof.record.run_directory import RunDirectory


def charts_of(
    directory: RunDirectory, *, epoch: int | None = None, steps: tuple[int, int] | None = None
) -> Charts | None:
    """Returns the charts of a run, or of one training epoch or some steps of it.

    None where nothing was recorded, or its events were deleted.

    Args:
        epoch: 0-based.
        steps: 0-based, the end excluded.

    Raises:
        NothingThere: If the run lacks that epoch or those steps.
    """
    process = first_analysed(directory, epoch=epoch, steps=steps)
    run = process.run
    recording, window = run.recording, run.timeline.window
    lines = recording.host_lines or recording.process_lines or recording.gpu_lines
    if not recording.logs and not lines:
        return None
    # First: fetches and the ledger's tables of a long run would not fit in memory together.
    fetches, lane_edges, lanes = _workers(run)
    table, stacks = _steps_and_stacks(run)
    machine, histograms = machine_of(run)
    if len(table):
        histograms = [step_histogram(table), *histograms]
    bins = step_bins(process, table)
    rank = recording.manifest.get("rank") if run.process.rank is None else run.process.rank
    return Charts(
        wall_s=(window.end - window.start) / 1e9,
        steps=bins,
        machine=machine,
        spans=_spans(process, table),
        events=events_of(process, table, fetches),
        histograms=histograms,
        lane_edges_s=(lane_edges - run.origin_ns) / 1e9,
        lanes=lanes,
        stacks=stacks,
        part=run.part,
        start_s=(window.start - run.origin_ns) / 1e9,
        rank=rank if process.has_ranks and isinstance(rank, int) else None,
        slow=None if bins is None else slow_stretch(bins, table.steady.warmup),
    )


def _workers(run: Analysed) -> tuple[Longest, Int64, list[Lane]]:
    preparation = batch_preparation(run)
    return slow_fetches(run, preparation), *lanes_of(run, preparation)


def _steps_and_stacks(run: Analysed) -> tuple[StepTable, Stacks]:
    """Returns the steps as the summary has them, and the stack samples."""
    overlap = overlap_of(run)
    waits = None if overlap is None else overlap.waits()
    loop = sampled_loop(run, attributed(run.timeline, run.metadata, waits))
    table = step_table(run.timeline, loop.parts.attribution, run.metadata)
    return table, stacks_of(run, loop)


def _spans(process: FirstProcess, steps: StepTable) -> list[Span]:
    run = process.run
    timeline, window = run.timeline, run.timeline.window

    def span(kind: str, start: int, end: int, label: str = "") -> Span:
        start_s, end_s = ((ns - run.origin_ns) / 1e9 for ns in (start, end))
        return Span(kind=kind, start_s=start_s, end_s=end_s, label=label)

    spans = []
    if window.start < window.loop_start:
        spans.append(span("startup", window.start, window.loop_start))
    warmup = min(steps.steady.warmup, len(steps))
    if warmup and run.part is None:
        settled = int(timeline.steps.ends[warmup - 1])
        spans.append(span("warmup", int(timeline.step_starts[0]), settled))
    names, segments = evaluated_lines(run), timeline.segments
    longest = np.argsort(segments[:, 0] - segments[:, 1], kind="stable")[:MAX_SPANS]
    spans += [
        span("evaluation", int(segments[place, 0]), int(segments[place, 1]), names[place])
        for place in np.sort(longest).tolist()
    ]
    begins = np.maximum(epoch_starts(timeline.loaders), window.loop_start).tolist()
    stride = -(-len(begins) // MAX_SPANS) or 1
    spans += [
        span("epoch", begins[number], begins[number], f"epoch {number + process.first_epoch + 1}")
        for number in range(0, len(begins), stride)
    ]
    if window.loop_end < window.end:
        spans.append(span("shutdown", window.loop_end, window.end))
    return spans
