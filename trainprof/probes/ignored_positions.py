"""How many positions a loss ignores, of those that a matrix product makes logits for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Final

from trainprof.probes.backward_time import BackwardTime, time_back, time_nodes
from trainprof.probes.function_call import Call
from trainprof.probes.graph_walk import is_leaf
from trainprof.probes.middle import median
from trainprof.probes.patcher import let_dynamo_skip
from trainprof.record.signal_handlers import comes_from_signal_handler

# torch's functions, by name, with the place of ignore_index among what they are given: in Python,
# and what is called by those.
_IGNORE_AT: Final = {"cross_entropy": 4, "nll_loss": 4, "cross_entropy_loss": 4, "nll_loss_nd": 4}
_LOSSES: Final = frozenset(_IGNORE_AT)
# What makes logits, by the same.
_MAKING: Final = frozenset({"linear", "matmul", "__matmul__", "mm", "addmm"})
NAMES: Final = _LOSSES | _MAKING
_DEFAULT: Final = -100
# A loss of fewer positions is quick.
_LEAST_POSITIONS: Final = 64
# Nodes of autograd between a loss and the product that makes its logits.
_MOST_NODES: Final = 24
# What those do to each position by itself, by how their names begin.
_BY_POSITION: Final = (
    *("LogSoftmax", "View", "UnsafeView", "Reshape", "Alias", "Transpose", "Permute", "Slice"),
    *("Squeeze", "Unsqueeze", "Clone", "ToCopy", "Div", "Mul", "Tanh"),
)
_PRODUCTS: Final = ("AddmmBackward", "MmBackward", "LinearBackward", "MkldnnLinearBackward")
# Of what is multiplied, the place of the weight: behind what is added, in this one.
_ADDS_FIRST: Final = "AddmmBackward"
# What may lie between a product and its weight.
_TURNS: Final = ("TBackward", "Transpose", "Permute", "ToCopy")
# Where it was not seen, what making a product takes, of what going back through it does: that is
# two such products.
_FORWARD_OF_BACKWARD: Final = 0.5
# As far as a product may lie behind the views of it that are given.
_MOST_VIEWS: Final = 2
_MOST_PLACES: Final = 8
_ENOUGH_LOOKS: Final = 2


@dataclass(slots=True)
class _Line:
    """What a line's losses looked at, and took, in one step.

    Attributes:
        loss_ns: Of the loss itself, as it was called.
        after: Nodes of backward between the loss and the product.
        product: The product's.
        making_ns: Of the products in forward, as far as they were seen.
        times: What all of that takes, by the end of the step: so many times what its forwards and
            losses took.
    """

    positions: int = 0
    ignored: int = 0
    classes: int = 0
    loss_ns: int = 0
    after: BackwardTime = field(default_factory=BackwardTime)
    product: BackwardTime = field(default_factory=BackwardTime)
    making_ns: int = 0
    times: float = 0.0

    @property
    def spent_ns(self) -> float:
        making_ns = self.making_ns or _FORWARD_OF_BACKWARD * self.product.took_ns
        return self.loss_ns + self.after.took_ns + self.product.took_ns + making_ns


@dataclass(slots=True)
class _Product:
    """What a loss's logits come of, in one step.

    Attributes:
        site: Of the loss.
        classes: Of which each row has logits.
        looked_at: Positions that the loss does not ignore.
        passes: Of backward, that have come by.
    """

    site: int
    classes: int
    looked_at: int
    passes: int = 0


@dataclass(slots=True)
class IgnoredPositions:
    """Of a few steps that are looked at, losses of classes that are told to ignore some targets.

    A product of the hidden states and a weight has a row for each position. Where one is gone back
    through but once, and no more rows of its gradient hold anything but zeros than the loss looks
    at, nothing else learns from the other rows. Other lines are not told, nor those whose logits
    another loss takes as well.

    Args:
        torch: The script's.
        may_be_told: Whether a tensor is torch's own, on the host.
        now: The clock.
        may_hook: Whether nothing of the script's would notice a hook on a node.

    Attributes:
        took_ns: By such losses in this look, for what they ignore.
        spent_ns: In backward, on looking at gradients.
    """

    torch: ModuleType
    may_be_told: Callable[[Any], bool]
    now: Callable[[], int]
    may_hook: Callable[[], bool]
    took_ns: int = 0
    spent_ns: int = 0
    _outside_ns: int = 0
    # What making a product took, by the number of its node.
    _products: dict[int, int] = field(default_factory=dict)
    # By the same, those that losses come of.
    _of_losses: dict[int, _Product] = field(default_factory=dict)
    # Lines of losses whose logits serve something else besides, or may do so, in any look.
    _needed: set[int] = field(default_factory=set)
    _lines: dict[int, _Line] = field(default_factory=dict)
    _looks: list[dict[int, _Line]] = field(default_factory=list)
    _is_told: bool = False

    def begin_anew(self) -> None:
        self._looks, self._needed, self._is_told = [], set(), False
        self.begin_look()

    def begin_look(self) -> None:
        self._lines, self._products, self._of_losses = {}, {}, {}
        self.took_ns = self.spent_ns = self._outside_ns = 0

    def end_look(self, forward_ns: int) -> None:
        """Ends a look at a step, whose outermost calls of modules took so long."""
        self._needed.update(one.site for one in self._of_losses.values() if one.passes != 1)
        for site, line in self._lines.items():
            line.times = line.spent_ns / max(forward_ns + self._outside_ns, 1)
            if site not in self._needed:
                self.took_ns += round(line.spent_ns * line.ignored / max(line.positions, 1))
        self._looks.append(self._lines)
        self._lines, self._products, self._of_losses = {}, {}, {}

    def see_outside(self, call: Call) -> None:
        """Takes in a call of one of NAMES outside of modules, as `see` does of one inside."""
        self._outside_ns += call.took_ns
        self.see(call)

    def see(self, call: Call) -> None:
        """Takes in a call of one of NAMES, inside of a module; autograd sees nothing of it."""
        if call.name in _MAKING:
            self._make(call)
            return
        args, result = call.args, call.result
        logits: Any = args[0] if args else call.kwargs.get("input")
        target: Any = args[1] if len(args) > 1 else call.kwargs.get("target")
        if not all(map(self._is_tensor, (logits, target, result))) or result.dim() > 0:
            return
        if target.is_floating_point() or target.numel() < _LEAST_POSITIONS or not self.may_hook():
            return
        if result.grad_fn is None:
            return
        nodes = _nodes_to_product(logits.grad_fn, _MOST_NODES)
        site = call.site_of() if nodes is not None else 0
        if nodes is None or not site:
            return
        *after, product = nodes
        at = _IGNORE_AT[call.name]
        ignore_index = args[at] if len(args) > at else call.kwargs.get("ignore_index", _DEFAULT)
        ignored = int((target == ignore_index).sum())
        classes = logits.size(1) if logits.dim() > 1 else logits.size(0)
        number = product._sequence_nr()
        other = self._of_losses.get(number)
        if other is not None or not _has_weight(product):
            self._needed.update({site, site if other is None else other.site})
            return
        one = self._of_losses[number] = _Product(site, classes, target.numel() - ignored)
        # Ahead of what times it: this takes a while, too.
        product.register_prehook(self._hook(number, one))
        line = self._lines.setdefault(site, _Line())
        time_back(result, [logits], line.after, self.now)
        time_nodes(after, line.after, self.now)
        time_nodes([product], line.product, self.now)
        line.positions += target.numel()
        line.ignored += ignored
        line.classes = classes
        line.loss_ns += call.took_ns
        line.making_ns += self._products.get(number, 0)

    def _hook(self, number: int, product: _Product) -> Callable[..., None]:
        """Returns a hook for a product's node, gone with it, that looks at its gradient's rows."""

        def comes_by(gradients: tuple[Any, ...]) -> None:
            if self._of_losses.get(number) is not product:  # of a look that is over
                return
            began_ns = self.now()
            product.passes += 1
            try:
                is_needed = self._has_more_rows(gradients, product)
            except Exception as error:
                if comes_from_signal_handler(error):
                    raise
                is_needed = True
            if is_needed:
                self._needed.add(product.site)
            self.spent_ns += self.now() - began_ns

        let_dynamo_skip(comes_by, and_all_below=True)
        return comes_by

    def _has_more_rows(self, gradients: tuple[Any, ...], product: _Product) -> bool:
        """Whether anything learns from more rows of a product than its loss looks at, or may."""
        if len(gradients) != 1 or not self.may_hook():
            return True
        [gradient] = gradients
        with self.torch._C.DisableTorchFunction(), self.torch.no_grad():
            if not self._is_tensor(gradient) or gradient.dim() < 2:
                return True
            if gradient.size(-1) != product.classes:
                return True
            return int(gradient.ne(0).any(-1).sum()) > product.looked_at

    def _make(self, call: Call) -> None:
        """Takes in a call of what may make logits."""
        if not self._is_tensor(call.result) or call.result.grad_fn is None:
            return
        nodes = _nodes_to_product(call.result.grad_fn, _MOST_VIEWS)
        if nodes is not None:
            self._products[nodes[-1]._sequence_nr()] = call.took_ns

    def _is_tensor(self, thing: Any) -> bool:
        return issubclass(type(thing), self.torch.Tensor) and self.may_be_told(thing)

    def told(self) -> dict[str, Any] | None:
        """Returns what to note: lines that ignored some in all looks; None where none ever did."""
        if len(self._looks) < _ENOUGH_LOOKS:
            return None
        found = []
        for site in self._looks[0]:
            if site in self._needed:
                continue
            of_line = [look[site] for look in self._looks if site in look]
            if len(of_line) == len(self._looks) and all(line.ignored for line in of_line):
                found.append(_told(site, of_line))
        if not found and not self._is_told:
            return None
        self._is_told = bool(found)
        return {"ignored_positions": {"looks": len(self._looks), "lines": found[:_MOST_PLACES]}}


def _told(site: int, looks: list[_Line]) -> dict[str, Any]:
    return {
        "site": site,
        "positions": round(median([one.positions for one in looks])),
        "classes": looks[-1].classes,
        "ignored": sum(one.ignored for one in looks) / sum(one.positions for one in looks),
        "times": median([one.times for one in looks]),
    }


def _has_weight(product: Any) -> bool:
    """Whether it multiplies by a learned weight, so that a row of its result is a position's.

    One in which positions meet (of a graph's adjacency) multiplies by what those hold.
    """
    found = product.next_functions
    at = 2 if product.name().startswith(_ADDS_FIRST) else 1
    node = found[at][0] if len(found) > at else None
    while node is not None and not is_leaf(node):
        if not node.name().startswith(_TURNS):
            return False
        node = node.next_functions[0][0]
    return node is not None


def _nodes_to_product(last: Any, most: int) -> list[Any] | None:
    """Returns the nodes from one, such as a loss's, to the product that it comes of, which ends it.

    None where it comes of something else as well, positions meet on the way, or there are more than
    `most` nodes in between.
    """
    stack: list[Any] = [last]
    seen: list[Any] = []
    product = None
    while stack:
        node = stack.pop()
        if node is None or node in seen or is_leaf(node):
            continue
        if node.name().startswith(_PRODUCTS):
            if product not in (None, node):
                return None
            product = node
            continue
        if len(seen) >= most or not node.name().startswith(_BY_POSITION):
            return None
        seen.append(node)
        stack += [found for found, _ in node.next_functions]
    return None if product is None else [*seen, product]
