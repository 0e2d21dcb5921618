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

# Memory that lasts for more steps needs no warning.
_FAR_OFF: Final = 10_000_000
# Of the file system for shared memory: a larger batch, and workers die.
_SHM_FULL_SHARE: Final = 0.8
# Of the machine's.
_LEAST_FREE_SHARE: Final = 0.03
# From here on of what the process may take, its peak is worth a line on the short page.
_NEAR_THE_LIMIT: Final = 0.9
_LABEL: Final = "GPU memory"


def memory_section(summary: RunSummary, page: Page) -> list[Text]:
    """Returns all sentences on each thing, none where memory needs no warning."""
    return [
        line
        for words in memory_sentences(summary)
        for line in page.labelled("Memory", words, separator=" ")
    ]


def memory_sentences(summary: RunSummary) -> list[list[str]]:
    """Returns sentences on each thing to know of memory, what matters most first."""
    grown = summary.memory_growth
    growing = [] if grown is None else _growing(grown)
    copied = [] if summary.copied_pages is None else _copying(summary.copied_pages)
    sentences = [growing, copied, _shared_memory(summary), _short_of_memory(summary)]
    return [sentence for sentence in sentences if sentence]


def _growing(grown: MemoryGrowth) -> list[str]:
    left, lasts = grown.steps_left, ""
    if left is not None and grown.room_bytes is not None and left <= _FAR_OFF:
        about = counted(int(float(f"{left:.2g}")), "more step")
        lasts = f"The {byte_count(grown.room_bytes)} left last about {about}."
    read_once = "" if grown.passes > 1 else " Data that is read once may also be the reason."
    return [
        f"Memory grew {byte_count(grown.bytes_per_step)} a step, to {byte_count(grown.last_bytes)}:"
        " keep loss.item() or x.detach(), not tensors with their graph.",
        f"It was {byte_count(grown.first_bytes)} {counted(grown.steps, 'step')} before.",
        f"{lasts}{read_once}".strip(),
    ]


def _copying(copied: CopiedPages) -> list[str]:
    who = counted(copied.workers, "loader worker")
    each = " each" if copied.workers > 1 else ""
    objects = " and ".join(copied.python_objects)
    held = f"the dataset's {objects}" if objects else "large data"
    return [
        f"{who} at {copied.site} grew from {byte_count(copied.first_bytes)} to "
        f"{byte_count(copied.last_bytes)}{each}: they copy the dataset's Python objects.",
        f"That took {seconds(copied.seconds)}: reading an object changes its reference count.",
        f"Keep {held} in a NumPy array, a tensor or pyarrow: those stay shared.",
    ]


def _shared_memory(summary: RunSummary) -> list[str]:
    memory = summary.system.memory if summary.system else {}
    used, total = number_at(memory, "shm_used_bytes", "max"), number_at(memory, "shm_total_bytes")
    if used is None or not total or used < _SHM_FULL_SHARE * total:
        return []
    return [
        f"Shared memory (/dev/shm, {byte_count(total)}) was {percent(used / total)} full. Workers "
        "die when it is full.",
        "Enlarge it (docker run --shm-size=8g) or lower prefetch_factor.",
    ]


def _short_of_memory(summary: RunSummary) -> list[str]:
    """Returns that the machine's memory was nearly full; file caches count as free."""
    memory = summary.system.memory if summary.system else {}
    total = number_at(memory, "host_total_bytes")
    free = number_at(memory, "host_available_bytes", "min")
    if not total or free is None or free >= _LEAST_FREE_SHARE * total:
        return []
    left = f"Only {byte_count(free)} of {byte_count(total)} of memory were free."
    return [left, "When none is left, the kernel kills a process."]


def device_memory_sentences(summary: RunSummary) -> list[str]:
    """Returns a sentence for each device whose memory nearly ran out, grew, or was returned."""
    sentences = []
    for device in summary.devices or ():
        words = [] if device.memory is None else _what_matters(device.memory)
        if words:
            sentences.append(f"Memory of {device.name}: {', '.join(words)}.")
    return sentences


def device_memory_details(summary: RunSummary, page: Page) -> list[Text]:
    """Every figure of every device."""
    devices = summary.devices or ()
    rows = [_every_figure(device, device.memory) for device in devices if device.memory]
    return page.labelled_rows(_LABEL, rows)


def ran_out(lack: OutOfMemory) -> str:
    """Returns in what state a device ran out of memory, as sentences."""
    where = "" if lack.site is None else f" at {lack.site}"
    asked_bytes = lack.requested_bytes
    asked = "" if asked_bytes is None else f", asked for {byte_count(asked_bytes)}"
    sentences = [f"{lack.device or 'The device'} ran out of memory{where}{asked}."]
    held = []
    if lack.allocated_bytes is not None:
        held.append(f"Your tensors held {byte_count(lack.allocated_bytes)}")
    if lack.kept_bytes is not None:
        held.append(f"torch cached {byte_count(lack.kept_bytes)}")
    if lack.free_bytes is not None:
        of = "" if lack.total_bytes is None else f" of {byte_count(lack.total_bytes)}"
        held.append(f"{byte_count(lack.free_bytes)}{of} was free")
    sentences += [f"{', '.join(held)}."] if held else []
    return " ".join(sentences)


def _what_matters(memory: DeviceMemory) -> list[str]:
    share = share_of(memory.peak_reserved_bytes, memory.limit_bytes)
    is_near = share is not None and share >= _NEAR_THE_LIMIT
    words = [_reserved(memory) if is_near else "", _growth(memory) if memory.is_growing else ""]
    return [word for word in (*words, *_failures(memory)) if word]


def _every_figure(device: Device, memory: DeviceMemory) -> list[str]:
    at_least = "at least " if memory.is_peak_sampled else ""
    words = [
        f"{device.name} allocated peak {at_least}{byte_count(memory.peak_allocated_bytes)}",
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
        return f"reserved peak {peak}"
    return f"reserved peak {peak} of {byte_count(memory.limit_bytes)} ({percent(share)})"


def _growth(memory: DeviceMemory) -> str:
    return (
        f"grew {byte_count(memory.growth_bytes_per_step)} a step "
        f"over {counted(memory.growth_steps or 0, 'step')}"
    )


def _failures(memory: DeviceMemory) -> list[str]:
    words = []
    if memory.retries:
        retried = counted(memory.retries, "allocation")
        words.append(f"{retried} succeeded only after torch freed its cache")
    if memory.out_of_memory_errors:
        words.append(counted(memory.out_of_memory_errors, "out-of-memory error"))
    return words
