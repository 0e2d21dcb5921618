"""The ledger as rows whose numbers add up, and as lines of a page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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

LABELS: Final = {
    "startup": "start-up",
    "loader_start": "loader start (workers)",
    "first_batch": "first batch of an epoch",
    "data_wait": "waiting for data",
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
    "evaluation": "validation",
    "gc": "garbage collection",
    "other": "Python in the loop",
    "shutdown": "exit",
    "fetch": "preparing a batch",  # of a thread that is not the training thread
}
# Host time of these is mostly the device working: without device times, none is a culprit.
DEVICE_KEYS: Final = ("transfer", "sync", "device_wait")
DEVICE_LABEL: Final = "waiting for the GPU or copying"
# Where most of it is calls of torch.distributed.
_WITH_RANKS: Final = "torch.distributed, Python"
# Python collects while it imports torch, and at its end, which nobody can change.
_GC_ELSEWHERE: Final = "gc outside of steps"
_GC_IN_STEPS_SHARE: Final = 0.1
_LONGEST_LABEL: Final = len(DEVICE_LABEL)
_TITLE: Final = "Where the time went"
_INDENT: Final = "  "
_GAP: Final = "  "
_DEVICE_TITLE: Final = "s on device"
_WIDEST_BAR: Final = 60
_SHORTEST_BAR: Final = 4


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One row as printed: `seconds`, `on_device` in the table's `run_unit`; `share` for the bar."""

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
    """What of a run went to keys of the ledger; several where they cannot be separated."""

    keys: tuple[str, ...]
    label: str
    seconds: float
    per_step_s: float
    device_s: float = 0.0


def waits_are_merged(summary: RunSummary) -> bool:
    """Whether host time in syncs and copies may be the device working."""
    if summary.run.device_timing == "synchronized":
        return False
    on_accelerator = summary.run.device_timing == "async" or summary.run.is_on_device
    is_told_apart = any(device.idle_because for device in summary.devices or ())
    return on_accelerator and not is_told_apart


def label_of(key: str) -> str:
    """Returns a ledger key in words; one of a later version speaks for itself."""
    return LABELS.get(key, key.replace("_", " ")[:_LONGEST_LABEL])


def ledger_table(summary: RunSummary) -> LedgerTable | None:
    """Returns the ledger as printed, None where nothing of it was measured."""
    parts = [part for part in _parts(summary) if part.seconds or part.per_step_s]
    whole = sum(part.seconds for part in parts)
    return _written(parts, whole, summary) if whole > 0 else None


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


def _written(parts: list[LedgerPart], whole: float, summary: RunSummary) -> LedgerTable:
    has_steps = bool(summary.training.per_step_s)
    run, step = run_scale(whole), step_scale(sum(part.per_step_s for part in parts))
    seconds = rounded_parts([part.seconds / run.factor for part in parts], run.decimals)
    tenths = rounded_parts([part.seconds / whole * 100 for part in parts], 1)
    steps = rounded_parts([part.per_step_s / step.factor for part in parts], step.decimals)
    rows = [
        LedgerRow(
            part.label,
            part.seconds / whole,
            run.written(seconds[index]),
            f"{tenths[index] / 10:.1f} %",
            step.written(steps[index]) if has_steps and part.per_step_s else "",
            run.written(round(part.device_s / run.factor * 10**run.decimals))
            if part.device_s
            else "",
        )
        for index, part in enumerate(parts)
    ]
    total_step, total_s = step.written(sum(steps)), run.written(sum(seconds))
    total_step = total_step if has_steps else NOT_MEASURED
    total = LedgerRow("total", 1.0, total_s, f"{sum(tenths) / 10:.1f} %", total_step)
    units = run.unit, step.unit if has_steps else None
    has_device, ranks = any(row.on_device for row in rows), max(len(summary.ranks), 1)
    return LedgerTable(rows, total, *units, has_device, ranks)


def _known(seconds: Mapping[str, float]) -> dict[str, float]:
    return {key: value for key, value in seconds.items() if is_known(value)}


def _in_order(keys: set[str]) -> list[str]:
    known = [key for key in LEDGER_KEYS if key in keys]
    return known + sorted(keys.difference(LEDGER_KEYS))


def ledger_lines(table: LedgerTable, page: Page) -> list[Text]:
    """Returns heading, rows and total."""
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
        share = 0.0 if row is table.total else row.share / longest
        drawing = page.text(bar(share, bar_cells))
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
