"""The sections below the first screen, in order; those without content are left out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from rich.text import Text

from trainprof.analysis.summary.charts import Charts
from trainprof.analysis.summary.levels import number_at, sentence
from trainprof.analysis.summary.loader import Loader
from trainprof.analysis.summary.run import LEDGER_KEYS, LOADER_KEYS
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report.html.blocks import Block, HtmlPage, blocks_of
from trainprof.report.html.first_screen import ledger_keys
from trainprof.report.page import details, device, gpu, memory, sections
from trainprof.report.page.findings import action_of, not_found, why_passed_over
from trainprof.report.page.hot_lines import hot_lines_section
from trainprof.report.text import loader_words
from trainprof.report.text.layout import Column, Page
from trainprof.report.text.ledger import LedgerRow, label_of, ledger_table
from trainprof.report.text.units import (
    LONG_UNITS,
    byte_count,
    count,
    percent,
    seconds,
    share_of,
    whole_percent,
)

_PAGE: Final = HtmlPage(verbose=True)
_NO_RECORDING: Final = "Nothing to draw: the run's recording is missing or empty."
_NO_STEPS: Final = "No training step was seen, so no step is drawn."
_NO_STACKS: Final = "No stack was sampled in this run."
_NO_LINES: Final = "Lines with too few stack samples are not listed."
_OUTLIERS_SHOWN: Final = 20
# What was sampled in an outlier, as its column and how it is written.
_SAMPLED: Final[dict[str, tuple[str, Callable[[float | None], str]]]] = {
    "host_cpu_percent": ("CPU of the host", whole_percent),
    "tree_cpu_percent": ("of this run, % of a core", whole_percent),
    "iowait_share": ("I/O wait", percent),
    "disk_read_bytes_per_s": ("read a second", byte_count),
    "tree_rss_bytes": ("memory", byte_count),
}
_Lines = Callable[[RunSummary, Page], list[Text]]


@dataclass(frozen=True, slots=True)
class Part:
    """Blocks under a heading of their own."""

    title: str
    blocks: list[Block]


@dataclass(frozen=True, slots=True)
class Section:
    """A heading with pictures, blocks and parts.

    Attributes:
        short: Its name in the navigation.
        pictures: Ids of elements that a script draws in.
        note: What stands below all else.
    """

    id: str
    title: str
    short: str
    intro: str = ""
    pictures: list[str] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    note: str = ""

    @property
    def is_empty(self) -> bool:
        return not (self.intro or self.pictures or self.blocks or self.parts)


def sections_of(summary: RunSummary, charts: Charts | None) -> list[Section]:
    """Returns the sections that have anything to show."""
    every = (
        _over_time(summary, charts),
        _distributions(charts),
        _heatmap(charts),
        Section("whole-run", "The whole run", "Run", blocks=_whole_run(summary)),
        _flame(charts),
        _hot_lines(summary, charts),
        _loaders(summary, charts),
        Section(
            "transfers",
            "Transfers, syncs and calls",
            "Transfers",
            blocks=_blocks(
                summary,
                device.transfers_section,
                device.syncs_section,
                device.found_syncs_section,
                sections.compiled_section,
                sections.optimizers_section,
                sections.collectives_section,
            ),
        ),
        Section(
            "devices",
            "GPUs",
            "GPUs",
            blocks=_blocks(
                summary,
                device.idle_section,
                device.devices_section,
                gpu.gpus_section,
                *((gpu.gpu_details,) if _has_gpus(summary) else ()),
            ),
        ),
        Section(
            "machine",
            "Memory and machine",
            "Memory",
            blocks=_blocks(
                summary,
                memory.device_memory_details,
                memory.memory_section,
                sections.system_section,
                details.system_details,
            ),
        ),
        Section("ranks", "Ranks", "Ranks", blocks=_ranks(summary)),
    )
    return [section for section in every if not section.is_empty]


def closing_sections(summary: RunSummary) -> list[Section]:
    """Returns the environment, what trainprof took, and what it did not see."""
    environment = _blocks(summary, details.command_details)
    if summary.run.directory is not None:
        environment += blocks_of(_PAGE.labelled("Run directory", [summary.run.directory]))
    no_gpus = () if _has_gpus(summary) else (gpu.gpu_details,)
    costs = _blocks(summary, sections.closing_section, *no_gpus, sections.lines_section)
    faults = blocks_of(_PAGE.labelled_rows("Faults", ([sentence(x)] for x in summary.faults)))
    passed = blocks_of(
        _PAGE.labelled_rows(
            "Not reported",
            (
                [f"{action_of(x.finding)} ({x.finding.id}): {why_passed_over(x, summary)}"]
                for x in summary.passed_over
            ),
        )
    )
    checked = blocks_of(_PAGE.labelled("Findings", [not_found(summary)]))
    return [
        Section("environment", "Environment", "Environment", blocks=environment),
        Section(
            "limits",
            "What trainprof cost, and what it did not measure",
            "Overhead",
            blocks=[*costs, *faults, *passed, *checked],
        ),
    ]


def _blocks(summary: RunSummary, *sections: _Lines) -> list[Block]:
    return blocks_of(line for section in sections for line in section(summary, _PAGE))


def _has_gpus(summary: RunSummary) -> bool:
    return summary.system is not None and bool(summary.system.gpus)


def _over_time(summary: RunSummary, charts: Charts | None) -> Section:
    made = Section("over-time", "The run over time", "Over time")
    if charts is None:
        return replace(made, intro=_NO_RECORDING)
    if charts.steps is None and charts.machine is None:
        return replace(made, intro=_NO_STEPS)
    pictures = ["time-charts", "window-table"]
    intro = _slow_words(charts) if charts.steps else _NO_STEPS
    return replace(made, intro=intro, pictures=pictures)


def _slow_words(charts: Charts) -> str:
    """Says when the steps were slow, and what grew; empty where no stretch of them was."""
    slow = charts.slow
    if slow is None:
        return ""
    label = label_of(slow.part)
    added_s = slow.mean_s - slow.other_s
    # A part grows by more than the step where others shrink.
    of_all = f" of the {seconds(added_s)}" if slow.part_s < added_s else ""
    steps = f"steps {count(slow.first + 1)} to {count(slow.last + 1)}"
    return (
        f"Slow from {seconds(slow.start_s)} to {seconds(slow.end_s)} ({steps}):"
        f" {seconds(slow.mean_s)} a step, {seconds(slow.other_s)} in the others."
        f" {label[:1].upper()}{label[1:]} grew most: by {seconds(slow.part_s)}{of_all}."
    )


def _distributions(charts: Charts | None) -> Section:
    made = Section("distributions", "How step times and utilisation are distributed", "Histograms")
    shown = charts is not None and bool(charts.histograms)
    return replace(made, pictures=["histograms"] if shown else [])


def _heatmap(charts: Charts | None) -> Section:
    made = Section("cores", "CPU cores and GPUs over time", "Cores")
    shown = charts is not None and charts.machine is not None and bool(charts.machine.cores)
    return replace(made, pictures=["heatmap"] if shown else [])


def _flame(charts: Charts | None) -> Section:
    made = Section("stacks", "Flame graph of the stack samples", "Flame graph")
    if charts is None:
        return made
    has_stacks = bool(charts.stacks.stacks)
    return replace(made, **({"pictures": ["flame"]} if has_stacks else {"intro": _NO_STACKS}))


def _hot_lines(summary: RunSummary, charts: Charts | None) -> Section:
    blocks = _blocks(summary, hot_lines_section)
    has_stacks = charts is not None and bool(charts.stacks.stacks)
    intro = _NO_LINES if has_stacks and not blocks and summary.training.steps else ""
    return Section("hot-lines", "Hot lines", "Hot lines", intro=intro, blocks=blocks)


def _loaders(summary: RunSummary, charts: Charts | None) -> Section:
    has_lanes = charts is not None and bool(charts.lanes)
    has_workers = any(map(loader_words.worker_columns, summary.loaders))
    return Section(
        "loaders",
        "Loaders and workers",
        "Loaders",
        pictures=["lanes"] if has_lanes else [],
        blocks=_blocks(summary, sections.loaders_section),
        note=f"Workers: {loader_words.LEGEND}." if has_workers else "",
        parts=[
            Part(
                f"Loader {loader.id} at {loader.site}: {loader_words.makers(loader)}",
                list(_loader(loader, summary)),
            )
            for loader in summary.loaders
        ],
    )


def _loader(loader: Loader, summary: RunSummary) -> Iterator[Block]:
    fetch, words = loader.fetch, loader_words
    limit = words.limit_words(loader, summary)
    limit = limit or (loader.bound.by if loader.bound else words.UNKNOWN_LIMIT)
    notes = (*words.faults(loader), *words.warnings(loader, summary))
    yield from blocks_of(
        [
            *_PAGE.labelled("Limit", [limit]),
            *_PAGE.labelled_rows("Note", ([sentence] for sentence in notes)),
            *_PAGE.labelled("Settings", words.configuration(loader)),
            *_PAGE.labelled("Run", words.totals(loader)),
            *(_PAGE.labelled("Batches", words.making(fetch)) if fetch else ()),
        ]
    )
    for group in words.batch_groups(loader):
        parts = [part for part in group.parts if part.seconds > 0]
        if parts:
            columns = [
                Column(f"A batch: {group.title}", [x.words for x in parts], is_number=False),
                Column("time", [seconds(part.seconds) for part in parts]),
                Column("of that", [percent(part.share) for part in parts]),
            ]
            yield Block(columns=columns, bars=[[("accent", part.share)] for part in parts])
    yield from _tables(words.distributions(loader))
    yield from _tables(words.worker_columns(loader))
    yield from _tables(words.slow_sample_columns(fetch) if fetch else ())


def _tables(columns: Iterable[Column]) -> list[Block]:
    return blocks_of(_PAGE.table(list(columns)))


def _whole_run(summary: RunSummary) -> list[Block]:
    table = ledger_table(summary)
    if table is None:
        reason = sections.why_not_measured(summary, "ledger")
        ledger = [Block(text=f"Where the time went: {reason}")]
    else:
        keys, rows = _without_tiny(ledger_keys(summary, table), table.rows)
        bars = [[(f"key-{key}", x.share)] for key, x in zip(keys, rows, strict=True)]
        rows.append(table.total)
        title = "Where the time went"
        title += f", mean of {table.ranks} ranks" if table.ranks > 1 else ""
        columns = [
            Column(title, [row.label for row in rows], is_number=False),
            Column(LONG_UNITS[table.run_unit], [row.seconds for row in rows]),
            Column("of the run", [row.percent for row in rows]),
        ]
        if table.step_unit:
            columns.append(Column(f"{table.step_unit} a step", [row.per_step for row in rows]))
        if table.has_device:
            unit = f"{table.run_unit} on the GPU"
            columns.append(Column(unit, [row.on_device for row in rows]))
        ledger = [Block(columns=columns, bars=[*bars, []])]
    parts = _blocks(
        summary,
        details.phase_details,
        sections.outside_section,
        sections.steps_section,
        details.step_time,
        details.training_details,
    )
    epochs = _blocks(summary, sections.epochs_section)
    if epochs and not epochs[0].rows[0].label:
        epochs[0].rows[0] = replace(epochs[0].rows[0], label="Epochs")
    return [*ledger, *parts, *epochs, *_tables(_outlier_columns(summary))]


def _without_tiny(keys: list[str], rows: list[LedgerRow]) -> tuple[list[str], list[LedgerRow]]:
    """Returns both with the rows in which all figures are 0.0 made one."""
    figures = ("seconds", "percent", "per_step", "on_device")
    tiny = [x for x in rows if not any(re.search("[1-9]", getattr(x, y)) for y in figures)]
    shown = [pair for pair in zip(keys, rows, strict=True) if pair[1] not in tiny]
    if tiny:
        shown.append(("rest", replace(tiny[0], label=", ".join(row.label for row in tiny))))
    return [key for key, _ in shown], [row for _, row in shown]


def _ranks(summary: RunSummary) -> list[Block]:
    """Returns a line for each rank with its ledger as a bar, then whom others waited for."""
    if not summary.ranks:
        return []
    ledgers = [_ledger_of(rank) for rank in summary.ranks]
    walls = [sum(seconds.values()) for seconds in ledgers]
    longest_s = max(walls)
    steps = [number_at(rank, "steps") for rank in summary.ranks]
    means = [number_at(rank, "step_s", "mean") for rank in summary.ranks]
    waits = [sum(x.get(key, 0.0) for key in LOADER_KEYS) for x in ledgers]
    columns = [
        Column(
            "Rank", [f"rank {rank.get('rank', '?')}" for rank in summary.ranks], is_number=False
        ),
        Column("host", [str(rank.get("host") or "") for rank in summary.ranks], is_number=False),
        Column("steps", [count(number) for number in steps]),
        Column("mean step", [seconds(mean) for mean in means]),
        Column("data loading", [percent(share_of(*x)) for x in zip(waits, walls, strict=True)]),
    ]
    keys = [key for key in LEDGER_KEYS if any(ledger.get(key) for ledger in ledgers)]
    bars = [
        [(f"key-{key}", ledger.get(key, 0.0) / longest_s) for key in keys] if longest_s > 0 else []
        for ledger in ledgers
    ]
    legend = Block(legend=[(f"key-{key}", label_of(key)) for key in keys])
    return [Block(columns=columns, bars=bars), legend, *_blocks(summary, details.stragglers)]


def _ledger_of(rank: Mapping[str, Any]) -> dict[str, float]:
    ledger = rank.get("ledger")
    spent = ledger.get("seconds") if isinstance(ledger, Mapping) else None
    known = {key: number_at(spent, key) for key in LEDGER_KEYS}
    return {key: max(value, 0.0) for key, value in known.items() if value is not None}


def _outlier_columns(summary: RunSummary) -> list[Column]:
    """Returns the longest outliers with what was sampled in most of them."""
    outliers = summary.outliers[:_OUTLIERS_SHOWN]
    if not outliers:
        return []
    sampled = []
    for name, (header, written) in _SAMPLED.items():
        numbers = [number_at(outlier.samples, name) for outlier in outliers]
        # Few samples fall into steps that are shorter than the time between two.
        if 2 * numbers.count(None) <= len(numbers):
            cells = ["" if number is None else written(number) for number in numbers]
            sampled.append(Column(header, cells))
    every = summary.outliers_in_all
    of = f", the longest of {count(every)}" if every > len(outliers) else ""
    return [
        Column(f"Outlier{of}", [f"step {count(x.step + 1)}" for x in outliers], is_number=False),
        Column("epoch", ["" if x.epoch is None else count(x.epoch + 1) for x in outliers]),
        Column("into the run", [seconds(x.start_s) for x in outliers]),
        Column("took", [seconds(x.seconds) for x in outliers]),
        Column("what grew", [label_of(x.grew) for x in outliers], is_number=False),
        Column("by", [seconds(x.grew_s) for x in outliers]),
        *sampled,
    ]
