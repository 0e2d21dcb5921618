"""Devices' memory: on the short page only what matters, on the verbose one all that is known."""

from __future__ import annotations

from typing import Final

from rich.text import Text

from trainprof.analysis.summary.device import Device
from trainprof.analysis.summary.memory import DeviceMemory, OutOfMemory
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report.text.layout import Page
from trainprof.report.text.units import (
    byte_count,
    count,
    counted,
    percent,
    share_of,
)

# From here on of what the process may take, its peak is worth a line on the short page.
NEAR_THE_LIMIT: Final = 0.9
_LABEL: Final = "GPU memory"
_DEVICE_CELLS: Final = 16


def device_memory_section(summary: RunSummary, page: Page) -> list[Text]:
    """A line for each device whose memory nearly ran out, grew, or had to be given back."""
    told = []
    for device in summary.devices or ():
        words = [] if device.memory is None else _what_matters(device.memory)
        if words:
            told.append([f"{page.shortened(device.name, _DEVICE_CELLS)} {words[0]}", *words[1:]])
    return _labelled(told, page)


def device_memory_details(summary: RunSummary, page: Page) -> list[Text]:
    """Every figure of every device."""
    told = [
        _every_figure(device, device.memory)
        for device in summary.devices or ()
        if device.memory is not None
    ]
    return _labelled(told, page)


def ran_out(lack: OutOfMemory) -> str:
    """Returns in what state a device ran out of memory, as a sentence."""
    where = "" if lack.site is None else f" at {lack.site}"
    asked = "more" if lack.requested_bytes is None else f"{byte_count(lack.requested_bytes)} more"
    told = [f"{lack.device or 'The device'} ran out of memory{where}: {asked} was asked for"]
    if lack.free_bytes is not None:
        of = "" if lack.total_bytes is None else f" of {byte_count(lack.total_bytes)}"
        told.append(f"{byte_count(lack.free_bytes)}{of} was free")
    if lack.allocated_bytes is not None:
        told.append(f"this process's tensors held {byte_count(lack.allocated_bytes)}")
    if lack.kept_bytes is not None:
        told.append(f"torch kept {byte_count(lack.kept_bytes)} besides that was in no tensor")
    return f"{', '.join(told)}."


def _labelled(told: list[list[str]], page: Page) -> list[Text]:
    return [
        line
        for number, words in enumerate(told)
        for line in page.labelled("" if number else _LABEL, words)
    ]


def _what_matters(memory: DeviceMemory) -> list[str]:
    share = share_of(memory.peak_reserved_bytes, memory.limit_bytes)
    is_near = share is not None and share >= NEAR_THE_LIMIT
    words = [_reserved(memory) if is_near else "", _growth(memory) if memory.is_growing else ""]
    if memory.retries:
        words.append(_retries(memory.retries))
    if memory.out_of_memory_errors:
        words.append(_errors(memory.out_of_memory_errors))
    return [word for word in words if word]


def _every_figure(device: Device, memory: DeviceMemory) -> list[str]:
    at_least = "at least " if memory.is_peak_sampled else ""
    words = [
        f"{device.name} peak in tensors {at_least}{byte_count(memory.peak_allocated_bytes)}",
        "" if memory.peak_reserved_bytes is None else _reserved(memory),
    ]
    if memory.between_steps_bytes is not None:
        words.append(f"between steps {byte_count(memory.between_steps_bytes)}")
    if memory.is_growing is not None:
        steps = counted(memory.growth_steps or 0, "step")
        words.append(_growth(memory) if memory.is_growing else f"no growth over {steps}")
    words.append(_retries(memory.retries) if memory.retries else "")
    words.append(_errors(memory.out_of_memory_errors) if memory.out_of_memory_errors else "")
    return words


def _reserved(memory: DeviceMemory) -> str:
    at_least = "at least " if memory.is_peak_sampled else ""
    peak = f"{at_least}{byte_count(memory.peak_reserved_bytes)}"
    share = share_of(memory.peak_reserved_bytes, memory.limit_bytes)
    if share is None:
        return f"peak taken by torch {peak}"
    return f"peak taken by torch {peak} of {byte_count(memory.limit_bytes)} ({percent(share)})"


def _growth(memory: DeviceMemory) -> str:
    return (
        f"grew {byte_count(memory.growth_bytes_per_step)} a step "
        f"over {counted(memory.growth_steps or 0, 'step')}"
    )


def _retries(retries: int) -> str:
    return f"{counted(retries, 'allocation')} succeeded only after torch gave back what it kept"


def _errors(errors: int) -> str:
    return f"{count(errors)} out-of-memory {'error' if errors == 1 else 'errors'}"
