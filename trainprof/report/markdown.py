"""The run as a pull-request comment: headline, where the time went, the loaders; nothing acts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from trainprof.analysis.summary.finding import Finding
from trainprof.analysis.summary.loader import Loader
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report.page.device import idle_columns
from trainprof.report.page.findings import (
    FINDINGS_SHOWN,
    next_commands,
    nothing_words,
    speedup_words,
    together_words,
    unexplained,
    whole_of,
)
from trainprof.report.page.gpu import energy_words, gpu_columns, is_hidden
from trainprof.report.page.memory import memory_sentences, ran_out
from trainprof.report.page.sections import (
    bound_to,
    outlier_sentence,
    price_of_measuring,
    taken_by_others,
    unshared,
    why_not_measured,
    worked_beside,
)
from trainprof.report.text.ending import (
    cause,
    ending,
    is_memory_death,
    memory_before_the_end,
    progress,
    standstill,
)
from trainprof.report.text.layout import Column, Page
from trainprof.report.text.ledger import ledger_table
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
    needs_words,
    slow_sample_columns,
    totals,
    warnings,
    worker_columns,
)
from trainprof.report.text.outside_loop import outside_words
from trainprof.report.text.safe_text import one_line, with_safe_text
from trainprof.report.text.units import NOT_MEASURED, count, counted, percent, seconds, share_of

_LOADERS_SHOWN: Final = 5
# Sentences that a page shares with the comment, which the browser breaks into lines.
_PAGE: Final = Page()
# Who reads a comment did not give the command that made it.
_MORE: Final = "trainprof report RUN --verbose"

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
    blocks = [
        f"**{escaped(summary.verdict.headline)}**",
        price_of_measuring(summary) or "",
        _ending(summary),
        _standstill(summary),
        _columns(idle_columns(summary)),
        _findings(summary),
        _ledger(summary),
        _outside(summary),
        _steps(summary),
        _loaders(summary),
        _shared(summary),
        _gpus(summary),
        *(_loading(loader, summary) for loader in summary.loaders if needs_words(loader, summary)),
    ]
    return joined(blocks)


def _outside(summary: RunSummary) -> str:
    said = (f"{label} {', '.join(words)}." for label, words in outside_words(summary))
    return escaped("\n".join(said))


def _shared(summary: RunSummary) -> str:
    memory = (", ".join(filter(None, words)) for words in memory_sentences(summary))
    others = (bound_to(summary), taken_by_others(summary), worked_beside(summary))
    sentences = filter(None, [*map(unshared, summary.unshared), *memory, *others])
    return "\n".join(f"{sentence[0].upper()}{sentence[1:]}." for sentence in sentences)


def _findings(summary: RunSummary) -> str:
    if not summary.findings:
        nothing = (nothing_words(summary, _PAGE, _MORE), _next(summary))
        return "\n\n".join(escaped(words) for words in nothing if words)
    whole = whole_of(summary)
    first, *others = summary.findings[:FINDINGS_SHOWN]
    items = [_finding(first, whole, *first.also), *(_finding(finding, whole) for finding in others)]
    hidden = [finding.id for finding in summary.findings[FINDINGS_SHOWN:]]
    if hidden:
        more = f"{counted(len(hidden), 'more finding')} ({', '.join(hidden)}): {_MORE}"
        items.append(f"- {escaped(more)}")
    after = (together_words(summary), unexplained(summary, _PAGE), _next(summary))
    return "\n\n".join(["\n".join(items), *(escaped(words) for words in after if words)])


def _next(summary: RunSummary) -> str:
    return ". ".join(f"{label}: {' '.join(words)}" for label, *words in next_commands(summary))


def _finding(finding: Finding, whole: str, *also: str) -> str:
    at = f" at {finding.site}" if finding.site else ""
    gives = speedup_words(finding, whole)
    sentences = [f"{finding.id}{at}: {finding.title}.", f"Change: {finding.advice}."]
    sentences += [f"Gives: {gives}."] if gives else []
    # Behind words of ours, for what begins a line may be markup.
    sentences[-1] = " ".join(
        [sentences[-1], *(f"{sentence[:1].upper()}{sentence[1:]}." for sentence in also)]
    )
    sentences += [f"Mind: {'; '.join(finding.cautions)}."] if finding.cautions else []
    return "- " + "\n  ".join(map(escaped, sentences))


def render_loader(summary: RunSummary, index: int) -> str:
    """Returns the loader at `index` of `summary.loaders` in full."""
    summary = with_safe_text(summary)
    loader = summary.loaders[index]
    fetch, workers = loader.fetch, worker_columns(loader)
    groups = [
        [] if loader.bound else [f"what bounds it is {UNKNOWN_LIMIT}"],
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
    reason, got_through = cause(summary), ", ".join(progress(summary))
    sentences = (
        [f"{ending(summary)}: {got_through}."]
        if reason is None
        else [f"{ending(summary)}: {reason}.", f"It got through {got_through}."]
    )
    if summary.out_of_memory is not None:
        sentences.append(ran_out(summary.out_of_memory))
    if is_memory_death(summary):
        sentences += memory_before_the_end(summary)
    return " ".join(escaped(sentence) for sentence in sentences)


def _standstill(summary: RunSummary) -> str:
    places = standstill(summary)
    if places is None:
        return ""
    sentence, rows = places
    cells = [list(map(escaped, row)) for row in rows]
    stood = table(["process", "line", "where it stood"], cells, words=3)
    return f"{escaped(sentence)}\n\n{stood}"


def _ledger(summary: RunSummary) -> str:
    ledger = ledger_table(summary)
    if ledger is None:
        return escaped(f"Where the time went: {why_not_measured(summary, 'ledger')}.")
    rows = [*ledger.rows, ledger.total]
    ranks_note = f", mean of {ledger.ranks} ranks" if ledger.ranks > 1 else ""
    columns = [
        (f"where the time went{ranks_note}", [escaped(row.label) for row in rows]),
        (ledger.run_unit, [row.seconds for row in rows]),
        ("% of wall time", [row.percent for row in rows]),
    ]
    if ledger.step_unit:
        columns.append((f"{ledger.step_unit} a step", [row.per_step for row in rows]))
    if ledger.has_device:
        columns.append((f"{ledger.run_unit} on the device", [row.on_device for row in rows]))
    titles, cells = zip(*columns, strict=True)
    return table(titles, zip(*cells, strict=True))


def _steps(summary: RunSummary) -> str:
    step = summary.training.step_s
    if step is None:
        return escaped(f"Steps: {why_not_measured(summary, 'training.step_s')}.")
    sentences = [
        f"Steps: median {seconds(step.p50)}, p95 {seconds(step.p95)}, max {seconds(step.max)} "
        f"over {counted(summary.training.steady_steps, 'steady step')}"
    ]
    if summary.outliers:
        worst = max(summary.outliers, key=lambda outlier: outlier.seconds)
        sentences.append(
            f"{counted(summary.outliers_in_all, 'outlier')}: {outlier_sentence(worst)}"
        )
    evaluation = summary.evaluation
    if evaluation.passes:
        share = percent(share_of(evaluation.waited_s, evaluation.seconds))
        passes = counted(evaluation.passes, "evaluation pass", "evaluation passes")
        sentences.append(f"{passes} took {seconds(evaluation.seconds)}, waiting for data {share}")
    return escaped("; ".join(sentences) + ".")


def _loaders(summary: RunSummary) -> str:
    if not summary.loaders:
        return "No DataLoader was seen."
    rows = [
        [
            escaped(loader.site),
            escaped(loader.role),
            "?" if loader.num_workers is None else str(loader.num_workers),
            count(loader.iterations),
            seconds(loader.wait_s.mean) if loader.wait_s else NOT_MEASURED,
            seconds(loader.wait_s.p95) if loader.wait_s else NOT_MEASURED,
            seconds(loader.first_batch_s.mean) if loader.first_batch_s else NOT_MEASURED,
        ]
        for loader in summary.loaders[:_LOADERS_SHOWN]
    ]
    titles = ["loader", "used for", "workers", "batches", "wait mean", "p95", "first batch, mean"]
    shown = table(titles, rows, words=2)
    hidden = len(summary.loaders) - _LOADERS_SHOWN
    return f"{shown}\n\nand {hidden} more." if hidden > 0 else shown


def _gpus(summary: RunSummary) -> str:
    system = summary.system
    gpus = [] if system is None else [gpu for gpu in system.gpus if not is_hidden(gpu)]
    if system is None or not gpus:
        return ""
    together = energy_words(system.energy)
    sentence = f"\n\n{_sentence(together)}" if any(together) else ""
    return f"{_columns(gpu_columns(gpus))}{sentence}"


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
