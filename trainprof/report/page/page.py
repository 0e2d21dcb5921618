"""The page in the terminal: how the run ended, one headline, where the time went, the rest."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from rich.cells import cell_len
from rich.text import Text

from trainprof.analysis.summary.run_summary import RECORDING_STOPPED, RunSummary
from trainprof.report import tune
from trainprof.report.page import details, device, memory, sections
from trainprof.report.page.findings import findings_section, next_section
from trainprof.report.page.gpu import gpu_details, gpus_section
from trainprof.report.page.loading import loader_details, loading_section, wanted_lines
from trainprof.report.text.ending import (
    cause,
    ending,
    is_memory_death,
    memory_before_the_end,
    progress,
    standstill,
)
from trainprof.report.text.layout import BLANK, GAP_CELLS, Page
from trainprof.report.text.ledger import (
    FRAME_LINES,
    ledger_lines,
    ledger_table,
    parts_of,
    rows_that_matter,
)
from trainprof.report.text.parts import BOTTLENECK_KEYS
from trainprof.report.text.safe_text import clip_start, with_safe_text

# What matters fits a small terminal: small rows of the ledger are folded, then sections left out.
_SHORT_PAGE_LINES: Final = 30
_PAGE_CELLS: Final = 80
_LEDGER_ROWS_AT_MOST: Final = 9
# Sentences that hold somebody else's words are cut here; the verbose page has them whole.
_ENDING_CELLS: Final = 160
_HEADLINE_CELLS: Final = 240
_SHORTEST_SITE: Final = 20

Section = Callable[[RunSummary, Page], list[Text]]

_LEVEL_STYLES: Final = {"highly": "bold red", "moderately": "bold yellow", "not": "bold green"}


def render(summary: RunSummary, page: Page) -> str:
    """Returns the run as a page of text, each line ended by a newline.

    Unless verbose, about 30 lines of 80 cells, more where findings worth a change take them. No
    line is wider than the page, but for a command to copy.
    """
    if summary.tuning is not None:
        return tune.render_page(summary, page)
    summary = with_safe_text(summary)
    if summary.hung is not None and not (summary.training.steps or page.verbose):
        below = [*next_section(summary, page), *_saved(summary, page)]
        return page.written([*_ending(summary, page), *BLANK, *below])
    above = [*_ending(summary, page), *BLANK, *_headline(summary, page), *BLANK]
    # A narrower page gets as many more lines as its lines are shorter.
    budget = _SHORT_PAGE_LINES * _PAGE_CELLS // min(max(page.width, 1), _PAGE_CELLS)
    room = budget - len(above) - FRAME_LINES - len(BLANK)
    findings = findings_section(summary, page, None if page.verbose else room * 2 // 3)
    findings += BLANK if findings else ()
    room -= len(findings)
    # In addition to those lines: it stands for what on a CPU the ledger tells alone.
    idle = device.idle_section(summary, page)
    above += [*idle, *BLANK] if idle else []
    hot = sections.hot_lines_section(summary, page)
    room -= len(hot)
    min_rows = rows_that_matter(summary)
    if page.verbose:
        below = _verbose_sections(summary, page)
    else:
        below = _short_sections(summary, page, room - min_rows)
    max_rows = max(min(room - len(below), _LEDGER_ROWS_AT_MOST), min_rows)
    ledger = _ledger(summary, page, max_rows)
    return page.written([*above, *ledger, *hot, *BLANK, *findings, *below])


def opening(summary: RunSummary, page: Page) -> str:
    """Returns the page's first lines alone: how the run ended and how far it got."""
    return page.written(_ending(with_safe_text(summary), page))


def _short_sections(summary: RunSummary, page: Page, room: int) -> list[Text]:
    below = {section: section(summary, page) for section in _SHORT_PAGE}
    loading = wanted_lines(summary, page)
    brief, kept = replace(page, is_brief=True), _BOTTLENECK_SECTIONS.get(summary.verdict.bottleneck)
    for section in _GIVING_WAY:
        if section is not kept and _count(below) + loading > room:
            below[section] = section(summary, brief)
    below[sections.loaders_section] += loading_section(summary, page, room - _count(below))
    return [line for lines in below.values() for line in lines]


def _count(lines: Mapping[Section, Sequence[Text]]) -> int:
    return sum(map(len, lines.values()))


def _verbose_sections(summary: RunSummary, page: Page) -> list[Text]:
    lines: list[Text] = []
    for group in _VERBOSE_PAGE:
        lines += [line for section in group for line in section(summary, page)]
        lines += BLANK
    return lines[: -len(BLANK)]


def _ending(summary: RunSummary, page: Page) -> list[Text]:
    opening = f"trainprof: {page.shortened(ending(summary), _ENDING_CELLS)}"
    reason = cause(summary)
    if reason is None:
        first, *others = progress(summary)
        lines = page.sentences([[f"{opening}: {first}", *others]])
    else:
        lines = page.paragraph(f"{opening}: {page.shortened(reason, _ENDING_CELLS)}")
        lines += page.paragraph(f"It got through {', '.join(progress(summary))}.", indent=2)
    for fault in summary.faults:
        if fault.startswith(RECORDING_STOPPED):
            note = f"{fault}. What follows covers the time until then."
            lines += page.paragraph(note[0].upper() + note[1:], indent=2)
    if summary.out_of_memory is not None:
        lines += page.paragraph(memory.ran_out(summary.out_of_memory), indent=2)
    if is_memory_death(summary):
        for sentence in memory_before_the_end(summary):
            lines += page.paragraph(sentence, indent=2)
    return [*lines, *_standstill(summary, page)]


def _standstill(summary: RunSummary, page: Page) -> list[Text]:
    """Where each process stood in a run that was ended while no step came."""
    places = standstill(summary)
    if places is None:
        return []
    sentence, rows = places
    who_cells = max(cell_len(who) for who, *_ in rows)
    room = page.width - who_cells - max(cell_len(doing) for *_, doing in rows) - 3 * GAP_CELLS
    rows = [(who, clip_start(site, max(room, _SHORTEST_SITE)), doing) for who, site, doing in rows]
    site_cells = max(cell_len(site) for _, site, _ in rows)
    return [
        *page.paragraph(sentence),
        *(
            page.text(f"  {who.ljust(who_cells)}  {site.ljust(site_cells)}  {doing}".rstrip())
            for who, site, doing in rows
        ),
    ]


def _headline(summary: RunSummary, page: Page) -> list[Text]:
    verdict = summary.verdict
    style = _LEVEL_STYLES.get(verdict.level or "", "bold")
    lines = page.paragraph(page.shortened(verdict.headline, _HEADLINE_CELLS), style=style)
    price = sections.price_of_measuring(summary)
    return lines if price is None else lines + page.paragraph(price, indent=2)


def _spoken_of(summary: RunSummary) -> list[str]:
    """Returns the ledger's key that most of the first finding is in, and the headline's."""
    asked: list[Sequence[str]] = [finding.traits.keys for finding in summary.findings[:1]]
    asked.append(BOTTLENECK_KEYS.get(summary.verdict.bottleneck, ()))
    named = [parts_of(summary, keys)[:1] for keys in asked]
    return [key for parts in named for part in parts for key in part.keys]


def _ledger(summary: RunSummary, page: Page, max_rows: int) -> list[Text]:
    table = ledger_table(
        summary, fold=not page.verbose, max_rows=max_rows, spoken_of=_spoken_of(summary)
    )
    if table is None:
        reason = sections.why_not_measured(summary, "ledger")
        return page.paragraph(f"Where the time went: {reason}")
    return ledger_lines(
        table,
        page,
        headline_keys=BOTTLENECK_KEYS.get(summary.verdict.bottleneck, ()),
        headline_style=_LEVEL_STYLES.get(summary.verdict.level or "", "bold"),
    )


def _saved(summary: RunSummary, page: Page) -> list[Text]:
    directory = summary.run.directory
    if directory is None:
        return page.labelled("Saved", ["nowhere: no run directory"])
    command = f"trainprof report {shlex.quote(directory)}"
    return page.command("Saved", "see it again:", command)


_DEVICES: Final = (device.transfers_section, device.syncs_section, device.found_syncs_section)
_CALLS: Final = (
    sections.compiled_section,
    sections.optimizers_section,
    sections.collectives_section,
    sections.unshared_section,
    device.devices_section,
)
_SYSTEM: Final = (memory.memory_section, sections.system_section, sections.shared_section)
_SHORT_PAGE: Final[tuple[Section, ...]] = (
    *(sections.outside_section, sections.steps_section),
    *(sections.epochs_section, sections.loaders_section),
    *(*_DEVICES, *_CALLS, memory.device_memory_section),
    *(*_SYSTEM, gpus_section),
    *(sections.closing_section, next_section, _saved, sections.lines_section),
)
# Where room is short, what matters least first; but for the section of the bottleneck.
_GIVING_WAY: Final[tuple[Section, ...]] = (
    device.syncs_section,
    device.transfers_section,
    sections.system_section,
    gpus_section,
    sections.outside_section,
    sections.epochs_section,
    sections.steps_section,
    sections.closing_section,
)
_BOTTLENECK_SECTIONS: Final[Mapping[str, Section]] = {
    "transfer": device.transfers_section,
    "sync": device.syncs_section,
    "startup": sections.outside_section,
}
# In groups with a blank line between them.
_VERBOSE_PAGE: Final[tuple[tuple[Section, ...], ...]] = (
    (
        *(details.phase_details, sections.outside_section),
        *(sections.steps_section, details.step_details),
    ),
    (details.training_details, sections.epochs_section),
    (sections.loaders_section, loader_details),
    (*_DEVICES, *_CALLS, memory.device_memory_details),
    (*_SYSTEM, details.system_details, gpu_details, details.rank_details),
    (
        *(details.command_details, sections.closing_section, next_section, _saved),
        sections.lines_section,
    ),
)
