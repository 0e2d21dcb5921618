"""Takes secrets out of command lines before they are written down."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from trainprof.record.names import MASK

_SECRET_NAME: Final = re.compile(
    r"key|token|secret|passw(or)?d|passphrase|credential", re.IGNORECASE
)
# Names that only look like it, as common in training scripts as the real ones.
_HARMLESS_NAME: Final = re.compile(
    r"tokeni[sz]\w*|key-?_?(points?|frames?|words?)|(max|min|num|n)[-_](\w*[-_])?tokens",
    re.IGNORECASE,
)
# Those of which even a number may be one: key and token as often name sizes.
_SURELY_SECRET: Final = re.compile(r"secret|passw(or)?d|passphrase|credential", re.IGNORECASE)
# What nobody could keep secret: a switch, and a number of few digits, or some of them.
_SWITCH: Final = re.compile(r"true|false|yes|no|on|off|none|null", re.IGNORECASE)
_NUMBER: Final = re.compile(r"[+-]?(?P<digits>\d+\.?\d*|\.\d+)(e[+-]?\d{1,2})?", re.IGNORECASE)
_MOST_DIGITS: Final = 7
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
    """Returns `argv` with values masked that look secret, or whose option's name does.

    A switch stays, and so does a number of few digits unless it may be a password: they are no
    secrets, and runs that differ by them are not alike.
    """
    masked = []
    option = None
    for word in argv:
        if option is not None and not word.startswith("--"):
            masked.append(_masked_value(option, word))
            option = None
            continue
        masked.append(_masked_word(word))
        takes_secret = word.startswith("-") and "=" not in word and is_secret_name(word)
        option = word if takes_secret else None
    return masked


def _masked_word(word: str) -> str:
    assignment = _ASSIGNMENT.fullmatch(word)
    if assignment and assignment["value"] and is_secret_name(assignment["name"]):
        return f"{assignment['name']}={_masked_value(assignment['name'], assignment['value'])}"
    return masked_text(word)


def _masked_value(name: str, value: str) -> str:
    may_be_number = _SURELY_SECRET.search(name) is None
    is_plain = _SWITCH.fullmatch(value) or (may_be_number and _are_numbers(value))
    return value if is_plain else MASK


def _are_numbers(value: str) -> bool:
    """Whether it is a number of few digits, or a list of them such as [64,128]."""
    found = [_NUMBER.fullmatch(one.strip()) for one in value.strip("[]()").split(",")]
    return all(one and sum(map(str.isdigit, one["digits"])) <= _MOST_DIGITS for one in found)


def masked_text(text: str) -> str:
    """Returns `text` with credentials in URLs and well-known kinds of tokens masked."""
    text = _QUERY.sub(_masked_parameter, text)
    return _SECRET_VALUE.sub(lambda found: (found["scheme"] or "") + MASK, text)


def _masked_parameter(found: re.Match[str]) -> str:
    name = found["name"]
    is_secret = is_secret_name(name) or _SIGNATURE.search(name) is not None
    return f"{name}={MASK}" if is_secret else found[0]


def is_secret_name(name: str) -> bool:
    """Whether what goes by that name is a secret, as far as the name tells."""
    return _SECRET_NAME.search(_HARMLESS_NAME.sub("", name)) is not None
