"""Which parts of a module some of its parameters make up."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

_MOST_TOLD: Final = 3
# torch's classes around modules that are compiled: there the mode is kept elsewhere.
_COMPILED: Final = "torch._dynamo.eval_frame"
_SCRIPTED: Final = "torch.jit._script"
_TRACED: Final = "torch.jit._trace"


@dataclass(frozen=True, slots=True)
class Part:
    """A module inside another, or a parameter of one, that consists of chosen parameters alone.

    Attributes:
        path: Such as "backbone.layer1", empty for the whole.
        name: Of its class.
        tensors: How many parameters it has.
        numbers: In all of them.
    """

    path: str
    name: str
    tensors: int
    numbers: int


def parts_of(module: Any, chosen: Collection[int]) -> list[Part]:
    """Returns the largest parts whose parameters are all among `chosen`, by id; largest first.

    No code of the script's runs: what holds modules and parameters is read as torch keeps it.
    """
    return sorted(_parts(module, "", chosen), key=lambda part: -part.numbers)


def told_of(met: Iterable[tuple[Any, int]], chosen: Collection[int]) -> list[dict[str, Any]]:
    """Returns what is told of modules that consist of chosen parameters, in part or whole.

    Args:
        met: Each with the line that calls it, as an id.
        chosen: By id.

    Returns:
        Largest first, no more than a few.
    """
    told: list[dict[str, Any]] = []
    for module, site in met:
        parts = parts_of(module, chosen)
        if parts:
            told.append(
                {
                    "class": type(module).__qualname__,
                    "site": site,
                    "of": sum(1 for _ in parameters_of(module)),
                    "tensors": sum(part.tensors for part in parts),
                    "numbers": sum(part.numbers for part in parts),
                    "parts": [part.path for part in parts[:_MOST_TOLD]],
                    "more_parts": max(len(parts) - _MOST_TOLD, 0),
                }
            )
    told.sort(key=lambda one: one["numbers"], reverse=True)
    return told[:_MOST_TOLD]


def is_training(module: Any) -> bool:
    """Whether a module is in training mode; a class of the script's that hides it is not asked."""
    held = getattr(module, "__dict__", {})
    told = held.get("training")
    if told is None:
        made_in = type(module).__module__
        if made_in == _COMPILED:
            return is_training(_named(module, "_modules").get("_orig_mod"))
        if made_in == _TRACED:
            return is_training(held.get("_actual_script_module"))
        if made_in == _SCRIPTED:
            script = held.get("_c")
            return script is not None and script.hasattr("training") and script.getattr("training")
    return told is True


def parameters_of(module: Any) -> Iterator[Any]:
    """Goes through a module's parameters, each once."""
    seen: set[int] = set()
    for holder in modules_of(module):
        for parameter in _held(holder, "_parameters"):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield parameter


def modules_of(module: Any) -> Iterator[Any]:
    """Goes through a module and those inside it, each once."""
    return (holder for _, holder in named_modules_of(module))


def named_modules_of(module: Any) -> Iterator[tuple[str, Any]]:
    """Goes through them, each with the name that what holds it has for it; the first has none."""
    waiting, known = [("", module)], {id(module)}
    while waiting:
        name, holder = waiting.pop()
        yield name, holder
        for inner, child in _named(holder, "_modules").items():
            if child is not None and id(child) not in known:
                known.add(id(child))
                waiting.append((inner, child))


def _held(module: Any, where: str) -> list[Any]:
    return [held for held in _named(module, where).values() if held is not None]


def _named(module: Any, where: str) -> dict[str, Any]:
    found = getattr(module, "__dict__", {}).get(where)
    return found if isinstance(found, dict) else {}


def _parts(module: Any, path: str, chosen: Collection[int]) -> Iterator[Part]:
    own = list(parameters_of(module))
    among = [parameter for parameter in own if id(parameter) in chosen]
    if not among:
        return
    if len(among) == len(own):
        yield Part(path, type(module).__qualname__, len(own), sum(one.numel() for one in own))
        return
    prefix = f"{path}." if path else ""
    for name, child in _named(module, "_modules").items():
        if child is not None:
            yield from _parts(child, f"{prefix}{name}", chosen)
    for name, parameter in _named(module, "_parameters").items():
        if parameter is not None and id(parameter) in chosen:
            yield Part(f"{prefix}{name}", type(parameter).__qualname__, 1, parameter.numel())
