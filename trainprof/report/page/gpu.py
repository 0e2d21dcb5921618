"""The GPUs on the verbose page: a table, then every figure and every gap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.text import Text

from trainprof.analysis.summary.device import ENERGY_ESTIMATED, Energy, Gpu
from trainprof.analysis.summary.levels import number_at
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report.text.layout import Column, Page
from trainprof.report.text.units import (
    NOT_MEASURED,
    byte_count,
    counted,
    is_known,
    percent,
    share_of,
    three_digits,
    whole_percent,
)

# In a cell of a column in which other GPUs have a figure; the verbose page says why.
_NOT_KNOWN: Final = "n/a"
_NOT_VISIBLE: Final = "not visible to the script"
_ORDER_ASSUMED: Final = "the order of GPUs is assumed: CUDA_DEVICE_ORDER is not PCI_BUS_ID"


def gpus_section(summary: RunSummary, page: Page) -> list[Text]:
    """A row for each of the script's GPUs; the others are counted."""
    system = summary.system
    if system is None or not system.gpus:
        return []
    seen = [gpu for gpu in system.gpus if not is_hidden(gpu)]
    hidden = len(system.gpus) - len(seen)
    notes = [f"{counted(hidden, 'GPU')} {_NOT_VISIBLE}" if hidden else ""]
    notes += [_ORDER_ASSUMED if _may_be_another(seen) else ""]
    lines = page.table(gpu_columns(seen)) if seen else []
    return lines + page.labelled("" if seen else "GPUs", notes)


def gpu_columns(gpus: Sequence[Gpu]) -> list[Column]:
    """Returns the table of GPUs, without columns that have no figure."""
    figures = [
        ("memory peak", [_memory_peak(gpu) for gpu in gpus], 0),
        ("power", [_watts(number_at(gpu.power_w, "mean")) for gpu in gpus], 3),
        ("of limit", [_share_of_limit(gpu) for gpu in gpus], 2),
        ("energy", [_energy(gpu) for gpu in gpus], 5),
        ("hottest", [_celsius(number_at(gpu.temperature_c, "max")) for gpu in gpus], 1),
    ]
    columns = [
        Column("GPU", [_name(gpu) for gpu in gpus], is_number=False, gives_way=True),
        Column("kernel ran", [_busy(gpu) for gpu in gpus]),
    ]
    columns += [
        Column(header, [cell or _NOT_KNOWN for cell in cells], dropped=dropped)
        for header, cells, dropped in figures
        if any(cells)
    ]
    if any(gpu.throttled_share for gpu in gpus):
        shares = [gpu.throttled_share for gpu in gpus]
        cells = [_NOT_KNOWN if share is None else percent(share) for share in shares]
        columns.append(Column("throttled", cells, dropped=4))
    return columns


def _name(gpu: Gpu) -> str:
    """Returns a GPU's number as the script sees it, with NVML's where that is another."""
    if gpu.logical_index is None:
        return f"NVML {gpu.index}"
    if gpu.logical_index == gpu.index:
        return str(gpu.index)
    return f"{gpu.logical_index} (NVML {gpu.index})"


def is_hidden(gpu: Gpu) -> bool:
    """Whether the script neither sees a GPU nor was seen on it."""
    return gpu.is_visible is False and not gpu.is_used


def energy_words(energy: Energy | None) -> list[str]:
    """Returns what the script's GPUs used together, where the table does not have it."""
    if energy is None or not is_known(energy.wh):
        return []
    number, rate = len(energy.gpus), energy.samples_per_wh
    return [
        f"{_watt_hours(energy.wh, energy.source)} on {number} GPUs" if number > 1 else "",
        f"{three_digits(rate)} samples/Wh" if is_known(rate) else "",
    ]


def gpu_details(summary: RunSummary, page: Page) -> list[Text]:
    """Every figure of every GPU, and what is not measured and why."""
    system = summary.system
    if system is None:
        return []
    lines = [
        line
        for gpu in system.gpus
        for line in page.labelled(
            f"NVML {gpu.index}" if gpu.logical_index is None else f"GPU {gpu.logical_index}",
            [*_identity(gpu), *_figures(gpu), *_missing(gpu)],
        )
    ]
    if system.gpus_not_observed:
        what = "no more samples" if system.gpus else "none seen"
        lines += page.labelled("GPUs", [f"{what}: {system.gpus_not_observed}"])
    energy = energy_words(system.energy)
    return lines + page.labelled("Energy", energy)


def _identity(gpu: Gpu) -> list[str]:
    sees = {
        True: "visible to the script",
        False: _NOT_VISIBLE,
        None: "whether the script sees it is not known",
    }
    others = [process for process in gpu.processes or () if process.get("role") == "other"]
    return [
        gpu.name or "",
        gpu.uuid or "",
        f"NVML's number {gpu.index}",
        "used by your script" if gpu.is_used else sees[gpu.is_visible],
        _ORDER_ASSUMED if gpu.is_number_assumed and gpu.logical_index is not None else "",
        "" if gpu.mig is None else f"MIG is on: {counted(len(gpu.mig), 'instance')}",
        f"{counted(len(others), 'process', 'processes')} of other programs" if others else "",
    ]


def _figures(gpu: Gpu) -> list[str]:
    busy, power = gpu.utilization, gpu.power_w
    mean, p50, p95 = (None, None, None) if busy is None else (busy.mean, busy.p50, busy.p95)
    figures = {
        "some kernel ran: mean": whole_percent(mean),
        "p50": whole_percent(p50),
        "p95": whole_percent(p95),
        "memory at most": byte_count(number_at(gpu.memory_bytes, "max")),
        "of": byte_count(gpu.memory_total_bytes),
        "power mean": _watts(number_at(power, "mean")),
        "max": _watts(number_at(power, "max")),
        "limit": _watts(gpu.power_limit_w),
        "energy": _energy(gpu),
        "temperature at most": _celsius(number_at(gpu.temperature_c, "max")),
        "throttled in": percent(gpu.throttled_share) if gpu.throttled_share else "",
    }
    known = {name: text for name, text in figures.items() if text not in ("", NOT_MEASURED)}
    return [f"{name} {text}" for name, text in known.items()]


def _missing(gpu: Gpu) -> list[str]:
    missing = [f"{name.replace('_', ' ')} ({why})" for name, why in gpu.not_observed.items()]
    return [f"{NOT_MEASURED}: {missing[0]}", *missing[1:]] if missing else []


def _may_be_another(gpus: Sequence[Gpu]) -> bool:
    """Whether a row may be another GPU than it says: those of the same model are alike."""
    is_assumed = any(gpu.is_number_assumed and gpu.logical_index is not None for gpu in gpus)
    return is_assumed and len({gpu.name for gpu in gpus}) > 1


def _busy(gpu: Gpu) -> str:
    if gpu.utilization is not None:
        return whole_percent(gpu.utilization.mean)
    # NVML does not report it for a GPU that is divided.
    return f"{_NOT_KNOWN} (MIG)" if gpu.mig is not None else NOT_MEASURED


def _memory_peak(gpu: Gpu) -> str:
    peak = number_at(gpu.memory_bytes, "max")
    if peak is None:
        return ""
    share = share_of(peak, gpu.memory_total_bytes)
    return byte_count(peak) if share is None else f"{byte_count(peak)} ({percent(share)})"


def _share_of_limit(gpu: Gpu) -> str:
    share = share_of(number_at(gpu.power_w, "mean"), gpu.power_limit_w)
    return "" if share is None else percent(share)


def _energy(gpu: Gpu) -> str:
    return _watt_hours(gpu.energy_wh, gpu.energy_source) if is_known(gpu.energy_wh) else ""


def _watts(value: float | None) -> str:
    return f"{value:,.0f} W" if is_known(value) else ""


def _watt_hours(wh: float, source: str | None) -> str:
    mark = " est." if source == ENERGY_ESTIMATED else ""
    return f"{three_digits(wh)} Wh{mark}" if wh >= 0.1 else f"{wh * 1000:.3g} mWh{mark}"


def _celsius(value: float | None) -> str:
    return f"{value:.0f} C" if is_known(value) else ""
