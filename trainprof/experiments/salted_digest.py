"""Digests that tell whether a text is another one by now, and too little to find out which."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Final

# A change is overlooked once in 65,536 times; who guesses texts is left with as large a part of his
# guesses, each of which takes him a tenth of a second.
_DIGEST_BYTES: Final = 2
_ROUNDS: Final = 200_000
_SALT_BYTES: Final = 16


def new_salt() -> str:
    return secrets.token_hex(_SALT_BYTES)


def salted_digest(text: str, salt: str) -> str:
    """Returns the digest of any text that Python has, under a salt of `new_salt`."""
    given, salted = (x.encode("utf-8", "surrogatepass") for x in (text, salt))
    return hashlib.pbkdf2_hmac("sha256", given, salted, _ROUNDS, _DIGEST_BYTES).hex()


def is_digest_of(text: str, salt: str, digest: str) -> bool:
    now = salted_digest(text, salt)
    return hmac.compare_digest(now.encode(), digest.encode("utf-8", "surrogatepass"))
