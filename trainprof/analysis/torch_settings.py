"""How torch was set while it trained, as probes/torch_settings.py noted it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainprof.analysis.embedding_tables import EmbeddingTables, embedding_tables
from trainprof.analysis.facts import Facts, integer
from trainprof.analysis.names import Sites
from trainprof.analysis.repeated_forwards import RepeatedForwards, repeated_forwards
from trainprof.analysis.summary import Numerics
from trainprof.analysis.unused_forwards import UnusedForwards, unused_forwards
from trainprof.analysis.unused_gradients import (
    DiscardedGradients,
    UnusedGradients,
    discarded_gradients,
    unused_gradients,
)


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
    """

    name: str
    tensors: int
    site: str | None
    is_plain: bool = False


@dataclass(frozen=True, slots=True)
class OwnOptimizer:
    """An optimizer whose step the script's author wrote.

    Attributes:
        name: Of its class.
        tensors: How many parameters it has.
        site: Where its step begins.
    """

    name: str
    tensors: int
    site: str


@dataclass(frozen=True, slots=True)
class TorchSettings:
    """What the training process told.

    Attributes:
        threads: That torch computes with on the CPU, None where that is not known.
        cores_allotted: To the process, by a batch system; None where none says so.
        backward_nodes: Of the first backward pass whose graph was gone through: about as many as
            there are operators. None where that is not known.
        detects_anomalies: Backward passes looked for NaN, again and again.
        is_data_parallel: By DistributedDataParallel: ranks wait for one another inside the model.
        looped: In the order of their first steps.
        own: Optimizers of the script's own, likewise.
        optimizers: How many made a step, as far as they were told of.
        numerics: In what the model computes.
        unused: Gradients that no optimizer uses, None where none were found.
        discarded: Gradients that are set back before their optimizer steps, by the line of the
            pass.
        forwards: That no backward pass goes through, by the line that calls for them.
        repeats: Forwards without gradients of what was trained on, by the line that calls for them.
        tables: Of embeddings, that get whole gradients; None where none were met.
    """

    threads: int | None = None
    cores_allotted: int | None = None
    backward_nodes: int | None = None
    detects_anomalies: bool = False
    is_data_parallel: bool = False
    looped: list[LoopedOptimizer] = field(default_factory=list)
    own: list[OwnOptimizer] = field(default_factory=list)
    optimizers: int = 0
    numerics: Numerics | None = None
    unused: UnusedGradients | None = None
    discarded: list[DiscardedGradients] = field(default_factory=list)
    forwards: list[UnusedForwards] = field(default_factory=list)
    repeats: list[RepeatedForwards] = field(default_factory=list)
    tables: EmbeddingTables | None = None


def torch_settings(facts: Facts, sites: Sites) -> TorchSettings:
    """Reads the settings; nothing in the texts is trusted."""
    told = facts.environment()
    threads = [found for x in told if (found := integer(x.get("torch_threads"))) is not None]
    looped = [x["looped_optimizer"] for x in told if isinstance(x.get("looped_optimizer"), dict)]
    return TorchSettings(
        threads=threads[-1] if threads else None,
        cores_allotted=_first(told, "cores_allotted"),
        backward_nodes=_first(told, "backward_nodes"),
        detects_anomalies=any(x.get("detects_anomalies") is True for x in told),
        is_data_parallel=facts.is_data_parallel(),
        looped=[_looped(x, sites) for x in looped],
        own=[one for x in told if (one := _own(x, sites)) is not None],
        optimizers=len(threads),
        numerics=next((known for x in told if (known := _numerics(x, sites)) is not None), None),
        unused=unused_gradients(told, sites),
        discarded=discarded_gradients(told, sites),
        forwards=unused_forwards(told, sites),
        repeats=repeated_forwards(told, sites),
        tables=embedding_tables(told, sites),
    )


def _numerics(told: Mapping[str, Any], sites: Sites) -> Numerics | None:
    found = told.get("numerics")
    if not isinstance(found, dict):
        return None
    numbers = found.get("sites")
    places = [sites.known(integer(one)) for one in (numbers if isinstance(numbers, list) else [])]
    return Numerics(
        str(found.get("parameters", "unknown")),
        str(found.get("products", "unknown")),
        [place for place in places if place is not None],
    )


def _first(told: Sequence[Mapping[str, Any]], name: str) -> int | None:
    return next((found for x in told if (found := integer(x.get(name))) is not None), None)


def _own(told: Mapping[str, Any], sites: Sites) -> OwnOptimizer | None:
    found = told.get("own_optimizer")
    if not isinstance(found, dict):
        return None
    site = sites.known(integer(found.get("site")))
    if site is None:
        return None
    return OwnOptimizer(
        str(found.get("class", "unknown")), integer(found.get("tensors")) or 0, site
    )


def _looped(told: Mapping[str, Any], sites: Sites) -> LoopedOptimizer:
    places = [sites.known(integer(told.get(name))) for name in ("built", "site")]
    return LoopedOptimizer(
        name=str(told.get("class", "unknown")),
        tensors=integer(told.get("tensors")) or 0,
        site=next((place for place in places if place is not None), None),
        is_plain=told.get("is_plain") is True,
    )
