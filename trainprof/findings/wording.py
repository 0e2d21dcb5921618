"""Times, shares and places as findings say them."""

from __future__ import annotations

from typing import Final

from trainprof.analysis.stacks.samples import least_share
from trainprof.analysis.summary.code import HotLine
from trainprof.analysis.summary.levels import percent

# Of its function's share: from here on a line stands for the function.
_NEARLY_ALL: Final = 0.9


def span(seconds: float) -> str:
    """Returns a time with its unit, to three digits."""
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        value = seconds * scale
        if value >= 1 or unit == "us":
            break
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f} {unit}"


def factor(times: float) -> str:
    """Returns how many times as fast something is, to two digits: "2.8", "100"."""
    return f"{float(f'{times:.2g}'):g}"


def number_of(count: int, word: str, many: str | None = None) -> str:
    """Returns a number with its noun: "1 call", "12 calls"."""
    return f"{count} {word if count == 1 else many or word + 's'}"


def share_of(line: HotLine) -> str:
    """Returns what of its part a line takes by itself; its function, where no line is known."""
    is_function_share = line.line_share is None or not line.is_line_known
    return _share(line, line.share if is_function_share else line.line_share or 0.0)


def around(line: HotLine) -> str:
    """Returns what goes behind a line's share: what it calls, and its function's other lines."""
    others = f", with {_others(line)}" if line.other_lines and not _is_alone(line) else ""
    return f"{inside(line)}{others}"


def inside(line: HotLine) -> str:
    """Returns in which library's function most of a line's time is, to go behind its share."""
    return "" if line.library_call is None else f", mostly in {line.library_call}"


def _is_alone(line: HotLine) -> bool:
    """Whether a line has nearly all that its function has."""
    return line.line_share is not None and line.line_share >= _NEARLY_ALL * line.share


def _others(line: HotLine) -> str:
    """Returns a function's other lines in words: "line 23", "lines 23 and 25"."""
    numbers = [site.rpartition(":")[2] for site in line.other_lines]
    return f"line{'s' if len(numbers) > 1 else ''} {' and '.join(numbers)}"


def takes_of_it(line: HotLine) -> str:
    """Returns what of its part a line takes whose place is named already, with its function."""
    where = "this line" if is_nameless(line) else f"{line.function}()"
    if line.is_likely:
        return f"{where} probably takes most of it{inside(line)}"
    takes = f"{where} takes {_share(line, line.share)} of it"
    if line.line_share is not None and line.is_line_known and not _is_alone(line):
        takes += f", this line {share_of(line)}" if not is_nameless(line) else ""
    return f"{takes}{inside(line)}"


def caller(line: HotLine) -> list[str]:
    """Returns where a line's function is called from, as a sentence; none where it is unknown."""
    return [f"called from {line.called_from[0]}"] if line.called_from else []


def _share(line: HotLine, share: float) -> str:
    """Returns a share of a line's; with too few samples, what it is at least."""
    if not line.is_at_least:
        return percent(share)
    if line.samples:  # none where it is what is left of such a share
        share = least_share(share, line.samples / line.share)
    return f"at least {percent(share)}"


def place(line: HotLine) -> str:
    """Returns a line with its function, and the line that calls it."""
    return line.site if is_nameless(line) else f"{line.site} ({line.function})"


def is_nameless(line: HotLine) -> bool:
    """Whether a line stands in no function that has a name."""
    return not line.function or line.function.startswith("<")
