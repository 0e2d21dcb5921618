"""A run's saved summary is used where it is whole and up to date, and nowhere else."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

from support import summaries

from trainprof.analysis.summary.code import HotLine
from trainprof.analysis.summary.json_text import from_jsonable, to_jsonable
from trainprof.analysis.summary.run import Exit
from trainprof.findings.catalogue import rule_named
from trainprof.findings.saved import saved_summary
from trainprof.record.run_directory import RunDirectory, write_json


def test_a_saved_summary_is_used_only_when_whole(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    assert saved_summary(directory) is None
    summary = summaries.slow_loader()
    write_json(directory.summary, to_jsonable(summary))
    assert saved_summary(directory) == summary
    whole = directory.summary.read_text()
    for damaged in (whole[: len(whole) // 2], "[]", "{}", '{"schema_version": 1, "run": 5}'):
        directory.summary.write_text(damaged)
        assert saved_summary(directory) is None
    going_on = replace(summary.run, exit=Exit(None, None, "running"))
    for other in (
        {"schema_version": 2},
        {"run": to_jsonable(replace(summary, run=going_on))["run"]},
    ):
        directory.summary.write_text(json.dumps({**json.loads(whole), **other}))
        assert saved_summary(directory) is None


def test_keys_of_earlier_versions_stay() -> None:
    line = HotLine("other", "train.py:1", "f", [], samples=7, share=0.5, seconds=None)
    saved = to_jsonable(replace(summaries.slow_loader(), part_lines=[line]))
    assert saved["part_lines"][0]["looks"] == 7
    assert from_jsonable(saved).part_lines == [line]


def test_a_summary_that_is_out_of_date_is_not_used(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    directory.create()
    log = directory.events / "1-1.events"
    log.touch()
    summary = summaries.slow_loader()
    write_json(directory.summary, to_jsonable(summary))
    written_ns = directory.summary.stat().st_mtime_ns
    os.utime(log, ns=(written_ns, written_ns))
    assert saved_summary(directory) == summary
    os.utime(log, ns=(written_ns, written_ns + 1))
    assert saved_summary(directory) is None


def test_findings_of_earlier_versions_have_the_names_and_traits_of_now(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    data = to_jsonable(summaries.slow_loader())
    earlier = {k: v for k, v in data["findings"][0].items() if k != "traits"}
    write_json(directory.summary, {**data, "findings": [{**earlier, "id": "crowded_cores"}]})
    summary = saved_summary(directory)
    assert summary is not None
    [finding] = summary.findings
    rule = rule_named("saturated_cpu")
    assert rule is not None
    assert (finding.id, finding.traits) == (rule.id, rule.traits)
