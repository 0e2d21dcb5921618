"""The page of `compare`: the answer, bars of speed and of a step's parts, what differs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any, Final

from trainprof.analysis.summary.tune import TOO_NOISY, UNKNOWN
from trainprof.compare.comparability import GROUND, REMARK, SETTING, UNFINISHED, UNUSABLE, WORK
from trainprof.compare.compared_run import ComparedRun
from trainprof.compare.comparison import PASSED, Comparison, Metric, noise_of
from trainprof.report import comparison as words
from trainprof.report.html.bars import Bar, Chart, Reference, Row, chart, class_of
from trainprof.report.html.page import environment
from trainprof.report.text.safe_text import one_line
from trainprof.report.text.units import NOT_MEASURED, count, seconds
from trainprof.report.tune import VERDICT_WORDS

_STEP: Final = "step_s"


def render(comparisons: Sequence[Comparison]) -> str:
    """Returns comparisons with the same BASE as one HTML page."""
    safe = [words.with_safe_runs(comparison) for comparison in comparisons]
    template = environment().get_template("compare.html.j2")
    return template.render(
        title=f"{_names(safe[0].base)} compared with {', '.join(_names(c.other) for c in safe)}",
        speed=_speed_chart(safe),
        comparisons=[_section(comparison) for comparison in safe],
    )


def _names(runs: Sequence[ComparedRun]) -> str:
    return ", ".join(run.name for run in runs)


def _section(comparison: Comparison) -> dict[str, Any]:
    gate = comparison.gate
    return {
        "base": words.side(comparison.base),
        "other": words.side(comparison.other),
        "name": _names(comparison.other),
        "headline": words.headline(comparison),
        "verdict": class_of(comparison.verdict),
        "warning": _line(words.warning(comparison)),
        "gate": None if gate is None else words.gate_line(comparison, gate),
        "gate_passed": gate is not None and gate.outcome == PASSED,
        "runs": _runs_chart(comparison),
        "parts": _parts_chart(comparison),
        "differences": _differences(comparison),
        "columns": (*words.TITLES[1:-1], "verdict"),
        "rows": [
            (row.label.strip(), (*row[1:-1], VERDICT_WORDS[row.verdict]))
            for row in words.rows(comparison, verbose=True)
        ],
        "run_rows": [
            _run_row(side, run)
            for side, runs in (("BASE", comparison.base), ("OTHER", comparison.other))
            for run in runs
        ],
        "command": _line(words.confirmation(comparison)),
    }


def _run_row(side: str, run: ComparedRun) -> tuple[str, tuple[str, ...]]:
    summary = run.summary
    steps = count(summary.training.steps), count(run.steady_steps()), seconds(run.mean_step_s())
    return run.name, (side, *steps, shlex.join(summary.run.command))


def _line(text: str | None) -> str | None:
    return None if text is None else one_line(text)


def _speed_chart(comparisons: Sequence[Comparison]) -> Chart | None:
    """Returns the speedup of each OTHER with its interval; None if none is known."""
    rows = []
    for comparison in comparisons:
        speedup = comparison.answer
        verdict, mid = comparison.verdict, speedup.mid
        bar = Bar(class_of(verdict), mid, speedup.low, speedup.high)
        figure = NOT_MEASURED if mid is None else f"{mid:.3g}x"
        if bar.low is not None and bar.high is not None:
            is_usable = bar.high <= TOO_NOISY * bar.low
            figure += f" ({words.interval_of(comparison) if is_usable else 'too noisy'})"
        note = "no verdict" if verdict == UNKNOWN else VERDICT_WORDS[verdict]
        rows.append(Row(_names(comparison.other), (bar,), figure, note))
    if not any(bar.value for row in rows for bar in row.bars):
        return None
    return chart(rows, lambda value: f"{value:g}x", [Reference("BASE", 1.0, "1x")])


def _runs_chart(comparison: Comparison) -> Chart | None:
    """Returns the mean step of each run, None with one run a side."""
    if len(comparison.base) + len(comparison.other) == 2:
        return None
    rows = [
        Row(run.name, (Bar(name, run.mean_step_s()),), seconds(run.mean_step_s()))
        for name, runs in (("base", comparison.base), ("other", comparison.other))
        for run in runs
    ]
    return chart(rows, seconds)


def _parts_chart(comparison: Comparison) -> Chart | None:
    """Returns a step and its parts on both sides, None if no step was measured."""
    shown, small = words.parts(comparison, verbose=False)
    step = [metric for metric in comparison.metrics if metric.name == _STEP]
    metrics = [*step, *shown, *([] if small is None else [small])]
    if not any(metric.base or metric.other for metric in metrics):
        return None
    return chart(map(_pair, metrics), seconds)


def _pair(metric: Metric) -> Row:
    row, base = words.row(metric), metric.base
    low, high = (
        None if base is None or bound is None or not row.interval else base * (1 + bound)
        for bound in (metric.low, metric.high)
    )
    bars = Bar("base", base), Bar("other", metric.other, low, high)
    change = f"{row.change} ({row.interval})" if row.interval else row.change
    return Row(row.label.strip(), bars, f"{row.base} → {row.other}", detail=change)


def _differences(comparison: Comparison) -> list[tuple[str, list[str]]]:
    """Returns what differs by headings: changed settings, what makes sides unlike, notes."""
    noise = None if comparison.verdict == UNKNOWN else noise_of(comparison)
    listed = {
        "Changed settings": comparison.of_kind(SETTING),
        "Other differences": comparison.of_kind(WORK, GROUND),
        "Problems with a run": comparison.of_kind(UNUSABLE, UNFINISHED),
        "Notes": [*([] if noise is None else [noise]), *comparison.of_kind(REMARK)],
    }
    return [(title, list(map(one_line, texts))) for title, texts in listed.items() if texts]
