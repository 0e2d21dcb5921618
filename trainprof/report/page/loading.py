"""Data loading: the page's block on a loader that training waits for, and a loader in full."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.text import Text

from trainprof.analysis.summary.loader import Loader
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report.text.batch_time import (
    BatchGroup,
    BatchPart,
    batch_bars,
    code_parts,
    folded,
    making_parts,
    named,
    waiting_parts,
)
from trainprof.report.text.ending import ending
from trainprof.report.text.layout import Page, written
from trainprof.report.text.loader_tables import (
    LEGEND,
    batch_groups,
    distributions,
    facts,
    making,
    slow_sample_columns,
    totals,
    worker_columns,
)
from trainprof.report.text.loader_words import (
    UNKNOWN_LIMIT,
    busy_words,
    faults,
    keeps_up,
    limit_words,
    makers,
    needs_words,
    ready_words,
    warnings,
)
from trainprof.report.text.safe_text import with_safe_text
from trainprof.report.text.units import percent, seconds

# Smaller parts of a batch's making share a line.
SHOWN_FROM_SHARE: Final = 0.05
# Of the workers that died, and of what else is out of the ordinary.
SENTENCES_SHOWN: Final = 2
_TITLE: Final = "Data loading"
_INDENT: Final = 2
_WAITS: Final = {
    "blocked": "until it is made",
    "receive": "to take it over",
    "handover": "until its worker hands it over",
    "sampler": "to draw its indices",
}
# Where there is no room for all of a block, what comes first here stays.
_BY_USE: Final = ("faults", "limit", "parts", "warnings", "waits", "code")
BLANK: Final = (Text(),)


def loading_section(summary: RunSummary, page: Page, room: int) -> list[Text]:
    """Returns a block for each loader that training waits for; where all keep up, one line.

    `room`: lines at most; the first heading stands in any case.
    """
    needy = _needy(summary)
    if not needy:
        return _all_keep_up(summary, page) if room > 0 else []
    lines = loader_block(needy[0], summary, page, room)
    for loader in needy[1:]:
        more = loader_block(loader, summary, page, room - len(lines))
        # A heading alone says little.
        if len(more) > 1 and len(lines) + len(more) <= room:
            lines += more
    return lines


def wanted_lines(summary: RunSummary, page: Page) -> int:
    """Returns how many lines the first block takes in full; 0 where no loader needs one."""
    return sum(len(loader_block(loader, summary, page, None)) for loader in _needy(summary)[:1])


def loader_block(loader: Loader, summary: RunSummary, page: Page, room: int | None) -> list[Text]:
    """Returns a loader's heading and what of its block fits below; all of it without `room`."""
    block = {
        "parts": _parts(loader, page),
        "code": _code(loader, page),
        "waits": _waits(loader, page),
        "limit": _opened("Limit", limit_words(loader, summary), page),
        "faults": _sentences(faults(loader), page),
        "warnings": _sentences(warnings(loader, summary), page),
    }
    heading = _titled(f"{_TITLE} at {page.site(loader.site)}: {makers(loader)}", page)
    if room is not None:
        left = room - len(heading)
        for name in _BY_USE:
            if name == "parts" and len(block[name]) > left:
                block[name] = _parts_in_words(loader, page)
            if name == "warnings":
                block[name] = _sentences(warnings(loader, summary), page, left)
            if len(block[name]) > left:
                block[name] = []
            left -= len(block[name])
    return [*heading, *(line for lines in block.values() for line in lines)]


def _needy(summary: RunSummary) -> list[Loader]:
    loaders = [loader for loader in summary.loaders if needs_words(loader, summary)]
    return sorted(loaders, key=lambda loader: loader.role != "training")


def _all_keep_up(summary: RunSummary, page: Page) -> list[Text]:
    for loader in summary.loaders:
        if loader.role == "training" and keeps_up(loader):
            at, fragments = f"at {page.site(loader.site)} ", [keeps_up(loader), busy_words(loader)]
            tries = (at, fragments), (at, fragments[:1]), ("", fragments[:1])
            lines = [_titled(f"{_TITLE} {where}{', '.join(said)}", page) for where, said in tries]
            return next((attempt for attempt in lines if len(attempt) == 1), [])
    return []


def _titled(sentence: str, page: Page) -> list[Text]:
    lines = page.paragraph(sentence)
    if len(lines) > 1:
        first, *others = page.paragraph(sentence, indent=_INDENT)
        lines = [first[_INDENT:], *others]
    lines[0].stylize("bold", 0, len(_TITLE))
    return lines


def _opened(label: str, sentence: str, page: Page) -> list[Text]:
    if not sentence:
        return []
    lines = page.paragraph(f"{label}: {sentence}.", indent=_INDENT)
    lines[0].stylize("bold", _INDENT, _INDENT + len(label))
    return lines


def _parts(loader: Loader, page: Page) -> list[Text]:
    parts = making_parts(loader.fetch) if loader.fetch else []
    return batch_bars([BatchGroup("", folded(parts, SHOWN_FROM_SHARE))], page)


def _parts_in_words(loader: Loader, page: Page) -> list[Text]:
    parts = making_parts(loader.fetch) if loader.fetch else []
    fragments = [f"{part.words} {percent(part.share)}" for part in folded(parts, SHOWN_FROM_SHARE)]
    return page.paragraph(_sentence(fragments), indent=_INDENT) if fragments else []


def _code(loader: Loader, page: Page) -> list[Text]:
    parts = code_parts(loader.fetch) if loader.fetch else []
    dataset, collate = named(parts, "dataset"), named(parts, "collate")
    code = [
        f"the dataset takes {percent(dataset.share)} of that" if dataset else "",
        f"collating {percent(collate.share)}" if collate else "",
    ]
    fragments = [", ".join(part for part in code if part), busy_words(loader)]
    return page.paragraph(_sentence(fragments, "; "), indent=_INDENT) if any(fragments) else []


def _waits(loader: Loader, page: Page) -> list[Text]:
    parts: Sequence[BatchPart] = waiting_parts(loader)
    if loader.num_workers == 0 or loader.wait_s is None or named(parts, "blocked") is None:
        return []
    fragments = [
        f"{seconds(part.seconds)} {_WAITS[part.name]}"
        for part in folded(parts, SHOWN_FROM_SHARE)
        if part.name in _WAITS
    ]
    waits = ", ".join([f"training waits {seconds(loader.wait_s.mean)} for it", *fragments])
    return page.paragraph(_sentence([waits, ready_words(loader)], "; "), indent=_INDENT)


def _sentences(sentences: Sequence[str], page: Page, room: int | None = None) -> list[Text]:
    """Returns the first sentences; with `room`, those of them that fit into so many lines."""
    lines: list[Text] = []
    for sentence in sentences[:SENTENCES_SHOWN]:
        more = page.paragraph(_sentence([sentence]), indent=_INDENT)
        if room is None or len(lines) + len(more) <= room:
            lines += more
    return lines


def _sentence(fragments: Sequence[str], separator: str = ", ") -> str:
    whole = separator.join(part for part in fragments if part)
    return f"{whole[:1].upper()}{whole[1:]}."


def render_loader(
    summary: RunSummary, index: int, *, width: int, color: bool, unicode: bool = True
) -> str:
    """Returns the loader at `index` of `summary.loaders` as a page, as `page.render` does."""
    summary = with_safe_text(summary)
    page = Page(width=width, unicode=unicode, verbose=True)
    loader = summary.loaders[index]
    run = page.paragraph(f"trainprof: {ending(summary)}")
    return written([*run, *BLANK, *loader_lines(loader, summary, page)], page, color=color)


def loader_details(summary: RunSummary, page: Page) -> list[Text]:
    """Returns all that is known of each loader, for a page of the whole run."""
    each = (loader_lines(loader, summary, page) for loader in summary.loaders)
    return [line for lines in each for line in (*BLANK, *lines)]


def loader_lines(loader: Loader, summary: RunSummary, page: Page) -> list[Text]:
    """Returns all that is known of a loader."""
    title = page.paragraph(f"Loader {loader.id} at {loader.site}: {makers(loader)}", style="bold")
    blocks = [
        [*title, *_limits(loader, summary, page)],
        [
            *page.labelled("Facts", facts(loader)),
            *page.labelled("Run", totals(loader)),
            *_made(loader, page),
        ],
        _bars(loader, page),
        page.table(distributions(loader)) if distributions(loader) else [],
        _workers(loader, page),
        _slow_samples(loader, page),
    ]
    lines: list[Text] = []
    for block in blocks:
        lines += [*(BLANK if lines and block else ()), *block]
    return lines


def _limits(loader: Loader, summary: RunSummary, page: Page) -> list[Text]:
    limit = limit_words(loader, summary) or (loader.bound.by if loader.bound else UNKNOWN_LIMIT)
    lines = page.labelled("Limit", [limit])
    for number, sentence in enumerate([*faults(loader), *warnings(loader, summary)]):
        lines += page.labelled("" if number else "Note", [sentence])
    return lines


def _made(loader: Loader, page: Page) -> list[Text]:
    return page.labelled("Batches", making(loader.fetch)) if loader.fetch else []


def _bars(loader: Loader, page: Page) -> list[Text]:
    bars = batch_bars(batch_groups(loader), page)
    return [*page.paragraph("Where a batch's time goes", style="bold"), *bars] if bars else []


def _workers(loader: Loader, page: Page) -> list[Text]:
    columns = worker_columns(loader)
    return [*page.table(columns), *page.paragraph(LEGEND, indent=2)] if columns else []


def _slow_samples(loader: Loader, page: Page) -> list[Text]:
    columns = slow_sample_columns(loader.fetch) if loader.fetch else []
    return page.table(columns) if columns else []
