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
    """Returns what goes behind a line's share: what it calls, and its function's other lines."""
    parts = inside(line), _rest(line)
    are_apart = line.is_line_known and not line.is_likely
    return "".join(parts if are_apart else reversed(parts))


def inside(line: HotLine) -> str:
    """Returns in which library's function most of a line's time is, to go behind its share."""
    return "" if line.library_call is None else f", mostly in {line.library_call}"


def _rest(line: HotLine) -> str:
    if _is_alone(line):
        return ""
    if line.other_lines:
        if not line.is_line_known or line.is_likely:
            return f" with {_others(line)}"
        if line.is_at_least:
            return f", and more to {_others(line)}"
        shares = (f"{percent(x)} to line {_number(at)}" for at, x in line.other_lines.items())
        return f", {' and '.join(shares)}"
    if line.line_share is None:
        return ""
    if not line.is_line_known:
        return " with the lines around it" if is_nameless(line) else " with the rest of it"
    rest = "with the lines around it" if is_nameless(line) else "with the rest of that function"
    return f", {_share(line, line.share)} {rest}"


def _is_alone(line: HotLine) -> bool:
    """Whether a line has nearly all that its function has."""
    return line.line_share is not None and line.line_share >= _NEARLY_ALL * line.share


def _others(line: HotLine) -> str:
    """Returns a function's other lines in words: "line 23", "lines 23 and 25"."""
    numbers = [_number(site) for site in line.other_lines]
    return f"line{'s' if len(numbers) > 1 else ''} {' and '.join(numbers)}"


def _number(site: str) -> str:
    return site.rpartition(":")[2]


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
        if line.other_lines:
            here = f"this line and {_others(line)}"
            at = f"{name}, at {here}," if name else here
        if not line.is_likely:
            take = "takes" if name or not line.other_lines else "take"
            return f"{at} {take} {_share(line, line.share)} of it"
    if line.is_likely:
        return f"most of it seems to go to {at.rstrip(',')}"
    is_alone = line.line_share is None or _is_alone(line)
    if is_alone or (not name and not line.other_lines):
        return f"{at} takes {share_of(line)} of it{around(line)}"
    takes = f"{at} takes {share_of(line)} of it"
    if name:
        takes = f"{name} takes {_share(line, line.share)} of it, this line {share_of(line)}"
    shares = (f", line {_number(at)} {percent(x)}" for at, x in line.other_lines.items())
    return f"{takes}{'' if line.is_at_least else ''.join(shares)}{inside(line)}"


def caller(line: HotLine) -> list[str]:
    """Returns where a line's function is called from, as a sentence; none where nobody knows."""
    return [f"called from {line.called_from[0]}"] if line.called_from else []


def _share(line: HotLine, share: float) -> str:
    """Returns a share of a line's; of looks too few to tell all, what it is at least."""
    if not line.is_at_least:
        return percent(share)
    if line.samples:  # none where it is what is left of such a share
        share = least_share(share, line.samples / line.share)
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


def places(line: HotLine) -> str:
    """Returns a line with its function, and that function's other lines with much of it."""
    others = f" and {_others(line)}" if line.other_lines and not _is_alone(line) else ""
    return f"{place(line)}{others}"


def is_nameless(line: HotLine) -> bool:
    """Whether a line stands in no function that has a name."""
    return not line.function or line.function.startswith("<")
