"""Lines and tables of a page of fixed width. Every text gets onto a page through `Page.text`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Final

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from trainprof.report.text import safe_text

LABEL_CELLS: Final = 11
GAP_CELLS: Final = 2
_NARROWEST: Final = 8
# The space in "58.4 s"; while lines are broken a private character stands in for it.
_BEFORE_UNIT: Final = re.compile(r"(?<=\d) (?=(?:µs|us|ms|s|min|h|%|[KMGT]iB|steps?)\b|%)")
_JOINER: Final = "\ue000"
_WIDEST_CELL: Final = 24
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"


@dataclass(frozen=True, slots=True)
class Column:
    """A table's column, with a text per row.

    Attributes:
        is_number: Numbers stand to the right.
        dropped: Order in which columns give way on a narrow page, 1 first; 0 never does.
        gives_way: Texts of this column lose their start where nothing else helps.
    """

    header: str
    cells: Sequence[str]
    is_number: bool = True
    dropped: int = 0
    gives_way: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """What is written on: `width` in cells, ASCII only unless `unicode`."""

    width: int
    unicode: bool
    verbose: bool

    def text(self, content: str, style: str = "") -> Text:
        """Returns `content` on one line, made safe: nothing in it acts on a terminal."""
        return Text(safe_text.one_line(content, unicode=self.unicode), style=style)

    def shortened(self, content: str, cells: int) -> str:
        """Returns the start of `content`, whole on a verbose page."""
        plain = safe_text.one_line(content, unicode=self.unicode)
        return plain if self.verbose else safe_text.clip_end(plain, cells)

    def site(self, site: str) -> str:
        """Returns the end of a "file.py:84", whole on a verbose page."""
        plain = safe_text.one_line(site, unicode=self.unicode)
        return plain if self.verbose else safe_text.clip_start(plain, self.width // 2)

    def labelled(
        self, label: str, fragments: Iterable[str], *, separator: str = ", "
    ) -> list[Text]:
        """Returns fragments in a row after a label; full lines are broken between fragments."""
        head = self.text(label.ljust(LABEL_CELLS), "bold")
        return self._flow(head, fragments, separator, LABEL_CELLS)

    def sentence(self, fragments: Iterable[str]) -> list[Text]:
        """Returns fragments in a row from the left edge, later lines indented by two."""
        return self._flow(Text(), fragments, ", ", 2)

    def paragraph(self, content: str, *, style: str = "", indent: int = 0) -> list[Text]:
        """Returns a text broken between words."""
        room = max(self.width - indent, _NARROWEST)
        return [
            Text.assemble(" " * indent, line) for line in _wrapped(self.text(content, style), room)
        ]

    def command(self, label: str, opening: str, command: str) -> list[Text]:
        """Returns a command to copy, after a label and an opening: whole, however wide the page.

        It stands behind the opening, or in its place, or where it is wider than the page on a line
        of its own, which a terminal wraps and copies as one.
        """
        head = self.text(label.ljust(LABEL_CELLS), "bold")
        lead, line = self.text(opening), self.text(command)
        if LABEL_CELLS + lead.cell_len + 1 + line.cell_len <= self.width:
            return [Text.assemble(head, lead, " ", line)]
        if LABEL_CELLS + line.cell_len <= self.width:
            return [Text.assemble(head, line)]
        below = Text.assemble(line, no_wrap=True, overflow="ignore")
        return [*self.labelled(label, [opening]), below]

    def table(self, columns: Sequence[Column]) -> list[Text]:
        """Returns a heading and the rows; columns give way until it fits."""
        fitting = _fitting([*map(self._safe, columns)], max(self.width, _NARROWEST))
        widths = [_natural_width(column) for column in fitting]
        heading = _row([column.header for column in fitting], fitting, widths)
        rows = [
            _row([column.cells[index] for column in fitting], fitting, widths)
            for index in range(len(columns[0].cells))
        ]
        return [Text(heading, "bold"), *map(Text, rows)]

    def _flow(
        self, head: Text, fragments: Iterable[str], separator: str, indent: int
    ) -> list[Text]:
        pieces = [self.text(fragment) for fragment in fragments if fragment]
        rows = [Text()]
        room = self.width - head.cell_len
        for index, piece in enumerate(pieces):
            tail = separator if index < len(pieces) - 1 else ""
            needed = piece.cell_len + len(tail.rstrip())
            if rows[-1].cell_len and rows[-1].cell_len + needed > room:
                rows.append(Text())
                room = self.width - indent
            rows[-1] = rows[-1] + piece + Text(tail)
        broken = [
            line
            for number, row in enumerate(rows)
            for line in self._broken(row, self.width - (indent if number else head.cell_len))
        ]
        margin = Text(" " * indent)
        return [
            Text.assemble(margin if number else head, line) for number, line in enumerate(broken)
        ]

    def _broken(self, row: Text, room: int) -> list[Text]:
        """Breaks a row whose one fragment is wider than the page."""
        row.rstrip()
        return [row] if row.cell_len <= room else _wrapped(row, max(room, _NARROWEST))

    def _safe(self, column: Column) -> Column:
        cells = [safe_text.one_line(cell, unicode=self.unicode) for cell in column.cells]
        if not column.gives_way:
            cells = [safe_text.clip_end(cell, _WIDEST_CELL) for cell in cells]
        return Column(column.header, cells, column.is_number, column.dropped, column.gives_way)


def written(lines: Iterable[Text], page: Page, *, color: bool) -> str:
    """Returns the lines as a string that ends in a newline, with colour codes only if `color`."""
    console = _console(page.width, color=color)
    for line in lines:
        is_whole = line.no_wrap is True
        console.print(line, overflow="ignore" if is_whole else "fold", no_wrap=is_whole, crop=False)
    output = console.file
    assert isinstance(output, StringIO)
    text = output.getvalue()
    if not page.unicode:
        text = "\n".join(safe_text.in_ascii(line) for line in text.split("\n"))
    return "\n".join(line.rstrip() for line in text.split("\n"))


def _wrapped(text: Text, room: int) -> list[Text]:
    """Breaks between words; a number and its unit stay together."""
    text = text.copy()
    text.plain = _BEFORE_UNIT.sub(_JOINER, text.plain)
    lines = list(text.wrap(_console(room), room))
    for line in lines:
        line.rstrip()
        line.plain = line.plain.replace(_JOINER, " ")
    return lines


def _console(width: int, *, color: bool = False) -> Console:
    return Console(
        file=StringIO(),
        width=max(width, 1),
        force_terminal=color,
        color_system="standard" if color else None,
        no_color=not color,
        force_jupyter=False,
        force_interactive=False,
        markup=False,
        emoji=False,
        highlight=False,
        legacy_windows=False,
        _environ={},  # a renderer's output depends on its arguments only
    )


def _natural_width(column: Column) -> int:
    return max(cell_len(text) for text in (column.header, *column.cells))


def _may_be_dropped(column: Column) -> int:
    return column.dropped


def _fitting(columns: list[Column], room: int) -> list[Column]:
    kept = list(columns)
    for column in sorted(filter(_may_be_dropped, columns), key=_may_be_dropped):
        if _table_width(kept) <= room:
            return kept
        kept.remove(column)
    excess = _table_width(kept) - room
    return [_narrowed(column, excess) if column.gives_way else column for column in kept]


def _table_width(columns: Sequence[Column]) -> int:
    return sum(map(_natural_width, columns)) + GAP_CELLS * (len(columns) - 1)


def _narrowed(column: Column, excess: int) -> Column:
    if excess <= 0:
        return column
    room = max(_natural_width(column) - excess, cell_len(column.header), 8)
    cells = [safe_text.clip_start(cell, room) for cell in column.cells]
    return Column(column.header, cells, column.is_number, column.dropped, column.gives_way)


def _row(cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> str:
    padded = (
        _padded(cell, width, to_the_right=column.is_number)
        for cell, column, width in zip(cells, columns, widths, strict=True)
    )
    return (" " * GAP_CELLS).join(padded).rstrip()


def _padded(text: str, width: int, *, to_the_right: bool) -> str:
    padding = " " * (width - cell_len(text))
    return padding + text if to_the_right else text + padding


def bar(share: float, width: int) -> str:
    """Returns a bar of `width` cells at most for a share of 0 to 1, to an eighth of a cell."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    full, part = divmod(eighths, 8)
    return "█" * full + (_EIGHTHS[part] if part else "")
