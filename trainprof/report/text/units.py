"""Numbers as people read them."""

from __future__ import annotations

import math
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeGuard

from trainprof.analysis.summary.levels import size

NOT_MEASURED: Final = "not measured"

_TIME_UNITS: Final = ((1e-6, "µs"), (1e-3, "ms"), (1.0, "s"), (60.0, "min"), (3600.0, "h"))
# From here on the next unit reads better: 202 s is read right, 3.36 min is not.
_TIME_LIMITS: Final = (1e-3, 1.0, 600.0, 6000.0, math.inf)


def is_known(value: float | None) -> TypeGuard[float]:
    """Whether a number was measured: neither None nor NaN nor infinite."""
    return value is not None and math.isfinite(value)


def seconds(value: float | None) -> str:
    """Returns a duration in its own unit, three digits: "231 ms", "58.4 s", "12.3 min"."""
    if not is_known(value):
        return NOT_MEASURED
    if value == 0:
        return "0 s"
    for (factor, unit), limit in zip(_TIME_UNITS, _TIME_LIMITS, strict=True):
        # Compared as it will be printed: 999.7 us is 1.00 ms, not 1000 us.
        if float(f"{abs(value):.3g}") < limit:
            return f"{three_digits(value / factor)} {unit}"
    raise AssertionError("the last limit is infinite")


def byte_count(value: float | None) -> str:
    """Returns a size in binary units: "612 MiB"."""
    return size(value) if is_known(value) else NOT_MEASURED


def count(value: float | None) -> str:
    """Returns a number of things: "12,345"."""
    return f"{value:,.0f}" if is_known(value) else NOT_MEASURED


def counted(value: int, noun: str, many: str | None = None) -> str:
    """Returns a number with its noun: "1 step", "12,345 steps"."""
    return f"{count(value)} {noun if value == 1 else many or noun + 's'}"


def signal_name(number: int | None) -> str:
    """Returns "SIGTERM"; "signal 64" of one that has no name."""
    if number is None:
        return "a signal"
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def percent(share: float | None) -> str:
    """Returns a share of 0 to 1 in whole percent; "< 1 %" for what is there but rounds to none."""
    if is_known(share) and 0 < share <= 0.005:
        return "< 1 %"
    return f"{share * 100:.0f} %" if is_known(share) else NOT_MEASURED


def share_of(part: float | None, whole: float | None) -> float | None:
    """Returns part / whole, None where either is unknown or the whole is nothing."""
    return part / whole if is_known(part) and is_known(whole) and whole > 0 else None


def whole_percent(value: float | None) -> str:
    """Returns percent as they were sampled, whole."""
    return f"{value:.0f} %" if is_known(value) else NOT_MEASURED


def known_first(figures: Mapping[str, str]) -> list[str]:
    """Returns the figures that were measured, then the names of the others in one fragment."""
    known = [f"{name} {figure}" for name, figure in figures.items() if figure != NOT_MEASURED]
    missing = [name for name, figure in figures.items() if figure == NOT_MEASURED]
    return [*known, f"{NOT_MEASURED}: {', '.join(missing)}" if missing else ""]


def three_digits(value: float) -> str:
    """Returns a number with three digits that count, never in exponent form: "4.33", "1,250"."""
    magnitude = abs(value)
    decimals = 2 if magnitude < 9.995 else 1 if magnitude < 99.95 else 0
    return f"{value:,.{decimals}f}"


@dataclass(frozen=True, slots=True)
class Scale:
    """The unit that a whole column is written in, so that its numbers can be added by eye."""

    unit: str
    factor: float
    decimals: int

    def written(self, whole: int) -> str:
        """Returns a number given in last decimals, as `rounded_parts` makes them."""
        return f"{whole / 10**self.decimals:,.{self.decimals}f}"


LONG_UNITS: Final = {"s": "seconds", "min": "minutes", "h": "hours"}


def run_scale(total_s: float) -> Scale:
    """Returns the scale of a column of parts of a run."""
    if total_s >= 36000:
        return Scale("h", 3600.0, 2)
    if total_s >= 1200:
        return Scale("min", 60.0, 1)
    return Scale("s", 1.0, _decimals(total_s))


def step_scale(total_s: float) -> Scale:
    """Returns the scale of a column of parts of a step."""
    factor, unit = (1.0, "s") if total_s >= 10 else (1e-3, "ms")
    return Scale(unit, factor, _decimals(total_s / factor))


def rounded_parts(parts: Sequence[float], decimals: int) -> list[int]:
    """Rounds numbers to whole 10 ** -decimals so that they add up to their rounded sum.

    Source: the largest-remainder method (Hamilton) of apportionment.
    """
    scaled = [part * 10**decimals for part in parts]
    whole = [math.floor(part) for part in scaled]
    missing = round(math.fsum(scaled)) - sum(whole)
    by_remainder = sorted(range(len(parts)), key=lambda index: whole[index] - scaled[index])
    for index in by_remainder[:missing]:
        whole[index] += 1
    return whole


def _decimals(total: float) -> int:
    return 1 if total >= 10 else 2 if total >= 1 else 3
