"""Which calls of torch's functions compare all vectors with all others by one large tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any, Final

from trainprof.probes.backward_time import BackwardTime, time_back
from trainprof.probes.elements import elements_of, is_container
from trainprof.probes.function_call import Call
from trainprof.probes.middle import median

# By the names of functions: what is made of two vectors each, number by number.
_DIFFERENCES: Final = frozenset({"sub", "__sub__", "subtract", "rsub", "__rsub__"})
_PRODUCTS: Final = frozenset({"mul", "__mul__", "__rmul__", "multiply"})
_POWERS: Final = frozenset({"pow", "pow_", "__pow__", "square", "square_"})
# What is summed up along the vectors, and what does all of it in one.
_SUMS: Final = frozenset({"sum", "mean"})
_NORMS: Final = frozenset({"norm", "linalg_norm", "linalg_vector_norm"})
_COSINES: Final = frozenset({"cosine_similarity"})
_DISTANCES: Final = frozenset({"pairwise_distance"})
_WHOLE: Final = _COSINES | _DISTANCES
_NAMES: Final = _DIFFERENCES | _PRODUCTS | _POWERS | _SUMS | _NORMS | _WHOLE
# What only tells of a tensor.
_ASKS: Final = frozenset({"size", "dim", "numel", "__len__"})
_EUCLIDEAN: Final = (None, 2, 2.0, "fro")
_SQUARED: Final = (2, 2.0)

# What was made is so many times as large as what it was made of.
_LARGER_TIMES: Final = 8
# Numbers of a vector, and of what was made: less is quick, or no product gives it sooner.
_LEAST_LONG: Final = 8
_LEAST_NUMBERS: Final = 1 << 16
_MOST_PLACES: Final = 8
# Of so few vectors on either side torch.cdist computes no matrix product (ATen's cdist_impl).
_FEW: Final = 25
# Looks from which on lines are told.
_ENOUGH_LOOKS: Final = 2

PRODUCT: Final = "product"
DISTANCE: Final = "distance"
COSINE: Final = "cosine"
_DIFFERENCE: Final = "difference"


@dataclass(frozen=True, slots=True)
class _Pairs:
    """What all pairs of two tensors' vectors make.

    Attributes:
        sizes, along: The dimensions, and which of them vectors lie in.
        first, second: Vectors of either tensor that each of the other's meets.
        are_few: Few of both lie in the last dimension that is theirs alone.
    """

    sizes: tuple[int, ...]
    along: int
    first: int
    second: int
    are_few: bool


@dataclass(slots=True)
class _Made:
    """What holds all pairs, number by number, until it is summed up.

    Attributes:
        what: PRODUCT, _DIFFERENCE, or DISTANCE: a squared one.
        site: Of the line that made it.
        back: What going back through it takes, so far.
        version: How often it had been written to when it was made.
        kept: A weak reference to its storage, so that no other gets its place.
        is_taken: It has been squared or summed up.
    """

    what: str
    pairs: _Pairs
    site: int
    took_ns: int
    back: BackwardTime
    version: int = 0
    kept: Any = None
    is_taken: bool = False


@dataclass(slots=True)
class _Line:
    """What a line took in one step, and what it compares.

    Attributes:
        pairs: Those of the last.
        backs: What backward took for it.
        share: Of forward, by the end of the step.
        times: As long as that backward took; 0 where it did not come by.
    """

    what: str
    pairs: _Pairs
    took_ns: int = 0
    backs: list[BackwardTime] = field(default_factory=list)
    share: float = 0.0
    times: float = 0.0


@dataclass(slots=True)
class BroadcastPairs:
    """Of a few steps that are looked at, lines that make what a matrix product would give.

    Two tensors of some vectors each, of which one is spread along one dimension and the other along
    another, are subtracted or multiplied, squared, and summed up along the vectors: what lies in
    between has a number for each of both and each of a vector's. Where anything else takes that,
    too, or may do so unseen, its line is not told.

    Args:
        torch: The script's.
        weak: Makes a weak reference to a storage.
        may_be_told: Whether a tensor is one whose storage tells all that it holds.
        now: The clock.
        may_hook: Whether nothing of the script's would notice a hook on a node.

    Attributes:
        took_ns: By such calls, in this look.
    """

    torch: ModuleType
    weak: Callable[[Any], Any]
    may_be_told: Callable[[Any], bool]
    now: Callable[[], int]
    may_hook: Callable[[], bool]
    took_ns: int = 0
    _made: dict[int, _Made] = field(default_factory=dict)
    _lines: dict[int, _Line] = field(default_factory=dict)
    _looks: list[dict[int, _Line]] = field(default_factory=list)
    # Lines whose large tensor serves something else besides, in any look.
    _needed: set[int] = field(default_factory=set)
    _is_told: bool = False

    def begin_anew(self) -> None:
        self._looks, self._needed, self._is_told = [], set(), False
        self.begin_look()

    def begin_look(self) -> None:
        self._lines, self._made, self.took_ns = {}, {}, 0

    def end_look(self, forward_ns: int) -> None:
        """Ends a look at a step, whose outermost calls of modules took so long."""
        for line in self._lines.values():
            line.share = min(line.took_ns / max(forward_ns, 1), 1.0)
            line.times = sum(back.took_ns for back in line.backs) / max(line.took_ns, 1)
        self._looks.append(self._lines)
        self._made = {}

    def see(self, call: Call) -> None:
        """Takes in any call of torch's functions."""
        if call.name in _ASKS:
            return
        taken = self._made_in(_things_in(call))
        goes_on = call.name in _NAMES and self._goes_on(call)
        for made in taken:
            if made.is_taken or not goes_on:
                self._needed.add(made.site)
            made.is_taken = True

    def loses_sight(self) -> None:
        """Tells that a call is made that is not seen, nor what it takes."""
        self._needed.update(made.site for made in self._made.values())

    def gives_out(self, things: Iterable[Any]) -> None:
        """Takes in what an outermost call of a module gives: who knows what takes that."""
        self._needed.update(made.site for made in self._made_in(things))

    def _made_in(self, things: Iterable[Any]) -> list[_Made]:
        """Returns what holds all pairs of what is given, each once, whatever view it is of it."""
        if not self._made:
            return []
        places = {one.untyped_storage()._cdata for one in things if self._is_tensor(one)}
        return [self._made[place] for place in places if place in self._made]

    def _goes_on(self, call: Call) -> bool:
        """Takes in a call of one of _NAMES; returns whether it squares or sums up what was made."""
        name, args = call.name, call.args
        if not args or not self._is_tensor(call.result) or self.torch.is_autocast_enabled("cpu"):
            return False
        first, second = args[0], args[1] if len(args) > 1 else call.kwargs.get("other")
        known = self._known(first)
        if known is not None and (name in _SUMS or name in _NORMS):
            return self._sum_up(known, call)
        if known is not None and known.what == _DIFFERENCE and _is_square(name, first, second):
            took_ns = call.took_ns + known.took_ns
            self._keep(call, replace(known, what=DISTANCE, took_ns=took_ns))
            return True
        if name in _WHOLE:
            self._whole(call)
        elif name in _PRODUCTS or name in _DIFFERENCES:
            pairs = self._pairs(first, second, tuple(call.result.size()))
            if pairs is not None and (site := call.site_of()):
                what = PRODUCT if name in _PRODUCTS else _DIFFERENCE
                self._keep(call, _Made(what, pairs, site, call.took_ns, BackwardTime()))
        return False

    def _known(self, tensor: Any) -> _Made | None:
        if not self._made or not self._is_tensor(tensor):
            return None
        made = self._made.get(tensor.untyped_storage()._cdata)
        return None if made is None or made.version != tensor._version else made

    def _keep(self, call: Call, made: _Made) -> None:
        self._time_back(call, made.back)
        storage = call.result.untyped_storage()
        made = replace(made, version=call.result._version, kept=self.weak(storage), is_taken=False)
        self._made[storage._cdata] = made

    def _time_back(self, call: Call, back: BackwardTime) -> None:
        if call.result.grad_fn is not None and self.may_hook():
            time_back(call.result, filter(self._is_tensor, _things_in(call)), back, self.now)

    def _pairs(self, first: Any, second: Any, sizes: tuple[int, ...]) -> _Pairs | None:
        """Returns which pairs of vectors were made, as a product makes them; None: none were."""
        if not (self._is_tensor(first) and self._is_tensor(second)):
            return None
        # Of others products are slow, not to be had, or rounded otherwise.
        if first.dtype is not second.dtype or first.dtype not in self._exact_dtypes():
            return None
        one, other = (_spread(tensor, sizes) for tensor in (first, second))
        numbers = math.prod(sizes)
        if one is None or other is None or numbers < _LEAST_NUMBERS:
            return None
        if numbers < _LARGER_TIMES * max(_held(sizes, one), _held(sizes, other)):
            return None
        in_both = [at for at in range(len(sizes)) if one[at] and other[at]]
        firsts = [sizes[at] for at in range(len(sizes)) if one[at] and not other[at]]
        seconds = [sizes[at] for at in range(len(sizes)) if other[at] and not one[at]]
        # The last of those that both have: ahead of it lie batches, as of heads.
        if not firsts or not seconds or not in_both or sizes[in_both[-1]] < _LEAST_LONG:
            return None
        are_few = max(firsts[-1], seconds[-1]) <= _FEW
        return _Pairs(sizes, in_both[-1], math.prod(firsts), math.prod(seconds), are_few)

    def _exact_dtypes(self) -> tuple[Any, ...]:
        return self.torch.float32, self.torch.float64

    def _is_tensor(self, thing: Any) -> bool:
        return issubclass(type(thing), self.torch.Tensor) and self.may_be_told(thing)

    def _whole(self, call: Call) -> None:
        """Takes in a function that compares vectors and is given all pairs."""
        name, args = call.name, call.args
        if len(args) < 2 or not all(map(self._is_tensor, args[:2])):
            return
        first, second = args[:2]
        try:
            sizes = tuple(self.torch.broadcast_shapes(first.size(), second.size()))
        except RuntimeError:
            return
        default = -1 if name in _DISTANCES else 1
        dim = call.kwargs.get("dim", args[2] if len(args) > 2 and name in _COSINES else default)
        pairs = self._pairs(first, second, sizes)
        if pairs is None or not isinstance(dim, int) or dim % len(sizes) != pairs.along:
            return
        norm = call.kwargs.get("p", args[2] if len(args) > 2 else 2)
        if name in _DISTANCES and not _is_two(norm):
            return
        if site := call.site_of():
            what = COSINE if name in _COSINES else DISTANCE
            made = _Made(what, pairs, site, call.took_ns, BackwardTime())
            self._time_back(call, made.back)
            self._count(made)

    def _sum_up(self, made: _Made, call: Call) -> bool:
        """Takes in a sum; returns whether it is one of all that, along the vectors."""
        args, kwargs = call.args, call.kwargs
        given = args[0]
        if call.name in _NORMS:
            norm = kwargs.get("p", kwargs.get("ord", args[1] if len(args) > 1 else None))
            is_complete = made.what == _DIFFERENCE and norm in _EUCLIDEAN
            dims = kwargs.get("dim", args[2] if len(args) > 2 else None)
        else:
            is_complete = made.what in (PRODUCT, DISTANCE)
            dims = kwargs.get("dim", kwargs.get("axis", args[1] if len(args) > 1 else None))
        if isinstance(dims, (list, tuple)) and len(dims) == 1:
            dims = dims[0]
        is_all = is_complete and tuple(given.size()) == made.pairs.sizes
        is_all = is_all and call.result.dtype is given.dtype
        if not is_all or not isinstance(dims, int) or dims % given.dim() != made.pairs.along:
            return False
        what = DISTANCE if made.what == _DIFFERENCE else made.what
        self._time_back(call, made.back)
        self._count(replace(made, what=what, took_ns=made.took_ns + call.took_ns))
        return True

    def _count(self, made: _Made) -> None:
        if made.what == DISTANCE and made.pairs.are_few:
            return
        line = self._lines.setdefault(made.site, _Line(made.what, made.pairs))
        line.pairs = made.pairs
        line.took_ns += made.took_ns
        line.backs.append(made.back)
        self.took_ns += made.took_ns

    def told(self) -> dict[str, Any] | None:
        """Returns what to note: the lines that did so in most looks; None where none ever did."""
        if len(self._looks) < _ENOUGH_LOOKS:
            return None
        found = []
        for site in {site for look in self._looks for site in look} - self._needed:
            of_line = [look[site] for look in self._looks if site in look]
            if len(of_line) > len(self._looks) / 2:
                found.append(_told(site, of_line))
        if not found and not self._is_told:
            return None
        self._is_told = bool(found)
        found.sort(key=lambda one: -one["share"])
        return {"broadcast_pairs": {"looks": len(self._looks), "lines": found[:_MOST_PLACES]}}


def _things_in(call: Call) -> Iterator[Any]:
    """Goes through what a function is given, one container deep."""
    for one in (*call.args, *call.kwargs.values()):
        yield from elements_of(one) if is_container(one) else (one,)


def _told(site: int, looks: list[_Line]) -> dict[str, Any]:
    last = looks[-1]
    return {
        "site": site,
        "what": last.what,
        "first": last.pairs.first,
        "second": last.pairs.second,
        "long": last.pairs.sizes[last.pairs.along],
        "numbers": math.prod(last.pairs.sizes),
        "times": median([one.times for one in looks]),
        "share": median([one.share for one in looks]),
    }


def _is_square(name: str, first: Any, second: Any) -> bool:
    if name in _PRODUCTS:
        return first is second
    return name in _POWERS and (name.startswith("square") or _is_two(second))


def _is_two(exponent: Any) -> bool:
    return isinstance(exponent, (int, float)) and exponent in _SQUARED


def _spread(tensor: Any, sizes: tuple[int, ...]) -> list[bool] | None:
    """Returns of each dimension of a result whether a tensor has numbers of its own along it."""
    missing = len(sizes) - tensor.dim()
    if missing < 0:
        return None
    own = zip(tensor.size(), tensor.stride(), strict=True)
    return [False] * missing + [size > 1 and stride != 0 for size, stride in own]


def _held(sizes: tuple[int, ...], spread: list[bool]) -> int:
    numbers = 1
    for size, is_own in zip(sizes, spread, strict=True):
        numbers *= size if is_own else 1
    return numbers
