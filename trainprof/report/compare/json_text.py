"""What `compare --format json` prints."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from trainprof.analysis.statistics.speedup import SpeedUp
from trainprof.compare.comparability import UNFINISHED, UNLIKE
from trainprof.compare.compared_run import ComparedRun
from trainprof.compare.comparison import Comparison
from trainprof.report.compare.rows import remarks


def render(comparisons: Sequence[Comparison]) -> str:
    """Returns strict JSON in ASCII: an object, or of several OTHERs an array in their order."""
    plain = [to_jsonable(comparison) for comparison in comparisons]
    value = plain[0] if len(plain) == 1 else plain
    return json.dumps(value, allow_nan=False, ensure_ascii=True, indent=1) + "\n"


def to_jsonable(comparison: Comparison) -> dict[str, Any]:
    """Returns the comparison as plain JSON values."""
    gate, with_starts = comparison.gate, comparison.with_starts
    return {
        "schema_version": 1,
        "base": _side(comparison.base),
        "other": _side(comparison.other),
        "comparable": comparison.comparable,
        "notes": [
            *comparison.of_kind(*UNLIKE, UNFINISHED),
            *(f"{label}: {sentence}" for label, sentence in remarks(comparison)),
        ],
        "verdict": comparison.verdict,
        "measured_by": comparison.measured_by,
        "speedup": _speedup(comparison.speedup),
        "speedup_with_starts": with_starts and _speedup(with_starts),
        "why_unknown": comparison.answer.why_unknown,
        "gate": gate and {"limit": gate.limit, "outcome": gate.outcome, "why": gate.why},
        "metrics": [asdict(metric) for metric in comparison.metrics],
    }


def _speedup(speedup: SpeedUp) -> dict[str, float | None]:
    return {"low": speedup.low, "mid": speedup.mid, "high": speedup.high}


def _side(runs: Sequence[ComparedRun]) -> dict[str, Any]:
    return {
        "name": ", ".join(run.name for run in runs),
        "runs": [
            {
                "name": run.name,
                "directory": run.summary.run.directory or run.directory,
                "command": run.summary.run.command,
                "started_at": run.summary.run.started_at,
                "steps": run.summary.training.steps,
                "steady_steps": run.steady_steps(),
                "step_s": run.mean_step_s(),
            }
            for run in runs
        ],
    }
