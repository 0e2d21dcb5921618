"""Whether a Python that is started sees what its environment tells it: so we get into it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

# Ignore the environment (-E, and -I with it), or do without `site`, which imports sitecustomize.
_APART: Final = frozenset("IES")
# The rest of a word, or the next one, is their value; behind -c and -m come the script's words.
_WITH_VALUE: Final = frozenset("WX")
_OF_SCRIPT: Final = frozenset("cm")


def is_apart(words: Sequence[str]) -> bool:
    """Whether options of Python keep its environment's sitecustomize away.

    Args:
        words: Behind the name of the interpreter.
    """
    waiting = iter(words)
    for word in waiting:
        if not word.startswith("-") or word in ("-", "--"):
            return False
        for place, letter in enumerate("" if word.startswith("--") else word[1:], 1):
            if letter in _APART:
                return True
            if letter in _OF_SCRIPT:
                return False
            if letter in _WITH_VALUE:
                if place == len(word) - 1:
                    next(waiting, None)
                break
    return False
