"""Python code inside the model: by how long it held the GIL, and by values it reads one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

import numpy as np

from trainprof.analysis.run.metadata import Sites
from trainprof.analysis.stacks.hot_lines import lines_met
from trainprof.analysis.stacks.samples import MIN_SAMPLES, LineNames, PartsOfLoop, StackSamples
from trainprof.analysis.summary.code import ElementReads, HotLine, PythonInModel
from trainprof.analysis.timeline.events import Bool, Int64
from trainprof.analysis.timeline.ledger import KEY
from trainprof.record.schema import Kind, SyncFlag

PARTS: Final = ("forward", "loss", "backward", "recompute")
# Between two torch operators Python takes 10 to 30 us (0.1 ms on a slow, busy machine).
HELD_NS: Final = 100_000
# Of the samples that waited: with more of them in time, those show the line.
_SURE_SHARE: Final = 0.25
# Of all samples at a line: with fewer that waited it computes with torch too.
_OWN_LINE_SHARE: Final = 0.7
# Of the samples that waited: with more at the end of backward's calls, those take most of it.
_MOSTLY: Final = 0.5
# Samples that waited: fewer can be chance.
MIN_HELD: Final = 12
# Of the samples: with more that met another thread running, that thread may have held the GIL.
_CROWDED_SHARE: Final = 0.02
# Of training: less is not reported.
REPORTED_FROM_SHARE: Final = 0.1
# Reads in a forward: a few are decisions of the model, more are a loop over numbers.
MANY: Final = 64
# From one read to the next: a loop with more work for each gains little from whole tensors.
_TINY_NS: Final = 100_000
# A single one may fill a buffer for all others.
_MIN_PASSES: Final = 3


def python_in_model(
    samples: StackSamples,
    parts: PartsOfLoop,
    seconds: Mapping[str, float],
    names: LineNames,
    *,
    settled_ns: int,
) -> PythonInModel | None:
    """Returns what the samples show; None if too few of them waited.

    None also if another thread of the process runs Python code now and then.

    Args:
        seconds: Of each part inside the loop, by ledger key.
        settled_ns: When warm-up was over: a first forward imports and compiles.
    """
    settled = samples.where(samples.wanted_ns >= settled_ns)
    settled = settled.where(np.argsort(settled.wanted_ns, kind="stable"))
    part, is_held = parts.at(settled.wanted_ns), _is_other_code(settled)
    in_model = np.isin(part, [KEY[name] for name in PARTS])
    if np.count_nonzero(in_model & ~settled.is_alone) > _CROWDED_SHARE * np.count_nonzero(in_model):
        return None
    alone = settled.is_alone
    settled, part, is_held = settled.where(alone), part[alone], is_held[alone]
    seconds_by_part: dict[str, float] = {}
    is_counted = np.zeros(len(settled), dtype=bool)
    for name in PARTS:
        here = part == KEY[name]
        if np.count_nonzero(here) >= MIN_SAMPLES:
            is_counted |= here
            seconds_by_part[name] = float(is_held[here].mean()) * seconds.get(name, 0.0)
    held = int(np.count_nonzero(is_counted & is_held))
    if held < MIN_HELD:
        return None
    most = max(seconds_by_part, key=lambda name: seconds_by_part[name])
    in_backward = part[is_counted] == KEY["backward"]
    counted, whole_s = settled.where(is_counted), sum(seconds_by_part.values())
    # Python that backward calls has its own lines: at the line of backward it had just ended.
    has_ended = _is_other_code(counted) & in_backward
    has_ended &= _at_calls(counted.stack, in_backward, names)
    lines, behind = _lines(most, counted, ~has_ended, names, whole_s)
    mostly_ended = not lines and bool(has_ended.sum() >= _MOSTLY * held)
    return PythonInModel(
        samples=len(counted),
        held=held,
        seconds=seconds_by_part,
        lines=lines,
        behind=None if mostly_ended else behind,
        called_by_backward=mostly_ended,
    )


def _at_calls(stacks: Int64, in_backward: Bool, names: LineNames) -> Bool:
    """Returns which stacks are of calls of backward, outside of the functions that it calls.

    A hook's stack has the frames of that call behind its own.
    """
    numbers = np.unique(stacks[in_backward]).tolist()
    frames = {number: names.frames(number) for number in numbers}
    met = set(frames.values())
    calls = [
        number
        for number, stack in frames.items()
        if not any(stack[outer:] in met for outer in range(1, len(stack)))
    ]
    at_calls: Bool = np.isin(stacks, calls)
    return at_calls


def _lines(
    part: str, samples: StackSamples, may_be_there: Bool, names: LineNames, seconds: float
) -> tuple[list[HotLine], HotLine | None]:
    """Returns the lines of such code, or else the line after it.

    A sample that waited for less than the GIL's switch interval shows where the code released it:
    in its own line, or in a later operator, which samples without a wait meet too.
    """
    is_held = _is_other_code(samples) & may_be_there
    is_sure = is_held & samples.is_known
    sure = int(np.count_nonzero(is_sure))
    if sure >= max(MIN_SAMPLES, _SURE_SHARE * np.count_nonzero(is_held)):
        return lines_met(part, names.stacks(samples.stack[is_sure]), sure, seconds), None
    held = int(np.count_nonzero(is_held))
    met = lines_met(part, names.stacks(samples.stack[is_held]), held, seconds)
    waited, at_all = (_by_line(names, samples.stack[mask]) for mask in (is_held, slice(None)))
    lines = [line for line in met if waited[line.site] >= _OWN_LINE_SHARE * at_all[line.site]]
    behind = met[0] if met and met[0] not in lines else None
    return lines, behind


def _is_other_code(samples: StackSamples) -> Bool:
    """Returns which samples met other code than torch operators.

    Python that holds the GIL, or arrays inside a library such as SciPy. Arrays in the user's code
    resemble a torch operator.
    """
    is_other: Bool = (samples.held_ns >= HELD_NS) | samples.of_arrays
    return is_other


def _by_line(names: LineNames, stacks: Int64) -> Counter[str]:
    counted = Counter[str]()
    for stack, count in names.stacks(stacks).items():
        if stack.frames:
            counted[stack.frames[0][0]] += count
    return counted


def element_reads(
    parts: PartsOfLoop, seconds: Mapping[str, float], sites: Sites, span: tuple[int, int]
) -> ElementReads | None:
    """Returns the reads of the model part that loses most time to them; None if they are few.

    Args:
        seconds: Of each part, by ledger key.
        span: From the end of warm-up until counting of reads ended, ns.
    """
    each = (_reads_in(name, parts, seconds, sites, span) for name in ("forward", "loss"))
    reads = [part for part in each if part is not None]
    return max(reads, key=lambda part: part.seconds, default=None)


def _reads_in(
    name: str,
    parts: PartsOfLoop,
    seconds: Mapping[str, float],
    sites: Sites,
    span: tuple[int, int],
) -> ElementReads | None:
    events = parts.events
    is_read = events.is_kind(Kind.SYNC) & events.has(SyncFlag.ON_CPU)
    if np.count_nonzero(is_read) < _MIN_PASSES * MANY:
        return None
    is_pass = events.is_kind(Kind.FORWARD, Kind.LOSS)
    is_pass &= (events.start >= span[0]) & (events.end <= span[1])
    is_pass[is_pass] = parts.at(events.start[is_pass]) == KEY[name]
    if not is_pass.any():
        return None
    around = parts.nesting.nearest(is_pass)
    reads = np.flatnonzero(is_read & (around >= 0))
    _, of_pass, per_pass = np.unique(around[reads], return_inverse=True, return_counts=True)
    is_one_of_many = per_pass[of_pass] >= MANY
    reads, of_pass = reads[is_one_of_many], of_pass[is_one_of_many]
    passes = int(np.count_nonzero(per_pass >= MANY))
    whole_ns = int((events.end[is_pass] - events.start[is_pass]).sum())
    if passes < _MIN_PASSES or whole_ns <= 0:
        return None
    gaps_ns = np.diff(events.start[reads])
    is_inside = (np.diff(of_pass) == 0) & (gaps_ns < _TINY_NS)
    share = float(gaps_ns[is_inside].sum()) / whole_ns
    places, counts = np.unique(events.site[reads], return_counts=True)
    return ElementReads(
        part=name,
        site=sites[int(places[counts.argmax()])],
        per_pass=len(reads) / passes,
        share=share,
        seconds=share * seconds.get(name, 0.0),
    )
