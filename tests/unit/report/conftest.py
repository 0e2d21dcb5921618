"""Galleries: a golden file of sentences and sections, one for each variant of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import pytest
from rich.text import Text

Shown = str | Iterable[str] | Iterable[Text]


@pytest.fixture
def gallery(golden: Callable[[str, str], None]) -> Callable[[str, Mapping[str, Shown]], None]:
    """Compares texts, or lines of a page, by their titles with the golden file of that name."""

    def compare(name: str, variants: Mapping[str, Shown]) -> None:
        golden(name, "\n".join(f"== {title}\n{_text(shown)}" for title, shown in variants.items()))

    return compare


def _text(shown: Shown) -> str:
    lines = shown.splitlines() if isinstance(shown, str) else [str(line) for line in shown]
    return "".join(f"{line}\n" for line in lines)
