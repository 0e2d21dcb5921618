"""The hot path in C, where it is built; everywhere else its twins in Python do the same."""

from __future__ import annotations

import functools
import os
import sys
import zlib
from types import ModuleType
from typing import Any, Final

PURE_PYTHON: Final = "TRAINPROF_PURE_PYTHON"
_HAS_GIL: Final = "_is_gil_enabled"


class State:
    """What wrappers in C share with their twins.

    No dataclass: creating one at the end of a script makes Python forget that Ctrl-C ended it.

    Attributes:
        thread: The one inside an outermost call, or 0. It is read in hundreds of calls: comparing
            two ints takes a third of the time of a set lookup.
        worker: Of a fetcher: 0 in the process that trains, 1 in the first worker.
        loader: The id of a worker's loader, else 0.
        may_be_stamped, is_stamped: Whether samples can be timed, and are: while they are not short.
        collate_began_ns: In this fetch.
        samples, samples_ns: Of stamped and of measured fetches, without collate.
        short_sample_ns: Shorter samples are not timed.
        to_pass: Of a meter of fetches: the number of next ones that are not measured.
        least_ns: The shortest fetches, or samples, that matter to it.
    """

    __slots__ = (
        *("thread", "worker", "loader", "may_be_stamped", "is_stamped", "collate_began_ns"),
        *("samples", "samples_ns", "short_sample_ns", "to_pass", "least_ns"),
    )

    def __init__(self) -> None:
        self.thread = self.worker = self.loader = 0
        self.may_be_stamped = self.is_stamped = False
        self.collate_began_ns = self.samples = self.samples_ns = self.short_sample_ns = 0
        self.to_pass = self.least_ns = 0

    def __reduce__(self) -> Any:
        return type(None), ()  # a copy, or one in another process, has no state of ours


def new_state() -> State:
    hot = compiled()
    state: State = State() if hot is None else hot.State()
    return state


def compiled() -> Any:
    """Returns the extension module; None if it is not built from this source, or PURE_PYTHON is 1.

    Nor is it used by Python without the GIL, which importing it would enable.
    """
    if os.environ.get(PURE_PYTHON) == "1" or not getattr(sys, _HAS_GIL, lambda: True)():
        return None
    return _extension()


@functools.cache
def _extension() -> ModuleType | None:
    try:
        from trainprof.record import _hot
    except ImportError:
        return None
    try:
        with open(os.path.join(os.path.dirname(__file__), "_hot.c"), "rb") as file:
            is_newest = zlib.crc32(file.read()) == getattr(_hot, "SOURCE", None)
    except OSError:  # installed, without the source
        is_newest = True
    return _hot if is_newest else None
