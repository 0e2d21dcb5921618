"""A recording with the timeline of its training process, or of one epoch or some steps of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from trainprof.analysis.lines.times import has_timed_functions
from trainprof.analysis.run.metadata import Metadata, Sites, number
from trainprof.analysis.timeline.events import Bool, Int64, nest
from trainprof.analysis.timeline.iterations import LoaderIterations, epoch_starts, find_iterations
from trainprof.analysis.timeline.ledger import Window
from trainprof.record.errors import TrainprofError
from trainprof.record.schema import Kind

if TYPE_CHECKING:
    from trainprof.analysis.machine.cores import HostPart
    from trainprof.analysis.run.recording import Recording
    from trainprof.analysis.run.training_process import TrainingProcess
    from trainprof.analysis.timeline.timeline import Timeline

DEFAULT_WAIT_THRESHOLD_S: Final = 0.5
# A damaged manifest may hold any number: in ns, and times the batches, it must fit an int64.
LONGEST_THRESHOLD_S: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Analysed:
    """A recording with the timeline of its training process.

    Attributes:
        origin_ns, end_ns: Start and end of the run.
        host: The process's part of its host.
        part: The epoch or the steps that the timeline is narrowed to, in words, or None.
    """

    recording: Recording
    process: TrainingProcess
    timeline: Timeline
    origin_ns: int
    end_ns: int
    host: HostPart
    part: str | None = None

    @property
    def metadata(self) -> Metadata:
        return self.process.metadata

    def sites(self) -> Sites:
        return self.metadata.sites(self.recording.manifest.get("cwd"))

    def wait_threshold_s(self) -> float:
        options = self.recording.section("options")
        threshold_s = number(options.get("wait_threshold_s"), DEFAULT_WAIT_THRESHOLD_S)
        return threshold_s if 0 <= threshold_s <= LONGEST_THRESHOLD_S else DEFAULT_WAIT_THRESHOLD_S

    def device_timing(self) -> str:
        if self.metadata.device() is None:
            return "cpu"
        return "synchronized" if self.synchronized() is not None else "async"

    def synchronized(self) -> tuple[int, float] | None:
        """Returns the number of waits of --cuda-sync for a device, and their seconds."""
        details = self.process.details
        rows = details[details["kind"] == Kind.SYNCHRONIZED]
        if len(rows) == 0:
            return None
        last = rows[int(rows["value"].argmax())]
        return int(last["value"]), (int(last["end"]) - int(last["start"])) / 1e9

    def has_timed_lines(self) -> bool:
        is_asked_for = bool(self.recording.section("options").get("lines"))
        return is_asked_for or any(map(has_timed_functions, self.recording.logs))


class NothingThere(TrainprofError):
    slug, exit_code = "nothing-there", 2


def narrowed(timeline: Timeline, epoch: int | None, steps: tuple[int, int] | None) -> Timeline:
    """Returns the timeline of a part of the loop; stages stay those of the whole run.

    An epoch ends where the next one begins, and includes the evaluation between them.

    Args:
        epoch: 0-based index of a training epoch; with `steps`, the steps in it.
        steps: 0-based, the end excluded.

    Raises:
        NothingThere: If the run lacks that epoch or those steps.
    """
    first, last = timeline.window.start, timeline.window.end
    if epoch is not None:
        first, last = _epoch_bounds(timeline, epoch)
    if steps is not None:
        step_first, step_last = _step_bounds(timeline, steps)
        first, last = max(first, step_first), min(last, step_last)
        if first >= last:
            raise NothingThere(
                f"Epoch {(epoch or 0) + 1} has no steps {_written(steps)}",
                hint="Pass only one of the two options.",
            )

    def inside(times: Int64) -> Bool:
        mask: Bool = (times >= first) & (times < last)
        return mask

    own = timeline.events.where(inside(timeline.events.start))
    segments = timeline.segments[inside(timeline.segments[:, 0])]
    chosen = inside(timeline.steps.ends - 1)
    everything = timeline.all_events.where(inside(timeline.all_events.start))
    loaders = [_staged(p, timeline.loaders) for p in find_iterations(everything)]
    here = {p.loader for p in timeline.loaders_here()}
    return replace(
        timeline,
        events=own,
        nesting=nest(own),
        all_events=everything,
        loaders=loaders,
        on_thread=np.array([p.loader in here for p in loaders], dtype=bool),
        segments=segments,
        steps=replace(timeline.steps, ends=timeline.steps.ends[chosen]),
        step_starts=np.maximum(timeline.step_starts[chosen], first),
        window=Window(first, first, last, last),
    )


def _step_bounds(timeline: Timeline, steps: tuple[int, int]) -> tuple[int, int]:
    ends = timeline.steps.ends
    first, last = steps[0], min(steps[1], len(ends))
    if first >= last:
        raise NothingThere(
            f"Steps {_written(steps)} do not exist", hint=f"The run has {len(ends)} steps."
        )
    return int(timeline.step_starts[first]), int(ends[last - 1])


def _epoch_bounds(timeline: Timeline, epoch: int) -> tuple[int, int]:
    begins = epoch_starts(timeline.loaders)
    if not 0 <= epoch < len(begins):
        raise NothingThere(
            f"Epoch {epoch + 1} does not exist", hint=f"The run has {len(begins)} epochs."
        )
    # The first epoch's iterator may have been created long before.
    is_here = np.isin(begins, epoch_starts(timeline.loaders_here()))
    begins = np.where(is_here, np.maximum(begins, timeline.window.loop_start), begins)
    bounds = np.append(begins, timeline.window.loop_end)
    return int(bounds[epoch]), int(bounds[epoch + 1])


def described(epoch: int | None, steps: tuple[int, int] | None) -> str:
    """Returns the part of the run, counted from 1: "epoch 2", "steps 5:9"."""
    parts = [] if epoch is None else [f"epoch {epoch + 1}"]
    parts += [] if steps is None else [f"steps {_written(steps)}"]
    return ", ".join(parts)


def _written(steps: tuple[int, int]) -> str:
    """Counted from 1, the last one included, as reports do."""
    return f"{steps[0] + 1}:{steps[1]}"


def _staged(part: LoaderIterations, whole: list[LoaderIterations]) -> LoaderIterations:
    """Gives the iterations of a part, some truncated, their stages of the whole run."""
    p = next(p for p in whole if p.loader == part.loader)
    number = np.maximum(p.number_at(part.start), 0)
    return replace(part, stage=p.stage[number], role=p.role)
