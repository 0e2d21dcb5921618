"""Whatever these tests find can be asked about: each finding's page is written, too."""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import replace

import pytest
from support import summaries

from trainprof.analysis.summary.finding import Finding, PassedOver
from trainprof.findings import diagnose as diagnosing
from trainprof.findings.catalogue import rule_named
from trainprof.findings.diagnose import Diagnosis
from trainprof.report.page.finding_page import render_why
from trainprof.report.text.layout import Page

# As Python writes numbers, lists and what is not there.
_NOT_FOR_PEOPLE = re.compile(r"\de[+-]\d|[\[{]'|\bNone\b|\bnan\b")


@pytest.fixture(autouse=True)
def pages_of_findings(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Writes the page of `report --why` for each finding of a test, with the test's own numbers."""
    made: list[Diagnosis] = []

    def kept(findings: list[Finding], passed_over: list[PassedOver]) -> Diagnosis:
        made.append(Diagnosis(findings, passed_over))
        return made[-1]

    monkeypatch.setattr(diagnosing, "Diagnosis", kept)
    yield
    for x in made:
        for finding in x.findings:
            _write(finding, findings=[finding], passed_over=[])
        for passed in x.passed_over:
            _write(passed.finding, findings=[], passed_over=[passed])


def _write(finding: Finding, **found: object) -> None:
    rule = rule_named(finding.id)
    assert rule is not None, finding.id
    summary = replace(summaries.healthy(), **found)  # type: ignore[arg-type]
    page = render_why(summary, rule, Page())
    numbers = page.partition("Measured")[2].partition("\nVerify")[0]
    assert not _NOT_FOR_PEOPLE.search(numbers), page
