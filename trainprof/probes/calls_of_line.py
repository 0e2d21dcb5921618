"""How often one line calls modules of a class while it is watched, and how long that takes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from trainprof.probes.middle import median
from trainprof.probes.session import ModuleCall

_MOST_KEPT: Final = 1_000
# Once in so many passes of backward at least: what comes rarely costs little. A forward of each
# step has a pass for each model, or some that add up; a validation comes after very many.
_EVERY_SO_MANY_PASSES: Final = 6


@dataclass(slots=True, kw_only=True)
class LineCalls:
    """The calls of modules of one class from one line, while it was watched.

    Attributes:
        calls: In all.
        took_ns: By each of them, so far as they are kept.
        met_at: The last pass of backward before one of them; -1 at the beginning of a window.
        rounds: How often a pass came between two of them.
    """

    calls: int = 0
    took_ns: list[int] = field(default_factory=list)
    met_at: int = -1
    rounds: int = 0

    def open(self) -> None:
        """Begins a window: what came before it is not known."""
        self.met_at = -1

    def count(self, call: ModuleCall, passes: int) -> None:
        """Counts a call, after so many passes of backward."""
        self.calls += 1
        if len(self.took_ns) < _MOST_KEPT:
            self.took_ns.append(call.took_ns)
        before, self.met_at = self.met_at, passes
        self.rounds += before not in (-1, passes)

    def ns_in_all(self) -> float:
        """Returns what its calls took; those in which something was compiled as long as others."""
        return self.calls * median(self.took_ns)

    def come_often(self, passes: int) -> bool:
        """Whether they came often enough, while so many passes of backward were watched."""
        return self.rounds * _EVERY_SO_MANY_PASSES >= passes
