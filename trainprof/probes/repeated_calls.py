"""Which calls of torch's functions, within one forward, repeat another: the same of the same."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Final

from trainprof.probes.known_numbers import NO_NUMBERS_YET, digest_of
from trainprof.probes.middle import median
from trainprof.probes.value_numbers import Number, ValueNumbers

_MOST_PLACES: Final = 16
# Results of one step whose numbers are compared.
_MOST_COMPARED: Final = 1_024
# Looks from which on lines are told.
_ENOUGH_LOOKS: Final = 2
# Functions, by name, that draw random numbers: what they give may be the same by chance.
_DRAWS: Final = frozenset(
    {
        *("bernoulli", "dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout"),
        *("rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like"),
        *("normal", "multinomial", "poisson", "binomial", "gumbel_softmax", "rrelu"),
        *("bernoulli_", "dropout_", "uniform_", "normal_", "random_", "exponential_"),
        *("geometric_", "cauchy_", "log_normal_"),
    }
)
# Calls that do more than compute: fewer of them would leave other statistics, or random numbers.
_NORMALIZES: Final = frozenset({"batch_norm", "instance_norm"})
ACTS: Final = _DRAWS | _NORMALIZES
# Of their arguments: whether they are at it.
_IS_TRAINING: Final = {"batch_norm": 5, "instance_norm": 5, "dropout": 2, "alpha_dropout": 2}

# What of torch's makes calls for a line.
PARAMETRIZATION: Final = "parametrization"
WEIGHT_NORM: Final = "weight_norm"
ATTENTION: Final = "attention"

Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Line:
    """Where calls repeat others.

    Attributes:
        site: The user's line, in the model.
        package: The library that it calls, and which calls torch; None where it does so itself.
        inside: What of torch's makes the calls, for the line; None where the line does.
    """

    site: int
    package: str | None
    inside: str | None


@dataclass(frozen=True, slots=True)
class _Repeat:
    """What one repeat took, and whether backward goes through it, too."""

    line: Line
    took_ns: int
    learns: bool


@dataclass(slots=True)
class _Call:
    """One that may come again.

    Attributes:
        numbers: Of the storages that it gave.
        digest: Of what it gave; None where that was not worth while.
        differs: One did not: it draws random numbers, or reads what nobody sees.
        places: Where torch keeps what each of them gave.
        counted: Repeats that count, if it stays so.
    """

    numbers: list[Number | None]
    digest: int | None
    differs: bool = False
    places: list[list[int]] = field(default_factory=list)
    counted: list[_Repeat] = field(default_factory=list)


@dataclass(slots=True)
class _Spent:
    """By repeats, in one step."""

    calls: int = 0
    took_ns: int = 0
    learns_ns: int = 0


@dataclass(slots=True)
class _Look:
    """Of one step: `met_ns` by all that may be repeats, `took_ns` by those that count.

    It stands for the `steps` since the look before.
    """

    steps: int = 0
    lines: dict[Line, _Spent] = field(default_factory=dict)
    took_ns: int = 0
    met_ns: int = 0


class RepeatedCalls:
    """Of a few steps that are looked at, those calls that give what another has given.

    They are given what holds the same (ValueNumbers), at the same line, and give the same numbers:
    the first one's, or, where no look before has met a repeat there, those of the second. Where one
    does not, or something else is then written to what one gave, none counts.

    Args:
        torch: The script's.
        weak: Makes a weak reference to a storage.
        may_be_told: Whether a tensor is one whose storage tells all that it holds.
    """

    def __init__(
        self, torch: ModuleType, weak: Callable[[Any], Any], may_be_told: Callable[[Any], bool]
    ) -> None:
        self._torch = torch
        self._values = ValueNumbers(torch, weak, may_be_told)
        self._may_be_told = may_be_told
        self.begin_anew()

    def begin_anew(self) -> None:
        self._acting: set[int] = set()
        self._suspects: set[tuple[str, Place]] = set()
        self._looks: list[_Look] = []
        self._is_told = self._is_over = False
        self.begin_look()
        self.begin_forward()

    def begin_look(self) -> None:
        self._look, self._compared = _Look(), 0

    def begin_forward(self) -> None:
        """Forgets what an outermost call of a module has met: another one is given other things."""
        self._values.begin()
        self._calls: dict[tuple[Hashable, Place], _Call] = {}
        self._writes: dict[int, list[Hashable]] = {}
        self._last: _Call | None = None
        self.forget()

    def forget(self) -> None:
        """Leaves out the call that is about to be made."""
        self._key: Hashable | None = None

    @property
    def took_ns(self) -> int:
        """By repeats, in this look."""
        return self._look.took_ns

    def asked(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Takes in what a function is about to be given."""
        if self._is_over or name in NO_NUMBERS_YET or name in _DRAWS:
            self.forget()
            return
        things = self._torch.is_grad_enabled(), args, kwargs
        self._key = self._values.of_call(name, things)

    def made(self, results: list[Any]) -> list[Any]:
        """Returns what a call gave that it has computed, if it may be a repeat: no mere views."""
        if self._key is None or not all(map(self._may_be_told, results)):
            return []
        return [one for one in results if one.untyped_storage()._cdata not in self._values.given]

    def is_repeat(self, name: str, place: Place, new: list[Any], took_ns: int) -> bool:
        """Takes in what a call has computed; returns whether that is known to be there already."""
        key, suspect = (self._key, place), (name, place)
        first = self._calls.get(key)
        if first is None or len(first.numbers) != len(new):
            digest = self._digest(new) if suspect in self._suspects else None
            numbers = [self._values.of_result(one) for one in new]
            first = self._calls[key] = _Call(numbers, digest)
            first.places.append(_places_of(new))
            return False
        self._suspects.add(suspect)
        first.places.append(_places_of(new))
        is_compared = first.digest is not None
        if not first.differs:
            digest = self._digest(new)
            first.differs = is_compared and digest is not None and digest != first.digest
            first.digest = digest if first.digest is None else first.digest
            is_compared &= digest is not None
        if first.differs:
            return False
        self._last = first
        self._look.met_ns += took_ns
        # What has not been compared counts as the same ahead: what comes of it is compared itself.
        for one, number in zip(new, first.numbers, strict=True):
            self._values.give(one, number)
        return is_compared

    def written(self, places: Iterable[int]) -> None:
        """Takes in where torch keeps storages that the call has just written to."""
        for place in places:
            by = self._key if self._key is not None else object()  # as nobody else writes
            self._writes.setdefault(place, []).append(by)

    def _are_left_alike(self, call: _Call) -> bool:
        """Whether the same was written to all that a call and its repeats gave, and none hooked."""
        if any(not self._values.apart.isdisjoint(places) for places in call.places):
            return False
        first, *others = ([self._writes.get(x) for x in places] for places in call.places)
        return all(one == first for one in others)

    def count(self, line: Line, took_ns: int, *, learns: bool) -> None:
        """Counts the repeat that was taken in last; `learns` where backward goes through it."""
        if self._last is not None:
            self._last.counted.append(_Repeat(line, took_ns, learns))

    def acts_at(self, site: int) -> None:
        """Takes in that a line makes a call that does more than compute."""
        self._acting.add(site)

    def end_forward(self) -> None:
        """Counts what is known, by the end of an outermost call of a module, to have repeated."""
        for call in self._calls.values():
            if call.differs or not call.counted or not self._are_left_alike(call):
                continue
            for one in call.counted:
                spent = self._look.lines.setdefault(one.line, _Spent())
                spent.calls += 1
                spent.took_ns += one.took_ns
                spent.learns_ns += one.took_ns if one.learns else 0
                self._look.took_ns += one.took_ns
        self.begin_forward()

    def end_look(self, little_ns: float, steps: int) -> None:
        """Ends a look; where all that may be repeats took less, there will be no other.

        Args:
            little_ns: That much.
            steps: Since the look before.
        """
        self.end_forward()
        self._look.steps = steps
        self._looks.append(self._look)
        self._is_over |= self._look.met_ns < little_ns

    def told(self) -> dict[str, Any] | None:
        """Returns what to note: the lines with repeats in most looks; None where none ever had.

        In the newest, too: what is over is no longer told.
        """
        looks = self._looks
        if len(looks) < _ENOUGH_LOOKS:
            return None
        found = [
            {**_of_a_step(line, looks), "acts": line.site in self._acting}
            for line in looks[-1].lines
            if sum(line in look.lines for look in looks) > len(looks) / 2
        ]
        if not (found or self._is_told):
            return None
        self._is_told = bool(found)
        found.sort(key=lambda one: -one["step_ns"])
        seen = {"looks": len(looks), "steps": sum(look.steps for look in looks)}
        return {"repeated_calls": {**seen, "lines": found[:_MOST_PLACES]}}

    def _digest(self, results: list[Any]) -> int | None:
        self._compared += len(results)
        return digest_of(self._torch, results) if self._compared <= _MOST_COMPARED else None


def acts(name: str, args: tuple[Any, ...]) -> bool:
    """Whether a call of one of ACTS leaves more than what it gives."""
    at = _IS_TRAINING.get(name)
    return at is None or len(args) <= at or args[at] is True


def _places_of(results: list[Any]) -> list[int]:
    return [one.untyped_storage()._cdata for one in results]


def _of_a_step(line: Line, looks: list[_Look]) -> dict[str, Any]:
    """Returns how often a line repeats calls in a step of those seen so far, and what that takes.

    The first look does not count: it knows of nothing that it stays the same.
    """
    met = [(look.steps, look.lines[line]) for look in looks[1:] if line in look.lines]
    steps = sum(look.steps for look in looks[1:])
    calls = sum(stands_for * spent.calls for stands_for, spent in met) / max(steps, 1)
    return {
        "site": line.site,
        "package": line.package,
        "inside": line.inside,
        "calls": max(round(calls), 1),
        "step_ns": round(calls * median([spent.took_ns / spent.calls for _, spent in met])),
        "learns_ns": round(calls * median([spent.learns_ns / spent.calls for _, spent in met])),
    }
