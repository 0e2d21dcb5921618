"""Samples the stacks of computing threads several times a second, of the main one each second."""

from __future__ import annotations

import json
import os
import sys
import threading
from _thread import get_ident, get_native_id
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from time import perf_counter_ns
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, Final

from trainprof.inside.patching.patcher import Patcher
from trainprof.inside.process.own_thread import (
    OwnThread,
    core_times,
    is_runnable,
    no_collections,
    voluntary_switches,
    why_unsupported,
)
from trainprof.inside.session import Session
from trainprof.inside.stacks.copied_frames import (
    CopiedFrame,
    beginning_of_child,
    codes_by_thread,
    globals_of,
    stack_of,
)
from trainprof.inside.stacks.early import (
    LATER_PERIOD_NS,
    PERIOD_NS,
    SHORT_PERIODS,
    EarlySample,
)
from trainprof.inside.stacks.last_stacks import LastStacks
from trainprof.record.schema import Kind, StackFlag, Topic

# Number of samples, and the time between them up to it.
PERIODS_NS: Final = ((SHORT_PERIODS, PERIOD_NS),)
_MOST_THREADS: Final = 4
_MOST_STACKS: Final = 5_000
# Python code that is asked for the GIL releases it within this share of the switch interval.
_LETS_GO_WITHIN: Final = 0.1
# The GIL held for this many intervals means a single call of C code.
_ONE_CALL: Final = 4
# The most samples that a single call stands for.
_MOST_MISSED: Final = 1_000
# Share of the time since the last sample; the kernel updates a thread's times at its ticks.
_NEARLY_ALL: Final = 0.8
# One in this number of samples reads the CPU time of all threads, waiting ones too.
_ALL_EVERY: Final = 8
# Share of a core below which a thread sleeps, whatever its line.
_AT_WORK_FROM: Final = 0.02
# Share of a core from which a thread is read again, even at a line that waits.
_BUSY_FROM: Final = 0.1
# In less time than this not every thread may have had the GIL.
_LEAST_NS: Final = 20_000_000
# Reading holds the GIL for 10 us a thread, the first time for ten times that.
_MOST_ASKED: Final = 6
# A script may start many threads, one after the other.
_MOST_KNOWN: Final = 64
# A function that names one of these may compute with arrays, even in a module that uses torch.
_OF_ARRAYS: Final = ("numpy", "scipy")
# By `type`: a metaclass of the script may override it.
_MODULE_OF_CLASS: Final = type.__dict__["__module__"].__get__
_SAMPLED: Final = int(Kind.STACK_SAMPLE)
CoreTimes = tuple[int, int] | None
# Standard modules that mostly wait for a lock, a pipe, a socket or a child.
_WAITING: Final = (
    "threading queue selectors socket ssl subprocess concurrent/futures/_base "
    "multiprocessing/connection multiprocessing/popen_fork multiprocessing/queues "
    "multiprocessing/synchronize"
)
_LIBRARY: Final = os.path.dirname(os.__file__)
_WAITING_FILES: Final = frozenset(
    os.path.join(_LIBRARY, *f"{name}.py".split("/")) for name in _WAITING.split()
)


@dataclass(slots=True)
class _KnownThread:
    read: Callable[[], CoreTimes]
    running_ns: int
    at_ns: int
    share: float | None = None


class ThreadCpuShares:
    """Measures threads' shares of a core, by ident; `busy` are those with much of one."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], _KnownThread] = {}
        self.busy: set[int] = set()

    def shares(self, threads: Iterable[int], now_ns: int) -> dict[int, float | None]:
        """Returns each thread's share of a core since its last reading.

        None for a new thread, for those after the first few, and if unknown.
        """
        shares: dict[int, float | None] = {}
        known, asked = self._known, 0
        for ident in threads:
            native = None if asked >= _MOST_ASKED else _native_id(ident)
            shares[ident] = None
            if native is None:
                continue
            asked += 1
            thread = known.get((ident, native))
            if thread is not None and now_ns - thread.at_ns < _LEAST_NS:
                shares[ident] = thread.share
                continue
            read = core_times(native) if thread is None else thread.read
            times = read()
            if times is None:
                known.pop((ident, native), None)
            elif thread is None:
                if len(known) >= _MOST_KNOWN:
                    known.clear()
                known[ident, native] = _KnownThread(read, times[0], now_ns)
            else:
                thread.share = max(times[0] - thread.running_ns, 0) / (now_ns - thread.at_ns)
                thread.running_ns, thread.at_ns = times[0], now_ns
                shares[ident] = thread.share
        self.busy = {ident for ident, share in shares.items() if (share or 0.0) >= _BUSY_FROM}
        return shares


def _native_id(ident: int) -> int | None:
    """Returns the kernel's id of a thread known to `threading`, without running its code."""
    threads: Any = getattr(sys.modules.get("threading"), "_active", None)
    thread = threads.get(ident) if isinstance(threads, dict) else None
    if thread is None:
        return None
    native = object.__getattribute__(thread, "__dict__").get("_native_id")
    return native if isinstance(native, int) else None


class TorchUse:
    """Decides whether library code may call torch operators, by its module's names."""

    def __init__(self) -> None:
        # By id, as in CallSites.
        self._known: dict[int, tuple[bool, bool]] = {}
        self._judged: list[CodeType] = []

    def uses(
        self, code: CodeType, module_of: Callable[[], dict[str, Any] | None]
    ) -> tuple[bool, bool]:
        """Returns whether code may compute with torch, and whether with arrays without torch."""
        known = self._known.get(id(code))
        if known is None:
            module = module_of()
            if module is None:  # the thread runs other code by now
                return False, False
            known = self._known[id(code)] = _uses(code, module)
            self._judged.append(code)
        return known


def _uses(code: CodeType, module: dict[str, Any]) -> tuple[bool, bool]:
    names = code.co_names
    # As a tensor's method, or an import within the function.
    by_arrays = not set(_OF_ARRAYS).isdisjoint(names)
    has_torch = has_arrays = False
    # A copy: the module's thread may define names concurrently.
    for name, thing in list(dict.items(module)):
        package = _package_of(thing)
        by_arrays |= package in _OF_ARRAYS and name in names
        has_torch |= package == "torch"
        has_arrays |= package in _OF_ARRAYS
    return has_torch and not by_arrays, has_arrays and not has_torch


def _package_of(thing: object) -> str:
    """Returns the package of a module, function or class, "" if unknown."""
    kind = type(thing)
    module: object
    if kind is ModuleType:
        module = vars(thing).get("__name__")
    elif kind is FunctionType or kind is BuiltinFunctionType:
        module = thing.__module__
    else:
        module = _MODULE_OF_CLASS(thing if issubclass(kind, type) else kind)
    return module.partition(".")[0] if type(module) is str else ""


@dataclass(slots=True)
class _Sample:
    """A sample of all threads, by ident.

    Attributes:
        watched: Stacks of watched threads.
        uses: By watched thread, whether its code may compute with torch, or with arrays only.
        others: All other threads but ours.
        waiting: Threads at a line that waits.
        works: All other threads, later without those that sleep.
    """

    watched: dict[int, CopiedFrame] = field(default_factory=dict)
    uses: dict[int, tuple[bool, bool]] = field(default_factory=dict)
    others: list[int] = field(default_factory=list)
    waiting: set[int] = field(default_factory=set)
    works: set[int] = field(default_factory=set)

    def flags(self, ident: int, *, is_running: bool) -> int:
        waits = StackFlag.WAITS if ident in self.waiting else 0
        runs = StackFlag.RUNS if is_running else 0
        by_torch, by_arrays = self.uses[ident] if runs and not waits else (False, False)
        operator = StackFlag.OPERATOR if by_torch else 0
        arrays = StackFlag.ARRAYS if by_arrays else 0
        crowded = StackFlag.CROWDED if self.works - {ident} else 0
        return waits | runs | operator | arrays | crowded


class StackSampler:
    """A thread that takes the GIL now and then and records the other threads' stacks.

    A thread that released the GIL by itself may have continued to another line: its place is KNOWN
    only if it was forced to release it. The time for which the GIL was held is recorded too, for
    torch's operators release it often. A sample that waited longer than a period stands for all
    samples that were due in between.

    From torch's import on it also writes the stacks into a file once a second, to explain a run
    that hangs: see record/last_stacks.py. `threading` does not know the thread; it blocks signals
    and is ended before a fork.
    """

    name = "stacks"

    def __init__(self) -> None:
        self._is_on = False
        self._names_libraries = False
        self._thread = OwnThread(self._run)
        self._watched: list[int] = []
        self._natives: list[int] = []
        self._samples = 0
        self._stacks: dict[tuple[object, ...], int] = {}
        self._cpu_shares = ThreadCpuShares()
        self._torch_use = TorchUse()
        self._uniform = Random().uniform

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        reason = why_unsupported()
        if reason is not None:
            session.unavailable(self.name, reason)
            return
        self._session, self._patcher = session, patcher
        fetch = sys.modules.get("torch.utils.data._utils.fetch")
        self._fetch_file = getattr(fetch, "__file__", None)
        if not session.options.get("lines"):  # lines are more exact, and would include our samples
            session.on_thread.subscribe(patcher.guarded(self._watch))
            if session.early_stacks is not None and threading.main_thread().ident == get_ident():
                self._watch_set_up(session.early_stacks)
                session.early_stacks = None
        self._last_stacks = LastStacks(session.log.directory, session.sites)
        self._is_on = True
        patcher.on_undo(self._finish)
        session.on_end.subscribe(patcher.guarded(self._finish))
        os.register_at_fork(
            before=patcher.guarded(self._thread.end_before_fork),
            after_in_parent=patcher.guarded(self._restart_after_fork),
            after_in_child=self._forget,
        )
        util = sys.modules.get("multiprocessing.util")
        if util is not None:  # only its children; others may exec or fork again
            begin = patcher.guarded(self._begin)
            util.register_after_fork(self, lambda _: begin())
        self._begin()

    def _watch_set_up(self, early: list[EarlySample]) -> None:
        """Samples the main thread from now on; names its libraries until the first step."""
        self._names_libraries, main = True, get_ident()
        for at, taken, stack in early:
            number = self._stack(stack)
            self._session.log.emit_of(main, _SAMPLED, at, taken, number, 0, StackFlag.KNOWN)
        self._session.sites.forget()  # nearly all are of imports
        self._watched.append(main)
        self._natives.append(get_native_id())
        self._session.on_first_step.subscribe(self._patcher.guarded(self._end_set_up))

    def _end_set_up(self, _: object) -> None:
        if self._names_libraries:
            self._names_libraries, self._samples = False, 0

    def _watch(self) -> None:
        thread = get_ident()
        if thread not in self._watched and len(self._watched) < _MOST_THREADS:
            if not self._watched:
                self._thread.end()  # it may wait up to a second
            self._natives.append(get_native_id())
            self._watched.append(thread)
            self._begin()

    def _begin(self) -> None:
        if self._is_on and not self._patcher.is_silent:
            self._thread.begin()

    def _restart_after_fork(self) -> None:
        if self._is_on and not self._patcher.is_silent:
            self._thread.restart_after_fork()

    def _finish(self) -> None:
        self._thread.end()
        if self._is_on:
            self._is_on = False
            self._last_stacks.end()
        self._watched, self._natives = [], []

    def _forget(self) -> None:
        """Resets a forked child, which has other threads; stacks keep their numbers."""
        self._watched, self._natives = [], []
        self._names_libraries = False
        self._thread.forget()
        self._samples = 0
        self._last_stacks = self._last_stacks.in_child()
        self._cpu_shares = ThreadCpuShares()

    def _run(self, stop: Any) -> None:
        try:
            if self._watched and perf_counter_ns() >= self._last_stacks.due_ns:
                self._last_stacks.write(self._watched)  # at once: the script may hang
            while not self._watched:
                self._last_stacks.write()
                if stop.acquire(True, self._last_stacks.wait_s()):
                    return
            self._sample_until(stop)
        except Exception as error:
            self._patcher.fail(error)

    def _period_ns(self) -> int:
        usual = next((ns for n, ns in PERIODS_NS if self._samples < n), LATER_PERIOD_NS)
        return round(usual * self._uniform(0.5, 1.5))

    def _sample_until(self, stop: Any) -> None:
        now, wait = perf_counter_ns, stop.acquire
        own_times, waits = core_times(), voluntary_switches()
        others: list[Callable[[], CoreTimes]] = []
        on_core: list[Callable[[], bool]] = []
        # Due times depend neither on what threads do nor on when samples are taken.
        due, delayed = now() + self._period_ns(), _delay(own_times())
        while True:
            due = max(due, now() - LATER_PERIOD_NS)
            while due <= now():  # passed while the last sample was written
                due += self._period_ns()
            new = self._natives[len(others) :]
            others += [core_times(thread) for thread in new]
            on_core += [is_runnable(thread) for thread in new]
            times_before, asked = [read() for read in others], now()
            before = waits()
            if wait(True, max(due - now(), 0) * 1e-9):
                return
            got = now()
            wanted = [due]
            while (due := due + self._period_ns()) <= got and len(wanted) <= _MOST_MISSED:
                wanted.append(due)
            # First of all: later calls release the GIL, and threads continue.
            with no_collections():
                sample = self._sample_now()
            # One is the wait itself; a taken GIL adds another.
            times = waits() - before - 1
            with no_collections():
                was_free = times <= 0
                # At once: threads that want the GIL now sleep because of us.
                runs = [is_on_core() for is_on_core in on_core] if was_free else []
                last, delayed = delayed, _delay(own_times())
                waited_ns = got - wanted[0] - (delayed - last)
                if was_free:  # not delayed by the GIL
                    del wanted[1:]
                held_ns = 0 if was_free else max(waited_ns, 0)
                # Run delay during the wait for the GIL is assumed to be as before it.
                pairs = list(zip(times_before, [read() for read in others], strict=True))
                off = [_delay(after) - _delay(then) for then, after in pairs]
                if was_free:  # a thread that now waits for us had a core until then
                    had = [_had_all(then, after, got - asked) for then, after in pairs]
                    runs = [is_now or had_all for is_now, had_all in zip(runs, had, strict=True)]
                off_ns = round(max(off, default=0) * max(waited_ns, 0) / max(got - asked, 1))
                is_known = was_free or _was_forced_to_release(waited_ns, times, off_ns)
                self._samples += 1
                running = {i for i, is_on in zip(self._watched, runs, strict=False) if is_on}
                self._judge_others(sample, got)
            # Naming and writing may release the GIL.
            for ident, stack in sample.watched.items():
                flags = sample.flags(ident, is_running=ident in running)
                flags |= StackFlag.KNOWN if is_known else 0
                number = self._stack(stack)
                for at in wanted:
                    still_ns = max(held_ns - (at - wanted[0]), 0)
                    self._session.log.emit_of(ident, _SAMPLED, at, got, number, still_ns, flags)
            del sample
            if got >= self._last_stacks.due_ns:
                self._last_stacks.write(self._watched)

    def _sample_now(self) -> _Sample:
        sample = _Sample()
        for ident in self._watched:
            stack = stack_of(ident)
            if stack is not None:
                sample.watched[ident] = stack
        codes = codes_by_thread()
        codes.pop(get_ident(), None)
        codes.update((ident, stack.f_code) for ident, stack in sample.watched.items())
        for ident, code in codes.items():
            (sample.waiting if code.co_filename in _WAITING_FILES else sample.works).add(ident)
        sample.uses = {ident: self._uses(ident, codes[ident]) for ident in sample.watched}
        sample.others = [ident for ident in codes if ident not in sample.watched]
        return sample

    def _judge_others(self, sample: _Sample, got: int) -> None:
        """Removes sleeping threads from `sample.works`."""
        # A busy thread at a line that waits may be polling.
        works, busy = sample.works, self._cpu_shares.busy
        asked = [*((works | busy) & {*sample.others})]
        if self._samples % _ALL_EVERY == 1:
            idle = [ident for ident in sample.others if ident not in asked]
            turn = self._samples // _ALL_EVERY % len(idle) if idle else 0
            asked += idle[turn:] + idle[:turn]
        if asked:
            shares = self._cpu_shares.shares(asked, got)
            known = [(ident, share) for ident, share in shares.items() if share is not None]
            works.difference_update(ident for ident, share in known if share < _AT_WORK_FROM)
            works |= self._cpu_shares.busy

    def _uses(self, ident: int, code: CodeType) -> tuple[bool, bool]:
        """Returns whether a thread's code may call torch, and whether arrays, in C."""
        sites = self._session.sites
        if sites.is_user_code(code) or sites.is_ours_or_torch(code):
            return True, False
        return self._torch_use.uses(code, partial(globals_of, ident, code))

    def _stack(self, stack: CopiedFrame) -> int:
        """Returns the id of a stack's user frames and the libraries they call, 0 without any."""
        sites, child = self._session.sites, beginning_of_child()
        key: tuple[object, ...] = (*sites.frames(stack, child, self._fetch_file),)
        calls = sites.library_calls(stack, child, self._fetch_file) if key else ()
        key = (calls, *key) if calls else key
        if self._names_libraries or (not key and self._session.log.role == "script"):
            named = sites.libraries(stack)
            key = key if named == (None, None) else (named, *key)
        known = self._stacks.get(key, 0)
        if known == 0 and key and len(self._stacks) < _MOST_STACKS:
            known = self._stacks[key] = self._session.log.define(Topic.STACK, json.dumps(key))
        self._session.log.refer(known)
        return known


def _was_forced_to_release(waited_ns: int, times: int, off_ns: int) -> bool:
    """Returns whether the thread with the GIL released it because it was asked to.

    Python asks it after a switch interval without a release; it then releases the GIL at once, or
    at the end of a long C call. A release by itself restarts the interval, so a wait that is
    neither one interval nor very many may be that. `waited_ns` is the wait for the GIL, in this
    number of `times`; for `off_ns` of it the thread may have waited for a core.
    """
    interval_ns = max(sys.getswitchinterval() * 1e9, 1.0)
    if waited_ns >= _ONE_CALL * interval_ns:
        return times <= waited_ns / interval_ns + 2
    return interval_ns <= waited_ns <= (1 + _LETS_GO_WITHIN) * interval_ns + off_ns


def _had_all(before: CoreTimes, after: CoreTimes, passed_ns: int) -> bool:
    """Returns whether a thread was on a core, or waiting for one, for nearly all of the time."""
    if before is None or after is None:
        return False
    return sum(after) - sum(before) >= _NEARLY_ALL * passed_ns


def _delay(times: CoreTimes) -> int:
    return 0 if times is None else times[1]
