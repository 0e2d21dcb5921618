"""What the probes of one process share, and the attaching of them."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from time import perf_counter_ns
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from trainprof.inside.device.accelerator import Accelerator
from trainprof.inside.limits.limit import Limit
from trainprof.inside.patching.call_site import CallSites
from trainprof.inside.patching.patcher import HookPointMissing, Patcher, let_dynamo_skip
from trainprof.inside.signals import ModuleCall, Signal
from trainprof.record.event_log import EventLog
from trainprof.record.notes import NUMBER, Note, record_of
from trainprof.record.schema import Topic

if TYPE_CHECKING:
    from trainprof.inside.stacks.early import EarlySample

# How many references are kept before the dead among them are dropped.
KEPT_AT_FIRST = 64


class Probe(Protocol):
    """One thing watched. `attach` patches a torch that the script has just imported."""

    name: str

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None: ...


class Session:
    """Owns what probes share: the log, the clocks, call sites, signals, the run's limits.

    Attributes:
        emit: The log's; probes bind it once, and it stays good in a forked child.
        phase_now: The clock of phases that devices work on: it leaves marks in their streams, or
            under --cuda-sync waits for them.
        copy_now: The clock at which copies begin: most calls turn out to copy nothing.
        wait_now: The clock of what the host waits in while a device may work: it leaves marks.
        accelerator: What knows the devices in use, where a probe has to.
        on_thread: On a thread that computes or prepares batches, at its first.
        on_parameters: With an optimizer that is about to get parameters.
        on_first_step, on_step: With an optimizer that has made its first step, each step.
        on_backward: With what a pass starts from, and the engine's further arguments.
        on_copy_begin, on_copy_end: With the time of it.
        on_h2d_copy: With each tensor of the host's that is copied to a device.
        optimizer_numbers: By id, of those that have stepped: the number that records have of each.
        threads_set_at: The site of what last set torch's number of threads; 0 where nothing has,
            and in a loader's worker where none of the script's code has there.
        is_compiling: Whether torch.compile is tracing through us: it is to find nothing of ours.
        early_stacks: Samples of the main thread up to torch's import, where it is to be sampled.
        inspection_ns: What probes took to inspect loaders and calls, besides their records.
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
        self.accelerator: Accelerator | None = None
        self.on_thread: Signal[[]] = Signal()
        self.on_parameters: Signal[[Any]] = Signal()
        self.on_first_step: Signal[[Any]] = Signal()
        self.on_step: Signal[[Any]] = Signal()
        self.on_module_call: Signal[[ModuleCall]] = Signal()
        self.on_backward: Signal[[Any, tuple[Any, ...], dict[str, Any]]] = Signal()
        self.on_backward_end: Signal[[]] = Signal()
        self.on_anomalous_backward: Signal[[]] = Signal()
        self.on_copy_begin: Signal[[int]] = Signal()
        self.on_copy_end: Signal[[int]] = Signal()
        self.on_h2d_copy: Signal[[Any]] = Signal()
        self.on_device_wait: Signal[[]] = Signal()
        self.on_end: Signal[[]] = Signal()
        self.on_end.subscribe(self._note_inspection)
        self.early_stacks: list[EarlySample] | None = None
        self.optimizer_numbers: dict[int, int] = {}
        self.threads_set_at = self.inspection_ns = 0
        self.emit = log.emit
        self.sites = CallSites(log, cwd)
        self.is_compiling: Callable[[], bool] = lambda: False
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
        for function in (self.emit, self.sites.find, self.log.define, Signal.__call__):
            let_dynamo_skip(function, and_all_below=True)
        compiler = getattr(torch, "compiler", None)
        self.is_compiling = getattr(compiler, "is_compiling", self.is_compiling)
        for probe in probes:
            patcher = Patcher(probe.name, self._probe_failed, self.unavailable)
            self._patchers.append(patcher)
            try:
                probe.attach(torch, patcher, self)
            except (HookPointMissing, AttributeError) as missing:
                self.unavailable(probe.name, str(missing))
            except Exception as error:
                patcher.fail(error)

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

    def count_inspection(self, since_ns: int) -> None:
        """Counts the time since then as that of an inspection."""
        self.inspection_ns += self.now() - since_ns

    def _note_inspection(self) -> None:
        if self.inspection_ns:
            self.log.note(Topic.ENVIRONMENT, {"looked_ns": self.inspection_ns})

    def _probe_failed(self, probe: str, error: BaseException) -> None:
        fault = {"probe": probe, "error": f"{type(error).__name__}: {error}"}
        self.log.note(Topic.PROBE_FAILED, fault)
