"""What --find-syncs found, by line; calls that are known anyway are only counted."""

from __future__ import annotations

from pathlib import Path

from support.events import FakeRun

from trainprof.analysis.run.run_part import TOO_FEW_STEPS
from trainprof.analysis.summary.device import FoundSync, FoundSyncs
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.findings.summarize import summarize
from trainprof.record.schema import FoundSyncFlag, Kind, Topic

ASKED = {"find_syncs": True}


def planted(run: FakeRun) -> None:
    """A window after 20 steps: line 50 waits twice in each of 3 steps, line 60 once in all."""
    fifty, sixty, item = run.site(50), run.site(60), run.site(70)
    optimizer = run.optimizer()
    began = run.now
    run.record(Kind.SYNC_WINDOW, began, began, site=20)
    for step in range(3):
        lines = [fifty, fifty] + [sixty] * (step == 0)
        for site in lines:
            run.record(Kind.FOUND_SYNC, run.now, run.now, site=site)
        run.record(Kind.FOUND_SYNC, run.now, run.now, site=item, flags=FoundSyncFlag.KNOWN)
        run.learn(optimizer)
    run.record(Kind.SYNC_WINDOW, began, run.now, site=20, value=3)


def summary_of(run: FakeRun, directory: Path) -> RunSummary:
    return summarize(run.write(directory, options=ASKED))


def test_calls_are_counted_by_line(tmp_path: Path) -> None:
    run = FakeRun()
    planted(run)
    summary = summary_of(run, tmp_path)
    calls = [FoundSync("train.py:50", 6), FoundSync("train.py:60", 1)]
    assert summary.found_syncs == FoundSyncs(20, 3, calls, known_calls=3)
    assert "found_syncs" not in summary.not_observed
    run.records.pop()  # a window that was never closed still tells
    cut = summary_of(run, tmp_path).found_syncs
    assert (cut.steps, len(cut.calls)) == (0, 2)


def test_why_nothing_was_looked_for(tmp_path: Path) -> None:
    run = FakeRun()
    run.learn(run.optimizer())
    assert summary_of(run, tmp_path).not_observed["found_syncs"] == TOO_FEW_STEPS
    assert "found_syncs" not in run.summary(tmp_path).not_observed
    run.text(Topic.ENVIRONMENT, {"no_found_syncs": "this torch knows no device but the CPU"})
    summary = summary_of(run, tmp_path)
    assert summary.found_syncs is None
    assert summary.not_observed["found_syncs"] == "this torch knows no device but the CPU"
