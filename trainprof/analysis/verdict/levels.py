"""From which share on a part is worth naming, and how shares and times are written in headlines."""

from __future__ import annotations

from typing import Final

# XProf's levels (op_stats_to_input_pipeline_analysis.cc): under 5 % not, over 20 % highly bound.
MODERATE_SHARE: Final = 0.05
HIGH_SHARE: Final = 0.20
# Two shares that differ by no more are told as one.
_ROUNDING_SHARE: Final = 0.01


def percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def percent_apart(part_s: float, whole_s: float, share: float) -> str:
    """Returns the percentage of two times, " (86 %)", to stand behind them.

    "" where it is the share that is told beside them, but for rounding.
    """
    of_whole = part_s / whole_s if whole_s > 0 else share
    return f" ({percent(of_whole)})" if abs(of_whole - share) > _ROUNDING_SHARE else ""


def pair(part_s: float, whole_s: float) -> str:
    """Two times in the unit that suits the larger: `187 of 231 ms`."""
    if whole_s >= 1:
        return f"{part_s:.2f} of {whole_s:.2f} s"
    if whole_s >= 0.01:
        return f"{part_s * 1e3:.0f} of {whole_s * 1e3:.0f} ms"
    return f"{part_s * 1e3:.2f} of {whole_s * 1e3:.2f} ms"
