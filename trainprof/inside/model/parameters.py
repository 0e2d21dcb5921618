"""Reads parameters of modules and optimizers as torch stores them, without user code."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final

from trainprof.inside.patching.user_texts import any_text
from trainprof.inside.session import Session

# Torch's wrappers of compiled modules, which store the mode elsewhere.
_COMPILED: Final = "torch._dynamo.eval_frame"
_SCRIPTED: Final = "torch.jit._script"
_TRACED: Final = "torch.jit._trace"
# `.grad` that is read, not `autograd.grad(...)` and not just set, reset or tested for None.
_READ: Final = re.compile(
    r"""(?<!autograd)\.grad\b(?!\s*(?:\(|=[^=]|\.zero_\(|\.detach_\(|is\b))|["']grad["']"""
)
# Containers in a module's inputs that are deeper or larger are skipped.
_MOST_NESTED, _MOST_HELD = 3, 16


def is_training(module: Any) -> bool:
    """Returns whether a module is in training mode, as stored; False if its class hides that."""
    held = getattr(module, "__dict__", {})
    mode = held.get("training")
    if mode is None:
        made_in = type(module).__module__
        if made_in == _COMPILED:
            return is_training(_named(module, "_modules").get("_orig_mod"))
        if made_in == _TRACED:
            return is_training(held.get("_actual_script_module"))
        if made_in == _SCRIPTED:
            script = held.get("_c")
            return script is not None and script.hasattr("training") and script.getattr("training")
    return mode is True


def parameters_of(module: Any) -> Iterator[Any]:
    seen: set[int] = set()
    for holder in modules_of(module):
        for parameter in _named(holder, "_parameters").values():
            if parameter is not None and id(parameter) not in seen:
                seen.add(id(parameter))
                yield parameter


def modules_of(module: Any) -> Iterator[Any]:
    """Yields a module and its submodules, each once."""
    return (holder for _, holder in named_modules_of(module))


def named_modules_of(module: Any) -> Iterator[tuple[str, Any]]:
    """Yields (name in its parent, module) for a module ("") and its submodules, each once."""
    waiting, known = [("", module)], {id(module)}
    while waiting:
        name, holder = waiting.pop()
        yield name, holder
        for inner, child in _named(holder, "_modules").items():
            if child is not None and id(child) not in known:
                known.add(id(child))
                waiting.append((inner, child))


def _named(module: Any, where: str) -> dict[str, Any]:
    named = getattr(module, "__dict__", {}).get(where)
    return named if isinstance(named, dict) else {}


def held_in(given: Any, name: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yields (dict key or "", object) for the contents of nested plain containers."""
    kind = type(given)  # by identity: a metaclass of the script may define ==
    if not (kind is dict or kind is list or kind is tuple):
        yield name, given
    elif depth <= _MOST_NESTED and len(given) <= _MOST_HELD:
        for key, inner in list(given.items()) if kind is dict else [(name, x) for x in given]:
            yield from held_in(inner, key if type(key) is str else "", depth + 1)


class KnownOptimizers:
    """The script's living optimizers, from when they get parameters."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._known: dict[int, weakref.ref[Any]] = {}

    def note(self, optimizer: Any) -> None:
        key = id(optimizer)
        if key not in self._known:
            self._known[key] = weakref.ref(optimizer)
            self._session.keep_track(optimizer, self._known, key)

    def alive(self) -> list[Any]:
        known = [reference() for reference in list(self._known.values())]
        return [optimizer for optimizer in known if optimizer is not None]


def parameters_in(optimizer: Any) -> dict[int, Any]:
    groups = getattr(optimizer, "param_groups", ())
    return {id(parameter): parameter for group in groups for parameter in group["params"]}


def reads_gradients(is_user_file: Callable[[str], bool]) -> bool:
    """Returns whether the user's imported files read gradients; True if one is unreadable."""

    def is_read_in(text: str) -> bool:
        return any(_READ.search(line.partition("#")[0]) for line in text.splitlines())

    return any_text(is_user_file, is_read_in)
