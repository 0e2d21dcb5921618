"""The run as a pull-request comment: headline, a step in parts, what to change; nothing acts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from trainprof.analysis.summary.finding import Finding
from trainprof.analysis.summary.levels import sentence
from trainprof.analysis.summary.loader import Loader
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report.page.findings import (
    NOTES_SHOWN,
    action_of,
    gain_words,
    is_of_headline,
    next_commands,
    note,
    nothing_words,
)
from trainprof.report.page.hot_lines import hot_line_words
from trainprof.report.page.memory import ran_out
from trainprof.report.page.notices import notices
from trainprof.report.text.ending import (
    cause,
    ending,
    is_memory_death,
    memory_before_the_end,
    outcome,
    standstill,
)
from trainprof.report.text.layout import Column, Page
from trainprof.report.text.loader_words import (
    LEGEND,
    UNKNOWN_LIMIT,
    batch_groups,
    configuration,
    distributions,
    faults,
    limit_words,
    makers,
    making,
    slow_sample_columns,
    totals,
    warnings,
    worker_columns,
)
from trainprof.report.text.safe_text import one_line, with_safe_text
from trainprof.report.text.step_bars import step_rows
from trainprof.report.text.units import percent, seconds
from trainprof.report.text.whole_run import whole_run

# Sentences that a page shares with the comment, which the browser breaks into lines.
_PAGE: Final = Page(verbose=True)

# Entities cannot be markup, also inside a table's cell; the backslash escapes are easier to read.
_ESCAPES: Final = str.maketrans(
    {
        "&": "&amp;",
        "<": "&lt;",
        ">": "&gt;",
        "|": "&#124;",
        "`": "&#96;",
        "\\": "&#92;",
        # An entity would still call the person: the mention is looked for in the rendered text.
        "@": "@\u200b",
        **{character: "\\" + character for character in "*_[]#~"},
    }
)


def render(summary: RunSummary) -> str:
    """Returns the run as GitHub-flavoured Markdown, ended by a newline."""
    summary = with_safe_text(summary)
    headline = f"{summary.verdict.headline} {nothing_words(summary)}".strip()
    hot_lines = ", ".join(hot_line_words(summary, _PAGE))
    blocks = [
        f"**{escaped(headline)}**" if headline else "",
        _ending(summary),
        _standstill(summary),
        "\n".join(f"- {escaped(sentence)}" for sentence in notices(summary)),
        _step(summary),
        escaped(f"Hot lines: {hot_lines}") if hot_lines else "",
        _findings(summary),
        escaped(whole_run(summary)),
    ]
    return joined(blocks)


def _findings(summary: RunSummary) -> str:
    items = [_finding(finding, summary) for finding in summary.findings]
    commands = [f"- {escaped(f'{words} ({why})')}" for words, why in next_commands(summary)]
    after = "\n".join(["Next:", *commands]) if commands else ""
    return "\n\n".join(filter(None, ["\n".join(items), after]))


def _finding(finding: Finding, summary: RunSummary) -> str:
    at = f" at {finding.site}" if finding.site else ""
    gain = gain_words(finding)
    sentences = [f"{action_of(finding)}{at}{f': {gain}' if gain else ''}."]
    sentences += [] if is_of_headline(finding, summary) else [sentence(finding.title)]
    sentences += [f"Change: {finding.advice}"]
    sentences += [finding.costliest] if finding.costliest else []
    sentences += [f"Your script has a flag for this: {finding.flag}"] if finding.flag else []
    sentences += [f"Note: {note(caution)}" for caution in finding.cautions[:NOTES_SHOWN]]
    return "1. " + "\n   ".join(map(escaped, sentences))


def _step(summary: RunSummary) -> str:
    step = step_rows(summary)
    if step is None:
        return ""
    rows = [[escaped(row.label), row.time, row.percent] for row in step.rows]
    return table([escaped(step.title), step.total, "100 %"], rows)


def render_loader(summary: RunSummary, index: int) -> str:
    """Returns the loader at `index` of `summary.loaders` in full."""
    summary = with_safe_text(summary)
    loader = summary.loaders[index]
    fetch, workers = loader.fetch, worker_columns(loader)
    groups = [
        [] if loader.bound else [f"its limit is {UNKNOWN_LIMIT}"],
        configuration(loader),
        totals(loader),
        making(fetch) if fetch else [],
    ]
    return joined(
        [
            _loading(loader, summary),
            escaped(f"{ending(summary)}."),
            *(_sentence(fragments) for fragments in groups if fragments),
            _batch_time(loader),
            _columns(distributions(loader)),
            _columns(workers),
            escaped(f"{LEGEND}.") if workers else "",
            _columns(slow_sample_columns(fetch)) if fetch else "",
        ]
    )


def escaped(text: str) -> str:
    """Returns `text` as Markdown that shows it literally: no markup, HTML, mention or link."""
    plain = " ".join(one_line(text).split())
    return plain.translate(_ESCAPES).replace("://", ":&#47;&#47;").replace("www.", "www&#46;")


def _ending(summary: RunSummary) -> str:
    reason = cause(summary)
    sentences = [f"{outcome(summary).removesuffix('.')}."]
    sentences += [] if reason is None else [f"{reason}."]
    if summary.out_of_memory is not None:
        sentences.append(ran_out(summary.out_of_memory))
    if is_memory_death(summary):
        sentences += memory_before_the_end(summary)
    return " ".join(escaped(words) for words in sentences)


def _standstill(summary: RunSummary) -> str:
    cells = [list(map(escaped, row)) for row in standstill(summary)]
    return table(["process", "line", "where it stood"], cells, words=3) if cells else ""


def _loading(loader: Loader, summary: RunSummary) -> str:
    limit = limit_words(loader, summary)
    sentences = [escaped(f"Data loading at {loader.site}: {makers(loader)}.")]
    sentences += [escaped(f"Limit: {limit}.")] if limit else []
    remarks = [*faults(loader), *warnings(loader, summary)]
    return " ".join([*sentences, *(_sentence([remark]) for remark in remarks)])


def _sentence(fragments: Iterable[str]) -> str:
    words = ", ".join(filter(None, fragments))
    return escaped(f"{words[:1].upper()}{words[1:]}.")


def _batch_time(loader: Loader) -> str:
    rows = [
        list(map(escaped, (group.title, part.words, seconds(part.seconds), percent(part.share))))
        for group in batch_groups(loader)
        for part in group.parts
    ]
    titles = ["where a batch's time goes", "", "a batch", "of that"]
    return table(titles, rows, words=2) if rows else ""


def _columns(columns: Sequence[Column]) -> str:
    if not columns:
        return ""
    words = sum(not column.is_number for column in columns)
    rows = zip(*(map(escaped, column.cells) for column in columns), strict=True)
    return table([escaped(column.header) for column in columns], rows, words=words)


def joined(blocks: Iterable[str]) -> str:
    return "\n\n".join(block for block in blocks if block) + "\n"


def table(titles: Sequence[str], rows: Iterable[Sequence[str]], words: int = 1) -> str:
    """Returns a table; its first `words` columns and those without a title are no numbers."""
    rules = ["---" if at < words or not title else "---:" for at, title in enumerate(titles)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (titles, rules, *rows))
