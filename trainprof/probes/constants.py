"""Looks for what models compute anew in each step, or again in one, though it comes of the same."""

from __future__ import annotations

import os
from _thread import get_ident
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from sys import _getframe, modules
from types import FrameType, ModuleType
from typing import Any, Final

from trainprof.probes.broadcast_pairs import BroadcastPairs
from trainprof.probes.elements import elements_of, is_container
from trainprof.probes.function_call import Call
from trainprof.probes.function_watch import FunctionWatch
from trainprof.probes.graph_look import Autograd
from trainprof.probes.ignored_positions import NAMES as LOSSES
from trainprof.probes.ignored_positions import IgnoredPositions
from trainprof.probes.known_numbers import NO_NUMBERS_YET, KnownNumbers, digest_of
from trainprof.probes.middle import median
from trainprof.probes.patcher import Patcher
from trainprof.probes.repeated_calls import (
    ACTS,
    ATTENTION,
    PARAMETRIZATION,
    WEIGHT_NORM,
    Line,
    RepeatedCalls,
    acts,
)
from trainprof.probes.session import ModuleCall, ModuleSurround, Session
from trainprof.probes.step_looks import StepLooks

# Looks in all, where nothing is told; those that have to have met the same. From the second on one
# ends it where that is little.
_MOST_LOOKS: Final = 7
_ENOUGH_LOOKS: Final = 3
_LEAST_SHARE: Final = 0.01
# Of one step: calls of torch's functions that are seen, and results whose numbers are compared.
_MOST_CALLS: Final = 20_000
_MOST_COMPARED: Final = 1_024
_MOST_PLACES: Final = 16
# By the name of a function: one that writes to a part of a tensor.
_WRITES_A_PART: Final = "__setitem__"
# What of torch's calls its functions for a line, by file or by function.
_INSIDE: Final = {
    os.path.join("utils", "parametrize.py"): PARAMETRIZATION,
    os.path.join("utils", "weight_norm.py"): WEIGHT_NORM,
    os.path.join("utils", "spectral_norm.py"): WEIGHT_NORM,
}
_ATTENDS: Final = "multi_head_attention_forward"
_DYNAMO_COUNTERS: Final = "torch._dynamo.utils"

# A place in the code, the function's name, and which of its calls there it is in a step.
_Key = tuple[int, str, int]


@dataclass(slots=True)
class _Operator:
    """A call of one of torch's functions that was given nothing but what stays as it is.

    Attributes:
        digest: Of what it gave when it was met first.
        site: The user's line, in the model; 0 where none of it is the user's.
        package: The library that it calls, and which calls torch; None where it does so itself.
        took_ns: In each look that met it.
        bytes: That it gave.
        changes: It gave something else in a later look, or what is no constant was written to what
            it gave.
    """

    digest: int
    site: int
    package: str | None
    took_ns: list[int] = field(default_factory=list)
    bytes: int = 0
    changes: bool = False


class ConstantsProbe:
    """Watches, in a few steps, torch's functions inside outermost calls of modules.

    A function mode of torch's is on for so long: it sees which tensors each function is given and
    gives, by whose call, and how long it took the host. What is given no tensor, or such alone as
    hold the same numbers as in the look before, and gives the same in each look, is computed for
    nothing. So is what repeats, within one such call of a module, what is there already, though
    it be learnt or come of the batch (RepeatedCalls). What is told is looked at anew for as long as
    training lasts, ever more rarely, as it may change. On the host alone; where anything has been
    compiled, or the script has a mode of its own, no look is taken.
    """

    name = "constants"

    def __init__(self) -> None:
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._looks = self._calls = self._compared = self._looked_at = 0
        self._forward_ns = self._constant_ns = self._spent_ns = 0
        self._began_ns = self._spent_before_ns = 0
        self._is_told = self._stays = False
        # When calls began that are not watched, by thread.
        self._unwatched: dict[int, int] = {}
        self._written: dict[int, int] = {}
        # Of what the call is given: how often it had been written to, by where torch keeps it.
        self._given: dict[int, int] = {}
        # Those that made what a storage holds, in this look.
        self._makers: dict[int, list[_Operator]] = {}
        self._operators: dict[_Key, _Operator] = {}
        self._met: dict[tuple[int, str], int] = {}
        self._caller: FrameType | None = None

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        self._torch, self._session, self._patcher = torch, session, patcher
        self._autograd = Autograd(torch, session)
        weak = torch.multiprocessing.reductions.StorageWeakRef
        self._known, self._repeats = (
            KnownNumbers(weak),
            RepeatedCalls(torch, weak, self._is_told_by_storage),
        )
        self._pairs = BroadcastPairs(
            torch, weak, self._is_told_by_storage, session.now, self._autograd.may_hook
        )
        self._ignored = IgnoredPositions(
            torch, self._is_told_by_storage, session.now, self._autograd.may_hook
        )
        self._losses = patcher.guarded(self._see_loss)
        before, sees = (patcher.guarded(one) for one in (self._look_at, self._see))
        self._watch = FunctionWatch(torch, before, sees, session.now)
        self._call_ended = patcher.guarded(self._call_ends)
        self._surround = ModuleSurround(patcher.guarded(self._call_begins), self._ends)
        self._steps = StepLooks(session, self._open, self._close)
        self._counts = patcher.guarded(self._steps.stepped)
        session.at_first_step.append(patcher.guarded(self._first_step))
        patcher.at_fault(self._stop)
        patcher.on_undo(self._stop)
        os.register_at_fork(after_in_child=self._in_child)

    def _first_step(self, _: Any) -> None:
        self._steps.begin(self._counts)

    def _stop(self) -> None:
        self._session.watch_steps(self._counts, is_on=False)
        self._session.watch_losses(self._losses, is_on=False)
        self._session.surround_modules(None)

    def _in_child(self) -> None:
        if self._watch.is_on_here():  # forked inside a model that is looked at
            self._watch.take_off()
        self._watch.begin_anew()
        self._stop()
        self._begin_anew()
        self._known = KnownNumbers(self._torch.multiprocessing.reductions.StorageWeakRef)
        self._repeats.begin_anew()
        self._pairs.begin_anew()
        self._ignored.begin_anew()
        self._steps.begin_anew()

    def _open(self) -> None:
        self._watch.open()
        self._calls = self._compared = 0
        self._forward_ns = self._constant_ns = self._spent_ns = 0
        self._unwatched = {}
        self._met, self._makers = {}, {}
        self._known.begin()
        self._repeats.begin_look()
        self._pairs.begin_look()
        self._ignored.begin_look()
        self._session.surround_modules(self._surround)
        self._session.watch_losses(self._losses, is_on=True)

    def _close(self, _: Any) -> None:
        if self._watch.is_on_here():  # the optimizer has stepped inside a module
            self._leave()
        self._session.surround_modules(None)
        self._session.watch_losses(self._losses, is_on=False)
        began_ns = self._session.now()
        self._known.end()
        if not self._calls:
            self._steps.spent(began_ns)
            return
        self._looks += 1
        steps, self._looked_at = self._steps.taken - self._looked_at, self._steps.taken
        self._repeats.end_look(_LEAST_SHARE * self._forward_ns, steps)
        self._pairs.end_look(self._forward_ns)
        self._ignored.end_look(self._forward_ns)
        every = (self._repeats.told(), self._pairs.told(), self._ignored.told())
        found = [told for told in every if told is not None]
        for told in found:
            self._session.note_state(told)
        if self._looks > _ENOUGH_LOOKS:
            self._note()
        is_told = self._is_told or any(one["lines"] for told in found for one in told.values())
        # The first one knows of no buffer that it stays the same.
        told_ns = self._constant_ns + self._repeats.took_ns + self._pairs.took_ns
        told_ns += self._ignored.took_ns
        is_little = self._looks > 1 and told_ns < _LEAST_SHARE * self._forward_ns
        if is_little or (self._looks >= _MOST_LOOKS and not is_told):
            self._stop()
        self._steps.spent(began_ns - self._spent_ns - self._ignored.spent_ns)

    def _call_begins(self) -> None:
        if not (self._torch.is_grad_enabled() and self._may_look() and self._watch.put_on()):
            # What it takes is a part of all forwards, of which the lines told have a share.
            self._unwatched[get_ident()] = self._session.now()
            return
        self._began_ns = self._session.now()
        self._spent_before_ns = self._spent_ns
        self._caller = self._beyond_torch(_getframe(2))  # behind what guards this
        self._repeats.begin_forward()

    def _ends(self, output: Any) -> None:
        """Ends a call, and the watch of it, whatever has failed meanwhile."""
        try:
            self._call_ended(output)
        finally:
            if self._watch.is_on_here():
                self._watch.take_off()

    def _call_ends(self, output: Any) -> None:
        began_ns = self._unwatched.pop(get_ident(), None)
        if began_ns is not None:
            self._forward_ns += self._session.now() - began_ns
        if not self._watch.is_on_here():
            return
        self._leave()
        with self._autograd.unseen():
            self._pairs.gives_out(_flat((output,)))

    def _leave(self) -> None:
        self._watch.take_off()
        self._caller = None
        self._surround.spent_ns = self._spent_ns - self._spent_before_ns
        self._forward_ns += self._session.now() - self._began_ns - self._surround.spent_ns

    def _may_look(self) -> bool:
        """Whether nothing would notice the mode: a compiler would compile anew beneath it."""
        if self._watch.depth() or self._session.compiler.was_asked or _has_compiled():
            return False
        return self._autograd.may_compute()

    def _look_at(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Notes whether all that a function is about to be given stays as it is, and what it is."""
        self._calls += 1
        self._stays = False
        self._repeats.forget()
        if self._calls > _MOST_CALLS or self._autograd.is_transformed():
            self._pairs.loses_sight()
            return
        began_ns = self._session.now()
        with self._autograd.unseen():
            tensors = [one for one in _flat((args, kwargs)) if self._is_tensor(one)]
            # Each of them is asked: what is met for the first time is to be known in the next look.
            held = [self._may_be_known(one) and self._known.holds(one) for one in tensors]
            self._stays = all(held)
            if self._stays:
                self._written = {self._known.place_of(one): one._version for one in tensors}
            self._given = self._versions(tensors) if _may_write(name, kwargs) else {}
            self._repeats.asked(name, args, kwargs)
        self._spent_ns += self._session.now() - began_ns

    def _see(
        self,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        start: int,
        end: int,
        caller: FrameType,
    ) -> None:
        """Takes in a call: what it gave, or wrote to, stays as it is, or does not."""
        if self._calls > _MOST_CALLS or self._autograd.is_transformed():
            return
        with self._autograd.unseen(), self._torch.no_grad():
            gave = _flat((args[:1],)) if result is None else _flat((result,))
            tensors = [one for one in gave if self._is_tensor(one)]
            plain = [one for one in tensors if self._may_be_known(one)]
            stays = self._stays and len(plain) == len(tensors)
            is_raw = name in NO_NUMBERS_YET
            if stays and not is_raw and any(map(self._is_new, plain)):
                stays = self._is_same(name, args, plain, end - start, caller)
            for one in plain:
                if stays:
                    self._known.add(one, is_raw=is_raw)
                else:
                    self._known.drop(one)
            if self._given:
                now = self._versions(one for one in _flat((args, kwargs)) if self._is_tensor(one))
                self._note_writes(now, is_constant=stays)
            if name in ACTS and acts(name, args):
                self._repeats.acts_at(self._site_in_model(caller))
            self._see_repeat(name, tensors, end - start, caller, is_constant=stays)
            if not stays:
                site_of = partial(self._site_in_model, caller)
                self._pairs.see(Call(name, args, kwargs, result, end - start, site_of))
            if name in LOSSES:
                site_of = partial(self._site_of_loss, caller)
                self._ignored.see(Call(name, args, kwargs, result, end - start, site_of))
        self._spent_ns += self._session.now() - end

    def _see_loss(self, call: ModuleCall) -> None:
        """Takes in a function for a loss that is called outside of modules."""
        is_ours = call.module in LOSSES and self._torch.is_grad_enabled()
        if not is_ours or self._autograd.is_transformed():
            return
        began_ns = self._session.now()
        args, kwargs = call.inputs
        with self._autograd.unseen(), self._torch.no_grad():
            told = Call(call.module, args, kwargs, call.output, call.took_ns, lambda: call.site)
            self._ignored.see_outside(told)
        self._spent_ns += self._session.now() - began_ns

    def _versions(self, tensors: Iterable[Any]) -> dict[int, int]:
        """Returns how often tensors have been written to, by where torch keeps them."""
        told = (one for one in tensors if self._is_told_by_storage(one))
        return {one.untyped_storage()._cdata: one._version for one in told}

    def _note_writes(self, now: dict[int, int], *, is_constant: bool) -> None:
        """Takes in what a call has left of what it was given: where it wrote, nothing is constant.

        In the first look nobody knows of a buffer that it stays the same, nor of what is written
        of it.
        """
        places = [x for x, version in now.items() if self._given.get(x, version) != version]
        self._repeats.written(places)
        for place in [] if is_constant or not self._looks else places:
            for one in self._makers.get(place, ()):
                one.changes = True

    def _see_repeat(
        self, name: str, results: list[Any], took_ns: int, caller: FrameType, *, is_constant: bool
    ) -> None:
        """Takes in a call that may repeat another; what stays the same counts as that alone."""
        new = self._repeats.made(results)
        frame = self._beyond_torch(caller) if new else None
        if frame is None:
            return
        place = id(frame.f_code), frame.f_lineno
        if not self._repeats.is_repeat(name, place, new, took_ns) or is_constant:
            return
        learns = any(one.requires_grad for one in new)
        if not learns and not self._looks:
            return  # it may stay the same, which the first look cannot know
        line = Line(*self._whose(frame), _inside(caller, self._caller))
        if line.site:
            self._repeats.count(line, took_ns, learns=learns)

    def _is_new(self, tensor: Any) -> bool:
        """Whether its numbers are: no other view of those that a function was given."""
        return bool(self._written.get(self._known.place_of(tensor)) != tensor._version)

    def _is_same(
        self,
        name: str,
        args: tuple[Any, ...],
        results: list[Any],
        took_ns: int,
        caller: FrameType,
    ) -> bool:
        """Takes in what came of nothing but what stays; returns whether it is as in other looks."""
        is_partly_raw = name == _WRITES_A_PART and any(map(self._known.is_raw, results))
        digest = hash(_words_of(args[1:])) if is_partly_raw else self._digest(results)
        if digest is None:
            return False
        frame = self._beyond_torch(caller)
        place = self._session.sites.name(frame) if frame is not None else 0
        count = self._met[place, name] = self._met.get((place, name), 0) + 1
        key = place, name, count
        known = self._operators.get(key)
        if known is None:
            known = self._operators[key] = _Operator(digest, *self._whose(frame))
        elif known.digest != digest:
            known.changes = True
        for one in results:
            self._makers.setdefault(self._known.place_of(one), []).append(known)
        if known.changes:
            return False
        known.took_ns.append(took_ns)
        known.bytes = sum(one.numel() * one.element_size() for one in results)
        self._constant_ns += took_ns if known.site else 0
        return True

    def _site_of_loss(self, caller: FrameType) -> int:
        """Returns the user's line in the model, or that which calls a loss of torch's; 0: neither.

        One that a library computes has none.
        """
        frame, sites = self._beyond_torch(caller), self._session.sites
        if frame is not None and frame is self._caller and sites.is_user_code(frame.f_code):
            return sites.name(frame)
        site, package = self._whose(frame)
        return site if package is None else 0

    def _site_in_model(self, caller: FrameType) -> int:
        return self._whose(self._beyond_torch(caller))[0]

    def _beyond_torch(self, frame: FrameType | None) -> FrameType | None:
        """Returns the first frame at and above one that is neither ours nor torch's."""
        while frame is not None and self._session.sites.is_ours_or_torch(frame.f_code):
            frame = frame.f_back
        return frame

    def _whose(self, frame: FrameType | None) -> tuple[int, str | None]:
        """Returns the user's line inside the model by which a frame is called, and its library.

        A library's own model, which a trainer calls, has none.
        """
        sites = self._session.sites
        if frame is None:
            return 0, None
        first = outer = frame
        while not sites.is_user_code(outer.f_code) and outer is not self._caller:
            if outer.f_back is None:
                return 0, None
            outer = outer.f_back
        if outer is self._caller:
            return 0, None
        return sites.name(outer), None if outer is first else sites.package_of(first.f_code)

    def _digest(self, results: list[Any]) -> int | None:
        """Returns what tells their numbers from others; None where they are too many."""
        self._compared += len(results)
        return digest_of(self._torch, results) if self._compared <= _MOST_COMPARED else None

    def _is_tensor(self, thing: Any) -> bool:
        return issubclass(type(thing), self._torch.Tensor)

    def _may_be_known(self, thing: Any) -> bool:
        """Whether it is torch's own, on the host, and not learnt."""
        if not self._is_tensor(thing) or not self._autograd.is_plain(thing):
            return False
        if thing.requires_grad or thing.is_inference() or thing.device.type != "cpu":
            return False
        return bool(thing.layout is self._torch.strided)

    def _is_told_by_storage(self, thing: Any) -> bool:
        """Whether it is torch's own, on the host, and its storage tells all that it holds."""
        if not self._autograd.is_plain(thing) or not thing.is_cpu or thing.is_inference():
            return False
        if thing.is_nested or thing.is_conj() or thing.is_neg() or thing.is_quantized:
            return False
        return bool(thing.layout is self._torch.strided)

    def _note(self) -> None:
        """Tells the lines whose results have been the same in all looks."""
        took_ns: dict[tuple[int, str | None], float] = {}
        octets: dict[tuple[int, str | None], int] = {}
        # In the first look nobody knows of a buffer that it stays the same.
        looks = self._looks - 1
        for one in self._operators.values():
            if one.changes or not one.site or len(one.took_ns) < looks:
                continue
            place = one.site, one.package
            took_ns[place] = took_ns.get(place, 0) + median(one.took_ns)
            octets[place] = max(octets.get(place, 0), one.bytes)
        lines = sorted(took_ns, key=lambda place: -took_ns[place])[:_MOST_PLACES]
        if not lines and not self._is_told:
            return
        self._is_told = bool(lines)
        told = [
            {
                "site": place[0],
                "package": place[1],
                "step_ns": round(took_ns[place]),
                "bytes": octets[place],
            }
            for place in lines
        ]
        seen = {"looks": self._looks, "steps": self._looked_at, "lines": told}
        self._session.note_state({"constants": seen})


def _inside(frame: FrameType | None, end: FrameType | None) -> str | None:
    """Returns what of torch's stands between a call and what calls the model, if it is known."""
    while frame is not None and frame is not end:
        name = frame.f_code.co_filename
        if frame.f_code.co_name == _ATTENDS:
            return ATTENTION
        for ending, what in _INSIDE.items():
            if name.endswith(ending):
                return what
        frame = frame.f_back
    return None


def _may_write(name: str, kwargs: dict[str, Any]) -> bool:
    """Whether a function of that name may write to what it is given."""
    return name.endswith("_") or kwargs.get("out") is not None


def _has_compiled() -> bool:
    """Whether torch's compiler has gone through any code in this process."""
    frames = getattr(modules.get(_DYNAMO_COUNTERS), "counters", {}).get("frames")
    return bool(frames)


def _words_of(things: Any) -> str:
    """Returns what tells numbers, slices and shapes from others: where something is written."""
    if is_container(things):
        return f"({' '.join(map(_words_of, elements_of(things)))})"
    if type(things) is slice:
        return f"[{' '.join(map(_words_of, (things.start, things.stop, things.step)))}]"
    is_plain = type(things) in (int, float, bool, str, type(None))
    return repr(things) if is_plain else type(things).__name__


def _flat(things: Any) -> Iterator[Any]:
    """Goes through what a function is given or gives, two containers deep."""
    for one in elements_of(things):
        if is_container(one):
            for inner in elements_of(one):
                yield from elements_of(inner) if is_container(inner) else (inner,)
        else:
            yield one
