"""Stack samples as a flame graph: the training thread, loaders' workers, other sampled threads."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from trainprof.analysis.run.metadata import Metadata, Sites, integers
from trainprof.analysis.stacks.hot_lines import FETCH, TRAINING_THREAD
from trainprof.analysis.stacks.samples import (
    is_part_of,
    library_call,
    sampled_threads,
    thread_samples,
)
from trainprof.analysis.summary.charts import (
    BETWEEN,
    MET_LATE,
    NO_LINE,
    RARER,
    UNKNOWN_LINE,
    Stacks,
)
from trainprof.analysis.summary.run import LEDGER_KEYS
from trainprof.analysis.timeline.intervals import EVER, Coverage
from trainprof.analysis.timeline.ledger import KEY, Window
from trainprof.record.schema import FETCHED, KEPT_FRAMES, Kind, Topic

if TYPE_CHECKING:
    from trainprof.analysis.run.analysed import Analysed
    from trainprof.analysis.stacks.loss_in_loop import SampledLoop
    from trainprof.analysis.stacks.samples import StackSamples
    from trainprof.analysis.timeline.events import Bool, Events, Int64

WORKERS: Final = "workers"
MAIN_THREAD: Final = "main"
# A sample stands for the time since the last one, up to this: a fork takes none.
_LONGEST_NS: Final = 500_000_000
# Of a thread's first sample: the sampler's period at first.
_FIRST_NS: Final = 40_000_000
_MOST_STACKS: Final = 5_000
# Of those, reserved for what rarer stacks have in common.
_COMMON_STACKS: Final = 500
_KNOWN, _LATE, _UNKNOWN = range(3)
_ENDS: Final = ((), ((MET_LATE, ""),), ((UNKNOWN_LINE, ""),))
_PHASES: Final = (*LEDGER_KEYS, FETCH)
_FETCH: Final = _PHASES.index(FETCH)

_PROBES: Final = re.compile(r"[\\/]trainprof[\\/](?:inside|findings|record)[\\/]")

# (function, place).
Frame = tuple[str, str]
_FETCH_FRAME: Final = ("fetch", "torch.utils.data")
_IMPORT_MACHINERY: Final = "importlib"


def stacks_of(run: Analysed, loop: SampledLoop) -> Stacks:
    """Returns the samples of the run, or of its part, by thread and phase.

    Every moment at which a sample was due counts, for its phase at that moment: late samples do not
    bias a phase's time. A sample stands for the time since the thread's last one, because later
    ones are farther apart. Its stack is known where the thread had not continued (`is_known`): the
    GIL was free, or was held by Python code or one long C call. Other samples met the next code
    that released the GIL, such as reading a file: theirs end in MET_LATE, or are UNKNOWN_LINE if
    the phase is another by then. So a function's share of a phase is at least that of its stacks
    without MET_LATE, and at most that and all late samples of the phase. Before and after the loop
    all samples count as known, as in outside_loop.py: imports and lines there take much longer than
    a sample is late.

    Of workers only samples inside a fetch count.
    """
    counted, window = _Counted(), run.timeline.window
    process = run.process
    names = _StackNames(run.metadata, run.sites())
    for thread in sampled_threads(process.details):
        is_training = thread == run.timeline.thread
        samples = loop.samples if is_training else thread_samples(process.details, thread)
        phases = _phases(loop, samples)
        if is_training:
            name = TRAINING_THREAD
        else:
            name = MAIN_THREAD if thread == process.main_thread else f"thread {thread}"
            phases = np.where(
                _is_fetching(run.timeline.all_events, thread, samples), _FETCH, phases
            )
        counted.add(name, names, samples, phases, window)
    for log in process.workers:
        metadata = Metadata({topic: log.texts_of(topic) for topic in (Topic.STACK, Topic.SITE)})
        names = _StackNames(metadata, metadata.sites(run.recording.manifest.get("cwd")))
        for thread in sampled_threads(log.details):
            samples = thread_samples(log.details, thread)
            phases = np.where(_is_fetching(log.events, thread, samples), _FETCH, -1)
            counted.add(WORKERS, names, samples, phases, window)
    return counted.stacks()


def _phases(loop: SampledLoop, samples: StackSamples) -> Int64:
    """Returns the phases that training was in when samples were taken and due, shape (2, n).

    Other than in the ledger, garbage collection while modules are imported is start-up.
    """
    window = loop.parts.window
    whole = Window(window.start, window.start, window.end, window.end)
    phases = np.stack(replace(loop.parts, window=whole).keys_of(samples))
    times = _times(samples)
    is_uncovered = (phases == KEY["other"]) | (phases == KEY["gc"])
    phases[is_uncovered & (times < window.loop_start)] = KEY["startup"]
    phases[is_uncovered & (times >= window.loop_end)] = KEY["shutdown"]
    return phases


def _is_fetching(events: Events, thread: int, samples: StackSamples) -> Bool:
    """Returns whether a thread prepared a batch when samples were taken and due, shape (2, n)."""
    own, times = (
        events.where(events.is_kind(Kind.FETCH) & (events.thread == thread)),
        _times(samples),
    )
    fetches = Coverage.of(np.stack((own.start, own.end), axis=1), EVER)
    is_fetching: Bool = fetches.inside_ns(times, times + 1) > 0
    return is_fetching


def _times(samples: StackSamples) -> Int64:
    return np.stack((samples.taken_ns, samples.wanted_ns))


class _Counted:
    """Equal stacks added up: samples and ns, by thread, phase and frames, outermost first."""

    def __init__(self) -> None:
        self._spent: dict[tuple[str, str, tuple[Frame, ...]], tuple[int, float]] = {}

    def add(
        self,
        thread: str,
        names: _StackNames,
        samples: StackSamples,
        phases: Int64,
        window: Window,
    ) -> None:
        """Adds a thread's samples in a window.

        Args:
            phases: When they were taken and due, indices of _PHASES, shape (2, n); samples of -1
                are left out.
        """
        (met, phase), wanted = phases, samples.wanted_ns
        since = np.diff(wanted, prepend=wanted[:1] - _FIRST_NS)
        is_known = samples.is_known | np.isin(phase, [KEY["startup"], KEY["shutdown"]])
        end = np.select([is_known, met == phase], [_KNOWN, _LATE], _UNKNOWN)
        columns = np.stack((phase, np.where(end == _UNKNOWN, 0, samples.stack), end), axis=1)
        is_here = (phase >= 0) & (wanted >= window.start) & (wanted < window.end)
        rows, which = np.unique(columns[is_here], axis=0, return_inverse=True)
        which = which.ravel()
        spent_ns = np.bincount(which, weights=np.clip(since, 0, _LONGEST_NS)[is_here])
        for row, n, ns in zip(rows.tolist(), np.bincount(which), spent_ns, strict=True):
            key, number, how = row
            frames = () if how == _UNKNOWN else names.frames(number)
            self._add((thread, _PHASES[key], (*frames, *_ENDS[how])), int(n), float(ns))

    def _add(self, key: tuple[str, str, tuple[Frame, ...]], samples: int, ns: float) -> None:
        before, before_ns = self._spent.get(key, (0, 0.0))
        self._spent[key] = before + samples, before_ns + ns

    def stacks(self) -> Stacks:
        self._fold_rare()
        numbers: dict[Frame, int] = {}
        stacks = [
            (
                thread,
                phase,
                samples,
                [numbers.setdefault(frame, len(numbers)) for frame in frames],
                ns / 1e9,
            )
            for (thread, phase, frames), (samples, ns) in self._spent.items()
        ]
        return Stacks(
            frames=list(numbers), stacks=sorted(stacks, key=lambda stack: (stack[0], stack[3]))
        )

    def _fold_rare(self) -> None:
        """Cuts the rarest stacks of too many down to a few outer frames, and adds them up."""
        if len(self._spent) <= _MOST_STACKS:
            return
        in_order = sorted(self._spent.items(), key=lambda item: -item[1][1])
        kept = _MOST_STACKS - _COMMON_STACKS
        rare = in_order[kept:]
        for depth in (8, 4, 2, 1, 0):
            folded = _Counted()
            for (thread, phase, frames), spent in rare:
                cut = frames if len(frames) <= depth else (*frames[:depth], (RARER, ""))
                folded._add((thread, phase, cut), *spent)
            if len(folded._spent) <= _COMMON_STACKS:
                break
        self._spent = dict(in_order[:kept])
        for key, spent in folded._spent.items():
            self._add(key, *spent)


class _StackNames:
    """Frames of a process's stacks, by the id of their STACK text; nothing in it is trusted."""

    def __init__(self, metadata: Metadata, sites: Sites) -> None:
        self._stacks: Mapping[int, Any] = metadata.texts[Topic.STACK]
        self._places: Mapping[int, Any] = metadata.texts[Topic.SITE]
        self._sites = sites

    def frames(self, stack: int) -> tuple[Frame, ...]:
        """Returns the frames of a stack, outermost first: the user's, and libraries' below them."""
        text = self._stacks.get(stack)
        text = text if isinstance(text, list) else []
        numbers = [n for n in text if isinstance(n, int)]
        frames: list[Frame] = []
        for at, number in enumerate(reversed(numbers)):
            name, place = self._frame(number)
            if frames and is_part_of((place, name), frames[-1][::-1]):
                frames[-1] = frames[-1][0], place
            elif frames[-1:] != [_FETCH_FRAME] or number != FETCHED:  # torch's comprehension
                frames.append((name, place))
            if at == KEPT_FRAMES - 1 and len(numbers) == 2 * KEPT_FRAMES:
                frames.append((BETWEEN, ""))
        frames += self._libraries(text, is_all=not frames)
        return tuple(frames) or ((NO_LINE, ""),)

    def _frame(self, number: int) -> Frame:
        if number == FETCHED:
            return _FETCH_FRAME
        place = self._places.get(number)
        name = str(place[2]) if isinstance(place, list) and len(place) > 2 else ""
        return name, self._sites[number]

    def _libraries(self, text: list[Any], *, is_all: bool) -> Iterator[Frame]:
        """Returns the library functions that a stack ends in.

        With `is_all` also the one that is outermost in a stack without frames of the user.
        """
        for item in text:
            if not isinstance(item, list):
                continue
            if len(item) == 2 and any(isinstance(name, str) for name in item):
                imported, caller = item
                if isinstance(imported, str):
                    yield f"import {imported}".strip(), imported or _IMPORT_MACHINERY
                elif is_all:
                    package, _, function = caller.partition(".")
                    yield function, package
            else:
                for place in map(self._places.get, integers(item)):
                    if not _is_ours(place):
                        module, _, function = library_call(place).partition(" (")
                        yield function.removesuffix(")"), module


def _is_ours(place: Any) -> bool:
    """Whether a place is in a probe: imports and garbage collections run some."""
    return isinstance(place, list) and _PROBES.search(str(place[:1])) is not None
