"""The page of `compare`: the answer, bars of speed and of a step's parts, what differs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any, Final

from trainprof.analysis.summary.tune import FASTER, SLOWER, TOO_NOISY, UNKNOWN
from trainprof.compare.comparability import GROUND, REMARK, SETTING, UNFINISHED, UNUSABLE, WORK
from trainprof.compare.compared_run import ComparedRun
from trainprof.compare.comparison import PASSED, Comparison, Metric, noise_of
from trainprof.report import comparison as words
from trainprof.report.html.bars import VERDICTS, Bar, BarRow, Chart, Reference, chart, class_of
from trainprof.report.html.blocks import Block, Row
from trainprof.report.html.page import environment
from trainprof.report.text.layout import Column
from trainprof.report.text.safe_text import one_line
from trainprof.report.text.units import NOT_MEASURED, count, seconds
from trainprof.report.tune import VERDICT_WORDS

_LEVELS: Final = {FASTER: "good", SLOWER: "bad"}
_STEP: Final = "step_s"


def render(comparisons: Sequence[Comparison]) -> str:
    """Returns comparisons with the same BASE as one HTML page."""
    safe = [words.with_safe_runs(comparison) for comparison in comparisons]
    speed, parts = _speed_chart(safe), [_part(comparison) for comparison in safe]
    links = [("speed", "Speed")] if speed is not None else []
    if len(parts) > 1:
        links += [(f"other-{number}", part["name"]) for number, part in enumerate(parts, 1)]
    else:
        (part,) = parts
        links += [("step", "Step")] if part["parts"] is not None else []
        links += [("differences", "Differences")] if part["differences"].rows else []
        links.append(("figures", "All figures"))
    template = environment().get_template("compare.html.j2")
    return template.render(
        title=f"{_names(safe[0].base)} compared with {', '.join(part['name'] for part in parts)}",
        links=links,
        speed=speed,
        verdicts=VERDICTS,
        sides=(("base", "BASE"), ("other", "OTHER")),
        comparisons=parts,
    )


def _names(runs: Sequence[ComparedRun]) -> str:
    return ", ".join(run.name for run in runs)


def _part(comparison: Comparison) -> dict[str, Any]:
    gate = comparison.gate
    return {
        "name": _names(comparison.other),
        "sides": f"BASE {words.side(comparison.base)}, OTHER {words.side(comparison.other)}",
        "headline": words.headline(comparison),
        "level": _LEVELS.get(comparison.verdict, ""),
        "warning": _line(words.warning(comparison)),
        "gate": None if gate is None else words.gate_line(comparison, gate),
        "is_gate_passed": gate is not None and gate.outcome == PASSED,
        "command": _line(words.confirmation(comparison)),
        "parts": _parts_chart(comparison),
        "runs": _runs_chart(comparison),
        "differences": _differences(comparison),
        "figures": _figures(comparison),
        "run_table": _run_table(comparison),
    }


def _figures(comparison: Comparison) -> Block:
    labels, *figures, verdicts = zip(*words.rows(comparison, verbose=True), strict=True)
    columns = [Column("figure", [label.strip() for label in labels], is_number=False)]
    columns += map(Column, words.TITLES[1:-1], figures)
    verdict_words = [VERDICT_WORDS[verdict] for verdict in verdicts]
    return Block([*columns, Column("verdict", verdict_words, is_number=False)])


def _run_table(comparison: Comparison) -> Block:
    sides = [("BASE", run) for run in comparison.base]
    sides += [("OTHER", run) for run in comparison.other]
    runs = [run for _, run in sides]
    commands = [shlex.join(run.summary.run.command) for run in runs]
    return Block(
        [
            Column("run", [run.name for run in runs], is_number=False),
            Column("side", [side for side, _ in sides], is_number=False),
            Column("steps", [count(run.summary.training.steps) for run in runs]),
            Column("steady steps", [count(run.steady_steps()) for run in runs]),
            Column("mean step", [seconds(run.mean_step_s()) for run in runs]),
            Column("command", commands, is_number=False),
        ]
    )


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
        rows.append(BarRow(_names(comparison.other), (bar,), figure, note))
    if not any(bar.value for row in rows for bar in row.bars):
        return None
    return chart(rows, lambda value: f"{value:g}x", [Reference("BASE", 1.0, "1x")])


def _runs_chart(comparison: Comparison) -> Chart | None:
    """Returns the mean step of each run, None with one run a side."""
    if len(comparison.base) + len(comparison.other) == 2:
        return None
    rows = [
        BarRow(run.name, (Bar(name, run.mean_step_s()),), seconds(run.mean_step_s()))
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


def _pair(metric: Metric) -> BarRow:
    row, base = words.row(metric), metric.base
    low, high = (
        None if base is None or bound is None or not row.interval else base * (1 + bound)
        for bound in (metric.low, metric.high)
    )
    bars = Bar("base", base), Bar("other", metric.other, low, high)
    change = f"{row.change} ({row.interval})" if row.interval else row.change
    return BarRow(row.label.strip(), bars, f"{row.base} → {row.other}", detail=change)


def _differences(comparison: Comparison) -> Block:
    """Returns what differs by kind, and how to read the figures."""
    noise = None if comparison.verdict == UNKNOWN else noise_of(comparison)
    listed = {
        "Settings": comparison.of_kind(SETTING),
        "Other": comparison.of_kind(WORK, GROUND),
        "Problems": comparison.of_kind(UNUSABLE, UNFINISHED),
        "Notes": [*([] if noise is None else [noise]), *comparison.of_kind(REMARK)],
    }
    return Block(
        rows=[Row(kind, list(map(one_line, texts))) for kind, texts in listed.items() if texts]
    )
