"""Looks for denormal numbers among the gradients that backward hands from operator to operator."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from threading import get_ident
from types import ModuleType
from typing import Any, Final

from trainprof.probes.graph_look import Autograd
from trainprof.probes.session import Session

# Nodes that compute with one gradient, and with nothing that is drawn at random or changed.
KINDS: Final = frozenset(
    f"{name}Backward0"
    for name in (
        *("Addmm", "Mm", "Bmm", "Baddbmm", "Convolution"),
        *("Mul", "Div", "Sigmoid", "Tanh", "Silu", "Gelu"),
    )
)
# Of each kind, in the graph of one call of a model: nodes that are hooked, and those timed.
_MOST_HOOKED: Final = 32
_MOST_TIMED: Final = 4
# Of so many that are given denormals, at least: where gradients vanish step by step, the first ones
# are given but few.
_TIMED_OF: Final = 8
# As many times as long as without denormals, at least: by less such times differ on their own.
_LONGER: Final = 1.25
# Of the numbers looked at.
_FEW: Final = 0.002
_KEPT: Final = "_raw_saved_"


@dataclass(slots=True)
class _Kind:
    """Nodes of one kind in the graph of one call.

    Attributes:
        name: Theirs.
        apart: One of so many is hooked.
        timed_apart: One of so many that are given denormals is timed.
        met: Of those, how many were given denormals.
        timed: And computed again.
        as_is_ns: What these take as they are given.
        without_ns: And with zeros in place of denormals.
    """

    name: str
    apart: int
    timed_apart: int
    met: int = 0
    timed: int = 0
    as_is_ns: int = 0
    without_ns: int = 0

    def cost_ns(self) -> int:
        """Returns what all take longer for denormals."""
        if self.as_is_ns < _LONGER * self.without_ns:
            return 0
        return self._of_all(self.as_is_ns - self.without_ns)

    def kept_ns(self) -> int:
        """Returns what all that are given denormals take without."""
        return self._of_all(self.without_ns)

    def _of_all(self, ns: int) -> int:
        return self.apart * self.met * ns // max(self.timed, 1)


class TinyGradients:
    """Has nodes of a graph tell what they are given, and some of them compute it once more.

    A gradient goes on as it came: what is computed again is thrown away.

    Attributes:
        share: The most of one gradient's numbers that were denormal.
        site: The user's line that called the first backward with such; 0 where there was none.
    """

    def __init__(
        self,
        torch: ModuleType,
        session: Session,
        autograd: Autograd,
        guarded: Callable[[Callable[..., None]], Callable[..., None]],
        spent: Callable[[int], None],
    ) -> None:
        """`guarded` makes hooks safe; `spent` is told since when a look took its time."""
        self._torch, self._session, self._autograd = torch, session, autograd
        self._guarded, self._spent = guarded, spent
        # Of the node whose hook runs; some older torch does not tell.
        at_work: Callable[[], Any] = getattr(torch._C, "_current_autograd_node", _nobody)
        self._node_at_work = at_work
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forgets all, as in a forked child."""
        self.share, self.site = 0.0, 0
        self._kinds: list[_Kind] = []
        self._hooks: list[Any] = []

    def follow(
        self,
        nodes: Iterable[Any],
        share_of: Callable[[Any], float],
        times_of: Callable[[Callable[..., Any], list[Any]], tuple[int, int] | None],
    ) -> None:
        """Hooks some nodes of one call's graph, until `end`.

        Args:
            nodes: Of `KINDS`.
            share_of: Returns which share of a gradient's numbers is denormal, 0 where nobody knows.
            times_of: Returns what an operator takes as it is given, and without denormals, ns.
        """
        if self._node_at_work is _nobody or not self._autograd.may_hook():
            return
        by_kind: dict[str, list[Any]] = {}
        for node in nodes:
            by_kind.setdefault(type(node).__name__, []).append(node)
        for name, alike in by_kind.items():
            apart = -(-len(alike) // _MOST_HOOKED)
            some = [node for node in alike[::apart] if _keeps_all_itself(node)]
            kind = _Kind(name, apart, timed_apart=max(1, len(some) // _TIMED_OF))
            # It has nothing of the graph, which has it.
            hook = self._guarded(partial(self._given, kind, get_ident(), share_of, times_of))
            self._hooks += [node.register_prehook(hook) for node in some]
            self._kinds.append(kind)

    def end(self) -> tuple[int, int]:
        """Lets go of all nodes.

        Returns:
            What all nodes followed take longer for denormals, and what those that were given some
            take without, ns.
        """
        for hook in self._hooks:
            hook.remove()
        kinds = self._kinds
        self._hooks, self._kinds = [], []
        return sum(one.cost_ns() for one in kinds), sum(one.kept_ns() for one in kinds)

    def _given(
        self,
        kind: _Kind,
        thread: int,
        share_of: Callable[[Any], float],
        times_of: Callable[[Callable[..., Any], list[Any]], tuple[int, int] | None],
        gradients: tuple[Any, ...],
    ) -> None:
        if not self._hooks or get_ident() != thread or len(gradients) != 1:
            return
        # Not where backward is to be differentiated, nor where another look times its nodes.
        if self._torch.is_grad_enabled() or self._session.passes_timed:
            return
        if not self._autograd.may_compute():
            return
        began_ns = self._session.now()
        with self._autograd.unseen(), self._torch.no_grad():
            share = share_of(gradients[0])
            if share >= _FEW:
                self._meet(kind, share, gradients[0], times_of)
        self._spent(began_ns)

    def _meet(
        self,
        kind: _Kind,
        share: float,
        gradient: Any,
        times_of: Callable[[Callable[..., Any], list[Any]], tuple[int, int] | None],
    ) -> None:
        self.share = max(self.share, share)
        self.site = self.site or self._session.sites.find(sys._getframe(1))
        kind.met += 1
        if (kind.met - 1) % kind.timed_apart or kind.timed >= _MOST_TIMED:
            return
        node = self._node_at_work()
        if node is None or type(node).__name__ != kind.name:
            return
        found = times_of(node, [gradient])
        if found is not None:
            kind.timed += 1
            kind.as_is_ns += found[0]
            kind.without_ns += found[1]


def _nobody() -> None:
    return None


def _keeps_all_itself(node: Any) -> bool:
    """Whether no function gives back what a node keeps, such as by computing a forward again.

    Older torch does not tell.
    """
    try:
        kept = [getattr(node, name) for name in dir(node) if name.startswith(_KEPT)]
    except RuntimeError:  # given up: backward has been there
        return False
    return all(getattr(one, "unpack_hook", one) is None for one in kept)
