"""Finds the number of samples or batches without side effects in the script's code.

A user's `__len__` may draw random numbers, print, or read a whole file.
"""

from __future__ import annotations

import builtins
import dis
import functools
import math
import sys
from contextlib import nullcontext
from types import CodeType, FunctionType, ModuleType, WrapperDescriptorType
from typing import Any, Final
from weakref import ProxyTypes

from trainprof.inside.patching.static_lookup import of_class, of_object
from trainprof.record.signal_handlers import comes_from_signal_handler

_ABSENT: Final = object()
# Stand for the values of parts of an expression.
_CALL, _CALCULATED = object(), object()
_DEEPEST: Final = 12
_MOST_CODES: Final = 64
_CALLED: Final = (len, int, min, max, math.ceil, math.floor)
_NUMBERS: Final = (int, float, bool, type(None))
_HOLDERS: Final = (list, tuple, dict)
# Classes whose `__len__` is harmless. A script may have a folder named `datasets`.
_PACKAGES: Final = ("torch", "torch.nn.parameter", "pandas", "h5py._hl.dataset")
_INSIDE: Final = ("pandas.core.", "datasets.arrow_dataset")
_TORCHS: Final = ("torch.utils.data.", "torchdata.stateful_dataloader.")
_LIBRARIES: Final = ("torch.", "torchdata.", "accelerate.", "lightning.", "pytorch_lightning.")
# Torch's methods that do more than `return len(self.x)`, and the attributes whose length they use.
_ASKED_BY: Final = {
    "BatchSampler.__len__": ("sampler",),
    "RandomSampler.__len__": ("data_source",),
    "TensorDataset.__len__": ("tensors",),
    "DataLoader.__len__": ("batch_sampler", "sampler"),
}
_MEANS_NOTHING: Final = ("RESUME", "NOP", "PRECALL", "PUSH_NULL", "RETURN_VALUE")
_CONSTANTS: Final = ("LOAD_CONST", "LOAD_SMALL_INT", "RETURN_CONST")


def known_length(thing: Any) -> int | None:
    """Returns `len(thing)`; None without one, or if it might run code with side effects."""
    torch: Any = sys.modules.get("torch")
    unseen = getattr(getattr(torch, "_C", None), "DisableTorchFunction", nullcontext)
    try:
        with unseen():
            return len(thing) if _is_harmless(thing, _DEEPEST) else None
    except Exception as error:
        if comes_from_signal_handler(error):
            raise
        return None


def _is_harmless(thing: Any, depth: int) -> bool:
    kind = type(thing)
    method = of_class(kind, "__len__")
    if isinstance(method, WrapperDescriptorType):
        return kind not in ProxyTypes
    if not isinstance(method, FunctionType) or not depth:
        return False
    module = kind.__module__
    if module in _PACKAGES or module.startswith(_INSIDE):
        return True
    asked = _ASKED_BY.get(method.__qualname__)
    if asked is None or not method.__module__.startswith(_TORCHS):
        return _only_counts(method, thing, depth)
    if any(_changes(cls, method) for cls in kind.__mro__):
        return False
    parts = (_held(thing, name) for name in asked)
    held = next((part for part in parts if part is not None), None)
    return _is_harmless(held, depth - 1)


def _changes(cls: type, method: FunctionType) -> bool:
    """Returns whether a class of the script overrides a name that torch's method uses."""
    is_library = cls is object or cls.__module__.startswith(_LIBRARIES)
    return not is_library and any(name in vars(cls) for name in method.__code__.co_names)


def _held(thing: Any, name: str) -> Any:
    """Returns a stored attribute; `_ABSENT` if it would have to be computed."""
    kind = type(thing)
    if kind is ModuleType:
        return vars(thing).get(name, _ABSENT)
    if name == "shape" and kind.__module__ in ("numpy", "torch"):
        return tuple(thing.shape)
    if not isinstance(of_class(kind, "__getattribute__"), WrapperDescriptorType):
        return _ABSENT
    return of_object(thing, name, _ABSENT)


def _only_counts(method: FunctionType, thing: Any, depth: int) -> bool:
    """Returns whether it only calculates: `return len(self.items) - 1`, `self.x.shape[0]`."""
    code = method.__code__
    parts: list[Any] = [_ABSENT]
    for name, value, shown in _instructions(code):
        if name in _MEANS_NOTHING:
            continue
        if name.startswith("LOAD_FAST") and value == code.co_varnames[0]:
            parts.append(thing)
        elif name == "LOAD_GLOBAL":
            parts.append(method.__globals__.get(value, vars(builtins).get(value, _ABSENT)))
        elif name in _CONSTANTS:
            parts.append(value)
        elif name in ("LOAD_ATTR", "LOAD_METHOD"):
            parts[-1] = _held(parts[-1], value)
        elif name == "BINARY_SUBSCR" or shown == "[]":
            key, holder = parts.pop(), parts.pop()
            if type(holder) not in _HOLDERS or type(key) not in (int, str):
                return False
            parts.append(holder[key])
        elif name.startswith("BINARY_") and name != "BINARY_SLICE":
            parts.append(_CALCULATED)
        elif name.startswith("CALL") and name != "CALL_FUNCTION_EX":
            parts.append(_CALL)
        else:
            return False
    parts.append(_ABSENT)
    return all(
        _is_plain(parts[at])
        or (parts[at - 1] is len and parts[at + 1] is _CALL and _is_harmless(parts[at], depth - 1))
        for at in range(1, len(parts) - 1)
    )


@functools.lru_cache(_MOST_CODES)
def _instructions(code: CodeType) -> tuple[tuple[str, Any, str], ...]:
    """Returns (name, argument, its text) by instruction; cached, as loaders may be thousands."""
    return tuple((step.opname, step.argval, step.argrepr) for step in dis.get_instructions(code))


def _is_plain(part: Any) -> bool:
    if part is _CALL or part is _CALCULATED or type(part) in _NUMBERS:
        return True
    is_numpy = type(part).__module__ == "numpy" and hasattr(type(part), "dtype")
    return is_numpy or any(part is called for called in _CALLED)
