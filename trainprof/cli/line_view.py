"""How line times are written: a page on a terminal, kernprof's table anywhere else."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from trainprof.cli.output import is_terminal, style_of

if TYPE_CHECKING:
    from trainprof.analysis.lines.times import LineProfile


@dataclass(frozen=True, slots=True)
class LineView:
    """What was asked to be shown.

    Attributes:
        per_process: Each process by itself.
        unit_s: Unit of the times, None for the usual ones.
        skip_zero: Without functions that were never called.
        by_time: The longest last.
        top: Only so many functions, or None.
        verbose: Nothing is folded.
    """

    per_process: bool = False
    unit_s: float | None = None
    skip_zero: bool = False
    by_time: bool = False
    top: int | None = None
    verbose: bool = False

    def text(self, profile: LineProfile, stream: TextIO | None, shown_again: Sequence[str]) -> str:
        """Returns the times as they suit a stream; off a terminal the table and nothing else.

        Args:
            profile: The times.
            stream: Where they will be written.
            shown_again: The command that shows them again, [] for none.
        """
        from trainprof.analysis.lines.times import arranged

        profile = arranged(profile, by_time=self.by_time, top=self.top)
        if not is_terminal(stream):
            return self._table(profile)
        from trainprof.report import line_page
        from trainprof.report.text.layout import Page

        style = style_of(stream)
        return line_page.render(
            profile,
            Page(width=style.width, unicode=style.unicode, verbose=self.verbose),
            color=style.color,
            unit_s=self.unit_s,
            skip_zero=self.skip_zero,
            per_process=self.per_process,
            closing=("see it again:", shlex.join(shown_again)) if shown_again else (),
        )

    def notes(self, profile: LineProfile, stream: TextIO | None) -> list[str]:
        """Returns the sentences that a page has, and a table or no page at all lacks."""
        if is_terminal(stream) and profile.functions:
            return []
        from trainprof.report.line_page import line_notes, unseen_notes
        from trainprof.report.text.safe_text import one_line

        unseen = [] if self.skip_zero else unseen_notes(profile)
        notes = [*line_notes(profile, is_merged=not self.per_process), *unseen]
        return [one_line(note) for note in notes]

    def _table(self, profile: LineProfile) -> str:
        from trainprof.analysis.lines.times import of_process
        from trainprof.report import kernprof_table

        unit_s = kernprof_table.KERNPROF_UNIT_S if self.unit_s is None else self.unit_s
        if not self.per_process:
            return kernprof_table.render(profile, unit_s=unit_s, skip_zero=self.skip_zero)
        tables = [
            f"Process: {process.label}\n\n"
            + kernprof_table.render(of_process(profile, process), unit_s=unit_s)
            for process in profile.processes()
        ]
        return "".join(tables)
