"""Findings of these tests say what their golden pages have, and have a page of `report --why`.

The page of a rule is tests/golden/findings/<slug>.txt, with a heading for each test. A file
test_<slug>.py is about that rule; one about several names them in `RULES_HERE`.
"""

from __future__ import annotations

import fcntl
import re
from collections import defaultdict
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path

import pytest
from support import summaries

from trainprof.analysis.summary.finding import Finding, PassedOver
from trainprof.findings import diagnose as diagnosing
from trainprof.findings.catalogue import rule_named
from trainprof.findings.diagnose import Diagnosis
from trainprof.report.page.finding_page import render_why
from trainprof.report.text.layout import Page

PAGES = Path(__file__).parents[2] / "golden" / "findings"
# As Python writes numbers, lists and what is not there.
_NOT_FOR_PEOPLE = re.compile(r"\de[+-]\d|[\[{]'|\bNone\b|\bnan\b")


@pytest.fixture
def says(request: pytest.FixtureRequest) -> Generator[Callable[..., None]]:
    """Takes the sentences of a test, which are compared with those under its heading."""
    said: defaultdict[str, list[str]] = defaultdict(list)
    own_page = request.path.stem.removeprefix("test_")
    yield lambda *sentences, page=own_page: said[page].extend(sentences)
    for page, sentences in said.items():
        text = "\n".join(dict.fromkeys(sentences))
        known = _under(request.node.name, PAGES / f"{page}.txt", text, request.config)
        assert known == text, f"golden/findings/{page}.txt: run pytest --update-golden, read it"


def _under(heading: str, path: Path, text: str, config: pytest.Config) -> str:
    """Returns what a page has under a heading; writes the text of its test there if asked to."""
    if not config.getoption("--update-golden"):
        return _read(path.read_text(encoding="utf-8") if path.exists() else "").get(heading, "")
    path.parent.mkdir(exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:  # other processes write it, too
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        pages = _read(file.read()) | {heading: text}
        file.truncate(0)
        file.write(
            "\n\n".join(f"== {name}\n{pages[name]}" for name in sorted(pages) if pages[name]) + "\n"
        )
    return text


def _read(text: str) -> dict[str, str]:
    parts = [part.split("\n", 1) for part in text.rstrip("\n").split("\n\n") if part]
    return {heading.removeprefix("== "): sentences for heading, sentences in parts}


@pytest.fixture(autouse=True)
def pages_of_findings(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, says: Callable[..., None]
) -> Generator[None]:
    """Keeps what findings of a test say, and renders the page of `report --why` for each."""
    made: list[Diagnosis] = []

    def keep(findings: list[Finding], passed_over: list[PassedOver]) -> Diagnosis:
        made.append(Diagnosis(findings, passed_over))
        return made[-1]

    monkeypatch.setattr(diagnosing, "Diagnosis", keep)
    yield
    own_rule = (request.path.stem.removeprefix("test_"),)
    rules = getattr(request.module, "RULES_HERE", own_rule)
    for diagnosis in made:
        for finding in diagnosis.findings:
            _render(finding, findings=[finding], passed_over=[])
            if finding.id in rules:
                says(*_sentences(finding), page=finding.id)
        for passed in diagnosis.passed_over:
            _render(passed.finding, findings=[], passed_over=[passed])


def _sentences(finding: Finding) -> list[str]:
    return [
        finding.title,
        f"change: {finding.advice}",
        *(f"note: {text}" for text in finding.cautions),
        *(f"also: {text}" for text in finding.also),
        *([f"costliest: {finding.costliest}"] if finding.costliest else []),
    ]


def _render(finding: Finding, **changes: object) -> None:
    rule = rule_named(finding.id)
    assert rule is not None, finding.id
    summary = replace(summaries.healthy(), **changes)  # type: ignore[arg-type]
    page = render_why(summary, rule, Page())
    numbers = page.partition("Measured")[2].partition("\nVerify")[0]
    assert not _NOT_FOR_PEOPLE.search(numbers), page
