"""What it gives that backward leaves out what nobody uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.diagnosis.gains import Gain, of_python, outside_steps

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
