"""What a rule is: thresholds, a search in a run, an explanation, relations to other rules."""

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
        find: Returns a finding of a run, or None.
        order: Sort key among rules.
        old_names: Names of earlier versions. `saved.py` has to know a new one, as it keeps names
            of findings that have traits.
        noise_matters: A gain that the run's noise hides is not reported. False for costs outside of
            steady steps, and for changes during the run itself.
        by_timing: Its cause is a comparison of times, not an argument, a call or a line: uneven
            times hide it.
        explained_by: Rules whose finding is the cause of this one.
        explains_unsure_workers: Its finding explains why more workers may not help.
        comes_of: Rules whose finding at the same line is the cause, and gets the gain.
        lines_behind: As a cause: lines after its own that may be part of it.
        saves_in_steps: It shortens the training thread's work in steps: loaders have to keep up.
        idles_device: A GPU idles for it, after synchronizing calls as well.
        includes: The rule whose saving it contains.
        of_evaluation: It is about evaluation.
        changes_steps: The change alters the number of steps in an epoch.
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
        """Returns a threshold: as set by "rule.name", else the default."""
        return settings.get(f"{self.id}.{name}", self.thresholds[name].value)
