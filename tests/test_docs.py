"""README and docs/: generated parts are up to date, links lead somewhere, options exist."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest
from support import docs
from support.docs import DOCS, FINDINGS, README, ROOT, TESTED, UPDATE

from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.cli.app import built_verbs

PACKAGE = ROOT / "trainprof"
PAGES = [README, *sorted(DOCS.rglob("*.md"))]
# Where each verb's options are listed.
OPTIONS = {
    "run": "commands.md",
    "report": "commands.md",
    "clean": "commands.md",
    "compare": "compare.md",
    "tune": "tune.md",
    "lines": "lines.md",
}
# On those pages, of other programs and of example scripts.
OTHERS = {
    *("--help", "--lr", "--epochs", "--logdir", "--config"),
    *("--nproc-per-node", "--no-python", "--max-restarts", "--seed", "--cases"),
    "--install-completion",
}
LINK = re.compile(r"\]\(([^()\s]+)\)")
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.DOTALL | re.MULTILINE)


def test_golden_pages_are_the_newest():
    written = {path.name: path.read_text("utf-8") for path in docs.by_hand()}
    assert written == {name: docs.with_pages(text) for name, text in written.items()}, UPDATE


def test_findings_say_what_their_rules_say():
    written = {path.name: path.read_text("utf-8") for path in FINDINGS.glob("*.md")}
    assert written == docs.finding_pages(), UPDATE


def test_what_was_tested_is_what_the_tests_say(request):
    if not docs.is_whole(request.config):
        pytest.skip("needs every test collected")
    text = TESTED.read_text("utf-8")
    assert text == docs.with_tested(text, request.session.items), "run pytest --update-docs"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = CODE.sub("", page.read_text("utf-8"))
    broken = [link for link in LINK.findall(text) if not _leads_somewhere(page, link)]
    assert not broken


def _leads_somewhere(page: Path, link: str) -> bool:
    if link.startswith("https://"):
        return True
    name, _, anchor = link.partition("#")
    target = (page.parent / name).resolve() if name else page
    is_reachable = page == README or DOCS in target.parents
    return is_reachable and target.exists() and (not anchor or anchor in _anchors(target))


def _anchors(page: Path) -> set[str]:
    """Returns the anchors of a page's headings, as code hosts and mkdocs name them."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_short(page):
    text = page.read_text("utf-8")
    assert text.count("\n") <= (250 if page == README else 200)
    assert len(re.findall(r"^# ", CODE.sub("", text), re.MULTILINE)) == 1


def test_files_of_the_package_exist():
    text = (DOCS / "internals.md").read_text("utf-8")
    names = re.findall(r"`([\w/]+/\w+\.py)`", text)
    assert not [x for x in names if not any((root / x).exists() for root in (PACKAGE, ROOT))]


def test_fields_of_a_summary_are_described():
    text = (DOCS / "run-directory.md").read_text("utf-8")
    described = {name.removesuffix("[]") for name in re.findall(r"`([\w\[\]]+)`", text)}
    assert not {field.name for field in fields(RunSummary)} - described


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text("utf-8").split("\nnav:\n")[1]
    pages = sorted(str(x.relative_to(DOCS)) for x in PAGES[1:] if x.parent != FINDINGS)
    assert sorted(re.findall(r"([\w/-]+\.md)", navigation)) == sorted([*pages, "findings/index.md"])


def test_options_are_those_of_the_commands():
    verbs = built_verbs().commands
    known = {
        verb: {name for x in command.params for name in x.opts if name.startswith("--")}
        for verb, command in verbs.items()
    }
    for verb, page in OPTIONS.items():
        text = (DOCS / page).read_text("utf-8")
        shared = known["run"] if verb == "lines" else set[str]()
        missing = {name for name in known[verb] - shared - {"--debug"} if name not in text}
        assert not missing, f"docs/{page} lacks options of {verb}"
    named = {
        (page.name, name)
        for page in docs.by_hand()
        for code in re.findall(r"`(--[^`\n]*|trainprof [^`\n]*)`", page.read_text("utf-8"))
        for name in re.findall(r"(?<!\S)(--[a-z][a-z-]+)", code)
    }
    assert not {x for x in named if x[1] not in OTHERS.union(*known.values())}
