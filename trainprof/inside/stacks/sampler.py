"""Samples the stacks of computing threads a few times a second, of the main one each second."""

from __future__ import annotations

import json
import os
import signal
import sys
from _thread import allocate_lock, get_ident, get_native_id
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from time import perf_counter_ns
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, Final

from trainprof.inside.patching.patcher import Patcher
from trainprof.inside.process.own_thread import (
    collect_again,
    core_times,
    has_a_core,
    no_collections,
    run_delay,
    start_thread,
    times_waited,
)
from trainprof.inside.session import Session
from trainprof.inside.stacks.copied_frames import (
    CopiedFrame,
    beginning_of_child,
    codes_by_thread,
    globals_of,
    stack_of,
)
from trainprof.inside.stacks.last_stacks import LastStacks
from trainprof.record.schema import Kind, LookFlag, Topic

# A look costs Python code 0.4 to 0.7 ms on a slow virtual machine. The more there were, the more
# rarely another is needed: so many looks, and the time between two until then.
PERIODS_NS: Final = ((1_500, 40_000_000),)
LATER_PERIOD_NS: Final = 200_000_000
_MOST_THREADS: Final = 4
_MOST_STACKS: Final = 5_000
# Python code that is made to let go does so within this share of the switch interval.
_LETS_GO_WITHIN: Final = 0.1
# What holds the interpreter for so many of them is one call.
_ONE_CALL: Final = 4
# For so many looks more is a single call counted.
_MOST_MISSED: Final = 1_000
# Of the time since the last look; the kernel brings a thread's account up to date at its ticks.
_NEARLY_ALL: Final = 0.8
# So many looks apart all threads are asked how far they are at work, also those that seem to wait.
_ALL_EVERY: Final = 8
# Whoever has to end it waits so long for it; it needs some 50 us.
_PATIENCE_S: Final = 0.05


# Of the time: a thread that has less of a core sleeps, whatever line it stands at.
AT_WORK_FROM: Final = 0.02
# One that has so much of a core is asked for again, also where it stands at a line that waits.
BUSY_FROM: Final = 0.1
# In less time than that the interpreter may not have gone round.
_LEAST_NS: Final = 20_000_000
# Asking takes some 10 us of the interpreter for each, and ten times that the first time.
_MOST_ASKED: Final = 6
# A script may start many, one after the other.
_MOST_KNOWN: Final = 64


@dataclass(slots=True)
class _Known:
    """A thread: what tells its time on a core, what that was, when, and its share since."""

    told: Callable[[], tuple[int, int] | None]
    running_ns: int
    at_ns: int
    share: float | None = None


class BesideThreads:
    """Tells of threads, by their idents, for which share of the time they were on a core."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], _Known] = {}
        self.busy: set[int] = set()

    def shares(self, threads: Iterable[int], now_ns: int) -> dict[int, float | None]:
        """Returns for each thread its share of a core since it was last asked for.

        The first ones are asked, as many as may be. None where it is not known: it is new, was not
        asked, or nobody can tell.
        """
        found: dict[int, float | None] = {}
        known, asked = self._known, 0
        for ident in threads:
            native = None if asked >= _MOST_ASKED else _native_id(ident)
            found[ident] = None
            if native is None:
                continue
            asked += 1
            one = known.get((ident, native))
            if one is not None and now_ns - one.at_ns < _LEAST_NS:
                found[ident] = one.share
                continue
            told = core_times(native) if one is None else one.told
            times = told()
            if times is None:
                known.pop((ident, native), None)
                continue
            if one is None:
                if len(known) >= _MOST_KNOWN:
                    known.clear()
                known[ident, native] = _Known(told, times[0], now_ns)
                continue
            one.share = max(times[0] - one.running_ns, 0) / (now_ns - one.at_ns)
            one.running_ns, one.at_ns = times[0], now_ns
            found[ident] = one.share
        self.busy = {ident for ident, share in found.items() if (share or 0.0) >= BUSY_FROM}
        return found


def _native_id(ident: int) -> int | None:
    """Returns what the kernel calls a thread that `threading` knows; nothing of it is run."""
    threads: Any = getattr(sys.modules.get("threading"), "_active", None)
    thread = threads.get(ident) if isinstance(threads, dict) else None
    if thread is None:
        return None
    native = object.__getattribute__(thread, "__dict__").get("_native_id")
    return native if isinstance(native, int) else None


# A function of such a module that names one of these computes with arrays, or may.
_OF_ARRAYS: Final = ("numpy", "scipy")
# As a metaclass could not answer for its class: nothing of the script's is to run.
_MODULE_OF_CLASS: Final = type.__dict__["__module__"].__get__


class TorchUsers:
    """Tells the code that may have called torch's operators: a loss of a functional API, say.

    Of libraries alone: in torch's own code and the user's no name need tell it.
    """

    def __init__(self) -> None:
        # By id, as in CallSites: those judged are kept, so that no id is used again. Whether it
        # has torch, and whether arrays without it.
        self._known: dict[int, tuple[bool, bool]] = {}
        self._judged: list[CodeType] = []

    def has(self, code: CodeType, names_of: Callable[[], dict[str, Any] | None]) -> bool:
        """Says whether a code's module has torch, and the code itself no array library.

        Args:
            code: What is asked about.
            names_of: Returns its module's names, where it is not known yet; None if they cannot be
                had now.
        """
        known = self._known.get(id(code))
        if known is None:
            names = names_of()
            if names is None:
                return False
            known = self._known[id(code)] = _uses(code, names)
            self._judged.append(code)
        return known[0]

    def has_arrays(self, code: CodeType) -> bool:
        """Says of code that was asked about whether its module has NumPy or SciPy and no torch."""
        return self._known.get(id(code), (False, False))[1]


def _uses(code: CodeType, module: dict[str, Any]) -> tuple[bool, bool]:
    """Returns whether code may compute by torch, and whether by arrays, as it has no torch."""
    names = code.co_names
    # As a method of tensors, or as what the function imports.
    by_arrays = not set(_OF_ARRAYS).isdisjoint(names)
    has_torch = has_arrays = False
    # At once: its own thread may go on to define names.
    for name, thing in list(dict.items(module)):
        package = _package_of(thing)
        by_arrays |= package in _OF_ARRAYS and name in names
        has_torch |= package == "torch"
        has_arrays |= package in _OF_ARRAYS
    return has_torch and not by_arrays, has_arrays and not has_torch


def _package_of(thing: object) -> str:
    """Returns the package that a module is in, or that something is from; empty if not known."""
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
class _Seen:
    """Where threads stand, by ident.

    Attributes:
        watched: Stacks of those that are watched.
        by_torch: Of these, those in code that may have called torch's operators.
        by_arrays: And those in a library's code that has NumPy or SciPy, and no torch.
        others: All others but ours.
        waiting: Of all, those at a line that waits.
        works: The rest of them; in the end those that do work.
    """

    watched: dict[int, CopiedFrame] = field(default_factory=dict)
    by_torch: set[int] = field(default_factory=set)
    by_arrays: set[int] = field(default_factory=set)
    others: list[int] = field(default_factory=list)
    waiting: set[int] = field(default_factory=set)
    works: set[int] = field(default_factory=set)

    def flags(self, of: int, *, is_running: bool) -> int:
        """Returns what a LOOK record tells of a watched thread, and of others beside it."""
        waits = LookFlag.WAITS if of in self.waiting else 0
        runs = LookFlag.RUNS if is_running else 0
        operator = LookFlag.OPERATOR if runs and not waits and of in self.by_torch else 0
        arrays = LookFlag.ARRAYS if runs and not waits and of in self.by_arrays else 0
        crowded = LookFlag.CROWDED if self.works - {of} else 0
        return waits | runs | operator | arrays | crowded


class LooksProbe:
    """A thread of ours that asks for the GIL now and then, and records where the others stand.

    Where a thread runs Python code that does not let go, a look waits for the interpreter's switch
    interval and meets it at work. Where it lets go by itself meanwhile, it may have gone on to
    another line: such a look is marked as late, and says where the thread let go. For how long it
    did not let go is noted as well: torch's operators let go all the while. A look that had to wait
    for longer than the time between two stands for each that was wanted meanwhile.

    Once a second, and from torch's import on, it also writes down where the main thread and those
    that are watched stand: a run that hangs is explained by that, see record/last_stacks.py.

    The thread is none of `threading`'s, takes no signals, and does not live while the process
    forks.
    """

    name = "looks"

    def __init__(self) -> None:
        self._is_on = self._goes_on = False
        self._watched: list[int] = []
        self._natives: list[int] = []
        self._stop: Any = None
        self._has_ended: Any = None
        self._looks = 0
        self._stacks: dict[tuple[int, ...], int] = {}
        self._beside = BesideThreads()
        self._torch_users = TorchUsers()

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        reason = why_not_here()
        if reason is not None:
            session.unavailable(self.name, reason)
            return
        self._session, self._patcher = session, patcher
        fetch = sys.modules.get("torch.utils.data._utils.fetch")
        self._fetch_file = getattr(fetch, "__file__", None)
        if not session.options.get("lines"):  # they tell more, and looks would be timed with them
            session.look_here = patcher.guarded(self._watch)
        self._last_stacks = LastStacks(session.log.directory, session.sites)
        self._is_on = True
        patcher.on_undo(self._finish)
        session.at_end.append(patcher.guarded(self._finish))
        os.register_at_fork(
            before=patcher.guarded(self._pause_to_fork),
            after_in_parent=patcher.guarded(self._go_on),
            after_in_child=self._forget,
        )
        util = sys.modules.get("multiprocessing.util")
        if util is not None:  # its children: others may go on to another program, or to fork again
            begin = patcher.guarded(self._begin)
            util.register_after_fork(self, lambda _: begin())
        self._begin()

    def _watch(self) -> None:
        """From now on the calling thread is looked at."""
        thread = get_ident()
        if thread not in self._watched and len(self._watched) < _MOST_THREADS:
            if not self._watched:
                self._pause()  # it waits for its next second
            self._natives.append(get_native_id())
            self._watched.append(thread)
            self._begin()

    def _begin(self) -> None:
        if self._stop is not None or not self._is_on or self._patcher.is_silent:
            return
        stop, has_ended = allocate_lock(), allocate_lock()
        stop.acquire()
        has_ended.acquire()
        start_thread(self._run, stop, has_ended)
        self._stop, self._has_ended = stop, has_ended

    def _finish(self) -> None:
        self._pause()
        if self._is_on:
            self._is_on = False
            self._last_stacks.end()
        self._watched, self._natives = [], []

    def _pause(self) -> None:
        if self._stop is None:
            return
        stop, has_ended = self._stop, self._has_ended
        self._stop = None
        stop.release()
        has_ended.acquire(True, _PATIENCE_S)

    def _pause_to_fork(self) -> None:
        self._goes_on = self._stop is not None
        self._pause()

    def _go_on(self) -> None:
        if self._goes_on:
            self._begin()

    def _forget(self) -> None:
        """In a forked child, whose threads are others; what was seen has its names there too."""
        self._watched, self._natives, self._stop = [], [], None
        self._looks = 0
        self._last_stacks = self._last_stacks.in_child()
        self._beside = BesideThreads()
        collect_again()

    def _run(self, stop: Any, has_ended: Any) -> None:
        try:
            while not self._watched:
                self._last_stacks.write()
                if stop.acquire(True, self._last_stacks.wait_s()):
                    return
            self._look_until(stop)
        except Exception as error:
            self._patcher.fail(error)
        finally:
            has_ended.release()

    def _look_until(self, stop: Any) -> None:
        now, wait, moment = perf_counter_ns, stop.acquire, Random().uniform
        late_by_itself, waits = run_delay(), times_waited()
        others: list[Callable[[], tuple[int, int] | None]] = []
        on_core: list[Callable[[], bool]] = []

        def a_period() -> int:
            usual = next((ns for n, ns in PERIODS_NS if self._looks < n), LATER_PERIOD_NS)
            return round(usual * moment(0.5, 1.5))

        # What moments are wanted follows neither from what threads do nor from when one was met.
        due, delayed = now() + a_period(), late_by_itself()
        while True:
            due = max(due, now() - LATER_PERIOD_NS)
            while due <= now():  # while the last one was written down
                due += a_period()
            new = self._natives[len(others) :]
            others += [core_times(thread) for thread in new]
            on_core += [has_a_core(thread) for thread in new]
            times_then, asked = [told() for told in others], now()
            before = waits()
            if wait(True, max(due - now(), 0) * 1e-9):
                return
            got = now()
            wanted = [due]
            while (due := due + a_period()) <= got and len(wanted) <= _MOST_MISSED:
                wanted.append(due)
            # First of all: what else is asked for lets go of the GIL, and threads go on meanwhile.
            with no_collections():
                seen = self._seen_now()
            # One for the wait itself; whoever finds the GIL taken has to wait once more.
            times = waits() - before - 1
            with no_collections():
                was_free = times <= 0
                # At once: whoever wants the interpreter now sleeps because of us.
                runs = [is_on_core() for is_on_core in on_core] if was_free else []
                last, delayed = delayed, late_by_itself()
                waited_ns = got - wanted[0] - (delayed - last)
                if was_free:  # it came late by itself
                    del wanted[1:]
                held_ns = 0 if was_free else max(waited_ns, 0)
                # As much of it while the GIL was waited for as before, while nothing was.
                times_of = [told() for told in others]
                pairs = list(zip(times_then, times_of, strict=True))
                off = [_delay(one) - _delay(then) for then, one in pairs]
                if was_free:
                    # Who has just come to its end, and waits for us, had a core until then.
                    passed_ns = got - asked
                    runs = [
                        is_now or _had_all(then, one, passed_ns)
                        for is_now, (then, one) in zip(runs, pairs, strict=True)
                    ]
                off_ns = round(max(off, default=0) * max(waited_ns, 0) / max(got - asked, 1))
                is_known = was_free or _was_made_to_let_go(waited_ns, times, off_ns)
                self._looks += 1
                running = {of for of, one in zip(self._watched, runs, strict=False) if one}
                self._judge_others(seen, got)
            flags = LookFlag.KNOWN if is_known else 0
            # What is named, written down and read of code may let go of the GIL.
            for of, stack in seen.watched.items():
                told = flags | seen.flags(of, is_running=of in running)
                number = self._stack(stack)
                for at in wanted:
                    still_ns = max(held_ns - (at - wanted[0]), 0)
                    self._session.log.emit_of(of, _LOOK, at, got, number, still_ns, told)
            del seen
            if got >= self._last_stacks.due_ns:
                self._last_stacks.write(self._watched)

    def _seen_now(self) -> _Seen:
        seen = _Seen()
        for of in self._watched:
            stack = stack_of(of)
            if stack is not None:
                seen.watched[of] = stack
        codes = codes_by_thread()
        codes.pop(get_ident(), None)
        codes.update((of, stack.f_code) for of, stack in seen.watched.items())
        for of, code in codes.items():
            (seen.waiting if code.co_filename in _WAITING_FILES else seen.works).add(of)
        seen.by_torch = {of for of in seen.watched if self._computes_by_torch(of, codes[of])}
        seen.by_arrays = {
            of
            for of in seen.watched
            if of not in seen.by_torch and self._torch_users.has_arrays(codes[of])
        }
        seen.others = [of for of in codes if of not in seen.watched]
        return seen

    def _judge_others(self, seen: _Seen, got: int) -> None:
        """Takes off `seen.works` who sleeps."""
        # One that seems to wait may ask again and again.
        works, asked = seen.works, [*((seen.works | self._beside.busy) & {*seen.others})]
        if self._looks % _ALL_EVERY == 1:
            idle = [of for of in seen.others if of not in asked]
            turn = self._looks // _ALL_EVERY % len(idle) if idle else 0
            asked += idle[turn:] + idle[:turn]
        if asked:
            shares = self._beside.shares(asked, got)
            asleep = (of for of, x in shares.items() if x is not None and x < AT_WORK_FROM)
            works.difference_update(asleep)
            works |= self._beside.busy

    def _computes_by_torch(self, of: int, code: CodeType) -> bool:
        """Whether what `code`, of thread `of`, calls into C may be torch's operators."""
        sites = self._session.sites
        is_own = sites.is_user_code(code) or sites.is_ours_or_torch(code)
        return is_own or self._torch_users.has(code, partial(globals_of, of, code))

    def _stack(self, stack: CopiedFrame) -> int:
        """Returns the id of the user's frames in a stack, innermost first; 0 if none."""
        found = self._session.sites.frames(stack, beginning_of_child(), self._fetch_file)
        key = tuple(found)
        known = self._stacks.get(key, 0)
        if known == 0 and key and len(self._stacks) < _MOST_STACKS:
            known = self._stacks[key] = self._session.log.define(Topic.STACK, json.dumps(found))
        self._session.log.refer(known)
        return known


def _was_made_to_let_go(waited_ns: int, times: int, off_ns: int) -> bool:
    """Whether a thread that held the GIL gave it up because it was asked to, at the place it had.

    It is asked once a switch interval is over in which it never let go, and does so where Python
    code goes on next: at once, or at the end of a long call. One that lets go by itself, for so
    short a time that it is the next to have the GIL again, makes the interval begin anew: what is
    neither one interval nor very many may be that.

    Args:
        waited_ns: For it.
        times: How often the wait ended, or began anew.
        off_ns: For how long such a thread may have been kept from a core meanwhile.
    """
    interval_ns = max(sys.getswitchinterval() * 1e9, 1.0)
    if waited_ns >= _ONE_CALL * interval_ns:
        return times <= waited_ns / interval_ns + 2
    return interval_ns <= waited_ns <= (1 + _LETS_GO_WITHIN) * interval_ns + off_ns


def _had_all(then: tuple[int, int] | None, now: tuple[int, int] | None, passed_ns: int) -> bool:
    """Whether a thread was on a core, or waited for one, for nearly all the time that passed."""
    if then is None or now is None:
        return False
    return sum(now) - sum(then) >= _NEARLY_ALL * passed_ns


def _delay(times: tuple[int, int] | None) -> int:
    return 0 if times is None else times[1]


def why_not_here() -> str | None:
    """Returns why threads cannot be looked at here, None if they can."""
    if sys.implementation.name != "cpython":
        return f"not on {sys.implementation.name}"
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return "not without the GIL"
    if not hasattr(signal, "pthread_sigmask"):
        return f"not on {sys.platform}"
    return None


def _of_python(*names: str) -> frozenset[str]:
    return frozenset(os.path.join(os.path.dirname(os.__file__), *name.split("/")) for name in names)


_LOOK: Final = int(Kind.LOOK)
# Their own Python code does little but wait for a lock, a pipe, a socket or a child.
_WAITING_FILES: Final = _of_python(
    "threading.py",
    "queue.py",
    "selectors.py",
    "socket.py",
    "ssl.py",
    "subprocess.py",
    "concurrent/futures/_base.py",
    "multiprocessing/connection.py",
    "multiprocessing/popen_fork.py",
    "multiprocessing/queues.py",
    "multiprocessing/synchronize.py",
)
