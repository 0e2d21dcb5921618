"""Tells whether words of a command that are masked are others by now, without keeping them."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping, Sequence
from typing import Final

from trainprof.launch.masking import masked_argv

# A change is overlooked once in 65,536 times; who guesses words is left with as large a part of his
# guesses, each of which takes him a tenth of a second.
_DIGEST_BYTES: Final = 2
_ROUNDS: Final = 200_000
_SALT_BYTES: Final = 16
_SALT, _DIGEST = "salt", "digest"


def digest_of_masked(words: Sequence[str], salt: str | None = None) -> dict[str, str] | None:
    """Returns a salt and a digest of the words that are masked; None where none is.

    Args:
        words: Of a command, as given.
        salt: Of an earlier digest, None: a new one.
    """
    pairs = zip(words, masked_argv(words), strict=True)
    hidden = "\0".join(word for word, masked in pairs if word != masked)
    if not hidden:
        return None
    salt = secrets.token_hex(_SALT_BYTES) if salt is None else salt
    text, salted = (x.encode("utf-8", "surrogatepass") for x in (hidden, salt))
    digest = hashlib.pbkdf2_hmac("sha256", text, salted, _ROUNDS, _DIGEST_BYTES)
    return {_SALT: salt, _DIGEST: digest.hex()}


def are_others(words: Sequence[str], before: Mapping[str, str] | None) -> bool:
    """Whether masked words are not those of an earlier digest; False where there is none."""
    if before is None or not {_SALT, _DIGEST} <= before.keys():
        return False
    now = digest_of_masked(words, before[_SALT])
    return now is None or not hmac.compare_digest(
        now[_DIGEST].encode(), before[_DIGEST].encode("utf-8", "surrogatepass")
    )
