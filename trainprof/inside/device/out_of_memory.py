"""What can be said of a device that ran out of memory, once the process has ended by that."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any, Final

_UNITS: Final = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE: Final = r"(\d+(?:\.\d+)?) (bytes|[KMGT]iB)"
# From torch's own sentence; of it nothing else is kept.
_SIZES: Final = {
    "requested_bytes": re.compile(rf"[Tt]ried to allocate {_SIZE}"),
    "total_bytes": re.compile(rf"total capaci?ty of {_SIZE}"),
    "free_bytes": re.compile(rf"of which {_SIZE} is free"),
    "allocated_bytes": re.compile(rf"{_SIZE} is allocated by PyTorch"),
    "kept_bytes": re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated"),
}
_DEVICE: Final = re.compile(r"\bGPU (\d{1,4})\b")
_CAUSES: Final = 8


def last_state(is_user_code: Callable[[CodeType], bool]) -> dict[str, Any] | None:
    """Returns {device, place, requested_bytes, ...} of the error that this process ends by.

    Sizes as torch rounded them in its message, each None where that does not tell it; `place` is
    the user's innermost [file, line, function].

    Returns:
        None where the process does not end by a device out of memory.
    """
    error = _is_ended_by()
    for _ in range(_CAUSES):
        if error is None:
            return None
        if _is_out_of_memory(error):
            return _described(error, is_user_code)
        error = error.__cause__
    return None


def _is_ended_by() -> BaseException | None:
    """The exception that nobody has caught; in a child of multiprocessing the one in flight."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    error = error or sys.exc_info()[1]
    if isinstance(error, SystemExit):
        error = error.__context__ if error.code else None
    return error if isinstance(error, BaseException) else None


def _is_out_of_memory(error: BaseException) -> bool:
    if any(cls.__name__ == "OutOfMemoryError" for cls in type(error).__mro__):
        return True
    # Where torch has no class for it: mps, and CUDA errors out of memory in its own libraries.
    return isinstance(error, RuntimeError) and "out of memory" in _message(error)


def _message(error: BaseException) -> str:
    return str(error.args[0]) if error.args and isinstance(error.args[0], str) else ""


def _described(error: BaseException, is_user_code: Callable[[CodeType], bool]) -> dict[str, Any]:
    message = _message(error)
    device = _DEVICE.search(message)
    state: dict[str, Any] = {"device": int(device[1]) if device else None, "place": None}
    for name, pattern in _SIZES.items():
        found = pattern.search(message)
        state[name] = round(float(found[1]) * _UNITS[found[2]]) if found else None
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if is_user_code(code):
            state["place"] = [code.co_filename, traceback.tb_lineno, code.co_name]
        traceback = traceback.tb_next
    return state
