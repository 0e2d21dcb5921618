"""Devices in training: why they idled, what copies cost, which calls waited for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from rich.text import Text

from trainprof.analysis.summary.device import Device, SyncPoint, Transfer
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report.text.layout import Column, Page
from trainprof.report.text.ledger import label_of, waits_are_merged
from trainprof.report.text.units import (
    LONG_UNITS,
    byte_count,
    count,
    counted,
    is_known,
    percent,
    rounded_parts,
    run_scale,
    seconds,
    share_of,
    three_digits,
)

# Columns of shares, where there are several.
_DEVICES_SHOWN: Final = 4
_CAUSES: Final = {
    "loader_s": "waiting for data",
    "copy_s": "copying",
    "sync_s": "syncs (such as item)",
    "host_s": "Python in the loop",
    "launch_s": "between small kernels",
    "evaluation_s": "validation",
    "checkpoint_s": "checkpoints",
    "startup_s": "first kernels not launched yet",
    "compile_s": "torch.compile",
    "warmup_s": "(warm-up)",
}
_MAYBE: Final = "(idle or busy: unknown)"
_AT_WORK: Final = "(busy)"
_AT_LEAST: Final = "(busy at least)"
_REST: Final = "other"
_TOTAL: Final = "total"
_DEVICE_CELLS: Final = 16
_DIRECTIONS: Final = {"h2d": "to the device", "d2h": "to the host", "d2d": "between devices"}
# Smaller copies do not reach the rate of the link.
_FULL_RATE_BYTES: Final = 256 << 10
_SMALL_BYTES: Final = 64 << 10
_MANY_A_STEP: Final = 8
_MOST: Final = 0.5
# A sync in which the device idled for less than this share of the wait cost nothing.
_FREE_SHARE: Final = 0.01
_FIELD: Final = "found_syncs"


def idle_columns(summary: RunSummary) -> list[Column]:
    """Returns why devices were idle, in rows that add up to the training phase, the total last.

    With a column of shares for each device, and of seconds for a single one; none where nothing is
    known of any.
    """
    known = ((device, _parts(device)) for device in summary.devices or ())
    parts = [(device, causes) for device, causes in known if sum(causes.values()) > 0]
    parts = parts[:_DEVICES_SHOWN]
    if not parts:
        return []
    matters = {
        label: max(causes.get(label, 0.0) / sum(causes.values()) for _, causes in parts)
        for label in (*_CAUSES.values(), _REST)
    }
    rows = sorted((x for x in matters if matters[x] > 0), key=lambda label: -matters[label])
    rows += [_MAYBE, _AT_WORK]
    shares = []
    for device, causes in parts:
        values = [causes.get(label, 0.0) for label in rows]
        tenths = rounded_parts([value / sum(values) * 100 for value in values], 1)
        cells = [f"{number / 10:.1f} %" for number in (*tenths, sum(tenths))]
        shares.append(Column(device.name, cells))
    # By its driver, which is likely but not certain.
    if any(is_known(device.kernel_share) for device, _ in parts):
        rows[-1] = _AT_LEAST
    labels = Column("GPU idle because", [*rows, _TOTAL], is_number=False, gives_way=True)
    if len(shares) > 1:
        return [labels, *shares]
    scale = run_scale(sum(values))
    whole = rounded_parts([value / scale.factor for value in values], scale.decimals)
    in_all = [scale.written(number) for number in (*whole, sum(whole))]
    seconds = Column(LONG_UNITS[scale.unit], in_all, dropped=1)
    return [labels, seconds, replace(shares[0], header="% of training")]


def idle_section(summary: RunSummary, page: Page) -> list[Text]:
    """Why the GPU was idle, in training."""
    return page.table(idle_columns(summary))


def devices_section(summary: RunSummary, page: Page) -> list[Text]:
    """How busy each device was in training, and what its time in a step went to."""
    fragments = []
    for device in summary.devices or ():
        if device.busy_share is None:  # known by its memory alone
            continue
        name = page.shortened(device.name, _DEVICE_CELLS)
        fragments.append(f"{name} busy {_interval(device.busy_share)} of {device.time}")
        if is_known(device.kernel_share):
            fragments.append(f"a kernel ran in {percent(device.kernel_share)} of that (driver)")
        by_phase = sorted(device.per_step_s.items(), key=lambda item: -item[1])
        phases = [f"{label_of(key)} {seconds(s)}" for key, s in by_phase if s > 0]
        if phases:
            fragments.append(f"a step with its gaps: {', '.join(phases)}")
        if is_known(device.warmup_s) and device.warmup_s > 0:
            fragments.append(f"warm-up {seconds(device.warmup_s)}")
        fragments += _more(device)
    return page.labelled("Device", fragments)


def _interval(bounds: Sequence[float], write: Callable[[float], str] = percent) -> str:
    """Returns bounds as one figure where they are written alike: "31 %", "24 % to 87 %"."""
    return " to ".join(dict.fromkeys(map(write, bounds)))


def _more(device: Device) -> list[str]:
    fragments = []
    if device.queue_delay_s and all(map(is_known, device.queue_delay_s)):
        most = seconds(max(device.queue_delay_s))
        fragments.append(f"phases start at most {most} after their launch, on average")
    exposed = [
        f"{label_of(key)} {_interval(bounds, seconds)}"
        for key, bounds in device.exposed_s.items()
        if any(is_known(bound) and bound > 0 for bound in bounds)
    ]
    if exposed:
        fragments.append(f"idle while the CPU was in: {', '.join(exposed)}")
    if device.launch_bound_share:
        share = _interval(device.launch_bound_share)
        fragments.append(f"idle between launches in {share} of {device.time}")
    dry = [f"{label_of(key)} {percent(share)}" for key, share in device.ran_dry.items()]
    if dry:
        fragments.append(f"idle at the end of: {', '.join(dry)}")
    return [*fragments, f"{count(device.marks)} marks in its stream"]


def _parts(device: Device) -> dict[str, float]:
    """Returns seconds by label; those of the training phase in which it was at work, too."""
    because = {k: s for k, s in (device.idle_because or {}).items() if is_known(s) and s > 0}
    idle_s = sum(because.values())
    low = device.busy_share[0] if device.busy_share else None
    if not because or not is_known(low) or not 0 <= low < 1:
        return {}
    by_label = {label: because.get(cause, 0.0) for cause, label in _CAUSES.items()}
    by_label[_MAYBE] = because.get("unknown_s", 0.0)
    known = {*_CAUSES, "unknown_s"}
    by_label[_REST] = sum(s for cause, s in because.items() if cause not in known)
    by_label[_AT_WORK] = (idle_s - because.get("warmup_s", 0.0)) * low / (1 - low)
    return by_label


def transfers_section(summary: RunSummary, page: Page) -> list[Text]:
    """Copies between devices by line, slowest first, and models that were moved."""
    is_merged = waits_are_merged(summary)
    ranked = summary.transfers
    if is_merged:  # by host time one cannot rank them
        ranked = sorted(ranked, key=lambda transfer: -transfer.bytes)
    by_line = [_transfer(transfer, summary, is_merged=is_merged) for transfer in ranked]
    lines = page.labelled_rows("Transfers", by_line)
    if not summary.placements:
        return lines
    moved = [
        f"{move.site} {counted(move.count, 'time')}, {seconds(move.host_s)}"
        for move in summary.placements
    ]
    return lines + page.labelled("Models", [f"moved or converted: {moved[0]}", *moved[1:]])


def _transfer(transfer: Transfer, summary: RunSummary, *, is_merged: bool) -> list[str]:
    direction = _DIRECTIONS.get(transfer.direction, "between unknown devices")
    pinned = f"{percent(transfer.pinned_share)} from pinned memory"
    fragments = [
        f"{transfer.site} {direction}: {counted(transfer.count, 'copy', 'copies')}",
        byte_count(transfer.bytes),
        pinned if transfer.direction == "h2d" else "",
        _rate(transfer),
    ]
    if not is_merged:
        fragments.append(f"{seconds(transfer.host_s)} on the CPU")
    if transfer.device_s is not None:
        fragments.append(f"{seconds(transfer.device_s)} on the GPU")
    if transfer.exposed_s is not None and not is_merged:
        fragments.append(f"{seconds(transfer.exposed_s)} without overlap")
    if transfer.beside_share is not None and transfer.beside_share > 0:
        fragments.append(f"{percent(transfer.beside_share)} of them overlap other work")
    return [*fragments, *_notes(transfer, summary)]


def _rate(transfer: Transfer) -> str:
    rate, size = transfer.gb_per_s, share_of(transfer.bytes, transfer.count)
    if not is_known(rate) or size is None or size < _FULL_RATE_BYTES:
        return ""
    return f"{three_digits(rate)} GB/s"


def _notes(transfer: Transfer, summary: RunSummary) -> list[str]:
    steps, notes = summary.training.steps, []
    size = share_of(transfer.bytes, transfer.count)
    if (
        transfer.direction == "h2d"
        and transfer.non_blocking_share >= _MOST
        and transfer.pinned_share < _MOST
    ):
        notes.append("non_blocking without pinned memory: the CPU still copies first")
    is_often = steps > 0 and transfer.count >= _MANY_A_STEP * steps
    if is_often and size is not None and size < _SMALL_BYTES:
        a_step = f"{transfer.count / steps:,.0f} a step"
        notes.append(f"many small copies: {a_step} of {byte_count(size)}, slower than a large copy")
    return notes


def found_syncs_section(summary: RunSummary, page: Page) -> list[Text]:
    """Calls that wait for the device inside torch's native code, by line."""
    syncs, why_not = summary.found_syncs, summary.not_observed.get(_FIELD)
    if syncs is None:
        return page.labelled("Find syncs", [f"n/a: {why_not}"]) if why_not else []
    last = syncs.first_step + syncs.steps
    fragments = [f"in steps {count(syncs.first_step + 1)} to {count(last)}"]
    if syncs.steps == 0:
        fragments = ["the run ended before another step"]
    fragments += [f"{call.site} {counted(call.count, 'wait')} in C++" for call in syncs.calls]
    if not syncs.calls:
        fragments.append("no wait inside C++ code")
    if syncs.known_calls:
        fragments.append(f"and {count(syncs.known_calls)} by calls listed above")
    fragments.append(why_not or "")
    return page.labelled("Find syncs", fragments)


def syncs_section(summary: RunSummary, page: Page) -> list[Text]:
    """Lines that need a tensor's value at once."""
    ranked = sorted(summary.sync_points, key=SyncPoint.costliest_first)
    is_merged = waits_are_merged(summary)
    return page.labelled_rows("Syncs", [_sync(point, is_merged=is_merged) for point in ranked])


def _sync(point: SyncPoint, *, is_merged: bool) -> list[str]:
    fragments = [f"{point.site} {point.kind}: {counted(point.count, 'call')}"]
    until = point.counted_until_s
    more = "no wait" if until is None else f"no wait; counted until {seconds(until)}"
    if point.on_cpu >= point.count:
        return [f"{fragments[0]} on CPU tensors ({more})"]
    if point.on_cpu:
        fragments.append(f"{count(point.on_cpu)} of them on CPU tensors ({more})")
    if not is_merged:
        fragments += [seconds(point.seconds), _exposed(point), *_after(point)]
    return fragments


def _after(point: SyncPoint) -> list[str]:
    after_s = point.held_back_s[0] if point.held_back_s else 0.0
    if (share_of(after_s, point.seconds) or 0.0) < _FREE_SHARE:
        return []
    return [f"and {seconds(after_s)} after them"]


def _exposed(point: SyncPoint) -> str:
    share = share_of(point.exposed_s, point.seconds)
    if share is None:
        return ""
    if share < _FREE_SHARE:
        return "the GPU was busy"
    return f"the GPU idled {seconds(point.exposed_s)} of that"
