"""Renders comparisons as a page, Markdown and JSON: the answer, what changed, the figures."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any, Final, NamedTuple

from rich.text import Text

from trainprof.analysis.summary.tune import FASTER, SLOWER, UNKNOWN
from trainprof.compare.comparability import REMARK, SCRIPT_TEXT, SETTING, UNFINISHED, UNLIKE
from trainprof.compare.compared_run import ComparedRun
from trainprof.compare.comparison import (
    NOT_JUDGED,
    PART_PREFIX,
    PASSED,
    TRIPPED,
    Comparison,
    Gate,
    Metric,
    longer,
    noise_of,
)
from trainprof.report.markdown import escaped, joined, table
from trainprof.report.text.layout import BLANK, Column, Page
from trainprof.report.text.ledger import label_of
from trainprof.report.text.safe_text import clip_end, with_safe_text
from trainprof.report.text.units import byte_count, counted, percent, seconds, three_digits
from trainprof.report.tune import REMARK_CELLS, VERDICT_WORDS, is_probable

_FOLD_BELOW_SHARE: Final = 0.02
# From ten times on a change is a factor, and its interval is left out.
_TOO_WIDE: Final = 9.995
_RUNS_A_SIDE: Final = 3
_MOST_REMARKS: Final = 3  # what changed, and two notes
_OUTCOMES: Final = {PASSED: "passed", TRIPPED: "tripped", NOT_JUDGED: "not judged"}
_LABELS: Final = {
    "step_s": "step (mean)",
    "step_with_starts_s": "step with epoch starts",
    "samples_per_s": "samples/s",
    "step_p50_s": "step (median)",
    "checkpoints_per_step_s": "checkpoints (excluded)",
    "wall_s": "whole run",
    "memory_peak_bytes": "peak memory",
    "device_busy_share": "device busy (at least)",
}
_OF_STEP: Final = ("step_s", "step_with_starts_s", "samples_per_s", "step_p50_s")
_WRITERS: Final[dict[str, Callable[[float], str]]] = {
    "_per_s": three_digits,
    "_s": seconds,
    "_share": percent,
    "_bytes": byte_count,
}
_STYLES: Final = {FASTER: "bold green", SLOWER: "bold red"}
_GATE_STYLES: Final = {PASSED: "bold", TRIPPED: "bold red", NOT_JUDGED: "bold yellow"}
TITLES: Final = ("", "BASE", "OTHER", "change", "95 % interval", "")


class Row(NamedTuple):
    """One line of the table; `verdict` is a key of VERDICT_WORDS."""

    label: str
    base: str
    other: str
    change: str
    interval: str
    verdict: str


def headline(comparison: Comparison) -> str:
    """Returns the answer in one sentence: how much faster or slower, with its interval."""
    speedup, per = comparison.answer, comparison.measured_by
    if speedup.low is None or speedup.mid is None or speedup.high is None:
        why = speedup.why_unknown or "the noise is unknown"
        return "No verdict." if why in (warning(comparison) or "") else f"No verdict: {why}."
    least, middle, most = (1 / bound - 1 for bound in (speedup.high, speedup.mid, speedup.low))
    if comparison.answer is comparison.with_starts:
        per += ", epoch starts included,"
    times = f"{speedup.mid:.3g}x faster (95 % interval {interval_of(comparison)})"
    takes = f"a {per} takes {longer(middle)} (95 % interval {between(least, most)})"
    if speedup.verdict == FASTER:
        return f"OTHER is {times}."
    if speedup.verdict == SLOWER:
        return f"OTHER is slower: {takes}."
    if speedup.verdict != UNKNOWN:
        return f"No visible difference: {takes}."
    if is_probable(speedup.mid, speedup.high):
        return f"OTHER is probably {times}, but {speedup.why_unknown}."
    was = (
        f"OTHER was {speedup.mid:.3g}x faster"
        if speedup.mid >= 1
        else f"a {per} took {longer(middle)}"
    )
    return f"No verdict: {was}, but {speedup.why_unknown}."


def interval_of(comparison: Comparison) -> str:
    """Returns "1.91-2.05x", empty if the noise is unknown."""
    speedup = comparison.answer
    if speedup.low is None or speedup.high is None:
        return ""
    return f"{speedup.low:.3g}-{speedup.high:.3g}x"


def gate_line(comparison: Comparison, gate: Gate) -> str:
    """Returns "Gate passed (limit: 5 % longer): why."."""
    is_known = gate.outcome == NOT_JUDGED and warning(comparison) is not None
    why = "" if is_known else f": {gate.why}"
    return f"Gate {_OUTCOMES[gate.outcome]} (limit: {gate.limit * 100:g} % longer){why}."


def warning(comparison: Comparison) -> str | None:
    """Returns why the sides are not comparable, None if they are."""
    texts = comparison.of_kind(*UNLIKE, UNFINISHED)
    if texts == [f"{SCRIPT_TEXT} differs"]:
        return "The script was edited: the difference includes all its edits."
    return f"Not comparable: {'; '.join(texts)}." if texts else None


def remarks(comparison: Comparison) -> list[tuple[str, str]]:
    """Returns labels and sentences: what changed, notes, and the base of the interval."""
    changed = "; ".join(comparison.of_kind(SETTING))
    listed = [("Changed", changed)] if changed else []
    # The headline of an unknown verdict names the noise.
    noise = None if comparison.verdict == UNKNOWN else noise_of(comparison)
    notes = [*(() if noise is None else (noise,)), *comparison.of_kind(REMARK)]
    return [*listed, *(("Note", note) for note in notes)]


def confirmation(comparison: Comparison) -> str | None:
    """Returns the command that compares three runs a side, None if these runs decide."""
    speedup = comparison.answer
    if speedup.chance is None or speedup.is_certain:
        return None
    words = ["trainprof", "compare"]
    for option, letter, runs in (("base", "A", comparison.base), ("other", "B", comparison.other)):
        known = [run.summary.run.directory or run.directory for run in runs]
        added = [f"{letter}{number}" for number in range(len(known) + 1, _RUNS_A_SIDE + 1)]
        words += [word for run in (*known, *added) for word in (f"--{option}", run)]
    return shlex.join(words)


def side(runs: Sequence[ComparedRun]) -> str:
    """Returns the runs of a side with their steps."""
    steady = [run.steady_steps() for run in runs]
    least, most = min(steady), max(steady)
    steps = f"{least:,} to " if least < most else ""
    return f"{', '.join(run.name for run in runs)} ({steps}{counted(most, 'steady step')})"


def rows(comparison: Comparison, *, verbose: bool) -> list[Row]:
    """Returns the table: a step, its parts (small ones folded), and the run."""
    shown, small = parts(comparison, verbose=verbose)
    others = [metric for metric in comparison.metrics if not metric.name.startswith(PART_PREFIX)]
    step_metrics = [metric for metric in others if metric.name in _OF_STEP]
    run_metrics = [metric for metric in others if metric.name not in _OF_STEP]
    listed = [*step_metrics, *shown, *([] if small is None else [small]), *run_metrics]
    return list(map(row, listed))


def parts(comparison: Comparison, *, verbose: bool) -> tuple[list[Metric], Metric | None]:
    """Returns the parts of a step, longest first, and the sum of the small ones, if any."""
    listed = [metric for metric in comparison.metrics if metric.name.startswith(PART_PREFIX)]
    listed.sort(key=_larger, reverse=True)
    least_s = 0.0 if verbose else _FOLD_BELOW_SHARE * sum(map(_larger, listed))
    small = [part for part in listed if _larger(part) < least_s]
    if not small:
        return listed, None
    base = sum(part.base or 0.0 for part in small)
    other = sum(part.other or 0.0 for part in small)
    change = other / base - 1 if base else None
    folded = Metric(f"{PART_PREFIX}other parts ({len(small)})", base, other, change)
    return listed[: -len(small)], folded


def _larger(metric: Metric) -> float:
    return max(metric.base or 0.0, metric.other or 0.0)


def row(metric: Metric) -> Row:
    """Returns a figure of both sides as the table has it."""
    part = metric.name.removeprefix(PART_PREFIX)
    label = _LABELS.get(metric.name) or f"  {label_of(part)}"
    write = next((write for ending, write in _WRITERS.items() if part.endswith(ending)), seconds)
    base, other = ("-" if x is None else write(x) for x in (metric.base, metric.other))
    is_shown = metric.low is not None and metric.high is not None and metric.high < _TOO_WIDE
    interval = between(metric.low or 0.0, metric.high or 0.0) if is_shown else ""
    return Row(label, base, other, _change(metric.change), interval, metric.verdict)


def _change(share: float | None) -> str:
    if share is None:
        return ""
    return f"x {three_digits(share + 1)}" if share >= _TOO_WIDE else f"{_share(share)} %"


def between(low: float, high: float) -> str:
    return f"{_share(low)} to {_share(high)} %"


def _share(share: float) -> str:
    """Returns whole percent, tenths below ten."""
    digits = f"{share * 100:+.1f}" if abs(share) < 0.0995 else f"{share * 100:+,.0f}"
    return "0" if not digits.strip("+-0.") else digits


def render_page(comparisons: Sequence[Comparison], page: Page) -> str:
    """Returns one page for each comparison, as `page.render` does; verbose: every figure."""
    lines: list[Text] = []
    for comparison in comparisons:
        lines += [*(BLANK if lines else ()), *_page(with_safe_runs(comparison), page)]
    return page.written(lines)


def with_safe_runs(comparison: Comparison) -> Comparison:
    """Returns the comparison with every string of its runs' summaries on one line."""
    base, other = (
        [replace(run, summary=with_safe_text(run.summary)) for run in runs]
        for runs in (comparison.base, comparison.other)
    )
    return replace(comparison, base=base, other=other)


def _page(comparison: Comparison, page: Page) -> list[Text]:
    lines = page.labelled("BASE", [side(comparison.base)])
    lines += [*page.labelled("OTHER", [side(comparison.other)]), *BLANK]
    if (unlike := warning(comparison)) is not None:
        lines += page.paragraph(unlike, style="bold yellow")
    lines += page.paragraph(headline(comparison), style=_STYLES.get(comparison.verdict, "bold"))
    if comparison.gate is not None:
        style = _GATE_STYLES[comparison.gate.outcome]
        lines += page.paragraph(gate_line(comparison, comparison.gate), style=style)
    shown = rows(comparison, verbose=page.verbose)
    labels, *figures, verdicts = map(list, zip(*shown, strict=True))
    columns = [Column("", labels, is_number=False, gives_way=True)]
    columns += map(Column, TITLES[1:4], figures)
    columns.append(Column(TITLES[4], figures[-1], dropped=2))
    words = [VERDICT_WORDS[verdict] for verdict in verdicts]
    columns.append(Column("", words, is_number=False, dropped=1))
    styles = [_STYLES.get(row.verdict, "").removeprefix("bold ") for row in shown]
    lines += [*BLANK, *page.table(columns, styles)]
    lines += BLANK
    for label, sentence in remarks(comparison)[: None if page.verbose else _MOST_REMARKS]:
        lines += page.paragraph(f"{label}: {page.shortened(sentence, REMARK_CELLS)}.")
    command = confirmation(comparison)
    confirm = f"confirms with {_RUNS_A_SIDE} runs a side"
    return lines if command is None else [*lines, *page.commands("Next:", [(command, confirm)])]


def render_markdown(comparisons: Sequence[Comparison], *, verbose: bool = False) -> str:
    """Returns the comparisons as GitHub-flavoured Markdown, ended by a newline."""
    return "\n---\n\n".join(_comment(x, verbose=verbose) for x in comparisons)


def _comment(comparison: Comparison, *, verbose: bool) -> str:
    gate = None if comparison.gate is None else gate_line(comparison, comparison.gate)
    sentences = (warning(comparison), headline(comparison), gate)
    cells = [
        (row.label.strip(), *row[1:-1], VERDICT_WORDS[row.verdict])
        for row in rows(comparison, verbose=verbose)
    ]
    blocks = [
        *(f"**{escaped(sentence)}**" for sentence in sentences if sentence),
        f"BASE {escaped(side(comparison.base))}, OTHER {escaped(side(comparison.other))}",
        "\n".join(
            f"- {escaped(clip_end(f'{label}: {sentence}.', REMARK_CELLS))}"
            for label, sentence in remarks(comparison)
        ),
        table(TITLES, [list(map(escaped, row)) for row in cells]),
    ]
    return joined(blocks)


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
        "speedup": _bounds(comparison.speedup),
        "speedup_with_starts": with_starts and _bounds(with_starts),
        "why_unknown": comparison.answer.why_unknown,
        "gate": gate and {"limit": gate.limit, "outcome": gate.outcome, "why": gate.why},
        "metrics": [asdict(metric) for metric in comparison.metrics],
    }


def _bounds(speedup: object) -> dict[str, float | None]:
    return {bound: getattr(speedup, bound) for bound in ("low", "mid", "high")}


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
