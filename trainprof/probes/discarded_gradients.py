"""Looks at a few backward passes for gradients that are set back before their optimizer steps."""

from __future__ import annotations

import os
import random
import sys
import weakref
from _thread import get_ident
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Final

from trainprof.probes.gradient_reads import reads_gradients
from trainprof.probes.graph_look import Autograd, GraphLook, Numbers
from trainprof.probes.graph_walk import (
    ANYONE,
    COMPILED_NODE,
    MIXED,
    UNUSED,
    GraphTooLarge,
    Needs,
    leaf_near,
    union,
    use_of,
)
from trainprof.probes.known_optimizers import KnownOptimizers, parameters_in
from trainprof.probes.look_window import LookWindow
from trainprof.probes.module_parts import told_of
from trainprof.probes.patcher import Patcher
from trainprof.probes.session import BackwardWatch, ModuleCall, Session

# Of backward passes, the first ones of an optimizer: cold.
_NOT_THE_FIRST: Final = 4
_ENOUGH_LOOKS: Final = 32
# The script may let go of its models, or end, before there are enough.
_JUDGED: Final = (8, 16, _ENOUGH_LOOKS)
# It may have no pass that reaches two optimizers.
_FIRST_LOOKS: Final = 16
# A script may train one set of models after another.
_MOST_WINDOWS: Final = 3
# Of the time since the first of them: for the first few looks, and for all.
_FIRST_COST_SHARE: Final = 1 / 100
_COST_SHARE: Final = 1 / 200
# Of all looks; to go through one takes some 5 us.
_MOST_NODES: Final = 40_000
_MOST_OPTIMIZERS: Final = 8
# Between two looks, so that they keep in step with no loop.
_LONGEST_GAP: Final = 4
# Of a pass: the user's that begins it, and the one that calls that: a function for all of them.
_LINES: Final = 2
# Of the parameters of an optimizer, those that are watched.
_WATCHED: Final = 3
# Passes for which a gradient may lie about: some optimizers step after many.
_LONGEST_WAIT: Final = 100
# Of the time since the first step of all, before the last optimizer made its first.
_START_SHARE: Final = 0.1
# Of what one optimizer had of the passes of a line: as often, at least, for nothing.
_ENOUGH_FATES: Final = 3


@dataclass(slots=True)
class _Watched:
    """A parameter ahead of a pass, by id, and its numbers.

    Not by a weak reference: torch swaps no tensor that has one (`torch.utils.swap_tensors`).
    """

    key: int
    before: Numbers

    def is_unwritten(self, owned: Mapping[int, Any]) -> bool:
        known = owned.get(self.key)
        return known is not None and known._version == self.before.version


@dataclass(slots=True)
class _Fate:
    """What becomes of the gradients that one pass has computed for one optimizer.

    Attributes:
        steps: That optimizer's, before; what fused ones write to parameters, torch does not count.
    """

    owner: int
    watched: list[_Watched]
    steps: int
    passes: int = 0


@dataclass(slots=True)
class _Place:
    """The passes that one line of the user's begins, called from one other.

    Attributes:
        passes: Seen.
        looks: Taken.
        took_ns: By what its nodes are for.
        through: Of operators that a parameter takes part in, and something that leads on to others:
            the owners of both.
        reached: Parameters, by id: who has them, and how large each is.
        used: Owners of whose gradients something became.
        in_vain: By owner: how often its gradients were gone, and the parameters watched as before.
        models: Those whose gradients are lost, and those whose are kept, as they were last told:
            the script may let go of them before its end.
    """

    passes: int = 0
    looks: int = 0
    took_ns: dict[Needs, int] = field(default_factory=dict)
    through: set[tuple[int, int]] = field(default_factory=set)
    reached: dict[int, tuple[int, int]] = field(default_factory=dict)
    used: int = 0
    in_vain: dict[int, int] = field(default_factory=dict)
    models: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])


@dataclass(slots=True)
class _Window(LookWindow):
    """What has been told since the last optimizer that was new.

    Attributes:
        opened_ns: With that optimizer's first step.
        places: By the lines that lead to it, the innermost first.
        steps: By optimizer.
        fates: Not known yet, each with its place.
    """

    next_pass: int = _NOT_THE_FIRST
    opened_ns: int = 0
    places: dict[tuple[int, ...], _Place] = field(default_factory=dict)
    steps: Counter[int] = field(default_factory=Counter)
    fates: list[tuple[_Place, _Fate]] = field(default_factory=list)


@dataclass(slots=True)
class _Look:
    """A pass that is being looked at; its graph, where that reaches more than one optimizer."""

    place: _Place
    began_ns: int
    graph: GraphLook | None


class DiscardedGradientsProbe:
    """Tells of passes that reach the parameters of several optimizers, and serve some of them only.

    Looked at ahead of each further pass is what has become of the gradients of one: where the
    optimizer's parameters have not been written since, and the gradients are gone or zero, nothing
    came of them. Nothing is told where something once did, nor where the user's code reads
    gradients, or none of the optimizers was served.
    """

    name = "discarded_gradients"

    def __init__(self) -> None:
        self._first_step_ns = self._windows = 0
        self._window = _Window()
        self._is_told = False
        # Whether the user's code reads gradients; None until somebody asks.
        self._reads: bool | None = None
        self._owners: list[weakref.ref[Any]] = []
        # No pattern of passes repeats with it; the script's own numbers are left alone.
        self._random = random.Random(0)
        # Of the thread that trains: how many passes it is in, and the look at the outermost.
        self._thread = self._depth = 0
        self._look: _Look | None = None

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        self._torch, self._session = torch, session
        self._process = os.getpid()
        self._autograd = Autograd(torch, session)
        self._optimizers = KnownOptimizers(session)
        self._watch = BackwardWatch(patcher.guarded(self._begins), patcher.guarded(self._has_ended))
        self._meets = patcher.guarded(self._meet)
        self._steps = patcher.guarded(self._stepped)
        session.at_first_step.append(patcher.guarded(self._first_step))
        session.at_end.append(patcher.guarded(self._judge_at_end))
        patcher.at_fault(self._stop)
        os.register_at_fork(after_in_child=self._begin_anew)

    def _first_step(self, optimizer: Any) -> None:
        self._optimizers.note(optimizer)
        alive = self._optimizers.alive()
        self._stop()
        self._window.opened_ns = self._session.now()
        self._first_step_ns = self._first_step_ns or self._window.opened_ns
        if 2 <= len(alive) <= _MOST_OPTIMIZERS and self._windows < _MOST_WINDOWS:
            self._windows += 1
            self._owners = [weakref.ref(one) for one in alive]
            self._session.watch_backward(self._watch, is_on=True)
            self._session.watch_steps(self._steps, is_on=True)

    def _stepped(self, optimizer: Any) -> None:
        if not any(group.get("fused") for group in optimizer.param_groups):
            return
        for number, reference in enumerate(self._owners, start=1):
            if reference() is optimizer:
                self._window.steps[ANYONE << number] += 1

    def _stop(self) -> None:
        self._session.watch_backward(self._watch, is_on=False)
        self._session.watch_steps(self._steps, is_on=False)
        self._session.tell_modules(self._meets, False)
        self._window = _Window()

    def _begin_anew(self) -> None:
        """In a forked child, which may train something of its own."""
        self._stop()
        self._look = None
        self._depth = self._windows = self._first_step_ns = 0
        self._is_told = False
        self._process = os.getpid()

    def _begins(self, outputs: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        thread = get_ident()
        if not self._depth:
            self._thread = thread
        elif thread != self._thread:
            return
        self._depth += 1
        if self._depth > 1:  # checkpointing's
            return
        window = self._window
        window.passes += 1
        lines = tuple(self._session.sites.frames(sys._getframe(1))[:_LINES])
        place = window.places.setdefault(lines, _Place())
        place.passes += 1
        began_ns = self._session.now()
        is_due = self._is_due(window, began_ns)
        if window.fates and self._autograd.may_compute():
            with self._autograd.unseen():
                owned = self._owned(fate.owner for _, fate in window.fates)
                window.fates = [
                    (place, fate)
                    for place, fate in window.fates
                    if not self._is_known(place, fate, owned[fate.owner])
                ]
                del owned
        if is_due and self._autograd.may_look(args, kwargs):
            window.began_ns = window.began_ns or began_ns
            graph = self._graph(outputs, place)
            if self._window is window:
                self._look = _Look(place, self._session.now(), graph)
        if window.began_ns:
            window.spend(self._session, began_ns)

    def _is_due(self, window: _Window, now_ns: int) -> bool:
        share = _FIRST_COST_SHARE if window.looks < _FIRST_LOOKS else _COST_SHARE
        return window.may_spend(share, now_ns)

    def _graph(self, outputs: Any, place: _Place) -> GraphLook | None:
        """Goes through the graph of a pass; has its nodes timed if it reaches more than one."""
        window, is_plain = self._window, self._autograd.is_plain
        owners = self._owners_by_parameter()
        if not all(is_plain(one) for one in (*outputs, *(known for known, _ in owners.values()))):
            return None
        reached: dict[int, tuple[Any, int]] = {}

        def owners_of(leaf: Any) -> int:
            _, owner = owners.get(id(leaf), (None, ANYONE))
            reached[id(leaf)] = leaf, owner
            return owner

        with self._autograd.unseen():
            try:
                left = _MOST_NODES - window.nodes
                needs = self._autograd.needs_in(outputs, owners_of, left)
            except GraphTooLarge:
                self._stop()
                return None
            window.nodes += len(needs)
            bits = list(_bits(union(tuple(owner for _, owner in reached.values()))))
            if len(bits) < 2:
                return None
            for owner in bits:
                its = [leaf for leaf, whose in reached.values() if whose & owner]
                self._await(place, owner, its)
            place.through.update(_through(needs, self._autograd.opaque))
            sizes = ((key, (owner, leaf.numel())) for key, (leaf, owner) in reached.items())
            place.reached.update(sizes)
        kinds = {node: _kind(node, whom) for node, whom in needs.items()}
        return GraphLook(self._session, kinds)

    def _owners_by_parameter(self) -> dict[int, tuple[Any, int]]:
        """Returns each parameter of an optimizer's, and the bits of those that have it, by id."""
        found: dict[int, tuple[Any, int]] = {}
        for number, reference in enumerate(self._owners, start=1):
            for key, parameter in parameters_in(reference()).items():
                _, others = found.get(key, (None, 0))
                found[key] = parameter, others | (ANYONE << number)
        return found

    def _owned(self, owners: Iterable[int]) -> dict[int, dict[int, Any]]:
        """Returns the parameters that optimizers have now, by the optimizer's bit and by id."""
        return {
            owner: parameters_in(self._owners[owner.bit_length() - ANYONE.bit_length() - 1]())
            for owner in set(owners)
        }

    def _await(self, place: _Place, owner: int, leaves: list[Any]) -> None:
        """Keeps in mind some parameters of an owner as they are ahead of a pass."""
        some = {id(leaves[at]): leaves[at] for at in (0, len(leaves) // 2, -1)}
        watched = [
            _Watched(id(leaf), self._autograd.numbers_of(leaf))
            for leaf in list(some.values())[:_WATCHED]
        ]
        self._window.fates.append((place, _Fate(owner, watched, self._window.steps[owner])))

    def _is_known(self, place: _Place, fate: _Fate, owned: Mapping[int, Any]) -> bool:
        """Sees whether the gradients of an earlier pass have been used, or are gone."""
        fate.passes += 1
        is_written = not all(one.is_unwritten(owned) for one in fate.watched)
        if all(one.before.total is None for one in fate.watched):
            is_written |= self._window.steps[fate.owner] != fate.steps
        if is_written or fate.passes > _LONGEST_WAIT:
            place.used |= fate.owner
            return True
        watched = [(owned[one.key], one.before) for one in fate.watched]
        if not all(self._is_set_back(parameter.grad) for parameter, _ in watched):
            return False
        if any(self._autograd.numbers_of(known).differ_from(before) for known, before in watched):
            place.used |= fate.owner
        else:
            place.in_vain[fate.owner] = place.in_vain.get(fate.owner, 0) + 1
        return True

    def _is_set_back(self, grad: Any) -> bool:
        """Whether a gradient is gone, or zero; a device is not waited for to tell that."""
        if grad is None:
            return True
        if grad.device.type != "cpu" or not self._autograd.is_plain(grad) or grad.is_sparse:
            return False
        with self._torch.no_grad():
            return not self._autograd.value_of(grad.any())

    def _has_ended(self) -> None:
        if not self._depth or get_ident() != self._thread:
            return
        self._depth -= 1
        look = self._look
        if self._depth or look is None:
            return
        self._look = None
        window, end_ns = self._window, self._session.now()
        took_ns = look.graph.end(end_ns) if look.graph is not None else {}
        took_ns = took_ns or {(ANYONE,): end_ns - look.began_ns}
        look.place.looks += 1
        for kind, ns in took_ns.items():
            look.place.took_ns[kind] = look.place.took_ns.get(kind, 0) + ns
        window.looks += 1
        window.next_pass = window.passes + self._random.randrange(_LONGEST_GAP)
        if look.graph is not None and window.looks < _FIRST_LOOKS:
            self._session.tell_modules(self._meets, True)
        if window.looks in _JUDGED:
            self._judge()
        if window.looks == _FIRST_LOOKS:
            self._session.tell_modules(self._meets, False)
        is_of_several = any(place.reached for place in window.places.values())
        if window.looks == (_ENOUGH_LOOKS if is_of_several else _FIRST_LOOKS):
            self._session.watch_backward(self._watch, is_on=False)
            self._session.watch_steps(self._steps, is_on=False)
        window.spend(self._session, end_ns)

    def _meet(self, call: ModuleCall) -> None:
        if self._torch.is_grad_enabled():
            self._window.meet(call)

    def _judge_at_end(self) -> None:
        if os.getpid() == self._process:
            self._judge()

    def _judge(self) -> None:
        """Tells of the lines whose passes serve some optimizers only; takes back what was wrong."""
        window = self._window
        found = [
            (lines, place, in_vain)
            for lines, place in window.places.items()
            if (in_vain := self._in_vain(place))
        ]
        if found and not self._are_read():
            places = window.places.values()
            total_ns = sum(_mean_ns(place, window) * place.passes for place in places)
            self._note([self._told(*one, max(total_ns, 1.0)) for one in found])
            self._is_told = True
        elif self._is_told and window.looks:
            self._note(None)
            self._is_told = False

    def _are_read(self) -> bool:
        if self._reads is None:
            self._reads = reads_gradients(self._session.sites.is_user_file)
        return self._reads

    def _in_vain(self, place: _Place) -> int:
        """Returns the owners of whose gradients from here nothing ever became; 0 if none."""
        in_vain = 0
        for owner, fates in place.in_vain.items():
            if fates >= _ENOUGH_FATES and not place.used & owner:
                in_vain |= owner
        return in_vain if place.used & ~in_vain else 0

    def _told(
        self, lines: tuple[int, ...], place: _Place, in_vain: int, total_ns: float
    ) -> dict[str, Any]:
        took_ns = [0, 0, 0]
        for kind, ns in place.took_ns.items():
            took_ns[use_of(kind, in_vain)] += ns
        weight = place.passes / place.looks / total_ns
        kept = {key for key, (owner, _) in place.reached.items() if owner & ~in_vain}
        lost = {key: size for key, (owner, size) in place.reached.items() if not owner & ~in_vain}
        met = self._window.models()
        if met:
            place.models = told_of(met, set(lost)), told_of(met, kept)
        models, kept_models = place.models
        return {
            "site": lines[0] if lines else 0,
            "caller": lines[1] if self._is_of_several(lines) else 0,
            "looks": place.looks,
            "unused_share": took_ns[UNUSED] * weight,
            "mixed_share": took_ns[MIXED] * weight,
            "goes_through": any(
                not weight & ~in_vain and further & ~in_vain for weight, further in place.through
            ),
            "tensors": len(lost),
            "numbers": sum(lost.values()),
            "models": models,
            "kept": kept_models,
            "kept_tensors": len(kept),
        }

    def _is_of_several(self, lines: tuple[int, ...]) -> bool:
        """Whether a line begins the passes of several others that call it."""
        return sum(other[:1] == lines[:1] for other in self._window.places) > 1 < len(lines)

    def _note(self, told: list[dict[str, Any]] | None) -> None:
        until_ns = self._window.opened_ns - self._first_step_ns
        all_ns = self._session.now() - self._first_step_ns
        facts = {
            "discarded_gradients": told,
            "from_start": until_ns <= _START_SHARE * all_ns,
        }
        self._session.note_state(facts)


def _kind(node: Any, needs: Needs) -> Needs:
    """Returns what a node is for; one of torch.compile's computes all it has, or nothing."""
    return (union(needs),) if type(node).__name__ == COMPILED_NODE else tuple(sorted(set(needs)))


def _through(needs: dict[Any, Needs], opaque: type) -> Iterator[tuple[int, int]]:
    """Yields the owners of an operator's weight, and of what lies behind its other inputs."""
    for node, each in needs.items():
        nexts = [found for found, _ in node.next_functions if found is not None]
        if len(each) < 2 or len(nexts) != len(each) or isinstance(node, opaque):
            continue
        near = [leaf_near(found) for found in nexts]
        weight = union(tuple(whom for whom, is_near in zip(each, near, strict=True) if is_near))
        further = union(
            tuple(whom for whom, is_near in zip(each, near, strict=True) if not is_near)
        )
        if weight and further:
            yield weight, further


def _bits(owners: int) -> Iterator[int]:
    """Goes through the optimizers among some owners."""
    owners &= ~ANYONE
    while owners:
        lowest = owners & -owners
        yield lowest
        owners &= ~lowest


def _mean_ns(place: _Place, window: _Window) -> float:
    """Returns what a pass takes; of a line without a look, what those of all lines take."""
    places = [place] if place.looks else list(window.places.values())
    looks = sum(one.looks for one in places)
    return sum(sum(one.took_ns.values()) for one in places) / looks if looks else 0.0
