"""How a loader's class is called: which arguments it takes, and who wrote its constructors."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import CodeType
from typing import Any

from trainprof.inside.patching.call_site import CallSites


def taken_by(cls: type) -> list[str]:
    """Returns the names of a constructor's parameters, in order.

    Those behind "*" are taken by keyword alone; "**" stands last where it takes any others.
    """
    code = next(_constructors(cls), None)
    if code is None:
        return []
    by_place, names = code.co_argcount, code.co_varnames
    by_keyword = names[by_place : by_place + code.co_kwonlyargcount]
    others = ["**"] if code.co_flags & inspect.CO_VARKEYWORDS else []
    return [*names[1:by_place], "*", *by_keyword, *others]


def constructor_sites(cls: type, sites: CallSites) -> list[int]:
    """Returns where the constructors that the user wrote begin, the outermost first, as ids."""
    own = (code for code in _constructors(cls) if sites.is_user_code(code))
    return [sites.beginning_of(code) for code in own]


def _constructors(cls: type) -> Iterator[CodeType]:
    """Yields the code of a class's constructors, its own first; of wrapped ones what they wrap."""
    for base in cls.__mro__:
        method: Any = vars(base).get("__init__")
        while hasattr(method, "__wrapped__"):
            method = method.__wrapped__
        code = getattr(method, "__code__", None)
        if isinstance(code, CodeType):
            yield code
