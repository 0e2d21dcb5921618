"""What probes may ask of the script's tensors: which modes would notice, of which classes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from types import FrameType, ModuleType
from typing import Any, Final

from trainprof.inside.patching.patcher import COMPILER, beyond_ours, is_profiling
from trainprof.inside.session import Session

# Where `torch.set_default_device` and `with torch.device(...)` have their mode: for as long as that
# lasts it is asked about each call, and hands it on.
_DEVICE_MODULE: Final = "torch.utils._device"
_DEVICE_MODE: Final = "DeviceContext"
_IS_ASKED: Final = "__torch_function__"


class FunctionModes:
    """The modes that are on in the calling thread.

    Attributes:
        depth: Asks how many are still to be asked about a call.
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
        """Whether one of the script's is on; torch's own for a default device is below others."""
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


# With these, what the optimizer has are no parameters of the model's.
_OWN_PARAMETERS: Final = ("deepspeed", "apex", "megatron")


class PlainTensors:
    """Knows those of torch's own classes; within `unseen()` none of the script's is asked."""

    def __init__(self, torch: ModuleType, session: Session) -> None:
        self._torch, self._session = torch, session
        self._plain_types = (torch.Tensor, torch.nn.Parameter)
        self._whole = {torch.int64, torch.int32, torch.int16}
        self._is_traced = getattr(torch._C, "_get_tracing_state", lambda: None)
        self._dispatch_depth = FunctionModes(torch).dispatch_depth
        functorch = getattr(torch._C, "_functorch", None)
        self._transforms = getattr(functorch, "peek_interpreter_stack", lambda: None)
        self.unseen = torch._C.DisableTorchFunction

    def has_own_parameters(self) -> bool:
        """Whether a library may be at work whose optimizers have no parameters of the model's."""
        return any(name in sys.modules for name in _OWN_PARAMETERS)

    def may_compute(self) -> bool:
        """Whether nothing of the script's would notice a tensor that is computed here."""
        if COMPILER in sys.modules and self._session.is_compiling():
            return False
        if self._dispatch_depth() or is_profiling() or self._is_traced() is not None:
            return False
        if self._transforms() is not None:  # under vmap tensors have no numbers of their own
            return False
        cuda = self._torch.cuda
        return not (cuda.is_initialized() and cuda.is_current_stream_capturing())

    def is_plain(self, tensor: Any) -> bool:
        """Whether it is torch's own: no library keeps numbers elsewhere, such as other ranks."""
        kind = type(tensor)  # by identity: a class of the script's may have an == of its own
        return any(kind is plain for plain in self._plain_types)

    def is_whole(self, tensor: Any) -> bool:
        """Whether it is such a one, of whole numbers."""
        return self.is_plain(tensor) and tensor.dtype in self._whole
