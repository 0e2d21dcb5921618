"""The ledger as rows whose numbers add up, and as lines of a page."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rich.text import Text

from trainprof.analysis.summary.code import hottest
from trainprof.analysis.summary.run import LEDGER_KEYS
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report.text.layout import Page, bar
from trainprof.report.text.units import (
    LONG_UNITS,
    NOT_MEASURED,
    is_known,
    rounded_parts,
    run_scale,
    step_scale,
)

FOLD_BELOW_SHARE: Final = 0.005
# A row of this share of the wall time is worth a line of its own, whatever else must give way.
MATTERS_FROM_SHARE: Final = 0.05

LABELS: Final = {
    "startup": "start-up (imports, set-up)",
    "loader_start": "loader start (workers)",
    "first_batch": "first batch of a pass",
    "data_wait": "data wait",
    "loader_end": "loader end",
    "transfer": "transfer (copying)",
    "forward": "forward",
    "loss": "loss",
    "backward": "backward",
    "recompute": "recompute (in backward)",
    "optimizer": "optimizer",
    "zero_grad": "zero grad",
    "compile": "compiling (torch.compile)",
    "sync": "sync (needs a value now)",
    "device_wait": "device wait",
    "checkpoint": "checkpoints",
    "evaluation": "evaluation",
    "gc": "garbage collection",
    "other": "python between (other)",
    "shutdown": "shutdown",
}
# Host time of these is mostly the device working: until it is told apart, none is a culprit.
DEVICE_KEYS: Final = ("transfer", "sync", "device_wait")
DEVICE_LABEL: Final = "waiting for the GPU or copying"
# Where most of it is calls of torch.distributed.
_WITH_RANKS: Final = "ranks, python (other)"
# Python collects while it imports torch, and at its end: nobody's fault.
_GC_ELSEWHERE: Final = "gc outside of steps"
_GC_IN_STEPS_SHARE: Final = 0.1
# Rows that stay for what the page says of them.
_SPOKEN_OF: Final = 2
_LONGEST_LABEL: Final = len(DEVICE_LABEL)
# Lines that a ledger takes besides its rows: heading and total.
FRAME_LINES: Final = 2
_TITLE: Final = "Where the time went"
_INDENT: Final = "  "
_GAP: Final = "  "
_BAR_STYLE: Final = "cyan"
_DEVICE_TITLE: Final = "s on device"
_WIDEST_BAR: Final = 60
_SHORTEST_BAR: Final = 4


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One row as printed: `seconds` and `on_device` in the table's `run_unit`; `share` for the bar.

    `keys`: () for what no key accounts for and for the total.
    """

    keys: tuple[str, ...]
    label: str
    share: float
    seconds: str
    percent: str
    per_step: str
    on_device: str = ""


@dataclass(frozen=True, slots=True)
class LedgerTable:
    """Rows, longest first, and their total; `step_unit` None where steps were not measured."""

    rows: list[LedgerRow]
    total: LedgerRow
    run_unit: str
    step_unit: str | None
    has_device: bool = False
    ranks: int = 1


@dataclass(frozen=True, slots=True)
class LedgerPart:
    """What of a run went to keys of the ledger; several where they cannot be told apart."""

    keys: tuple[str, ...]
    label: str
    seconds: float
    per_step_s: float
    device_s: float = 0.0


# A part as it is shown, and the parts that are folded into it; itself where none are.
_Row = tuple[LedgerPart, list[LedgerPart]]


def waits_are_merged(summary: RunSummary) -> bool:
    """Tells whether host time in syncs and copies cannot be told from the device working."""
    if summary.run.device_timing == "synchronized":
        return False
    on_accelerator = summary.run.device_timing == "async" or summary.run.is_on_device
    is_told_apart = any(device.idle_because for device in summary.devices or ())
    return on_accelerator and not is_told_apart


def label_of(key: str) -> str:
    """Returns a ledger key in words; one of a later version speaks for itself."""
    return LABELS.get(key, key.replace("_", " ")[:_LONGEST_LABEL])


def ledger_table(
    summary: RunSummary,
    *,
    fold: bool = True,
    max_rows: int | None = None,
    spoken_of: Collection[str] = (),
) -> LedgerTable | None:
    """Returns the ledger as printed, None where nothing of it was measured.

    `fold`: rows under `FOLD_BELOW_SHARE` share a last row; `max_rows` at most, 2 or more, of which
    those with keys in `spoken_of`, which the page names, are not folded for want of room.
    """
    parts = _parts(summary)
    whole = sum(part.seconds for part in parts)
    if whole <= 0:
        return None
    rows: list[_Row] = [(part, [part]) for part in parts]
    if fold:
        rows = _folded(parts, whole, max_rows, spoken_of)
    return _written(rows, parts, summary)


def rows_that_matter(summary: RunSummary) -> int:
    """Returns how many rows a ledger needs to name all from MATTERS_FROM_SHARE on; 2 at least."""
    parts = [part for part in _parts(summary) if part.seconds or part.per_step_s]
    whole = sum(part.seconds for part in parts)
    named = sum(part.seconds >= MATTERS_FROM_SHARE * whole for part in parts)
    return max(named + (named < len(parts)), 2)


def parts_of(summary: RunSummary, keys: Iterable[str]) -> list[LedgerPart]:
    """Returns the parts of the ledger that hold any of these keys, longest first."""
    wanted = set(keys)
    return [part for part in _parts(summary) if wanted.intersection(part.keys)]


def _parts(summary: RunSummary) -> list[LedgerPart]:
    in_run_s = _known(summary.ledger.seconds)
    in_step_s = _known(summary.training.per_step_s or {})
    merged = DEVICE_KEYS if waits_are_merged(summary) else ()
    groups: list[tuple[str, tuple[str, ...]]] = [
        (label_of(key), (key,)) for key in _in_order({*in_run_s, *in_step_s}) if key not in merged
    ]
    renamed: dict[str, str] = {}
    if sum(call.seconds for call in summary.collectives) >= in_run_s.get("other", 0.0) / 2 > 0:
        renamed["other"] = _WITH_RANKS
    line = hottest(summary.part_lines, "loss")
    if line is not None and (summary.loss_in_loop_s or 0.0) >= in_run_s.get("loss", 0.0) / 2:
        # What has no module has no name, but a line.
        label = f"loss, metric at {line.site.rpartition('/')[2]}"
        renamed |= {"loss": label} if len(label) <= _LONGEST_LABEL else {}
    in_steps_s = in_step_s.get("gc", 0.0) * summary.training.steps
    if in_step_s and in_steps_s < _GC_IN_STEPS_SHARE * in_run_s.get("gc", 0.0):
        renamed["gc"] = _GC_ELSEWHERE
    groups = [(renamed.get(keys[0], label), keys) for label, keys in groups]
    if merged:
        groups.append((DEVICE_LABEL, merged))
    seconds = in_run_s, in_step_s, _device_seconds(summary)
    parts = [
        LedgerPart(keys, label, *(sum(x.get(key, 0.0) for key in keys) for x in seconds))
        for label, keys in groups
    ]
    missing_s = summary.ledger.wall_s - sum(in_run_s.values())
    if is_known(missing_s) and in_run_s and missing_s > FOLD_BELOW_SHARE * summary.ledger.wall_s:
        parts.append(LedgerPart((), "not accounted for", missing_s, 0.0))
    return sorted(parts, key=lambda part: -part.seconds)


def _device_seconds(summary: RunSummary) -> dict[str, float]:
    """Returns the mean over devices, as the ledger is the mean over ranks."""
    devices = [_known(device.seconds) for device in summary.devices or ()]
    keys = dict.fromkeys(key for device in devices for key in device)
    return {key: sum(device.get(key, 0.0) for device in devices) / len(devices) for key in keys}


def _folded(
    parts: list[LedgerPart], whole: float, max_rows: int | None, spoken_of: Collection[str]
) -> list[_Row]:
    some = [part for part in parts if part.seconds or part.per_step_s]
    kept = [part for part in some if part.seconds >= FOLD_BELOW_SHARE * whole]
    if max_rows is not None and len(kept) > max_rows - (len(kept) < len(some)):
        room = max(max_rows - 1, 1)
        asked = [part for part in kept if any(key in spoken_of for key in part.keys)]
        asked = asked[: min(_SPOKEN_OF, room)]
        others = [part for part in kept if part not in asked][: room - len(asked)]
        kept = [part for part in kept if part in asked or part in others]
    rest = [part for part in some if part not in kept]
    if len(rest) < 2:
        return [(part, [part]) for part in some]
    are_smaller = max(part.seconds for part in rest) <= min(part.seconds for part in kept)
    times = zip(*((part.seconds, part.per_step_s, part.device_s) for part in rest), strict=True)
    keys = tuple(key for part in rest for key in part.keys)
    label = f"rest ({len(rest)} {'smaller' if are_smaller else 'others'})"
    folded = LedgerPart(keys, label, *map(sum, times))
    return [*((part, [part]) for part in kept), (folded, rest)]


def _written(shown: list[_Row], parts: list[LedgerPart], summary: RunSummary) -> LedgerTable:
    """Returns the table. Rounded is before folding: a part has the same figures on any page."""
    has_steps = bool(summary.training.per_step_s)
    whole = sum(part.seconds for part in parts)
    run, step = run_scale(whole), step_scale(sum(part.per_step_s for part in parts))
    seconds = _rounded(shown, parts, lambda part: part.seconds / run.factor, run.decimals)
    tenths = _rounded(shown, parts, lambda part: part.seconds / whole * 100, 1)
    steps = _rounded(shown, parts, lambda part: part.per_step_s / step.factor, step.decimals)
    rows = [
        LedgerRow(
            part.keys,
            part.label,
            part.seconds / whole,
            run.written(seconds[index]),
            f"{tenths[index] / 10:.1f} %",
            step.written(steps[index]) if has_steps and part.per_step_s else "",
            run.written(round(part.device_s / run.factor * 10**run.decimals))
            if part.device_s
            else "",
        )
        for index, (part, _) in enumerate(shown)
    ]
    total_step, total_s = step.written(sum(steps)), run.written(sum(seconds))
    all_percent = f"{sum(tenths) / 10:.1f} %"
    total_step = total_step if has_steps else NOT_MEASURED
    total = LedgerRow((), "total", 1.0, total_s, all_percent, total_step)
    units = run.unit, step.unit if has_steps else None
    has_device, ranks = any(row.on_device for row in rows), max(len(summary.ranks), 1)
    return LedgerTable(rows, total, *units, has_device, ranks)


def _rounded(
    shown: list[_Row], parts: list[LedgerPart], figure: Callable[[LedgerPart], float], decimals: int
) -> list[int]:
    """Returns what each row shows of a figure, in units of 10 ** -decimals."""
    each = dict(zip(parts, rounded_parts([figure(part) for part in parts], decimals), strict=True))
    return [sum(each[part] for part in held) for _, held in shown]


def _known(seconds: Mapping[str, float]) -> dict[str, float]:
    return {key: value for key, value in seconds.items() if is_known(value)}


def _in_order(keys: set[str]) -> list[str]:
    known = [key for key in LEDGER_KEYS if key in keys]
    return known + sorted(keys.difference(LEDGER_KEYS))


def ledger_lines(
    table: LedgerTable, page: Page, *, headline_keys: tuple[str, ...], headline_style: str
) -> list[Text]:
    """Returns heading, rows and total; bars of `headline_keys` carry `headline_style`."""
    rows = [*table.rows, table.total]
    label_cells = max(page.text(row.label).cell_len for row in rows)
    columns = [
        [LONG_UNITS[table.run_unit], *(row.seconds for row in rows)],
        ["% wall", *(row.percent for row in rows)],
    ]
    room = page.width - len(_INDENT) - label_cells - sum(map(_cells, columns))
    per_step = [f"{table.step_unit} a step", *(row.per_step for row in rows)]
    if table.step_unit and room >= _cells(per_step):
        columns.append(per_step)
        room -= _cells(per_step)
    room -= len(_GAP)
    on_device = [_DEVICE_TITLE, *(row.on_device for row in rows)]
    if table.has_device and room >= _cells(on_device):
        columns.append(on_device)
        room -= _cells(on_device)
    bar_cells = min(room, _WIDEST_BAR) if room >= _SHORTEST_BAR else 0
    numbers = [
        "".join(text.rjust(_cells(column)) for text, column in zip(texts, columns, strict=True))
        for texts in zip(*columns, strict=True)
    ]
    title_cells = len(_INDENT) + label_cells + (len(_GAP) + bar_cells if bar_cells else 0)
    ranks_title = f"{_TITLE}, mean of {table.ranks} ranks"
    title = ranks_title if table.ranks > 1 and len(ranks_title) <= title_cells else _TITLE
    lines = [page.text(title.ljust(title_cells) + numbers[0], "bold")]
    longest = max(row.share for row in table.rows)
    for row, text in zip(rows, numbers[1:], strict=True):
        is_named = bool(row.keys) and set(row.keys) <= set(headline_keys)
        share = 0.0 if row is table.total else row.share / longest
        drawing = page.text(bar(share, bar_cells), headline_style if is_named else _BAR_STYLE)
        line = Text.assemble(_INDENT, page.text(row.label))
        line.pad_right(len(_INDENT) + label_cells - line.cell_len)
        if bar_cells:
            line = Text.assemble(line, _GAP, drawing)
            line.pad_right(title_cells - line.cell_len)
        lines.append(line + page.text(text.rstrip()))
    lines[-1].stylize("bold")
    return lines


def _cells(column: Sequence[str]) -> int:
    """The widest text's, and a gap."""
    return len(_GAP) + max(map(len, column))
