"""The pipeline model's inputs without something that batches cost: what is to be gained from it."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from trainprof.analysis.pipeline.bounds import Interval, PipelineInputs, filled
from trainprof.analysis.pipeline.model import Float64

# A slow sample is so many times a typical one; at most so much is left of it.
_SLOW_FROM_TIMES: Final = 3.0


def like_the_usual(inputs: PipelineInputs) -> PipelineInputs:
    """Returns the inputs with batches that took far longer than the others cut down to them."""
    usual_s = float(np.median(inputs.fetch_s))
    is_slow = inputs.fetch_s > _SLOW_FROM_TIMES * usual_s
    return _shortened(inputs, np.where(is_slow, usual_s / np.maximum(inputs.fetch_s, 1e-12), 1.0))


def without_part(inputs: PipelineInputs, share: float) -> PipelineInputs:
    """Returns the inputs with so much less of each fetch."""
    return _shortened(inputs, np.full_like(inputs.fetch_s, 1 - share))


def without_collate(
    inputs: PipelineInputs, share: float, received_s: float | None = None
) -> PipelineInputs:
    """Returns the inputs of a loader whose collate function takes no time.

    A worker that computes hands its batches over late: by as much sooner as it has less to do.

    Args:
        inputs: What its recording tells.
        share: Of the making of batches that is the collate function's.
        received_s: What the training process itself works to take a batch over; None: all of it.
    """
    kept, taken = 1 - share, inputs.receive_s
    if received_s is not None:
        taken = Interval(
            *(min(s, received_s + max(s - received_s, 0.0) * kept) for s in taken.ends())
        )
    return replace(_shortened(inputs, np.full_like(inputs.fetch_s, kept)), receive_s=taken)


def _shortened(inputs: PipelineInputs, kept: Float64) -> PipelineInputs:
    """Returns the inputs with so much of each fetch left, whatever it consists of."""

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
    """Returns the inputs as if other programs made all that runs longer by one factor.

    What a change gains is then what it would gain on the machine alone. Computing and fetches wait
    for a core alike, and that is known of fetches.
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
    """Returns the inputs of a loader whose batches cost nothing to take over."""
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
