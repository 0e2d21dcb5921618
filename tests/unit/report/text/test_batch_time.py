"""What a batch takes: parts that add up, and words that claim no more than was measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support import summaries

from trainprof.analysis.summary.loader import Fetch
from trainprof.report.text.batch_time import (
    BatchGroup,
    BatchPart,
    batch_bars,
    code_parts,
    making_parts,
    waiting_parts,
)
from trainprof.report.text.layout import Page


def fetch(**changes: object) -> Fetch:
    """The making of 100 batches of 200 ms, a bit of everything."""
    made = summaries.fetch(
        0.2, 100, workers=2, running=0.5, runnable=0.2, throttled=0.1, reading=0.15, asleep=0.05
    )
    return replace(made, **changes)


def test_the_words_claim_no_more_than_was_measured(gallery):
    variants: dict[str, dict[str, Any]] = {
        "all is known": {},
        "nothing was read": {"read_bytes": 0},
        "bytes are not known": {"read_bytes": None},
        "reading is not known": {"reading_s": None},
        "reading is not known, nothing was read": {"reading_s": None, "read_bytes": 0},
        "run queue is not known": {"runnable_s": None, "throttled_s": None},
        "others hardly ran": {"running_s": 2.0, "asleep_s": 10.0, "cpu_s": 3.9},
        "others ran": {"running_s": 2.0, "asleep_s": 10.0, "cpu_s": 4.1},
    }
    gallery(
        "batch_parts.txt",
        {
            title: [f"{part.name}: {part.words}" for part in making_parts(fetch(**changes))]
            for title, changes in variants.items()
        },
    )


def test_the_parts_of_a_batch_add_up_to_it():
    parts = making_parts(fetch())
    assert sum(part.seconds for part in parts) == pytest.approx(0.2)
    assert sum(part.share for part in parts) == pytest.approx(1.0)
    assert sum(part.seconds for part in code_parts(fetch())) == pytest.approx(0.2)


@pytest.mark.parametrize("nothing", [None, float("nan"), -1.0])
def test_a_part_that_is_not_known_is_left_out(nothing):
    assert [part.name for part in making_parts(fetch(running_s=nothing, asleep_s=nothing))] == [
        "runnable",
        "throttled",
        "reading",
    ]
    unknown = dict.fromkeys(("dataset_s", "collate_s"), nothing)
    assert code_parts(fetch(**unknown)) == []


def test_training_waits_for_a_batch_in_parts():
    starved, alone = summaries.starved().loaders[0], summaries.slow_loader().loaders[0]
    apart = replace(starved, receive_s=1.61, receive_cpu_s=0.4)
    for loader, names, whole_s in (
        (starved, ["blocked", "receive", "sampler", "rest"], 0.0769),
        (apart, ["blocked", "receive", "handover", "sampler", "rest"], 0.0769),
        (alone, ["making", "sampler", "rest"], (248 * 0.187 + 2 * 0.214) / 250),
        (replace(alone, wait_s=None), [], 0.0),
    ):
        parts = {part.name: part.seconds for part in waiting_parts(loader)}
        assert list(parts) == names
        assert sum(parts.values()) == pytest.approx(whole_s)
        if loader is apart:
            assert parts["handover"] / parts["receive"] == pytest.approx(1.21 / 0.4)


def test_without_workers_no_part_is_more_than_the_wait():
    """Later batches wait less than the mean of preparing one, which first ones are in."""
    loader = summaries.slow_loader().loaders[0]
    assert loader.wait_s
    assert loader.fetch
    later, first, made = (
        replace(loader.wait_s, n=n, mean=mean_s)
        for n, mean_s in ((14, 0.0935), (2, 0.157), (16, 0.1))
    )
    loader = replace(loader, wait_s=later, first_batch_s=first, sampler_s=0.0)
    for took, names in ((made, ["making", "sampler", "rest"]), (first, ["sampler", "rest"])):
        fetched = replace(loader, fetch=replace(loader.fetch, wall_s=took))
        parts = {part.name: part.share for part in waiting_parts(fetched)}
        assert list(parts) == names
        assert sum(parts.values()) == pytest.approx(1.0)
        if took is made:
            assert parts["making"] == pytest.approx(16 * 0.1 / (14 * 0.0935 + 2 * 0.157))


def part(name: str, seconds: float, share: float) -> BatchPart:
    return BatchPart(name, name, seconds, share)


def test_bars_add_up_as_they_are_printed_each_group_in_its_own_unit():
    thirds = [part(name, 0.01 / 3, 1 / 3) for name in ("a", "b", "c")]
    groups = [BatchGroup("a batch", thirds), BatchGroup("made", [part("x", 42.0, 1.0)])]
    whole, *rows = (line.plain for line in batch_bars(groups, Page()))
    cells = [row.split()[-4:] for row in rows[:3]]
    assert [unit for _, unit, _, _ in cells] == ["ms"] * 3
    assert sum(int(ms.replace(".", "")) for ms, *_ in cells) == 100
    assert sum(int(share.replace(".", "")) for *_, share, _ in cells) == 1000
    assert whole.split()[-2:] == ["10.0", "ms"]
    assert rows[-1].endswith(" 42.0 s  100.0 %")


def test_a_narrow_page_has_words_for_bars():
    lines = batch_bars([BatchGroup("", [part("x", 0.1, 1.0)])], Page(24))
    assert [line.plain for line in lines] == ["  x: 100.0 ms, 100.0 %"]
