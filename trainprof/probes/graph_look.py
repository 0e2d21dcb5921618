"""Looks at single backward passes: when one may be, and what the nodes of its graph take."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Mapping
from itertools import count, pairwise
from types import ModuleType
from typing import Any, Final

from trainprof.probes.function_modes import FunctionModes
from trainprof.probes.patcher import COMPILER, is_profiling, let_dynamo_skip
from trainprof.probes.session import Session

# With these, what the optimizer has are no parameters of the model's.
_OWN_PARAMETERS: Final = ("deepspeed", "apex", "megatron")
_COMPILED_AUTOGRAD: Final = "torch._dynamo.compiled_autograd"
_NONE_COMPILED: Final = count()


class GraphLook:
    """Times the nodes of one pass, by hooks on them that tell when each begins."""

    def __init__(self, session: Session, keys: Mapping[Any, Hashable]) -> None:
        """Hooks each node, unless all have one key; its time goes to its key."""
        self._session, now = session, session.now
        session.passes_timed += 1
        self._marks: list[tuple[int, Hashable]] = []
        self._hooks: list[Any] = []
        different = set(keys.values())
        if len(different) > 1:
            hooks = {key: _hook(now, self._marks, key) for key in different}
            self._hooks = [node.register_prehook(hooks[key]) for node, key in keys.items()]
        else:
            self._marks = [(now(), key) for key in different]

    def end(self, end_ns: int) -> dict[Any, int]:
        """Lets go of the nodes; returns what those of each key took, ns."""
        self._session.passes_timed -= 1
        for hook in self._hooks:
            hook.remove()
        took_ns: dict[Any, int] = {}
        for (start_ns, key), (next_ns, _) in pairwise([*self._marks, (end_ns, None)]):
            took_ns[key] = took_ns.get(key, 0) + next_ns - start_ns
        return took_ns


def _hook(
    now: Callable[[], int], marks: list[tuple[int, Hashable]], key: Hashable
) -> Callable[[Any], None]:
    mark = marks.append

    def begins(_: Any) -> None:
        mark((now(), key))

    let_dynamo_skip(begins, and_all_below=True)
    return begins


class Autograd:
    """What looks ask of torch.

    Attributes:
        opaque: Base class of nodes whose backward is Python code.
        unseen: Within it, no subclass of tensors of the script's notices what is asked.
    """

    def __init__(self, torch: ModuleType, session: Session) -> None:
        self._torch, self._session = torch, session
        self._plain_types = (torch.Tensor, torch.nn.Parameter)
        self._is_traced = getattr(torch._C, "_get_tracing_state", lambda: None)
        self._dispatch_depth = FunctionModes(torch).dispatch_depth
        functorch = getattr(torch._C, "_functorch", None)
        self._transforms = getattr(functorch, "peek_interpreter_stack", lambda: None)
        self.opaque = torch.autograd.function.BackwardCFunction
        self.unseen = torch._C.DisableTorchFunction

    def may_look(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether it is a `backward` that nothing of the script's would notice a look at."""
        if len(args) != 4 or args[3] or not kwargs.get("accumulate_grad"):
            return False  # autograd.grad, or of some inputs, or a torch that calls it otherwise
        return self.may_hook() and not self.has_own_parameters()

    def may_hook(self) -> bool:
        """Whether nothing of the script's would notice a hook on a node: no compiler reads it."""
        return not _is_backward_compiled() and self.may_compute()

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

    def value_of(self, tensor: Any) -> Any:
        """Returns the number in a tensor of the host's; the script's `item` is watched."""
        return self._torch._C.TensorBase.item(tensor)


def _is_backward_compiled() -> bool:
    """Whether compiled autograd is on, or has been: it may be about to be once more."""
    compiled = sys.modules.get(_COMPILED_AUTOGRAD)
    if getattr(compiled, "compiled_autograd_enabled", False):
        return True
    return repr(getattr(compiled, "COMPILE_COUNTER", _NONE_COMPILED)) != repr(_NONE_COMPILED)
