"""The page in the terminal: how the run ended, one headline, where the time went, the rest."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from rich.cells import cell_len
from rich.text import Text

from trainprof.analysis.summary.run import RECORDING_STOPPED
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report import tune
from trainprof.report.page import details, sections
from trainprof.report.page.device import (
    devices_section,
    found_syncs_section,
    idle_section,
    syncs_section,
    transfers_section,
)
from trainprof.report.page.findings import findings_section, next_section
from trainprof.report.page.gpu import gpu_details, gpus_section
from trainprof.report.page.loading import loader_details, loading_section, wanted_lines
from trainprof.report.page.memory import (
    device_memory_details,
    device_memory_section,
    memory_section,
    ran_out,
)
from trainprof.report.page.sections import hot_lines_section, lines_section
from trainprof.report.text.ending import (
    cause,
    ending,
    is_memory_death,
    memory_before_the_end,
    progress,
    standstill,
)
from trainprof.report.text.layout import GAP_CELLS, Page, written
from trainprof.report.text.ledger import (
    FRAME_LINES,
    LOADING_KEYS,
    ledger_lines,
    ledger_table,
    parts_of,
    rows_that_matter,
)
from trainprof.report.text.safe_text import clip_start, with_safe_text

# What matters fits a small terminal: small rows of the ledger are folded, then sections left out.
SHORT_PAGE_LINES: Final = 30
PAGE_CELLS: Final = 80
LEDGER_ROWS_AT_MOST: Final = 9
# Sentences that hold somebody else's words are cut here; the verbose page has them whole.
_ENDING_CELLS: Final = 160
_HEADLINE_CELLS: Final = 240
_SHORTEST_SITE: Final = 20
BLANK: Final = (Text(),)

Section = Callable[[RunSummary, Page], list[Text]]

_LEVEL_STYLES: Final = {"highly": "bold red", "moderately": "bold yellow", "not": "bold green"}
_BOTTLENECK_KEYS: Final = {
    "data": LOADING_KEYS,
    "transfer": ("transfer",),
    "compute": ("forward", "loss", "backward", "recompute", "optimizer", "zero_grad"),
    "host": ("other", "gc"),
    "sync": ("sync",),
    "checkpoint": ("checkpoint",),
    "evaluation": ("evaluation",),
    "startup": ("startup",),
}

_BOTTLENECK_SECTIONS: Final[Mapping[str, Section]] = {
    "transfer": transfers_section,
    "sync": syncs_section,
}


def render(
    summary: RunSummary, *, width: int, color: bool, unicode: bool = True, verbose: bool = False
) -> str:
    """Returns the run as a page of text, each line ended by a newline.

    Unless `verbose`, about 30 lines of 80 cells, more where findings worth a change take them. No
    line is wider than `width`, but for a command to copy. Without `color` no escape is in it;
    `unicode=False`: ASCII only.
    """
    if summary.tuning is not None:
        return tune.render_page(summary, width=width, color=color, unicode=unicode, verbose=verbose)
    summary = with_safe_text(summary)
    page = Page(width=width, unicode=unicode, verbose=verbose)
    if summary.hung is not None and not (summary.training.steps or verbose):
        below = [*next_section(summary, page), *_saved(summary, page)]
        return written([*_ending(summary, page), *BLANK, *below], page, color=color)
    above = [*_ending(summary, page), *BLANK, *_headline(summary, page), *BLANK]
    # A narrower page gets as many more lines as its lines are shorter.
    budget = SHORT_PAGE_LINES * PAGE_CELLS // min(max(page.width, 1), PAGE_CELLS)
    room = budget - len(above) - FRAME_LINES - len(BLANK)
    findings = findings_section(summary, page, None if verbose else room * 2 // 3)
    room -= len(findings) + (len(BLANK) if findings else 0)
    # In addition to those lines: it stands for what on a CPU the ledger tells alone.
    idle = idle_section(summary, page)
    above += [*idle, *BLANK] if idle else []
    hot = hot_lines_section(summary, page)
    room -= len(hot)
    min_rows = rows_that_matter(summary)
    below = (
        _verbose_sections(summary, page)
        if verbose
        else _short_sections(summary, page, room - min_rows)
    )
    max_rows = max(min(room - len(below), LEDGER_ROWS_AT_MOST), min_rows)
    ledger = _ledger(summary, page, max_rows)
    shown_findings = [*findings, *BLANK] if findings else []
    return written([*above, *ledger, *hot, *BLANK, *shown_findings, *below], page, color=color)


def opening(summary: RunSummary, *, width: int, color: bool, unicode: bool = True) -> str:
    """Returns the page's first lines alone: how the run ended and how far it got."""
    page = Page(width=width, unicode=unicode, verbose=False)
    return written(_ending(with_safe_text(summary), page), page, color=color)


def _short_sections(summary: RunSummary, page: Page, room: int) -> list[Text]:
    below: dict[Section, list[Text]] = {
        section: section(summary, page)
        for section in (
            sections.steps_section,
            sections.epochs_section,
            sections.loaders_section,
            transfers_section,
            syncs_section,
            found_syncs_section,
            sections.compiled_section,
            sections.collectives_section,
            sections.unshared_section,
            devices_section,
            device_memory_section,
            memory_section,
            sections.system_section,
            sections.shared_section,
            gpus_section,
            sections.closing_section,
            next_section,
            _saved,
            lines_section,
        )
    }
    loading = wanted_lines(summary, page)
    shorter: dict[Section, Callable[[], list[Text]]] = {
        syncs_section: list,
        transfers_section: list,
        sections.system_section: list,
        gpus_section: lambda: gpus_section(summary, page, is_brief=True),
        sections.epochs_section: lambda: sections.epochs_section(summary, page, at_most=1),
        sections.steps_section: lambda: sections.steps_section(summary, page, with_worst=False),
        sections.closing_section: lambda: sections.closing_section(summary, page, with_cost=False),
    }
    named = _BOTTLENECK_SECTIONS.get(summary.verdict.bottleneck)
    if named is not None:
        del shorter[named]
    for spared, written_shorter in shorter.items():
        if _count(below) + loading > room:
            below[spared] = written_shorter()
    below[sections.loaders_section] += loading_section(summary, page, room - _count(below))
    return [line for lines in below.values() for line in lines]


def _count(lines: Mapping[Section, Sequence[Text]]) -> int:
    return sum(map(len, lines.values()))


def _verbose_sections(summary: RunSummary, page: Page) -> list[Text]:
    groups = (
        (details.phase_details, sections.steps_section, details.step_details),
        (details.training_details, sections.epochs_section),
        (sections.loaders_section, loader_details),
        (
            *(transfers_section, syncs_section, found_syncs_section),
            sections.compiled_section,
            sections.collectives_section,
            sections.unshared_section,
            *(devices_section, device_memory_details),
        ),
        (
            *(memory_section, sections.system_section, sections.shared_section),
            *(details.system_details, gpu_details, details.rank_details),
        ),
        (details.command_details, sections.closing_section, next_section, _saved, lines_section),
    )
    lines: list[Text] = []
    for group in groups:
        lines += [line for section in group for line in section(summary, page)]
        lines += BLANK
    return lines[: -len(BLANK)]


def _ending(summary: RunSummary, page: Page) -> list[Text]:
    opening = f"trainprof: {page.shortened(ending(summary), _ENDING_CELLS)}"
    reason = cause(summary)
    if reason is None:
        first, *others = progress(summary)
        lines = page.sentence([f"{opening}: {first}", *others])
    else:
        lines = page.paragraph(f"{opening}: {page.shortened(reason, _ENDING_CELLS)}")
        lines += page.paragraph(f"It got through {', '.join(progress(summary))}.", indent=2)
    for fault in summary.faults:
        if fault.startswith(RECORDING_STOPPED):
            note = f"{fault}. What follows covers the time until then."
            lines += page.paragraph(note[0].upper() + note[1:], indent=2)
    if summary.out_of_memory is not None:
        lines += page.paragraph(ran_out(summary.out_of_memory), indent=2)
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
    asked.append(_BOTTLENECK_KEYS.get(summary.verdict.bottleneck, ()))
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
        headline_keys=_BOTTLENECK_KEYS.get(summary.verdict.bottleneck, ()),
        headline_style=_LEVEL_STYLES.get(summary.verdict.level or "", "bold"),
    )


def _saved(summary: RunSummary, page: Page) -> list[Text]:
    directory = summary.run.directory
    if directory is None:
        return page.labelled("Saved", ["nowhere: no run directory"])
    command = f"trainprof report {shlex.quote(directory)}"
    return page.command("Saved", "see it again:", command)
