"""What it gives that backward leaves out what nobody uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from trainprof.analysis.run.metadata import share_in
from trainprof.analysis.summary.finding import Finding
from trainprof.analysis.summary.levels import percent
from trainprof.findings.gain import of_python, outside_steps
from trainprof.findings.make_finding import plain_finding
from trainprof.findings.run_context import Case
from trainprof.findings.wording import span

# What of their time went once parameters were frozen, at least, likely, at most: of what such
# gradients alone need, and of what computes them beside used ones (torch 2.13 on one core).
_UNUSED_SAVES: Final = (0.9, 1.0, 1.1)
_MIXED_SAVES: Final = (0.3, 0.45, 0.55)


def spent_in(case: Case, phase: str) -> float:
    """Returns the seconds of training in a phase: of the device, where that computes it."""
    devices = case.summary.devices
    spent = devices[0].seconds if case.is_on_device and devices else case.training
    return spent.get(phase, 0.0)


def needless_finding(
    case: Case,
    rule: str,
    least_share: float,
    gradients: Sequence[dict[str, Any]],
    title: str,
    **of: Any,
) -> Finding | None:
    """Returns a finding of gradients that nobody uses; None where they cost under `least_share`.

    On a device, and where it was otherwise for a part of the run, what is gained is the most.
    """
    unused, mixed = (
        min(sum(share_in(one.get(name)) for one in gradients), 1.0)
        for name in ("unused_share", "mixed_share")
    )
    mixed, backward_s = min(mixed, 1 - unused), spent_in(case, "backward")
    saved_s = [
        (alone * unused + beside * mixed) * backward_s
        for alone, beside in zip(_UNUSED_SAVES, _MIXED_SAVES, strict=True)
    ]
    part = saved_s[1] / case.training_s if case.training_s > 0 else 0.0
    low, likely, high = (of_python(case, seconds) for seconds in saved_s)
    if part < least_share or low is None or likely is None or high is None:
        return None
    training, run = (low.likely, high.likely), (low.run[1], high.run[1])
    gain = replace(likely, training=training, run=run, is_at_most=False)
    if case.is_on_device or not all(one.get("from_start") is True for one in gradients):
        gain = outside_steps(case, saved_s[2], with_warmup=True)
    evidence = {"unused_share_of_backward": unused, "mixed_share_of_backward": mixed}
    title = f"{title}: about {span(saved_s[1])}, {percent(part)} of training"
    return plain_finding(rule, title, gain, evidence=evidence, **of)
