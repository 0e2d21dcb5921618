"""Why a device was idle, by what the training thread did; and the part that comes once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from trainprof.analysis.device.activity import Activity, Overlap, launches_kernels
from trainprof.analysis.device.kernel_share import KernelShare
from trainprof.analysis.summary.device import KEEPS_UP_IN
from trainprof.analysis.timeline.events import Bool, Events, Int64, Nesting
from trainprof.analysis.timeline.intervals import Coverage
from trainprof.analysis.timeline.ledger import KEY, LOADER_KEYS, Attribution, within
from trainprof.analysis.timeline.steady_state import Steady
from trainprof.analysis.timeline.timeline import Timeline
from trainprof.record.schema import Kind

_CAUSES: Final = {
    **dict.fromkeys(LOADER_KEYS, "loader_s"),
    "transfer": "copy_s",
    "sync": "sync_s",
    "checkpoint": "checkpoint_s",
}
IDLE_CAUSES: Final = (
    "loader_s",
    "copy_s",
    "sync_s",
    "host_s",
    "launch_s",
    "evaluation_s",
    "checkpoint_s",
    "startup_s",
    "warmup_s",
    "compile_s",
    "unknown_s",
)
# Of the training phase: from here on shares exclude warm-up.
_LEAST_WARMUP: Final = 0.02
# The device keeps up with a phase that leaves it at most this work: of the host's time, or in ns.
_LEFT_SHARE: Final = 0.1
_LEFT_NS: Final = 50_000
# Of one kind of phase: if the device had finished this share at their end, kernels may have come
# one by one.
_OFTEN_IDLE: Final = 0.5
# Of the time: the driver's figure may be this much too small and still be of that device.
_DRIVER_OFF: Final = 0.05
_KEEPS_UP_KINDS: Final = (Kind.FORWARD, Kind.BACKWARD, Kind.OPTIMIZER_STEP)


@dataclass(frozen=True, slots=True)
class Idle:
    """A device in the training phase: its busy time, and why it was idle otherwise.

    Attributes:
        busy_share: Low and high, of the phase without `warmup_s`: while a mark was not yet reached,
            and the same with the time in which the host launched kernels. The driver's kernel time
            narrows both. Copies to and from the host do not count.
        because_s: One entry per IDLE_CAUSES; they add up to the phase without the low busy time.
            `unknown_s` lies between the two bounds, `launch_s` is between kernels by the driver,
            `warmup_s` is the first steps beyond the time of steady ones (0 if small), `compile_s`
            later compilation.
        exposed_s: Low and high of the idle time in data_wait, transfer and sync.
        ran_dry: By kind of phase, the share at whose end it was about idle.
        launch_bound_share: Low and high of the idle share while the host was in Python or launched
            kernels.
        copy_wait_s: The part of copying in which the host was in a copy and the device did not
            copy.
    """

    busy_share: tuple[float, float]
    because_s: dict[str, float]
    exposed_s: dict[str, list[float]]
    ran_dry: dict[str, float]
    launch_bound_share: tuple[float, float]
    copy_wait_s: float


def idle_of(
    overlap: Overlap,
    attribution: Attribution,
    steady: Steady,
    compiling: Coverage,
    driver: KernelShare | None,
) -> Idle:
    """Returns a device's idle time in the training phase.

    Args:
        compiling: When torch.compile compiled.
        driver: The share of kernel time by its driver, after warm-up.
    """
    activity, window = overlap.activity, overlap.timeline.window
    start, end = window.loop_start, window.loop_end
    startup_s = max(min(activity.first_ns, end) - start, 0) / 1e9
    copied_s = _inside_s(activity.copying, start, end)
    no_work_s = copied_s + startup_s
    length_s = (end - start) / 1e9
    low_s, high_s = (
        max(_inside_s(at_work, start, end) - no_work_s, 0.0)
        for at_work in (overlap.least, overlap.most)
    )
    sure = _left_s(overlap.most, overlap.most_ns, overlap.timeline, attribution)
    maybe = _left_s(overlap.least, overlap.least_ns, overlap.timeline, attribution)
    because = dict.fromkeys(IDLE_CAUSES, 0.0)
    warming_s, again_s = _once_s(overlap, compiling, steady)
    for key, cause in _CAUSES.items():
        because[cause] += sure[key]
    because["copy_s"] += copied_s
    because["evaluation_s"] = sure["evaluation"]
    because["startup_s"] = startup_s
    maybe_s = max(high_s - low_s, 0.0) + sure[_LAUNCHING]
    because["unknown_s"] = min(maybe_s, length_s - low_s)
    because["host_s"] = max(length_s - low_s - sum(because.values()), 0.0)
    because["compile_s"] = min(again_s, because["unknown_s"])
    because["unknown_s"] -= because["compile_s"]
    worked_s = min(_worked_once_s(overlap, steady), low_s)
    if warming_s + worked_s >= _LEAST_WARMUP * length_s:
        warming_s = min(warming_s, because["unknown_s"])
        because["warmup_s"] = worked_s + warming_s
        because["unknown_s"] -= warming_s
        low_s -= worked_s
    whole_s = max(length_s - because["warmup_s"], low_s) or 1.0
    if driver is not None:
        low_s += _within_driver(because, low_s, overlap, driver, because["warmup_s"])
    launching_s = because["host_s"] + because["launch_s"]
    return Idle(
        busy_share=(low_s / whole_s, (low_s + because["unknown_s"]) / whole_s),
        because_s=because,
        exposed_s={
            name: [sum(left[key] for key in keys) + more_s for left in (sure, maybe)]
            for name, keys, more_s in (
                ("data_wait", LOADER_KEYS, 0.0),
                ("transfer", ("transfer",), copied_s),
                ("sync", ("sync",), 0.0),
            )
        },
        ran_dry=_ran_dry(activity, overlap.timeline),
        launch_bound_share=(
            launching_s / whole_s,
            (launching_s + because["unknown_s"]) / whole_s,
        ),
        copy_wait_s=sure["transfer"],
    )


def _within_driver(
    because: dict[str, float],
    low_s: float,
    overlap: Overlap,
    driver: KernelShare,
    warmup_s: float,
) -> float:
    """Reduces `unknown_s` by the driver's report; returns the additional busy time.

    The driver's figure is of a part of training; before that only marks count.
    """
    activity, window = overlap.activity, overlap.timeline.window
    begin, end = max(driver.span[0], window.loop_start), min(driver.span[1], window.loop_end)
    length_s = max(end - begin, 0) / 1e9
    before_s = max(min(activity.first_ns, begin) - window.loop_start, 0) / 1e9
    copied_s = _inside_s(activity.copying, window.loop_start, begin)
    least_s, most_s = (
        max(
            _inside_s(at_work, window.loop_start, begin) - copied_s - before_s - warmup_s,
            0.0,
        )
        for at_work in (overlap.least, overlap.most)
    )
    if driver.high * length_s < low_s - most_s - _DRIVER_OFF * length_s:
        return 0.0  # it is another device
    unknown_s = because["unknown_s"]
    keeps_up = max(_ran_dry(activity, overlap.timeline).values(), default=1.0) >= _OFTEN_IDLE
    high_s = min(max(driver.high * length_s + most_s - low_s, 0.0), unknown_s)
    least_s = min(max(driver.low(keeps_up=keeps_up) * length_s + least_s - low_s, 0.0), high_s)
    because["launch_s"] += unknown_s - high_s
    because["unknown_s"] = high_s - least_s
    return least_s


# A key of `_left_s`: while the host launched kernels.
_LAUNCHING: Final = "launching"


def _left_s(
    covered: Coverage, covered_ns: Int64, timeline: Timeline, attribution: Attribution
) -> dict[str, float]:
    """Returns the training phase's time outside `covered` by ledger key, in seconds.

    Phases are summed under `_LAUNCHING`, those of evaluation too; Python between is excluded.
    """
    events, window = timeline.events, timeline.window
    in_loop = (events.start >= window.loop_start) & (events.start < window.loop_end)
    left = np.maximum(timeline.nesting.own_ns - covered_ns, 0)
    launching = launches_kernels(timeline) & in_loop
    left_s = {_LAUNCHING: float(left[launching].sum() / 1e9)}
    in_evaluation = within(timeline.segments, events.start)
    for key in _CAUSES:
        mine = in_loop & ~launching & ~in_evaluation & (attribution.key == KEY[key])
        left_s[key] = float(left[mine].sum() / 1e9)
    segments = Coverage.of(timeline.segments, (window.loop_start, window.loop_end))
    evaluating = segments.total_ns() - int(covered.inside_ns(segments.starts, segments.ends).sum())
    left_s["evaluation"] = max(evaluating - int(left[launching & in_evaluation].sum()), 0) / 1e9
    return left_s


def _part_of_step(events: Events, nesting: Nesting) -> Bool:
    """Returns which events are a part of a step, and not of a phase around it.

    A scaler's step is around the optimizer's, and the optimizer's around the closure that computes
    a step, as in Lightning.
    """
    closures = np.flatnonzero(events.is_kind(Kind.CLOSURE) & (nesting.parent >= 0))
    calls_closure = np.zeros(len(events), dtype=bool)
    calls_closure[nesting.parent[closures]] = True
    around = events.is_kind(Kind.CLOSURE, Kind.SCALER_STEP)
    around |= events.is_kind(Kind.OPTIMIZER_STEP) & calls_closure
    return ~nesting.inside(~around)


def _ran_dry(activity: Activity, timeline: Timeline) -> dict[str, float]:
    events, shares = timeline.events, {}
    trains = ~within(timeline.segments, events.start)
    trains &= _part_of_step(events, timeline.nesting)
    for name, kind in zip(KEEPS_UP_IN, _KEEPS_UP_KINDS, strict=True):
        phase = events.where(events.is_kind(kind) & trains)
        _, last, known = activity.marks.ends_of(phase)
        left = (activity.reached_ns[last] - activity.marks.put_ns[last])[known]
        took = (phase.end - phase.start)[known]
        if len(left):
            shares[name] = float((left <= np.maximum(_LEFT_SHARE * took, _LEFT_NS)).mean())
    return shares


def _inside_s(covered: Coverage, start: int, end: int) -> float:
    bounds = np.array([start, end], dtype=np.int64)
    return float(np.diff(covered.until(bounds))[0]) / 1e9


def _worked_once_s(overlap: Overlap, steady: Steady) -> float:
    """Returns the low busy time of the first steps beyond that of steady ones."""
    timeline = overlap.timeline
    starts, ends = timeline.step_starts, timeline.steps.ends
    if not steady.warmup or not steady.mask.any():
        return 0.0
    worked = overlap.least.inside_ns(starts, ends)
    worked = worked - overlap.activity.copying.inside_ns(starts, ends)
    # The unknown time before the first mark is included.
    unknown = np.clip(overlap.activity.first_ns - starts, 0, ends - starts)
    worked = np.maximum(worked - unknown, 0)
    usual_ns = worked[steady.mask].mean()
    return max(float(worked[: steady.warmup].sum() - steady.warmup * usual_ns), 0.0) / 1e9


def _once_s(overlap: Overlap, compiling: Coverage, steady: Steady) -> tuple[float, float]:
    """Returns warm-up, and later compilation, while the device may have been idle.

    Warm-up is the first steps beyond the time of steady ones, and compilation in them.
    """
    timeline = overlap.timeline
    events, ends = timeline.events, timeline.steps.ends
    launching = launches_kernels(timeline) & ~within(timeline.segments, events.start)
    launching &= events.start >= timeline.window.loop_start
    around = timeline.nesting.innermost(events, compiling.starts)
    # In Python between the phases it counts as the host's time.
    compiled_ns = np.where((around >= 0) & launching[around], compiling.ends - compiling.starts, 0)
    inside_ns = overlap.least.inside_ns(compiling.starts, compiling.ends)
    compiled_ns = np.maximum(compiled_ns - inside_ns, 0)
    launched_ns = np.maximum(timeline.nesting.own_ns - overlap.least_ns, 0)[launching]
    launched_of_step = np.zeros(len(ends) + 1)
    np.add.at(
        launched_of_step,
        np.searchsorted(ends, events.start[launching], side="right"),
        launched_ns,
    )
    compiled_in = np.searchsorted(ends, compiling.starts, side="right")
    np.subtract.at(launched_of_step, compiled_in, compiled_ns)
    launched_of_step = np.maximum(launched_of_step[:-1], 0)
    usual_ns = launched_of_step[steady.mask].mean() if steady.mask.any() else np.inf
    warming_ns = (
        launched_of_step[: steady.warmup].sum() - steady.warmup * usual_ns if steady.warmup else 0.0
    )
    again_ns = compiled_ns[compiled_in >= max(steady.warmup, 1)].sum()
    once_ns = compiled_ns.sum() - again_ns + max(warming_ns, 0.0)
    return float(once_ns) / 1e9, float(again_ns) / 1e9
