"""The session of one process: what its probes share. It attaches and detaches them."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from time import perf_counter_ns
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Protocol

from trainprof.inside.device.accelerator import Accelerator
from trainprof.inside.limits.limit import Limit
from trainprof.inside.patching.call_site import CallSites
from trainprof.inside.patching.patcher import (
    HookPointMissing,
    InC,
    Patcher,
    Wrapped,
    let_dynamo_skip,
)
from trainprof.inside.signals import ModuleCall, Signal
from trainprof.record.event_log import EventLog
from trainprof.record.hot import compiled
from trainprof.record.notes import NUMBER, Note, record_of
from trainprof.record.schema import Topic

Clock = Callable[[], int]

if TYPE_CHECKING:
    from trainprof.inside.stacks.early import EarlySample

_COMPILING: Final = "_is_compiling_flag"
# Number of weak references at which dead ones are dropped first.
KEPT_AT_FIRST = 64


class Probe(Protocol):
    """Records one kind of event. `attach` patches torch, which the script just imported."""

    name: str

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None: ...


class Session:
    """Owns what probes share: the log, the clocks, call sites, signals, the run's limits.

    Attributes:
        emit: The log's emit; probes bind it once, and it stays valid in a forked child.
        phase_now: The clock for phases in which devices work: each reading records an event in
            their streams, or under --cuda-sync waits for them.
        copy_now: The clock for the start of copies; most such calls copy nothing.
        wait_now: The clock for calls in which the host waits while a device may work; records
            events like `phase_now`.
        accelerator: The devices in use, if a probe needs them.
        on_thread: Called on each thread that computes or prepares batches, once.
        on_parameters: Called with an optimizer that is about to get parameters.
        on_first_step, on_step: Called with an optimizer after its first step, after each step.
        on_backward: Called with the roots of a backward pass and the engine's other arguments.
        on_copy_begin, on_copy_end: Called with the time.
        on_h2d_copy: Called with each host tensor that is copied to a device.
        optimizer_numbers: The number in records of each optimizer that has stepped, by id.
        threads_set_at: Site that last set torch's number of threads; 0 without one, or if it was
            not set in this worker.
        is_compiling: Returns whether torch.compile is tracing: it must not trace our code.
        compiler_names: Names of the module whose flag `is_compiling` returns; None if unknown.
        early_stacks: Stack samples of the main thread until torch's import; None if not sampled.
        inspection_ns: Time that probes took to inspect loaders and calls, besides their records.
        begun_in: The run's first working directory, None if unknown. Paths are relative to it in
            all processes.
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
        self.compiler_names: dict[str, Any] | None = None
        self.options = options or {}
        begun_in = self.options.get("cwd", cwd)
        self.begun_in = begun_in if isinstance(begun_in, str) else None
        self.limit = Limit(log, self.options, now)
        self._patchers: list[Patcher] = []
        self._states = 0
        self._kept: deque[weakref.ref[Any]] = deque()
        self._kept_limit = KEPT_AT_FIRST

    def attach(self, torch: ModuleType, probes: Iterable[Probe]) -> None:
        """Attaches every probe; records those that this version of torch does not support."""
        version = getattr(torch, "version", None)
        versions = {name: getattr(version, name, None) for name in ("cuda", "hip")}
        name = str(getattr(torch, "__version__", "unknown"))
        self.log.note(Topic.ENVIRONMENT, {"torch": name, **versions})
        for function in (self.emit, self.sites.find, self.log.define, Signal.__call__):
            let_dynamo_skip(function, and_all_below=True)
        compiler = getattr(torch, "compiler", None)
        self.is_compiling = getattr(compiler, "is_compiling", self.is_compiling)
        names = getattr(compiler, "__dict__", {})
        self.compiler_names = names if type(names.get(_COMPILING)) is bool else None
        for probe in probes:
            patcher = Patcher(probe.name, self._probe_failed, self.unavailable)
            self._patchers.append(patcher)
            try:
                probe.attach(torch, patcher, self)
            except (HookPointMissing, AttributeError) as missing:
                self.unavailable(probe.name, str(missing))
            except Exception as error:
                patcher.fail(error)

    def in_c(
        self,
        hook: str,
        *given: Any,
        clocks: tuple[Clock, Clock] | None = None,
        kind: int = 0,
        flags: int = 0,
        limit: int = 0,
    ) -> InC | None:
        """Returns a maker of wrappers with a hook of record/_hot.c, which needs what is given.

        `clocks` are read at the begin and end of a call. None if there are only the twins in
        Python.
        """
        hot, recorder = compiled(), self.emit
        if hot is None or type(recorder) is not hot.Recorder or self.compiler_names is None:
            return None
        both = clocks or (self.now, self.now)

        def make(original: Wrapped, twin: Wrapped) -> Any:
            more = {"kind": kind, "flags": flags, "limit": limit}
            return hot.Wrapper(hook, original, twin, recorder, *both, given, **more)

        return make

    def timed_in_c(
        self,
        kind: int,
        now: Clock,
        *,
        while_compiling: bool = False,
        outside: tuple[Any, set[int]] | None = None,
        is_grad_enabled: Callable[[], bool] | None = None,
        site: Callable[[], int] | None = None,
        before: Signal[Any] | None = None,
        after: Signal[Any] | None = None,
        then: tuple[Callable[[], bool], Signal[Any]] | None = None,
    ) -> InC | None:
        """Returns `in_c` with the hook that records each call.

        Args:
            kind: Of the records.
            now: The clock.
            while_compiling: Records calls while torch.compile traces, too.
            outside: The thread inside an outermost call, and other threads: not recorded in these.
            is_grad_enabled: Records ForwardFlag.GRAD by it.
            site: Returns the site of the records.
            before: The twin makes the call if this signal has watchers.
            after: Called after each call.
            then: A test after each call, and the signal called if it is true.
        """
        names = None if while_compiling else self.compiler_names
        given = names, *(outside or (None, None)), is_grad_enabled, site, before, after
        return self.in_c("timed", *given, *(then or (None, None)), clocks=(now, now), kind=kind)

    def unavailable(self, probe: str, reason: str) -> None:
        self.log.note(Topic.PROBE_UNAVAILABLE, {"probe": probe, "reason": reason})

    def note(self, notes: Note | Sequence[Note], key: str | None = None) -> None:
        """Records notes that are valid from now on: the last one of a key counts."""
        self.note_state(record_of(notes, key))

    def note_state(self, state: Mapping[str, object]) -> None:
        """Records values that are valid from now on: the last one of a key counts."""
        self._states += 1
        self.log.note(Topic.ENVIRONMENT, {**state, NUMBER: self._states})

    def detach(self) -> None:
        for patcher in reversed(self._patchers):
            patcher.undo()
        self._patchers.clear()

    def keep_track(self, thing: object, table: dict[Any, Any], key: object) -> bool:
        """Removes `key` from `table` when `thing` is freed, by a weak reference.

        Its callback is C code: a debugger that steps through the script never stops in it.
        Returns False if `thing` allows no weak reference (a class with slots); `key` then stays.
        """
        if len(self._kept) >= self._kept_limit:
            self._drop_dead()
        try:
            # The callback's argument, the reference, becomes the default of `pop`.
            self._kept.append(weakref.ref(thing, partial(table.pop, key)))
        except TypeError:
            return False
        return True

    def _drop_dead(self) -> None:
        """Drops dead references; other threads may add some concurrently."""
        for _ in range(len(self._kept)):
            reference = self._kept.popleft()
            if reference() is not None:
                self._kept.append(reference)
        self._kept_limit = max(KEPT_AT_FIRST, 2 * len(self._kept))

    def count_inspection(self, since_ns: int) -> None:
        """Counts the time since `since_ns` as an inspection."""
        self.inspection_ns += self.now() - since_ns

    def _note_inspection(self) -> None:
        if self.inspection_ns:
            self.log.note(Topic.ENVIRONMENT, {"looked_ns": self.inspection_ns})

    def _probe_failed(self, probe: str, error: BaseException) -> None:
        fault = {"probe": probe, "error": f"{type(error).__name__}: {error}"}
        self.log.note(Topic.PROBE_FAILED, fault)
