"""All rules, those that the modules below define, and the thresholds that a user may set."""

from __future__ import annotations

import math
import pkgutil
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any, Final

from trainprof import findings
from trainprof.findings.rule import Rule

# It runs in the script's process, and imports what is there.
_PROBE: Final = ".probe"


def _rules() -> Iterator[Rule]:
    for area in pkgutil.iter_modules(findings.__path__, f"{findings.__name__}."):
        if not area.ispkg:
            continue
        package = import_module(area.name)
        for module in pkgutil.walk_packages(package.__path__, f"{area.name}."):
            if not module.name.endswith(_PROBE):
                defined = vars(import_module(module.name))
                yield from defined.get("RULES", ())
                if "RULE" in defined:
                    yield defined["RULE"]


class UnknownThreshold(ValueError):
    """No rule has a threshold of that name, or the value is no number."""


def parsed_settings(words: Iterable[str]) -> dict[str, float]:
    """Returns the thresholds set by words such as "serial_loading.wait_share=0.1".

    Raises:
        UnknownThreshold: If a name or a value means nothing.
    """
    result = {}
    for word in words:
        name, _, value = word.partition("=")
        if name not in threshold_names():
            known = ", ".join(threshold_names())
            raise UnknownThreshold(f"no rule has a threshold {name!r}; there are: {known}")
        try:
            result[name] = float(value)
        except ValueError:
            raise UnknownThreshold(f"{name} needs a number, not {value!r}") from None
        if not math.isfinite(result[name]) or result[name] < 0:
            raise UnknownThreshold(f"{name} needs a number from 0 on, not {value!r}")
        if name.endswith("share") and result[name] > 1:
            raise UnknownThreshold(f"{name} is a share, 0 to 1, not {value!r}")
    return result


def rule_settings(known: Any) -> dict[str, float]:
    """Returns the thresholds of a manifest; what means nothing is left out."""
    if not isinstance(known, Mapping):
        return {}
    return {
        str(name): float(value)
        for name, value in known.items()
        if name in threshold_names()
        and isinstance(value, (int, float))
        and not isinstance(value, bool)
        and math.isfinite(value)
        and value >= 0
    }


def with_usual(settings: Mapping[str, float]) -> dict[str, float]:
    """Returns all thresholds of all rules, by "rule.name", those that are set in place."""
    usual = {f"{rule.id}.{name}": x.value for rule in RULES for name, x in rule.thresholds.items()}
    return {**usual, **settings}


def threshold_names() -> list[str]:
    return [f"{rule.id}.{name}" for rule in RULES for name in rule.thresholds]


# In the order in which they are named where nothing is found.
RULES: Final = tuple(sorted(_rules(), key=lambda rule: (rule.order, rule.id)))
_NAMED: Final = {name: rule for rule in RULES for name in (rule.id, *rule.old_names)}

_BY_LINE: Final = "the lines that take most of a step are under Hot lines on the page"
# What were findings once: where they are seen now.
GONE: Final[dict[str, str]] = {
    "competing_thread": "the page says under Threads how often another thread was at work",
    "recomputed_forward": "the page names computing forwards again in backward from 5 % on",
    **dict.fromkeys(
        (
            "broadcast_pairs",
            "constant_in_forward",
            "forward_by_sample",
            "ignored_positions",
            "late_selection",
            "module_hooks",
            "rarely_used_gradients",
            "repeated_backward",
            "repeated_forward",
            "repeated_in_forward",
            "tiny_numbers",
            "untrained_modules",
            "unused_forward",
        ),
        _BY_LINE,
    ),
}


def rule_named(name: str) -> Rule | None:
    """Returns the rule of a name, or that which finds now what a rule of that name found."""
    return _NAMED.get(name)
