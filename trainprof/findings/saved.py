"""The summary saved in a run's directory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trainprof.analysis.summary.finding import COMES_ONCE, Finding
from trainprof.analysis.summary.json_text import from_jsonable
from trainprof.analysis.summary.run_summary import SUMMARY_SCHEMA_VERSION, RunSummary
from trainprof.record.files import read_run_json
from trainprof.record.log_reader import log_paths
from trainprof.record.run_directory import RunDirectory


def saved_summary(directory: RunDirectory) -> RunSummary | None:
    """Returns the saved summary of a run, None where it is missing, invalid or outdated.

    It is outdated if a log is newer: a process still trained after the script had ended.
    """
    if _is_outdated(directory):
        return None
    data = read_run_json(directory.summary)
    if not isinstance(data, dict) or data.get("schema_version") != SUMMARY_SCHEMA_VERSION:
        return None
    try:
        summary = from_jsonable(data)
        summary = summary if _is_of_todays_rules(data) else _renamed(summary)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return None
    return None if summary.run.exit.reason == "running" else summary


def _is_of_todays_rules(data: dict[str, Any]) -> bool:
    """Whether all findings have traits, as since rules were last renamed.

    Then the catalogue, which imports all rules, is not needed.
    """
    findings = [*data["findings"], *(passed["finding"] for passed in data.get("passed_over", ()))]
    return bool(data.get("rules")) and all("traits" in finding for finding in findings)


def _renamed(summary: RunSummary) -> RunSummary:
    """Returns the summary with today's names for findings of earlier versions."""
    from trainprof.findings.catalogue import RULES, rule_named

    def name_now(name: str) -> str:
        rule = rule_named(name)
        return name if rule is None else rule.id

    def renamed(finding: Finding) -> Finding:
        rule, once = rule_named(finding.id), {COMES_ONCE: True}
        finding = replace(
            finding,
            id=name_now(finding.id),
            evidence=finding.evidence | (once if finding.id == "slow_first_batch" else {}),
        )
        return finding if rule is None else replace(finding, traits=rule.traits)

    passed_over = [
        replace(x, finding=renamed(x.finding), root=None if x.root is None else name_now(x.root))
        for x in summary.passed_over
    ]
    return replace(
        summary,
        findings=[renamed(finding) for finding in summary.findings],
        passed_over=passed_over,
        rules=summary.rules or [rule.id for rule in RULES],
    )


def _is_outdated(directory: RunDirectory) -> bool:
    try:
        written_ns = directory.summary.lstat().st_mtime_ns
        rooms = [directory.events, *directory.ranks.glob("*/events")]
        logs = (log for room in rooms for log in log_paths(room))
        return any(log.lstat().st_mtime_ns > written_ns for log in logs)
    except OSError:
        return False
