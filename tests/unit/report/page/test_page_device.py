"""The table of why a GPU was idle, and what copies cost it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import summaries

from trainprof.analysis.summary.device import Device, Placement, SyncPoint, Transfer
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report import markdown
from trainprof.report.page import page as terminal
from trainprof.report.page.device import IDLE_TITLE, idle_table

MIB = 1 << 20
IDLE = {
    "loader_s": 40.0,
    "copy_s": 10.0,
    "sync_s": 0.1,
    "host_s": 5.0,
    "evaluation_s": 0.0,
    "checkpoint_s": 0.2,
    "startup_s": 0.0,
    "unknown_s": 4.7,
}


def device(idle: dict[str, float] | None = None, low: float = 0.4, **changes: object) -> Device:
    told = Device(
        index=0,
        name="cuda:0",
        busy_share=[low, low + 0.047],
        idle_because=IDLE if idle is None else idle,
        per_step_s={"forward": 0.01},
        queue_delay_s=[0.001, 0.002],
        memory=None,
        marks=1000,
        seconds={"forward": 20.0, "backward": 30.0, "transfer": 8.0},
        exposed_s={"data_wait": [40.0, 41.0]},
        ran_dry={"forward": 0.9},
        launch_bound_share=[0.05, 0.1],
    )
    return replace(told, **changes)  # type: ignore[arg-type]


def summary(*devices: Device, **changes: object) -> RunSummary:
    base = summaries.accelerator()
    return replace(base, devices=list(devices), **changes)  # type: ignore[arg-type]


def page(found: RunSummary, width: int = 120, *, verbose: bool = False) -> str:
    return terminal.render(found, width=width, color=False, verbose=verbose)


def table(text: str) -> list[str]:
    return next(one for one in text.split("\n\n") if one.startswith(IDLE_TITLE)).split("\n")


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_the_rows_add_up_to_the_training_phase(width: int) -> None:
    _, *rows, total = table(page(summary(device()), width))
    assert total.split()[-2:] == ["100.0", "%"]
    assert sum(float(row.split()[-2]) for row in rows) == pytest.approx(100.0)
    assert rows[0].split()[:3] == ["waiting", "for", "data"]
    assert rows[0].split()[-2:] == ["40.0", "%"]
    assert rows[-1].startswith("(surely at work)")
    if width > 40:
        assert sum(float(row.split()[-3]) for row in rows) == pytest.approx(100.0)  # 60 s idle
    assert [row.split()[0] for row in rows].count("other") == 1


def test_what_is_small_has_a_row_of_its_own_on_the_verbose_page() -> None:
    text = page(summary(device()), verbose=True)
    assert any(row.startswith("checkpoints") for row in table(text))
    flowing = " ".join(text.split())
    assert "nothing left to do at the end of: forward 90 %" in flowing
    assert "had run dry while the host was in: data wait 40.0 s to 41.0 s" in flowing
    assert "idle between launches in 5 % to 10 % of training" in flowing


def test_several_devices_have_a_column_each() -> None:
    other = device({**IDLE, "loader_s": 20.0, "host_s": 25.0}, name="cuda:1")
    heading, *_ = table(page(summary(device(), other)))
    assert heading.split()[-2:] == ["cuda:0", "cuda:1"]


@pytest.mark.parametrize(
    "odd",
    [
        device({}),
        device(busy_share=[]),
        device({"loader_s": float("nan")}),
        device(low=1.0),
        device(low=float("nan")),
        replace(device(), idle_because=None),
    ],
)
def test_what_cannot_be_has_no_table(odd: Device) -> None:
    assert idle_table(summary(odd)) is None
    assert "cuda:0" in page(summary(odd))


def test_the_ledger_has_the_devices_time_beside_the_hosts() -> None:
    text = page(summary(device()))
    heading = next(line for line in text.split("\n") if line.startswith("Where the time went"))
    assert heading.endswith("s on device")
    (row,) = (line for line in text.split("\n") if line.strip().startswith("backward "))
    assert row.split()[-1] == "30.0"
    assert "on device" not in page(summaries.accelerator())
    assert "| s on the device |" in markdown.render(summary(device()))


def copies(**changes: object) -> RunSummary:
    one = Transfer("train.py:57", "h2d", 100, 100 * MIB, 1.0, 0.5, 0.21, 0.0, 0.0, 100, 0.4, 0.0)
    return summary(device(), transfers=[replace(one, **changes)])  # type: ignore[arg-type]


def test_a_copy_says_what_it_cost_the_device() -> None:
    text = page(copies(), verbose=True)
    assert "0.21 GB/s" in text
    assert "500 ms on the device" in text
    assert "which did nothing else for 400 ms" in text
    assert "beside other work" not in text
    assert "50 % of them beside other work" in page(copies(beside_share=0.5), verbose=True)


def test_many_small_copies_are_noticed_and_their_rate_is_not_told() -> None:
    text = " ".join(page(copies(count=100_000), verbose=True).split())
    assert "many small ones: 50 a step of 1.02 KiB" in text
    assert "GB/s" not in text
    assert "many small ones" not in page(copies(), verbose=True)


def test_non_blocking_from_pageable_memory_is_noticed() -> None:
    text = " ".join(page(copies(non_blocking_share=1.0), verbose=True).split())
    assert "non_blocking from memory that is not pinned" in text
    for fine in (copies(non_blocking_share=1.0, pinned_share=1.0), copies()):
        assert "non_blocking from" not in " ".join(page(fine, verbose=True).split())


def test_models_that_were_moved_are_apart() -> None:
    found = summary(device(), placements=[Placement("train.py:30", 1, 1.5)])
    assert "Models     moved or converted: train.py:30 1 time, 1.50 s" in page(found, verbose=True)


def test_a_sync_in_which_the_device_worked_says_so() -> None:
    found = summary(device(), sync_points=[SyncPoint("a.py:1", "item", 9, 0, 5.0, 0.01)])
    assert "5.00 s, the device worked meanwhile" in page(found, verbose=True)
    found = summary(device(), sync_points=[SyncPoint("a.py:1", "item", 9, 0, 5.0, 2.0)])
    assert "for 2.00 s of that the device had nothing to do" in page(found, verbose=True)


def test_what_the_headline_names_does_not_give_way() -> None:
    base = replace(copies(), sync_points=[SyncPoint("a.py:1", "item", 9, 0, 5.0, 2.0)])
    for bottleneck, label in (("transfer", "Transfers"), ("sync", "Syncs")):
        verdict = replace(base.verdict, bottleneck=bottleneck)
        assert f"\n{label}" in page(replace(base, verdict=verdict), 80)
