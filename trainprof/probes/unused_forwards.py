"""Looks at a few forwards, now and then, for those that no backward pass goes through."""

from __future__ import annotations

import os
import weakref
from _thread import get_ident
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any, Final, Protocol

from trainprof.probes.calls_of_line import LineCalls
from trainprof.probes.given_tensors import GivenTensors
from trainprof.probes.gradient_syncs import GradientSyncs
from trainprof.probes.graph_look import Autograd, hook_that_tells
from trainprof.probes.graph_walk import is_leaf
from trainprof.probes.known_optimizers import KnownOptimizers, parameters_in
from trainprof.probes.lines_of_modules import Key, LinesOfModules
from trainprof.probes.module_parts import parameters_of
from trainprof.probes.patcher import Patcher
from trainprof.probes.repeated_forwards import RepeatedForwards
from trainprof.probes.sample_calls import SampleCalls
from trainprof.probes.session import BackwardWatch, ModuleCall, Session
from trainprof.probes.side_modules import SideModules

# Of updates: the first ones are cold, then some are watched, and again from time to time.
_NOT_THE_FIRST: Final = 4
_FIRST_WATCHED: Final = 16
_WATCHED: Final = 8
_LEAST_GAP: Final = 12
# Each window comes after so much of all the updates before it.
_GAP_SHARE: Final = 0.4
# Of the time since the first look, that looks may take.
_COST_SHARE: Final = 1 / 200
# A model is not as deep.
_MOST_DEPTH: Final = 2_000
_MOST_PLACES: Final = 64
# So many calls of a line told, none of which a backward pass went through; of so many it is known.
_ENOUGH_LOOKS: Final = 4
_MOST_LOOKS: Final = 256


@dataclass(slots=True)
class _Call:
    """A call whose graph lives, as far as is known.

    Attributes:
        hook: What its nodes hold; gone with them.
        reached: Whether backward came by.
        storages: Of the tensors that it gave and was not given, weakly.
    """

    hook: weakref.ref[Callable[[Any], None]]
    reached: list[bool]
    storages: list[Any]


@dataclass(slots=True)
class _Place(LineCalls):
    """Those with gradients enabled.

    Attributes:
        in_vain: Calls whose graph went without a pass through it.
        is_trained: An optimizer has some of the module; else its results are needed, as a
            teacher's are.
        is_loss: It is a loss, whose time is none of forward's.
        is_used: A pass went through one of them, or that cannot be told.
        has_no_graph: Nor may it have had one.
        goes_into: Places whose calls were given what one of these gave, be it detached.
        waiting: Calls of which it is not known yet.
    """

    in_vain: int = 0
    is_trained: bool = True
    is_loss: bool = False
    is_used: bool = False
    has_no_graph: bool = False
    goes_into: set[Key] = field(default_factory=set)
    waiting: list[_Call] = field(default_factory=list)


class _Others(Protocol):
    """What is told of calls, and tells what it makes of them."""

    def open(self) -> None: ...

    def told(self, passes: int, per_watched: float) -> list[dict[str, Any]]: ...


class UnusedForwardsProbe:
    """Tells of lines that call modules in each step, and whose results nothing is learned from.

    A hook on what such a call gives, and on where its graph begins, tells whether a backward pass
    comes by; it goes with the graph. Where none did until then, for all calls of a line that were
    looked at, the graph was for nothing. Others are told of the same calls, and tell of theirs.
    """

    name = "unused_forwards"

    def _reset(self) -> None:
        # By the line, the class's name, and whether it has parameters.
        self._places: dict[Key, _Place] = {}
        self._thread = 0
        # Of backward while it was watched; of updates: all before the countdown, what it began at,
        # and those that were watched.
        self._passes = self._updates = self._counted = self._watched = 0
        # Backward passes that the thread is in: what is called there was called before.
        self._depth = 0
        self._began_ns = self._spent_ns = 0
        self._is_on = False
        # Whether any backward pass has come by: else nothing can be said of those that did not.
        self._is_told_apart = False
        self._told: list[Key] = []
        self._lines = LinesOfModules(self._tensors.identified)
        self._repeats = RepeatedForwards(self._tensors.identified)
        self._samples = SampleCalls(self._torch, self._autograd, self._tensors, self._share_of)
        self._sides = SideModules(self._autograd, self._tensors)
        self._syncs = GradientSyncs(self._autograd)
        self._others_told: set[str] = set()

    def _others(self) -> dict[str, _Others]:
        """Returns those that are told of the same calls, by what they tell."""
        return {
            "repeated_forwards": self._repeats,
            "sample_calls": self._samples,
            "side_modules": self._sides,
            "gradient_syncs": self._syncs,
        }

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        self._torch, self._session = torch, session
        self._process = os.getpid()
        self._autograd = Autograd(torch, session)
        self._tensors = GivenTensors(torch, self._autograd)
        self._reset()
        self._loss = getattr(torch.nn.modules.loss, "_Loss", ())
        self._optimizers = KnownOptimizers(session)
        self._watch = BackwardWatch(patcher.guarded(self._begins), patcher.guarded(self._has_ended))
        self._is_due = patcher.guarded(self._open_or_close)
        self._meets = patcher.guarded(self._meet)
        self._meets_loss = patcher.guarded(self._meet_loss)
        session.at_first_step.append(patcher.guarded(self._first_step))
        session.at_end.append(patcher.guarded(self._judge_at_end))
        patcher.at_fault(partial(self._set_watching, is_on=False))
        os.register_at_fork(after_in_child=self._begin_anew)

    def _first_step(self, optimizer: Any) -> None:
        self._optimizers.note(optimizer)
        if self._thread == 0 and not self._autograd.has_own_parameters():
            self._thread = get_ident()
            self._session.at_countdown = self._is_due
            self._count(_NOT_THE_FIRST)

    def _begin_anew(self) -> None:
        """In a forked child, which may train something of its own."""
        self._set_watching(is_on=False)
        self._session.countdown[0] = 0
        self._reset()
        self._process = os.getpid()

    def _begins(self, outputs: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        is_here = get_ident() == self._thread
        self._passes += is_here
        self._depth += is_here

    def _has_ended(self) -> None:
        self._depth = max(self._depth - (get_ident() == self._thread), 0)

    def _count(self, updates: int) -> None:
        """Has us called after so many updates."""
        self._counted = self._session.countdown[0] = updates

    def _open_or_close(self) -> None:
        if get_ident() != self._thread:
            self._session.countdown[0] = 1
            return
        self._updates += self._counted
        self._settle()
        if self._is_on:
            self._watched += self._counted
            self._set_watching(is_on=False)
            self._count(max(_LEAST_GAP, round(_GAP_SHARE * self._updates)))
            self._judge()
        elif self._spent_ns > _COST_SHARE * (self._session.now() - self._began_ns):
            self._count(_LEAST_GAP)
        else:
            self._began_ns = self._began_ns or self._session.now()
            for place in self._places.values():
                place.open()
            for other in self._others().values():
                other.open()
            self._count(_WATCHED if self._watched else _FIRST_WATCHED)
            self._set_watching(is_on=True)

    def _set_watching(self, *, is_on: bool) -> None:
        self._is_on, self._depth = is_on, 0
        self._session.watch_backward(self._watch, is_on=is_on)
        self._session.tell_modules(self._meets, is_on)
        self._session.watch_losses(self._meets_loss, is_on=is_on)

    def _meet(self, call: ModuleCall) -> None:
        if get_ident() != self._thread or self._depth:
            return
        began_ns = self._session.now()
        has_parameters = next(parameters_of(call.module), None) is not None
        key = call.site, type(call.module).__qualname__, has_parameters
        learns = False
        if self._torch.is_grad_enabled():
            self._repeats.learns(call, self._passes)
            learns = self._meet_with_gradients(call, key)
        else:
            self._repeats.meet(call, self._passes)
        if learns:
            self._samples.meet(call, key, self._passes)
            self._syncs.meet(call, key, self._passes)
        self._sides.meet(call, key, self._passes, learns=learns)
        self._spend(began_ns)

    def _spend(self, began_ns: int) -> None:
        self._spent_ns += self._session.looked_since(began_ns)

    def _meet_loss(self, call: ModuleCall) -> None:
        if get_ident() != self._thread or self._depth or not self._torch.is_grad_enabled():
            return
        began_ns = self._session.now()
        key = call.site, call.module, False
        place = self._places.get(key)
        if place is None and len(self._places) < _MOST_PLACES:
            place = self._places[key] = _Place(is_trained=False, is_loss=True)
        if place is not None:
            self._count_in(place, key, call)
        self._spend(began_ns)

    def _meet_with_gradients(self, call: ModuleCall, key: Key) -> bool:
        """Looks at a call; returns whether it is of a model that is trained."""
        place = self._places.get(key)
        if place is None:
            if len(self._places) >= _MOST_PLACES:
                return False
            place = self._places[key] = _Place()
            place.is_trained = self._is_trained(call.module)
            place.is_loss = issubclass(type(call.module), self._loss)
        self._lines.meet(call, key)
        self._count_in(place, key, call)
        return place.is_trained and not place.is_loss

    def _count_in(self, place: _Place, key: Key, call: ModuleCall) -> None:
        place.count(call, self._passes)
        self._follow(call, key)
        self._see_whether_used(place)
        if not place.is_used and place.in_vain + len(place.waiting) < _MOST_LOOKS:
            self._look(place, call)

    def _follow(self, call: ModuleCall, key: Key) -> None:
        """Notes whose results a call was given: of a maker's its judge learns, though detached."""
        waiting = [
            (place, one)
            for other, place in self._places.items()
            if other != key and not place.is_used and key not in place.goes_into
            for one in place.waiting
        ]
        if not waiting:
            return
        with self._autograd.unseen():
            given = {storage.cdata for storage in self._tensors.given(call)}
        for place, one in waiting:
            if any(storage.cdata in given for storage in one.storages):
                place.goes_into.add(key)

    def _is_trained(self, module: Any) -> bool:
        known = {key for one in self._optimizers.alive() for key in parameters_in(one)}
        with self._autograd.unseen():
            return any(id(parameter) in known for parameter in parameters_of(module))

    def _look(self, place: _Place, call: ModuleCall) -> None:
        """Has the graph of what a call gave tell whether backward comes by."""
        if not self._autograd.may_hook():
            return
        with self._autograd.unseen():
            tensors = self._tensors.all_in(call.output)
            if tensors is None:
                place.is_used = True  # there may be what was not looked at
                return
            ends = {tensor.grad_fn for tensor in tensors} - {None}
            nodes = ends | {_first_of(node) for node in ends}
            if not nodes:
                place.has_no_graph = True
                return
            reached: list[bool] = []
            hook = hook_that_tells(reached)
            for node in nodes:
                node.register_prehook(hook)
            given = {storage.cdata for storage in self._tensors.given(call)}
            storages = [one for one in self._tensors.storages(tensors) if one.cdata not in given]
        place.waiting.append(_Call(weakref.ref(hook), reached, storages))

    def _see_whether_used(self, place: _Place) -> None:
        """Notes that backward came by one of its calls: no other need be looked at."""
        if not place.is_used and any(call.reached for call in place.waiting):
            place.is_used = True
            self._is_told_apart |= place.is_trained

    def _settle(self) -> None:
        """Sees what has become of the calls that were looked at."""
        for place in self._places.values():
            self._see_whether_used(place)
            if place.is_used:
                place.waiting.clear()
                continue
            alive = [call for call in place.waiting if call.hook() is not None]
            place.in_vain += len(place.waiting) - len(alive)
            place.waiting = alive

    def _judge_at_end(self) -> None:
        if os.getpid() == self._process:
            done = self._done()
            self._updates += done
            self._watched += done * self._is_on
            self._count(0)
            self._set_watching(is_on=False)
            self._settle()
            self._judge()

    def _done(self) -> int:
        """Returns how many updates there were since the countdown began."""
        return self._counted - max(self._session.countdown[0], 0)

    def _judge(self) -> None:
        """Tells of the lines whose calls were all in vain; takes back what was wrong."""
        found = {
            key: place
            for key, place in self._places.items()
            if self._is_told_apart and self._is_in_vain(place) and not self._is_learned_from(key)
        }
        each = (self._updates + self._done()) / max(self._watched, 1)
        self._tell_others(each)
        if not found and not self._told:
            return
        self._told = list(found)
        told = [
            {
                "site": key[0],
                "class": key[1],
                "looks": place.in_vain,
                "share": self._share_of(key),
                "seconds": place.ns_in_all() * each / 1e9,
                "may_be_target": self._lines.may_be_target_of(key, self._is_used),
            }
            for key, place in found.items()
        ]
        self._session.note_state({"unused_forwards": told})

    def _tell_others(self, each: float) -> None:
        for name, other in self._others().items():
            told = other.told(self._passes, each)
            if told or name in self._others_told:
                self._session.note_state({name: told})
            (self._others_told.add if told else self._others_told.discard)(name)

    def _share_of(self, key: Key) -> float:
        """Returns a line's share of what forwards with gradients took, 0 of any others."""
        forwards = [place for place in self._places.values() if not place.is_loss]
        place = self._places.get(key)
        all_ns = sum(one.ns_in_all() for one in forwards)
        return place.ns_in_all() / max(all_ns, 1.0) if place is not None else 0.0

    def _is_learned_from(self, key: Key) -> bool:
        """Whether what a line's calls give goes, by way of others, into one that is."""
        known, ahead = {key}, [key]
        while ahead:
            for into in self._places[ahead.pop()].goes_into - known:
                known.add(into)
                ahead.append(into)
        return any(self._places[one].is_used for one in known)

    def _is_used(self, key: Key) -> bool:
        return key in self._places and self._places[key].is_used

    def _is_in_vain(self, place: _Place) -> bool:
        if place.is_used or place.is_loss or not place.is_trained or place.has_no_graph:
            return False
        is_kept = len(place.waiting) > place.in_vain
        is_often = place.come_often(self._passes)
        return place.in_vain >= _ENOUGH_LOOKS and is_often and not is_kept


def _first_of(node: Any) -> Any:
    """Returns where one path through a graph begins: something else may go back from there."""
    for _ in range(_MOST_DEPTH):
        above = (found for found, _ in node.next_functions)
        inner = next((found for found in above if found is not None and not is_leaf(found)), None)
        if inner is None:
            break
        node = inner
    return node
