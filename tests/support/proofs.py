"""The README's table of what is known to run: one row for each `proves` mark on a test."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

# A property of integration tests: how many summaries of their runs were checked.
SUMMARIES = "summaries"
README = Path(__file__).parents[2] / "README.md"
BEGIN = "<!-- written by pytest --update-readme -->"
END = "<!-- end of the table -->"


def rows(items: Iterable[pytest.Item]) -> dict[str, list[str]]:
    """Returns the texts that the tests prove, by section, each once, in the tests' order."""
    sections: dict[str, dict[str, None]] = {}
    for item in items:
        for mark in item.iter_markers("proves"):
            section, text = mark.args
            sections.setdefault(section, {})[text] = None
    return {section: list(texts) for section, texts in sorted(sections.items())}


def table(items: Iterable[pytest.Item]) -> str:
    """Renders the rows as a Markdown table."""
    lines = ["| | proven by a test |", "|---|---|"]
    lines += [f"| {section} | {', '.join(texts)} |" for section, texts in rows(items).items()]
    return "\n".join(lines)


def split_readme() -> tuple[str, str, str]:
    """Returns the README before its table, the table, and what follows."""
    before, rest = README.read_text(encoding="utf-8").split(f"{BEGIN}\n", 1)
    written, after = rest.split(f"\n{END}", 1)
    return f"{before}{BEGIN}\n", written, f"\n{END}{after}"
