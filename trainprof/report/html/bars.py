"""Bars with intervals on a common scale, as the templates draw them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from trainprof.analysis.summary.tune import FASTER, SLOWER
from trainprof.report.text.units import is_known

# The legend of a chart of verdicts.
VERDICTS: Final = (("faster", "faster"), ("slower", "slower"), ("noise", "not certain"))
_CLASSES: Final = {FASTER: "faster", SLOWER: "slower"}
_ROOM: Final = 1.06  # right of the longest bar
# A wider interval is cut at the edge: its end says little, and the bars would be short.
_WIDEST: Final = 1.6
# Predictions and references further away do not make the bars short.
_FARTHEST: Final = 5.0
_MOST_TICKS: Final = 4
_TICK_STEPS: Final = (1.0, 2.0, 2.5, 5.0, 10.0)
_FULL: Final = 100.0
_BAR_PX: Final = 18  # with the gap to the next one


def class_of(verdict: str) -> str:
    """Returns the CSS class of a verdict's bars."""
    return _CLASSES.get(verdict, "noise")


@dataclass(frozen=True, slots=True)
class Bar:
    """One value, in the unit of its chart.

    Attributes:
        name: CSS class: base|other|faster|slower|noise.
        value: None if it was not measured.
        low, high: Its 95 % interval, None if unknown.
    """

    name: str
    value: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class BarRow:
    """A line of a chart.

    Attributes:
        figure: The bars' values in words.
        note: A verdict, or why there is no bar.
        detail: A second line: the change, or the predicted range.
        predicted: Range of the model from before the measurement.
    """

    label: str
    bars: tuple[Bar, ...]
    figure: str
    note: str = ""
    detail: str = ""
    predicted: tuple[float, float] | None = None

    @property
    def height(self) -> int:
        """Returns the height of the drawing in CSS pixels, which the words fit in too."""
        return max(_BAR_PX * len(self.bars) + 12, 46 if self.detail else 30)

    @property
    def first_bar(self) -> int:
        """Returns the upper end of the first bar in the drawing, in CSS pixels."""
        return (self.height - _BAR_PX * len(self.bars) + 2) // 2

    @property
    def in_words(self) -> str:
        """Returns the text alternative of the drawing."""
        return ", ".join(filter(None, (f"{self.label}: {self.figure}", self.note, self.detail)))


@dataclass(frozen=True, slots=True)
class Reference:
    """A line across all rows: the baseline, or a bound."""

    name: str
    value: float
    figure: str


@dataclass(frozen=True, slots=True)
class Chart:
    """Rows on a scale from 0 to `top`, with ticks as values and words."""

    rows: list[BarRow]
    references: list[Reference]
    ticks: list[tuple[float, str]]
    top: float

    def at(self, value: float) -> float:
        """Returns the place of a value in percent of the scale, within it."""
        return round(min(max(value / self.top, 0.0), 1.0) * _FULL, 3)

    def is_beyond(self, value: float) -> bool:
        """Whether the scale ends before a value."""
        return value > self.top

    @property
    def names(self) -> set[str]:
        """Returns the classes of its bars."""
        return {bar.name for row in self.rows for bar in row.bars}

    @property
    def has_intervals(self) -> bool:
        return any(bar.low is not None for row in self.rows for bar in row.bars)

    @property
    def has_predictions(self) -> bool:
        """Whether a predicted range is drawn."""
        return any(row.predicted and row.predicted[0] < self.top for row in self.rows)


def chart(
    rows: Iterable[BarRow], written: Callable[[float], str], references: Iterable[Reference] = ()
) -> Chart:
    """Returns rows on the scale that shows all values, and what else is not too far away."""
    rows, references = list(rows), list(references)
    bars = [bar for row in rows for bar in row.bars]
    longest = max((bar.value for bar in bars if is_known(bar.value)), default=0.0)
    predicted = [row.predicted[1] for row in rows if row.predicted is not None]
    bounds = [*predicted, *(reference.value for reference in references)]
    ends = [
        *(bar.high for bar in bars if is_known(bar.high) and bar.high <= _WIDEST * longest),
        *(bound for bound in bounds if bound <= _FARTHEST * longest or longest <= 0),
    ]
    top = max(longest, *ends, 0.0) * _ROOM or 1.0
    return Chart(rows, references, [(tick, written(tick)) for tick in _ticks(top)], top)


def _ticks(top: float) -> list[float]:
    """Returns round values from 0 up to `top`."""
    least = top / _MOST_TICKS
    power = 10.0 ** math.floor(math.log10(least))
    step = next(power * factor for factor in _TICK_STEPS if power * factor >= least * 0.999)
    return [step * count for count in range(int(top / step) + 1)]
