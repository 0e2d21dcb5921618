"""The page in the terminal: how the run ended, one headline, a step in bars, what to change."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Final

from rich.cells import cell_len
from rich.text import Text

from trainprof.analysis.summary.finding import is_small
from trainprof.analysis.summary.run import BOTTLENECK_KEYS
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report import tune
from trainprof.report.page import details, device, memory, sections
from trainprof.report.page.findings import findings_section, next_section, nothing_words, run_name
from trainprof.report.page.gpu import gpu_details, gpus_section
from trainprof.report.page.hot_lines import hot_lines_section
from trainprof.report.page.loading import loader_details
from trainprof.report.page.notices import SHOWN, notices
from trainprof.report.text.ending import (
    cause,
    is_failure,
    is_memory_death,
    memory_before_the_end,
    outcome,
    standstill,
)
from trainprof.report.text.layout import BLANK, GAP_CELLS, Page
from trainprof.report.text.ledger import ledger_lines, ledger_table
from trainprof.report.text.safe_text import clip_start, with_safe_text
from trainprof.report.text.step_bars import step_lines
from trainprof.report.text.whole_run import long_outside, whole_run

# Sentences that hold somebody else's words are cut here; the verbose page has them whole.
_ENDING_CELLS: Final = 160
_HEADLINE_CELLS: Final = 300
_SHORTEST_SITE: Final = 20
_STYLES: Final = {"highly": "bold red", "moderately": "bold yellow"}

Section = Callable[[RunSummary, Page], list[Text]]


def render(summary: RunSummary, page: Page) -> str:
    """Returns the run as a page of text, each line ended by a newline.

    No line is wider than the page, but for a command to copy.
    """
    if summary.tuning is not None:
        return tune.render_page(summary, page)
    summary = with_safe_text(summary)
    blocks = [_ending(summary, page)]
    if summary.training.steps or page.verbose:
        blocks += [_headline(summary, page), _step(summary, page), findings_section(summary, page)]
        blocks += _verbose_blocks(summary, page) if page.verbose else []
        blocks.append([*_whole_run(summary, page), *next_section(summary, page)])
    elif summary.hung is not None or not summary.run.exit.is_whole:
        blocks.append(next_section(summary, page))
    return page.written([_rule(page), *_joined(blocks)])


def render_after_run(summary: RunSummary, page: Page) -> str:
    """Returns the page; of a script that failed one line, to leave its traceback in sight."""
    if summary.tuning is not None or page.verbose or not is_failure(summary):
        return render(summary, page)
    summary = with_safe_text(summary)
    line = f"trainprof: {outcome(summary).removesuffix('.')}"
    if summary.run.directory is not None:
        line += f". More: trainprof report {shlex.quote(run_name(summary.run.directory))}"
    return page.written([Text.assemble(page.text(line), no_wrap=True, overflow="ignore")])


def opening(summary: RunSummary, page: Page) -> str:
    """Returns the page's first lines alone: how the run ended and how far it got."""
    return page.written([_rule(page), *_ending(with_safe_text(summary), page)])


def _joined(blocks: list[list[Text]]) -> list[Text]:
    lines: list[Text] = []
    for block in blocks:
        lines += [*(BLANK if lines and block else ()), *block]
    return lines


def _rule(page: Page) -> Text:
    """Parts the script's output from the page."""
    sign, name = "─" if page.unicode else "-", " trainprof "
    left = max((page.width - len(name)) // 2, 0)
    return page.text(f"{sign * left}{name}{sign * left}"[: page.width])


def _ending(summary: RunSummary, page: Page) -> list[Text]:
    lines = page.paragraph(page.shortened(outcome(summary), _ENDING_CELLS))
    reason = cause(summary)
    if reason is not None:
        lines += page.paragraph(f"{page.shortened(reason, _ENDING_CELLS)}.", indent=2)
    if summary.out_of_memory is not None:
        lines += page.paragraph(memory.ran_out(summary.out_of_memory), indent=2)
    if is_memory_death(summary):
        for sentence in memory_before_the_end(summary):
            lines += page.paragraph(sentence, indent=2)
    lines += _standstill(summary, page)
    sentences = notices(summary)
    shown = sentences if page.verbose else sentences[:SHOWN]
    for sentence in shown:
        lines += page.paragraph(f"! {page.shortened(sentence, _ENDING_CELLS)}")
    hidden = len(sentences) - len(shown)
    return lines + (page.paragraph(f"! {hidden} more: --verbose") if hidden else [])


def _standstill(summary: RunSummary, page: Page) -> list[Text]:
    """Where each process stood in a run that was ended while no step came."""
    rows = standstill(summary)
    if not rows:
        return []
    who_cells = max(cell_len(who) for who, *_ in rows)
    room = page.width - who_cells - max(cell_len(doing) for *_, doing in rows) - 3 * GAP_CELLS
    rows = [(who, clip_start(site, max(room, _SHORTEST_SITE)), doing) for who, site, doing in rows]
    site_cells = max(cell_len(site) for _, site, _ in rows)
    return [
        page.text(f"  {who.ljust(who_cells)}  {site.ljust(site_cells)}  {doing}".rstrip())
        for who, site, doing in rows
    ]


def _headline(summary: RunSummary, page: Page) -> list[Text]:
    headline = page.shortened(summary.verdict.headline, _HEADLINE_CELLS)
    lines = page.paragraph(f"{headline} {nothing_words(summary)}".strip(), style=_style(summary))
    return [*lines, *(line for words in long_outside(summary) for line in page.paragraph(words))]


def _style(summary: RunSummary) -> str:
    if any(not is_small(finding) for finding in summary.findings):
        return "bold red"
    return _STYLES.get(summary.verdict.level or "", "bold")


def _step(summary: RunSummary, page: Page) -> list[Text]:
    named = [*BOTTLENECK_KEYS.get(summary.verdict.bottleneck, ())]
    named = named if summary.verdict.bottleneck != "compute" else []
    for finding in summary.findings[:1]:
        named = named or finding.traits.keys
    bars = step_lines(summary, page, named, _style(summary))
    return [*bars, *hot_lines_section(summary, page)]


def _whole_run(summary: RunSummary, page: Page) -> list[Text]:
    words = whole_run(summary)
    return page.paragraph(words) if words else []


def _ledger(summary: RunSummary, page: Page) -> list[Text]:
    table = ledger_table(summary)
    if table is None:
        reason = sections.why_not_measured(summary, "ledger")
        return page.paragraph(f"Where the time went: {reason}")
    return ledger_lines(table, page)


def _verbose_blocks(summary: RunSummary, page: Page) -> list[list[Text]]:
    return [
        [line for section in group for line in section(summary, page)] for group in _VERBOSE_PAGE
    ]


_VERBOSE_PAGE: Final[tuple[tuple[Section, ...], ...]] = (
    (_ledger,),
    (device.idle_section,),
    (details.phase_details, sections.outside_section),
    (sections.steps_section, details.step_details),
    (details.training_details, sections.epochs_section),
    (sections.loaders_section, loader_details),
    (device.transfers_section, device.syncs_section, device.found_syncs_section),
    (sections.compiled_section, sections.optimizers_section, sections.collectives_section),
    (device.devices_section, memory.device_memory_details, memory.memory_section),
    (sections.system_section, gpus_section, details.system_details, gpu_details),
    (details.rank_details,),
    (details.command_details, sections.closing_section, sections.lines_section),
)
