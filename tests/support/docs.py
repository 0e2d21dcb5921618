"""What README and docs/ take from the package and its tests: pages, findings, what was tested."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import pytest

from trainprof.findings.catalogue import RULES, rule_named
from trainprof.findings.rule import Rule

ROOT: Final = Path(__file__).parents[2]
README: Final = ROOT / "README.md"
DOCS: Final = ROOT / "docs"
FINDINGS: Final = DOCS / "findings"
TESTED: Final = DOCS / "tested-with.md"
UPDATE: Final = "run pytest tests/test_docs.py --update-docs"
_PAGE: Final = re.compile(r"(<!-- page: (\S+?)(?:#(.+?))? -->\n).*?(<!-- end -->)", re.DOTALL)
_ROWS: Final = re.compile(r"(<!-- tested -->\n).*(<!-- end -->)", re.DOTALL)
_LABEL: Final = re.compile(r"([A-Z][\w ]{2,30}): ")
# Code in plain text: what is in backticks, calls, settings, and names with an underscore.
_CODE: Final = re.compile(
    r"`[^`]*`|[\w.]+\(\.\.\., [^()]*\)"
    r"|(?:(?<![\w)])\.)?(?:\w+\.)*\w+\(\)(?:\.\w+\(\))*"
    r"|(?:(?<![\w)])\.|\b\w+\.)(?:\w+\.)*\w+\([^()\s]*\)"
    r"|(?<![\w./])(?:\w+\.)*\w*_\w+(?:\.\w+)*(?:=\w+(?:\.\w+)*)?(?:\([^()\s]*\))?"
    r'|\b[a-z]\w*=(?:True|False|None|\d+|"[^"\s]*")'
)
_PLAIN_WORD: Final = re.compile(r"\A(?!torch|trainprof)[a-z]+(?=[\s,])")
_AREAS: Final = {
    "loading": "Loading data",
    "device": "GPU",
    "loop": "The training loop",
    "model": "The model and its settings",
    "distributed": "Several ranks or GPUs",
}


def by_hand() -> list[Path]:
    """Returns README and the pages of docs/ that are written by hand."""
    return [README, *(x for x in sorted(DOCS.rglob("*.md")) if x.parent != FINDINGS)]


def is_whole(config: pytest.Config) -> bool:
    """Whether every test was collected."""
    is_all = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    return is_all and not config.option.keyword and not config.option.markexpr


def update(items: Iterable[pytest.Item] | None) -> None:
    """Writes all that is generated; what was tested only if all tests are there."""
    for path in by_hand():
        path.write_text(with_pages(path.read_text("utf-8")), "utf-8")
    if items is not None:
        TESTED.write_text(with_tested(TESTED.read_text("utf-8"), items), "utf-8")
    FINDINGS.mkdir(exist_ok=True)
    pages = finding_pages()
    for path in FINDINGS.glob("*.md"):
        if path.name not in pages:
            path.unlink()
    for name, text in pages.items():
        (FINDINGS / name).write_text(text, "utf-8")


def with_pages(text: str) -> str:
    """Returns Markdown with the golden page below each `<!-- page: FILE -->`.

    `FILE#NAME` is the part of a golden file that follows its line `== NAME`.
    """

    def block(match: re.Match[str]) -> str:
        opening, name, part, end = match.groups()
        golden = (ROOT / "tests/golden" / name).read_text("utf-8")
        if part is not None:
            golden = golden.split(f"== {part}\n", 1)[1].split("\n== ", 1)[0]
        return f"{opening}```\n{golden.rstrip()}\n```\n{end}"

    return _PAGE.sub(block, text)


def with_tested(text: str, items: Iterable[pytest.Item]) -> str:
    """Returns Markdown with a row for each section of the tests' `proves` marks."""
    sections: dict[str, dict[str, None]] = {}
    for item in items:
        for mark in item.iter_markers("proves"):
            section, what = mark.args
            sections.setdefault(section, {})[what] = None
    rows = "\n".join(
        f"| {name} | {_in_code('; '.join(sections[name]))} |" for name in sorted(sections)
    )
    return _ROWS.sub(lambda match: f"{match[1]}| | tested |\n|---|---|\n{rows}\n{match[2]}", text)


def finding_pages() -> dict[str, str]:
    """Returns the pages of docs/findings by file name: one for each rule, and their index."""
    return {
        "index.md": "\n".join(_index()) + "\n",
        **{f"{rule.id}.md": "\n".join(_finding_page(rule)) + "\n" for rule in RULES},
    }


def _finding_page(rule: Rule) -> Iterator[str]:
    yield f"# {rule.id}"
    for at, paragraph in enumerate((rule.explanation or "").strip().split("\n\n")):
        label = _LABEL.match(paragraph) if at else None
        text = paragraph.strip()
        if label:
            yield from ("", f"## {label[1]}")
            text = text[label.end() :]
            text = _PLAIN_WORD.sub(lambda match: match.group().capitalize(), text)
        yield from ("", _as_markdown(text))
    if rule.thresholds:
        yield from ("", "## Thresholds", "", "| `--rule` | what it is |", "|---|---|")
        for name, threshold in rule.thresholds.items():
            yield f"| `{rule.id}.{name}={threshold.value:g}` | {threshold.source} |"
    if rule.old_names:
        earlier = ", ".join(f"`{name}`" for name in rule.old_names)
        yield from ("", f"Earlier versions reported it as {earlier}.")
    yield from ("", f"The numbers of your run: `trainprof report latest --why {rule.id}`.")
    yield from ("", "[All findings](index.md)")


def _index() -> Iterator[str]:
    yield "# Findings"
    yield ""
    yield f"trainprof knows {len(RULES)} causes. Each has a page of its own, with the text that"
    yield "`trainprof report --explain ID` prints."
    for area, title in _AREAS.items():
        yield from (
            "",
            f"## {title}",
            "",
            "| finding | what happens | what to do |",
            "|---|---|---|",
        )
        for rule in RULES:
            if _area(rule) == area:
                first = " ".join((rule.explanation or "").split("\n\n")[0].split())
                yield f"| [{rule.id}]({rule.id}.md) | {first} | {rule.traits.action} |"


def _area(rule: Rule) -> str:
    return rule.find.__module__.split(".")[2]


def _as_markdown(text: str) -> str:
    return textwrap.fill(_in_code(text), 110, break_long_words=False, break_on_hyphens=False)


def _in_code(text: str) -> str:
    """Returns plain text as Markdown: names in code style, rules as links."""

    def named(match: re.Match[str]) -> str:
        name = match.group().strip("`")
        return f"[{name}]({name}.md)" if rule_named(name) else f"`{name}`"

    return _CODE.sub(named, text)
