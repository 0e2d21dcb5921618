"""The page of a `tune` run: the answer and its change, a bar for each setting, every figure."""

from __future__ import annotations

import math
import shlex
from typing import Final

from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.analysis.summary.tune import (
    BASELINE,
    CEILING,
    LOADER_ALONE,
    OK,
    Recommended,
    TrialSummary,
)
from trainprof.report import tune as words
from trainprof.report.html.bars import VERDICTS, Bar, BarRow, Chart, Reference, chart, class_of
from trainprof.report.html.blocks import Block, Row
from trainprof.report.html.page import environment
from trainprof.report.text.layout import Column
from trainprof.report.text.safe_text import with_safe_text
from trainprof.report.text.units import is_known

_BOUNDS: Final = (BASELINE, CEILING, LOADER_ALONE)
_HELD: Final = {True: "held", False: "missed", None: "undecided"}


def render(summary: RunSummary) -> str:
    """Returns a `tune` run as one HTML page."""
    summary = with_safe_text(summary)
    assert summary.tuning is not None
    shown, notes = _speed_chart(summary.trials, summary.recommended), _notes(summary)
    template = environment().get_template("tune.html.j2")
    return template.render(
        title=f"{summary.run.name}: settings tried by trainprof tune",
        links=[
            *([("speed", "Speed")] if shown is not None else []),
            *([("notes", "Notes")] if notes.rows else []),
            ("trials", "All trials"),
        ],
        headline=words.headline(summary),
        effort=f"{summary.run.name}: {words.effort(summary, summary.tuning)}.",
        command_line=shlex.join(summary.run.command),
        best=summary.recommended,
        command=words.next_command(summary),
        chart=shown,
        verdicts=VERDICTS,
        notes=notes,
        trials=_trials(summary.trials),
    )


def _notes(summary: RunSummary) -> Block:
    rows: list[Row] = []
    for label, text in words.remarks(summary):
        if not rows or rows[-1].label != label:
            rows.append(Row(label))
        rows[-1].texts.append(words.sentence(text))
    return Block(rows=rows)


def _trials(trials: list[TrialSummary]) -> Block:
    figures = zip(*map(words.cells, trials), strict=True)
    return Block(
        [
            Column("setting", [words.name_of(trial) for trial in trials], is_number=False),
            *map(Column, words.TITLES, figures),
            Column("result", [words.result_word(trial) for trial in trials], is_number=False),
        ]
    )


def _speed_chart(trials: list[TrialSummary], best: Recommended | None) -> Chart | None:
    """Returns the settings, the fastest first, with the bounds as lines; None without a speed."""
    settings = [trial for trial in trials if trial.name not in _BOUNDS]
    settings.sort(key=lambda trial: -trial.speedup.mid if trial.speedup else math.inf)
    if not any(trial.speedup for trial in settings):
        return None
    references = [
        Reference(words.name_of(trial), trial.speedup.mid, words.times(trial.speedup.mid))
        for name in _BOUNDS
        for trial in trials
        if trial.name == name and trial.speedup is not None and is_known(trial.speedup.mid)
    ]
    rows = [_row(trial, best) for trial in settings]
    return chart(rows, lambda value: f"{value:g}x", references)


def _row(trial: TrialSummary, best: Recommended | None) -> BarRow:
    speedup, word = trial.speedup, words.result_word(trial)
    predicted, forecast = _prediction(trial)
    if trial.outcome != OK or speedup is None:
        return BarRow(words.name_of(trial), (), word or "not measured", "", forecast, predicted)
    bar = Bar(class_of(trial.verdict), speedup.mid, speedup.low, speedup.high)
    interval = words.between(speedup.low, speedup.high)
    spread = "" if bar.low is None else f" ({interval})"
    figure = f"{words.times(speedup.mid)}{spread}"
    if trial.against or (best is not None and best.name == trial.name):
        word = "not recommended" if trial.against else "recommended"
    return BarRow(words.name_of(trial), (bar,), figure, word, forecast, predicted)


def _prediction(trial: TrialSummary) -> tuple[tuple[float, float] | None, str]:
    """Returns the predicted range, and its words with what came of it."""
    if trial.predicted is None or not all(map(is_known, trial.predicted)):
        return None, ""
    low, high = trial.predicted
    held = "" if trial.speedup is None or trial.is_least else f", {_HELD[trial.held]}"
    return (low, high), f"predicted {words.between(low, high)}{held}"
