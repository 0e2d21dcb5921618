"""The arguments of two sides: what was changed, and what runs of a side have of their own."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from trainprof.record.names import MASK

NONE_GIVEN: Final = "(none)"
_OPTION: Final = re.compile(r"--?[A-Za-z]")
# What options and settings (`--lr 0.1`, `--lr=0.1`, `optimizer.lr=0.1`) are called by.
_NAMED: Final = re.compile(r"(--?[A-Za-z][^= ]*)|([+~]{0,2}[A-Za-z_][\w.@/-]*)=")
_RUNS_NAMED: Final = 3
_NAMES_TOLD: Final = 3

Words = Sequence[str]


@dataclass(frozen=True, slots=True)
class Argument:
    """An option with its value, a setting, or a word; a word is named by its place among those."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Changed:
    """What the sides differ by: as each had it, and in words."""

    base: str
    other: str
    text: str


@dataclass(frozen=True, slots=True)
class ComparedArguments:
    """What two sides' arguments tell.

    Attributes:
        of_runs: What runs of a side have of their own, such as a seed, in words; None: nothing.
        changed: What one side's runs share and the other's do not; None: nothing.
        hidden: That what both sides have masked may not be alike, in words; None: nothing is.
    """

    of_runs: str | None
    changed: Changed | None
    hidden: str | None = None


def compared_arguments(base: Sequence[Words], other: Sequence[Words]) -> ComparedArguments:
    """Compares what the runs of a side share; an argument of which they differ is no change.

    Args:
        base: The words behind the script, of each run.
        other: The same.
    """
    sides = [[_arguments(words) for words in side] for side in (base, other)]
    varied = [_varied(side) for side in sides]
    own = varied[0] | varied[1]
    shared = [
        dict.fromkeys(tuple(one.text for one in run if one.name not in own) for run in side)
        for side in sides
    ]
    changed = None
    if not shared[0].keys() & shared[1].keys():
        changed = _changed(*(next(iter(side), ()) for side in shared))
    return ComparedArguments(_of_runs(sides, varied), changed, _hidden(sides))


def _arguments(words: Words) -> list[Argument]:
    found: list[Argument] = []
    places = 0
    for text in _options(words):
        named = _NAMED.match(text)
        if named is None:
            places += 1
        found.append(Argument(f"{places}" if named is None else named[1] or named[2], text))
    return found


def _hidden(sides: Sequence[Sequence[Sequence[Argument]]]) -> str | None:
    """Names the arguments whose whole value is masked on both sides."""
    base, other = (
        dict.fromkeys(one.name for run in side for one in run if _is_masked(one)) for side in sides
    )
    names = [name for name in base if name in other]
    if not names:
        return None
    more = f" and {len(names) - _NAMES_TOLD} more" if len(names) > _NAMES_TOLD else ""
    who = f"{', '.join(names[:_NAMES_TOLD])}{more}"
    return f"{who} {'is' if len(names) == 1 else 'are'} masked: a change would not show"


def _is_masked(one: Argument) -> bool:
    return one.text in (f"{one.name} {MASK}", f"{one.name}={MASK}")


def _varied(side: Sequence[Sequence[Argument]]) -> set[str]:
    """Returns the names of arguments that not all runs of a side have alike."""
    names = {one.name for run in side for one in run}
    return {name for name in names if len({_of_name(run, name) for run in side}) > 1}


def _of_name(run: Sequence[Argument], name: str) -> tuple[str, ...]:
    return tuple(one.text for one in run if one.name == name)


def _of_runs(
    sides: Sequence[Sequence[Sequence[Argument]]], varied: Sequence[Collection[str]]
) -> str | None:
    """Says what the runs of each side have of their own."""
    which = [name for name, names in zip(("BASE", "OTHER"), varied, strict=True) if names]
    if not which:
        return None
    told = [
        " ".join(one.text for one in run if one.name in names) or NONE_GIVEN
        for side, names in zip(sides, varied, strict=True)
        if names
        for run in side
    ]
    each = list(dict.fromkeys(told))
    more = f" and {len(each) - _RUNS_NAMED} more" if len(each) > _RUNS_NAMED else ""
    whose = which[0] if len(which) == 1 else "a side"
    return f"the runs of {whose} are not alike: arguments {', '.join(each[:_RUNS_NAMED])}{more}"


def _changed(base: Sequence[str], other: Sequence[str]) -> Changed:
    """Names only the options and words that are not in both."""
    told = [" ".join(side) or NONE_GIVEN for side in (base, other)]
    left, added = Counter(base) - Counter(other), Counter(other) - Counter(base)
    if not left and not added:
        return Changed(told[0], told[1], "arguments in another order")
    without, with_it = (
        " ".join(dict.fromkeys(one for one in side if one in only))
        for side, only in ((base, left), (other, added))
    )
    if not without or not with_it:
        text = f"{with_it} added" if with_it else f"{without} left out"
        return Changed(told[0], told[1], f"arguments: {text}")
    return Changed(told[0], told[1], f"arguments {without} -> {with_it}")


def _options(words: Words) -> list[str]:
    """Returns the words of a command, an option and the value behind it as one."""
    found: list[str] = []
    for word in words:
        if found and " " not in found[-1] and _takes_value(found[-1]) and not _is_option(word):
            found[-1] += f" {word}"
        else:
            found.append(word)
    return found


def _is_option(word: str) -> bool:
    return _OPTION.match(word) is not None


def _takes_value(word: str) -> bool:
    return _is_option(word) and "=" not in word
