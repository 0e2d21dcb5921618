"""Lines and tables of a page of fixed width. Every text gets onto a page through `Page.text`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from io import StringIO
from typing import Final

from rich.cells import cell_len
from rich.console import Console, OverflowMethod
from rich.text import Text

from trainprof.report.text import safe_text

BLANK: Final = (Text(),)
LABEL_CELLS: Final = 11
GAP_CELLS: Final = 2
_NARROWEST: Final = 8
_INDENT: Final = 2
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

    width: int = 80
    color: bool = False
    unicode: bool = True
    verbose: bool = False

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
        head, pieces = self.text(label.ljust(LABEL_CELLS), "bold"), list(filter(None, fragments))
        return self._flow(head, pieces, separator, LABEL_CELLS) if pieces else []

    def labelled_rows(self, label: str, rows: Iterable[Iterable[str]]) -> list[Text]:
        """Returns rows of fragments, the first after the label, the others below it."""
        lines: list[Text] = []
        for row in rows:
            lines += self.labelled("" if lines else label, row)
        return lines

    def sentences(self, sentences: Iterable[Iterable[str]]) -> list[Text]:
        """Returns each's fragments in a row from the left edge, later lines indented by two."""
        return [line for words in sentences for line in self._flow(Text(), words, ", ", 2)]

    def paragraph(self, content: str, *, style: str = "", indent: int = 0) -> list[Text]:
        """Returns a text broken between words; a path wider than the page loses its start."""
        room = max(self.width - indent, _NARROWEST)
        words = (safe_text.clip_start(x, room) if "/" in x else x for x in content.split(" "))
        lines = _wrapped(self.text(" ".join(words), style), room)
        return [Text.assemble(" " * indent, line) for line in lines]

    def with_right(self, left: Text, right: Text, indent: int) -> list[Text]:
        """Returns both on one line, the second at the right edge; else one below the other."""
        gap = self.width - left.cell_len - right.cell_len
        if gap >= GAP_CELLS:
            return [Text.assemble(left, " " * gap, right)]
        margin = " " * max(min(indent, self.width - right.cell_len), 0)
        lines = _wrapped(left, self.width) + _wrapped(right, max(self.width - indent, _NARROWEST))
        return [*lines[:-1], Text.assemble(margin, lines[-1])]

    def code(self, content: str, indent: int) -> list[Text]:
        """Returns code broken between arguments, later lines below the first argument."""
        pieces = content.split(", ")
        opening = pieces[0].find("(") + 1
        margin = opening if indent + opening <= self.width // 2 else _INDENT
        rows, room = [""], self.width - indent
        for index, piece in enumerate(pieces):
            text = piece + ("," if index < len(pieces) - 1 else "")
            if rows[-1].strip() and cell_len(rows[-1]) + 1 + cell_len(text) > room:
                rows.append(" " * margin + text)
            else:
                rows[-1] += f" {text}" if rows[-1] else text
        return [line for row in rows for line in self._code_row(row, indent)]

    def _code_row(self, row: str, indent: int) -> list[Text]:
        code = row.lstrip(" ")
        lead = indent + len(row) - len(code)
        if lead + cell_len(code) > self.width:
            return self.paragraph(code, indent=min(lead, indent))
        return [Text.assemble(" " * lead, self.text(code))]

    def commands(self, label: str, commands: Sequence[tuple[str, str]]) -> list[Text]:
        """Returns commands to copy, each with what it is for, whole however wide the page.

        One that is wider than the page stands at the left edge: a terminal copies it as one line.
        """
        lines, head = [], f"{label} "
        room = self.width - len(head)
        noted = [cell_len(words) for words, why in commands if cell_len(words + why) + 4 <= room]
        for number, (command, purpose) in enumerate(commands):
            lead = self.text(head if not number else " " * len(head), "bold")
            words, note = self.text(command), self.text(f"({purpose})")
            if words.cell_len > room:
                lines += [] if number else [self.text(label, "bold")]
                lines.append(Text.assemble(words, no_wrap=True, overflow="ignore"))
                continue
            free = room - words.cell_len - note.cell_len
            gap = min(max(noted, default=0) - words.cell_len + GAP_CELLS, free)
            lines.append(Text.assemble(lead, words, *((" " * gap, note) if gap > 0 else ())))
        return lines

    def table(self, columns: Sequence[Column], styles: Sequence[str] = ()) -> list[Text]:
        """Returns a heading and the rows, none of no columns; columns give way until it fits.

        `styles`: of each row's last cell.
        """
        if not columns:
            return []
        fitting = _fitting([*map(self._safe, columns)], max(self.width, _NARROWEST))
        widths = [_natural_width(column) for column in fitting]
        heading = _row([column.header for column in fitting], fitting, widths)
        rows = [
            Text(_row([column.cells[index] for column in fitting], fitting, widths))
            for index in range(len(columns[0].cells))
        ]
        for row, word, style in zip(rows, columns[-1].cells, styles, strict=False):
            if style and word and row.plain.endswith(word):
                row.stylize(style, len(row.plain) - len(word))
        return [Text(heading, "bold"), *rows]

    def written(self, lines: Iterable[Text]) -> str:
        """Returns lines as a string that ends in a newline, with colour codes only if `color`."""
        console = _console(self.width, color=self.color)
        for line in lines:
            is_whole = line.no_wrap is True
            overflow: OverflowMethod = "ignore" if is_whole else "fold"
            console.print(line, overflow=overflow, no_wrap=is_whole, crop=False)
        output = console.file
        assert isinstance(output, StringIO)
        rows = output.getvalue().split("\n")
        rows = rows if self.unicode else [safe_text.in_ascii(row) for row in rows]
        return "\n".join(row.rstrip() for row in rows)

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
        broken: list[Text] = []
        for row in rows:
            row.rstrip()
            room = self.width - (indent if broken else head.cell_len)
            # One fragment may be wider than the page.
            fits = row.cell_len <= room
            broken += [row] if fits else _wrapped(row, max(room, _NARROWEST))
        margin = Text(" " * indent)
        return [
            Text.assemble(margin if number else head, line) for number, line in enumerate(broken)
        ]

    def _safe(self, column: Column) -> Column:
        cells = [safe_text.one_line(cell, unicode=self.unicode) for cell in column.cells]
        if not column.gives_way:
            cells = [safe_text.clip_end(cell, _WIDEST_CELL) for cell in cells]
        return replace(column, cells=cells)


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


def _fitting(columns: list[Column], room: int) -> list[Column]:
    kept = list(columns)
    for column in sorted((x for x in columns if x.dropped), key=lambda column: column.dropped):
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
    return replace(column, cells=[safe_text.clip_start(cell, room) for cell in column.cells])


def _row(cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> str:
    padded = []
    for cell, column, width in zip(cells, columns, widths, strict=True):
        padding = " " * (width - cell_len(cell))
        padded.append(padding + cell if column.is_number else cell + padding)
    return (" " * GAP_CELLS).join(padded).rstrip()


def bar(share: float, width: int) -> str:
    """Returns a bar of `width` cells at most for a share of 0 to 1, to an eighth of a cell."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    full, part = divmod(eighths, 8)
    return "█" * full + (_EIGHTHS[part] if part else "")
