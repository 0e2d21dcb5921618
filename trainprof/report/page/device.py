"""What devices did in training: how far they were at work, and why they were not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich.text import Text

from trainprof.analysis.summary.device import Device
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report.text.layout import Column, Page
from trainprof.report.text.ledger_table import label_of
from trainprof.report.text.units import (
    count,
    is_known,
    percent,
    rounded_parts,
    run_scale,
    seconds,
)

# Columns of shares, where there are several.
DEVICES_SHOWN: Final = 4
FOLD_BELOW_SHARE: Final = 0.005
IDLE_TITLE: Final = "GPU idle because"
_CAUSES: Final = {
    "loader_s": "waiting for data",
    "copy_s": "copying",
    "sync_s": "syncs (such as item)",
    "host_s": "Python in between",
    "launch_s": "slow launches",
    "evaluation_s": "evaluation",
    "checkpoint_s": "checkpoints",
    "startup_s": "no work given yet",
    "compile_s": "compiling again",
    "warmup_s": "(warm-up)",
}
_MAYBE: Final = "(being given work)"
_AT_WORK: Final = "(surely at work)"
_AT_LEAST: Final = "(at work at least)"
_REST: Final = "other"
_TOTAL: Final = "total"
_DEVICE_CELLS: Final = 16
_DEVICE_PHASES: Final = 3


@dataclass(frozen=True, slots=True)
class IdleTable:
    """Why devices were idle, in rows that add up to the training phase.

    Attributes:
        labels: Of the rows, the total last.
        seconds: In `unit`, of the one device; empty where there are several.
        shares: Of the training phase: a column for each device shown, by its name.
    """

    labels: list[str]
    unit: str
    seconds: list[str]
    shares: list[tuple[str, list[str]]]


def idle_table(summary: RunSummary, *, fold: bool = True) -> IdleTable | None:
    """Returns the table, None where nothing is known of any device.

    Args:
        summary: The run.
        fold: Put causes under `FOLD_BELOW_SHARE` on every device into one row.
    """
    parts = [(device, _parts(device)) for device in summary.devices or ()]
    parts = [(device, one) for device, one in parts if sum(one.values()) > 0][:DEVICES_SHOWN]
    if not parts:
        return None
    matters = {
        label: max(one.get(label, 0.0) / sum(one.values()) for _, one in parts)
        for label in (*_CAUSES.values(), _REST, _MAYBE, _AT_WORK)
    }
    kept = sorted(
        (x for x in matters if x not in (_MAYBE, _AT_WORK) and matters[x] > 0),
        key=lambda label: -matters[label],
    )
    if fold:
        kept = [label for label in kept if matters[label] >= FOLD_BELOW_SHARE and label != _REST]
    left_out = [x for x in (*_CAUSES.values(), _REST) if x not in kept and matters[x] > 0]
    labels = [*kept, *([_REST] if left_out else []), _MAYBE, _AT_WORK]
    columns = []
    for device, one in parts:
        values = {label: one.get(label, 0.0) for label in labels}
        if left_out:
            values[_REST] = sum(one.get(label, 0.0) for label in left_out)
        columns.append((device, [values[label] for label in labels]))
    unit, written = _in_seconds(columns[0][1]) if len(columns) == 1 else ("", [])
    shares = [(device.name, _in_percent(values)) for device, values in columns]
    if any(_is_estimated(device) for device, _ in parts):
        labels[-1] = _AT_LEAST
    return IdleTable([*labels, _TOTAL], unit, written, shares)


def idle_columns(table: IdleTable) -> list[Column]:
    """Returns the table for a page."""
    columns = [Column(IDLE_TITLE, table.labels, is_number=False, gives_way=True)]
    if table.seconds:
        unit = {"s": "seconds", "min": "minutes", "h": "hours"}.get(table.unit, table.unit)
        (_, shares) = table.shares[0]
        return [*columns, Column(unit, table.seconds, dropped=1), Column("% of training", shares)]
    return columns + [Column(name, shares) for name, shares in table.shares]


def idle_section(summary: RunSummary, page: Page) -> list[Text]:
    """Why the GPU was idle, in training."""
    table = idle_table(summary, fold=not page.verbose)
    return page.table(idle_columns(table)) if table is not None else []


def devices_section(summary: RunSummary, page: Page) -> list[Text]:
    """How far each device was at work in training, and what its time in a step went to."""
    told = []
    for device in summary.devices or ():
        if device.busy_share is None:  # known by its memory alone
            continue
        name = page.shortened(device.name, _DEVICE_CELLS)
        told.append(f"{name} at work {interval(device.busy_share)} of {device.time}")
        if device.kernel_share is not None and is_known(device.kernel_share):
            told.append(f"by the driver a kernel ran in {percent(device.kernel_share)} of that")
        by_phase = sorted(device.per_step_s.items(), key=lambda item: -item[1])
        phases = [f"{label_of(key)} {seconds(s)}" for key, s in by_phase if s > 0]
        if phases:
            shown = phases if page.verbose else phases[:_DEVICE_PHASES]
            told.append(f"of a step, gaps in it included: {', '.join(shown)}")
        if is_known(device.warmup_s) and device.warmup_s > 0:
            what = "libraries, kernels, algorithms that are tried"
            told.append(f"its warm-up took {seconds(device.warmup_s)} ({what})")
        if page.verbose:
            told += _more(device)
    return page.labelled("Device", told) if told else []


def interval(shares: Sequence[float]) -> str:
    """Returns bounds as one share where they are written alike: "31 %", "24 % to 87 %"."""
    return " to ".join(dict.fromkeys(percent(share) for share in shares))


def _is_estimated(device: Device) -> bool:
    """Whether its driver tells what marks do not: very likely, and no more sure."""
    return device.kernel_share is not None and is_known(device.kernel_share)


def _more(device: Device) -> list[str]:
    told = []
    if device.queue_delay_s and all(map(is_known, device.queue_delay_s)):
        most = seconds(max(device.queue_delay_s))
        told.append(f"phases begin there at most {most} after they were given out, on average")
    exposed = [
        f"{label_of(key)} {' to '.join(dict.fromkeys(map(seconds, bounds)))}"
        for key, bounds in device.exposed_s.items()
        if any(is_known(bound) and bound > 0 for bound in bounds)
    ]
    if exposed:
        told.append(f"had run dry while the host was in: {', '.join(exposed)}")
    if device.launch_bound_share:
        bounds = interval(device.launch_bound_share)
        told.append(f"idle between launches in {bounds} of {device.time}")
    dry = [f"{label_of(key)} {percent(share)}" for key, share in device.ran_dry.items()]
    if dry:
        told.append(f"nothing left to do at the end of: {', '.join(dry)}")
    return [*told, f"by {count(device.marks)} marks in its stream"]


def _parts(device: Device) -> dict[str, float]:
    """Returns seconds by label; those of the training phase in which it was at work, too."""
    because = {k: s for k, s in (device.idle_because or {}).items() if is_known(s) and s > 0}
    idle_s = sum(because.values())
    low = device.busy_share[0] if device.busy_share else None
    if not because or low is None or not is_known(low) or not 0 <= low < 1:
        return {}
    found = {label: because.get(cause, 0.0) for cause, label in _CAUSES.items()}
    found[_MAYBE] = because.get("unknown_s", 0.0)
    known = {*_CAUSES, "unknown_s"}
    found[_REST] = sum(s for cause, s in because.items() if cause not in known)
    found[_AT_WORK] = (idle_s - because.get("warmup_s", 0.0)) * low / (1 - low)
    return found


def _in_seconds(values: Sequence[float]) -> tuple[str, list[str]]:
    scale = run_scale(sum(values))
    whole = rounded_parts([value / scale.factor for value in values], scale.decimals)
    return scale.unit, [scale.written(number) for number in (*whole, sum(whole))]


def _in_percent(values: Sequence[float]) -> list[str]:
    whole = sum(values)
    tenths = rounded_parts([value / whole * 100 for value in values], 1)
    return [f"{number / 10:.1f} %" for number in (*tenths, sum(tenths))]
