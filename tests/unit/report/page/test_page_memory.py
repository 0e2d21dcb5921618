"""What is said of memory that grows, and of memory that is nearly full."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import summaries

from trainprof.analysis.summary.memory import MemoryGrowth
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report import markdown
from trainprof.report.page import page as terminal

GIB = 1 << 30
GROWN = MemoryGrowth(
    bytes_per_step=2.0 * (1 << 20),
    steps=1024,
    first_bytes=1.0 * GIB,
    last_bytes=3.0 * GIB,
    room_bytes=8.1 * GIB,
    passes=2,
)


def page(grown: MemoryGrowth | None) -> str:
    return written(replace(summaries.healthy(), memory_growth=grown))


def written(summary: RunSummary) -> str:
    text = terminal.render(summary, width=80, color=False)
    assert all(len(line) <= 80 for line in text.splitlines())
    return " ".join(text.split())


def test_how_fast_how_long_and_what_to_look_for() -> None:
    told = page(GROWN)
    assert "Memory the training process grew by 2.00 MiB a step, from 1.00 GiB to 3.00 GiB" in told
    assert "the 8.10 GiB left would last some 4,100 more steps" in told
    assert "loss.item()" in told
    assert "read in once" not in told


def test_in_the_first_pass_it_may_be_data_that_is_read_in() -> None:
    assert "or data that is read in once" in page(replace(GROWN, passes=1))


@pytest.mark.parametrize("room", [None, 1e18])
def test_an_end_that_is_unknown_or_far_off_is_not_told(room: float | None) -> None:
    assert "would last" not in page(replace(GROWN, room_bytes=room))


def test_nothing_where_nothing_grows() -> None:
    assert "Memory" not in page(None)


def test_in_markdown() -> None:
    summary = replace(summaries.healthy(), memory_growth=GROWN)
    assert "The training process grew by 2.00 MiB a step" in markdown.render(summary)
    assert "grew by" not in markdown.render(summaries.healthy())


def with_memory(**figures: object) -> RunSummary:
    return replace(summaries.healthy(), system=summaries.system(memory=figures))


def test_shared_memory_that_is_nearly_full() -> None:
    told = written(with_memory(shm_total_bytes=64 << 20, shm_used_bytes={"max": 60 << 20}))
    assert "94 % of the 64.0 MiB of shared memory (/dev/shm) were taken" in told
    assert "--shm-size" in told
    assert "/dev/shm" not in written(
        with_memory(shm_total_bytes=64 << 20, shm_used_bytes={"max": 30 << 20})
    )


def test_memory_that_is_nearly_taken() -> None:
    full = written(with_memory(host_total_bytes=8 * GIB, host_available_bytes={"min": 0.1 * GIB}))
    assert "102 MiB of the machine's 8.00 GiB of memory were left" in full


def test_memory_that_suffices_is_not_told() -> None:
    figures = {"host_total_bytes": 8 * GIB, "host_available_bytes": {"min": 1 * GIB}}
    assert "Memory" not in written(with_memory(**figures))
