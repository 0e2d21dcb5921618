"""All rules of the modules below, and the thresholds that a user may set."""

from __future__ import annotations

import math
import pkgutil
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Any, Final

from trainprof import findings
from trainprof.findings.rule import Rule

# A probe runs in the script's process and imports what is there.
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
    """No rule has a threshold of that name, or the value is not a number."""


def parsed_settings(words: Iterable[str]) -> dict[str, float]:
    """Returns the thresholds set by words such as "serial_loading.wait_share=0.1".

    Raises:
        UnknownThreshold: If a name or a value is invalid.
    """
    result = {}
    for word in words:
        name, _, value = word.partition("=")
        if name not in threshold_names():
            near = ", ".join(get_close_matches(name, threshold_names(), cutoff=0.0))
            raise UnknownThreshold(f"unknown threshold {name!r}; the nearest are {near}")
        try:
            result[name] = float(value)
        except ValueError:
            raise UnknownThreshold(f"{name} needs a number, not {value!r}") from None
        if not math.isfinite(result[name]) or result[name] < 0:
            raise UnknownThreshold(f"{name} needs a number of 0 or more, not {value!r}")
        if name.endswith("share") and result[name] > 1:
            raise UnknownThreshold(f"{name} is a share from 0 to 1, not {value!r}")
    return result


def rule_settings(known: Any) -> dict[str, float]:
    """Returns the valid thresholds of a manifest."""
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
    """Returns all thresholds of all rules, by "rule.name": the default or as set."""
    usual = {f"{rule.id}.{name}": x.value for rule in RULES for name, x in rule.thresholds.items()}
    return {**usual, **settings}


def threshold_names() -> list[str]:
    return [f"{rule.id}.{name}" for rule in RULES for name in rule.thresholds]


# In the order in which rules are listed.
RULES: Final = tuple(sorted(_rules(), key=lambda rule: (rule.order, rule.id)))
_NAMED: Final = {name: rule for rule in RULES for name in (rule.id, *rule.old_names)}

_BY_LINE: Final = "see Hot lines on the page: the lines that take most of a step"
# Former findings: where their facts are now.
GONE: Final[dict[str, str]] = {
    "competing_thread": "see Threads in trainprof report --verbose: how often other threads ran",
    "recomputed_forward": "see recompute in trainprof report --verbose: forwards in backward",
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
    """Returns the rule of a name, or its successor."""
    return _NAMED.get(name)
