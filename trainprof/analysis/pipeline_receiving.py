"""What it costs the main process to take a batch over from its worker.

Tensors travel in shared memory, whose file descriptor a thread of the worker sends when it is asked
for it. While the worker makes another batch in Python, that thread waits for the interpreter.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from trainprof.analysis.delivery import receiving_cpu_s, receiving_ns
from trainprof.analysis.events import Bool, Int64
from trainprof.analysis.pipeline_model import Float64
from trainprof.analysis.pipeline_scenario import Interval, PipelineInputs
from trainprof.analysis.recorded_pass import RecordedPass
from trainprof.record.schema import Kind

# What a recording without workers cannot tell: as measured for HOOKS.md sections 2 and 3, where
# batches of 256 KB to 8 MB took 0.4 to 1.4 ms to take over on a busy machine.
_GUESSED_RECEIVE_S: Final = Interval(0.0001, 0.0005, 0.002)
# What a worker that has nothing else to do takes to answer.
_ASKED_S: Final = (0.0, 0.0004, 0.002)
# The file descriptor of a batch's memory is sent by a thread of the worker; where Python code keeps
# that busy, it gets the interpreter three times by waiting for the switch interval of 5 ms.
_BUSY_INTERPRETER_S: Final = 0.015
# A batch without tensors or arrays is all objects: to unpickle them may take so many times as long
# as to make them.
_OBJECTS_PER_FETCH: Final = 2.0
_ENOUGH: Final = 5
_NOTHING: Final = Interval.exactly(0.0)


def guessed_receiving(inputs: PipelineInputs) -> tuple[Interval, Interval]:
    """Returns what it may cost to take a batch over, and what a busy worker may add to that."""
    guess, mean = _GUESSED_RECEIVE_S, float(inputs.fetch_s.mean())
    if inputs.running_s is None or mean <= 0:
        return guess, _NOTHING
    busy_share = min(float(np.nansum(inputs.running_s) / inputs.fetch_s.sum()), 1.0)
    worst = guess.high
    if inputs.batch_bytes is None:
        worst = max(worst, _OBJECTS_PER_FETCH * mean)
    # What runs may be Python or let go of the interpreter.
    late = Interval(0.0, 0.0, busy_share * _BUSY_INTERPRETER_S)
    return Interval(guess.low, guess.mid, worst), late


def with_received(
    inputs: PipelineInputs,
    passes: list[RecordedPass],
    details: npt.NDArray[np.void] | None,
    loader: int,
) -> PipelineInputs:
    """Takes over what receiving was measured to take."""
    if details is None or inputs.setting.workers == 0:
        return inputs
    parts = details[(details["kind"] == Kind.NEXT_PARTS) & (details["site"] == loader)]
    is_inside, is_told, is_busy = np.zeros((3, len(parts)), dtype=bool)
    for one in passes:
        mine = np.flatnonzero((parts["start"] >= one.starts[0]) & (parts["start"] < one.ends[-1]))
        taken_ns = parts["end"][mine].astype(np.int64)
        turn = np.clip(np.searchsorted(one.starts, taken_ns, side="right") - 1, 0, len(one) - 1)
        is_inside[mine] = True
        is_told[mine] = one.is_in_turn[turn]
        is_busy[mine] = _is_busy(one, one.worker[turn], taken_ns)
    if not is_inside.any():
        return inputs
    took_s = receiving_ns(parts) / 1e9
    receive_s = float(took_s[is_inside].mean())
    busy_s, idle_s = took_s[is_told & is_busy], took_s[is_told & ~is_busy]
    busy_share = len(busy_s) / max(len(busy_s) + len(idle_s), 1)
    receive, handover = Interval.exactly(receive_s), guessed_receiving(inputs)[1]
    if min(len(busy_s), len(idle_s)) >= _ENOUGH:
        late_s = max(float(busy_s.mean() - idle_s.mean()), 0.0)
        receive = Interval.exactly(max(receive_s - busy_share * late_s, 0.0))
        handover = Interval.exactly(late_s)
    elif len(busy_s) >= _ENOUGH:
        worked_s = receiving_cpu_s(parts[is_inside])
        receive = _received_from_idle(took_s[is_inside], worked_s)
        own = (receive.low, receive.mid, receive.high)
        handover = Interval(*((receive_s - own_s) / busy_share for own_s in own))
    return replace(
        inputs,
        receive_s=receive,
        handover_s=handover,
        delivery_s=max(inputs.delivery_s, receive_s),
        guessed=tuple(name for name in inputs.guessed if name != "receive_s"),
    )


def _is_busy(one: RecordedPass, worker: Int64, times: Int64) -> Bool:
    """Whether each worker was making a batch at its time; arrays of shape (n,)."""
    is_busy = np.zeros(len(times), dtype=bool)
    for number in np.unique(worker).tolist():
        own, mine = one.worker == number, worker == number
        starts, ends = one.fetch_starts[own], one.fetch_ends[own]
        place = np.searchsorted(starts, times[mine], side="right") - 1
        is_busy[mine] = (place >= 0) & (ends[np.maximum(place, 0)] > times[mine])
    return is_busy


def _received_from_idle(took_s: Float64, worked_s: Float64 | None) -> Interval:
    """Returns what batches would take that in the recording all came from busy workers.

    Args:
        took_s: Of each batch.
        worked_s: Part of it that the main process worked; None where that is not told.
    """
    took = float(took_s.mean())
    if worked_s is None:
        return Interval(min(float(np.percentile(took_s, 25)), took), took, took)
    worked = float(worked_s.mean())
    return Interval(*(min(worked + asked, took) for asked in _ASKED_S))
