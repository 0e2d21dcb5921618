"""The accelerator that the script uses; nothing here touches one before the script does."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Final

from trainprof.inside.patching.patcher import Patcher, Wrapped, called_around, hide_our_frame

# Modules of torch with `is_initialized`; those of other packages may have it too.
_HAVE_STATE: Final = ("cuda", "xpu")
_NONE_ADDED: Final = "privateuseone"
_HAVE_SYNCHRONIZE: Final = (*_HAVE_STATE, "mps", "accelerator")


class Accelerator:
    """Knows which devices the script uses, and synchronizes with them.

    It binds torch's functions on creation, before probes wrap them. `capturing` counts CUDA graphs
    being captured, from `watch_captures` on.
    """

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch
        self.capturing = 0
        self._synchronize: dict[str, Callable[..., Any]] = {}
        for name in _HAVE_SYNCHRONIZE:
            function = getattr(getattr(torch, name, None), "synchronize", None)
            if callable(function):
                self._synchronize[name] = function
        # Indices of devices that tensors were copied to or from, by type.
        self._seen: dict[str, set[int]] = {}
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """Forgets the parent's devices, which a forked child cannot use."""
        self._seen.clear()
        self.capturing = 0

    def saw(self, kind: str, index: int | None) -> None:
        """Records a device (None: the current one) that the script copied to or from."""
        indices = self._seen.setdefault(kind, set())
        if index is not None:
            indices.add(index)

    def indices_of(self, kind: str) -> set[int]:
        """Returns the set of a type's device indices, to which later ones are added."""
        return self._seen.setdefault(kind, set())

    def kinds_in_use(self) -> list[str]:
        begun = list(self._seen)
        for name in (*_HAVE_STATE, _registered_type(self._torch)):
            is_initialized = getattr(getattr(self._torch, name, None), "is_initialized", None)
            if name not in begun and is_initialized is not None and is_initialized():
                begun.append(name)
        return begun

    def synchronize(self) -> bool:
        """Waits for every device in use; returns False without one, or during a graph capture."""
        kinds = self.kinds_in_use()
        if not kinds or self.is_capturing(kinds):
            return False
        for kind in kinds:
            self._synchronize_all_of(kind)
        return True

    def is_capturing(self, kinds: Sequence[str]) -> bool:
        """Returns whether a CUDA graph is being captured: synchronizing or querying then fails."""
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
    """Returns whether this torch, or a package that it loaded, supports a device but the CPU."""
    version = getattr(torch, "version", None)
    if any(getattr(version, name, None) for name in ("cuda", "hip", "xpu")):
        return True
    return bool(getattr(torch._C, "_has_mps", False) or _registered_type(torch))


def device_modules(torch: ModuleType) -> list[Any]:
    """Returns torch's module for each type of device, and the generic `torch.accelerator`."""
    names = ("cuda", "xpu", "mps", "accelerator", _registered_type(torch))
    modules = (getattr(torch, name, None) for name in names if name)
    return [module for module in modules if module is not None]


def _registered_type(torch: ModuleType) -> str:
    """Returns the device type that another package registered, "" without one."""
    backend = getattr(torch._C, "_get_privateuse1_backend_name", None)
    name = _NONE_ADDED if backend is None else str(backend())
    return "" if name == _NONE_ADDED else name
