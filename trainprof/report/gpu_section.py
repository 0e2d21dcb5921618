"""The GPUs: a line for each on the short page, every figure and every gap on the verbose one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.text import Text

from trainprof.analysis.facts import number_at
from trainprof.analysis.gpu_figures import ENERGY_ESTIMATED, Energy, Gpu, Utilization
from trainprof.analysis.run_figures import Epoch, System
from trainprof.analysis.summary import RunSummary
from trainprof.report.layout import Column, Page
from trainprof.report.units import (
    NOT_MEASURED,
    byte_count,
    count,
    counted,
    is_known,
    percent,
    seconds,
    share_of,
    three_digits,
)

GPUS_SHOWN: Final = 4
EPOCHS_SHOWN: Final = 8
PROCESSES_SHOWN: Final = 8

# In a cell of a column in which other GPUs have a figure; the verbose page says why.
NOT_TOLD: Final = "n/a"
NOT_VISIBLE: Final = "not visible to the script"
_ORDER_ASSUMED: Final = "the order of GPUs is assumed: CUDA_DEVICE_ORDER is not PCI_BUS_ID"
_ROLES: Final = {
    "own": "of this run",
    "other": "of somebody else",
    "unknown": "whose is not known (another PID namespace)",
}
_MEGA: Final = 1e6
_ESTIMATED: Final = " est."


def gpus_section(summary: RunSummary, page: Page, *, is_brief: bool = False) -> list[Text]:
    """A line for each of the script's GPUs, and what they used together; in brief, for the first.

    Those that the script cannot see are counted alone.
    """
    system = summary.system
    if system is None or not system.gpus:
        return []
    seen = [gpu for gpu in system.gpus if not is_hidden(gpu)]
    shown = seen[: 1 if is_brief else GPUS_SHOWN]
    more, hidden = len(seen) - len(shown), len(system.gpus) - len(seen)
    notes = [f"and {more} more with --verbose" if more else ""]
    if not is_brief:
        notes += energy_words(system.energy)
        notes += [f"{counted(hidden, 'GPU')} {NOT_VISIBLE}" if hidden else ""]
        notes += [_ORDER_ASSUMED if _may_be_another(seen) else ""]
    lines = page.table(gpu_columns(shown)) if shown else []
    if not any(notes):
        return lines
    return lines + page.labelled("" if shown else "GPUs", notes)


def gpu_columns(gpus: Sequence[Gpu]) -> list[Column]:
    """Returns the table of GPUs; a column that tells nothing of any of them is left out."""
    temperatures = [number_at(gpu.temperature_c, "max") for gpu in gpus]
    watts = [number_at(gpu.power_w, "mean") for gpu in gpus]
    figures = [
        ("memory peak", [_memory_peak(gpu) for gpu in gpus], 0),
        ("power", [_watts(value) for value in watts], 3),
        ("of limit", [_share_of_limit(gpu) for gpu in gpus], 2),
        ("energy", [_energy_cell(gpu) for gpu in gpus], 5),
        ("hottest", [_celsius(value) for value in temperatures], 1),
    ]
    busy = [_busy(gpu) for gpu in gpus]
    columns = [
        Column("GPU", [gpu_name(gpu) for gpu in gpus], is_number=False, gives_way=True),
        Column("kernel ran", busy),
    ]
    columns += [
        Column(header, [cell or NOT_TOLD for cell in cells], dropped=dropped)
        for header, cells, dropped in figures
        if any(cells)
    ]
    if any(gpu.throttled_share for gpu in gpus):
        shares = [gpu.throttled_share for gpu in gpus]
        cells = [NOT_TOLD if share is None else percent(share) for share in shares]
        columns.append(Column("throttled", cells, dropped=4))
    return columns


def gpu_name(gpu: Gpu) -> str:
    """Returns a GPU's number as the script sees it, with NVML's where that is another."""
    if gpu.logical_index is None:
        return f"NVML {gpu.index}"
    if gpu.logical_index == gpu.index:
        return str(gpu.index)
    return f"{gpu.logical_index} (NVML {gpu.index})"


def is_hidden(gpu: Gpu) -> bool:
    """Tells whether the script neither sees a GPU nor was seen on it."""
    return gpu.is_visible is False and not gpu.is_used


def energy_words(energy: Energy | None) -> list[str]:
    """Returns what the script's GPUs used together, where the table does not say it already."""
    if energy is None or not is_known(energy.wh):
        return []
    number, rate = len(energy.gpus), energy.samples_per_wh
    mark = _ESTIMATED if energy.source == ENERGY_ESTIMATED else ""
    return [
        f"{_watt_hours(energy.wh)}{mark} on {number} GPUs" if number > 1 else "",
        f"{three_digits(rate)} samples/Wh" if rate is not None and is_known(rate) else "",
    ]


def gpu_details(summary: RunSummary, page: Page) -> list[Text]:
    """Every figure of every GPU, what is not measured and why, and what asking for it cost."""
    system = summary.system
    if system is None:
        return []
    reason = system.gpus_not_observed
    what = "no more samples" if system.gpus else "none seen"
    ended = page.labelled("GPUs", [f"{what}: {reason}"]) if reason else []
    if not system.gpus:
        return ended
    epochs = [_epoch_name(epoch) for epoch in summary.epochs]
    lines = [line for gpu in system.gpus for line in _one_gpu(gpu, epochs, page)]
    return lines + ended + _energy_lines(system, page) + _cost_lines(system, page)


def _one_gpu(gpu: Gpu, epochs: Sequence[str], page: Page) -> list[Text]:
    rows = [
        _utilization(gpu.utilization),
        _by_phase(gpu),
        _histogram(gpu.utilization),
        _memory(gpu),
        _power(gpu),
        _clocks(gpu),
        _clock_reasons(gpu),
        _pcie(gpu),
        _processes(gpu),
        _instances(gpu),
        _energy_by_epoch(gpu, epochs),
        _missing(gpu),
    ]
    label = f"NVML {gpu.index}" if gpu.logical_index is None else f"GPU {gpu.logical_index}"
    lines = page.labelled(label, _identity(gpu))
    return lines + [line for row in rows if any(row) for line in page.labelled("", row)]


def _identity(gpu: Gpu) -> list[str]:
    sees = {
        True: "visible to the script",
        False: NOT_VISIBLE,
        None: "whether the script sees it is not known",
    }
    return [
        gpu.name or "",
        gpu.uuid or "",
        f"NVML's number {gpu.index}",
        "used by the script" if gpu.is_used else sees[gpu.is_visible],
        _ORDER_ASSUMED if gpu.is_number_assumed and gpu.logical_index is not None else "",
    ]


def _utilization(utilization: Utilization | None) -> list[str]:
    if utilization is None:
        return []
    return [
        f"some kernel ran: mean {_of_hundred(utilization.mean)} of the time",
        f"p5 {_of_hundred(utilization.p5)}",
        f"p50 {_of_hundred(utilization.p50)}",
        f"p95 {_of_hundred(utilization.p95)}",
        f"below 10 % in {percent(utilization.share_below_10)} of the time",
        f"10 to 90 % in {percent(utilization.share_10_to_90)}",
        f"above 90 % in {percent(utilization.share_above_90)}",
    ]


def _by_phase(gpu: Gpu) -> list[str]:
    told = [
        f"{phase} {_of_hundred(utilization.mean)} "
        f"(below 10 % in {percent(utilization.share_below_10)} of it, "
        f"above 90 % in {percent(utilization.share_above_90)})"
        for phase, utilization in gpu.utilization_by_phase.items()
    ]
    return [f"by phase: {told[0]}", *told[1:]] if told else []


def _histogram(utilization: Utilization | None) -> list[str]:
    """Bins that hold something, from idle to 100 %."""
    if utilization is None:
        return []
    names = [f"{low} to {low + 10} %" for low in range(0, 100, 10)] + ["100 %"]
    told = [
        f"at {name}: {percent(share)}"
        for name, share in zip(names, utilization.histogram, strict=False)
        if share > 0
    ]
    return [f"of the time {told[0]}", *told[1:]] if told else []


def _memory(gpu: Gpu) -> list[str]:
    told = _known(
        {
            "memory at most": _bytes_or_none(number_at(gpu.memory_bytes, "max")),
            "mean": _bytes_or_none(number_at(gpu.memory_bytes, "mean")),
            "of": _bytes_or_none(gpu.memory_total_bytes),
        }
    )
    moved = number_at(gpu.memory_utilization, "mean")
    return [
        *told,
        "" if moved is None else f"being read or written {_of_hundred(moved)} of the time",
    ]


def _power(gpu: Gpu) -> list[str]:
    energy_wh = gpu.energy_wh if is_known(gpu.energy_wh) else None
    estimated = gpu.energy_estimated_share
    by = {None: "", ENERGY_ESTIMATED: f"estimated from power in {percent(estimated)} of the time"}
    return [
        *_known(
            {
                "power mean": _watts(number_at(gpu.power_w, "mean")) or None,
                "max": _watts(number_at(gpu.power_w, "max")) or None,
                "limit": _watts(gpu.power_limit_w) or None,
                "energy": None if energy_wh is None else _watt_hours(energy_wh),
            }
        ),
        by.get(gpu.energy_source, "by the driver's counter"),
        *_known({"temperature at most": _celsius(number_at(gpu.temperature_c, "max")) or None}),
    ]


def _clocks(gpu: Gpu) -> list[str]:
    return _known(
        {
            "SM clock mean": _megahertz(number_at(gpu.sm_clock_mhz, "mean")),
            "least": _megahertz(number_at(gpu.sm_clock_mhz, "min")),
            "limit": _megahertz(gpu.sm_clock_max_mhz),
            "memory clock mean": _megahertz(number_at(gpu.memory_clock_mhz, "mean")),
            "its limit": _megahertz(gpu.memory_clock_max_mhz),
        }
    )


def _clock_reasons(gpu: Gpu) -> list[str]:
    if not gpu.clock_reasons:
        return []
    told = [f"{_worded(reason)} {percent(share)}" for reason, share in gpu.clock_reasons.items()]
    return [
        f"throttled in {percent(gpu.throttled_share)} of the time",
        f"what kept the clocks down: {told[0]}",
        *told[1:],
    ]


def _pcie(gpu: Gpu) -> list[str]:
    link = gpu.pcie_link
    generation, width = number_at(link, "generation"), number_at(link, "width")
    limit = number_at(link, "max_generation"), number_at(link, "max_width")
    told = []
    if generation is not None and width is not None:
        of = "" if None in limit else f" of generation {limit[0]:.0f} x{limit[1]:.0f}"
        told.append(f"PCIe generation {generation:.0f} x{width:.0f}{of}")
    for name, rates in (
        ("received", gpu.pcie_received_bytes_per_s),
        ("sent", gpu.pcie_sent_bytes_per_s),
    ):
        mean, most = number_at(rates, "mean"), number_at(rates, "max")
        if mean is not None and most is not None:
            told.append(f"{name} {mean / _MEGA:,.0f} MB/s (max {most / _MEGA:,.0f})")
    return told


def _processes(gpu: Gpu) -> list[str]:
    if gpu.processes is None:
        return []
    told = [
        f"process {process.get('pid', '?')} {_ROLES.get(str(process.get('role')), '')}: "
        f"{byte_count(number_at(process, 'bytes'))}"
        for process in gpu.processes[:PROCESSES_SHOWN]
    ]
    hidden = len(gpu.processes) - len(told)
    return [*told, f"and {hidden} more" if hidden else ""] if told else ["no process on it"]


def _instances(gpu: Gpu) -> list[str]:
    if gpu.mig is None:
        return []
    told = [
        f"instance {instance.get('uuid', '?')} "
        f"({byte_count(number_at(instance, 'memory_bytes'))})"
        + _script_number(number_at(instance, "logical_index"))
        for instance in gpu.mig
    ]
    return [f"MIG is on: {counted(len(told), 'instance')}", *told]


def _script_number(number: float | None) -> str:
    return "" if number is None else f" is the script's GPU {number:.0f}"


def _energy_by_epoch(gpu: Gpu, epochs: Sequence[str]) -> list[str]:
    told = [
        f"{name} {_watt_hours(wh)}"
        for name, wh in zip(epochs, gpu.epoch_energy_wh, strict=False)
        if wh is not None and is_known(wh)
    ]
    hidden = len(told) - EPOCHS_SHOWN
    return [*told[:EPOCHS_SHOWN], f"and {hidden} more" if hidden > 0 else ""]


def _epoch_name(epoch: Epoch) -> str:
    return f"{'epoch' if epoch.stage == 'training' else epoch.stage} {epoch.index + 1}"


def _missing(gpu: Gpu) -> list[str]:
    told = [f"{_worded(name)} ({reason})" for name, reason in gpu.not_observed.items()]
    return [f"{NOT_MEASURED}: {told[0]}", *told[1:]] if told else []


def _energy_lines(system: System, page: Page) -> list[Text]:
    told = energy_words(system.energy)
    return page.labelled("Energy", told) if any(told) else []


def _cost_lines(system: System, page: Page) -> list[Text]:
    cost = system.cost.get("gpus")
    if not isinstance(cost, dict):
        return []
    share = number_at(cost, "share")
    told = [
        f"{seconds(number_at(cost, 'seconds_per_sample'))} a sample",
        NOT_MEASURED if share is None else f"{share * 100:.2f} % of the time",
        f"{count(number_at(cost, 'calls'))} questions",
    ]
    slowed = cost.get("slowed_s")
    rare = [
        f"{_worded(str(name))} (every {seconds(number_at(slowed, name))})"
        for name in (slowed if isinstance(slowed, dict) else ())
    ]
    if rare:
        told += [f"at times asked less often, as slow or failing: {rare[0]}", *rare[1:]]
    return page.labelled("GPU calls", told)


def _may_be_another(gpus: Sequence[Gpu]) -> bool:
    """Tells whether a row may be another GPU than it says: of one model all are alike."""
    is_assumed = any(gpu.is_number_assumed and gpu.logical_index is not None for gpu in gpus)
    return is_assumed and len({gpu.name for gpu in gpus}) > 1


def _busy(gpu: Gpu) -> str:
    if gpu.utilization is not None:
        return _of_hundred(gpu.utilization.mean)
    # Of a GPU that is divided NVML never tells it.
    return f"{NOT_TOLD} (MIG)" if gpu.mig is not None else NOT_MEASURED


def _memory_peak(gpu: Gpu) -> str:
    peak = number_at(gpu.memory_bytes, "max")
    if peak is None:
        return ""
    share = share_of(peak, gpu.memory_total_bytes)
    return byte_count(peak) if share is None else f"{byte_count(peak)} ({percent(share)})"


def _share_of_limit(gpu: Gpu) -> str:
    share = share_of(number_at(gpu.power_w, "mean"), gpu.power_limit_w)
    return "" if share is None else percent(share)


def _energy_cell(gpu: Gpu) -> str:
    if gpu.energy_wh is None or not is_known(gpu.energy_wh):
        return ""
    mark = _ESTIMATED if gpu.energy_source == ENERGY_ESTIMATED else ""
    return f"{_watt_hours(gpu.energy_wh)}{mark}"


def _known(figures: dict[str, str | None]) -> list[str]:
    return [f"{name} {figure}" for name, figure in figures.items() if figure is not None]


def _bytes_or_none(value: float | None) -> str | None:
    return None if value is None or not is_known(value) else byte_count(value)


def _of_hundred(value: float) -> str:
    return f"{value:.0f} %" if is_known(value) else NOT_MEASURED


def _watts(value: float | None) -> str:
    return "" if value is None or not is_known(value) else f"{value:,.0f} W"


def _watt_hours(value: float) -> str:
    return f"{three_digits(value)} Wh" if value >= 0.1 else f"{value * 1000:.3g} mWh"


def _celsius(value: float | None) -> str:
    return "" if value is None or not is_known(value) else f"{value:.0f} C"


def _megahertz(value: float | None) -> str | None:
    return None if value is None or not is_known(value) else f"{value:,.0f} MHz"


def _worded(name: str) -> str:
    return name.replace("_", " ")
