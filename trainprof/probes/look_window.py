"""What looks at backward passes may cost, and what is met between them."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any

from trainprof.probes.session import ModuleCall, Session


@dataclass(slots=True)
class LookWindow:
    """Looks since the last optimizer that was new.

    Attributes:
        next_pass: At which to look, at the earliest.
        began_ns: When the first look began, 0 before that.
        spent_ns: By looks.
        passes: Of backward, seen, without those inside others.
        looks: Taken.
        nodes: Gone through.
        met: The outermost modules called meanwhile, by id: weakly, with the line of the call.
    """

    next_pass: int
    began_ns: int = 0
    spent_ns: int = 0
    passes: int = 0
    looks: int = 0
    nodes: int = 0
    met: dict[int, tuple[weakref.ref[Any], int]] = field(default_factory=dict)

    def may_spend(self, share: float, now_ns: int) -> bool:
        """Whether the next look is due, and those before it took no more than `share` of time."""
        return self.passes > self.next_pass and (
            self.began_ns == 0 or self.spent_ns <= share * (now_ns - self.began_ns)
        )

    def spend(self, session: Session, since_ns: int) -> None:
        """Counts the time since then as that of a look."""
        self.spent_ns += session.looked_since(since_ns)

    def meet(self, call: ModuleCall) -> None:
        key = id(call.module)
        if key not in self.met:
            self.met[key] = weakref.ref(call.module), call.site

    def models(self) -> list[tuple[Any, int]]:
        """Returns the modules that were met and still live, each with the line of its call."""
        alive = ((one(), site) for one, site in self.met.values())
        return [(module, site) for module, site in alive if module is not None]
