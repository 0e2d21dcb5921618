"""`trainprof report` on findings: --why, --explain, --rule and --suggest-patch."""

from __future__ import annotations

import json
import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import summaries

from trainprof.analysis.summary.finding import LOADER_ID
from trainprof.analysis.summary.json_text import to_jsonable
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.cli.app import run_command
from trainprof.findings.catalogue import GONE, RULES

LOADER = "loader = DataLoader(data, shuffle=True)\n"


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A run of a script that stands beside it, with a finding about its loader."""
    (tmp_path / "train.py").write_text(LOADER)
    os.utime(tmp_path / "train.py", (1, 1))
    summary = replace(
        summaries.slow_loader(),
        findings=[summaries.finding(site="train.py:1")],
        loaders=[summaries.loader("train.py:1")],
    )
    return save(summary, tmp_path, times={"spawned_time_ns": time.time_ns()})


def save(summary: RunSummary, beside: Path, **more: Any) -> Path:
    """Returns a run's directory beside the script that it is of."""
    run = beside / "run"
    run.mkdir()
    manifest = {"schema_version": 1, "cwd": str(beside), **more}
    (run / "manifest.json").write_text(json.dumps(manifest))
    (run / "summary.json").write_text(json.dumps(to_jsonable(summary)))
    return run


def report(*words: str) -> int:
    return run_command(["report", *words])


def test_what_a_finding_means_needs_no_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert report("--explain", "serial_loading") == 0
    assert "What to do:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("was", "now"), [(name, rule.id) for rule in RULES for name in rule.old_names]
)
def test_a_merged_finding_is_explained_by_the_one_it_went_into(
    was: str, now: str, saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report("--explain", was) == 0
    assert capsys.readouterr().out.startswith(f"{was} went into {now}.\n\n{now}\n")
    path = saved / "summary.json"
    summary = json.loads(path.read_text())
    summary["findings"][0]["id"] = was
    path.write_text(json.dumps(summary))
    for words in ([], ["--why", was], ["--why", now]):
        assert report(str(saved), *words) == 0
        out = capsys.readouterr().out
        assert now in out
        assert was not in out


def test_what_a_finding_rests_on(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(str(saved), "--why", "serial_loading") == 0
    assert "wait share 82 %" in capsys.readouterr().out


@pytest.mark.parametrize(
    "options", [[], ["--verbose"], ["--format", "markdown"], ["--format", "json"]]
)
def test_a_saved_run_may_have_findings_and_figures_that_are_gone(
    saved: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    path = saved / "summary.json"
    summary = json.loads(path.read_text())
    summary["findings"][0]["id"] = "constant_in_forward"
    summary["evaluation"]["logits_bytes"] = 2400
    summary["loaders"][0]["late_selection"] = {"site": "train.py:1", "share": 0.5}
    path.write_text(json.dumps(summary))
    assert report(str(saved), *options) == 0
    assert "train.py:1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("is_at_most", "told"), [(False, "most likely 4.60 x"), (True, "up to about 5.2 x as fast")]
)
def test_one_gain_is_not_called_the_most_beside_a_larger_one(
    saved: Path, is_at_most: bool, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = replace(summaries.slow_loader(), findings=[summaries.finding(is_at_most=is_at_most)])
    (saved / "summary.json").write_text(json.dumps(to_jsonable(summary)))
    assert report(str(saved), "--why", "serial_loading") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert told in out
    assert ("4.60" in out) is not is_at_most


def test_why_counts_the_thresholds_that_the_run_was_started_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = save(summaries.healthy(), tmp_path, options={"rules": {"gc_pauses.share": 0.25}})
    assert report(str(run), "--why", "gc_pauses") == 0
    assert "share from 25 % on" in capsys.readouterr().out


@pytest.mark.parametrize(("gone", "where"), sorted(GONE.items()))
def test_what_was_a_finding_once_says_where_it_is_seen_now(
    gone: str, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report("--explain", gone) == 2
    assert f"{gone} is no finding any more" in (told := capsys.readouterr().err)
    assert where in told


@pytest.mark.parametrize("format", ["terminal", "markdown", "json"])
def test_a_saved_run_with_what_was_a_finding_once_is_shown(
    tmp_path: Path, format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    findings = [summaries.finding(id=gone) for gone in sorted(GONE)[:2]]
    run = save(replace(summaries.slow_loader(), findings=findings), tmp_path)
    assert report(str(run), "--format", format) == 0
    assert findings[0].title.split()[0] in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--why", "--explain"])
def test_an_unknown_finding_names_those_there_are(
    saved: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(str(saved), option, "nonsense") == 2
    told = capsys.readouterr().err
    assert "there is no finding 'nonsense'" in told
    assert "python_in_loop" in told
    assert report(str(saved), option, "discarded-gradient") == 2
    assert "did you mean discarded_gradients?" in capsys.readouterr().err


@pytest.mark.parametrize("rule", ["nonsense=1", "gc_pauses.share=much", "gc_pauses.share=-1"])
def test_a_threshold_that_means_nothing(
    saved: Path, rule: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(str(saved), "--rule", rule) == 2
    assert "'--rule'" in capsys.readouterr().err


def test_without_a_run_one_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert report() == 2
    assert "name a run" in capsys.readouterr().err


def test_a_patch_of_the_users_file_writes_nothing(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(str(saved), "--suggest-patch") == 0
    told = capsys.readouterr().out
    assert "--- a/train.py\n+++ b/train.py\n" in told
    assert (
        "+loader = DataLoader(data, shuffle=True, num_workers=5, persistent_workers=True)" in told
    )
    assert (saved.parent / "train.py").read_text() == LOADER


def test_a_file_that_changed_since_has_no_patch(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    later = time.time() + 60
    os.utime(saved.parent / "train.py", (later, later))
    assert report(str(saved), "--suggest-patch") == 0
    assert "# edit by hand: train.py has changed since the run" in capsys.readouterr().out
    (saved.parent / "train.py").unlink()
    assert report(str(saved), "--suggest-patch") == 0
    assert "cannot be read" in capsys.readouterr().out


@pytest.mark.parametrize("copies_in", ["train.py", "engine.py"])
def test_batches_are_pinned_where_they_are_made_and_copied_where_they_are_used(
    tmp_path: Path, copies_in: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(f"{LOADER}x = x.to(device)\n")
    (tmp_path / "engine.py").write_text("\nx = x.to(device)\n")
    change = {"pin_memory": True, "non_blocking": True}
    loader = summaries.loader("train.py:1")
    finding = summaries.finding(
        site=f"{copies_in}:2", change=change, evidence={LOADER_ID: loader.id}
    )
    summary = replace(summaries.slow_loader(), findings=[finding], loaders=[loader])
    assert report(str(save(summary, tmp_path)), "--suggest-patch") == 0
    diff = capsys.readouterr().out
    subprocess.run(["git", "apply", "-p1", "-"], input=diff, text=True, cwd=tmp_path, check=True)
    assert "shuffle=True, pin_memory=True)" in (tmp_path / "train.py").read_text()
    assert "x.to(device, non_blocking=True)" in (tmp_path / copies_in).read_text()


def test_several_changes_of_one_file_apply_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["a = DataLoader(data, 8,", "    num_workers=4)", "b = DataLoader(other,", "    8)", ""]
    (tmp_path / "train.py").write_text("\n".join(lines))
    loaders = [summaries.loader(f"train.py:{line}", id=line) for line in (1, 3)]
    changes = [(1, {"num_workers": 0}), (3, {"num_workers": 2}), (3, {"prefetch_factor": 4})]
    findings = [
        summaries.finding(site=f"train.py:{line}", change=change, evidence={LOADER_ID: line})
        for line, change in changes
    ]
    summary = replace(summaries.slow_loader(), findings=findings, loaders=loaders)
    assert report(str(save(summary, tmp_path)), "--suggest-patch") == 0
    diff = capsys.readouterr().out
    assert diff.count("--- a/train.py") == 1
    assert "# edit by hand: one above changes the same call" in diff
    subprocess.run(["git", "apply", "-p1", "-"], input=diff, text=True, cwd=tmp_path, check=True)
    lines[1], lines[3] = "    num_workers=0)", "    8, num_workers=2)"
    assert (tmp_path / "train.py").read_text() == "\n".join(lines)
