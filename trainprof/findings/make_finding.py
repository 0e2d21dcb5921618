"""A finding made of its gain and what it rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from trainprof.analysis.summary.finding import LIKELY, Finding
from trainprof.findings.gain import Gain

_COMPARED: Final = "run it again with the change: trainprof compare BASE OTHER tells the two apart"


def unmeasured_finding(
    rule: str,
    title: str,
    *,
    site: str | None,
    advice: str,
    evidence: Mapping[str, Any],
    also: Sequence[str] = (),
    cautions: Sequence[str] = (),
    unknown: str = "what it costs",
) -> Finding:
    """Returns a finding of something whose cost, or what is `unknown`, this run cannot tell."""
    return Finding(
        id=rule,
        severity="",
        title=title,
        evidence=dict(evidence),
        site=site,
        advice=advice,
        change={},
        recoverable_s=None,
        predicted_speedup=None,
        run_speedup=None,
        is_at_most=False,
        cautions=[*cautions],
        also=[*also, f"{unknown} only a rerun tells"],
        verify=f"{unknown} only a rerun tells: trainprof compare BASE OTHER",
    )


def plain_finding(
    rule: str,
    title: str,
    gain: Gain,
    *,
    site: str | None,
    advice: str,
    evidence: Mapping[str, Any],
    change: dict[str, Any] | None = None,
    cautions: list[str] | None = None,
    also: list[str] | None = None,
) -> Finding:
    """Returns a finding; its severity and thresholds are the catalogue's to add."""
    return Finding(
        id=rule,
        severity="",
        title=title,
        evidence={**evidence, LIKELY: gain.likely},
        site=site,
        advice=advice,
        change=change or {},
        recoverable_s=gain.saved_s,
        predicted_speedup=list(gain.training),
        run_speedup=list(gain.run),
        is_at_most=gain.is_at_most,
        of_steps=gain.of_steps,
        cautions=cautions or [],
        also=also or [],
        verify=_COMPARED,
    )
