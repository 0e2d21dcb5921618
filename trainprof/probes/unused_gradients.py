"""Looks at a few backward passes: for gradients that no optimizer uses, and for those of tables."""

from __future__ import annotations

import os
from _thread import get_ident
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Final

from trainprof.probes.embedding_tables import MetTables, numbers_in, places_of
from trainprof.probes.gradient_reads import accumulates_by_hand, reads_gradients
from trainprof.probes.graph_look import Autograd, GraphLook, Numbers
from trainprof.probes.graph_walk import ANYONE, MIXED, UNUSED, USED, GraphTooLarge, use_of
from trainprof.probes.known_optimizers import KnownOptimizers, parameters_in
from trainprof.probes.look_window import LookWindow
from trainprof.probes.module_parts import parameters_of, told_of
from trainprof.probes.patcher import Patcher
from trainprof.probes.session import BackwardWatch, ModuleCall, Session
from trainprof.record.schema import Topic

# Of backward passes, the first ones of an optimizer: cold.
_NOT_THE_FIRST: Final = 3
_ENOUGH_LOOKS: Final = 12
# The script may end, and its model with it, before there are enough.
_FIRST_JUDGED: Final = 4
# A script may train one model after another, or use a gradient in a way that is told only later.
_MOST_WINDOWS: Final = 3
# Of the time since the first of them: for the first few looks, and for all.
_FIRST_COST_SHARE: Final = 1 / 50
_COST_SHARE: Final = 1 / 200
# Of all looks; to go through one takes some 5 us.
_MOST_NODES: Final = 20_000
# Of the passes, those that add to a gradient which nobody sets back.
_ADDED_SHARE: Final = 0.9
# Passes right behind one that met tables of embeddings, to see what else goes back to those.
_FOLLOWED: Final = 3
# The owner of gradients that no optimizer uses.
_NOBODY: Final = 2 * ANYONE


@dataclass(slots=True)
class _Candidate:
    """A parameter that had a gradient computed, and is in no optimizer.

    Not even a weak reference to it outlives the look at a pass: torch swaps no tensor that has one
    (`torch.utils.swap_tensors`).

    Attributes:
        kind: Its type of numbers and its shape: with others it is another by now.
        before: Its numbers as it was first met.
        grad: Of its gradient, as it was met again ahead of a pass: where it lay, how often it had
            been written, and the passes until then; None before that.
        grows: Nobody but backward writes to its gradient, as far as passes were counted.
    """

    kind: tuple[Any, ...]
    before: Numbers
    grad: tuple[int, int, int] | None = None
    grows: bool = False


@dataclass(slots=True)
class _Window(LookWindow):
    """What looks have told since the last optimizer that was new.

    Attributes:
        took_ns: By what a node's gradients are for, as graph_walk tells.
        candidates: By id.
        tables: Of embeddings, that got a whole gradient.
        followed: Looks right behind one that met some.
    """

    next_pass: int = _NOT_THE_FIRST
    took_ns: list[int] = field(default_factory=lambda: [0, 0, 0])
    candidates: dict[int, _Candidate] = field(default_factory=dict)
    tables: MetTables = field(default_factory=MetTables)
    followed: int = 0


class UnusedGradientsProbe:
    """Goes through the graph of a few backward passes, and times its nodes by hooks on them.

    A parameter is told only if it is in no optimizer that lives, and nobody but backward ever
    writes to its gradient, which then only grows: who uses a gradient sets it back, now and then
    where the user's code does that itself. Where it is set back (`model.zero_grad()`), its numbers
    must not change, for scripts update some by hand, nor may the user's code read gradients.
    """

    name = "unused_gradients"

    def __init__(self) -> None:
        self._windows = 0
        self._window = _Window()
        self._is_told = self._are_tables_told = False
        # Whether the user's code reads gradients; None until somebody asks.
        self._reads: bool | None = None
        self._accumulates: bool | None = None
        # Ids of parameters whose numbers have changed without an optimizer.
        self._changed: set[int] = set()
        # By id: candidates that passes which are being looked at go back to.
        self._at_hand: dict[int, Any] = {}
        # Of the thread that trains: for each pass that it is in, the look at it, if there is one.
        self._thread = 0
        self._inside: list[GraphLook | None] = []

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        self._torch, self._session = torch, session
        self._process = os.getpid()
        self._autograd = Autograd(torch, session)
        self._optimizers = KnownOptimizers(session)
        self._watch = BackwardWatch(patcher.guarded(self._begins), patcher.guarded(self._has_ended))
        self._meets = patcher.guarded(self._meet)
        session.at_parameters.append(patcher.guarded(self._optimizers.note))
        session.at_first_step.append(patcher.guarded(self._first_step))
        session.at_end.append(patcher.guarded(self._judge_at_end))
        patcher.at_fault(self._stop)
        os.register_at_fork(after_in_child=self._begin_anew)

    def _first_step(self, optimizer: Any) -> None:
        self._optimizers.note(optimizer)
        if self._windows < _MOST_WINDOWS:
            self._windows += 1
            self._open_window()

    def _open_window(self) -> None:
        self._retract()
        if self._are_tables_told:  # of a model that may be gone
            self._note_tables(None)
        self._session.tell_modules(self._meets, False)
        self._window = _Window()
        self._session.watch_backward(self._watch, is_on=True)

    def _stop(self) -> None:
        self._session.watch_backward(self._watch, is_on=False)
        self._session.tell_modules(self._meets, False)
        self._window, self._is_told = _Window(), False
        self._at_hand.clear()

    def _begin_anew(self) -> None:
        """In a forked child, which may train something of its own."""
        self._stop()
        self._inside.clear()
        self._windows = 0
        self._process = os.getpid()

    def _begins(self, outputs: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        thread = get_ident()
        if not self._inside:
            self._thread = thread
        elif thread != self._thread:
            return
        window = self._window
        window.passes += not self._inside
        began_ns = self._session.now()
        is_due = self._is_due(window, began_ns)
        look = self._look(outputs) if is_due and self._autograd.may_look(args, kwargs) else None
        self._inside.append(look)
        if is_due:
            window.began_ns = window.began_ns or began_ns
            window.spend(self._session, began_ns)

    def _is_due(self, window: _Window, now_ns: int) -> bool:
        if any(self._inside):  # a pass inside one that is looked at: checkpointing's
            return True
        if 0 < window.followed <= _FOLLOWED:
            return True
        share = _FIRST_COST_SHARE if window.looks < _FIRST_JUDGED else _COST_SHARE
        return window.may_spend(share, now_ns)

    def _look(self, outputs: Any) -> GraphLook | None:
        """Goes through the graph of a pass, and has each node of it tell when it begins."""
        window, is_plain = self._window, self._autograd.is_plain
        owned = self._owned()
        if not all(is_plain(tensor) for tensor in (*outputs, *owned.values())):
            return None
        with self._autograd.unseen():
            try:
                needs = self._autograd.needs_in(
                    outputs,
                    lambda leaf: ANYONE if self._is_used(leaf, owned) else _NOBODY,
                    _MOST_NODES - window.nodes,
                )
            except GraphTooLarge:
                self._stop()
                return None
            of_tables = window.tables.nodes_in(needs)
        window.nodes += len(needs)
        keys = {
            node: (use_of(whom, in_vain=_NOBODY), node in of_tables) for node, whom in needs.items()
        }
        return GraphLook(self._session, keys)

    def _owned(self) -> dict[int, Any]:
        """Returns what optimizers have now, by id."""
        owned: dict[int, Any] = {}
        for optimizer in self._optimizers.alive():
            owned.update(parameters_in(optimizer))
        return owned

    def _is_used(self, leaf: Any, owned: dict[int, Any]) -> bool:
        """Whether something uses the gradient of a leaf, as far as is known; notes those without.

        Only plain parameters can be told: of other tensors the script asks for gradients itself.
        """
        key = id(leaf)
        if not self._autograd.is_parameter(leaf) or key in owned:
            return True
        known = self._window.candidates.get(key)
        if known is not None:
            self._at_hand[key] = leaf
            if known.grad is None and (grad := leaf.grad) is not None:
                known.grad = grad.data_ptr(), grad._version, self._window.passes - 1
            return False
        if key in self._changed:
            return True
        self._at_hand[key] = leaf
        self._window.candidates[key] = _Candidate(_kind_of(leaf), self._autograd.numbers_of(leaf))
        return False

    def _has_ended(self) -> None:
        """Takes up what the nodes of a pass have told, and lets go of them."""
        if not self._inside or get_ident() != self._thread:
            return
        look = self._inside.pop()
        if look is None:
            return
        window, end_ns = self._window, self._session.now()
        took_ns = look.end(end_ns)
        for (use, is_of_table), ns in took_ns.items():
            window.took_ns[use] += ns
            if is_of_table:
                window.tables.took_ns += ns
            else:
                window.tables.others_ns += ns
        if any(self._inside):  # in the time of a node of the pass around it
            window.took_ns[USED] -= sum(took_ns.values())
            window.tables.others_ns -= sum(took_ns.values())
            return
        window.looks += 1
        if window.looks == 1:
            self._session.log.note(Topic.ENVIRONMENT, {"backward_nodes": window.nodes})
        window.next_pass = window.passes + 1 + window.looks % 3  # in step with no loop
        window.followed += bool(window.tables.tables) and window.followed <= _FOLLOWED
        if window.tables.tables:
            self._are_read()  # at the end the script's text is no longer known as a module's
        if window.looks in (_FIRST_JUDGED, _ENOUGH_LOOKS):
            self._tell_tables()
        if window.looks == _ENOUGH_LOOKS:
            self._session.tell_modules(self._meets, False)
            self._judge()
            if self._window is window:
                self._session.watch_backward(self._watch, is_on=False)
        elif window.looks == _FIRST_JUDGED:
            self._judge()
        elif window.candidates or window.tables.tables:
            self._session.tell_modules(self._meets, True)
        self._at_hand.clear()
        window.spend(self._session, end_ns)

    def _meet(self, call: ModuleCall) -> None:
        if self._torch.is_grad_enabled():
            self._window.meet(call)

    def _judge_at_end(self) -> None:
        if os.getpid() == self._process:
            self._tell_tables()
            self._judge()

    def _tell_tables(self) -> None:
        """Tells of the tables of embeddings that looks have met, as far as they are known."""
        window, optimizers = self._window, self._optimizers.alive()
        if window.looks < _FIRST_JUDGED or not window.tables.tables:
            return
        met, sites = window.tables, self._session.sites
        with self._autograd.unseen():
            # At the end the script's text is no longer known as that of a module.
            unplaced = met.tables.keys() - met.sites.keys()
            if unplaced:
                met.sites |= places_of(unplaced, window.models(), sites.is_user_file, sites.of_line)
            tables = met.told(optimizers)
            numbers = numbers_in(optimizers)
        told = {
            "looks": window.looks,
            "backward_share": met.took_ns / max(met.took_ns + met.others_ns, 1),
            "tables": tables,
            "numbers": numbers,
            "reads_gradients": self._are_read(),
        }
        # At the end the script may have let go of the optimizers that it told of.
        is_wrong = self._are_tables_told and met.shared.issuperset(met.tables)
        if tables or is_wrong:
            self._note_tables(told if tables else None)

    def _note_tables(self, told: dict[str, Any] | None) -> None:
        self._are_tables_told = told is not None
        self._session.note_state({"embedding_tables": told})

    def _judge(self) -> None:
        """Tells of the candidates, if all are what they seem; else begins anew without the rest."""
        window = self._window
        if window.looks < _FIRST_JUDGED or not window.candidates:
            return
        owned = self._owned()
        unused, gone = {}, 0
        with self._autograd.unseen():
            alive = self._candidates_alive(window)
            for key, candidate in window.candidates.items():
                parameter = alive.get(key)
                if parameter is None:
                    gone += 1
                elif key in owned:
                    continue
                elif self._is_for_nothing(parameter, candidate):
                    unused[key] = parameter
                else:
                    self._changed.add(key)
        if len(unused) == len(window.candidates):
            self._tell(unused)
        elif self._is_told and len(unused) + gone == len(window.candidates):
            return  # the script has let go of a model that was told
        elif self._windows < _MOST_WINDOWS:
            self._windows += 1
            self._open_window()
        else:
            self._retract()
            self._stop()

    def _candidates_alive(self, window: _Window) -> dict[int, Any]:
        """Returns candidates, by id: those of the pass just seen, and of models that still live."""
        found = dict(self._at_hand)
        for model, _ in window.models():
            found.update((id(one), one) for one in parameters_of(model))
        known = window.candidates
        return {
            key: one
            for key, one in found.items()
            if key in known and known[key].kind == _kind_of(one)
        }

    def _is_for_nothing(self, parameter: Any, candidate: _Candidate) -> bool:
        """Whether nobody uses a gradient, as far as is known."""
        if self._only_grows(parameter, candidate):
            return not self._is_by_hand()
        return not (self._has_changed(parameter, candidate) or self._are_read())

    def _has_changed(self, parameter: Any, candidate: _Candidate) -> bool:
        return self._autograd.numbers_of(parameter).differ_from(candidate.before)

    def _are_read(self) -> bool:
        if self._reads is None:
            self._reads = reads_gradients(self._session.sites.is_user_file)
        return self._reads

    def _is_by_hand(self) -> bool:
        """Whether the script may let gradients add up, read them, and then begin anew."""
        if self._accumulates is None:
            self._accumulates = accumulates_by_hand(self._session.sites.is_user_file)
        return self._accumulates

    def _only_grows(self, parameter: Any, candidate: _Candidate) -> bool:
        """Whether each pass since it was met again has added to a gradient that nobody else wrote.

        Who updates a parameter by its gradient sets that back.
        """
        grad = parameter.grad
        if candidate.grad is None or grad is None:
            return False
        place, written, passes = candidate.grad
        added, counted = grad._version - written, self._window.passes - passes
        if grad.data_ptr() != place or added <= 0:
            candidate.grows = False
        elif self._watch in self._session.backward_watches:  # later on passes are not counted
            candidate.grows = _ADDED_SHARE * counted <= added <= counted
        return candidate.grows

    def _tell(self, unused: dict[int, Any]) -> None:
        window = self._window
        took_ns = max(sum(window.took_ns), 1)
        self._session.note_state(
            {
                "unused_gradients": {
                    "looks": window.looks,
                    "unused_share": window.took_ns[UNUSED] / took_ns,
                    "mixed_share": window.took_ns[MIXED] / took_ns,
                    "from_start": self._windows == 1,
                    "tensors": len(unused),
                    "numbers": sum(parameter.numel() for parameter in unused.values()),
                    "models": told_of(window.models(), set(unused)),
                }
            }
        )
        self._is_told = True

    def _retract(self) -> None:
        if self._is_told:
            self._session.note_state({"unused_gradients": None})
            self._is_told = False


def _kind_of(parameter: Any) -> tuple[Any, ...]:
    return parameter.dtype, *parameter.shape
