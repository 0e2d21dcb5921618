"""The whole run in one sentence: start-up, training with what lies outside of steps, exit."""

from __future__ import annotations

from typing import Final

from trainprof.analysis.summary.levels import pair
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report.text.outside_loop import places_of
from trainprof.report.text.units import is_known, seconds

# Of the run; less is not worth a word.
_SHOWN_FROM: Final = 0.02
# From here on start-up or exit has a sentence of its own.
_PLACED_FROM: Final = 0.25
_PLACES: Final = 2
_INSIDE: Final = {
    "loader start": ("loader_start", "first_batch", "loader_end"),
    "validation": ("evaluation",),
    "checkpoints": ("checkpoint",),
    "torch.compile": ("compile",),
}


def long_outside(summary: RunSummary) -> list[str]:
    """Returns a sentence for start-up or exit that is much of the run, with its places."""
    whole_s = summary.ledger.wall_s
    sentences = []
    for name, key in (("Start-up", "startup"), ("Exit", "shutdown")):
        took_s, places = summary.ledger.seconds.get(key, 0.0), places_of(summary, key)[:_PLACES]
        is_much = is_known(took_s) and is_known(whole_s) and took_s >= _PLACED_FROM * whole_s > 0
        if places and is_much and summary.verdict.bottleneck != key:
            sentences.append(f"{name} takes {pair(took_s, whole_s)}: {', '.join(places)}.")
    return sentences


def whole_run(summary: RunSummary) -> str:
    """Returns "Whole run: start-up 5.2 s, training 14.5 s (validation 0.8 s), exit 2.2 s"."""
    whole_s = summary.ledger.wall_s
    spent = {key: s for key, s in summary.ledger.seconds.items() if is_known(s)}
    if not spent or not is_known(whole_s) or whole_s <= 0:
        return ""
    startup_s, exit_s = spent.get("startup", 0.0), spent.get("shutdown", 0.0)

    def outside(name: str, key: str) -> str:
        took_s = spent.get(key, 0.0)
        return f"{name} {seconds(took_s)}" if took_s >= _SHOWN_FROM * whole_s else ""

    inside = {name: sum(spent.get(key, 0.0) for key in keys) for name, keys in _INSIDE.items()}
    much = [f"{name} {seconds(s)}" for name, s in inside.items() if s >= _SHOWN_FROM * whole_s]
    training = f"training {seconds(max(whole_s - startup_s - exit_s, 0.0))}"
    parts = [
        outside("start-up", "startup"),
        f"{training} ({', '.join(much)})" if much else training,
        outside("exit", "shutdown"),
    ]
    what = "Whole run" if summary.run.part is None else "In all"
    return f"{what}: {', '.join(filter(None, parts))}"
