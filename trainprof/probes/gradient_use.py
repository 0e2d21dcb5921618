"""Gradients that no optimizer has, and those that are thrown away before their optimizer steps."""

from __future__ import annotations

import os
import sys
import weakref
from _thread import get_ident
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Final

from trainprof.probes.gradient_reads import accumulates_by_hand, reads_gradients
from trainprof.probes.known_optimizers import KnownOptimizers, parameters_in
from trainprof.probes.module_parts import parameters_of
from trainprof.probes.patcher import Patcher
from trainprof.probes.plain_tensors import PlainTensors
from trainprof.probes.session import BackwardWatch, ModuleCall, Session

# Optimizer steps of a window before it is watched, before gradients are compared, and in all. A new
# optimizer opens another window.
_SKIPPED, _COMPARED, _ALL = 4, 8, 28
_MOST_WINDOWS: Final = 4
_MOST_OPTIMIZERS: Final = 8
_ENOUGH_PASSES: Final = 3
# The user's line that begins a pass, and the one that calls it: a function for all of them.
_LINES: Final = 2
# The id of a module, the line that calls it, and whether what it is given needs gradients.
_Call = tuple[int, int, bool]


@dataclass(slots=True)
class _Pass:
    """A backward pass, with the optimizers whose gradients it wrote, and what became of those.

    Attributes:
        lines: Where it began.
        took_ns: By the pass.
        calls: Of modules, before it: what they took.
        pending, used, gone: Numbers of optimizers.
    """

    lines: tuple[int, ...]
    took_ns: int
    calls: Counter[_Call]
    pending: set[int]
    used: set[int] = field(default_factory=set)
    gone: set[int] = field(default_factory=set)


class GradientUseProbe:
    """Compares `.grad` of parameters over a few updates: where it lies, how often it was written.

    What backward takes for a module is taken from the time of the module's forward.
    """

    name = "gradient_use"

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        self._torch, self._session, self._process = torch, session, os.getpid()
        self._plain = PlainTensors(torch, session)
        self._optimizers = KnownOptimizers(session)
        self._windows = self._thread = 0
        self._is_told = False
        self._clear()
        self._watch = BackwardWatch(patcher.guarded(self._begins), patcher.guarded(self._has_ended))
        self._meets, self._steps = patcher.guarded(self._meet), patcher.guarded(self._has_stepped)
        session.at_parameters.append(patcher.guarded(self._given))
        session.at_first_step.append(patcher.guarded(self._first_step))
        patcher.at_fault(self._stop)
        os.register_at_fork(after_in_child=self._stop)

    def _clear(self) -> None:
        self._updates = self._depth = self._began_ns = 0
        self._watched: list[weakref.ref[Any]] = []
        self._states: list[list[Any]] = []
        # By id of a parameter: the numbers of optimizers that have it; its gradient.
        self._owners: dict[int, set[int]] = {}
        self._grads: dict[int, tuple[int, int] | None] = {}
        self._passes: list[_Pass] = []
        self._calls: Counter[_Call] = Counter()
        self._modules: dict[int, weakref.ref[Any]] = {}

    def _given(self, optimizer: Any) -> None:
        """Takes back what was said, of what an optimizer may have been given since."""
        self._optimizers.note(optimizer)
        if self._is_told and os.getpid() == self._process:
            self._is_told = False
            self._session.note_state({"unused_gradients": None})

    def _first_step(self, optimizer: Any) -> None:
        self._given(optimizer)
        self._stop()
        if self._windows < _MOST_WINDOWS and not self._plain.has_own_parameters():
            self._windows += 1
            self._thread = get_ident()
            self._session.watch_steps(self._steps, is_on=True)

    def _stop(self) -> None:
        self._session.watch_steps(self._steps, is_on=False)
        self._session.watch_backward(self._watch, is_on=False)
        self._session.tell_modules(self._meets, False)
        self._clear()

    def _has_stepped(self, optimizer: Any) -> None:
        if get_ident() != self._thread:
            return
        began_ns, its = self._session.now(), parameters_in(optimizer)
        self._updates += 1
        stepped = {n for n, some in enumerate(self._samples()) if id(some[0]) in its}
        for one in self._passes:
            one.used |= one.pending & stepped
            one.pending -= stepped
        with self._plain.unseen():
            if self._updates == _SKIPPED:
                self._open()
            elif self._updates == _COMPARED:
                self._grads = {id(p): _place_of(p) for p in self._parameters()}
            elif self._updates == _ALL:
                self._judge()
                self._stop()
        self._session.looked_since(began_ns)

    def _open(self) -> None:
        alive = self._optimizers.alive()
        owned = [parameters_in(one) for one in alive]
        is_plain = all(self._plain.is_plain(p) for those in owned for p in those.values())
        if not is_plain or len(owned) > _MOST_OPTIMIZERS or not all(owned):
            return
        self._watched = list(map(weakref.ref, alive))
        for number, those in enumerate(owned):
            for key in those:
                self._owners.setdefault(key, set()).add(number)
        self._session.watch_backward(self._watch, is_on=True)
        self._session.tell_modules(self._meets, True)

    def _samples(self) -> list[list[Any]]:
        """Returns some parameters of each optimizer; torch swaps none that is kept from here on."""
        alive = [optimizer for one in self._watched if (optimizer := one()) is not None]
        if len(alive) < len(self._watched):
            self._stop()
            return []
        groups = [[group["params"] for group in one.param_groups] for one in alive]
        return [[one[0][0], one[0][len(one[0]) // 2], one[-1][-1]] for one in groups]

    def _gradients(self) -> list[list[Any]]:
        with self._plain.unseen():
            return [list(map(_place_of, some)) for some in self._samples()]

    def _parameters(self) -> list[Any]:
        modules = [one() for one in self._modules.values()]
        every = {id(p): p for module in modules for p in parameters_of(module)}
        return [p for p in every.values() if self._plain.is_plain(p) and p.requires_grad]

    def _meet(self, call: ModuleCall) -> None:
        if get_ident() != self._thread or self._depth or not self._torch.is_grad_enabled():
            return
        with self._plain.unseen():
            needs = any(map(self._may_need, (*call.inputs[0], *call.inputs[1].values())))
        self._modules[id(call.module)] = weakref.ref(call.module)
        self._calls[id(call.module), call.site, needs] += call.took_ns

    def _may_need(self, given: Any) -> bool:
        if self._plain.is_plain(given):
            return bool(given.requires_grad)
        return type(given) in (list, tuple, dict) and len(given) > 0

    def _begins(self, *_: Any) -> None:
        self._depth += get_ident() == self._thread
        if get_ident() != self._thread or self._depth > 1:
            return
        self._states = self._gradients()
        gone = {number for number, state in enumerate(self._states) if not any(state)}
        for one in self._passes:
            one.gone |= one.pending & gone
            one.pending -= gone
        self._began_ns = self._session.now()

    def _has_ended(self) -> None:
        if get_ident() != self._thread or not self._depth:
            return
        self._depth -= 1
        if self._depth:
            return
        took_ns = self._session.now() - self._began_ns
        both = enumerate(zip(self._states, self._gradients(), strict=False))
        wrote = {number for number, (before, after) in both if before != after}
        lines = tuple(self._session.sites.frames(sys._getframe(1))[:_LINES])
        self._passes.append(_Pass(lines, took_ns, self._calls, wrote))
        self._calls = Counter()

    def _judge(self) -> None:
        is_user_file, known = self._session.sites.is_user_file, self._parameters()
        is_trained = any(id(p) in self._owners and p.grad is not None for p in known)
        unused = {
            id(p)
            for p in known
            if id(p) not in self._owners and _is_added_to(self._grads.get(id(p)), _place_of(p))
        }
        if unused and is_trained and not accumulates_by_hand(is_user_file):
            self._is_told = True
            calls = sum((one.calls for one in self._passes), Counter[_Call]())
            needless = self._told_of(unused, calls, lambda whose, _: True)
            self._session.note_state({"unused_gradients": needless})
        lines = dict.fromkeys(one.lines for one in self._passes)
        lost = [told for one in lines if (told := self._discarded(one))]
        if lost and not reads_gradients(is_user_file):
            self._session.note_state({"discarded_gradients": lost, "from_start": self._is_whole()})

    def _is_whole(self) -> bool:
        """Whether no optimizer is gone that there was before."""
        return self._windows <= len(self._optimizers.alive())

    def _discarded(self, lines: tuple[int, ...]) -> dict[str, Any] | None:
        """Returns what is told of the passes from a line; None where their gradients are used."""
        passes = [one for one in self._passes if one.lines == lines]
        used = {number for one in self._passes for number in one.used}
        lost = {number for number in used if _is_lost(number, passes)}
        if not lost:
            return None
        reached = lost | {number for one in passes for number in one.used}
        calls = sum((one.calls for one in passes), Counter[_Call]())
        called = {module for module, _, _ in calls}
        for earlier in reversed(self._passes):
            for key, spent_ns in earlier.calls.items():
                if key[0] not in {module for module, _, _ in calls}:
                    calls[key] = spent_ns * len(passes)

        def is_reached(whose: Collection[int], module: int) -> bool:
            return not reached.isdisjoint(whose) or (not whose and module in called)

        told = self._told_of({p for p, n in self._owners.items() if n <= lost}, calls, is_reached)
        share = sum(one.took_ns for one in passes) / sum(one.took_ns for one in self._passes)
        alike = {one.lines for one in self._passes if one.lines[:1] == lines[:1]}
        return {
            **told,
            "unused_share": told["unused_share"] * share,
            "mixed_share": told["mixed_share"] * share,
            "site": lines[0] if lines else 0,
            "caller": lines[-1] if len(alike) > 1 else 0,
        }

    def _told_of(
        self,
        lost: Collection[int],
        calls: Counter[_Call],
        is_reached: Callable[[Collection[int], int], bool],
    ) -> dict[str, Any]:
        """Returns what calls take for some parameters alone, and beside what is used, as shares."""
        all_ns = unused_ns = mixed_ns = 0.0
        models: dict[int, dict[str, Any]] = {}
        for (key, site, needs), spent_ns in calls.items():
            module = self._modules[key]()
            own = [p for p in parameters_of(module) if p.requires_grad][::-1]
            if not is_reached({n for p in own for n in self._owners.get(id(p), ())}, key):
                continue
            alone = beside = 0
            for parameter in own:
                if id(parameter) not in lost:
                    needs = True
                elif needs:
                    beside += parameter.numel()
                else:
                    alone += parameter.numel()
            numbers = max(sum(p.numel() for p in own), 1)
            all_ns += spent_ns
            unused_ns += spent_ns * alone / numbers
            mixed_ns += spent_ns * beside / numbers
            if alone or beside:
                tensors = sum(id(p) in lost for p in own)
                told = {"class": type(module).__qualname__, "site": site, "of": len(own)}
                models[key] = {**told, "tensors": tensors, "numbers": alone + beside}
        largest = sorted(models.values(), key=lambda one: -one["numbers"])[:1]
        return {
            "unused_share": unused_ns / max(all_ns, 1),
            "mixed_share": mixed_ns / max(all_ns, 1),
            "from_start": self._is_whole(),
            "tensors": sum(one["tensors"] for one in models.values()),
            "numbers": sum(one["numbers"] for one in models.values()),
            "models": largest,
        }


def _is_lost(number: int, passes: list[_Pass]) -> bool:
    """Whether what passes wrote for an optimizer always went, while another used its own."""
    gone = sum(number in one.gone and bool(one.used) for one in passes)
    is_used = any(number in one.used or (number in one.gone and not one.used) for one in passes)
    return gone >= _ENOUGH_PASSES and not is_used


def _place_of(parameter: Any) -> tuple[int, int] | None:
    grad = parameter.grad
    if grad is None:
        return None
    return id(grad) if grad.is_sparse else grad.data_ptr(), grad._version


def _is_added_to(before: tuple[int, int] | None, now: tuple[int, int] | None) -> bool:
    """Whether a gradient lies where it lay, and was written since: who uses it sets it back."""
    return before is not None and now is not None and before[0] == now[0] and before[1] < now[1]
