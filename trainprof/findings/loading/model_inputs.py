"""The pipeline model's inputs without one part of what batches cost, to learn its gain."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from trainprof.analysis.pipeline.bounds import Interval, PipelineInputs, filled
from trainprof.analysis.pipeline.model import Float64

# Times the median fetch, from which on one is slow.
_SLOW_FROM_TIMES: Final = 3.0


def like_the_usual(inputs: PipelineInputs) -> PipelineInputs:
    """Returns the inputs with slow batches cut down to the median."""
    usual_s = float(np.median(inputs.fetch_s))
    is_slow = inputs.fetch_s > _SLOW_FROM_TIMES * usual_s
    return _shortened(inputs, np.where(is_slow, usual_s / np.maximum(inputs.fetch_s, 1e-12), 1.0))


def without_part(inputs: PipelineInputs, share: float) -> PipelineInputs:
    """Returns the inputs with each fetch shorter by a share."""
    return _shortened(inputs, np.full_like(inputs.fetch_s, 1 - share))


def without_collate(
    inputs: PipelineInputs, share: float, received_s: float | None = None
) -> PipelineInputs:
    """Returns the inputs of a loader whose collate function takes no time.

    A busy worker sends its batches late: the IPC transfer gets shorter with its work.

    Args:
        share: Of batch preparation, the collate function's.
        received_s: CPU time of the training process to receive a batch; None: all of the transfer.
    """
    kept, taken = 1 - share, inputs.receive_s
    if received_s is not None:
        taken = Interval(
            *(min(s, received_s + max(s - received_s, 0.0) * kept) for s in taken.ends())
        )
    return replace(_shortened(inputs, np.full_like(inputs.fetch_s, kept)), receive_s=taken)


def _shortened(inputs: PipelineInputs, kept: Float64) -> PipelineInputs:
    """Returns the inputs with a share of each fetch left, of all that it consists of."""

    def scaled(series: Float64 | None) -> Float64 | None:
        return None if series is None else series * kept

    return replace(
        inputs,
        fetch_s=inputs.fetch_s * kept,
        running_s=scaled(inputs.running_s),
        runnable_s=scaled(inputs.runnable_s),
        cpu_s=scaled(inputs.cpu_s),
        reading_s=scaled(inputs.reading_s),
    )


def without_others(inputs: PipelineInputs) -> PipelineInputs:
    """Returns the inputs as if other programs slowed all that runs by one factor.

    A change then gains what it would gain on an idle machine. Computing waits for a core as fetches
    do, of which it is known.
    """
    times = 1 + inputs.fetch_slowdown
    running, cpu = inputs.running_s, inputs.cpu_s
    return replace(
        inputs,
        running_s=None if running is None else np.minimum(running * times, inputs.fetch_s),
        runnable_s=None,
        cpu_s=None if cpu is None else cpu * times,
        compute_cores=Interval(
            *(min(x * times, inputs.cores) for x in inputs.compute_cores.ends())
        ),
        others=Interval.exactly(0.0),
        fetch_slowdown=0.0,
        main_slowdown=0.0,
    )


def received_at_once(inputs: PipelineInputs) -> PipelineInputs:
    """Returns the inputs of a loader whose batches cost nothing to receive."""
    return replace(inputs, receive_s=Interval.exactly(0.0))


def drawn_at_once(inputs: PipelineInputs) -> PipelineInputs:
    """Returns the inputs of a loader whose indices cost nothing to draw."""
    return replace(inputs, sampler_s=0.0)


def not_read(inputs: PipelineInputs) -> PipelineInputs:
    """Returns the inputs of a loader whose data is in memory."""
    read_s = filled(inputs.reading_s, inputs.fetch_s)
    if read_s is None:
        return inputs
    return replace(inputs, fetch_s=np.maximum(inputs.fetch_s - read_s, 0.0), reading_s=None)


def without_running(inputs: PipelineInputs) -> PipelineInputs:
    """Returns the inputs of a loader whose batches cost no CPU, nor wait for it."""
    running, runnable = inputs.running_s, inputs.runnable_s
    wall = inputs.fetch_s
    asleep = np.zeros_like(wall) if running is None else np.maximum(wall - running, 0.0)
    if runnable is not None:
        asleep = np.maximum(asleep - runnable, 0.0)
    asleep = np.where(np.isnan(asleep), 0.0, asleep)
    nothing = np.zeros_like(wall)
    return replace(
        inputs, fetch_s=asleep, running_s=nothing, runnable_s=None, cpu_s=None, fetch_slowdown=0.0
    )
