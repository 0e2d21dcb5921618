"""What it gives that backward leaves out what nobody uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.diagnosis.gains import Gain, of_python, outside_steps
from trainprof.analysis.diagnosis.plain import plain_finding
from trainprof.analysis.diagnosis.wording import span
from trainprof.analysis.finding import Finding
from trainprof.analysis.needless_gradients import NeedlessGradients
from trainprof.analysis.verdict_level import percent

# What of those nodes' time went once the parameters were frozen, at least, likely, at most:
# convolutions, linear layers, transformers, large and small, torch 2.13 on one core.
_UNUSED_SAVES: Final = (0.9, 1.0, 1.1)
_MIXED_SAVES: Final = (0.3, 0.45, 0.55)


def spent_in(case: Case, phase: str) -> float:
    """Returns the seconds of training in a phase: of the device, where that computes it."""
    devices = case.summary.devices
    spent = devices[0].seconds if case.is_on_device and devices else case.training
    return spent.get(phase, 0.0)


def saved_of_backward(case: Case, unused_share: float, mixed_share: float) -> list[float]:
    """Returns the seconds of training that go: at least, likely, at most.

    Args:
        case: The run.
        unused_share: Of backward, what computes only what nobody uses.
        mixed_share: Of backward, what computes such beside what is used.
    """
    backward_s = spent_in(case, "backward")
    return [
        (unused * unused_share + mixed * mixed_share) * backward_s
        for unused, mixed in zip(_UNUSED_SAVES, _MIXED_SAVES, strict=True)
    ]


def gain_of(case: Case, savings_s: Sequence[float], *, is_of_whole_run: bool) -> Gain | None:
    """Returns what is gained; at most that on a device, where the host's times stand for its own.

    So too where it was otherwise for a part of the run. `savings_s` as `saved_of_backward` has it.
    """
    if case.is_on_device or not is_of_whole_run:
        return outside_steps(case, savings_s[2], with_warmup=True)
    low, likely, high = (of_python(case, seconds) for seconds in savings_s)
    if low is None or likely is None or high is None:
        return None
    return replace(
        likely,
        training=(low.likely, high.likely),
        run=(low.run[1], high.run[1]),
        is_at_most=False,
    )


def needless_finding(
    case: Case,
    rule: str,
    least_share: float,
    gradients: Sequence[NeedlessGradients],
    title: str,
    *,
    site: str | None,
    advice: str,
    cautions: list[str],
    also: list[str] | None = None,
) -> Finding | None:
    """Returns a finding of gradients that nobody uses; None where they cost under `least_share`."""
    unused, mixed = (
        min(sum(getattr(one, name) for one in gradients), 1.0)
        for name in ("unused_share", "mixed_share")
    )
    savings_s = saved_of_backward(case, unused, mixed)
    part = savings_s[1] / case.training_s if case.training_s > 0 else 0.0
    if part < least_share:
        return None
    is_whole = all(one.is_of_whole_run for one in gradients)
    gain = gain_of(case, savings_s, is_of_whole_run=is_whole)
    if gain is None:
        return None
    return plain_finding(
        rule,
        f"{title}: about {span(savings_s[1])}, {percent(part)} of training",
        gain,
        site=site,
        advice=advice,
        cautions=cautions,
        also=also,
        evidence={
            "backward_s": case.training.get("backward", 0.0),
            "unused_share_of_backward": unused,
            "mixed_share_of_backward": mixed,
            "parameters": sum(one.parameters for one in gradients),
            "lines": len(gradients),
        },
    )
