"""The accelerator that the script uses, once it uses one: nothing here touches it before that."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Final

from trainprof.inside.patching.patcher import Patcher, Wrapped, called_around, hide_our_frame

# Those whose module has `is_initialized`; so have many of other packages.
_HAVE_STATE: Final = ("cuda", "xpu")
_NONE_ADDED: Final = "privateuseone"
_HAVE_SYNCHRONIZE: Final = (*_HAVE_STATE, "mps", "accelerator")


class Accelerator:
    """Knows which devices the script works on, and waits for them.

    torch's own functions are taken when this is made, before any probe wraps them. From
    `watch_captures` on, `capturing` counts CUDA graphs that are being captured.
    """

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch
        self.capturing = 0
        self._synchronize: dict[str, Callable[..., Any]] = {}
        for name in _HAVE_SYNCHRONIZE:
            function = getattr(getattr(torch, name, None), "synchronize", None)
            if callable(function):
                self._synchronize[name] = function
        # By type, the indices of devices that tensors were copied to or from.
        self._seen: dict[str, set[int]] = {}
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """In a forked child the parent's devices cannot be used."""
        self._seen.clear()
        self.capturing = 0

    def saw(self, kind: str, index: int | None) -> None:
        """Notes a device (None: the current one) that the script has copied to or from."""
        indices = self._seen.setdefault(kind, set())
        if index is not None:
            indices.add(index)

    def indices_of(self, kind: str) -> set[int]:
        """Returns the indices of a type's devices seen so far; later ones are added to it."""
        return self._seen.setdefault(kind, set())

    def kinds_in_use(self) -> list[str]:
        begun = list(self._seen)
        for name in (*_HAVE_STATE, _from_elsewhere(self._torch)):
            is_initialized = getattr(getattr(self._torch, name, None), "is_initialized", None)
            if name not in begun and is_initialized is not None and is_initialized():
                begun.append(name)
        return begun

    def synchronize(self) -> bool:
        """Waits for every device in use; False where none is in use or may be waited for."""
        kinds = self.kinds_in_use()
        if not kinds or self.is_capturing(kinds):
            return False
        for kind in kinds:
            self._synchronize_all_of(kind)
        return True

    def is_capturing(self, kinds: Sequence[str]) -> bool:
        """Whether a CUDA graph is being captured: no device may be waited for or asked then."""
        if self.capturing:
            return True
        return "cuda" in kinds and bool(self._torch.cuda.is_current_stream_capturing())

    def watch_captures(self, patcher: Patcher) -> None:
        graph = getattr(getattr(self._torch, "cuda", None), "CUDAGraph", None)
        if graph is not None:
            patcher.around_if_there(self._make_begin, (graph, "capture_begin"))
            make_end = called_around(after=self._capture_ended)
            patcher.around_if_there(make_end, (graph, "capture_end"))

    def _make_begin(self, original: Wrapped) -> Wrapped:
        def capture_begin(*args: Any, **kwargs: Any) -> Any:
            self.capturing += 1
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                self.capturing -= 1
                hide_our_frame(error)
                raise

        return capture_begin

    def _capture_ended(self) -> None:
        self.capturing -= 1

    def _synchronize_all_of(self, kind: str) -> None:
        known = (
            self._synchronize.get(kind)
            or getattr(getattr(self._torch, kind, None), "synchronize", None)
            or self._synchronize.get("accelerator")
        )
        indices = sorted(self.indices_of(kind))
        if known is None:
            return
        if len(indices) <= 1:
            known()
        else:
            for index in indices:
                known(index)


def may_have_device(torch: ModuleType) -> bool:
    """Whether this build of torch, or a package that it has loaded, knows a device but the CPU."""
    version = getattr(torch, "version", None)
    if any(getattr(version, name, None) for name in ("cuda", "hip", "xpu")):
        return True
    return bool(getattr(torch._C, "_has_mps", False) or _from_elsewhere(torch))


def device_modules(torch: ModuleType) -> list[Any]:
    """Returns what torch has for each kind of device it may use, and for whichever there is."""
    names = ("cuda", "xpu", "mps", "accelerator", _from_elsewhere(torch))
    modules = (getattr(torch, name, None) for name in names if name)
    return [module for module in modules if module is not None]


def _from_elsewhere(torch: ModuleType) -> str:
    """Returns the name of the device type that another package has added, "" without one."""
    backend = getattr(torch._C, "_get_privateuse1_backend_name", None)
    name = _NONE_ADDED if backend is None else str(backend())
    return "" if name == _NONE_ADDED else name
