"""Which steps a probe looks at closer: none of the first, each after a share of those before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from trainprof.probes.session import Session

_NOT_THE_FIRST: Final = 12
_GAP_SHARE: Final = 0.25
# Of the time since the first step: where looks have taken more, the next one is put off.
_COST_SHARE: Final = 1 / 200
# Steps of other optimizers in a look: behind so many the first may never come again.
_MOST_OTHERS: Final = 8
# Optimizers that are told apart.
_MOST_KNOWN: Final = 1_024


class StepLooks:
    """Opens a look as a step begins that is due, and closes it as that step has ended.

    Where several optimizers step in turn (a generator's and a judge's), it opens behind a step of
    the one that has made most of those since the look before, and closes behind the next of that
    one: a look has what all of them do in one step of it.

    Args:
        session: Its steps are counted, and its clock is read.
        opens, closes: To be called then; `closes` with the optimizer that has stepped, None where
            the look ends for another reason.
    """

    def __init__(
        self, session: Session, opens: Callable[[], None], closes: Callable[[Any], None]
    ) -> None:
        self._session, self._opens, self._closes = session, opens, closes
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forgets all, as in a forked child, which may train something of its own."""
        self._has_begun = self.is_open = False
        self._steps = self._spent_ns = self._began_ns = self._opener = self._others = 0
        # By their ids, which another may have once one is gone: it goes on where that one was.
        self._known: set[int] = set()
        self._since: dict[int, int] = {}
        self._due = _NOT_THE_FIRST

    @property
    def taken(self) -> int:
        """Steps so far."""
        return self._steps

    def begin(self, stepped: Callable[[Any], None]) -> None:
        """Begins with the first step; `stepped` is to be `stepped`, guarded."""
        if not self._has_begun:
            self._has_begun = True
            self._began_ns = self._session.now()
            self._session.watch_steps(stepped, is_on=True)

    def stepped(self, optimizer: Any) -> None:
        """Looks at the next step where one is due, and at that alone."""
        self._steps += 1
        number = id(optimizer)
        is_new = number not in self._known
        if is_new and len(self._known) < _MOST_KNOWN:
            self._known.add(number)
        self._since[number] = self._since.get(number, 0) + 1
        if self.is_open:
            self._others += 1
            # One that is new may have come in place of the first, as where each batch has its own.
            if number == self._opener or is_new or self._others > _MOST_OTHERS:
                self.close(optimizer)
        elif self._steps >= self._due and self._since[number] == max(self._since.values()):
            spent = self._spent_ns / max(self._session.now() - self._began_ns, 1)
            if spent > _COST_SHARE:
                self._put_off()
            else:
                self.is_open = True
                self._opener, self._others = number, 0
                self._opens()

    def close(self, optimizer: Any = None) -> None:
        """Ends the look; the next one is due a share of the steps so far later."""
        self.is_open = False
        self._closes(optimizer)
        self._put_off()

    def _put_off(self) -> None:
        self._since = {}
        self._due = self._steps + int(_GAP_SHARE * self._steps)

    def spent(self, since_ns: int) -> None:
        """Counts what a look took from that time on."""
        self._spent_ns += self._session.looked_since(since_ns)
