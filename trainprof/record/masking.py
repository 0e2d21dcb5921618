"""Masks secrets in command lines and texts before they are written or shown."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from trainprof.record.names import MASK

_SECRET_NAME: Final = re.compile(
    r"key|token|secret|passw(or)?d|passphrase|credential"
    r"|(^|[-_.])(pwd?|pass|auth|cookies?|bearer|jwt|pat|webhook)$",
    re.IGNORECASE,
)
# Harmless names that contain such words, common in training scripts.
_HARMLESS_NAME: Final = re.compile(
    r"tokeni[sz]\w*|key-?_?(points?|frames?|words?|boards?)|(mon|don|tur|hoc|joc)key"
    r"|(max|min|num|n)[-_](\w*[-_])?tokens"
    # Tokenizer arguments in `transformers` and `diffusers`; columns of datasets.
    r"|(pad|eos|bos|unk|mask|cls|sep|special|additional|image|stop|placeholder|initializer)"
    r"[-_]tokens?$"
    r"|(image|label|text|target|caption|input|output|sort|column|group|data|feature)[-_]keys?$",
    re.IGNORECASE,
)
# Names whose value is masked even if it is a number; "key" and "token" often name sizes.
_SURELY_SECRET: Final = re.compile(
    r"secret|passw(or)?d|passphrase|credential|(^|[-_.])pwd?$", re.IGNORECASE
)
# A password for some programs, a port, a path or a number of epochs for others.
_MAYBE_SECRET: Final = re.compile(r"-p|(.*[-_.])?pass", re.IGNORECASE)
# `user:password` as in curl; a user name alone is not secret.
_LOGIN: Final = re.compile(r"-u|--(\w+[-_])?user", re.IGNORECASE)
_LIST: Final = re.compile(r"(key|token|secret|passw(or)?d|credential|cookie)s$", re.IGNORECASE)
# Values that are never secret: switches, and numbers of few digits or lists of them.
_SWITCH: Final = re.compile(r"true|false|yes|no|on|off|none|null", re.IGNORECASE)
_NUMBER: Final = re.compile(r"[+-]?(?P<digits>\d+\.?\d*|\.\d+)(e[+-]?\d{1,2})?", re.IGNORECASE)
_MOST_DIGITS: Final = 7
_PORT_DIGITS: Final = 5
_ASSIGNMENT: Final = re.compile(r"(?P<name>[-+~]{0,2}[A-Za-z_][\w.+-]*)=(?P<value>.*)", re.DOTALL)

# Formats of secrets, with the source: the provider's docs, an RFC, a gitleaks rule or a
# detect-secrets plugin. The lower-case marks come first: a regex is compiled only for texts with
# one of them. The group `kept` is not masked.
_FORMS: Final = (
    # RFC 3986, 3.2.1: userinfo; detect-secrets BasicAuthDetector
    (("://",), r"(?P<kept>://)[^/@\s]+(?=@)"),
    # Hugging Face, User access tokens; gitleaks huggingface-access-token
    (("hf_",), r"\bhf_[A-Za-z0-9]{8,}"),
    # OpenAI and Anthropic, API keys; gitleaks openai-api-key, anthropic-api-key
    (("sk-",), r"\bsk-[A-Za-z0-9_-]{8,}"),
    # NVIDIA, NGC API keys
    (("nvapi-",), r"\bnvapi-[\w-]{20,}"),
    # GitHub, About authentication: token formats; gitleaks github-pat
    (
        ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
        r"\b(?:gh[pousr]_|github_pat_)[A-Za-z0-9_]{8,}",
    ),
    # GitLab, Token overview: prefixes; gitleaks gitlab-pat
    (("gl",), r"\bgl(?:pat|dt|rt|ptt|cbt|ft|soat)-[\w-]{16,}"),
    # Slack, Token types; gitleaks slack-bot-token, slack-app-token
    (("xox", "xapp-"), r"\b(?:xox[abeoprs]|xapp)-[A-Za-z0-9-]{8,}"),
    # Slack, Sending messages using incoming webhooks; gitleaks slack-webhook-url
    (("hooks.slack",), r"(?P<kept>\bhooks\.slack(?:-gov)?\.com/)[\w/+-]{8,}"),
    # Discord, Webhook resource; detect-secrets DiscordBotTokenDetector has only bots
    (("/webhooks/",), r"(?P<kept>\bdiscord(?:app)?\.com/api/(?:v\d+/)?webhooks/)[\w/-]{8,}"),
    # Telegram, Bot API: authorizing your bot; gitleaks telegram-bot-api-token
    ((":a",), r"(?<!\d)\d{5,16}:A[\w-]{33,}"),
    # AWS, IAM identifiers; detect-secrets AWSKeyDetector
    (("akia", "asia"), r"\bA[KS]IA[0-9A-Z]{12,}"),
    # Google Cloud, Manage API keys; gitleaks gcp-api-key
    (("aiza",), r"\bAIza[\w-]{30,}"),
    # RFC 7519; gitleaks jwt; detect-secrets JwtTokenDetector
    (("eyj",), r"\beyJ[\w-]{8,4096}\.[\w-]{8,}(?:\.[\w-]*)?"),
    # RFC 7468; gitleaks private-key; detect-secrets PrivateKeyDetector
    (
        ("private key",),
        r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----"
        r"(?:.*?-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|.*)",
    ),
    # RFC 6750, 2.1
    (("bearer",), r"(?P<kept>\b(?i:bearer)\s+)(?=[^\s\"'\\]*\d)[\w.~+/=-]{8,}"),
    # RFC 9110, 11.6.2, and RFC 7617
    (
        ("authorization",),
        r"(?P<kept>\b(?i:authorization)\\?[\"']?\s*[:=]\s*\\?[\"']?(?:(?i:basic|bearer|token)\s+)?)"
        r"[^\"'\\\r\n]+",
    ),
    # RFC 6265, 4
    (("cookie",), r"(?P<kept>\b(?i:(?:set-)?cookie)\\?[\"']?:\s*\\?[\"']?)[^\"'\\\r\n]+"),
)
# A name and its value within a text: JSON, YAML, headers, connection strings. "token" and "key"
# need a word before them: "unexpected token" and `key=` of functions are harmless.
_NAMES: Final = ("pass", "pwd", "secret", "credential", "key", "token")
_NAMED_VALUE: Final = (
    r"(?<![\w.-])(?P<name>[\w.-]{0,64}(?:passw(?:or)?d|passphrase|pwd|secret|credential"
    r"|(?:api|access|account|auth|private|secret|signing|encryption|refresh|bearer|id|hf|bot)[-_.]?"
    r"(?:key|token))[\w-]{0,64})"
    r"(?P<between>\\?[\"']?\s*[:=]\s*)"
    r"(?:(?P<quote>\\?[\"'])(?P<quoted>.{1,4096}?)(?P=quote)|(?P<plain>[^\s\"'\\,;&(){}\[\]<>]+))"
)
# Parameters of signed URLs, which grant access like a password.
_QUERY: Final = re.compile(r"(?P<name>[?&;#][\w.~%+-]*)=(?P<value>[^&;#\s]+)")
_SIGNATURE: Final = re.compile(r"(sig|signature|auth)$", re.IGNORECASE)
# Shorter values also occur in other texts.
_LEAST_KNOWN: Final = 6


def masked_argv(argv: Sequence[str]) -> list[str]:
    """Returns `argv` with values masked that are secret by their format or their option's name.

    Switches and numbers of few digits stay: `compare` needs them to tell runs apart.
    """
    masked = []
    option = None
    ends_list = "--"  # the first value may begin with one dash
    for word in argv:
        if option is not None and not word.startswith(ends_list):
            masked.append(_masked_value(option, word))
            option, ends_list = (option, "-") if _LIST.search(option) else (None, "--")
            continue
        masked.append(_masked_word(word))
        takes_secret = word.startswith("-") and "=" not in word and _may_take_secret(word)
        option, ends_list = word if takes_secret else None, "--"
    return masked


def secret_values(argv: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Returns the values in a command and environment whose names are secret, longest first.

    Leaves out what may be plain words: short values, and those without a digit unless the name is
    surely secret.
    """
    named = [
        *zip(("", *argv), argv, strict=False),
        *(match.group("name", "value") for word in argv if (match := _ASSIGNMENT.match(word))),
        *environ.items(),
    ]
    return sorted(
        {
            value
            for name, value in named
            if len(value) >= _LEAST_KNOWN
            and _may_take_secret(name)
            and _masked_value(name, value) == MASK
            and (_SURELY_SECRET.search(name) or any(map(str.isdigit, value)))
            and not os.path.exists(value)
        },
        key=len,
        reverse=True,
    )


def masked_text(text: str, known: Sequence[str] = ()) -> str:
    """Returns `text` with secrets masked: known formats, and values after a secret's name.

    `known` secrets, longest first, are masked anywhere. Not for code: it may mask expressions.
    """
    for secret in known:
        text = text.replace(secret, MASK)
    if "=" in text:
        text = _QUERY.sub(_masked_parameter, text)
    small = text.lower()
    for marks, form in _FORMS:
        if any(mark in small for mark in marks):
            text = re.sub(form, _masked_form, text, flags=re.DOTALL)
    if any(word in small for word in _NAMES):
        text = re.sub(_NAMED_VALUE, _masked_named, text, flags=re.IGNORECASE)
    return text


def masked_json(value: Any) -> Any:
    """Returns a JSON value with secrets masked in all its texts, keys included."""
    if isinstance(value, str):
        return masked_text(value)
    if isinstance(value, Mapping):
        return {masked_json(key): masked_json(inner) for key, inner in value.items()}
    return [masked_json(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def is_secret_name(name: str) -> bool:
    """Returns whether a value of that name is probably secret."""
    return _SECRET_NAME.search(_HARMLESS_NAME.sub("", name)) is not None


def _may_take_secret(option: str) -> bool:
    is_short = _MAYBE_SECRET.fullmatch(option) or _LOGIN.fullmatch(option)
    return is_short is not None or is_secret_name(option)


def _masked_word(word: str) -> str:
    assignment = _ASSIGNMENT.fullmatch(word)
    if assignment and assignment["value"] and _may_take_secret(assignment["name"]):
        return f"{assignment['name']}={_masked_value(assignment['name'], assignment['value'])}"
    return masked_text(word)


def _masked_value(name: str, value: str) -> str:
    if _SWITCH.fullmatch(value):
        return value
    if _LOGIN.fullmatch(name):
        user, colon, password = value.partition(":")
        return f"{user}:{MASK}" if colon and password else masked_text(value)
    if _MAYBE_SECRET.fullmatch(name):
        is_other = _are_numbers(value, _PORT_DIGITS) or os.path.exists(value)
        return masked_text(value) if is_other or value.startswith("-") else MASK
    may_be_number = _SURELY_SECRET.search(name) is None
    return value if may_be_number and _are_numbers(value, _MOST_DIGITS) else MASK


def _are_numbers(value: str, most_digits: int) -> bool:
    """Returns whether it is a number of few digits, or a list of them such as [64,128]."""
    numbers = [_NUMBER.fullmatch(part.strip()) for part in value.strip("[]()").split(",")]
    return all(
        number and sum(map(str.isdigit, number["digits"])) <= most_digits for number in numbers
    )


def _masked_parameter(match: re.Match[str]) -> str:
    name = match["name"]
    is_secret = is_secret_name(name) or _SIGNATURE.search(name) is not None
    return f"{name}={MASK}" if is_secret else match[0]


def _masked_form(match: re.Match[str]) -> str:
    return match.groupdict().get("kept", "") + MASK


def _masked_named(match: re.Match[str]) -> str:
    value = match["quoted"] or match["plain"]
    if not is_secret_name(match["name"]) or _masked_value(match["name"], value) == value:
        return match[0]
    quote = match["quote"] or ""
    return f"{match['name']}{match['between']}{quote}{MASK}{quote}"
