"""A page that keeps its tables and labelled rows, for sections shared with the terminal page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from rich.text import Text

from trainprof.report.text.layout import Column, Page

_ROWS_SHOWN: Final = 8


class _Table(Text):
    columns: Sequence[Column] = ()


class _Labelled(Text):
    label: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """Texts with a label in common; what is above the first few is folded."""

    label: str
    texts: list[str] = field(default_factory=list)

    @property
    def shown(self) -> list[str]:
        return self.texts if len(self.texts) <= _ROWS_SHOWN + 2 else self.texts[:_ROWS_SHOWN]

    @property
    def folded(self) -> list[str]:
        return self.texts[len(self.shown) :]


@dataclass(frozen=True, slots=True)
class Block:
    """A table, or labelled rows (label "": without), a legend of bars, or else a paragraph.

    `bars`: of each line of the table what is drawn next to it, as keys of colours with shares.
    """

    columns: Sequence[Column] = ()
    bars: Sequence[Sequence[tuple[str, float]]] = ()
    rows: list[Row] = field(default_factory=list)
    legend: Sequence[tuple[str, str]] = ()
    text: str = ""

    @property
    def is_stacked(self) -> bool:
        """Whether bars have several parts."""
        return any(len(parts) > 1 for parts in self.bars)

    @property
    def lines(self) -> list[tuple[str, ...]]:
        """The cells of each line of the table."""
        return list(zip(*(column.cells for column in self.columns), strict=True))


@dataclass(frozen=True, slots=True)
class HtmlPage(Page):
    """A page of no width: a browser breaks its lines."""

    def labelled(
        self, label: str, fragments: Iterable[str], *, separator: str = ", "
    ) -> list[Text]:
        words = separator.join(filter(None, fragments))
        if not words:
            return []
        line = _Labelled(words)
        line.label = label
        return [line]

    def sentences(self, sentences: Iterable[Iterable[str]]) -> list[Text]:
        return [line for fragments in sentences for line in self.labelled("", fragments)]

    def paragraph(self, content: str, *, style: str = "", indent: int = 0) -> list[Text]:
        return [Text(content, style=style)] if content else []

    def table(self, columns: Sequence[Column], styles: Sequence[str] = ()) -> list[Text]:
        if not columns or not columns[0].cells:
            return []
        line = _Table()
        line.columns = columns
        return [line]


def blocks_of(lines: Iterable[Text]) -> list[Block]:
    """Returns what the lines of an HtmlPage hold; labelled rows in a row become one block."""
    blocks: list[Block] = []
    for line in lines:
        if isinstance(line, _Table):
            blocks.append(Block(columns=line.columns))
        elif isinstance(line, _Labelled):
            if not blocks or not blocks[-1].rows:
                blocks.append(Block(rows=[]))
            rows = blocks[-1].rows
            if line.label or not rows:
                rows.append(Row(line.label))
            rows[-1].texts.append(line.plain)
        elif line.plain.strip():
            blocks.append(Block(text=line.plain))
    return blocks
