"""Looks at a few updates for graphs that backward goes through more than once."""

from __future__ import annotations

import os
import random
import sys
from _thread import get_ident
from collections import Counter
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Final

from trainprof.probes.backward import creates_graph
from trainprof.probes.gradient_reads import reads_gradients
from trainprof.probes.graph_look import Autograd, GraphLook
from trainprof.probes.graph_walk import GraphTooLarge
from trainprof.probes.known_optimizers import KnownOptimizers, parameters_in
from trainprof.probes.look_window import LookWindow
from trainprof.probes.patcher import Patcher
from trainprof.probes.session import BackwardWatch, Session

# The user's line that begins a pass, and the one that calls it: a function for all of them.
_LINES: Final = 2
# Of updates, the first ones: cold.
_NOT_THE_FIRST: Final = 3
_ENOUGH_LOOKS: Final = 16
# The script may end before there are enough.
_JUDGED: Final = (4, 8, _ENOUGH_LOOKS)
# Of the time since the first of them.
_COST_SHARE: Final = 1 / 200
# Of all looks; to go through one takes some 5 us.
_MOST_NODES: Final = 40_000
# Between two looks, so that they keep in step with no loop.
_LONGEST_GAP: Final = 4
# A script that keeps no graph in so many passes is left.
_NONE_UNTIL: Final = 64
# Of the engine's arguments behind what a pass begins with.
_KEEP_GRAPH, _INPUTS = 1, 3


@dataclass(slots=True)
class _Kept:
    """What passes of an update have gone through and kept, while that update is looked at.

    Attributes:
        graph: Its nodes, each with the lines that began the first pass of it, and how many came.
        grads: By leaf that a pass has reached: its gradient, as that pass left it.
        again: By the lines of a pass and of the first of its graph: what it took for it, ns.
        passes: Through one node, at most.
        is_apart: What the passes give may not be had from one.
    """

    graph: dict[Any, tuple[tuple[int, ...], int]] = field(default_factory=dict)
    grads: dict[int, tuple[Any, tuple[int, int]]] = field(default_factory=dict)
    again: Counter[tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=Counter)
    passes: int = 1
    is_apart: bool = False


@dataclass(slots=True)
class _Pass:
    """A pass that is looked at, and the leaves that it reaches."""

    lines: tuple[int, ...]
    keeps: bool
    nodes: dict[Any, Any]
    leaves: list[Any]
    graph: GraphLook | None = None
    first: tuple[int, ...] | None = None


class RepeatedBackwardProbe:
    """Tells of lines whose backward goes through what an earlier one of the same update kept.

    That is what `retain_graph=True` is for: several losses of one forward, each with its own
    `backward()`. One of their sum goes through it once, and gives the same gradients. Nothing is
    told where these were changed or set back between the passes, or where a pass gives a gradient
    to what no optimizer has: that may be what the next loss is made of.
    """

    name = "repeated_backward"

    def __init__(self) -> None:
        # No pattern of updates repeats with it; the script's own numbers are left alone.
        self._random = random.Random(0)
        self._reset()

    def _reset(self) -> None:
        self._window = LookWindow(next_pass=_NOT_THE_FIRST)
        # Of the thread that trains: how many passes it is in, and when the outermost began.
        self._thread = self._depth = self._pass_ns = 0
        self._kept: _Kept | None = None
        self._pass: _Pass | None = None
        # Passes of this update, of those with a kept graph, of those that were looked at, of all.
        self._update_ns = self._keeping_ns = self._looked_ns = self._all_ns = 0
        self._keeps = self._is_apart = self._is_told = False
        self._passes = 0
        self._again: Counter[tuple[tuple[int, ...], tuple[int, ...]]] = Counter()
        self._times = 0

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        self._session = session
        self._process = os.getpid()
        self._autograd = Autograd(torch, session)
        self._optimizers = KnownOptimizers(session)
        self._watch = BackwardWatch(patcher.guarded(self._begins), patcher.guarded(self._has_ended))
        self._steps = patcher.guarded(self._stepped)
        session.at_first_step.append(patcher.guarded(self._first_step))
        session.at_end.append(patcher.guarded(self._judge_at_end))
        patcher.at_fault(self._stop)
        os.register_at_fork(after_in_child=self._begin_anew)

    def _first_step(self, optimizer: Any) -> None:
        self._optimizers.note(optimizer)
        if not self._thread:
            self._thread = get_ident()
            self._session.watch_backward(self._watch, is_on=True)
            self._session.watch_steps(self._steps, is_on=True)

    def _stop(self) -> None:
        self._session.watch_backward(self._watch, is_on=False)
        self._session.watch_steps(self._steps, is_on=False)
        self._kept = self._pass = None

    def _begin_anew(self) -> None:
        """In a forked child, which may train something of its own."""
        self._stop()
        self._reset()
        self._process = os.getpid()

    def _begins(self, outputs: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if get_ident() != self._thread:
            return
        self._depth += 1
        if self._depth > 1:  # checkpointing's
            return
        began_ns = self._session.now()
        self._passes += 1
        keeps = _keeps_graph(args, kwargs)
        self._keeps |= keeps
        if self._kept is None and keeps and self._window.may_spend(_COST_SHARE, began_ns):
            self._window.began_ns = self._window.began_ns or began_ns
            self._kept = _Kept()
        if self._kept is not None and kwargs.get("accumulate_grad"):
            if self._autograd.may_look(args, kwargs):
                self._pass = self._looked_at(self._kept, outputs, keeps=keeps)
            if self._pass is None and self._kept is not None:
                self._kept.is_apart = True
            self._window.spend(self._session, began_ns)
        self._pass_ns = self._session.now()

    def _looked_at(self, kept: _Kept, outputs: Any, *, keeps: bool) -> _Pass | None:
        """Goes through the graph of a pass; has its nodes timed if some of it was kept."""
        leaves: list[Any] = []

        def note(leaf: Any) -> int:
            leaves.append(leaf)
            return 0

        if not all(map(self._autograd.is_plain, outputs)):
            return None
        with self._autograd.unseen():
            try:
                left = _MOST_NODES - self._window.nodes
                nodes = self._autograd.needs_in(outputs, note, left)
            except GraphTooLarge:
                self._stop()
                return None
            self._window.nodes += len(nodes)
            if not self._are_optimized(leaves):
                return None
            known = ((leaf, kept.grads.get(id(leaf))) for leaf in leaves)
            if any(left is not None and _grad_of(leaf) != left[1] for leaf, left in known):
                return None
        lines = tuple(self._session.sites.frames(sys._getframe(1))[:_LINES])
        looked_at = _Pass(lines, keeps, nodes, leaves)
        for node in nodes:
            if node in kept.graph:
                looked_at.first, times = kept.graph[node]
                kept.graph[node] = looked_at.first, times + 1
                kept.passes = max(kept.passes, times + 1)
        if looked_at.first is not None:
            of_kept = {node: node in kept.graph for node in nodes}
            looked_at.graph = GraphLook(self._session, of_kept)
        return looked_at

    def _are_optimized(self, leaves: list[Any]) -> bool:
        """Whether nobody but optimizers is given gradients, as far as can be told."""
        others = [leaf for leaf in leaves if not self._autograd.is_parameter(leaf)]
        if not others:
            return True
        known = [parameters_in(one) for one in self._optimizers.alive()]
        return all(any(id(leaf) in one for one in known) for leaf in others)

    def _has_ended(self) -> None:
        if get_ident() != self._thread or not self._depth:
            return
        self._depth -= 1
        if self._depth:
            return
        end_ns = self._session.now()
        self._update_ns += end_ns - self._pass_ns
        looked_at, self._pass = self._pass, None
        kept = self._kept
        if looked_at is None or kept is None:
            return
        if looked_at.graph is not None and looked_at.first is not None:
            took_ns = looked_at.graph.end(end_ns).get(True, 0)
            kept.again[looked_at.lines, looked_at.first] += took_ns
        if looked_at.keeps:
            for node in looked_at.nodes:
                kept.graph.setdefault(node, (looked_at.lines, 1))
        with self._autograd.unseen():
            for leaf in looked_at.leaves:
                kept.grads[id(leaf)] = leaf, _grad_of(leaf)
        self._window.spend(self._session, end_ns)

    def _stepped(self, _: Any) -> None:
        if get_ident() != self._thread:
            return
        window, kept = self._window, self._kept
        window.passes += self._update_ns > 0
        self._all_ns += self._update_ns
        self._keeping_ns += self._update_ns if self._keeps else 0
        if kept is not None:
            window.looks += 1
            window.next_pass = window.passes + self._random.randrange(_LONGEST_GAP)
            self._looked_ns += self._update_ns
            self._again.update(kept.again)
            self._times = max(self._times, kept.passes)
            self._is_apart |= kept.is_apart
        self._kept, self._update_ns, self._keeps = None, 0, False
        if kept is not None and window.looks in _JUDGED:
            self._judge()
        is_left = not self._keeping_ns and self._passes >= _NONE_UNTIL
        if is_left or self._is_apart or window.looks >= _ENOUGH_LOOKS:
            self._stop()

    def _judge_at_end(self) -> None:
        if os.getpid() == self._process:
            self._judge()
            self._stop()

    def _judge(self) -> None:
        """Tells of the lines that go through a graph again; takes back what was wrong."""
        told: list[dict[str, Any]] = []
        if self._window.looks >= _JUDGED[0] and not self._is_apart:
            told = [self._told(*lines, ns) for lines, ns in self._again.most_common() if ns]
        if told or self._is_told:
            self._is_told = bool(told)
            self._session.note_state({"repeated_backward": told})

    def _told(
        self, later: tuple[int, ...], first: tuple[int, ...], again_ns: int
    ) -> dict[str, Any]:
        weight = self._keeping_ns / max(self._all_ns, 1) / max(self._looked_ns, 1)
        are_several = sum(lines[:1] == later[:1] for lines, _ in self._again) > 1
        return {
            "site": (*later, 0)[0],
            "caller": later[1] if are_several and len(later) > 1 else 0,
            "first": (*first, 0)[0],
            "passes": self._times,
            "looks": self._window.looks,
            "share": again_ns * weight,
            "reads": reads_gradients(self._session.sites.is_user_file),
        }


def _keeps_graph(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a pass leaves its graph to another one, as torch calls the engine for it."""
    if len(args) <= _INPUTS or args[_INPUTS] or not kwargs.get("accumulate_grad"):
        return False
    return args[_KEEP_GRAPH] is True and not creates_graph(args, kwargs)


def _grad_of(leaf: Any) -> tuple[int, int]:
    """Returns which gradient a leaf has, and how often that was written."""
    grad = leaf.grad
    return (0, 0) if grad is None else (id(grad), grad._version)
