"""What probes ask of the script's tensors, and whether they may."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, Final

from trainprof.inside.patching.function_modes import FunctionModes
from trainprof.inside.patching.patcher import COMPILER, is_profiling
from trainprof.inside.session import Session

# With these, what the optimizer has are no parameters of the model's.
_OWN_PARAMETERS: Final = ("deepspeed", "apex", "megatron")


class PlainTensors:
    """Knows those of torch's own classes.

    Attributes:
        unseen: Within it, no subclass of tensors of the script's notices what is asked.
    """

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
        if COMPILER in sys.modules and self._session.compiler.is_compiling():
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
