"""Thresholds that the user has set: `--rule serial_loading.wait_share=0.1`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from trainprof.findings.catalogue import RULES


class UnknownThreshold(ValueError):
    """No rule has a threshold of that name, or the value is no number."""


def parsed_settings(words: Iterable[str]) -> dict[str, float]:
    """Returns the thresholds set by words such as "serial_loading.wait_share=0.1".

    Raises:
        UnknownThreshold: If a name or a value means nothing.
    """
    found = {}
    for word in words:
        name, _, value = word.partition("=")
        if name not in threshold_names():
            known = ", ".join(threshold_names())
            raise UnknownThreshold(f"no rule has a threshold {name!r}; there are: {known}")
        try:
            found[name] = float(value)
        except ValueError:
            raise UnknownThreshold(f"{name} needs a number, not {value!r}") from None
        if not math.isfinite(found[name]) or found[name] < 0:
            raise UnknownThreshold(f"{name} needs a number from 0 on, not {value!r}")
        if name.endswith("share") and found[name] > 1:
            raise UnknownThreshold(f"{name} is a share, 0 to 1, not {value!r}")
    return found


def rule_settings(told: Any) -> dict[str, float]:
    """Returns the thresholds of a manifest; what means nothing is left out."""
    if not isinstance(told, Mapping):
        return {}
    return {
        str(name): float(value)
        for name, value in told.items()
        if name in threshold_names()
        and isinstance(value, (int, float))
        and not isinstance(value, bool)
        and math.isfinite(value)
        and value >= 0
    }


def threshold_names() -> list[str]:
    return [f"{rule.id}.{name}" for rule in RULES for name in rule.thresholds]
