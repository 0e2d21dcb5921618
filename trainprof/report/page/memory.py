"""Memory of the host and of devices: what grows, what was nearly full, every figure of a device."""

from __future__ import annotations

from typing import Final

from rich.text import Text

from trainprof.analysis.summary.device import (
    CopiedPages,
    Device,
    DeviceMemory,
    MemoryGrowth,
    OutOfMemory,
)
from trainprof.analysis.summary.levels import number_at
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report.text.layout import Page
from trainprof.report.text.units import byte_count, counted, percent, seconds, share_of

# More steps than that are nobody's worry.
_FAR_OFF: Final = 10_000_000
# Of the file system that workers hand their batches over in: a larger batch, and they die.
_SHM_FULL_SHARE: Final = 0.8
# Of the machine's.
_LEAST_FREE_SHARE: Final = 0.03
# From here on of what the process may take, its peak is worth a line on the short page.
_NEAR_THE_LIMIT: Final = 0.9
_LABEL: Final = "GPU memory"
_DEVICE_CELLS: Final = 16


def memory_section(summary: RunSummary, page: Page) -> list[Text]:
    """Returns a sentence for each thing, none where memory is nobody's worry."""
    return [x for words in memory_sentences(summary) for x in page.labelled("Memory", words)]


def memory_sentences(summary: RunSummary) -> list[list[str]]:
    """Returns what is to be known of memory, each in fragments of a sentence."""
    grown = summary.memory_growth
    growing = [] if grown is None else _growing(grown)
    copied = [] if summary.copied_pages is None else _copying(summary.copied_pages)
    sentences = [growing, copied, _shared_memory(summary), _short_of_memory(summary)]
    return [sentence for sentence in sentences if sentence]


def _growing(grown: MemoryGrowth) -> list[str]:
    left, lasts = grown.steps_left, ""
    if left is not None and grown.room_bytes is not None and left <= _FAR_OFF:
        about = counted(int(float(f"{left:.2g}")), "more step")
        lasts = f"the {byte_count(grown.room_bytes)} left would last some {about}"
    return [
        f"the training process grew by {byte_count(grown.bytes_per_step)} a step",
        f"from {byte_count(grown.first_bytes)} to {byte_count(grown.last_bytes)} in "
        f"{counted(grown.steps, 'step')}",
        lasts,
        "something is kept at every step: a list that is only added to, losses or outputs with "
        "their graph (keep loss.item() or x.detach())"
        + ("" if grown.passes > 1 else ", or data that is read in once"),
    ]


def _copying(copied: CopiedPages) -> list[str]:
    who = counted(copied.workers, "loader worker")
    each = " each" if copied.workers > 1 else ""
    held = f"the dataset's {' and '.join(copied.python_objects)}"
    return [
        f"{who} of {copied.site} grew from {byte_count(copied.first_bytes)} to "
        f"{byte_count(copied.last_bytes)}{each} (private) in {seconds(copied.seconds)}",
        "they copy the memory of the Python objects that they read, as reference counts change",
        f"keep {held if copied.python_objects else 'large data'} in a NumPy array, a tensor or "
        "pyarrow, which stay shared",
    ]


def _shared_memory(summary: RunSummary) -> list[str]:
    memory = summary.system.memory if summary.system else {}
    used, total = number_at(memory, "shm_used_bytes", "max"), number_at(memory, "shm_total_bytes")
    if used is None or not total or used < _SHM_FULL_SHARE * total:
        return []
    return [
        f"{percent(used / total)} of the {byte_count(total)} of shared memory (/dev/shm) were "
        "taken",
        "workers hand batches over in it and die when it is full: give it more (docker run "
        "--shm-size=8g), or have fewer batches ahead",
    ]


def _short_of_memory(summary: RunSummary) -> list[str]:
    """Says that the machine's memory was all but taken; what files have of it can be given back."""
    memory = summary.system.memory if summary.system else {}
    total = number_at(memory, "host_total_bytes")
    free = number_at(memory, "host_available_bytes", "min")
    if not total or free is None or free >= _LEAST_FREE_SHARE * total:
        return []
    return [
        f"{byte_count(free)} of the machine's {byte_count(total)} of memory were left",
        "when none is, the kernel ends a process",
    ]


def device_memory_section(summary: RunSummary, page: Page) -> list[Text]:
    """A line for each device whose memory nearly ran out, grew, or had to be given back."""
    rows = []
    for device in summary.devices or ():
        words = [] if device.memory is None else _what_matters(device.memory)
        if words:
            rows.append([f"{page.shortened(device.name, _DEVICE_CELLS)} {words[0]}", *words[1:]])
    return page.labelled_rows(_LABEL, rows)


def device_memory_details(summary: RunSummary, page: Page) -> list[Text]:
    """Every figure of every device."""
    devices = summary.devices or ()
    rows = [_every_figure(device, device.memory) for device in devices if device.memory]
    return page.labelled_rows(_LABEL, rows)


def ran_out(lack: OutOfMemory) -> str:
    """Returns in what state a device ran out of memory, as a sentence."""
    where = "" if lack.site is None else f" at {lack.site}"
    asked = "more" if lack.requested_bytes is None else f"{byte_count(lack.requested_bytes)} more"
    fragments = [f"{lack.device or 'The device'} ran out of memory{where}: {asked} was asked for"]
    if lack.free_bytes is not None:
        of = "" if lack.total_bytes is None else f" of {byte_count(lack.total_bytes)}"
        fragments.append(f"{byte_count(lack.free_bytes)}{of} was free")
    if lack.allocated_bytes is not None:
        fragments.append(f"this process's tensors held {byte_count(lack.allocated_bytes)}")
    if lack.kept_bytes is not None:
        fragments.append(f"torch kept {byte_count(lack.kept_bytes)} besides that was in no tensor")
    return f"{', '.join(fragments)}."


def _what_matters(memory: DeviceMemory) -> list[str]:
    share = share_of(memory.peak_reserved_bytes, memory.limit_bytes)
    is_near = share is not None and share >= _NEAR_THE_LIMIT
    words = [_reserved(memory) if is_near else "", _growth(memory) if memory.is_growing else ""]
    return [word for word in (*words, *_failures(memory)) if word]


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
    return [*words, *_failures(memory)]


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


def _failures(memory: DeviceMemory) -> list[str]:
    words = []
    if memory.retries:
        retried = counted(memory.retries, "allocation")
        words.append(f"{retried} succeeded only after torch gave back what it kept")
    if memory.out_of_memory_errors:
        words.append(counted(memory.out_of_memory_errors, "out-of-memory error"))
    return words
