"""What was told of lines that call modules: batches taken apart, what learns nothing, averaging."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from trainprof.analysis.facts import dicts_in, integer, last_note, number, share_in
from trainprof.analysis.names import Sites

# What modules without parameters do, as probes/side_modules.py tells it.
DATA: Final = "data"
METRIC: Final = "metric"
WATCHED: Final = "watched"
_SAMPLES: Final = "sample_calls"
_SIDES: Final = "side_modules"
_SYNCS: Final = "gradient_syncs"


@dataclass(frozen=True, slots=True)
class SampleCalls:
    """Calls from one line, each for one sample of a batch that is there.

    Attributes:
        site: The user's line, None where that is not known.
        name: Of the module's class.
        rows: Samples of a batch, as a mean.
        each_s: Of the host, by one call.
        seconds: Likewise, in the run, by all of them.
        share: Of the host's time in forwards with gradients.
    """

    site: str | None
    name: str
    rows: float
    each_s: float
    seconds: float
    share: float


@dataclass(frozen=True, slots=True)
class SideModule:
    """Calls from one line of a module that has no parameters.

    Attributes:
        site: The user's line, None where that is not known.
        name: Of the module's class.
        role: data (a model is given what it makes of data), metric (by its class), or watched (what
            a model gave is looked at after backward).
        calls: That were seen.
        seconds: Of the host, in the run, by all of them.
    """

    site: str | None
    name: str
    role: str
    calls: int
    seconds: float


@dataclass(frozen=True, slots=True)
class GradientSyncs:
    """Calls from one line of a model in DistributedDataParallel.

    Attributes:
        site: The user's line, None where that is not known.
        batches: Of an update, as a mean; gradients are averaged after each.
    """

    site: str | None
    batches: float


def sample_calls(told: Iterable[Mapping[str, Any]], sites: Sites) -> list[SampleCalls]:
    """Reads what was told last, the lines of the most time first; nothing in it is trusted."""
    found = [
        SampleCalls(
            site=sites.known(integer(one.get("site"))),
            name=str(one.get("class", "unknown")),
            rows=rows,
            each_s=max(number(one.get("each_s"), 0.0), 0.0),
            seconds=max(number(one.get("seconds"), 0.0), 0.0),
            share=share_in(one.get("share")),
        )
        for one in dicts_in(last_note(told, _SAMPLES).get(_SAMPLES))
        if (rows := number(one.get("rows"), 0.0)) > 1
    ]
    return sorted(found, key=lambda one: -one.seconds)


def side_modules(told: Iterable[Mapping[str, Any]], sites: Sites) -> list[SideModule]:
    """Likewise."""
    found = [
        SideModule(
            site=sites.known(integer(one.get("site"))),
            name=str(one.get("class", "unknown")),
            role=str(one["role"]),
            calls=integer(one.get("calls")) or 0,
            seconds=max(number(one.get("seconds"), 0.0), 0.0),
        )
        for one in dicts_in(last_note(told, _SIDES).get(_SIDES))
        if one.get("role") in (DATA, METRIC, WATCHED)
    ]
    return sorted(found, key=lambda one: -one.seconds)


def gradient_syncs(told: Iterable[Mapping[str, Any]], sites: Sites) -> list[GradientSyncs]:
    """Likewise, those of the most batches first."""
    found = [
        GradientSyncs(sites.known(integer(one.get("site"))), batches)
        for one in dicts_in(last_note(told, _SYNCS).get(_SYNCS))
        if (batches := number(one.get("batches"), 0.0)) > 1
    ]
    return sorted(found, key=lambda one: -one.batches)
