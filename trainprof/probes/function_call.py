"""A call of one of torch's functions, as looks at a model are told of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Call:
    """A call of one of torch's functions.

    Attributes:
        name: Of the function.
        args, kwargs: That it was given.
        result: That it gave.
        took_ns: Of the host's time.
        site_of: Tells the user's line, in the model; 0 where none of it is the user's.
    """

    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    result: Any
    took_ns: int
    site_of: Callable[[], int]
