"""What a rule is: thresholds, a question to a run, its explanation, and how it meets others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainprof.analysis.summary.finding import Finding, RuleText

if TYPE_CHECKING:
    from trainprof.findings.run_context import RunContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule(RuleText):
    """One kind of finding.

    Attributes:
        find: Returns what it finds in a run, or None.
        order: Where it is named among rules, from the smallest on.
        old_names: Names under which earlier versions reported what it finds now. A new one has to
            reach `saved.py`, which takes names for today's where findings have traits.
        noise_matters: A gain that the run's noise hides is not reported. Not so of what lies
            outside of steady steps, or is the change itself that halves of a run differ by.
        by_timing: Its cause is read off times compared with each other (not off an argument, a
            call or a line): what makes times uneven hides it.
        explained_by: Rules whose finding is the cause, where both are there.
        explains_unsure_workers: Where it is there, it explains why more workers may not help.
        comes_of: Rules whose finding at the same line is the cause, and takes over the gain.
        lines_behind: Where it is a cause: so many lines behind its own may be part of it.
        saves_in_steps: It shortens what the training thread does in steps, so that loaders have to
            keep up.
        idles_device: A device idles meanwhile, after synchronizing calls too.
        includes: The rule whose saving is part of its own.
        of_evaluation: It is about evaluation.
        changes_steps: After the change epochs have other numbers of steps.
    """

    find: Callable[[RunContext], Finding | None]
    order: int = 1_000
    old_names: tuple[str, ...] = ()
    noise_matters: bool = True
    by_timing: bool = False
    explained_by: tuple[str, ...] = ()
    explains_unsure_workers: bool = False
    comes_of: tuple[str, ...] = ()
    lines_behind: int = 0
    saves_in_steps: bool = False
    idles_device: bool = False
    includes: str | None = None
    of_evaluation: bool = False
    changes_steps: bool = False

    def threshold(self, settings: Mapping[str, float], name: str) -> float:
        """Returns one of its thresholds: as the user has set it, by "rule.name", else the usual."""
        return settings.get(f"{self.id}.{name}", self.thresholds[name].value)
