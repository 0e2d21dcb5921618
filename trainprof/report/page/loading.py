"""Data loading: the page's block on a loader that training waits for, and a loader in full."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from rich.text import Text

from trainprof.analysis.summary.loader import Loader
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report.text.batch_time import (
    BatchGroup,
    batch_bars,
    code_parts,
    folded,
    making_parts,
    named,
    waiting_parts,
)
from trainprof.report.text.ending import ending
from trainprof.report.text.layout import BLANK, Page
from trainprof.report.text.loader_words import (
    LEGEND,
    UNKNOWN_LIMIT,
    batch_groups,
    busy_words,
    configuration,
    distributions,
    faults,
    keeps_up,
    limit_words,
    makers,
    making,
    needs_words,
    ready_words,
    slow_sample_columns,
    totals,
    warnings,
    worker_columns,
)
from trainprof.report.text.safe_text import with_safe_text
from trainprof.report.text.units import percent, seconds

# Smaller parts of a batch's making share a line.
_SHOWN_FROM_SHARE: Final = 0.05
# Of the workers that died, and of what else is out of the ordinary.
_SENTENCES_SHOWN: Final = 2
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


def loading_section(summary: RunSummary, page: Page, room: int) -> list[Text]:
    """Returns a block for each loader that training waits for; where all keep up, one line.

    `room`: lines at most; the first heading stands in any case.
    """
    needy = _needy(summary)
    if not needy:
        return _all_keep_up(summary, page) if room > 0 else []
    lines = _block(needy[0], summary, page, room)
    for loader in needy[1:]:
        more = _block(loader, summary, page, room - len(lines))
        # A heading alone says little.
        if len(more) > 1 and len(lines) + len(more) <= room:
            lines += more
    return lines


def wanted_lines(summary: RunSummary, page: Page) -> int:
    """Returns how many lines the first block takes in full; 0 where no loader needs one."""
    return sum(len(_block(loader, summary, page, None)) for loader in _needy(summary)[:1])


def _block(loader: Loader, summary: RunSummary, page: Page, room: int | None) -> list[Text]:
    """Returns a loader's heading and what of its block fits below; all of it without `room`."""
    limit = limit_words(loader, summary)
    parts = folded(making_parts(loader.fetch), _SHOWN_FROM_SHARE) if loader.fetch else []
    block = {
        "parts": batch_bars([BatchGroup("", parts)], page),
        "code": _code(loader, page),
        "waits": _waits(loader, page),
        "limit": page.headed("Limit", f": {limit}.") if limit else [],
        "faults": _sentences(faults(loader), page),
        "warnings": _sentences(warnings(loader, summary), page),
    }
    heading = _titled(f" at {page.site(loader.site)}: {makers(loader)}", page)
    if room is not None:
        left = room - len(heading)
        for name in _BY_USE:
            if name == "parts" and len(block[name]) > left:
                words = [f"{part.words} {percent(part.share)}" for part in parts]
                block[name] = page.paragraph(_sentence(words), indent=_INDENT) if words else []
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
            lines = [_titled(f" {where}{', '.join(words)}", page) for where, words in tries]
            return next((attempt for attempt in lines if len(attempt) == 1), [])
    return []


def _titled(sentence: str, page: Page) -> list[Text]:
    lines = page.headed(_TITLE, sentence, indent=0)
    if len(lines) == 1:
        return lines
    first, *others = page.headed(_TITLE, sentence)
    return [first[_INDENT:], *others]


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
    parts = waiting_parts(loader)
    if loader.num_workers == 0 or loader.wait_s is None or named(parts, "blocked") is None:
        return []
    fragments = [
        f"{seconds(part.seconds)} {_WAITS[part.name]}"
        for part in folded(parts, _SHOWN_FROM_SHARE)
        if part.name in _WAITS
    ]
    waits = ", ".join([f"training waits {seconds(loader.wait_s.mean)} for it", *fragments])
    return page.paragraph(_sentence([waits, ready_words(loader)], "; "), indent=_INDENT)


def _sentences(sentences: Sequence[str], page: Page, room: int | None = None) -> list[Text]:
    """Returns the first sentences; with `room`, those of them that fit into so many lines."""
    lines: list[Text] = []
    for sentence in sentences[:_SENTENCES_SHOWN]:
        more = page.paragraph(_sentence([sentence]), indent=_INDENT)
        if room is None or len(lines) + len(more) <= room:
            lines += more
    return lines


def _sentence(fragments: Sequence[str], separator: str = ", ") -> str:
    whole = separator.join(part for part in fragments if part)
    return f"{whole[:1].upper()}{whole[1:]}."


def render_loader(summary: RunSummary, index: int, page: Page) -> str:
    """Returns the loader at `index` of `summary.loaders` as a verbose page."""
    summary, page = with_safe_text(summary), replace(page, verbose=True)
    run = page.paragraph(f"trainprof: {ending(summary)}")
    return page.written([*run, *BLANK, *_in_full(summary.loaders[index], summary, page)])


def loader_details(summary: RunSummary, page: Page) -> list[Text]:
    """Returns all that is known of each loader, for a page of the whole run."""
    each = (_in_full(loader, summary, page) for loader in summary.loaders)
    return [line for lines in each for line in (*BLANK, *lines)]


def _in_full(loader: Loader, summary: RunSummary, page: Page) -> list[Text]:
    fetch, bars = loader.fetch, batch_bars(batch_groups(loader), page)
    limit = limit_words(loader, summary) or (loader.bound.by if loader.bound else UNKNOWN_LIMIT)
    notes = ([sentence] for sentence in (*faults(loader), *warnings(loader, summary)))
    workers = page.table(worker_columns(loader))
    blocks = [
        [
            *page.paragraph(f"Loader {loader.id} at {loader.site}: {makers(loader)}", style="bold"),
            *page.labelled("Limit", [limit]),
            *page.labelled_rows("Note", notes),
        ],
        [
            *page.labelled("Facts", configuration(loader)),
            *page.labelled("Run", totals(loader)),
            *(page.labelled("Batches", making(fetch)) if fetch else ()),
        ],
        [*page.paragraph("Where a batch's time goes", style="bold"), *bars] if bars else [],
        page.table(distributions(loader)),
        [*workers, *page.paragraph(LEGEND, indent=2)] if workers else [],
        page.table(slow_sample_columns(fetch)) if fetch else [],
    ]
    lines: list[Text] = []
    for block in blocks:
        lines += [*(BLANK if lines and block else ()), *block]
    return lines
