"""Which calls of torch's functions compare all vectors with all others by one large tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any, Final

from trainprof.probes.backward_time import BackwardTime, time_back
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
NAMES: Final = _DIFFERENCES | _PRODUCTS | _POWERS | _SUMS | _NORMS | _WHOLE
_EUCLIDEAN: Final = (None, 2, 2.0, "fro")
_SQUARED: Final = (2, 2.0)

# What was made is so many times as large as what it was made of.
_LARGER_TIMES: Final = 8
# Numbers of a vector, and of what was made: less is quick, or no product gives it sooner.
_LEAST_LONG: Final = 8
_LEAST_NUMBERS: Final = 1 << 16
_MOST_PLACES: Final = 8
# Looks from which on lines are told.
_ENOUGH_LOOKS: Final = 2

PRODUCT: Final = "product"
DISTANCE: Final = "distance"
COSINE: Final = "cosine"
_DIFFERENCE: Final = "difference"


@dataclass(frozen=True, slots=True)
class Call:
    """A call of one of torch's functions.

    Attributes:
        name: Of the function.
        args, kwargs: That it was given.
        result: That it gave.
        took_ns: Of the host's time.
        site_of: Tells the user's line, in the model; 0 where none of it is the user's.
    """

    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    result: Any
    took_ns: int
    site_of: Callable[[], int]


@dataclass(slots=True)
class _Made:
    """What holds all pairs, number by number, until it is summed up.

    Attributes:
        what: PRODUCT, _DIFFERENCE, or DISTANCE: a squared one.
        sizes, along: Its dimensions, and which of them vectors lie in.
        site: Of the line that made it.
        back: What going back through it takes, so far.
        version: How often it had been written to when it was made.
        kept: A weak reference to its storage, so that no other gets its place.
    """

    what: str
    sizes: tuple[int, ...]
    along: int
    site: int
    took_ns: int
    back: BackwardTime
    version: int = 0
    kept: Any = None


@dataclass(slots=True)
class _Line:
    """What a line took in one step, and what it compares.

    Attributes:
        backs: What backward took for it.
        share: Of forward, by the end of the step.
        times: As long as that backward took; 0 where it did not come by.
    """

    what: str
    first: int = 0
    second: int = 0
    long: int = 0
    took_ns: int = 0
    backs: list[BackwardTime] = field(default_factory=list)
    share: float = 0.0
    times: float = 0.0


@dataclass(slots=True)
class BroadcastPairs:
    """Of a few steps that are looked at, lines that make what a matrix product would give.

    Two tensors of some vectors each, of which one is spread along one dimension and the other along
    another, are subtracted or multiplied, squared, and summed up along the vectors: what lies in
    between has a number for each of both and each of a vector's.

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
    _is_told: bool = False

    def begin_anew(self) -> None:
        self._looks, self._is_told = [], False
        self.begin_look()

    def begin_look(self) -> None:
        self._lines, self.took_ns = {}, 0
        self.begin_forward()

    def begin_forward(self) -> None:
        """Forgets what an outermost call of a module has made."""
        self._made = {}

    def end_look(self, forward_ns: int) -> None:
        """Ends a look at a step, whose outermost calls of modules took so long."""
        for line in self._lines.values():
            line.share = min(line.took_ns / max(forward_ns, 1), 1.0)
            line.times = sum(back.took_ns for back in line.backs) / max(line.took_ns, 1)
        self._looks.append(self._lines)
        self.begin_forward()

    def see(self, call: Call) -> None:
        """Takes in a call of one of NAMES."""
        name, args = call.name, call.args
        if not args or not self._is_tensor(call.result):
            return
        first, second = args[0], args[1] if len(args) > 1 else call.kwargs.get("other")
        known = self._known(first)
        if known is not None and (name in _SUMS or name in _NORMS):
            self._sum_up(known, call)
        elif known is not None and _is_square(name, first, second):
            if known.what == _DIFFERENCE:
                took_ns = call.took_ns + known.took_ns
                self._keep(call, replace(known, what=DISTANCE, took_ns=took_ns))
        elif name in _WHOLE:
            self._whole(call)
        elif name in _PRODUCTS or name in _DIFFERENCES:
            sizes = tuple(call.result.size())
            along = self._along(first, second, sizes)
            if along is not None and (site := call.site_of()):
                what = PRODUCT if name in _PRODUCTS else _DIFFERENCE
                self._keep(call, _Made(what, sizes, along, site, call.took_ns, BackwardTime()))

    def _known(self, tensor: Any) -> _Made | None:
        if not self._made or not self._is_tensor(tensor):
            return None
        made = self._made.get(tensor.untyped_storage()._cdata)
        return None if made is None or made.version != tensor._version else made

    def _keep(self, call: Call, made: _Made) -> None:
        self._time_back(call, made.back)
        storage = call.result.untyped_storage()
        kept = replace(made, version=call.result._version, kept=self.weak(storage))
        self._made[storage._cdata] = kept

    def _time_back(self, call: Call, back: BackwardTime) -> None:
        if call.result.grad_fn is not None and self.may_hook():
            time_back(call.result, filter(self._is_tensor, call.args), back, self.now)

    def _along(self, first: Any, second: Any, sizes: tuple[int, ...]) -> int | None:
        """Returns the dimension of vectors of which all pairs were made; None: they were not."""
        if not (self._is_tensor(first) and self._is_tensor(second)):
            return None
        one, other = (_spread(tensor, sizes) for tensor in (first, second))
        numbers = math.prod(sizes)
        if one is None or other is None or numbers < _LEAST_NUMBERS:
            return None
        if numbers < _LARGER_TIMES * max(_held(sizes, one), _held(sizes, other)):
            return None
        in_both = [at for at in range(len(sizes)) if sizes[at] > 1 and one[at] and other[at]]
        own = [one[at] != other[at] for at in range(len(sizes)) if sizes[at] > 1]
        # The last of those that both have: ahead of it lie batches, as of heads.
        if sum(own) < 2 or not in_both or sizes[in_both[-1]] < _LEAST_LONG:
            return None
        return in_both[-1]

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
        along = self._along(first, second, sizes)
        if along is None or not isinstance(dim, int) or dim % len(sizes) != along:
            return
        if site := call.site_of():
            what = COSINE if name in _COSINES else DISTANCE
            made = _Made(what, sizes, along, site, call.took_ns, BackwardTime())
            self._time_back(call, made.back)
            self._count(made)

    def _sum_up(self, made: _Made, call: Call) -> None:
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
        is_all = is_complete and tuple(given.size()) == made.sizes
        if is_all and isinstance(dims, int) and dims % given.dim() == made.along:
            what = DISTANCE if made.what == _DIFFERENCE else made.what
            self._time_back(call, made.back)
            self._count(replace(made, what=what, took_ns=made.took_ns + call.took_ns))

    def _count(self, made: _Made) -> None:
        others = [size for at, size in enumerate(made.sizes) if at != made.along and size > 1]
        line = self._lines.setdefault(made.site, _Line(made.what))
        line.first, line.second = others[-2:]
        line.long = made.sizes[made.along]
        line.took_ns += made.took_ns
        line.backs.append(made.back)
        self.took_ns += made.took_ns

    def told(self) -> dict[str, Any] | None:
        """Returns what to note: the lines that did so in most looks; None where none ever did."""
        if len(self._looks) < _ENOUGH_LOOKS:
            return None
        found = []
        for site in {site for look in self._looks for site in look}:
            of_line = [look[site] for look in self._looks if site in look]
            if len(of_line) > len(self._looks) / 2:
                found.append(_told(site, of_line))
        if not found and not self._is_told:
            return None
        self._is_told = bool(found)
        found.sort(key=lambda one: -one["share"])
        return {"broadcast_pairs": {"looks": len(self._looks), "lines": found[:_MOST_PLACES]}}


def _told(site: int, looks: list[_Line]) -> dict[str, Any]:
    last = looks[-1]
    return {
        "site": site,
        "what": last.what,
        "first": last.first,
        "second": last.second,
        "long": last.long,
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
