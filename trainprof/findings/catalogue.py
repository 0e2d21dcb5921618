"""All rules: those that the modules below define."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from typing import Final

from trainprof import findings
from trainprof.analysis.summary.finding import Finding
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


# In the order in which they are named where nothing is found.
RULES: Final = tuple(sorted(_rules(), key=lambda rule: (rule.order, rule.id)))
_NAMED: Final = {name: rule for rule in RULES for name in (rule.id, *rule.old_names)}

_BY_LINE: Final = "the lines that take most of a step are under Hot lines on the page"
# What were findings once: where they are seen now.
GONE: Final[dict[str, str]] = {
    "competing_thread": "the page says under Threads how often another thread was at work",
    "recomputed_forward": "the page says under Not judged what computing forwards again takes",
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


def with_traits(finding: Finding) -> Finding:
    """Returns a finding with what its rule says of all its findings."""
    rule = rule_named(finding.id)
    return finding if rule is None else replace(finding, traits=rule.traits)
