"""torch's modes: what one of the script's would notice, and who stands behind torch's own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from types import FrameType, ModuleType
from typing import Any, Final

from trainprof.inside.patching.patcher import beyond_ours

# Where `torch.set_default_device` and `with torch.device(...)` have their mode: for as long as that
# lasts it is asked about each call, and hands it on.
_DEVICE_MODULE: Final = "torch.utils._device"
_DEVICE_MODE: Final = "DeviceContext"
_IS_ASKED: Final = "__torch_function__"


class FunctionModes:
    """The modes that are on in the calling thread.

    Attributes:
        depth: Asks how many there are. A call that one is asked about comes once more without it:
            at 0 none is still to be asked.
        dispatch_depth: Asks how many of the other kind there are, which see each operator.
        unseen: Within `unseen()` none that is asked about calls is.
    """

    __slots__ = ("_at", "depth", "dispatch_depth", "unseen")

    def __init__(self, torch: ModuleType) -> None:
        self.depth: Callable[[], int] = getattr(torch._C, "_len_torch_function_stack", lambda: 0)
        self.dispatch_depth: Callable[[], int] = getattr(
            torch._C, "_len_torch_dispatch_stack", lambda: 0
        )
        self._at = getattr(torch._C, "_get_function_stack_at", None)
        self.unseen: Callable[[], Any] = getattr(torch._C, "DisableTorchFunction", nullcontext)

    def would_notice(self) -> bool:
        """Whether one of the script's is on, which would see what a tensor is asked for.

        torch's own for a default device stands below all others.
        """
        depth = self.depth()
        if depth == 0:
            return False
        if depth > 1 or self._at is None:
            return True
        return type(self._at(0)) is not getattr(sys.modules.get(_DEVICE_MODULE), _DEVICE_MODE, None)


def asked_by(frame: FrameType | None) -> FrameType | None:
    """Returns the frame that made a call: the given one, or what stands behind a default device."""
    while (
        frame is not None
        and frame.f_code.co_name == _IS_ASKED
        and frame.f_globals.get("__name__") == _DEVICE_MODULE
    ):
        frame = beyond_ours(frame.f_back)
    return frame
