"""What changes would give, in words."""

from __future__ import annotations

import math
from typing import Final

from trainprof.analysis.summary.finding import (
    BY_SAMPLES,
    ESTIMATE,
    LIKELY,
    MODELLED_WORKERS,
    Finding,
    comes_once,
)
from trainprof.analysis.summary.levels import LEAST_GAIN
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report.text.units import seconds

# From here on what is at most gained is told beside what is likely.
_APART_TIMES: Final = 1.03
_NOT_MEASURED: Final = "not measured"
_BY_MODEL: Final = "a model, not measured"
_BY_TUNE: Final = ": trainprof tune does"
_BY_COMPARE: Final = ": trainprof compare of a rerun does"


def whole_of(summary: RunSummary) -> str:
    """Returns what is shown, as gains are told of it: all of a run, or a part."""
    return "the run" if summary.run.part is None else "this part of it"


def speedup_words(finding: Finding, whole: str = "the run") -> str:
    """Returns the gain of a change, "" where it is not known; `whole`: what of the run is shown."""
    steps, run = known_range(finding.predicted_speedup), known_range(finding.run_speedup)
    if steps is None:
        return ""
    if comes_once(finding):
        return _once(finding)
    if finding.is_at_most:
        return _at_most(finding, steps[1], None if run is None else run[1], whole)
    words = f"{_what(finding)} {_range(steps)} as fast"
    likely = _likely(finding)
    if steps[0] < 1 and likely is not None:
        words += f", most likely {times_words(likely)} x"
    if run is not None:
        words += f", {whole} {_range(run)}"
    by_whom = _by_whom(finding) if finding.change else ""
    return f"{words} ({_BY_MODEL}{by_whom}{'; it may as well lose' if steps[0] < 1 else ''})"


def speedup_in_short(finding: Finding) -> str:
    """Returns the same in a few words, for a sentence that goes on; "" where it is not known."""
    steps = known_range(finding.predicted_speedup)
    if steps is None:
        return ""
    if comes_once(finding):
        return _once(finding)
    what = _what(finding)
    if not finding.is_at_most:
        return f"{what} {_range(steps)} as fast"
    likely = _likely(finding)
    if likely is None or _is_modelled(finding):
        return f"{what} up to about {times_words(steps[1])} x as fast"
    if finding.traits.gain == ESTIMATE:
        return f"{what} {_likely_words(likely, steps[1])} as fast"
    # Were all of it gone: what gets faster by that has no room here.
    return f"{what} up to {times_words(likely)} x as fast"


def together_words(summary: RunSummary) -> str:
    """Returns what all changes would give at most; "" where it is not known, or one is as good."""
    lasting = (known_range(x.predicted_speedup) for x in summary.findings if not comes_once(x))
    alone = max((steps[1] for steps in lasting if steps), default=0.0)
    times = summary.together
    if times is None or not math.isfinite(times) or times < (1 + LEAST_GAIN) * alone:
        return ""
    return f"All of these together: training up to about {times_words(times)} x as fast."


def known_range(speedup: list[float] | None) -> list[float] | None:
    """Returns how many times as fast, from low to high; None where that is not two numbers."""
    is_known = speedup is not None and len(speedup) == 2 and all(map(math.isfinite, speedup))
    return speedup if is_known else None


def times_words(times: float, other: float = 0.0) -> str:
    """Returns a factor as exactly as anybody can mean it, like the one it stands beside."""
    largest = max(times, other)
    return f"{times:.2f}" if largest < 2 else f"{times:.1f}" if largest < 20 else f"{times:.0f}"


def _at_most(finding: Finding, most: float, run: float | None, whole: str) -> str:
    what, likely = _what(finding), _likely(finding)
    if _is_modelled(finding):
        words = f"{what} up to about {times_words(most)} x as fast"
        words += "" if run is None else f", {whole} {times_words(run)} x"
        by_whom = _by_whom(finding) if "num_workers" in finding.change else ""
        return f"{words} ({_BY_MODEL}{by_whom})"
    is_apart = likely is not None and most >= _APART_TIMES * likely
    is_loose = likely is None or finding.traits.gain in (ESTIMATE, BY_SAMPLES)
    if likely is None or finding.traits.gain == ESTIMATE:
        words = f"{what} {_likely_words(likely, most)} as fast"
    else:
        condition = finding.traits.gain_if or "all of it went"
        words = f"{what} about {times_words(likely, most)} x as fast if {condition}"
    if is_apart:
        rest = "" if is_loose else " (what remains may speed up, too)"
        words += f", up to about {times_words(most)} x{rest}"
    if run is not None:
        words += f"; {whole} {'up to ' if is_apart and is_loose else ''}{times_words(run)} x"
    return f"{words}; {_NOT_MEASURED}{_BY_TUNE if finding.is_tried_by_tune else ''}"


def _likely_words(likely: float | None, most: float) -> str:
    """Returns an estimate; where it is what is at most gained, or none is known, as the most."""
    if likely is None or most < _APART_TIMES * likely:
        return f"up to {times_words(most)} x"
    return f"likely {times_words(likely, most)} x"


def _once(finding: Finding) -> str:
    saved_s = finding.recoverable_s
    return "" if saved_s is None else f"up to {seconds(saved_s)}, once a run"


def _by_whom(finding: Finding) -> str:
    """Returns what measures the gain of a change."""
    return _BY_TUNE if finding.is_tried_by_tune else _BY_COMPARE


def _is_modelled(finding: Finding) -> bool:
    return "num_workers" in finding.change or MODELLED_WORKERS in finding.evidence


def _likely(finding: Finding) -> float | None:
    likely = finding.evidence.get(LIKELY)
    if isinstance(likely, (int, float)) and math.isfinite(likely):
        return float(likely)
    return None


def _what(finding: Finding) -> str:
    return "steps" if finding.of_steps else "training"


def _range(speedup: list[float]) -> str:
    low, high = times_words(speedup[0], speedup[1]), times_words(speedup[1])
    return f"{low} x" if low == high else f"{low} to {high} x"
