"""Draws the line between our options and what belongs to the script."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

MODULE_OPTION: Final = "-m"
END_OF_OPTIONS: Final = "--"


def options_with_value(command: Any) -> frozenset[str]:
    """Returns the names, dashes included, of a click command's options that take a value."""
    return frozenset(
        name
        for parameter in command.params
        if not getattr(parameter, "is_flag", False) and not getattr(parameter, "count", False)
        for name in parameter.opts
        if name.startswith("-")
    )


def separated(arguments: Sequence[str], valued: frozenset[str]) -> list[str]:
    """Returns `arguments` with `--` put before all that belongs to the script.

    The script's part begins with SCRIPT, or behind `-m MODULE`; what stands in it is never ours.

    Args:
        arguments: What follows the verb.
        valued: Our options that take a value.
    """
    position, mark = _script_part(arguments, valued)
    if position is None or mark == END_OF_OPTIONS:
        return list(arguments)
    return [*arguments[:position], END_OF_OPTIONS, *arguments[position:]]


def script_word(arguments: Sequence[str], valued: frozenset[str]) -> str | None:
    """Returns SCRIPT, None where there is none or it is told from a saved run by `--` or `-m`.

    Args:
        arguments: What follows the verb.
        valued: Our options that take a value.
    """
    position, mark = _script_part(arguments, valued)
    return arguments[position] if position is not None and mark is None else None


def _script_part(arguments: Sequence[str], valued: frozenset[str]) -> tuple[int | None, str | None]:
    """Returns where the script's part begins, and whether behind `--`, behind `-m MODULE`."""
    position = 0
    while position < len(arguments):
        word = arguments[position]
        if word == END_OF_OPTIONS:
            return position + 1, END_OF_OPTIONS
        if word == "-" or not word.startswith("-"):
            return position, None
        option, takes_next = _option(word, valued)
        position += 2 if takes_next else 1
        if option == MODULE_OPTION:
            return position, MODULE_OPTION
    return None, None


def our_part(arguments: Sequence[str]) -> list[str]:
    """Returns the separated arguments up to the `--`."""
    words = list(arguments)
    return words[: words.index(END_OF_OPTIONS)] if END_OF_OPTIONS in words else words


def _option(word: str, valued: frozenset[str]) -> tuple[str, bool]:
    """Returns the last option in `word` (`-qm` has two), and whether its value is the next word."""
    if word.startswith("--"):
        name, has_value, _ = word.partition("=")
        return name, not has_value and name in valued
    for at, letter in enumerate(word[1:], start=1):
        name = f"-{letter}"
        if name in valued:
            return name, at == len(word) - 1
    return word, False
