"""How torch was set while it trained, as inside/model/torch_settings.py noted it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from trainprof.analysis.model.optimizer_builder import OptimizerCall, builder_in
from trainprof.analysis.run.metadata import Metadata, Sites, dicts_in, integer, share_in
from trainprof.analysis.summary.code import Numerics
from trainprof.record.notes import last_record
from trainprof.record.schema import Topic

_DISCARDED: Final = "discarded_gradients"


@dataclass(frozen=True, slots=True)
class LoopedOptimizer:
    """One of torch's optimizers that took parameter by parameter, and could be fused.

    Attributes:
        name: Of its class, such as "AdamW".
        tensors: How many parameters it has.
        site: The user's line that built it, else that of its first step; None where neither is
            known.
        is_plain: Without momentum and weight decay, as far as it has such settings; not told by
            older runs.
        is_told_to: By foreach=False, which holds on a device too.
        spent_s: In its steps, of the training phase.
        built_by: As OptimizerCall has it.
        has_hooks: Its steps call functions that somebody has registered: they are in `spent_s`.
    """

    name: str
    tensors: int
    site: str | None
    is_plain: bool = False
    is_told_to: bool = False
    spent_s: float = 0.0
    built_by: str | None = None
    has_hooks: bool = False

    @property
    def call(self) -> OptimizerCall:
        return OptimizerCall(self.name, self.site, self.built_by)


@dataclass(frozen=True, slots=True)
class OwnOptimizer:
    """An optimizer whose step the script's author wrote.

    Attributes:
        name: Of its class.
        tensors: How many parameters it has.
        site: Where its step begins.
        spent_s: In its steps, of the training phase.
    """

    name: str
    tensors: int
    site: str
    spent_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TorchSettings:
    """What the training process told.

    Attributes:
        threads: That torch computes with on the CPU, None where that is not known.
        threads_set_at: The line of the script that says so, None where none does.
        cores_allotted: To the process, by a batch system; None where none says so.
        backward_nodes: How many operators autograd notes from one backward pass to the next, the
            median of a few; None where that is not known.
        detects_anomalies: Backward passes looked for NaN, again and again.
        is_data_parallel: By DistributedDataParallel: ranks wait for one another inside the model.
        looped: In the order of their first steps.
        unfused: Those of torch's optimizers that could be fused and are not, on a device too.
        trains_by_lightning: Lightning, which has a trainer, was imported.
        own: Optimizers of the script's own, likewise.
        optimizers: How many made a step, as far as they were told of.
        numerics: In what the model computes.
        decomposes_in_float64: The script's text has matrices taken apart, where it trains in that.
        convolves_in_float64: Parameters may be such weights of convolutions.
        unused: Gradients that no optimizer uses, as the probe has them, with `at`, `model`,
            `model_at`; None where none were found.
        discarded: Likewise those that are set back before their optimizer steps, by the line of
            the pass, of the most time first.
    """

    threads: int | None = None
    cores_allotted: int | None = None
    backward_nodes: int | None = None
    detects_anomalies: bool = False
    is_data_parallel: bool = False
    looped: list[LoopedOptimizer] = field(default_factory=list)
    unfused: tuple[OptimizerCall, ...] = ()
    trains_by_lightning: bool = False
    own: list[OwnOptimizer] = field(default_factory=list)
    optimizers: int = 0
    numerics: Numerics | None = None
    convolves_in_float64: bool = False
    decomposes_in_float64: bool = False
    unused: dict[str, Any] | None = None
    discarded: list[dict[str, Any]] = field(default_factory=list)
    threads_set_at: str | None = None


def torch_settings(
    metadata: Metadata, sites: Sites, updates_s: Mapping[int, float]
) -> TorchSettings:
    """Reads the settings; nothing in the texts is trusted.

    Args:
        metadata: Of the training process.
        sites: Its places.
        updates_s: What optimizers' steps took of the training phase, by the number of each.
    """
    told = metadata.environment()
    spent = _Updates(updates_s, metadata.texts[Topic.OPTIMIZER], told)
    threads = [found for x in told if (found := integer(x.get("torch_threads"))) is not None]
    looped = [x for x in told if isinstance(x.get("looped_optimizer"), dict)]
    unused, discarded = (
        _last(told, "unused_gradients"),
        last_record(_DISCARDED, told).get(_DISCARDED),
    )
    return TorchSettings(
        threads=threads[-1] if threads else None,
        cores_allotted=_first(told, "cores_allotted"),
        backward_nodes=_first(told, "backward_nodes"),
        detects_anomalies=any(x.get("detects_anomalies") is True for x in told),
        is_data_parallel=metadata.is_data_parallel(),
        looped=spent.with_others([_looped(x, sites, spent) for x in looped]),
        unfused=tuple(dict.fromkeys(_unfused(x, sites) for x in told if x.get("unfused"))),
        trains_by_lightning=any(x.get("trains_by_lightning") is True for x in told),
        own=spent.with_others([one for x in told if (one := _own(x, sites, spent)) is not None]),
        optimizers=len(threads),
        numerics=next((known for x in told if (known := _numerics(x, sites)) is not None), None),
        convolves_in_float64=any(x.get("convolves_in_float64") is True for x in told),
        decomposes_in_float64=any(x.get("decomposes_in_float64") is True for x in told),
        unused=_needless(unused, sites) if unused else None,
        discarded=sorted(
            [_needless(one, sites) for one in dicts_in(discarded)], key=_share_of_backward
        ),
        threads_set_at=sites.known(_first(told, "threads_set_at")),
    )


_Known = TypeVar("_Known", LoopedOptimizer, OwnOptimizer)


class _Updates:
    """What optimizers' steps took, by what was told of the optimizers: of the first few alone."""

    def __init__(
        self, spent_s: Mapping[int, float], names: Mapping[int, Any], told: list[dict[str, Any]]
    ) -> None:
        """
        Args:
            spent_s: By the number of each.
            names: Of their classes, with a "#" and a serial number; without a number, a class of
                which there are very many, the later ones unnamed.
            told: Of the process's environment.
        """
        self._spent_s = spent_s
        many = [name for one in names.values() if (name := str(one)).endswith("#")]
        unnamed = many[0] if len(many) == 1 else ""
        classes = {one: str(names.get(one, unnamed)).rpartition("#")[0] for one in spent_s}
        numbers = {integer(x.get("optimizer")) for x in told}
        self._told = Counter(name for number, name in classes.items() if number in numbers)
        self._untold_s: dict[str, float] = {}
        for number, name in classes.items():
            if number not in numbers:
                self._untold_s[name] = self._untold_s.get(name, 0.0) + spent_s[number]

    def by(self, told: Mapping[str, Any]) -> float:
        number = integer(told.get("optimizer"))
        return 0.0 if number is None else self._spent_s.get(number, 0.0)

    def with_others(self, known: list[_Known]) -> list[_Known]:
        """Adds the time of those of which nothing was told, where they are sure to be alike.

        A script may build one for each task, at one line; and older runs do not tell numbers.
        """
        found = list(known)
        for name, spent_s in self._untold_s.items():
            alike = [place for place, one in enumerate(found) if one.name == name]
            if len({found[place].site for place in alike}) == 1 and len(alike) >= self._told[name]:
                last = found[alike[-1]]
                found[alike[-1]] = replace(last, spent_s=last.spent_s + spent_s)
        return found


def _numerics(told: Mapping[str, Any], sites: Sites) -> Numerics | None:
    found = told.get("numerics")
    if not isinstance(found, dict):
        return None
    return Numerics(
        str(found.get("parameters", "unknown")),
        str(found.get("products", "unknown")),
        _places(found.get("sites"), sites),
    )


def _needless(told: Mapping[str, Any], sites: Sites) -> dict[str, Any]:
    """Returns what a probe told of gradients, with its lines, and the class of their model."""
    at, model_at = (sites.known(integer(told.get(name))) for name in ("site", "model_site"))
    return {**told, "at": at, "model_at": model_at, "model": str(told.get("model", ""))}


def _share_of_backward(told: Mapping[str, Any]) -> float:
    return -sum(share_in(told.get(name)) for name in ("unused_share", "mixed_share"))


def _last(told: Sequence[Mapping[str, Any]], name: str) -> dict[str, Any]:
    found = last_record(name, told).get(name)
    return found if isinstance(found, dict) else {}


def _places(numbers: Any, sites: Sites) -> list[str]:
    places = [sites.known(integer(one)) for one in (numbers if isinstance(numbers, list) else [])]
    return [place for place in places if place is not None]


def _first(told: Sequence[Mapping[str, Any]], name: str) -> int | None:
    return next((found for x in told if (found := integer(x.get(name))) is not None), None)


def _own(told: Mapping[str, Any], sites: Sites, spent: _Updates) -> OwnOptimizer | None:
    found = told.get("own_optimizer")
    if not isinstance(found, dict):
        return None
    site = sites.known(integer(found.get("site")))
    if site is None:
        return None
    return OwnOptimizer(
        str(found.get("class", "unknown")),
        integer(found.get("tensors")) or 0,
        site,
        spent.by(told),
    )


def _looped(told: Mapping[str, Any], sites: Sites, spent: _Updates) -> LoopedOptimizer:
    found = told["looped_optimizer"]
    places = [sites.known(integer(found.get(name))) for name in ("built", "site")]
    return LoopedOptimizer(
        name=str(found.get("class", "unknown")),
        tensors=integer(found.get("tensors")) or 0,
        site=next((place for place in places if place is not None), None),
        is_plain=found.get("is_plain") is True,
        is_told_to=found.get("is_told_to") is True,
        spent_s=spent.by(told),
        built_by=builder_in(told),
        has_hooks=found.get("has_hooks") is True,
    )


def _unfused(told: Mapping[str, Any], sites: Sites) -> OptimizerCall:
    built = told.get("built")
    site = integer(built.get("site")) if isinstance(built, dict) else None
    return OptimizerCall(str(told["unfused"]), sites.known(site), builder_in(told))
