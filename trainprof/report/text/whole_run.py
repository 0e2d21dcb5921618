"""The whole run in one sentence: start-up, training with what lies outside of steps, exit."""

from __future__ import annotations

from typing import Final

from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report.text.units import is_known, seconds

# Of the run; less is not worth a word.
_SHOWN_FROM: Final = 0.02
_INSIDE: Final = {
    "loader starts": ("loader_start", "first_batch", "loader_end"),
    "validation": ("evaluation",),
    "checkpoints": ("checkpoint",),
    "torch.compile": ("compile",),
}


def whole_run(summary: RunSummary) -> str:
    """Returns "Whole run: start-up 5.2 s, training 14.5 s (validation 0.8 s), exit 2.2 s"."""
    whole_s = summary.ledger.wall_s
    spent = {key: s for key, s in summary.ledger.seconds.items() if is_known(s)}
    if not spent or not is_known(whole_s) or whole_s <= 0:
        return ""
    startup_s, exit_s = spent.get("startup", 0.0), spent.get("shutdown", 0.0)
    inside = {name: sum(spent.get(key, 0.0) for key in keys) for name, keys in _INSIDE.items()}
    much = [f"{name} {seconds(s)}" for name, s in inside.items() if s >= _SHOWN_FROM * whole_s]
    training = f"training {seconds(max(whole_s - startup_s - exit_s, 0.0))}"
    parts = [
        f"start-up {seconds(startup_s)}" if startup_s >= _SHOWN_FROM * whole_s else "",
        f"{training} ({', '.join(much)})" if much else training,
        f"exit {seconds(exit_s)}" if exit_s >= _SHOWN_FROM * whole_s else "",
    ]
    what = "Whole run" if summary.run.part is None else "In all"
    return f"{what}: {', '.join(filter(None, parts))}"
