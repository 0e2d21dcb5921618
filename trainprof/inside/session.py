"""What the probes of one process share, and the attaching of them."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter_ns
from types import ModuleType
from typing import Any, Protocol

from trainprof.inside.device.accelerator import Accelerator
from trainprof.inside.limits.limit import Limit
from trainprof.inside.patching.call_site import CallSites
from trainprof.inside.patching.patcher import (
    CompilerState,
    HookPointMissing,
    Patcher,
    let_dynamo_skip,
)
from trainprof.record.event_log import EventLog
from trainprof.record.notes import NUMBER, Note, record_of
from trainprof.record.schema import Topic

# How many references are kept before the dead among them are dropped.
KEPT_AT_FIRST = 64


@dataclass(frozen=True, slots=True)
class ModuleCall:
    """An outermost call of a module that has ended: its arguments by position and by name.

    `output` is None where it failed, `site` the user's line that called it, `took_ns` on the host.
    """

    module: Any
    output: Any
    inputs: tuple[tuple[Any, ...], dict[str, Any]]
    site: int
    took_ns: int


ModuleWatch = Callable[[ModuleCall], None]
CopyWatch = Callable[[Any], None]
StepWatch = Callable[[Any], None]


class Probe(Protocol):
    """One thing watched. `attach` patches a torch that the script has just imported."""

    name: str

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None: ...


@dataclass(frozen=True, slots=True)
class BackwardWatch:
    """What is to be called around each backward pass.

    `begins` gets what it starts from, and the further arguments of the engine's Python door.
    `has_ended` is called however it did, `gives` behind that with its result.
    """

    begins: Callable[[Any, tuple[Any, ...], dict[str, Any]], None]
    has_ended: Callable[[], None]
    gives: Callable[[Any], None] | None = None


class Session:
    """Owns what probes share: the log, the clock, call sites, the run's limits.

    Attributes:
        emit: The log's; probes bind it once, and it stays good in a forked child.
        phase_now: The clock of phases that devices work on: it leaves marks in their streams, or
            under --cuda-sync waits for them.
        copy_now: The clock at which copies begin: most calls turn out to copy nothing.
        wait_now: The clock of what the host waits in while a device may work: it leaves marks.
        mark_copy_begin, mark_copy_end: Leave a mark for a copy that begins or has ended at the time
            they are called with; None where no marks are left.
        accelerator: What knows the devices in use, where a probe has to.
        look_here: To be called by a thread that computes or prepares batches, at its first: its
            stack is sampled from then on.
        at_parameters: Called with an optimizer that is about to get parameters.
        at_first_step: Called with an optimizer that has made its first step.
        optimizer_numbers: By id, of those that have stepped: the number that records have of each.
        countdown: Of updates, in its only place; at 0, `at_countdown` is called.
        step_watches: Called with each optimizer that has made a step.
        backward_watches: Of each backward pass.
        copy_watches: Called with each tensor of the host's that is copied to a device.
        at_anomalous_backward: Called after a backward pass under anomaly detection.
        tell_modules: Has something called with each outermost call of a module: from when it is
            given True on until it is given False.
        device_was_waited_for: Called when the script has waited for one, where that matters.
        threads_set_at: The site of what last set torch's number of threads; 0 where nothing has,
            and in a loader's worker where none of the script's code has there.
        looked_ns: What probes took to look closer at loaders and calls, besides their records.
        at_end: Called as the process comes to its end, if it comes that far.
        begun_in: Where the run was started, None if that is not known. This process may have been
            elsewhere, and files of one run have one name.
    """

    def __init__(
        self,
        log: EventLog,
        *,
        cwd: str,
        options: dict[str, object] | None = None,
        now: Callable[[], int] = perf_counter_ns,
    ) -> None:
        self.log = log
        self.now = self.phase_now = self.copy_now = self.wait_now = now
        self.mark_copy_begin: Callable[[int], None] | None = None
        self.mark_copy_end: Callable[[int], None] | None = None
        self.accelerator: Accelerator | None = None
        self.look_here: Callable[[], None] = _nothing
        self.at_parameters: list[Callable[[Any], None]] = []
        self.at_first_step: list[Callable[[Any], None]] = []
        self.optimizer_numbers: dict[int, int] = {}
        self.countdown = [0]
        self.at_countdown: Callable[[], None] = _nothing
        self.step_watches: tuple[StepWatch, ...] = ()
        self.backward_watches: tuple[BackwardWatch, ...] = ()
        self.copy_watches: tuple[CopyWatch, ...] = ()
        self.at_anomalous_backward: Callable[[], None] = _nothing
        self.tell_modules: Callable[[ModuleWatch, bool], None] = _nothing
        self.device_was_waited_for: Callable[[], None] | None = None
        self.threads_set_at = 0
        self.looked_ns = 0
        self.at_end: list[Callable[[], None]] = [self._note_looks]
        self.emit = log.emit
        self.sites = CallSites(log, cwd)
        self.compiler = CompilerState()
        self.options = options or {}
        begun_in = self.options.get("cwd", cwd)
        self.begun_in = begun_in if isinstance(begun_in, str) else None
        self.limit = Limit(log, self.options, now)
        self._patchers: list[Patcher] = []
        self._states = 0
        self._kept: deque[weakref.ref[Any]] = deque()
        self._kept_limit = KEPT_AT_FIRST

    def attach(self, torch: ModuleType, probes: Iterable[Probe]) -> None:
        """Attaches every probe; one that torch's version does not offer is noted, the rest work."""
        version = getattr(torch, "version", None)
        versions = {name: getattr(version, name, None) for name in ("cuda", "hip")}
        name = str(getattr(torch, "__version__", "unknown"))
        self.log.note(Topic.ENVIRONMENT, {"torch": name, **versions})
        for function in (self.emit, self.sites.find, self.log.define):
            let_dynamo_skip(function, and_all_below=True)
        question = getattr(getattr(torch, "compiler", None), "is_compiling", None)
        if question is not None:
            self.compiler.is_compiling = question
        for probe in probes:
            self.attach_probe(probe, torch)

    def attach_probe(self, probe: Probe, torch: ModuleType) -> Patcher:
        """Attaches one probe under a patcher of its own and returns that."""
        patcher = Patcher(probe.name, self._probe_failed, self.unavailable)
        self._patchers.append(patcher)
        try:
            probe.attach(torch, patcher, self)
        except (HookPointMissing, AttributeError) as missing:
            self.unavailable(probe.name, str(missing))
        except Exception as error:
            patcher.fail(error)
        return patcher

    def unavailable(self, probe: str, reason: str) -> None:
        self.log.note(Topic.PROBE_UNAVAILABLE, {"probe": probe, "reason": reason})

    def note(self, notes: Note | Sequence[Note], key: str | None = None) -> None:
        """Writes what holds from now on: of each key the last note counts."""
        self.note_state(record_of(notes, key))

    def note_state(self, state: Mapping[str, object]) -> None:
        """Notes what holds from now on: of each key the last note counts."""
        self._states += 1
        self.log.note(Topic.ENVIRONMENT, {**state, NUMBER: self._states})

    def detach(self) -> None:
        """Undoes every patch, last first."""
        for patcher in reversed(self._patchers):
            patcher.undo()
        self._patchers.clear()

    def watch_backward(self, watch: BackwardWatch, *, is_on: bool) -> None:
        self.backward_watches = _switched(self.backward_watches, watch, is_on)

    def watch_steps(self, watch: StepWatch, *, is_on: bool) -> None:
        self.step_watches = _switched(self.step_watches, watch, is_on)

    def watch_copies(self, watch: CopyWatch, *, is_on: bool) -> None:
        self.copy_watches = _switched(self.copy_watches, watch, is_on)

    def keep_track(self, thing: object, table: dict[Any, Any], key: object) -> bool:
        """Takes `key` out of `table` when `thing` is gone, without hanging anything on it.

        No Python code runs then: a debugger that steps through the script would stop in it.
        Returns False where it cannot be watched (a class with slots): it is never forgotten.
        """
        if len(self._kept) >= self._kept_limit:
            self._drop_dead()
        try:
            # Called with the reference, which is then the default of `pop`.
            self._kept.append(weakref.ref(thing, partial(table.pop, key)))
        except TypeError:
            return False
        return True

    def _drop_dead(self) -> None:
        """Drops references to what is gone; another thread may add some."""
        for _ in range(len(self._kept)):
            reference = self._kept.popleft()
            if reference() is not None:
                self._kept.append(reference)
        self._kept_limit = max(KEPT_AT_FIRST, 2 * len(self._kept))

    def looked_since(self, since_ns: int) -> int:
        """Counts the time since then as that of a closer look, and returns it, ns."""
        spent_ns = self.now() - since_ns
        self.looked_ns += spent_ns
        return spent_ns

    def _note_looks(self) -> None:
        if self.looked_ns:
            self.log.note(Topic.ENVIRONMENT, {"looked_ns": self.looked_ns})

    def _probe_failed(self, probe: str, error: BaseException) -> None:
        self.log.note(
            Topic.PROBE_FAILED, {"probe": probe, "error": f"{type(error).__name__}: {error}"}
        )


def _switched(watches: tuple[Any, ...], watch: Any, is_on: bool) -> tuple[Any, ...]:
    others = tuple(other for other in watches if other is not watch)
    return (*others, watch) if is_on else others


def _nothing(*_: object) -> None:
    return None
