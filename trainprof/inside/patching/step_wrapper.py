"""Wraps `step` in optimizer classes, user-defined ones included.

joblib, Ray, Dask and submitit pickle a class of `__main__` by value, with everything its functions
refer to. Our wrapper's references can be pickled, and do nothing in the other process, which need
not have trainprof.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from types import FunctionType, SimpleNamespace
from typing import Any, Final

from trainprof.inside.patching.patcher import (
    InC,
    Wrapped,
    hide_our_frame,
    let_dynamo_skip,
    show_original,
    uncounted,
)
from trainprof.record.hot import compiled

_TORCHS: Final = "torch.optim."
_HOOKED: Final = "hooked"
_AROUND: Final = "around"
# State of a StepAround unpickled elsewhere: passes_through() creates an object, which is true.
_PICKLED_STATE: Final = {"passes_through": object}
Run = Callable[[Wrapped, tuple[Any, ...], dict[str, Any]], Any]


class StepAround:
    """What wrapped steps do in this process."""

    __slots__ = ("hide_frame", "in_c", "passes_through", "run")

    def __init__(
        self, passes_through: Callable[[], bool], run: Run, in_c: InC | None = None
    ) -> None:
        # As attributes: a pickled step must not refer to our modules.
        self.passes_through, self.run, self.hide_frame = passes_through, run, hide_our_frame
        self.in_c = in_c

    def __reduce__(self) -> Any:
        return SimpleNamespace, (), _PICKLED_STATE


class StepHook:
    """A step hook of ours that does nothing after being pickled."""

    def __init__(self, call: Callable[[Any], None]) -> None:
        self._call = call

    def __call__(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._call(optimizer)

    def __reduce__(self) -> Any:
        return getattr, (nullcontext(), "__exit__")  # takes three arguments, and does nothing


def step_around(hooked: Any, around: StepAround) -> Wrapped:
    """Returns a wrapper of `hooked`, torch's wrapper of a `step`."""

    def step(*args: Any, **kwargs: Any) -> Any:
        if around.passes_through():
            return hooked(*args, **kwargs)
        try:
            return around.run(hooked, args, kwargs)
        except BaseException as error:
            around.hide_frame(error)
            raise

    # With torch's globals, so that pickling it does not include our module's.
    names = getattr(hooked, "__globals__", {})
    made: Any = FunctionType(uncounted(step).__code__, names, "step", None, step.__closure__)
    let_dynamo_skip(made)
    functools.update_wrapper(made, hooked)
    # torch's classes are pickled by name.
    if around.in_c is not None and str(made.__module__).startswith(_TORCHS):
        made = around.in_c(hooked, made)
        show_original(made, hooked, is_method=True)
    # By this attribute torch.compile removes torch's wrapper, and ours with it.
    made.__wrapped__ = getattr(hooked, "__wrapped__", hooked)
    return made  # type: ignore[no-any-return]


def hooked_in(step: Any, around: StepAround) -> Any:
    """Returns torch's wrapper in a `step` that `around` wraps, else None."""
    held = _held(step)
    return held[_HOOKED] if held and held[_AROUND] is around else None


def hooked_elsewhere(step: Any) -> Any:
    """Returns torch's wrapper in a `step` unpickled from another process, else None."""
    held = _held(step)
    if held and type(held[_AROUND]) is SimpleNamespace and vars(held[_AROUND]) == _PICKLED_STATE:
        return held[_HOOKED]
    return None


def _held(step: Any) -> dict[str, Any]:
    """Returns the closure of a wrapper of ours by name, {} for other functions.

    It is recognized by its names: the code's file may differ in another process.
    """
    hot = compiled()
    if hot is not None and type(step) is hot.Wrapper:
        step = step._trainprof_twin
    if type(step) is not FunctionType or step.__code__.co_freevars != (_AROUND, _HOOKED):
        return {}
    around, hooked = step.__closure__ or ()
    try:
        return {_AROUND: around.cell_contents, _HOOKED: hooked.cell_contents}
    except ValueError:  # not ours, and not set yet
        return {}
