"""Checkpoints that hold training up, and what comes with them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.cases import case_of, healthy, with_summary
from support.findings import high_of, hot_line, only, reported

from trainprof.analysis.timeline.checkpoints import Checkpoints
from trainprof.findings.diagnose import diagnose
from trainprof.findings.run_context import RunContext
from trainprof.record.schema import Writer

SAVED = Checkpoints(saves=4, save_s=0.8, saved_bytes=3 << 20, site="train.py:70")


@pytest.mark.parametrize(
    "calls",
    [
        pytest.param(SAVED, id="saves"),
        pytest.param(
            replace(SAVED, saves=1, loads=2, load_s=0.4, saved_bytes=None), id="a save and loads"
        ),
        pytest.param(Checkpoints(loads=2, load_s=0.8), id="loads"),
        pytest.param(replace(SAVED, writers=(Writer.SAFETENSORS, Writer.TORCH)), id="two writers"),
        *(
            pytest.param(replace(SAVED, writers=(writer,)), id=f"by {writer.name}")
            for writer in (Writer.TRANSFORMERS, Writer.LIGHTNING, Writer.ACCELERATE)
        ),
    ],
)
def test_slow_checkpoints(calls: Checkpoints) -> None:
    context = case_of(steady_steps=100, parts={"checkpoint": 0.8})
    finding = only(replace(context, checkpoints=calls))
    assert (finding.id, finding.site) == ("slow_checkpoints", calls.site)
    assert (finding.is_at_most, finding.recoverable_s) == (True, pytest.approx(0.8))
    assert high_of(finding) == pytest.approx(2.8 / 2, rel=0.1)


def test_checkpoints_that_take_little() -> None:
    assert reported(healthy(parts={"checkpoint": 0.05})) == []


def with_saves(
    saved: tuple[float, float], python: tuple[float, float], line: str, share: float = 0.9
) -> RunContext:
    """Half a second each of saving and of Python at a line, with shares of the halves' steps."""
    context = healthy(
        parts={"checkpoint": 0.5, "other": 0.5}, halves={"checkpoint": saved, "other": python}
    )
    there = hot_line("other", 0.95, site=line, function="save", line_share=share)
    return with_summary(context, part_lines=[there])


LATE = (0.0, 0.3)


@pytest.mark.parametrize(
    ("saved", "python", "line", "share", "is_joined"),
    [
        # Such as a rename, for which the disk is waited for.
        pytest.param(LATE, LATE, "train.py:71", 0.9, True, id="the next line"),
        pytest.param(LATE, LATE, "train.py:80", 0.9, False, id="far behind"),
        pytest.param(LATE, LATE, "train.py:69", 0.9, False, id="the line before"),
        pytest.param(LATE, LATE, "save.py:71", 0.9, False, id="another file"),
        pytest.param(LATE, LATE, "train.py:71", 0.5, False, id="half of it"),
        pytest.param(
            LATE, (0.01, 0.31), "train.py:72", 0.9, True, id="with saves, and a little in all steps"
        ),
        pytest.param(LATE, (0.15, 0.15), "train.py:72", 0.9, False, id="in every step"),
        pytest.param(LATE, (0.1, 0.2), "train.py:72", 0.9, False, id="as much without saves"),
        pytest.param(LATE, (0.3, 0.0), "train.py:72", 0.9, False, id="in steps that do not save"),
        pytest.param(
            (0.15, 0.15), (0.15, 0.15), "train.py:72", 0.9, False, id="all steps save: unknown"
        ),
        # The last epoch's, say: what trains no further is in no step.
        pytest.param((0.0, 0.0), (0.0, 0.0), "train.py:72", 0.9, True, id="behind the last step"),
        pytest.param(
            (0.0, 0.34), (0.0, 0.0), "train.py:72", 0.9, False, id="behind it, without a save"
        ),
    ],
)
def test_what_follows_a_checkpoint_and_comes_with_saves_belongs_to_it(
    saved: tuple[float, float],
    python: tuple[float, float],
    line: str,
    share: float,
    is_joined: bool,
) -> None:
    by_id = {x.id: x for x in diagnose(with_saves(saved, python, line, share)).findings}
    expected = {"slow_checkpoints"} if is_joined else {"slow_checkpoints", "python_in_loop"}
    assert set(by_id) == expected
    saved_s = 1.0 if is_joined else 0.5
    assert by_id["slow_checkpoints"].recoverable_s == pytest.approx(saved_s, rel=0.05)
    assert is_joined or by_id["python_in_loop"].site == line
