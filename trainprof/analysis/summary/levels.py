"""Shares from which a part or a gain is worth naming; shares, times and sizes in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from trainprof.record.notes import known as known

# XProf's levels (op_stats_to_input_pipeline_analysis.cc): under 5 % not, over 20 % highly bound.
MODERATE_SHARE: Final = 0.05
HIGH_SHARE: Final = 0.20
# As a share of the pace. Less is not worth a change, nor measurable in a run.
LEAST_GAIN: Final = 0.03
# Noise makes the halves of a run differ by at most this: beyond it the run itself changed.
MOST_NOISE: Final = 0.15
# Steady steps for a verdict; with fewer than MANY_STEPS their interval decides.
MIN_STEADY_STEPS: Final = 6
MANY_STEPS: Final = 20
# An outlier takes this many median steps, and this much longer.
MIN_RATIO: Final = 2.0
MIN_EXCESS_NS: Final = 10_000_000
_BYTE_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def number_at(mapping: Mapping[str, Any] | None, *path: str) -> float | None:
    """Returns the number under a path of keys, or None.

    The summary's dicts (`system`) may lack any key, and an edited file may hold anything.
    """
    value: Any = mapping
    for key in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return known(value)


def percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def sentence(words: str) -> str:
    """Returns words with a full stop, and a capital unless they begin with code."""
    first = words.partition(" ")[0].rstrip(",:")
    is_code = any(sign in first for sign in "._(=/") or first.lower() != first
    begins = words[:1] if is_code else words[:1].upper()
    return f"{begins}{words[1:]}{'' if words.endswith(('.', '?', '!')) else '.'}"


def pair(part_s: float, whole_s: float) -> str:
    """Two times in the unit that suits the larger: `187 of 231 ms`."""
    if whole_s >= 1:
        digits = 0 if whole_s >= 100 else 1 if whole_s >= 10 else 2
        return f"{part_s:.{digits}f} of {whole_s:.{digits}f} s"
    if whole_s >= 0.01:
        return f"{part_s * 1e3:.0f} of {whole_s * 1e3:.0f} ms"
    return f"{part_s * 1e3:.2f} of {whole_s * 1e3:.2f} ms"


def size(count: float) -> str:
    """Returns a number of bytes in binary units, to three digits: "612 MiB"."""
    exponent, scaled = 0, float(count)
    # Compared as printed: 1,023 KiB are 1.00 MiB.
    while abs(scaled) >= 999.5 and exponent < len(_BYTE_UNITS) - 1:
        scaled /= 1024
        exponent += 1
    magnitude = abs(scaled)
    digits = 2 if magnitude < 9.995 else 1 if magnitude < 99.95 else 0
    return f"{scaled:,.{digits if exponent else 0}f} {_BYTE_UNITS[exponent]}"
