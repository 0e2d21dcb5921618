"""The commands that a page ends with: to time the lines it names, to try its changes."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from support import summaries

from trainprof.report import markdown
from trainprof.report.page import page as terminal
from trainprof.report.page.findings import next_commands

LINES = ("Lines", "time each line:", "trainprof lines -m kws.train --epochs '2 3'")
VERIFY = ("Verify", "measure that:", "trainprof tune -m kws.train --epochs '2 3'")
WORDS = ["-m", "kws.train", "--epochs", "2 3"]


def told(words: list[str] = WORDS, **changes: Any) -> list[tuple[str, str, str]]:
    base = summaries.slow_loader()
    return next_commands(replace(base, run=replace(base.run, command=words), **changes))


@pytest.mark.parametrize(
    ("finding", "commands"),
    [
        ({}, [VERIFY]),
        ({"id": "python_in_loop", "is_tried_by_tune": False}, [LINES]),
        ({"id": "slow_optimizer", "is_tried_by_tune": False}, []),
        ({"change": {}, "is_tried_by_tune": False}, [LINES]),
    ],
)
def test_they_go_by_what_was_found(
    finding: dict[str, Any], commands: list[tuple[str, str, str]]
) -> None:
    assert told(findings=[summaries.finding(**finding)]) == commands


def test_without_findings_lines_tell_what_nobody_judged() -> None:
    nothing = {"findings": [], "verdict": summaries.healthy().verdict, "findings_from": 0.03}
    assert told(**nothing) == [LINES]
    assert told(**{**nothing, "findings_from": None}) == []
    on_device = replace(summaries.slow_loader().run, command=WORDS, device="cuda:0")
    assert next_commands(replace(summaries.slow_loader(), run=on_device, **nothing)) == []


def test_where_lines_were_timed_they_are_not_to_be_timed_again() -> None:
    found = [summaries.finding(id="python_in_loop", is_tried_by_tune=False)]
    assert told(findings=found, lines=SimpleNamespace()) == []


@pytest.mark.parametrize(
    "words", [[], ["-"], ["-m"], ["train.py", "--api-key", "***"], ["train.py", "--token=***"]]
)
def test_what_nobody_could_run_again_is_not_offered(words: list[str]) -> None:
    assert told(words) == []


def test_they_can_be_copied_from_both_pages() -> None:
    base = summaries.slow_loader()
    summary = replace(base, run=replace(base.run, command=["torchrun", "train.py"]))
    page = terminal.render(summary, width=80, color=False)
    assert "\nVerify     measure that: trainprof tune torchrun train.py\nSaved      " in page
    assert "Verify: measure that: trainprof tune torchrun train.py" in markdown.render(summary)
