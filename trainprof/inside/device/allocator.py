"""What torch's allocator tells of a device's memory; nothing is ever reset."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType
from typing import Any, Final

from trainprof.record.schema import MemoryFigure

Figures = dict[MemoryFigure, int]
# Reads the figures of the device of that number.
Reader = Callable[[int], Figures]

_BYTES: Final = (
    (MemoryFigure.ALLOCATED, "allocated_bytes", "current"),
    (MemoryFigure.RESERVED, "reserved_bytes", "current"),
    (MemoryFigure.PEAK_ALLOCATED, "allocated_bytes", "peak"),
    (MemoryFigure.PEAK_RESERVED, "reserved_bytes", "peak"),
)
_COUNTS: Final = (
    (MemoryFigure.RETRIES, "num_alloc_retries"),
    (MemoryFigure.OUT_OF_MEMORY, "num_ooms"),
)
# Statistics that an allocator other than torch's own gives as 0, whatever happened.
_OF_NATIVE_ALLOCATOR: Final = (MemoryFigure.RETRIES, MemoryFigure.OUT_OF_MEMORY)


def find_reader(torch: ModuleType, kind: str) -> Reader | None:
    """Returns what reads a kind of device's statistics, at the least cost there is.

    Each call makes a dict of some 200 numbers: what torch offers besides flattens and sorts it
    for every single figure.

    Args:
        torch: The script's.
        kind: Such as "cuda"; the script has begun to use it.

    Returns:
        None where torch tells nothing of the kind.
    """
    module = getattr(torch, kind, None)
    nested = getattr(module, "memory_stats_as_nested_dict", None)
    if nested is not None:
        return _without(partial(_read_nested, nested), _not_kept(module))
    flat = getattr(module, "memory_stats", None)
    if flat is not None:
        return partial(_read_flat, flat)
    current = getattr(module, "current_allocated_memory", None)  # mps
    if current is not None:
        return partial(_read_current, current, getattr(module, "driver_allocated_memory", None))
    general = getattr(getattr(torch, "accelerator", None), "memory_stats", None)
    return None if general is None else partial(_read_flat, general)


def limit_of(torch: ModuleType, kind: str, index: int) -> int | None:
    """Returns the bytes that this process may take from a device; None where torch has no say.

    The device's own size, or the part of it that the script has limited itself to. What other
    processes hold comes off it.
    """
    module = getattr(torch, kind, None)
    properties = getattr(module, "get_device_properties", None)
    if properties is not None:
        total = getattr(properties(index), "total_memory", None)
    else:
        recommended = getattr(module, "recommended_max_memory", None)  # mps
        total = None if recommended is None else recommended()
    if not isinstance(total, int) or total <= 0:
        return None
    fraction = getattr(module, "get_per_process_memory_fraction", None)
    return total if fraction is None else min(total, int(total * fraction(index)))


def _not_kept(module: Any) -> tuple[MemoryFigure, ...]:
    backend = getattr(module, "get_allocator_backend", None)
    is_native = backend is None or backend() == "native"
    return () if is_native else _OF_NATIVE_ALLOCATOR


def _without(read: Reader, figures: tuple[MemoryFigure, ...]) -> Reader:
    if not figures:
        return read
    return lambda index: {k: v for k, v in read(index).items() if k not in figures}


def _read_nested(stats: Callable[[int], Mapping[str, Any]], index: int) -> Figures:
    told, found = stats(index), Figures()
    for figure, name, metric in _BYTES:
        try:
            found[figure] = int(told[name]["all"][metric])
        except (KeyError, TypeError):
            continue
    return _with_counts(found, told)


def _read_flat(stats: Callable[[int], Mapping[str, Any]], index: int) -> Figures:
    told = stats(index)
    found = {
        figure: int(told[f"{name}.all.{metric}"])
        for figure, name, metric in _BYTES
        if f"{name}.all.{metric}" in told
    }
    return _with_counts(found, told)


def _with_counts(found: Figures, told: Mapping[str, Any]) -> Figures:
    found.update({figure: int(told[name]) for figure, name in _COUNTS if name in told})
    return found


def _read_current(
    allocated: Callable[[], int], reserved: Callable[[], int] | None, index: int
) -> Figures:
    found = {MemoryFigure.ALLOCATED: int(allocated())}
    if reserved is not None:
        found[MemoryFigure.RESERVED] = int(reserved())
    return found
