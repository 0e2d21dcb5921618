"""A comparison in words and rows, shared by the terminal and the markdown renderer."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from trainprof.analysis.comparable_facts import SCRIPT_TEXT, SETTING, UNFINISHED, UNLIKE
from trainprof.analysis.compared_figures import BETWEEN_PASSES, BY_SAMPLE, Metric
from trainprof.analysis.compared_run import ComparedRun
from trainprof.analysis.comparison import Comparison, basis
from trainprof.analysis.gate import NOT_JUDGED, PASSED, TRIPPED, Gate
from trainprof.analysis.speedup import (
    FASTER,
    LEAST_SHARE,
    NO_VISIBLE_DIFFERENCE,
    SLOWER,
    UNKNOWN,
    SpeedUp,
)
from trainprof.report.ledger_table import label_of
from trainprof.report.units import (
    Scale,
    byte_count,
    count,
    counted,
    percent,
    rounded_parts,
    seconds,
    step_scale,
    three_digits,
)

# An unknown verdict of a figure with an interval, which is too wide for one.
_UNSURE: Final = "unsure"
VERDICT_WORDS: Final = {
    FASTER: "faster",
    SLOWER: "slower",
    NO_VISIBLE_DIFFERENCE: "chance",
    UNKNOWN: "",
    _UNSURE: "unsure",
}
NONE_GIVEN: Final = "-"
# Somebody's arguments may be long; the JSON has them whole.
REMARK_CELLS: Final = 300
_FOLD_BELOW_SHARE: Final = 0.02
_FACTORS_FROM: Final = 1.2
_PART: Final = "per_step_s."

_STEP_LABELS: Final = {
    "step_s": "mean",
    "step_p50_s": "median",
    "step_p95_s": "95 of 100 faster than",
    "sample_s": "time a sample",
    "samples_per_s": "samples/s",
    "loop_step_s": "with starts of passes",
    "starts_per_step_s": "later starts add",
    BETWEEN_PASSES: "work between passes",
}
_RUN_LABELS: Final = {
    "wall_s": "from start to end",
    "initialization_s": "before training",
    "training_s": "training loop",
    "evaluation_s": "evaluation",
    "steps": "steps",
    "cpu_cores_busy": "cores kept busy",
    "host_cpu_share": "CPU of the whole host",
    "memory_peak_bytes": "memory, peak",
    "device_busy_share": "device at work (least)",
    "gpu_utilization_share": "GPU utilization",
    "gpu_memory_peak_bytes": "GPU memory, peak",
    "gpu_power_w": "GPU power",
    "energy_wh": "energy of the GPUs",
    "samples_per_wh": "samples per Wh",
}
_LOADER_LABELS: Final = {
    "num_workers": "workers",
    "wait_s": "wait for a batch",
    "first_batch_s": "first batch of a pass",
    "making_a_batch_s": "making a batch",
}
_ALWAYS: Final = ("wall_s", "training_s", "cpu_cores_busy", "memory_peak_bytes")
_OF_SAMPLES: Final = ("sample_s", "samples_per_s")
_OUTCOMES: Final = {PASSED: "PASSED", TRIPPED: "TRIPPED", NOT_JUDGED: "NOT JUDGED"}
# Shown on the short page only where they tell something of the difference.
_ONLY_VERBOSE: Final = ("host_cpu_share", "sample_s", "steps", "gpu_power_w")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table; `verdict` is a key of VERDICT_WORDS."""

    label: str
    base: str
    other: str
    change: str
    interval: str
    verdict: str


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a title."""

    title: str
    rows: list[Row]


def headline(comparison: Comparison) -> str:
    """Returns the answer in one sentence: how much faster or slower, and how sure that is."""
    found = comparison.speedup
    if found.low is None or found.mid is None or found.high is None:
        return f"NO VERDICT: {found.why_unknown or 'the noise is not known'}"
    turned = comparison.turned_by_starts()
    if turned is not None:
        return _turned(comparison, turned)
    if found.verdict == FASTER:
        times = _instead(comparison)
        tail = f"; a {comparison.measured_by} takes {times}" if times else ""
        return f"OTHER IS FASTER: {_faster(comparison)}{tail}"
    told, between = _longer_between(found)
    starts = comparison.starts_alone()
    if starts is not None:
        with_them = "" if (all_steps := _with_starts(comparison)) is None else f"; {all_steps}"
        rest = f"a step in between takes {told} ({between} would fit)"
        return f"{_of_starts(comparison, starts)}{with_them}; {rest}"
    training = comparison.told_by_starts()
    if training is not None:
        return _told_by_starts(comparison, training)
    if found.verdict == SLOWER:
        times = _instead(comparison)
        return (
            f"OTHER IS SLOWER: a {comparison.measured_by} takes {told} ({between}, 95 % sure)"
            f"{f': {times}' if times else ''}"
        )
    part = comparison.clear_part()
    if part is not None:
        return (
            f"{_of_part(part)}; a whole {comparison.measured_by} took {told}, but {between} would "
            f"fit what was measured"
        )
    if found.verdict == UNKNOWN:
        anything = _anything(1 / found.high - 1, 1 / found.low - 1)
        return (
            f"TOO NOISY TO TELL: a {comparison.measured_by} took {told}, but {anything} would fit "
            f"what was measured"
        )
    return (
        f"NO VISIBLE DIFFERENCE: a {comparison.measured_by} takes {told}, and "
        f"{between} would fit what was measured"
    )


def _turned(comparison: Comparison, training: SpeedUp) -> str:
    """Says that steps are faster and training is not, or the other way round."""
    steps, per = comparison.speedup, comparison.measured_by
    assert steps.mid is not None
    words = {FASTER: "FASTER", SLOWER: "SLOWER"}
    whole = words.get(training.verdict, f"NOT {words[steps.verdict]} FOR CERTAIN")
    told, between = _longer_between(training)
    return (
        f"OTHER'S {per.upper()}S ARE {words[steps.verdict]}, ITS TRAINING IS {whole}: with what "
        f"starting each pass takes a {per} takes {told} ({between}), without it "
        f"{_longer(steps.mid)}"
    )


def _told_by_starts(comparison: Comparison, training: SpeedUp) -> str:
    """Says that training is faster or slower for certain, where steps alone do not tell."""
    per, word = comparison.measured_by, "FASTER" if training.verdict == FASTER else "SLOWER"
    told, between = _longer_between(training)
    of_steps, would_fit = _longer_between(comparison.speedup)
    return (
        f"OTHER'S TRAINING IS {word}: with what starting each pass takes a {per} takes {told} "
        f"({between}, 95 % sure), without it {of_steps} ({would_fit} would fit)"
    )


def _longer_between(found: SpeedUp) -> tuple[str, str]:
    """How much longer a step takes, and its interval."""
    assert found.low is not None
    assert found.mid is not None
    assert found.high is not None
    return _longer(found.mid), _between(1 / found.high - 1, 1 / found.low - 1)


def gate_line(gate: Gate) -> str:
    """Returns what a gate says: "GATE PASSED (at most 5 % longer): why"."""
    return f"GATE {_OUTCOMES[gate.outcome]} (at most {gate.limit * 100:g} % longer): {gate.why}"


def _of_part(part: Metric) -> str:
    """Says how a part of a step changed that is shorter or longer for certain."""
    label, is_shorter = label_of(part.name.removeprefix(_PART)), part.verdict == FASTER
    return (
        f"{label.upper()} IS {'SHORTER' if is_shorter else 'LONGER'}, the step not for certain: "
        f"{label} takes {seconds(part.other or 0.0)} of a step instead of "
        f"{seconds(part.base or 0.0)}"
    )


def _of_starts(comparison: Comparison, starts: Metric) -> str:
    """Says what changed where passes begin, and what that is of BASE's training."""
    loop = comparison.metric("loop_step_s")
    base_s, other_s = starts.base or 0.0, max(starts.other or 0.0, 0.0)
    share = abs(other_s - base_s) / loop.base if loop is not None and loop.base else 0.0
    is_faster = starts.verdict == FASTER
    return (
        f"OTHER IS {'FASTER' if is_faster else 'SLOWER'} WHERE PASSES BEGIN: their starts add "
        f"{seconds(other_s)} to a mean step instead of {seconds(max(base_s, 0.0))}, which "
        f"{'saves' if is_faster else 'costs'} {percent(share)} of BASE's training"
    )


def _faster(comparison: Comparison) -> str:
    """Factors from 1.2 on, percent below: as people say it."""
    found, per = comparison.speedup, f"{comparison.measured_by}s"
    assert found.low is not None
    assert found.mid is not None
    assert found.high is not None
    if found.mid >= _FACTORS_FROM:
        between = f"{_times(found.low)} to {_times(found.high)}"
        return f"{_times(found.mid)} times as many {per} a second ({between}, 95 % sure)"
    between = _between(found.low - 1, found.high - 1)
    return f"{_share(found.mid - 1).lstrip('+')} % more {per} a second ({between}, 95 % sure)"


def _longer(speedup: float) -> str:
    """How much longer a step takes that is made so many times as fast."""
    change = 1 / speedup - 1
    if change >= _FACTORS_FROM:
        return f"{_times(1 + change)} times as long"
    share = _share(abs(change)).lstrip("+")
    return "as long" if share == "0" else f"{share} % {'longer' if change >= 0 else 'less time'}"


def _anything(low: float, high: float) -> str:
    """What a wide interval holds, in words: its signs alone are easily read over."""
    if high >= _FACTORS_FROM:
        return f"anything from {_between(low, high)} as long"
    return f"anything from {_longer(1 / (1 + low))} to {_longer(1 / (1 + high))}"


def _between(low: float, high: float) -> str:
    if high >= _FACTORS_FROM:
        return f"{_times(1 + low)} to {_times(1 + high)} times"
    return f"{_share(low)} to {_share(high)} %"


def _instead(comparison: Comparison) -> str:
    one = comparison.metric(f"{comparison.measured_by}_s")
    if one is None or one.base is None or one.other is None:
        return ""
    return f"{seconds(one.other)} instead of {seconds(one.base)}"


def unlike(comparison: Comparison) -> str | None:
    """Returns in what the sides are not comparable, in a sentence; None where they are."""
    found = comparison.of_kind(*UNLIKE)
    if [one.what for one in found] == [SCRIPT_TEXT]:
        return "THE SCRIPT WAS EDITED: the sides differ by all that its edits do"
    return f"NOT LIKE FOR LIKE: {'; '.join(one.text for one in found)}" if found else None


def unfinished(comparison: Comparison) -> str | None:
    """Returns which runs did not end as they should, in a sentence; None where all did."""
    found = comparison.of_kind(UNFINISHED)
    if not found:
        return None
    return f"NOT A WHOLE RUN: {'; '.join(one.text for one in found)}; steps until then are compared"


def remarks(comparison: Comparison) -> list[tuple[str, str]]:
    """Returns label and sentence of what to know: what was changed, what the interval rests on."""
    changed = comparison.of_kind(SETTING)
    told = [("Changed", ", ".join(one.text for one in changed))] if changed else []
    told += [
        ("Careful", one.text)
        for one in comparison.discrepancies
        if one.kind not in UNLIKE | {SETTING, UNFINISHED}
    ]
    borders = _with_starts(comparison)
    if borders is not None and comparison.starts_alone() is None:
        told.append(("Besides", borders))
    rests_on = basis(comparison)
    return told if rests_on is None else [*told, ("Noise", rests_on)]


def _with_starts(comparison: Comparison) -> str | None:
    """Steady steps leave out starts of passes: said where that hides a difference."""
    found = comparison.with_borders
    if found is None or found.mid is None or found.low is None or found.high is None:
        return None
    is_alike = found.is_undecided and comparison.speedup.is_undecided
    if is_alike or found.verdict in (UNKNOWN, comparison.speedup.verdict):
        return None
    per = "samples" if comparison.measured_by == BY_SAMPLE else "steps"
    between = f"{_times(found.low)} to {_times(found.high)}"
    told = f"{_times(found.mid)} times as many {per} a second ({between})"
    return f"with warm-up and the starts of passes it is {told}"


def _times(factor: float) -> str:
    return f"{factor:.2f}" if factor < 9.995 else three_digits(factor)


def side(runs: Sequence[ComparedRun]) -> str:
    """Returns a side's runs with their steps, in words."""
    steady = [run.steady_steps() for run in runs]
    least, most = min(steady), max(steady)
    steps = (
        counted(least, "steady step") if least == most else f"{least:,} to {most:,} steady steps"
    )
    names = ", ".join(run.name for run in runs)
    return f"{names} ({steps}{' each' if len(runs) > 1 and least == most else ''})"


def tables(comparison: Comparison, *, verbose: bool) -> list[Table]:
    """Returns the tables with at least one row, in the order in which they are read."""
    found = [
        Table("A steady step", _step_rows(comparison, verbose=verbose)),
        Table("Where it goes", _ledger_rows(comparison, verbose=verbose)),
        *_loader_tables(comparison, verbose=verbose),
        Table("Whole run", _plain_rows(comparison, "run", verbose=verbose)),
        Table("Machine", _plain_rows(comparison, "machine", verbose=verbose)),
    ]
    return [table for table in found if table.rows]


def _step_rows(comparison: Comparison, *, verbose: bool) -> list[Row]:
    by_sample = comparison.measured_by == BY_SAMPLE
    return [
        _with_doubt(
            _row(
                _STEP_LABELS.get(one.name, one.name),
                one,
                _rate if one.better == "higher" else seconds,
            ),
            is_judged=not by_sample or one.name in _OF_SAMPLES,
        )
        for one in comparison.in_group("step")
        if verbose
        or (one.name not in _ONLY_VERBOSE and not _is_little(comparison, one))
        or (by_sample and one.name == "sample_s")
    ]


def _is_little(comparison: Comparison, one: Metric) -> bool:
    """Whether it is work between passes that is nearly nothing, as in most runs."""
    if one.name != BETWEEN_PASSES:
        return False
    step = comparison.metric("step_s")
    whole = 0.0 if step is None else max(step.base or 0.0, step.other or 0.0)
    return max(one.base or 0.0, one.other or 0.0) < LEAST_SHARE * whole


def _with_doubt(row: Row, *, is_judged: bool) -> Row:
    """Says of a figure with an interval but no verdict that it is unsure."""
    is_unsure = is_judged and row.interval and row.verdict == UNKNOWN
    return replace(row, verdict=_UNSURE) if is_unsure else row


def _rate(value: float | None) -> str:
    return three_digits(value) if value is not None else NONE_GIVEN


def _ledger_rows(comparison: Comparison, *, verbose: bool) -> list[Row]:
    """Parts of a step in one unit, so that they add up; the change is in that unit too."""
    parts = comparison.in_group("ledger")
    whole = max((sum(value(one) or 0.0 for one in parts) for value in (_base, _other)), default=0.0)
    if whole <= 0:
        return []
    scale = step_scale(whole)
    parts = sorted(parts, key=lambda one: -max(_base(one) or 0.0, _other(one) or 0.0))
    columns = [
        rounded_parts([(value(one) or 0.0) / scale.factor for one in parts], scale.decimals)
        for value in (_base, _other)
    ]
    folded = [0, 0, 0]
    rows = []
    for index, one in enumerate(parts):
        in_base, in_other = columns[0][index], columns[1][index]
        if not verbose and max(_base(one) or 0, _other(one) or 0) < _FOLD_BELOW_SHARE * whole:
            folded = [folded[0] + 1, folded[1] + in_base, folded[2] + in_other]
            continue
        rows.append(
            Row(
                label_of(one.name.removeprefix(_PART)),
                scale.written(in_base),
                scale.written(in_other),
                _signed(scale.written(in_other - in_base)),
                _interval_in(one, scale),
                one.verdict,
            )
        )
    if folded[0]:
        rows.append(_sum_row(f"rest ({folded[0]} smaller)", folded[1], folded[2], scale))
    rows.append(_sum_row(f"total, {scale.unit}", sum(columns[0]), sum(columns[1]), scale))
    return rows


def _sum_row(label: str, in_base: int, in_other: int, scale: Scale) -> Row:
    change = _signed(scale.written(in_other - in_base))
    return Row(label, scale.written(in_base), scale.written(in_other), change, "", UNKNOWN)


def _base(metric: Metric) -> float | None:
    return metric.base


def _other(metric: Metric) -> float | None:
    return metric.other


def _signed(text: str) -> str:
    return text if text.startswith("-") or not text.strip("0.,") else f"+{text}"


def _loader_tables(comparison: Comparison, *, verbose: bool) -> list[Table]:
    """One table for each loader; on the short page that which feeds training."""
    found: dict[str, list[Row]] = {}
    for one in comparison.in_group("loader"):
        site, _, figure = one.name.removeprefix("loaders[").rpartition("].")
        write = _workers if figure == "num_workers" else seconds
        found.setdefault(site, []).append(_row(_LOADER_LABELS[figure], one, write))
    shown = found if verbose else dict(list(found.items())[:1])
    return [Table(f"Loader {os.path.basename(site)}", rows) for site, rows in shown.items()]


def _workers(value: float | None) -> str:
    return NONE_GIVEN if value is None else f"{value:g}"


def _plain_rows(comparison: Comparison, group: str, *, verbose: bool) -> list[Row]:
    return [
        _row(_RUN_LABELS.get(one.name, one.name), one, _writer(one.name))
        for one in comparison.in_group(group)
        if verbose or one.name not in _ONLY_VERBOSE
    ]


def _writer(name: str) -> Callable[[float | None], str]:
    writers: dict[str, Callable[[float | None], str]] = {
        "_share": percent,
        "_bytes": byte_count,
        "_wh": lambda value: f"{three_digits(value or 0.0)} Wh",
        "_per_wh": _rate,
        "_w": lambda value: f"{value or 0.0:.0f} W",
        "_busy": _rate,
        "steps": count,
        "_s": seconds,
    }
    endings = sorted((ending for ending in writers if name.endswith(ending)), key=len)
    return writers[endings[-1]] if endings else _rate


def _row(label: str, metric: Metric, write: Callable[[float | None], str]) -> Row:
    return Row(
        label,
        NONE_GIVEN if metric.base is None else write(metric.base),
        NONE_GIVEN if metric.other is None else write(metric.other),
        _change(metric.change),
        _interval(metric),
        metric.verdict,
    )


def _change(share: float | None) -> str:
    if share is None:
        return ""
    if share >= 9.995:
        return f"x {three_digits(share + 1)}"
    return f"{_share(share)} %"


def _interval(metric: Metric) -> str:
    if metric.low is None or metric.high is None:
        return ""
    if metric.high >= 99.95:
        return ""
    return f"{_share(metric.low)} to {_share(metric.high)} %"


def _interval_in(metric: Metric, scale: Scale) -> str:
    """The interval of a part in the unit of its column."""
    if metric.low is None or metric.high is None or metric.base is None:
        return ""
    bounds = [share * metric.base / scale.factor for share in (metric.low, metric.high)]
    low, high = (_signed(scale.written(round(bound * 10**scale.decimals))) for bound in bounds)
    return f"{low} to {high}"


def _share(share: float) -> str:
    """Whole percent, tenths where there is less than ten."""
    digits = f"{share * 100:+.1f}" if abs(share) < 0.0995 else f"{share * 100:+.0f}"
    return "0" if not digits.strip("+-0.") else digits
