"""Parameters of modules and optimizers, read as torch keeps them: no code of the script runs."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final

from trainprof.inside.patching.user_texts import any_text
from trainprof.inside.session import Session

# torch's classes around modules that are compiled: there the mode is kept elsewhere.
_COMPILED: Final = "torch._dynamo.eval_frame"
_SCRIPTED: Final = "torch.jit._script"
_TRACED: Final = "torch.jit._trace"
# An attribute that is no function of autograd's, and is not just set, set back or asked for.
_READ: Final = re.compile(
    r"""(?<!autograd)\.grad\b(?!\s*(?:\(|=[^=]|\.zero_\(|\.detach_\(|is\b))|["']grad["']"""
)
# Of the inputs of a module: containers that are deeper or larger are skipped.
_MOST_NESTED, _MOST_HELD = 3, 16


def is_training(module: Any) -> bool:
    """Whether a module is in training mode; a class that hides it is not asked."""
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
    """Goes through a module and those inside it, each once."""
    return (holder for _, holder in named_modules_of(module))


def named_modules_of(module: Any) -> Iterator[tuple[str, Any]]:
    """Goes through them, each with its name in its parent; the first has none."""
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
    """Goes through what plain containers hold, with its key where a dictionary has it."""
    kind = type(given)  # by identity: a class of the script's may have an == of its own
    if not (kind is dict or kind is list or kind is tuple):
        yield name, given
    elif depth <= _MOST_NESTED and len(given) <= _MOST_HELD:
        for key, inner in list(given.items()) if kind is dict else [(name, x) for x in given]:
            yield from held_in(inner, key if type(key) is str else "", depth + 1)


class KnownOptimizers:
    """The optimizers of a script that are alive, known from when they get parameters on."""

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
    """Whether the user's imported files read gradients; True where one cannot be read."""

    def is_read_in(text: str) -> bool:
        return any(_READ.search(line.partition("#")[0]) for line in text.splitlines())

    return any_text(is_user_file, is_read_in)
