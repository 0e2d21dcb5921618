"""torch's settings during training, as inside/model/torch_settings.py recorded them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from trainprof.analysis.model.optimizer_builder import OptimizerCall, builder_in
from trainprof.analysis.run.metadata import (
    Metadata,
    Sites,
    integer,
    integers,
)
from trainprof.analysis.summary.code import Numerics, Operators, OptimizerUse
from trainprof.record.schema import Topic

_LOOPED: Final = "looped_optimizer"
_COUNTED: Final = ("matmuls", "convolutions", "convolutions_2d", "lower", "opaque")


@dataclass(frozen=True, slots=True)
class LoopedOptimizer:
    """One of torch's optimizers that updates parameter by parameter, and could be fused.

    Attributes:
        name: Of its class, such as "AdamW".
        tensors: How many parameters it has, in `groups`.
        site: The user's line that built it, else that of its first step; None: unknown.
        is_plain: Without momentum and weight decay; older runs don't record it.
        without_foreach: foreach=False was passed, which applies on a device too.
        spent_s: In its steps in the training phase; with `has_hooks` also in registered hooks.
        built_by: As OptimizerCall has it.
    """

    name: str
    tensors: int
    site: str | None
    is_plain: bool = False
    without_foreach: bool = False
    spent_s: float = 0.0
    built_by: str | None = None
    has_hooks: bool = False
    groups: int = 1

    @property
    def call(self) -> OptimizerCall:
        return OptimizerCall(self.name, self.site, self.built_by)


@dataclass(frozen=True, slots=True)
class OwnOptimizer:
    """An optimizer class of the user's; `site` is where its step begins."""

    name: str
    tensors: int
    site: str
    spent_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TorchSettings:
    """torch's settings, as the training process recorded them.

    Attributes:
        threads: Of torch on the CPU; the line that sets them is `threads_set_at`.
        cores_allotted: To the process, by a batch system.
        backward_nodes: Operators per backward pass, the median of a few.
        is_data_parallel: By DistributedDataParallel: ranks wait for each other inside the model.
        looped, own: In the order of their first steps.
        used: All recorded optimizers, the slowest first.
        unfused: torch's optimizers that could be fused and are not, on a device too.
        reloads_loaders: Lightning's Trainer builds loaders again for later epochs.
        optimizers: The number that made a step, as far as recorded.
        decomposes_in_float64: The script's text decomposes matrices, and it trains in float64.
        convolves_in_float64: Parameters may be float64 weights of convolutions.
    """

    threads: int | None = None
    cores_allotted: int | None = None
    backward_nodes: int | None = None
    detects_anomalies: bool = False
    is_data_parallel: bool = False
    looped: list[LoopedOptimizer] = field(default_factory=list)
    unfused: tuple[OptimizerCall, ...] = ()
    trains_by_lightning: bool = False
    reloads_loaders: bool = False
    own: list[OwnOptimizer] = field(default_factory=list)
    used: list[OptimizerUse] = field(default_factory=list)
    optimizers: int = 0
    numerics: Numerics | None = None
    convolves_in_float64: bool = False
    decomposes_in_float64: bool = False
    threads_set_at: str | None = None


def torch_settings(
    metadata: Metadata,
    sites: Sites,
    updates_s: Mapping[int, float],
    calls: Mapping[int, int] | None = None,
) -> TorchSettings:
    """Reads the settings; the texts may hold anything.

    Args:
        updates_s: Time of optimizers' steps in the training phase, by optimizer number.
        calls: Number of these steps, likewise.
    """
    records = metadata.environment()
    spent = _Updates(updates_s, metadata.texts[Topic.OPTIMIZER], records, calls or {})
    threads = _integers(records, "torch_threads")
    numerics, operators = (
        next((note for x in records if isinstance(note := x.get(key), dict)), None)
        for key in ("numerics", "operators")
    )

    def is_noted(key: str) -> bool:
        return any(x.get(key) is True for x in records)

    def first(key: str) -> int | None:
        return next(iter(_integers(records, key)), None)

    return TorchSettings(
        threads=threads[-1] if threads else None,
        cores_allotted=first("cores_allotted"),
        backward_nodes=first("backward_nodes"),
        detects_anomalies=is_noted("detects_anomalies"),
        is_data_parallel=metadata.is_data_parallel(),
        looped=spent.with_others(
            [_looped(x, sites, spent) for x in records if isinstance(x.get(_LOOPED), dict)]
        ),
        unfused=tuple(dict.fromkeys(_unfused(x, sites) for x in records if x.get("unfused"))),
        trains_by_lightning=is_noted("trains_by_lightning"),
        reloads_loaders=is_noted("reloads_loaders"),
        own=spent.with_others([own for x in records if (own := _own(x, sites, spent)) is not None]),
        used=_used(records, sites, spent),
        optimizers=len(threads),
        numerics=None if numerics is None else _numerics(numerics, operators, sites),
        convolves_in_float64=is_noted("convolves_in_float64"),
        decomposes_in_float64=is_noted("decomposes_in_float64"),
        threads_set_at=sites.known(first("threads_set_at")),
    )


_Known = TypeVar("_Known", LoopedOptimizer, OwnOptimizer, OptimizerUse)


class _Updates:
    """The time of optimizers' steps, by their records; only the first optimizers have one."""

    def __init__(
        self,
        spent_s: Mapping[int, float],
        names: Mapping[int, Any],
        records: list[dict[str, Any]],
        calls: Mapping[int, int],
    ) -> None:
        """
        Args:
            spent_s: By the number of each, as `calls` are.
            names: Of their classes, with a "#" and a serial number; the number is missing if there
                are very many of a class, whose later ones have no name.
            records: Of the process's environment.
        """
        self._spent_s = spent_s
        many = [str(name) for name in names.values() if str(name).endswith("#")]
        unnamed = many[0] if len(many) == 1 else ""
        classes = {n: str(names.get(n, unnamed)).rpartition("#")[0] for n in {*spent_s, *calls}}
        self.calls = Counter[str]()
        for n, count in calls.items():
            self.calls[classes[n]] += count
        numbers = {integer(x.get("optimizer")) for x in records}
        self._recorded = Counter(name for n, name in classes.items() if n in numbers)
        self._others_s: dict[str, float] = {}
        for n, name in classes.items():
            if n not in numbers:
                self._others_s[name] = self._others_s.get(name, 0.0) + spent_s.get(n, 0.0)

    def by(self, record: Mapping[str, Any]) -> float:
        number = integer(record.get("optimizer"))
        return 0.0 if number is None else self._spent_s.get(number, 0.0)

    def with_others(self, known: list[_Known]) -> list[_Known]:
        """Adds the time of optimizers without a record that surely equal recorded ones.

        A script may build one per task in one line, and older runs do not record numbers.
        """
        optimizers = list(known)
        for name, spent_s in self._others_s.items():
            alike = [place for place, own in enumerate(optimizers) if own.name == name]
            sites = {optimizers[place].site for place in alike}
            if len(sites) == 1 and len(alike) >= self._recorded[name]:
                last = optimizers[alike[-1]]
                optimizers[alike[-1]] = replace(last, spent_s=last.spent_s + spent_s)
        return optimizers


def _integers(records: Sequence[Mapping[str, Any]], key: str) -> list[int]:
    return [value for x in records if (value := integer(x.get(key))) is not None]


def _numerics(
    note: Mapping[str, Any], operators: Mapping[str, Any] | None, sites: Sites
) -> Numerics:
    places = [sites.known(number) for number in integers(note.get("sites"))]
    tf32 = note.get("convolutions_tf32")
    return Numerics(
        str(note.get("parameters", "unknown")),
        str(note.get("products", "unknown")),
        [place for place in places if place is not None],
        capability=integers(note.get("capability")) or None,
        convolutions_tf32=tf32 if isinstance(tf32, bool) else None,
        operators=None if operators is None else _operators(operators),
    )


def _operators(note: Mapping[str, Any]) -> Operators:
    mixes = note.get("mixes")
    return Operators(
        mixes=[str(name) for name in mixes] if isinstance(mixes, list) else [],
        **{name: max(integer(note.get(name)) or 0, 0) for name in _COUNTED},
    )


def _used(
    records: Sequence[Mapping[str, Any]], sites: Sites, spent: _Updates
) -> list[OptimizerUse]:
    uses = []
    for record in records:
        note = record.get("update")
        if isinstance(note, dict):
            name = str(note.get("class", "unknown"))
            tensors, groups, settings = (
                integer(note.get(key)) or 0 for key in ("tensors", "groups", "settings")
            )
            use = OptimizerUse(name, sites.known(integer(note.get("built"))), tensors, groups)
            use = replace(use, settings=settings, calls=spent.calls[name], spent_s=spent.by(record))
            uses.append(replace(use, is_torchs=note.get("is_torchs") is True))
    merged: dict[tuple[str, str | None], OptimizerUse] = {}
    for use in spent.with_others(uses):
        before = merged.get((use.name, use.site))
        spent_s = use.spent_s + (0.0 if before is None else before.spent_s)
        merged[use.name, use.site] = replace(before or use, spent_s=spent_s)
    return sorted(merged.values(), key=lambda use: -use.spent_s)


def _own(record: Mapping[str, Any], sites: Sites, spent: _Updates) -> OwnOptimizer | None:
    note = record.get("own_optimizer")
    site = sites.known(integer(note.get("site"))) if isinstance(note, dict) else None
    if not isinstance(note, dict) or site is None:
        return None
    name, tensors = str(note.get("class", "unknown")), integer(note.get("tensors")) or 0
    return OwnOptimizer(name, tensors, site, spent.by(record))


def _looped(record: Mapping[str, Any], sites: Sites, spent: _Updates) -> LoopedOptimizer:
    note = record[_LOOPED]
    places = [sites.known(integer(note.get(name))) for name in ("built", "site")]
    return LoopedOptimizer(
        name=str(note.get("class", "unknown")),
        tensors=integer(note.get("tensors")) or 0,
        site=next((place for place in places if place is not None), None),
        is_plain=note.get("is_plain") is True,
        without_foreach=note.get("is_told_to") is True,
        spent_s=spent.by(record),
        built_by=builder_in(record),
        has_hooks=note.get("has_hooks") is True,
        groups=integer(note.get("groups")) or 1,
    )


def _unfused(record: Mapping[str, Any], sites: Sites) -> OptimizerCall:
    built = record.get("built")
    site = integer(built.get("site")) if isinstance(built, dict) else None
    return OptimizerCall(str(record["unfused"]), sites.known(site), builder_in(record))
