"""One training step, or a GPU's training, as rows: each part with a bar, its time and share."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final

from rich.cells import cell_len
from rich.text import Text

from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report.text.layout import GAP_CELLS, Page, bar
from trainprof.report.text.parts import Part, parts_shown
from trainprof.report.text.units import is_known, rounded_parts, run_scale, step_scale

ROWS: Final = 7
_FOLDED_BELOW: Final = 0.02
_TITLE: Final = "One training step"
_WIDEST_BAR: Final = 60
_SHORTEST_BAR: Final = 4


@dataclass(frozen=True, slots=True)
class StepRow:
    """A part as printed; `keys` of the ledger."""

    label: str
    keys: tuple[str, ...]
    share: float
    time: str
    percent: str


@dataclass(frozen=True, slots=True)
class StepRows:
    """The rows, largest first, and what they add up to."""

    title: str
    total: str
    rows: list[StepRow]


def step_rows(summary: RunSummary) -> StepRows | None:
    """Returns at most ROWS rows, the rest as one of them; None where steps were not measured."""
    parts = _folded(parts_shown(summary))
    is_gpu = bool(parts) and summary.run.is_on_device and parts[0].of != "a step"
    whole_s = _gpu_s(summary) if is_gpu else _step_s(summary)
    if not parts or whole_s is None:
        return None
    scale = run_scale(whole_s) if is_gpu else step_scale(whole_s)
    decimals = max(scale.decimals - (whole_s / scale.factor >= 100), 0)
    scale = replace(scale, decimals=decimals)
    # Of a device that is busier than it is sure, shares may add up to more than all.
    whole = max(sum(part.share for part in parts), 1e-9)
    shares = [part.share / whole for part in parts]
    times = rounded_parts([share * whole_s / scale.factor for share in shares], decimals)
    percents = rounded_parts([share * 100 for share in shares], 0)
    rows = [
        StepRow(part.name, part.keys, share, f"{scale.written(time)} {scale.unit}", f"{percent} %")
        for part, share, time, percent in zip(parts, shares, times, percents, strict=True)
        if time and percent
    ]
    title = f"GPU time of {parts[0].of}" if is_gpu else _TITLE
    if summary.run.is_on_device and not is_gpu:
        title += ", time of the CPU"
    if len(summary.ranks) > 1:
        title += f", {'first' if is_gpu else 'mean'} of {len(summary.ranks)} ranks"
    return StepRows(title, f"{scale.written(sum(times))} {scale.unit}", rows)


def step_lines(summary: RunSummary, page: Page, named: Collection[str], style: str) -> list[Text]:
    """Returns the title with the whole time, and a line for each row.

    `named`: ledger keys of the bottleneck, whose bar has this style.
    """
    step = step_rows(summary)
    if step is None:
        return []
    labels = [page.text(f"  {row.label}") for row in step.rows]
    time_cells = max(cell_len(text) for text in (step.total, *(row.time for row in step.rows)))
    percent_cells = len("100 %")
    label_cells = max(label.cell_len for label in labels)
    numbers = time_cells + percent_cells + 2 * GAP_CELLS
    bar_cells = min(page.width - label_cells - numbers - GAP_CELLS, _WIDEST_BAR)
    bar_cells = bar_cells if bar_cells >= _SHORTEST_BAR else 0
    width = max(label_cells + (bar_cells + GAP_CELLS if bar_cells else 0), cell_len(step.title))
    width = min(width, page.width - numbers)

    def line(left: Text, time: str, percent: str) -> Text:
        left.pad_right(width - left.cell_len)
        gap = " " * GAP_CELLS
        return Text.assemble(left, f"{gap}{time:>{time_cells}}{gap}{percent:>{percent_cells}}")

    lines = [line(page.text(page.shortened(step.title, width)), step.total, "100 %")]
    lines[0].stylize("bold")
    for label, row in zip(labels, step.rows, strict=True):
        is_named = bool(row.keys) and set(row.keys) <= set(named)
        drawing = page.text(bar(row.share, bar_cells), style if is_named else "")
        label.pad_right(label_cells - label.cell_len)
        left = Text.assemble(label, " " * GAP_CELLS, drawing) if bar_cells else label
        lines.append(line(left, row.time, row.percent))
    return lines


def _step_s(summary: RunSummary) -> float | None:
    step = summary.training.step_s
    mean = step.mean if step is not None else None
    if mean is None:
        mean = sum((summary.training.per_step_s or {}).values())
    return mean if is_known(mean) and mean > 0 else None


def _gpu_s(summary: RunSummary) -> float | None:
    """Returns the base of a GPU's shares, seconds of training."""
    device = summary.devices[0] if summary.devices else None
    settled_s = summary.phases.training_s - (device.warmup_s if device else 0.0)
    return settled_s if is_known(settled_s) and settled_s > 0 else None


def _folded(parts: list[Part]) -> list[Part]:
    """Returns the large parts, and the others as one."""
    large = [part for part in parts if part.share >= _FOLDED_BELOW]
    small = [part for part in parts if 0 < part.share < _FOLDED_BELOW]
    if len(large) + bool(small) > ROWS:
        large, small = large[: ROWS - 1], [*large[ROWS - 1 :], *small]
    share = sum(part.share for part in small)
    if not share > 0:
        return large
    keys = tuple(key for part in small for key in part.keys)
    return [*large, small[0] if len(small) == 1 else Part("rest", keys, share, small[0].of)]
