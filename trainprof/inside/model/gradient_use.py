"""Finds gradients without an optimizer, and gradients discarded before their optimizer steps."""

from __future__ import annotations

import os
import sys
import weakref
from _thread import get_ident
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from trainprof.inside.model.parameters import (
    KnownOptimizers,
    held_in,
    parameters_in,
    parameters_of,
    reads_gradients,
)
from trainprof.inside.patching.function_modes import PlainTensors
from trainprof.inside.patching.patcher import Patcher
from trainprof.inside.session import Session
from trainprof.inside.signals import ModuleCall
from trainprof.record.notes import DiscardedGradients, UnusedGradients

# Steps of a window before it is observed, before gradients are compared, and in all.
_SKIPPED, _COMPARED, _ALL = 4, 8, 28
_MOST_WINDOWS, _MOST_OPTIMIZERS, _ENOUGH_PASSES = 4, 8, 3
# A module's id, the line that calls it, and whether its inputs need gradients.
_Call = tuple[int, int, bool]


@dataclass(slots=True)
class _Pass:
    """A backward pass: module calls before it, and the optimizers whose gradients it wrote."""

    line: int
    took_ns: int
    calls: Counter[_Call]
    pending: set[int]
    used: set[int] = field(default_factory=set)
    gone: set[int] = field(default_factory=set)


class GradientUseProbe:
    """Compares the address and version counter of `.grad` over a few updates."""

    name = "gradient_use"

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        self._torch, self._session, self._plain = torch, session, PlainTensors(torch, session)
        self._optimizers = KnownOptimizers(session)
        self._windows = self._thread = 0
        self._begin, self._end = patcher.guarded(self._begins), patcher.guarded(self._has_ended)
        self._call, self._step = patcher.guarded(self._meet), patcher.guarded(self._has_stepped)
        self._stop()
        session.on_parameters.subscribe(patcher.guarded(self._optimizers.note))
        session.on_first_step.subscribe(patcher.guarded(self._first_step))
        patcher.at_fault(self._stop)
        os.register_at_fork(after_in_child=self._stop)

    def _first_step(self, optimizer: Any) -> None:
        self._optimizers.note(optimizer)
        self._stop()
        if self._windows < _MOST_WINDOWS and not self._plain.has_own_parameters():
            self._windows += 1
            self._thread = get_ident()
            self._session.on_step.subscribe(self._step)

    def _stop(self) -> None:
        self._session.on_step.unsubscribe(self._step)
        self._switch(is_on=False)
        self._updates = self._depth = self._began_ns = 0
        self._watched: list[weakref.ref[Any]] = []
        self._states: list[list[Any]] = []
        # By parameter id: the numbers of its optimizers; its gradient.
        self._owners: dict[int, set[int]] = {}
        self._grads: dict[int, tuple[int, int] | None] = {}
        self._passes: list[_Pass] = []
        self._calls: Counter[_Call] = Counter()
        self._modules: dict[int, weakref.ref[Any]] = {}

    def _switch(self, *, is_on: bool) -> None:
        self._session.on_backward.switch(self._begin, is_on=is_on)
        self._session.on_backward_end.switch(self._end, is_on=is_on)
        self._session.on_module_call.switch(self._call, is_on=is_on)

    def _has_stepped(self, optimizer: Any) -> None:
        if get_ident() != self._thread:
            return
        began_ns, its = self._session.now(), parameters_in(optimizer)
        self._updates += 1
        stepped = {n for n, some in enumerate(self._samples()) if id(some[0]) in its}
        for backward in self._passes:
            backward.used |= backward.pending & stepped
            backward.pending -= stepped
        with self._plain.unseen():
            if self._updates == _SKIPPED:
                self._open()
            elif self._updates == _COMPARED:
                self._grads = {id(p): _place_of(p) for p in self._parameters()}
            elif self._updates == _ALL:
                if not reads_gradients(self._session.sites.is_user_file):
                    self._judge()
                self._stop()
        self._session.count_inspection(began_ns)

    def _open(self) -> None:
        alive = self._optimizers.alive()
        owned = [parameters_in(optimizer) for optimizer in alive]
        is_plain = all(self._plain.is_plain(p) for those in owned for p in those.values())
        if is_plain and len(owned) <= _MOST_OPTIMIZERS and all(owned):
            self._watched = list(map(weakref.ref, alive))
            for number, those in enumerate(owned):
                for key in those:
                    self._owners.setdefault(key, set()).add(number)
            self._switch(is_on=True)

    def _samples(self) -> list[list[Any]]:
        """Returns some parameters of each optimizer; not stored, so that torch can swap them."""
        alive = [optimizer for reference in self._watched if (optimizer := reference()) is not None]
        if len(alive) < len(self._watched):
            self._stop()
            return []
        groups = [[group["params"] for group in optimizer.param_groups] for optimizer in alive]
        return [[ps[0][0], ps[0][len(ps[0]) // 2], ps[-1][-1]] for ps in groups]

    def _gradients(self) -> list[list[Any]]:
        with self._plain.unseen():
            return [list(map(_place_of, some)) for some in self._samples()]

    def _parameters(self) -> list[Any]:
        modules = [module() for module in self._modules.values()]
        every = {id(p): p for module in modules for p in parameters_of(module)}
        return [p for p in every.values() if self._plain.is_plain(p) and p.requires_grad]

    def _meet(self, call: ModuleCall) -> None:
        if get_ident() != self._thread or self._depth or not self._torch.is_grad_enabled():
            return
        with self._plain.unseen():
            given = (x for _, x in held_in(call.inputs) if self._plain.is_plain(x))
            needs = any(x.requires_grad for x in given)
        self._modules[id(call.module)] = weakref.ref(call.module)
        self._calls[id(call.module), call.site, needs] += call.took_ns

    def _begins(self, *_: Any) -> None:
        self._depth += get_ident() == self._thread
        if get_ident() == self._thread and self._depth == 1:
            self._states = self._gradients()
            gone = {number for number, state in enumerate(self._states) if not any(state)}
            for backward in self._passes:
                backward.gone |= backward.pending & gone
                backward.pending -= gone
            self._began_ns = self._session.now()

    def _has_ended(self) -> None:
        if get_ident() != self._thread or not self._depth:
            return
        self._depth -= 1
        if not self._depth:
            took_ns = self._session.now() - self._began_ns
            both = enumerate(zip(self._states, self._gradients(), strict=False))
            wrote = {number for number, (before, after) in both if before != after}
            line = self._session.sites.find(sys._getframe(1))
            self._passes.append(_Pass(line, took_ns, self._calls, wrote))
            self._calls = Counter()

    def _judge(self) -> None:
        grads = {id(p): grad for p in self._parameters() if (grad := _place_of(p))}
        before = {key: self._grads.get(key) or (-1, 0) for key in grads}
        # Same address and written since: code that used it would have reset it.
        kept = {
            key
            for key, (address, version) in grads.items()
            if before[key][0] == address and before[key][1] < version
        }
        unused = kept - self._owners.keys()
        if unused and not self._owners.keys().isdisjoint(grads):
            shares = self._shares_of(unused, _calls_of(self._passes))
            self._session.note(UnusedGradients(**shares))
        lines = {backward.line for backward in self._passes}
        discarded = [note for line in lines if (note := self._discarded(line))]
        if discarded:
            self._session.note(discarded)

    def _discarded(self, line: int) -> DiscardedGradients | None:
        """Returns the note of a line's backward passes, None if their gradients are used."""
        passes = [backward for backward in self._passes if backward.line == line]
        lost = {n for backward in self._passes for n in backward.used if _is_lost(n, passes)}
        if not lost:
            return None
        reached = lost.union(*(backward.used for backward in passes))
        calls = _calls_of(passes)
        for earlier in reversed(self._passes):  # their modules may be called before other passes
            known = {module for module, _, _ in calls}
            calls += Counter(
                {key: ns * len(passes) for key, ns in earlier.calls.items() if key[0] not in known}
            )
        shares = self._shares_of({p for p, n in self._owners.items() if n <= lost}, calls, reached)
        all_ns = sum(backward.took_ns for backward in self._passes)
        share = sum(backward.took_ns for backward in passes) / max(all_ns, 1)
        for name in ("unused_share", "mixed_share"):
            shares[name] *= share
        return DiscardedGradients(**shares, site=line)

    def _shares_of(
        self, lost: Collection[int], calls: Counter[_Call], reached: Collection[int] | None = None
    ) -> dict[str, Any]:
        """Returns the shares of calls' time for unused parameters, alone and mixed with used."""
        all_ns = unused_ns = mixed_ns = 0.0
        most = (0, "", 0)  # number of parameters, their model, the line that calls it
        for (key, site, needs), spent_ns in calls.items():
            module = self._modules[key]()
            own = [p for p in parameters_of(module) if p.requires_grad][::-1]
            owners = {n for p in own for n in self._owners.get(id(p), ())}
            if reached is not None and owners and owners.isdisjoint(reached):
                continue
            alone = mixed = 0
            for parameter in own:
                if id(parameter) not in lost:
                    needs = True
                elif needs:
                    mixed += parameter.numel()
                else:
                    alone += parameter.numel()
            numbers = max(sum(p.numel() for p in own), 1)
            all_ns += spent_ns
            unused_ns += spent_ns * alone / numbers
            mixed_ns += spent_ns * mixed / numbers
            if alone + mixed > most[0]:
                most = alone + mixed, type(module).__qualname__, site
        return {
            "unused_share": unused_ns / max(all_ns, 1),
            "mixed_share": mixed_ns / max(all_ns, 1),
            "from_start": self._windows <= len(self._optimizers.alive()),
            "model": most[1],
            "model_site": most[2],
        }


def _calls_of(passes: list[_Pass]) -> Counter[_Call]:
    return sum((backward.calls for backward in passes), Counter[_Call]())


def _is_lost(number: int, passes: list[_Pass]) -> bool:
    """Returns whether an optimizer's gradients were always discarded while others were used."""
    gone = sum(number in x.gone and bool(x.used) for x in passes)
    is_used = any(number in x.used or (number in x.gone and not x.used) for x in passes)
    return gone >= _ENOUGH_PASSES and not is_used


def _place_of(parameter: Any) -> tuple[int, int] | None:
    grad = parameter.grad
    if grad is None:
        return None
    return id(grad) if grad.is_sparse else grad.data_ptr(), grad._version
