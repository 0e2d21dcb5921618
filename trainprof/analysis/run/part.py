"""One epoch, or some steps, of a timeline."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trainprof.analysis.timeline.events import Bool, Int64, nest
from trainprof.analysis.timeline.iterations import LoaderIterations, epoch_starts, find_iterations
from trainprof.analysis.timeline.ledger import Window
from trainprof.analysis.timeline.timeline import Timeline
from trainprof.record.errors import TrainprofError


class NothingThere(TrainprofError):
    """The part of the run that was asked for does not exist."""

    slug, exit_code = "nothing-there", 2


def narrowed(timeline: Timeline, epoch: int | None, steps: tuple[int, int] | None) -> Timeline:
    """Returns the timeline of a part of the loop; stages stay those of the whole run.

    An epoch reaches to the beginning of the next one, with the evaluation between them.

    Args:
        timeline: Of the run.
        epoch: 0-based index of a training epoch; with `steps` those of them that lie in it.
        steps: 0-based, the end excluded.

    Raises:
        NothingThere: If there is no such epoch, or no such steps.
    """
    first, last = timeline.window.start, timeline.window.end
    if epoch is not None:
        first, last = _epoch_bounds(timeline, epoch)
    if steps is not None:
        step_first, step_last = _step_bounds(timeline, steps)
        first, last = max(first, step_first), min(last, step_last)
        if first >= last:
            raise NothingThere(
                f"There are no steps {_written(steps)} in epoch {(epoch or 0) + 1}",
                hint="Leave one of the two out.",
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
            f"There are no steps {_written(steps)}", hint=f"The run has {len(ends)} steps."
        )
    return int(timeline.step_starts[first]), int(ends[last - 1])


def _epoch_bounds(timeline: Timeline, epoch: int) -> tuple[int, int]:
    begins = epoch_starts(timeline.loaders)
    if not 0 <= epoch < len(begins):
        raise NothingThere(
            f"There is no epoch {epoch + 1}", hint=f"The run has {len(begins)} epochs."
        )
    # The first one's iterator may have been made long ahead.
    is_here = np.isin(begins, epoch_starts(timeline.loaders_here()))
    begins = np.where(is_here, np.maximum(begins, timeline.window.loop_start), begins)
    bounds = np.append(begins, timeline.window.loop_end)
    return int(bounds[epoch]), int(bounds[epoch + 1])


def described(epoch: int | None, steps: tuple[int, int] | None) -> str:
    """Returns what of the run is shown, counted from 1: "epoch 2", "steps 5:9"."""
    parts = [] if epoch is None else [f"epoch {epoch + 1}"]
    parts += [] if steps is None else [f"steps {_written(steps)}"]
    return ", ".join(parts)


def _written(steps: tuple[int, int]) -> str:
    """Counted from 1, the last one included, as reports do."""
    return f"{steps[0] + 1}:{steps[1]}"


def _staged(part: LoaderIterations, whole: list[LoaderIterations]) -> LoaderIterations:
    """Gives passes of a part, some of them cut, the stages that they have in the whole run."""
    p = next(p for p in whole if p.loader == part.loader)
    number = np.maximum(np.searchsorted(p.start, part.start, side="right") - 1, 0)
    return replace(part, stage=p.stage[number], role=p.role)
