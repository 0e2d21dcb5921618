"""A loader's workers by their number: those of several passes are one, for a reader."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final

from trainprof.analysis.run.metadata import known

Row = Mapping[str, Any]

_SUMS: Final = (
    "n",
    "seconds",
    "running_s",
    "runnable_s",
    "throttled_s",
    "reading_s",
    "asleep_s",
)
_HIGHEST: Final = ("rss_bytes",)
_MEANS: Final = ("read_bytes_per_s", "read_calls_per_s")


@dataclass(frozen=True, slots=True)
class WorkerTotals:
    """One worker over all passes.

    Attributes:
        number: From 0; None for the process that trains.
        busy_share: Of the time in which it could have been asked for something.
        figures: Sums, highest values and means of what `Fetch.per_worker` tells, by its names;
            None where no process's is known.
    """

    number: int | None
    busy_share: float | None
    figures: Mapping[str, float | None]

    @property
    def mean_s(self) -> float | None:
        """Of a fetch; None without any."""
        n, seconds = self.figures["n"], self.figures["seconds"]
        return seconds / n if n and seconds is not None else None


def worker_totals(per_worker: Sequence[Any]) -> list[WorkerTotals]:
    """Joins the rows of each worker, in order of number.

    Args:
        per_worker: As in `Fetch`; of a summary that somebody edited it may hold anything.
    """
    groups: dict[int | None, list[Row]] = {}
    for row in per_worker:
        if isinstance(row, Mapping):
            number = known(row.get("worker"))
            groups.setdefault(None if number is None else int(number), []).append(row)
    order = sorted(groups, key=lambda number: (number is not None, number or 0))
    return [_joined(number, groups[number]) for number in order]


def _joined(number: int | None, rows: list[Row]) -> WorkerTotals:
    figures: dict[str, float | None] = {}
    for names, join in ((_SUMS, sum), (_HIGHEST, max), (_MEANS, fmean)):
        figures |= {name: _over(rows, name, join) for name in names}
    return WorkerTotals(
        number=number,
        busy_share=_busy_share(rows),
        figures=figures,
    )


def _over(rows: list[Row], name: str, join: Callable[[Iterable[float]], float]) -> float | None:
    told = [value for row in rows if (value := known(row.get(name))) is not None]
    return join(told) if told else None


def _busy_share(rows: list[Row]) -> float | None:
    busy_s = asked_s = 0.0
    for row in rows:
        share, seconds = known(row.get("busy_share")), known(row.get("seconds"))
        if share is None or seconds is None or not 0 < share <= 1 or seconds <= 0:
            continue
        busy_s += seconds
        asked_s += seconds / share
    return busy_s / asked_s if asked_s > 0 else None
