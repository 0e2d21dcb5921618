"""Looks at gradients that have a graph of their own, for those that backward uses now and then."""

from __future__ import annotations

import os
import sys
import weakref
from _thread import get_ident
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from types import ModuleType
from typing import Any, Final

from trainprof.probes.backward import creates_graph, functional_level
from trainprof.probes.graph_look import Autograd, hook_that_tells
from trainprof.probes.patcher import Patcher
from trainprof.probes.session import BackwardWatch, Session

# The user's line that asks for gradients, and the one that calls it: a function for all of them.
_LINES: Final = 2
# So many uses as far apart as each other: what depends on values comes at no such intervals.
_ENOUGH_USES: Final = 4
# After so many updates with uses alone, or without any, a line is left.
_USED_ROUNDS: Final = 32
_UNUSED_ROUNDS: Final = 128
# After so many of a line's, and of all, everything is told that will be; a script that asks for no
# such gradients is left after fewer.
_MOST_ROUNDS: Final = 400
_MOST_UPDATES: Final = 4_000
_NONE_UNTIL: Final = 64
_JUDGED_EVERY: Final = 16
# What looks may take: that of a thousand of them, and so much of the time since the first step.
_COST_NS: Final = 30_000_000
_COST_SHARE: Final = 1 / 200
_MOST_PLACES: Final = 16


@dataclass(slots=True)
class _Call:
    """Gradients whose graph lives, as far as is known.

    Attributes:
        hook: What its nodes hold; gone with them.
        reached: Whether backward came by.
    """

    hook: weakref.ref[Callable[[Any], None]]
    reached: list[bool]


@dataclass(slots=True)
class _Place:
    """The gradients with a graph that one line asks for, called from one other.

    Attributes:
        rounds: Updates before which it asked for some.
        update: The last one of those.
        took_ns: By its passes.
        uses: The rounds in which backward went through some of them.
        waiting: By round, those of which it is not known yet.
        is_settled: It is used each time, or nobody can tell.
    """

    rounds: int = 0
    update: int = -1
    took_ns: int = 0
    uses: list[int] = field(default_factory=list)
    waiting: dict[int, list[_Call]] = field(default_factory=dict)
    is_settled: bool = False

    def settle(self) -> None:
        """Sees what has become of what was given."""
        for number, calls in list(self.waiting.items()):
            if any(call.reached for call in calls):
                self.uses.append(number)
                del self.waiting[number]
            elif all(call.hook() is None for call in calls):
                del self.waiting[number]
        if self._is_hopeless():
            self.leave()

    def _is_hopeless(self) -> bool:
        known = self.rounds - len(self.waiting)
        is_always = self.rounds >= _USED_ROUNDS and len(self.uses) == known
        is_never = known >= _UNUSED_ROUNDS and not self.uses
        return is_always or is_never or (self._is_known() and len(self._apart()) > 1)

    def _apart(self) -> set[int]:
        """Returns how far apart uses are."""
        return {later - earlier for earlier, later in pairwise(sorted(self.uses))}

    def _is_known(self) -> bool:
        """Whether nothing is waited for that was given before the last use."""
        return not self.uses or self._first_unknown() > max(self.uses)

    def _first_unknown(self) -> int:
        return min(self.waiting, default=self.rounds)

    def leave(self) -> None:
        self.is_settled = True
        self.waiting.clear()

    def period(self) -> int | None:
        """Returns each how many rounds there is a use; None where that is no rule.

        Between two uses, all others are known to be none.
        """
        if self.is_settled or len(self.uses) < _ENOUGH_USES or not self._is_known():
            return None
        period = max(self._apart())
        is_all = min(self.uses) < period and self._first_unknown() - max(self.uses) <= period
        return period if is_all and period > 1 else None


class RarelyUsedGradientsProbe:
    """Tells of lines that ask for gradients with a graph at each update, which few of them use.

    A hook on what autograd.grad gives tells whether a backward pass comes by; it goes with the
    graph. Told are lines whose gradients are used at regular intervals, and at no update between.
    Those that never are may be read, and what is used at odd times may depend on what was read.
    """

    name = "rarely_used_gradients"

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._places: dict[tuple[int, ...], _Place] = {}
        # Of the thread that trains: how many passes it is in, and of the outermost when it began
        # and whose it is.
        self._thread = self._depth = self._pass_ns = 0
        self._place: _Place | None = None
        self._updates = self._all_ns = self._began_ns = self._spent_ns = 0
        self._is_told = False

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        self._torch, self._session = torch, session
        self._process = os.getpid()
        self._autograd = Autograd(torch, session)
        self._level = functional_level(torch)
        self._watch = BackwardWatch(
            patcher.guarded(self._begins),
            patcher.guarded(self._has_ended),
            patcher.guarded(self._gives),
        )
        self._steps = patcher.guarded(self._stepped)
        session.at_first_step.append(patcher.guarded(self._first_step))
        session.at_end.append(patcher.guarded(self._judge_at_end))
        patcher.at_fault(self._stop)
        os.register_at_fork(after_in_child=self._begin_anew)

    def _first_step(self, _: Any) -> None:
        if not self._thread:
            self._thread, self._began_ns = get_ident(), self._session.now()
            self._session.watch_backward(self._watch, is_on=True)
            self._session.watch_steps(self._steps, is_on=True)

    def _stop(self) -> None:
        self._session.watch_backward(self._watch, is_on=False)
        self._session.watch_steps(self._steps, is_on=False)

    def _begin_anew(self) -> None:
        """In a forked child, which may train something of its own."""
        self._stop()
        self._reset()
        self._process = os.getpid()

    def _begins(self, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if get_ident() != self._thread:
            return
        self._depth += 1
        if self._depth > 1:
            return
        self._place, self._pass_ns = None, self._session.now()
        if _asks_for_graph(args, kwargs):
            began_ns, self._place = self._pass_ns, self._place_of()
            self._spend(began_ns)
            self._pass_ns = self._session.now()

    def _place_of(self) -> _Place | None:
        lines = tuple(self._session.sites.frames(sys._getframe(1))[:_LINES])
        if lines not in self._places and len(self._places) >= _MOST_PLACES:
            return None
        return self._places.setdefault(lines, _Place())

    def _has_ended(self) -> None:
        if get_ident() != self._thread or not self._depth:
            return
        self._depth -= 1
        if self._depth:
            return
        took_ns = self._session.now() - self._pass_ns
        self._all_ns += took_ns
        if self._place is not None:
            self._place.took_ns += took_ns

    def _gives(self, gradients: Any) -> None:
        place = self._place
        if get_ident() != self._thread or self._depth or place is None:
            return
        self._place = None
        if place.is_settled:
            return
        began_ns = self._session.now()
        if place.update != self._updates:
            place.update = self._updates
            place.settle()
            place.rounds += 1
        call = self._hooked(gradients)
        if call is None:
            place.leave()
        else:
            place.waiting.setdefault(place.rounds - 1, []).append(call)
        self._spend(began_ns)

    def _spend(self, began_ns: int) -> None:
        self._spent_ns += self._session.looked_since(began_ns)

    def _hooked(self, gradients: Any) -> _Call | None:
        """Has the graph of gradients tell whether backward comes by; None where nobody can."""
        if not self._autograd.may_hook() or self._level() is not None:
            return None
        with self._autograd.unseen():
            tensors = [one for one in gradients if one is not None]
            if not all(map(self._autograd.is_plain, tensors)):
                return None
            nodes = {tensor.grad_fn for tensor in tensors} - {None}
            if not nodes:
                return None
            reached: list[bool] = []
            hook = hook_that_tells(reached)
            for node in nodes:
                node.register_prehook(hook)
        return _Call(weakref.ref(hook), reached)

    def _stepped(self, _: Any) -> None:
        if get_ident() != self._thread:
            return
        self._updates += 1
        if self._updates % _JUDGED_EVERY == 0:
            self._judge()
            if self._is_done():
                self._stop()

    def _is_done(self) -> bool:
        if self._updates < _NONE_UNTIL:
            return False
        places = self._places.values()
        may_take_ns = _COST_NS + _COST_SHARE * (self._session.now() - self._began_ns)
        return (
            self._spent_ns > may_take_ns
            or all(place.is_settled for place in places)
            or any(place.rounds >= _MOST_ROUNDS for place in places)
            or self._updates >= _MOST_UPDATES
        )

    def _judge_at_end(self) -> None:
        if os.getpid() == self._process:
            self._judge()
            self._stop()

    def _judge(self) -> None:
        """Tells of the lines that are used at regular intervals; takes back what was wrong."""
        told = []
        for lines, place in self._places.items():
            if not place.is_settled:
                place.settle()
            period = place.period()
            if period is not None:
                told.append(self._told(lines, place, period))
        if told or self._is_told:
            self._is_told = bool(told)
            self._session.note_state({"rarely_used_gradients": told})

    def _told(self, lines: tuple[int, ...], place: _Place, period: int) -> dict[str, Any]:
        site, caller = (*lines, 0, 0)[:_LINES]
        return {
            "site": site,
            "caller": caller,
            "period": period,
            "updates": place.rounds,
            "share": place.took_ns / max(self._all_ns, 1) * (1 - 1 / period),
        }


def _asks_for_graph(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether it is an `autograd.grad` with create_graph=True, as torch calls the engine for it."""
    return kwargs.get("accumulate_grad") is False and creates_graph(args, kwargs)
