"""Records synchronizing calls, which read a device's value on the host, by their line."""

from __future__ import annotations

import sys
from _thread import get_ident
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from sys import getrefcount
from types import CodeType, FrameType, ModuleType
from typing import Any, Final

from trainprof.inside.device.accelerator import may_have_device
from trainprof.inside.patching.function_modes import FunctionModes, caller_of
from trainprof.inside.patching.patcher import (
    Arguments,
    InC,
    Patcher,
    Wrapped,
    hide_our_frame,
    let_dynamo_skip,
    recorded_after,
)
from trainprof.inside.session import Session
from trainprof.record.schema import Kind, SyncFlag, Topic

TENSOR_CALLS: Final = {
    "item": SyncFlag.ITEM,
    "tolist": SyncFlag.TOLIST,
    "numpy": SyncFlag.NUMPY,
    "nonzero": SyncFlag.NONZERO,
    "__bool__": SyncFlag.BOOL,
    "__float__": SyncFlag.FLOAT,
    "__int__": SyncFlag.INT,
    "__index__": SyncFlag.INDEX,
}

# Recording a read of a host tensor takes about 1 us, 2 % of the time in a burst: this number of
# reads in this time. After a few bursts such reads are no longer counted.
_BURST: Final = 10_000
_BURST_NS: Final = 500_000_000
_BURSTS: Final = 5
# A fast read of a device value soon after another fast one gets no mark in the device's stream:
# recording the event takes as long as the read, and hardly a kernel was launched in between.
_CHAINED_NS: Final = 50_000
_FAST_NS: Final = 60_000
# The most in a row without a mark.
_MOST_CHAINED: Final = 64
# Limits the table for scripts that keep calling exec() on new code.
_MOST_PLACES: Final = 20_000


@dataclass(slots=True)
class _HostOnly:
    """Whether all tensors are on the host, so that their device need not be read."""

    holds: bool


class _Bursts:
    """Decides whether one method's reads on the host are counted; `left` are in this burst."""

    __slots__ = ("_began_ns", "_bursts_left", "_now", "_stop", "are_counted", "left")

    def __init__(self, now: Callable[[], int], stop: Callable[[int], None]) -> None:
        self._now, self._stop = now, stop
        self.are_counted, self.left, self._bursts_left = True, _BURST, _BURSTS
        self._began_ns = now()

    def end(self) -> bool:
        """Ends a burst; returns whether reads are counted from now on."""
        end_ns = self._now()
        self._bursts_left -= end_ns - self._began_ns < _BURST_NS
        self.left, self._began_ns = _BURST, end_ns
        if not self._bursts_left and self.are_counted:
            self.are_counted = False
            self._stop(end_ns)
        return self.are_counted


class _Chain:
    """Detects values of a device that one thread reads in a row.

    `first` is the clock that records an event in the device's stream.
    """

    def __init__(self, now: Callable[[], int], first: Callable[[], int]) -> None:
        self._now, self._first = now, first
        # Places in code (keys of `_host_sites`) whose last read was fast.
        self._fast: set[tuple[int, int]] = set()
        self._waiting: set[tuple[int, int]] = set()
        self._thread = self._end = self._links = 0

    def begin(self, place: tuple[int, int]) -> tuple[int, int]:
        """Returns the time when a read begins, and IN_CHAIN if it gets no mark."""
        start = self._now()
        if (
            start - self._end > _CHAINED_NS
            or self._links >= _MOST_CHAINED
            or place not in self._fast
            or get_ident() != self._thread
        ):
            self._links = 0
            return self._first(), 0
        self._links += 1
        return start, _IN_CHAIN

    def end(self, place: tuple[int, int], start: int, in_chain: int) -> int:
        """Returns the time when it ends; a place with a slow unmarked read then gets all marks."""
        self._end = end = self._now()
        self._thread = get_ident()
        if end - start > _FAST_NS:
            self._fast.discard(place)
            self._links = _MOST_CHAINED
            if in_chain:
                self._waiting.add(place)
        elif place not in self._waiting:
            self._fast.add(place)
        return end


class SyncProbe:
    """Wraps `item` and the like; on a host tensor they don't wait, and are only counted.

    torch's own calls on host tensors (Adam's step counters, the loader's seed) are left out.
    """

    name = "sync"

    def __init__(self) -> None:
        # As in TransferProbe.
        self.plain_types: set[type] = set()

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        self._session, self._patcher = session, patcher
        self.plain_types.update({torch.Tensor, torch.nn.Parameter})
        self._mode_depth = FunctionModes(torch).depth
        # By code and instruction; the code is held, so that its id is not reused.
        self._host_sites: dict[tuple[int, int], tuple[int, CodeType]] = {}
        # Reference counts of the patched methods.
        self._references: dict[str, int] = {}
        self._torch, self._host_only = torch, _HostOnly(not may_have_device(torch))
        self._chain = _Chain(session.now, session.wait_now)
        # BY_ flags by id of code outside of torch; CallSites holds the code.
        self._origins: dict[int, int] = {}
        methods = (
            self._host_site,
            self._site_in_c,
            self._flag_of,
            self._is_on_device,
            self._chain.begin,
        )
        for function in (*methods, self._chain.end, _Bursts.end, _place_of, caller_of):
            let_dynamo_skip(function, and_all_below=True)
        for name, flag in TENSOR_CALLS.items():
            stop = patcher.guarded(partial(self._stop_counting, name, int(flag)))
            bursts = _Bursts(session.now, stop)
            make = partial(self._make_read, bursts, int(flag))
            given = tuple(self.plain_types), self._host_only, self._site_in_c, bursts
            in_c = session.in_c("read", *given, kind=_SYNC, flags=flag | _ON_CPU, limit=_BURST)
            patcher.around_if_there(make, (torch.Tensor, name), inherited=True, in_c=in_c)
            self._references[name] = getrefcount(vars(torch.Tensor).get(name))
        synchronize = recorded_after(session.wait_now, patcher.guarded(self._synchronized))
        for name in ("cuda", "accelerator", "xpu"):
            module = torch.cuda if name == "cuda" else getattr(torch, name, None)
            if module is not None:
                patcher.around_if_there(synchronize, (module, "synchronize"))

    def _site_in_c(self, caller: FrameType) -> int:
        """Returns the site of a call on a host tensor, 0 without one; guarded."""
        try:
            return self._host_site(_place_of(caller), caller)[0]
        except Exception as error:
            self._patcher.fail(error)
            return 0

    def _make_read(self, bursts: _Bursts, flag: int, original: Wrapped) -> Wrapped:
        emit, now, patcher = self._session.emit, self._session.now, self._patcher
        host_only, on_host = self._host_only, flag | _ON_CPU
        plain, mode_depth, host_sites = self.plain_types, self._mode_depth, self._host_sites
        find, this_frame = self._session.sites.find, sys._getframe
        on_device_wait = self._session.on_device_wait
        leaves_marks = bool(on_device_wait.watchers)
        chain, origins, flag_of = self._chain, self._origins, self._flag_of
        is_on_device = self._is_on_device

        def call(*args: Any, **kwargs: Any) -> Any:
            key, in_chain = _NOWHERE, 0
            if leaves_marks and is_on_device(args):
                key = _place_of(caller_of(this_frame().f_back))
                start, in_chain = chain.begin(key)
            else:
                start = now()
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                hide_our_frame(error)
                raise
            finally:
                # A mode or a tensor subclass of the script would see our reads as calls; calls
                # under a mode come again below it.
                if (
                    (bursts.are_counted or not host_only.holds)
                    and args
                    and type(args[0]) in plain
                    and (host_only.holds or not mode_depth())
                    and (bursts.are_counted or not args[0].is_cpu)
                ):
                    try:
                        # Called from C code only, as at exit, it has no caller frame.
                        caller = this_frame().f_back or this_frame()
                        if not host_only.holds:
                            caller = caller_of(caller) or caller
                        key = key if key is not _NOWHERE else _place_of(caller)
                        site = host_sites.get(key) or self._host_site(key, caller)
                        if host_only.holds or args[0].is_cpu:
                            if site[0]:
                                emit(_SYNC, start, start, site[0], 0, on_host)
                                bursts.left -= 1
                                if bursts.left <= 0:
                                    bursts.end()
                        else:
                            end = chain.end(key, start, in_chain)
                            by = origins.get(id(caller.f_code))
                            by = flag_of(caller) if by is None else by
                            emit(_SYNC, start, end, find(caller), 0, flag | in_chain | by)
                            if leaves_marks and not in_chain:
                                on_device_wait()
                    except Exception as error:
                        patcher.fail(error)

        return call

    def _is_on_device(self, args: tuple[Any, ...]) -> bool:
        is_plain = bool(args) and type(args[0]) in self.plain_types
        return is_plain and not self._mode_depth() and not args[0].is_cpu

    def _stop_counting(self, name: str, flag: int, end_ns: int) -> None:
        """Removes the wrapper if it has nothing more to record."""
        note = {"reads_counted_until": end_ns, "flag": flag}
        self._session.log.note(Topic.ENVIRONMENT, note)
        # Not if the script holds it, as a dict key or to pickle it.
        references = getrefcount(vars(self._torch.Tensor).get(name))
        in_c = self._session.in_c("caller", lambda _: 0)
        is_kept = references > self._references[name] + _references_by_a_call(name, in_c)
        if self._host_only.holds and not is_kept:
            self._patcher.restore(self._torch.Tensor, name)

    def _host_site(self, key: tuple[int, int], caller: FrameType) -> tuple[int, CodeType]:
        """Returns the site of a call on a host tensor, 0 if the caller is not user code."""
        # Called once per site: a package may have registered a device since the last.
        self._host_only.holds = not may_have_device(self._torch)
        sites = self._session.sites
        site = sites.name(caller) if sites.is_user_code(caller.f_code) else 0
        if len(self._host_sites) >= _MOST_PLACES:
            self._host_sites.clear()
        known = self._host_sites[key] = (site, caller.f_code)
        return known

    def _flag_of(self, caller: FrameType) -> int:
        """Returns the BY_ flags of a call; cached for code outside of torch."""
        sites, outer, flags = self._session.sites, caller, 0
        while outer.f_back is not None and sites.is_not_the_users(outer.f_code):
            outer, flags = outer.f_back, _BY_TORCH
        if not sites.is_user_code(outer.f_code) and sites.package_of(outer.f_code) is not None:
            flags |= _BY_LIBRARY
        if outer is caller:
            self._origins[id(caller.f_code)] = flags
        return flags

    def _synchronized(self, start: int, end: int, caller: FrameType | None, _: Arguments) -> None:
        flags = _SYNCHRONIZE | (self._flag_of(caller) if caller is not None else 0)
        self._session.emit(_SYNC, start, end, self._session.sites.find(caller), 0, flags)
        self._session.on_device_wait()


def _place_of(frame: FrameType | None) -> tuple[int, int]:
    return (id(frame.f_code), frame.f_lasti) if frame is not None else _NOWHERE


def _references_by_a_call(name: str, in_c: InC | None) -> int:
    """Returns the references that Python itself holds to a method during a call of it.

    To a wrapper in C, if `in_c` makes those.
    """
    counts: list[int] = []

    class Asked:
        def item(self) -> float:
            counts.append(getrefcount(vars(Asked)["item"]))
            return 1.0

        def __float__(self) -> float:
            counts.append(getrefcount(vars(Asked)["__float__"]))
            return 1.0

    if in_c is not None:
        for method in (Asked.item, Asked.__float__):
            setattr(Asked, method.__name__, in_c(method, method))
    alike = "__float__" if name.startswith("__") else "item"
    before = getrefcount(vars(Asked)[alike])
    _ = float(Asked()) if alike == "__float__" else Asked().item()
    return counts[0] - before


_SYNC = int(Kind.SYNC)
_SYNCHRONIZE, _ON_CPU = int(SyncFlag.SYNCHRONIZE), int(SyncFlag.ON_CPU)
_IN_CHAIN = int(SyncFlag.IN_CHAIN)
_BY_TORCH, _BY_LIBRARY = int(SyncFlag.BY_TORCH), int(SyncFlag.BY_LIBRARY)
# In place of a caller, if only C code calls.
_NOWHERE = (0, 0)
