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
from trainprof.probes.gradient_reads import uses_gradients
from trainprof.probes.graph_look import Autograd, GraphLook
from trainprof.probes.graph_walk import COMPILED_NODE, GraphTooLarge
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
# Of the time since the first of them: for the first few looks, and for all.
_FIRST_COST_SHARE: Final = 1 / 50
_COST_SHARE: Final = 1 / 200
# Of all looks; to go through one takes some 5 us.
_MOST_NODES: Final = 40_000
# Between two looks, so that they keep in step with no loop.
_LONGEST_GAP: Final = 4
# A script that keeps no graph in so many passes is left.
_NONE_UNTIL: Final = 64
# Of the engine's arguments behind what a pass begins with.
_KEEP_GRAPH, _INPUTS = 1, 3
# In the metadata of a node, which anomaly detection uses otherwise.
_MARK: Final = "trainprof"
# Of a gradient: which it is, how often it was written, and a sum of some of its numbers.
_Grad = tuple[int, int, str]
_NO_GRAD: Final[_Grad] = (0, 0, "")


@dataclass(slots=True)
class _Update:
    """What passes of an update have given, while that update is looked at.

    Attributes:
        grads: By leaf that a pass has reached, by id: its gradient, as that pass left it.
        again: By the lines of a pass and of the first of its graph: what it took for it, ns.
        passes: Through one node, at most.
        is_apart: What the passes give may not be had from one.
    """

    grads: dict[int, _Grad] = field(default_factory=dict)
    again: Counter[tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=Counter)
    passes: int = 1
    is_apart: bool = False


@dataclass(slots=True)
class _Mark:
    """What a node is given that a pass went through and kept; it dies with the node.

    Attributes:
        update: Of which that pass was.
        lines: Which began it.
        passes: Through the node, until now.
    """

    update: _Update
    lines: tuple[int, ...]
    passes: int = 1


@dataclass(slots=True)
class _Pass:
    """A pass that is looked at; the leaves that it reaches, and their gradients ahead of it."""

    lines: tuple[int, ...]
    keeps: bool
    nodes: dict[Any, Any]
    leaves: list[Any]
    before: list[_Grad]
    graph: GraphLook | None = None
    first: tuple[int, ...] | None = None


class RepeatedBackwardProbe:
    """Tells of lines whose backward goes through what an earlier one of the same update kept.

    That is what `retain_graph=True` is for: several losses of one forward, each with its own
    `backward()`. One of their sum goes through it once, and gives the same gradients. Nothing is
    told where these were changed or set back between the passes, or not given at all; where a pass
    gives a gradient to what no optimizer has, which may be what the next loss is made of; where
    Python code goes back through what is shared, or parameters have hooks; or where the user's code
    reads or hooks gradients. No graph is kept for that: marks on its nodes die with them.
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
        self._update: _Update | None = None
        # Whether this update is to be looked at; None before its first pass.
        self._is_due: bool | None = None
        self._pass: _Pass | None = None
        # Passes of this update, of those with a kept graph, of those that were looked at, of all.
        self._update_ns = self._keeping_ns = self._looked_ns = self._all_ns = 0
        self._keeps = self._is_apart = self._is_told = False
        # Whether the user's code reads or hooks gradients; None until somebody asks.
        self._is_by_hand: bool | None = None
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
        self._update = self._pass = None

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
        if self._is_due is None:  # of some passes of an update alone nobody could tell its share
            share = _FIRST_COST_SHARE if self._window.looks < _JUDGED[0] else _COST_SHARE
            self._is_due = self._window.may_spend(share, began_ns)
        if self._update is None and keeps and self._is_due:
            self._window.began_ns = self._window.began_ns or began_ns
            self._update = _Update()
        if self._update is not None and kwargs.get("accumulate_grad"):
            if self._autograd.may_look(args, kwargs):
                self._pass = self._looked_at(self._update, outputs, keeps=keeps)
            if self._pass is None and self._update is not None:
                self._update.is_apart = True
            self._window.spend(self._session, began_ns)
        self._pass_ns = self._session.now()

    def _looked_at(self, update: _Update, outputs: Any, *, keeps: bool) -> _Pass | None:
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
            if not self._are_optimized(leaves) or any(map(_has_hooks, leaves)):
                return None
            before = [self._grad_of(leaf) for leaf in leaves]
            last = (update.grads.get(id(leaf)) for leaf in leaves)
            if any(x is not None and x != y for x, y in zip(last, before, strict=True)):
                return None
        lines = tuple(self._session.sites.frames(sys._getframe(1))[:_LINES])
        looked_at = _Pass(lines, keeps, nodes, leaves, before)
        marks = {node: self._mark_of(node, update) for node in nodes}
        for node, mark in marks.items():
            if mark is None:
                continue
            if self._is_opaque(node):
                return None
            looked_at.first = mark.lines
            mark.passes += 1
            update.passes = max(update.passes, mark.passes)
        if looked_at.first is not None:
            of_kept = {node: mark is not None for node, mark in marks.items()}
            looked_at.graph = GraphLook(self._session, of_kept)
        return looked_at

    def _mark_of(self, node: Any, update: _Update) -> _Mark | None:
        """Returns what an earlier pass of the same update has left at a node."""
        mark = node.metadata.get(_MARK)
        return mark if isinstance(mark, _Mark) and mark.update is update else None

    def _is_opaque(self, node: Any) -> bool:
        """Whether a node's backward is Python code, which may not do the same to a sum."""
        return isinstance(node, self._autograd.opaque) and type(node).__name__ != COMPILED_NODE

    def _grad_of(self, leaf: Any) -> _Grad:
        """Returns what tells whether a gradient is written; `.data` counts for itself.

        On a device, where nobody is to wait for a sum, that would not show.
        """
        grad = leaf.grad
        if grad is None:
            return _NO_GRAD
        if not self._autograd.is_plain(grad) or grad.is_sparse:
            return id(grad), grad._version, ""
        numbers = self._autograd.numbers_of(grad)
        return id(grad), numbers.version, str(numbers.total)  # of NaN, too, it tells the same

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
        update = self._update
        if looked_at is None or update is None:
            return
        if looked_at.graph is not None and looked_at.first is not None:
            took_ns = looked_at.graph.end(end_ns).get(True, 0)
            update.again[looked_at.lines, looked_at.first] += took_ns
        if looked_at.keeps:
            for node in looked_at.nodes:
                if self._mark_of(node, update) is None:
                    node.metadata[_MARK] = _Mark(update, looked_at.lines)
        with self._autograd.unseen():
            for leaf, before in zip(looked_at.leaves, looked_at.before, strict=True):
                update.grads[id(leaf)] = left = self._grad_of(leaf)
                update.is_apart |= left in (_NO_GRAD, before)
        self._window.spend(self._session, end_ns)

    def _stepped(self, _: Any) -> None:
        if get_ident() != self._thread:
            return
        window, update = self._window, self._update
        window.passes += self._update_ns > 0
        self._all_ns += self._update_ns
        self._keeping_ns += self._update_ns if self._keeps else 0
        if update is not None:
            window.looks += 1
            window.next_pass = window.passes + self._random.randrange(_LONGEST_GAP)
            self._looked_ns += self._update_ns
            self._again.update(update.again)
            self._times = max(self._times, update.passes)
            self._is_apart |= update.is_apart or (bool(update.again) and self._are_by_hand())
        self._update, self._update_ns, self._keeps, self._is_due = None, 0, False, None
        if self._is_apart or (update is not None and window.looks in _JUDGED):
            self._judge()
        is_left = not self._keeping_ns and self._passes >= _NONE_UNTIL
        if is_left or self._is_apart or window.looks >= _ENOUGH_LOOKS:
            self._stop()

    def _are_by_hand(self) -> bool:
        if self._is_by_hand is None:
            self._is_by_hand = uses_gradients(self._session.sites.is_user_file)
        return self._is_by_hand

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
        }


def _keeps_graph(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a pass leaves its graph to another one, as torch calls the engine for it."""
    if len(args) <= _INPUTS or args[_INPUTS] or not kwargs.get("accumulate_grad"):
        return False
    return args[_KEEP_GRAPH] is True and not creates_graph(args, kwargs)


def _has_hooks(leaf: Any) -> bool:
    """Whether something may change a leaf's gradient of each pass, or take it away."""
    return bool(leaf._backward_hooks or getattr(leaf, "_post_accumulate_grad_hooks", None))
