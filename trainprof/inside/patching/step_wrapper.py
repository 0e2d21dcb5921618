"""What stands around an optimizer's `step`: in the script's own class.

A class of `__main__` goes to other processes by value (joblib, Ray, Dask, submitit), with all that
its functions refer to. What ours refer to can be sent, and does nothing where it arrives: not even
trainprof need be there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from types import FunctionType, SimpleNamespace
from typing import Any, Final

from trainprof.inside.patching.patcher import (
    Wrapped,
    hide_our_frame,
    let_dynamo_skip,
    uncounted,
)

_HOOKED: Final = "hooked"
_AROUND: Final = "around"
# Of what is around a step where it has arrived: to ask makes an object, and each is true.
_ARRIVES_WITH: Final = {"hands_on": object}
Run = Callable[[Wrapped, tuple[Any, ...], dict[str, Any]], Any]


class StepAround:
    """What is done around steps in this process."""

    __slots__ = ("hands_on", "hide_frame", "run")

    def __init__(self, hands_on: Callable[[], bool], run: Run) -> None:
        # By attribute: a step that is sent refers to nothing of our modules.
        self.hands_on, self.run, self.hide_frame = hands_on, run, hide_our_frame

    def __reduce__(self) -> Any:
        return SimpleNamespace, (), _ARRIVES_WITH


class StepHook:
    """A function of ours among those that torch calls before or after each step."""

    def __init__(self, call: Callable[[Any], None]) -> None:
        self._call = call

    def __call__(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._call(optimizer)

    def __reduce__(self) -> Any:
        return getattr, (nullcontext(), "__exit__")  # takes three arguments, and does nothing


def step_around(hooked: Any, around: StepAround) -> Wrapped:
    """Returns `hooked`, which is torch's wrapper of a `step`, with that around it."""

    def step(*args: Any, **kwargs: Any) -> Any:
        if around.hands_on():
            return hooked(*args, **kwargs)
        try:
            return around.run(hooked, args, kwargs)
        except BaseException as error:
            around.hide_frame(error)
            raise

    # With torch's names around it, so that nothing of our module's is sent along.
    names = getattr(hooked, "__globals__", {})
    made = FunctionType(uncounted(step).__code__, names, "step", None, step.__closure__)
    let_dynamo_skip(made)
    functools.update_wrapper(made, hooked)
    # torch.compile takes torch's wrapper off by this attribute, and ours with it.
    made.__wrapped__ = getattr(hooked, "__wrapped__", hooked)  # type: ignore[attr-defined]
    return made


def hooked_in(step: Any, around: StepAround) -> Any:
    """Returns what `step` has `around` around it; None where it has not."""
    held = _held(step)
    return held[_HOOKED] if held and held[_AROUND] is around else None


def hooked_elsewhere(step: Any) -> Any:
    """Returns what a `step` that came from another process stands around; None of any other."""
    held = _held(step)
    if held and type(held[_AROUND]) is SimpleNamespace and vars(held[_AROUND]) == _ARRIVES_WITH:
        return held[_HOOKED]
    return None


def _held(step: Any) -> dict[str, Any]:
    """Returns what a function of ours refers to, by name; {} of others.

    Known by those names alone: its code's file may be another where it has arrived.
    """
    if type(step) is not FunctionType or step.__code__.co_freevars != (_AROUND, _HOOKED):
        return {}
    around, hooked = step.__closure__ or ()
    try:
        return {_AROUND: around.cell_contents, _HOOKED: hooked.cell_contents}
    except ValueError:  # somebody else's, not set yet
        return {}
