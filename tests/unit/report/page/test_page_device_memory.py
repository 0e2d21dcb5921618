"""Devices' memory and found syncs on the page: what matters on the short one, all on the other."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from support import summaries
from support.fake_memory import GIB, MIB

from trainprof.analysis.summary.device import Device
from trainprof.analysis.summary.memory import DeviceMemory, FoundSync, FoundSyncs, OutOfMemory
from trainprof.analysis.summary.run import Exit
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report import markdown
from trainprof.report.page import page as terminal


def memory(**changes: Any) -> DeviceMemory:
    """One of which nothing has to be said."""
    plain = DeviceMemory(
        readings=840,
        limit_bytes=80 * GIB,
        peak_allocated_bytes=40 * GIB,
        peak_reserved_bytes=50 * GIB,
        is_peak_sampled=False,
        retries=0,
        out_of_memory_errors=0,
        between_steps_bytes=12 * GIB,
        growth_bytes_per_step=-3.0,
        growth_steps=400,
        is_growing=False,
    )
    return replace(plain, **changes)


def with_devices(*memories: DeviceMemory | None) -> RunSummary:
    rows = [
        Device(index, f"cuda:{index}", [0.5, 0.6], None, {}, None, one, 100)
        for index, one in enumerate(memories)
    ]
    return replace(summaries.accelerator(), devices=rows)


def section(summary: RunSummary, label: str, *, verbose: bool = False) -> str:
    """The lines of one section as one, without the label."""
    page = terminal.render(summary, width=80, color=False, verbose=verbose).splitlines()
    first = next((number for number, line in enumerate(page) if line.startswith(label)), None)
    if first is None:
        return ""
    rest = itertools.takewhile(lambda line: line.startswith(" " * 11), page[first + 1 :])
    return " ".join(" ".join([page[first], *rest]).split())


def test_memory_that_suffices_has_no_line() -> None:
    summary = with_devices(memory(), None)
    assert section(summary, "GPU memory") == ""


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"peak_reserved_bytes": 76 * GIB},
            "cuda:0 peak taken by torch 76.0 GiB of 80.0 GiB (95 %)",
        ),
        (
            {"is_growing": True, "growth_bytes_per_step": 2.0 * MIB},
            "cuda:0 grew 2.00 MiB a step over 400 steps",
        ),
        ({"retries": 1}, "cuda:0 1 allocation succeeded only after torch gave back what it kept"),
        ({"out_of_memory_errors": 2}, "cuda:0 2 out-of-memory errors"),
    ],
)
def test_what_matters_has_one(changes: dict[str, Any], words: str) -> None:
    assert section(with_devices(memory(**changes)), "GPU memory") == f"GPU memory {words}"


@pytest.mark.parametrize(
    ("memory_told", "words"),
    [
        (
            memory(),
            "peak in tensors 40.0 GiB, peak taken by torch 50.0 GiB of 80.0 GiB (62 %), between "
            "steps 12.0 GiB, no growth over 400 steps",
        ),
        (
            memory(
                is_peak_sampled=True, limit_bytes=None, between_steps_bytes=None, is_growing=None
            ),
            "peak in tensors at least 40.0 GiB, peak taken by torch at least 50.0 GiB",
        ),
    ],
)
def test_the_verbose_page_tells_all(memory_told: DeviceMemory, words: str) -> None:
    told = section(with_devices(memory_told), "GPU memory", verbose=True)
    assert told == f"GPU memory cuda:0 {words}"


LACK = OutOfMemory("cuda:1", "train.py:42", 2 * GIB, 80 * GIB, 5 * MIB, 77 * GIB, GIB)


@pytest.mark.parametrize("render", [terminal.render, markdown.render])
def test_how_a_device_ran_out_is_said_with_the_end(render: Any) -> None:
    base = summaries.accelerator()
    run = replace(base.run, exit=Exit(1, None, "exception", "OutOfMemoryError"))
    summary = replace(base, run=run, out_of_memory=LACK)
    how = {"width": 80, "color": False} if render is terminal.render else {}
    page = " ".join(render(summary, **how).split())
    assert "ended with OutOfMemoryError" in page
    assert (
        "cuda:1 ran out of memory at train.py:42: 2.00 GiB more was asked for, 5.00 MiB of 80.0 "
        "GiB was free, this process's tensors held 77.0 GiB, torch kept 1.00 GiB besides that was "
        "in no tensor." in page
    )
    assert "Memory at the last sample" not in page  # that is the host's


def test_of_an_error_without_figures_no_figure_is_said() -> None:
    lack = OutOfMemory(None, None, None, None, None, None, None)
    page = terminal.render(
        replace(summaries.accelerator(), out_of_memory=lack), width=80, color=False
    )
    assert "  The device ran out of memory: more was asked for.\n" in page


# --find-syncs


def with_found(found: FoundSyncs | None, reason: str | None = None) -> RunSummary:
    missing = {} if reason is None else {"found_syncs": reason}
    return replace(summaries.accelerator(), found_syncs=found, not_observed=missing)


def test_places_that_wait_in_native_code() -> None:
    calls = [FoundSync(f"train.py:{line}", 20 - line) for line in range(5)]
    summary = with_found(FoundSyncs(20, 20, calls, known_calls=40))
    assert section(summary, "Find syncs") == (
        "Find syncs in steps 21 to 40, train.py:0 20 waits in C++, train.py:1 19 waits in C++, "
        "train.py:2 18 waits in C++, 2 more lines, and 40 by calls that Syncs and Transfers tell of"
    )
    assert "train.py:4 16 waits in C++" in section(summary, "Find syncs", verbose=True)


def test_where_none_waits_it_says_so() -> None:
    told = section(with_found(FoundSyncs(20, 20, [], 0)), "Find syncs")
    assert told == "Find syncs in steps 21 to 40, no wait inside C++ code"


def test_where_it_cannot_look_it_says_why() -> None:
    told = section(with_found(None, "this torch knows no device but the CPU"), "Find syncs")
    assert told == "Find syncs n/a: this torch knows no device but the CPU"
    assert section(with_found(None), "Find syncs") == ""
