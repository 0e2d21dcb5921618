"""Which of the user's functions run as hooks on the modules of a model."""

from __future__ import annotations

import dis
import functools
import itertools
import sys
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, Final

from trainprof.probes.module_parts import modules_of

_GLOBAL: Final = "torch.nn.modules.module"
# What modules keep their hooks in, and torch those for all modules.
_TABLES: Final = (
    ("_forward_hooks", "_global_forward_hooks"),
    ("_forward_pre_hooks", "_global_forward_pre_hooks"),
)
_AHEAD: Final = "_forward_pre_hooks"
_LAMBDA: Final = "<lambda>"
_MOST_WRAPPERS: Final = 4
_RETURNS: Final = ("RETURN_VALUE", "RETURN_CONST")


def hooks_of(module: Any, is_user_code: Callable[[CodeType], bool]) -> list[tuple[CodeType, int]]:
    """Returns the functions that only look on as a module and those inside it are called.

    What gives a result back is a part of the model, and is left out, as is what changes tensors in
    place, or sets what the module will compute with; of a lambda nobody knows.

    Returns:
        Each with the last of its lines.
    """
    codes = {id(code): code for code in _codes(module, is_user_code)}
    return [
        (code, _last_line(code))
        for code in codes.values()
        if is_user_code(code) and (code.co_name == _LAMBDA or _returns_nothing(code))
    ]


def _codes(module: Any, is_user_code: Callable[[CodeType], bool]) -> Iterator[CodeType]:
    for here, anywhere in _TABLES:
        tables = [vars(one).get(here) for one in modules_of(module)]
        tables.append(getattr(sys.modules.get(_GLOBAL), anywhere, None))
        is_ahead = here == _AHEAD
        for table in tables:
            for hook in list(table.values()) if isinstance(table, dict) else ():
                code = _code_of(hook, is_user_code)
                if code is not None and not _has_effects(code, is_ahead=is_ahead):
                    yield code


def _code_of(hook: Any, is_user_code: Callable[[CodeType], bool]) -> CodeType | None:
    while isinstance(hook, functools.partial):
        hook = hook.func
    function = getattr(hook, "__func__", hook)
    code = getattr(function, "__code__", None)
    for _ in range(_MOST_WRAPPERS):  # such as @torch.no_grad(), whose own code is torch's
        if not isinstance(code, CodeType) or is_user_code(code):
            break
        inner = vars(function).get("__wrapped__")
        if inner is None:
            break
        function, code = inner, getattr(inner, "__code__", None)
    if not isinstance(code, CodeType):
        calls = (vars(base).get("__call__") for base in type(hook).__mro__)
        code = getattr(next(filter(None, calls), None), "__code__", None)
    return code if isinstance(code, CodeType) else None


def _last_line(code: CodeType) -> int:
    lines = [line for _, _, line in code.co_lines() if line is not None]
    inner = (_last_line(const) for const in code.co_consts if isinstance(const, CodeType))
    return max(itertools.chain((code.co_firstlineno,), lines, inner))


def _has_effects(code: CodeType, *, is_ahead: bool) -> bool:
    """Whether a hook seems to change what is computed: in place, or ahead of a call by attributes.

    After a call attributes are where statistics are kept.
    """
    names = code.co_names
    if any(name.endswith("_") and not name.startswith("_") for name in names):
        return True
    sets = any(one.opname == "STORE_ATTR" for one in dis.get_instructions(code))
    return is_ahead and (sets or "setattr" in names)


def _returns_nothing(code: CodeType) -> bool:
    before = None
    for one in dis.get_instructions(code):
        if one.opname in _RETURNS:
            told = one if one.opname == "RETURN_CONST" else before
            if told is None or not told.opname.endswith("_CONST") or told.argval is not None:
                return False
        before = one
    return True
