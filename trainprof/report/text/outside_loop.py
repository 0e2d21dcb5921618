"""Start-up and exit in words: which of your lines they go to, and which imports."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final

from trainprof.analysis.summary.code import OutsideLine, OutsideLoop
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report.text.units import seconds

# Of the run, and in seconds; less needs no line on the page.
_SHOWN_FROM_SHARE: Final = 0.1
_SHOWN_FROM_S: Final = 1.0
# Of start-up or exit.
_NAMED_FROM_SHARE: Final = 0.1
_MOST_FUNCTIONS: Final = 2
_MOST_PACKAGES: Final = 3
_MOST_LINES: Final = 3
_MODULE: Final = "<module>"


def outside_words(summary: RunSummary) -> list[tuple[str, list[str]]]:
    """Returns a label and fragments for each of the two that is much of the run."""
    parts = (("Start-up", "startup"), ("Exit", "shutdown"))
    least_s = max(_SHOWN_FROM_S, _SHOWN_FROM_SHARE * summary.ledger.wall_s)
    words = []
    for label, key in parts:
        spent_s = summary.ledger.seconds.get(key, 0.0)
        places = places_of(summary, key) if spent_s >= least_s else []
        if places:
            words.append((label, [f"{seconds(spent_s)}: {places[0]}", *places[1:]]))
    return words


def places_of(summary: RunSummary, key: str) -> list[str]:
    """Returns where "startup" or "shutdown" goes, most first, without what is little of it."""
    part = summary.startup if key == "startup" else summary.shutdown
    if part is None:
        return []
    least_s = _NAMED_FROM_SHARE * summary.ledger.seconds.get(key, 0.0)
    places = [(part.imports_s, _imports(part))]
    places += [(part.exit_s or 0.0, f"{seconds(part.exit_s)} after atexit, as the process ends")]
    in_order = sorted(part.lines, key=lambda line: (_function(line), -line.seconds))
    functions = [list(lines) for _, lines in groupby(in_order, key=_function)]
    functions.sort(key=_seconds, reverse=True)
    places += [(_seconds(lines), _lines(lines)) for lines in functions[:_MOST_FUNCTIONS]]
    return [words for spent_s, words in sorted(places, reverse=True) if spent_s >= least_s]


def _function(line: OutsideLine) -> tuple[str, str]:
    return (line.site or "").rpartition(":")[0], line.function


def _seconds(lines: Sequence[OutsideLine]) -> float:
    return sum(line.seconds for line in lines)


def _lines(lines: list[OutsideLine]) -> str:
    """Returns one function's: "8.1 s at train.py:24, :25 in __getitem__ (called by ...)"."""
    spent_s, first, *others = _seconds(lines), *lines
    if first.site is None:
        return f"{seconds(spent_s)} in {first.function}"
    much = [x for x in others if x.seconds >= _NAMED_FROM_SHARE * spent_s]
    numbers = (f", :{(x.site or '').rpartition(':')[2]}" for x in much[: _MOST_LINES - 1])
    function = "" if first.function == _MODULE else f" in {first.function}"
    by = f" (called by {first.called_by})" if first.called_by else ""
    return f"{seconds(spent_s)} at {first.site}{''.join(numbers)}{function}{by}"


def _imports(part: OutsideLoop) -> str:
    """Returns them in one: "5.2 s importing (transformers 3.1 s, torch 1.6 s)"."""
    least_s = _NAMED_FROM_SHARE * part.imports_s
    named = [x for x in part.imports if x.seconds >= least_s][:_MOST_PACKAGES]
    each = ", ".join(f"{x.package} {seconds(x.seconds)}" for x in named)
    return f"{seconds(part.imports_s)} importing ({each})"
