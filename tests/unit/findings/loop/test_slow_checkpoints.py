"""Checkpoints that hold training up, and what comes with them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.cases import case_of, healthy, with_summary
from support.findings import Row, hot_line, is_silent, reports, row

from trainprof.analysis.timeline.checkpoints import Checkpoints
from trainprof.findings.diagnose import diagnose
from trainprof.findings.run_context import RunContext
from trainprof.record.schema import Writer

PLAIN = Checkpoints(saves=4, save_s=0.8, saved_bytes=3 << 20, site="train.py:70")


def saved(**changes: Any) -> Row:
    context = case_of(steady_steps=100, parts={"checkpoint": 0.8})
    calls = replace(PLAIN, **changes)
    return row(replace(context, checkpoints=calls), calls.site, saved_s=0.8, is_at_most=True)


test_slow_checkpoints = reports(
    "slow_checkpoints",
    {
        "saves": saved(),
        "a save and loads": saved(saves=1, loads=2, load_s=0.4, saved_bytes=None),
        "loads": saved(saves=0, save_s=0.0, loads=2, load_s=0.8, site=None),
        "two writers": saved(writers=(Writer.SAFETENSORS, Writer.TORCH)),
        "by a Trainer": saved(writers=(Writer.TRANSFORMERS,)),
        "by Lightning": saved(writers=(Writer.LIGHTNING,)),
        "by accelerate": saved(writers=(Writer.ACCELERATE,)),
    },
)
test_little = is_silent("slow_checkpoints", {"little": healthy(parts={"checkpoint": 0.05})})


def with_saves(saves: tuple[float, float], python: tuple[float, float], line: str) -> RunContext:
    """Half a second each of saving and of Python at a line, with shares of the halves' steps."""
    halves = {"checkpoint": saves, "other": python}
    context = healthy(parts={"checkpoint": 0.5, "other": 0.5}, halves=halves)
    there = hot_line("other", 0.95, site=line, function="save", line_share=0.9)
    return with_summary(context, part_lines=[there])


LATE, ALL, NONE = (0.0, 0.3), (0.15, 0.15), (0.0, 0.0)


@pytest.mark.parametrize(
    ("saves", "python", "line", "is_joined"),
    [
        (LATE, LATE, "train.py:71", True),  # such as a rename, for which the disk is waited for
        (LATE, LATE, "train.py:80", False),
        (LATE, LATE, "train.py:69", False),
        (LATE, (0.01, 0.31), "train.py:72", True),
        (LATE, ALL, "train.py:72", False),
        (ALL, ALL, "train.py:72", False),  # of saves in every step it is unknown
        (NONE, NONE, "train.py:72", True),  # behind the last step
    ],
)
def test_what_follows_a_checkpoint_and_comes_with_saves_belongs_to_it(
    saves: tuple[float, float], python: tuple[float, float], line: str, is_joined: bool
) -> None:
    by_id = {x.id: x for x in diagnose(with_saves(saves, python, line)).findings}
    assert ("python_in_loop" in by_id) is not is_joined
    saved_s = 1.0 if is_joined else 0.5
    assert by_id["slow_checkpoints"].recoverable_s == pytest.approx(saved_s, rel=0.05)
    assert is_joined or by_id["python_in_loop"].site == line
