"""Steps that are other work, told by the size of batches: nobody counts the samples of streams."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from trainprof.analysis.compared_run import ComparedRun
from trainprof.analysis.stream_batches import are_as_many, are_other_sizes, exceed


def other_batches(
    base: Sequence[ComparedRun], other: Sequence[ComparedRun]
) -> tuple[float, float] | None:
    """Returns the bytes of both sides' mean batches, where a step is other work by that.

    None where samples are counted, and where batches may hold other numbers, but as many samples:
    passes have as many of them, or there is one batch size and no pass that ended.
    """
    runs = [*base, *other]
    if any(run.summary.training.samples for run in runs):
        return None
    in_base, in_other = _batch_bytes(base), _batch_bytes(other)
    if in_base is None or in_other is None:
        return None
    means, errors = zip(in_base, in_other, strict=True)
    if not are_other_sizes(means, errors):
        return None
    passes = [[_ended(run) for run in side] for side in (base, other)]
    if all(ended for side in passes for ended in side):
        return None if are_as_many(*passes) else means
    has_size = any(feeder.batch_size for run in runs if (feeder := run.feeder()) is not None)
    return None if has_size else means


def other_epochs(
    base: Sequence[ComparedRun], other: Sequence[ComparedRun]
) -> tuple[float, float] | None:
    """Returns how many batches an epoch of a stream has on both sides, where it is other data.

    None where the sides have equal numbers of workers, or no run ended an epoch.
    """
    loaders = [[run.feeder() for run in side] for side in (base, other)]
    streams = [[x for x in side if x is not None and x.is_iterable] for side in loaders]
    ended = [[x.ended_batches for x in side if x.ended_batches] for side in streams]
    workers = [{x.num_workers or 0 for x in side} for side in streams]
    if not all(ended) or workers[0] == workers[1]:
        return None
    most = max(workers[0] | workers[1])
    if not exceed(ended[0], ended[1], most) and not exceed(ended[1], ended[0], most):
        return None
    means = [fmean(map(fmean, side)) for side in ended]
    return means[0], means[1]


def _ended(run: ComparedRun) -> list[int]:
    feeder = run.feeder()
    return [] if feeder is None else feeder.ended_batches


def _batch_bytes(side: Sequence[ComparedRun]) -> tuple[float, float] | None:
    """Returns the mean and its standard error, None where one of the runs does not tell it."""
    sizes = [
        (fetch.batch_bytes, fetch.batch_bytes_error)
        for run in side
        if (feeder := run.feeder()) is not None and (fetch := feeder.fetch) is not None
        if fetch.batch_bytes and fetch.batch_bytes_error is not None
    ]
    if not sizes or len(sizes) < len(side):
        return None
    error = math.hypot(*(error for _, error in sizes)) / len(sizes)
    return fmean(size for size, _ in sizes), error
