"""What one batch takes, in parts that add up: its preparation, and the wait for it; as bars."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len
from rich.text import Text

from trainprof.analysis.summary.loader import Fetch, Loader
from trainprof.report.text.layout import Page, bar
from trainprof.report.text.units import is_known, rounded_parts, share_of, step_scale

# Of the time asleep: below, what other threads ran is of no account.
_OTHERS_FROM_SHARE: Final = 0.2
_GAP: Final = "  "
_INDENT: Final = 2
_BAR_STYLE: Final = "cyan"
_PERCENT_CELLS: Final = len("100.0 %")
_WIDEST_BAR: Final = 40
_SHORTEST_BAR: Final = 4


@dataclass(frozen=True, slots=True)
class BatchPart:
    """A part of a mean batch's time, with its share of the whole that it is part of."""

    name: str
    words: str
    seconds: float
    share: float


def making_parts(fetch: Fetch) -> list[BatchPart]:
    """Returns what the process that prepares a batch does: parts that add up to the fetch.

    What the kernel doesn't report has no part: it is in the last one, and in its words.
    """
    reading = "reading from disk" if was_read(fetch) else "waiting for I/O"
    parts = {
        "running": ("running (on a core)", fetch.running_s),
        "runnable": ("waiting for a free core", fetch.runnable_s),
        "throttled": ("stopped by the CPU quota", fetch.throttled_s),
        "reading": (reading, fetch.reading_s),
        "asleep": (_words_of_sleep(fetch), fetch.asleep_s),
    }
    return _parts(parts, fetch.n)


def code_parts(fetch: Fetch) -> list[BatchPart]:
    """Returns whose code prepares a batch: the dataset's and collate's add up to the fetch."""
    parts = {
        "dataset": ("dataset[i], the samples", fetch.dataset_s),
        "collate": ("collate, samples into a batch", fetch.collate_s),
    }
    return _parts(parts, fetch.n)


def waiting_parts(loader: Loader) -> list[BatchPart]:
    """Returns what training waits for at each batch but the first of an epoch.

    Without workers at each batch: the mean of preparing one is of all of them.
    """
    wait, first, fetch = loader.wait_s, loader.first_batch_s, loader.fetch
    if wait is None or not is_known(wait.mean) or wait.n <= 0:
        return []
    receive_s, handover_s = _receiving(loader)
    mean_s, made_s = wait.mean, None
    if loader.num_workers == 0:
        if first is not None and is_known(first.mean) and first.n > 0:
            mean_s = (wait.n * mean_s + first.n * first.mean) / (wait.n + first.n)
        made_s = fetch.wall_s.mean if fetch and fetch.wall_s else None
        # Of a run that was cut off, a batch may be prepared that nothing waited for.
        made_s = made_s if is_known(made_s) and made_s <= mean_s else None
    each: dict[str, tuple[str, float | None]] = {
        "blocked": ("no batch ready", _each(loader.blocked_s, wait.n)),
        "receive": ("IPC transfer, unpickling", _each(receive_s, wait.n)),
        "handover": ("IPC transfer, waiting for the worker", _each(handover_s, wait.n)),
        "making": ("preparing it", made_s),
        "sampler": ("drawing its indices", _each(loader.sampler_s, loader.iterations)),
    }
    rest = mean_s - sum(s for _, s in each.values() if is_known(s))
    parts = _parts(each, 1, whole=mean_s)
    if parts and rest > 0:
        parts.append(BatchPart("rest", "the rest of next(iterator)", rest, rest / mean_s))
    return parts


def _receiving(loader: Loader) -> tuple[float | None, float | None]:
    """Returns the seconds of unpickling batches, and of waiting for the worker's part of it."""
    took_s, cpu_s = loader.receive_s, loader.receive_cpu_s
    if took_s is None or cpu_s is None or not is_known(took_s) or not is_known(cpu_s):
        return took_s, None
    return cpu_s, max(took_s - cpu_s, 0.0)


def was_read(fetch: Fetch) -> bool:
    """Whether preparing batches read from a disk: only then is storage a cause."""
    return bool(fetch.read_bytes and fetch.read_bytes > 0)


def named(parts: Iterable[BatchPart], name: str) -> BatchPart | None:
    """Returns the part of that name."""
    return next((part for part in parts if part.name == name), None)


def _words_of_sleep(fetch: Fetch) -> str:
    waits = ["sleep", "lock", "network"]
    if fetch.reading_s is None and (fetch.read_bytes is None or was_read(fetch)):
        waits.append("disk")
    if fetch.runnable_s is None:
        waits.append("no free core")
    if _others_ran(fetch):
        waits.append("other threads")
    return f"asleep ({', '.join(waits)})"


def _others_ran(fetch: Fetch) -> bool:
    """Whether other threads ran, which the one that prepares batches may have waited for."""
    if fetch.cpu_s is None or fetch.running_s is None or fetch.asleep_s is None:
        return False
    return fetch.cpu_s - fetch.running_s >= _OTHERS_FROM_SHARE * fetch.asleep_s > 0


def _each(total_s: float | None, count: int) -> float | None:
    return None if total_s is None or count <= 0 else total_s / count


def _parts(
    parts: Mapping[str, tuple[str, float | None]], count: int, *, whole: float | None = None
) -> list[BatchPart]:
    known = [(name, words, s) for name, (words, s) in parts.items() if is_known(s) and s >= 0]
    if count <= 0:
        return []
    total = sum(s for *_, s in known) if whole is None else whole * count
    return [
        BatchPart(name, words, s / count, share_of(s, total) or 0.0) for name, words, s in known
    ]


@dataclass(frozen=True, slots=True)
class BatchGroup:
    """Parts of one whole; `title` "": without a line for the whole."""

    title: str
    parts: Sequence[BatchPart]


@dataclass(frozen=True, slots=True)
class _BarRow:
    label: str
    share: float
    seconds: str
    percent: str
    is_whole: bool = False


def batch_bars(groups: Sequence[BatchGroup], page: Page) -> list[Text]:
    """Returns a line for each part; a group is in one unit and may have a line for its whole."""
    groups = [BatchGroup(x.title, [y for y in x.parts if y.seconds > 0]) for x in groups]
    shown = [group for group in groups if group.parts]
    if not shown:
        return []
    rows = [row for group in shown for row in _bar_rows(group)]
    label = max(cell_len(row.label) for row in rows)
    seconds = max(cell_len(row.seconds) for row in rows)
    taken = _INDENT + label + 3 * len(_GAP) + seconds + _PERCENT_CELLS
    width = min(page.width - taken, _WIDEST_BAR)
    if width < _SHORTEST_BAR:
        words = [(f"{row.label.strip()}: {row.seconds}", row.percent) for row in rows]
        texts = (", ".join(filter(None, fragments)) for fragments in words)
        return [line for text in texts for line in page.paragraph(text, indent=_INDENT)]
    return [_bar_line(row, page, (label, width, seconds)) for row in rows]


def _bar_rows(group: BatchGroup) -> list[_BarRow]:
    parts, whole_s = group.parts, sum(part.seconds for part in group.parts)
    scale = step_scale(whole_s)
    written = rounded_parts([part.seconds / scale.factor for part in parts], scale.decimals)
    shares = [part.seconds / whole_s if whole_s > 0 else 0.0 for part in parts]
    tenths = rounded_parts([share * 100 for share in shares], 1)
    margin = "  " if group.title else ""
    rows = [
        _BarRow(
            f"{margin}{part.words}",
            shares[index],
            f"{scale.written(written[index])} {scale.unit}",
            f"{tenths[index] / 10:.1f} %",
        )
        for index, part in enumerate(parts)
    ]
    if not group.title:
        return rows
    total = f"{scale.written(sum(written))} {scale.unit}"
    return [_BarRow(group.title, 0.0, total, "", is_whole=True), *rows]


def _bar_line(row: _BarRow, page: Page, cells: tuple[int, int, int]) -> Text:
    label, width, seconds = cells
    drawing = page.text(bar(row.share, width), _BAR_STYLE)
    words = page.text(row.label, "bold" if row.is_whole else "")
    between, behind = " " * (label - words.cell_len), " " * (width - drawing.cell_len)
    numbers = page.text(f"{row.seconds:>{seconds}}{_GAP}{row.percent:>{_PERCENT_CELLS}}")
    return Text.assemble(" " * _INDENT, words, between + _GAP, drawing, behind + _GAP, numbers)
