"""Takes secrets out of command lines before they are written down."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

MASK: Final = "***"

_SECRET_NAME: Final = re.compile(
    r"key|token|secret|passw(or)?d|passphrase|credential", re.IGNORECASE
)
# Names that only look like it, as common in training scripts as the real ones.
_HARMLESS_NAME: Final = re.compile(
    r"tokeni[sz]\w*|key-?_?(points?|frames?|words?)|(max|min|num|n)[-_](\w*[-_])?tokens",
    re.IGNORECASE,
)
_ASSIGNMENT: Final = re.compile(r"(?P<name>[-+~]{0,2}[A-Za-z_][\w.+-]*)=(?P<value>.*)", re.DOTALL)
_SECRET_VALUE: Final = re.compile(
    r"(?P<scheme>://)[^/@\s]+(?=@)"
    r"|\bhf_[A-Za-z0-9]{8,}"
    r"|\bsk-[A-Za-z0-9_-]{8,}"
    r"|\b(?:gh[pousr]_|github_pat_)[A-Za-z0-9_]{8,}"
    r"|\bxox[abprs]-[A-Za-z0-9-]{8,}"
    r"|\bA[KS]IA[0-9A-Z]{12,}"
)
# A signed link is as good as a password to who reads it.
_QUERY: Final = re.compile(r"(?P<name>[?&;#][\w.~%+-]*)=(?P<value>[^&;#\s]+)")
_SIGNATURE: Final = re.compile(r"(sig|signature|auth)$", re.IGNORECASE)


def masked_argv(argv: Sequence[str]) -> list[str]:
    """Returns `argv` with values masked that look secret, or whose option's name does."""
    masked = []
    is_secret_value = False
    for word in argv:
        if is_secret_value and not word.startswith("--"):
            masked.append(MASK)
            is_secret_value = False
            continue
        masked.append(_masked_word(word))
        is_secret_value = word.startswith("-") and "=" not in word and _is_secret_name(word)
    return masked


def _masked_word(word: str) -> str:
    assignment = _ASSIGNMENT.fullmatch(word)
    if assignment and assignment["value"] and _is_secret_name(assignment["name"]):
        return f"{assignment['name']}={MASK}"
    return masked_text(word)


def masked_text(text: str) -> str:
    """Returns `text` with credentials in URLs and well-known kinds of tokens masked."""
    text = _QUERY.sub(_masked_parameter, text)
    return _SECRET_VALUE.sub(lambda found: (found["scheme"] or "") + MASK, text)


def _masked_parameter(found: re.Match[str]) -> str:
    name = found["name"]
    is_secret = _is_secret_name(name) or _SIGNATURE.search(name) is not None
    return f"{name}={MASK}" if is_secret else found[0]


def _is_secret_name(name: str) -> bool:
    return _SECRET_NAME.search(_HARMLESS_NAME.sub("", name)) is not None
