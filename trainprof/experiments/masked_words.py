"""Tells whether words of a command that are masked are others by now, without keeping them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from trainprof.experiments.salted_digest import is_digest_of, new_salt, salted_digest
from trainprof.launch.masking import masked_argv

_SALT, _DIGEST = "salt", "digest"
_BETWEEN: Final = "\0"


def digest_of_masked(words: Sequence[str]) -> dict[str, str] | None:
    """Returns a salt and a digest of the words that are masked; None where none is.

    Args:
        words: Of a command, as given.
    """
    hidden = _hidden(words)
    if not hidden:
        return None
    salt = new_salt()
    return {_SALT: salt, _DIGEST: salted_digest(hidden, salt)}


def are_others(words: Sequence[str], before: Mapping[str, str] | None) -> bool:
    """Whether masked words are not those of an earlier digest; False where there is none."""
    if before is None or not {_SALT, _DIGEST} <= before.keys():
        return False
    hidden = _hidden(words)
    return not hidden or not is_digest_of(hidden, before[_SALT], before[_DIGEST])


def _hidden(words: Sequence[str]) -> str:
    pairs = zip(words, masked_argv(words), strict=True)
    return _BETWEEN.join(word for word, masked in pairs if word != masked)
