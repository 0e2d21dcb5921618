"""Times, shares and places as findings say them."""

from __future__ import annotations

from typing import Final

from trainprof.analysis.pipeline.bounds import Rates
from trainprof.analysis.stacks.samples import least_share
from trainprof.analysis.summary.code import HotLine
from trainprof.analysis.summary.levels import percent, percent_apart

# Of its function's share: a line that takes so much of it stands for the function.
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
    """Returns what goes behind a line's share: that of its function, where it is much more."""
    if line.line_share is None or line.line_share >= _NEARLY_ALL * line.share:
        return ""
    if not line.is_line_known:
        return " with the lines around it" if is_nameless(line) else " with the rest of it"
    rest = "with the lines around it" if is_nameless(line) else "with the rest of that function"
    return f", {_share(line, line.share)} {rest}"


def its_share(line: HotLine) -> str:
    """Returns what of its part a line takes, as far as that is known, and those around it."""
    if line.is_likely:
        return "to which most of it seems to go"
    return f"{share_of(line)} of it{around(line)}"


def takes_of_it(line: HotLine) -> str:
    """Returns what of its part a line takes that is named already, with its function."""
    name = "" if is_nameless(line) else f"{line.function}()"
    at = f"this line, in {name}," if name else "this line"
    if not line.is_line_known:
        at = f"{name}, around this line," if name else "the code around this line"
        if not line.is_likely:
            return f"{at} takes {_share(line, line.share)} of it"
    if line.is_likely:
        return f"most of it seems to go to {at.rstrip(',')}"
    if not around(line):
        return f"{at} takes {share_of(line)} of it"
    if not name:
        return f"{at} takes {share_of(line)} of it{around(line)}"
    return f"{name} takes {_share(line, line.share)} of it, this line {share_of(line)}"


def caller(line: HotLine) -> list[str]:
    """Returns where a line's function is called from, as a sentence; none where nobody knows."""
    return [f"called from {line.called_from[0]}"] if line.called_from else []


def _share(line: HotLine, share: float) -> str:
    """Returns a share of a line's; of looks too few to tell all, what it is at least."""
    if not line.is_at_least:
        return percent(share)
    if line.looks:  # none where it is what is left of such a share
        share = least_share(share, line.looks / line.share)
    return f"at least {percent(share)}"


def waited_of_batch(rates: Rates, wait_share: float) -> str:
    """Returns what is waited of a batch's time: "16.6 ms of 38.4 ms a batch (43 %)".

    Args:
        rates: Of the loader, as measured.
        wait_share: Of training, which is told behind: the percentage is left out where it is that.
    """
    apart = percent_apart(rates.wait_s, rates.step_s, wait_share)
    return f"{span(rates.wait_s)} of {span(rates.step_s)} a batch{apart}"


def place(line: HotLine) -> str:
    """Returns a line with its function, and the line that calls it."""
    return line.site if is_nameless(line) else f"{line.site} ({line.function})"


def is_nameless(line: HotLine) -> bool:
    """Whether a line stands in no function that has a name."""
    return not line.function or line.function.startswith("<")
