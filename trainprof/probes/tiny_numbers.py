"""Looks for numbers so small that a CPU computes with them many times more slowly (denormals)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from types import ModuleType
from typing import Any, Final

from trainprof.probes.elements import elements_of, is_container
from trainprof.probes.graph_look import Autograd
from trainprof.probes.graph_walk import is_leaf
from trainprof.probes.known_optimizers import parameters_in
from trainprof.probes.patcher import Patcher
from trainprof.probes.session import ModuleCall, Session
from trainprof.probes.step_looks import StepLooks
from trainprof.probes.tiny_gradients import KINDS, TinyGradients

# Looks that are taken, and those of them that are measured.
_MOST_LOOKS: Final = 24
_MOST_FOUND: Final = 4
# Of one step: calls of models, and operators of each one's graph; operators that are timed.
_MOST_CALLS: Final = 4
_MOST_NODES: Final = 4_096
_MOST_OPERATORS: Final = 64
_MOST_TIMED: Final = 6
# Of what a model gives.
_MOST_NESTED: Final = 2
_MOST_ELEMENTS: Final = 32
# Numbers of a tensor that are looked at, and of one that is computed with again.
_SAMPLED: Final = 4_096
_MOST_NUMBERS: Final = 1 << 24
# Of the numbers looked at.
_FEW: Final = 0.002
# Looks from which on what an optimizer keeps is looked at, of its largest parameters: what it keeps
# takes some steps to get so small.
_FIRST_OF_STATE: Final = 6
_MOST_PARAMETERS: Final = 8
# What an optimizer computes of each number it keeps: a decay, and what makes a step of it.
_PER_STATE: Final = 2
_DECAY: Final = 0.9

_CONVOLUTION: Final = "ConvolutionBackward0"
# By the name of an operator's node: what it keeps of what it was given.
_OPERANDS: Final = {
    "AddmmBackward0": ("_saved_mat1", "_saved_mat2"),
    "MmBackward0": ("_saved_self", "_saved_mat2"),
    "BmmBackward0": ("_saved_self", "_saved_mat2"),
    "MulBackward0": ("_saved_self", "_saved_other"),
    _CONVOLUTION: ("_saved_input", "_saved_weight"),
}
_GEOMETRY: Final = tuple(
    f"_saved_{name}"
    for name in ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
)

# An operator's node, with what it keeps of its operands; None in place of one that it does not.
_Operator = tuple[Any, list[Any]]


@dataclass(slots=True)
class _Times:
    """Of operators, ns.

    Attributes:
        cost: What they take longer for denormals.
        kept: What they take without any, at least: those among them, too, that were given none.
        behind: What backward takes of that: as long for each operand that gets a gradient.
    """

    cost: int = 0
    kept: int = 0
    behind: int = 0

    def add(self, other: _Times) -> None:
        self.cost += other.cost
        self.kept += other.kept
        self.behind += other.behind


@dataclass(slots=True)
class _Cost:
    """What denormals cost: in how many looks, from the first one on that met any.

    Or in how many steps that looks stand for.
    """

    times: _Times = field(default_factory=_Times)
    looks: int = 0

    def add(self, times: _Times, stands_for: int = 1) -> None:
        if times.cost or self.looks:
            self.looks += stands_for
            self.times.add(times)

    def told(self, name: str) -> dict[str, int]:
        times = self.times
        return {
            f"{name}_ns": times.cost,
            f"{name}_kept_ns": times.kept,
            f"{name}_kept_behind_ns": times.behind,
            f"{name}_looks": self.looks,
        }


class TinyNumbersProbe:
    """Tells what denormal numbers cost: operators are computed again without them, and timed.

    On the host alone, in a few steps: what models' operators were given, as their graph keeps it,
    what backward hands from one to the next, and what optimizers keep. Where torch flushes such
    numbers to zero there are none.
    """

    name = "tiny_numbers"

    def __init__(self) -> None:
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._looks = self._found = self._calls = self._looked_at = 0
        self._step = _Times()
        self._operators, self._gradients, self._optimizers = _Cost(), _Cost(), _Cost()
        self._share, self._site = 0.0, 0
        self._since: int | None = None
        self._seen: set[int] = set()

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        self._torch, self._session = torch, session
        self._autograd = Autograd(torch, session)
        self._tiny = {one: torch.finfo(one).tiny for one in (torch.float32, torch.float64)}
        self._hooked = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
        self._meets = patcher.guarded(self._meet)
        self._steps = StepLooks(session, self._open, self._close)
        self._behind = TinyGradients(
            torch, session, self._autograd, patcher.guarded, self._steps.spent
        )
        self._counts = patcher.guarded(self._steps.stepped)
        session.at_first_step.append(patcher.guarded(self._first_step))
        patcher.at_fault(self._stop)
        os.register_at_fork(after_in_child=self._in_child)

    def _first_step(self, _: Any) -> None:
        self._steps.begin(self._counts)

    def _stop(self) -> None:
        self._session.watch_steps(self._counts, is_on=False)
        self._session.tell_modules(self._meets, False)

    def _in_child(self) -> None:
        self._stop()
        self._begin_anew()
        self._behind.begin_anew()
        self._steps.begin_anew()

    def _open(self) -> None:
        self._calls, self._step = 0, _Times()
        self._seen.clear()
        self._session.tell_modules(self._meets, True)

    def _close(self, optimizer: Any) -> None:
        self._session.tell_modules(self._meets, False)
        self._looks += 1
        self._operators.add(self._step)
        cost, kept = self._behind.end()
        # Gradients vanish less as a model learns, and looks get rarer: each stands for the steps
        # since the one before. What is met first later on, for its own.
        is_late = not self._gradients.looks and self._looks > 1
        steps = 1 if is_late else self._steps.taken - self._looked_at
        self._looked_at = self._steps.taken
        self._gradients.add(_Times(cost=steps * cost, kept=steps * kept), stands_for=steps)
        is_met = self._step.cost > 0 or cost > 0
        is_due = optimizer is not None and self._looks >= _FIRST_OF_STATE
        if is_due and self._autograd.may_compute():
            began_ns = self._session.now()
            with self._autograd.unseen(), self._torch.no_grad():
                of_state = self._times_of_state(optimizer)
            self._optimizers.add(of_state)
            is_met = is_met or of_state.cost > 0
            self._steps.spent(began_ns)
        self._found += is_met
        if self._found and self._since is None:
            # What the first look meets was there before it, as far as is known.
            self._since = self._steps.taken if self._looks > 1 else 0
        if self._found:
            self._note()
        if self._looks >= _MOST_LOOKS or self._found >= _MOST_FOUND:
            self._stop()

    def _note(self) -> None:
        told = {
            "looks": self._found,
            "since": self._since,
            **self._operators.told("operators"),
            **self._gradients.told("gradients"),
            **self._optimizers.told("optimizers"),
            "share": self._share,
            "site": self._site,
            "gradients_share": self._behind.share,
            "gradients_site": self._behind.site,
        }
        self._session.note_state({"tiny_numbers": told})

    def _meet(self, call: ModuleCall) -> None:
        self._calls += 1
        if self._calls > _MOST_CALLS or not self._torch.is_grad_enabled():
            return
        if not self._autograd.may_compute() or self._is_packed():
            return
        began_ns = self._session.now()
        with self._autograd.unseen(), self._torch.no_grad():
            outputs = [one for one in _flat(call.output) if self._autograd.is_plain(one)]
            roots = [node for one in outputs if (node := one.grad_fn) is not None]
            nodes = list(_operators_of(roots, self._seen))
            times = self._times_of_graph([one for one in nodes if _name_of(one) in _OPERANDS])
            self._behind.follow(nodes, self._share_of_gradient, self._times_with_and_without)
        if times.cost:
            self._site = self._site or call.site
        self._step.add(times)
        self._steps.spent(began_ns)

    def _is_packed(self) -> bool:
        """Whether functions of the script's, or a library's, are called for what graphs keep."""
        try:
            return self._hooked is None or self._hooked(True) is not None
        except (RuntimeError, TypeError):
            return True

    def _times_of_graph(self, nodes: list[Any]) -> _Times:
        """Returns the times of the forward of a graph's operators; none without denormals."""
        apart = -(-len(nodes) // _MOST_OPERATORS) or 1
        met: list[_Operator] = []
        others: list[_Operator] = []
        for node in nodes[::apart]:
            given = [self._saved(node, name) for name in _OPERANDS[type(node).__name__]]
            share = max((self._share_of(one) for one in given if one is not None), default=0.0)
            if share < _FEW:
                others.append((node, given))
                continue
            met.append((node, given))
            self._share = max(self._share, share)
        timed = self._timed(met)
        if not timed:
            return _Times()
        cost = apart * len(met) * sum(one.cost for one in timed) // len(timed)
        times = _Times(cost=cost)
        times.add(_at_least(timed, apart * len(met)))
        spread = -(-len(others) // _MOST_TIMED) or 1
        times.add(_at_least(self._timed(others[::spread]), apart * len(others)))
        return times

    def _timed(self, operators: list[_Operator]) -> list[_Times]:
        """Returns the times of the first of some operators that can be computed again."""
        found: list[_Times] = []
        for node, given in operators:
            if len(found) < _MOST_TIMED and (operands := self._whole(node, given)) is not None:
                times = self._times_of(self._again(node), operands)
                times.behind = _gradients_of(node) * times.kept
                found.append(times)
        return found

    def _saved(self, node: Any, name: str) -> Any:
        """Returns a plain tensor of the host's that a node keeps, None where there is none such.

        Nor where a function gives it back: torch.utils.checkpoint computes the forward again for
        it. Older torch does not tell.
        """
        raw = getattr(node, f"_raw{name}", None)
        if raw is None or getattr(raw, "unpack_hook", raw) is not None:
            return None
        try:
            kept = getattr(node, name, None)
        except RuntimeError:  # written since, or given up
            return None
        if kept is None or not self._is_plain(kept) or not 0 < kept.numel() <= _MOST_NUMBERS:
            return None
        if not kept.untyped_storage().nbytes():
            return None  # given back meanwhile: FSDP shares out weights between their uses
        return kept.detach()

    def _is_plain(self, tensor: Any) -> bool:
        """Whether it is torch's own, of fractions, and lies on the host."""
        if not self._autograd.is_plain(tensor) or tensor.dtype not in self._tiny:
            return False
        return bool(tensor.device.type == "cpu" and tensor.layout is self._torch.strided)

    def _whole(self, node: Any, given: list[Any]) -> list[Any] | None:
        """Returns an operator's operands, ones in place of what no gradient needs and is not kept.

        None where nobody knows what shape that had.
        """
        if all(one is not None for one in given):
            return given
        if all(one is None for one in given):
            return None
        kept, is_first = (given[0], False) if given[0] is not None else (given[1], True)
        gave = getattr(node, "_input_metadata", None)
        name = type(node).__name__
        if not gave or name == _CONVOLUTION:
            return None
        shape = list(gave[0].shape)
        if name != "MulBackward0" and is_first:
            shape[-1] = kept.shape[-2]
        elif name != "MulBackward0":
            shape[-2] = kept.shape[-1]
        ones = self._torch.ones(shape, dtype=kept.dtype)
        return [ones, kept] if is_first else [kept, ones]

    def _again(self, node: Any) -> Callable[[Any, Any], Any]:
        """Returns what computes an operator again."""
        name, torch = type(node).__name__, self._torch
        if name == _CONVOLUTION:
            how = [getattr(node, one) for one in _GEOMETRY]
            return lambda given, weight: torch.convolution(given, weight, None, *how)
        operator: Callable[[Any, Any], Any] = torch.matmul
        if name == "MulBackward0":
            operator = torch.mul
        return operator

    def _times_of(self, operator: Callable[..., Any], given: list[Any]) -> _Times:
        """Returns how much longer an operator takes for denormals, and what it takes without."""
        found = self._times_with_and_without(operator, given, times=2)
        if found is None:
            return _Times()
        as_is, without = found
        return _Times(cost=max(as_is - without, 0), kept=min(as_is, without))

    def _times_with_and_without(
        self, operator: Callable[..., Any], given: list[Any], times: int = 1
    ) -> tuple[int, int] | None:
        """Returns what an operator takes as it is given, and with zeros for denormals, ns.

        What caches lack is fetched by the first, that without, and counts for no cost.
        """
        flushed = [self._flushed(one) for one in given]
        try:
            without, as_is = (
                min(self._took_ns(operator, one) for _ in range(times)) for one in (flushed, given)
            )
        except RuntimeError:
            return None
        return as_is, without

    def _took_ns(self, operator: Callable[..., Any], given: list[Any]) -> int:
        began_ns = self._session.now()
        operator(*given)
        return self._session.now() - began_ns

    def _flushed(self, tensor: Any) -> Any:
        return tensor.masked_fill(tensor.abs() < self._tiny[tensor.dtype], 0.0)

    def _share_of_gradient(self, gradient: Any) -> float:
        """Returns which share of its numbers is denormal; 0 where it is none of the host's."""
        if not self._is_plain(gradient) or not 0 < gradient.numel() <= _MOST_NUMBERS:
            return 0.0
        return self._share_of(gradient)

    def _share_of(self, tensor: Any) -> float:
        """Returns which share of a tensor's numbers is denormal, by some of them."""
        if not tensor.is_contiguous():
            tensor = tensor.contiguous()
        numbers = tensor.view(-1)
        some = numbers[:: max(1, len(numbers) // _SAMPLED)]
        is_tiny = (some.abs() < self._tiny[some.dtype]) & (some != 0)
        return float(self._autograd.value_of(is_tiny.sum())) / len(some)

    def _times_of_state(self, optimizer: Any) -> _Times:
        """Returns the times of what an optimizer keeps of each parameter, where it has any."""
        state = optimizer.__dict__.get("state")
        times = _Times()
        parameters = sorted(parameters_in(optimizer).values(), key=lambda one: -one.numel())
        for parameter in parameters[:_MOST_PARAMETERS]:
            kept = state.get(parameter) if isinstance(state, dict) else None
            for one in list(kept.values()) if type(kept) is dict else ():
                if not self._is_kept(one, parameter):
                    continue
                share = self._share_of(one)
                if share >= _FEW:
                    self._share = max(self._share, share)
                    found = self._times_of(lambda x: x * _DECAY, [one])
                    times.add(_Times(_PER_STATE * found.cost, _PER_STATE * found.kept))
        return times

    def _is_kept(self, tensor: Any, parameter: Any) -> bool:
        if not self._is_plain(tensor):
            return False
        return bool(_SAMPLED <= tensor.numel() == parameter.numel() <= _MOST_NUMBERS)


def _operators_of(roots: list[Any], numbers: set[int]) -> Iterator[Any]:
    """Goes through the operators of a graph that may be computed again.

    Those with one of these numbers are left out, with what they come of: a model's graph hangs on
    that of the model that it is given the output of, and on a loss's. Others' numbers are added:
    nodes themselves would be kept alive.
    """
    seen: set[Any] = set()
    stack = list(roots)
    while stack and len(seen) <= _MOST_NODES:
        node = stack.pop()
        if node in seen or _number_of(node) in numbers or is_leaf(node):
            continue
        seen.add(node)
        if _name_of(node) in KINDS:
            yield node
        stack.extend(found for found, _ in node.next_functions if found is not None)
    numbers.update(number for node in seen if (number := _number_of(node)) is not None)


def _at_least(timed: list[_Times], count: int) -> _Times:
    """Returns what so many operators take without denormals: the rest as the shortest, at most."""
    rest = max(count - len(timed), 0)
    kept, behind = (
        sum(values) + rest * min(values, default=0)
        for values in ([one.kept for one in timed], [one.behind for one in timed])
    )
    return _Times(kept=kept, behind=behind)


def _gradients_of(node: Any) -> int:
    """Returns how many operands of an operator get a gradient; what is added to it is none."""
    nexts = node.next_functions
    operands = nexts[:2] if type(node).__name__ == _CONVOLUTION else nexts[-2:]
    return sum(found is not None for found, _ in operands)


def _name_of(node: Any) -> str:
    return type(node).__name__


def _number_of(node: Any) -> int | None:
    """Returns which of a thread's operators a node was made for, None where torch does not tell."""
    number = getattr(node, "_sequence_nr", None)
    return number() if callable(number) else None


def _flat(value: Any, depth: int = 0) -> Iterator[Any]:
    """Goes through what is in lists, tuples and dicts, whoever made their classes."""
    if not is_container(value):
        yield value
    elif depth < _MOST_NESTED:
        elements = list(islice(elements_of(value), _MOST_ELEMENTS + 1))
        for one in elements if len(elements) <= _MOST_ELEMENTS else ():
            yield from _flat(one, depth + 1)
