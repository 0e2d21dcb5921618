"""What a rule is: thresholds, a question to a case, and its explanation."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType

from trainprof.analysis.summary.finding import Finding
from trainprof.findings.run_context import Case


@dataclass(frozen=True, slots=True)
class Threshold:
    """From which value on something counts, or up to which, and where that value comes from."""

    value: float
    source: str
    is_upper: bool = False


@dataclass(frozen=True, slots=True)
class Rule:
    """One kind of finding.

    Attributes:
        id: A word.
        thresholds: By name.
        keys: Of the ledger: where in a step it shows, none where it lies outside of steps.
        find: Returns what it finds in a case, or None.
        explanation: What it means, how it is measured, when it is wrong, what to do.
    """

    id: str
    thresholds: Mapping[str, Threshold]
    keys: tuple[str, ...]
    find: Callable[[Case], Finding | None]
    explanation: str


def rule_in(module: ModuleType) -> Rule:
    """Returns the rule that a module defines by ID, THRESHOLDS, KEYS, `find` and its docstring."""
    explanation = inspect.getdoc(module) or ""
    return Rule(module.ID, module.THRESHOLDS, module.KEYS, module.find, explanation)
