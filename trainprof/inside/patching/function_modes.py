"""Finds out whether probes can read the script's tensors without running its code."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from types import FrameType, ModuleType
from typing import Any, Final

from trainprof.inside.patching.patcher import COMPILER, beyond_ours, is_profiling
from trainprof.inside.session import Session

# The mode of `torch.set_default_device` and `with torch.device(...)`, which sees each call and
# forwards it.
_DEVICE_MODULE: Final = "torch.utils._device"
_DEVICE_MODE: Final = "DeviceContext"
_HANDLER: Final = "__torch_function__"


class FunctionModes:
    """The `__torch_function__` modes active in the calling thread.

    Attributes:
        depth: Returns their number.
        dispatch_depth: Returns the number of `__torch_dispatch__` modes, which see each operator.
        unseen: `with unseen()` disables `__torch_function__`.
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
        """Returns whether a mode of the script is active; a default device's mode doesn't count."""
        depth = self.depth()
        if depth == 0:
            return False
        if depth > 1 or self._at is None:
            return True
        return type(self._at(0)) is not getattr(sys.modules.get(_DEVICE_MODULE), _DEVICE_MODE, None)


def asks_for_transforms(torch: ModuleType) -> Callable[[], bool]:
    """Returns a function that says whether torch.func transforms run in the calling thread.

    functorch's own functions create a state in the thread, which each backward pass copies from
    then on, for 3 us.
    """
    key = getattr(torch._C.DispatchKey, "FuncTorchDynamicLayerFrontMode", None)
    is_included = getattr(torch._C, "_dispatch_tls_is_dispatch_key_included", None)
    if key is None or is_included is None:
        return lambda: False
    return partial(is_included, key)


def caller_of(frame: FrameType | None) -> FrameType | None:
    """Returns the frame that made a call, beyond the mode of a default device."""
    while (
        frame is not None
        and frame.f_code.co_name == _HANDLER
        and frame.f_globals.get("__name__") == _DEVICE_MODULE
    ):
        frame = beyond_ours(frame.f_back)
    return frame


# With these libraries the optimizer's parameters are not the model's.
_OWN_PARAMETERS: Final = ("deepspeed", "apex", "megatron")


class PlainTensors:
    """Knows tensors of torch's own classes; `with unseen()` disables `__torch_function__`."""

    def __init__(self, torch: ModuleType, session: Session) -> None:
        self._torch, self._session = torch, session
        self._plain_types = (torch.Tensor, torch.nn.Parameter)
        self._whole = {torch.int64, torch.int32, torch.int16}
        self._is_traced = getattr(torch._C, "_get_tracing_state", lambda: None)
        self._dispatch_depth = FunctionModes(torch).dispatch_depth
        self._is_transformed = asks_for_transforms(torch)
        self.unseen = torch._C.DisableTorchFunction

    def has_own_parameters(self) -> bool:
        """Returns whether a library is loaded whose optimizers have their own parameters."""
        return any(name in sys.modules for name in _OWN_PARAMETERS)

    def may_compute(self) -> bool:
        """Returns whether computing a tensor here is invisible to the script."""
        if COMPILER in sys.modules and self._session.is_compiling():
            return False
        if self._dispatch_depth() or is_profiling() or self._is_traced() is not None:
            return False
        if self._is_transformed():  # under vmap a tensor's values can't be read
            return False
        cuda = self._torch.cuda
        return not (cuda.is_initialized() and cuda.is_current_stream_capturing())

    def is_plain(self, tensor: Any) -> bool:
        """Returns whether it is torch's own class, whose data is in this process (no DTensor)."""
        kind = type(tensor)  # by identity: a metaclass of the script may define ==
        return any(kind is plain for plain in self._plain_types)

    def is_whole(self, tensor: Any) -> bool:
        """Returns whether it is plain and of an integer dtype."""
        return self.is_plain(tensor) and tensor.dtype in self._whole
