"""torch's functions, one call after the other, as a mode of torch's own sees them."""

from __future__ import annotations

from _thread import allocate_lock, get_ident
from collections.abc import Callable
from sys import _getframe, modules
from types import FrameType, ModuleType
from typing import Any, Final

from trainprof.probes.function_modes import FunctionModes
from trainprof.probes.patcher import (
    HookPointMissing,
    hide_our_frame,
    let_dynamo_skip,
    uncounted,
)

# By the name of a function: one that tells of a tensor, such as its shape, or gives another view of
# it.
_READS: Final = "__get__"
# By it torch asks whether a mode, or a subclass of tensors, is to be told of a call.
_ASKS: Final = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")

# Given the function's name and arguments.
Before = Callable[[str, tuple[Any, ...], dict[str, Any]], None]
# Given those, what it gave, when it began and ended on the clock, and the frame that called it.
Sees = Callable[[str, tuple[Any, ...], dict[str, Any], Any, int, int, FrameType], None]


class FunctionWatch:
    """A function mode that tells of each call while it is on, in one thread.

    Of calls that only tell of a tensor, such as its shape, it says nothing.

    Args:
        torch: The script's.
        before: Is told of a call that is about to be made; raises nothing.
        sees: Is told of a call that was made; raises nothing.
        now: The clock.

    Attributes:
        depth: Asks how many modes are on in the calling thread.

    Raises:
        HookPointMissing: This torch has no such modes.
    """

    def __init__(
        self, torch: ModuleType, before: Before, sees: Sees, now: Callable[[], int]
    ) -> None:
        self._push, self._pop = (
            _needed(torch._C, name)
            for name in ("_push_on_torch_function_stack", "_pop_torch_function_stack")
        )
        _needed(torch._C, "_len_torch_function_stack")
        self.depth = FunctionModes(torch).depth
        self.begin_anew()
        self._questions = {name: _needed(torch.overrides, name) for name in _ASKS}
        self._without_ours = {name: self._new_question(x) for name, x in self._questions.items()}
        self._asking: list[dict[str, Any]] = []
        self._mode = _new_mode(torch.overrides.TorchFunctionMode, before, sees, now)

    def begin_anew(self) -> None:
        """Forgets, in a process that was forked, where another thread had it on."""
        self._thread, self._turn = 0, allocate_lock()

    def is_on_here(self) -> bool:
        """Whether it is on in the calling thread."""
        return self._thread == get_ident()

    def open(self) -> None:
        """Learns which of torch's modules ask whether a mode is to be told, ahead of put_on."""
        self._asking = [
            vars(module)
            for name, module in list(modules.items())
            if name.partition(".")[0] == "torch" and not vars(module).keys().isdisjoint(_ASKS)
        ]

    def put_on(self) -> bool:
        """Has the calling thread's calls told of; returns False where another has it on."""
        if not self._turn.acquire(blocking=False):
            return False
        self._thread = get_ident()
        self._ask(self._without_ours)
        self._push(self._mode)
        return True

    def take_off(self) -> None:
        """Ends that; modes that the script has put above ours stay."""
        self._ask(self._questions)
        self._thread = 0
        above = []
        while self.depth():
            mode = self._pop()
            if mode is self._mode:
                break
            above.append(mode)
        for mode in reversed(above):
            self._push(mode)
        self._turn.release()

    def _new_question(self, asks: Callable[..., Any]) -> Callable[..., Any]:
        """Returns what answers whether a call is to be told of as it is without our mode.

        By it torch's transformers in evaluation mode decide in which of two ways they compute, and
        its Python functions whether they are called once more, by a mode: with more frames, so that
        their warnings would stand elsewhere.
        """
        depth, ident = self.depth, get_ident

        def has_torch_function(*args: Any) -> Any:
            if ident() != self._thread or depth() != 1:
                return asks(*args)
            self._pop()
            try:
                return asks(*args)
            finally:
                self._push(self._mode)

        return has_torch_function

    def _ask(self, questions: dict[str, Any]) -> None:
        """Has torch's modules ask these."""
        for names in self._asking:
            for name, question in questions.items():
                if names.get(name) in (self._questions[name], self._without_ours[name]):
                    names[name] = question


def _new_mode(base: Any, before: Before, sees: Sees, now: Callable[[], int]) -> Any:
    def __torch_function__(
        self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == _READS:
            return func(*args, **kwargs)
        before(name, args, kwargs)
        start = now()
        try:
            result = func(*args, **kwargs)
        except BaseException as error:
            hide_our_frame(error)
            raise
        sees(name, args, kwargs, result, start, now(), _getframe(1))
        return result

    watching = uncounted(__torch_function__)
    let_dynamo_skip(watching, and_all_below=True)
    return type("Watching", (base,), {"__torch_function__": watching})()


def _needed(owner: Any, name: str) -> Any:
    found = getattr(owner, name, None)
    if found is None:
        raise HookPointMissing(f"{owner.__name__}.{name} does not exist")
    return found
