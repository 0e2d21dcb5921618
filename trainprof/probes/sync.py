"""Records calls that need a device's value on the host, by the line that makes them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from trainprof.probes.patcher import HookPointMissing, Patcher, hide_our_frame
from trainprof.probes.session import Session
from trainprof.record.schema import Kind, SyncFlag

Wrapped = Callable[..., Any]

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


class SyncProbe:
    """Wraps `item` and its like; on a host tensor they are counted, for they wait for nothing.

    torch's own calls on host tensors (Adam's step counters, the loader's seed) are left out.
    """

    name = "sync"

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        self._session = session
        # By code and place in it: the site, or 0 where the caller is not the user's.
        self._host_sites: dict[tuple[int, int], int] = {}
        self._emit, self._sites = session.emit, session.sites
        self._plain = {torch.Tensor, torch.nn.Parameter}
        self._mode_depth = getattr(torch._C, "_len_torch_function_stack", lambda: 0)
        record = patcher.guarded(self._record)
        for name, flag in TENSOR_CALLS.items():
            place = (torch.Tensor, name)
            self._optional(patcher, self._maker(int(flag), record), place, inherited=True)
        for module in (
            torch.cuda,
            getattr(torch, "accelerator", None),
            getattr(torch, "xpu", None),
        ):
            if module is not None:
                make = self._maker(_SYNCHRONIZE, record)
                self._optional(patcher, make, (module, "synchronize"))

    def _optional(
        self, patcher: Patcher, make: Wrapped, place: tuple[Any, str], inherited: bool = False
    ) -> None:
        try:
            patcher.around(make, place, inherited=inherited)
        except HookPointMissing as missing:
            self._session.unavailable(self.name, str(missing))

    def _maker(self, flag: int, record: Callable[..., None]) -> Callable[[Wrapped], Wrapped]:
        now, frame_of_caller = self._session.now, sys._getframe

        def make(original: Wrapped) -> Wrapped:
            def call(*args: Any, **kwargs: Any) -> Any:
                start = now()
                try:
                    return original(*args, **kwargs)
                except BaseException as error:
                    hide_our_frame(error)
                    raise
                finally:
                    record(flag, args, start, now(), frame_of_caller(1))

            return call

        return make

    def _record(self, flag: int, args: tuple[Any, ...], start: int, end: int, caller: Any) -> None:
        site = None
        if flag != _SYNCHRONIZE:
            if not args or type(args[0]) not in self._plain or self._mode_depth():
                return
            if args[0].is_cpu:
                key = (id(caller.f_code), caller.f_lasti)
                site = self._host_sites.get(key)
                if site is None:
                    is_users = self._sites.is_user_code(caller.f_code)
                    site = self._host_sites[key] = self._sites.name(caller) if is_users else 0
                if site == 0:
                    return
                flag |= _ON_CPU
        self._emit(_SYNC, start, end, self._sites.find(caller) if site is None else site, 0, flag)


_SYNC = int(Kind.SYNC)
_SYNCHRONIZE, _ON_CPU = int(SyncFlag.SYNCHRONIZE), int(SyncFlag.ON_CPU)
