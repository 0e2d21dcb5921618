"""A `tune` run's page: the answer, the change, every trial; nothing wider than the page."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from rich.cells import cell_len
from support.planted_trials import (
    FakeRunner,
    Planted,
    base_summary,
    plan_of,
    search_of,
    threads,
    workers,
)

from trainprof.analysis.statistics.speedup import NO_VISIBLE_DIFFERENCE
from trainprof.analysis.summary.device import Device
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.analysis.summary.tune import (
    BASELINE,
    BUDGET,
    CEILING,
    FAILED,
    FINISHED,
    LOADER_ALONE,
    Times,
)
from trainprof.report import tune
from trainprof.report.page import page as terminal
from trainprof.tune.results import summary_of_tune


def tuned(planted: Planted, budget_s: float = 600.0, **changes: object) -> RunSummary:
    plan = plan_of(workers(2), threads(1))
    found = search_of(FakeRunner(planted), lambda base, free_s: plan, budget_s=budget_s).run()
    found.runs = [replace(run, **changes) for run in found.runs]  # type: ignore[arg-type]
    return summary_of_tune(
        base_summary(), found, name="tune-x", directory="runs/tune-x", budget_s=budget_s
    )


FASTER = Planted(lambda o: 0.005 if "num_workers" in o else 0.010)
GPU = Device(0, "cuda:0", None, None, {}, None, None, 0)


def page(summary: RunSummary, width: int = 80) -> str:
    return terminal.render(summary, width=width, color=False)


def ended(how: str, *, failing: int = 0, tried: int = 2, **of_trials: Any) -> RunSummary:
    """Returns what two changes came to that were no faster, of which some failed."""
    names = ("torch_threads=1", "num_workers=2")[:failing]
    summary = tuned(Planted(lambda _: 0.01, failing=dict.fromkeys(names, FAILED)))
    assert summary.tuning is not None
    rows = [replace(row, **of_trials) if row.overrides else row for row in summary.trials]
    rows = [row for row in rows if tried or not row.overrides]
    return replace(summary, trials=rows, tuning=replace(summary.tuning, ended_by=how))


@pytest.mark.parametrize(
    ("summary", "begins"),
    [
        (tuned(FASTER), r"(2\.0|1\.9)\dx AS FAST with num_workers=2 \(1\.9"),
        (ended(FINISHED), "NOTHING WAS VISIBLY FASTER .* of 2 measured"),
        (ended(FINISHED, failing=1), "NOTHING WAS VISIBLY FASTER .* of 1 measured"),
        (ended(FINISHED, failing=2), "NO CHANGE COULD BE MEASURED, of 2 tried"),
        (ended(FINISHED, tried=0), "NOTHING TO TRY"),
        (ended(FINISHED, against=["x"], verdict="faster"), "NOTHING IS RECOMMENDED: "),
        (ended(BUDGET), "NOTHING FASTER WAS FOUND before the time was over"),
        (ended(BUDGET, failing=2), "NO CHANGE COULD BE MEASURED before the time was over"),
        (ended(BUDGET, tried=0), "NO CHANGE WAS TRIED before the time was over"),
    ],
)
def test_the_answer_stands_first(summary: RunSummary, begins: str) -> None:
    assert re.match(begins, tune.headline(summary))
    assert tune.headline(summary) in " ".join(page(summary).split())


@pytest.mark.parametrize(
    ("speedup", "verdict", "is_least", "said"),
    [
        ((1.9, 2.0, 2.1), "faster", False, "no change of loading can give more"),
        ((5.1, 21.2, 88.0), "faster", False, "no change of loading can give more"),
        ((1.2, 1.33, 1.4), "faster", True, "at the least"),
        ((0.9, 1.0, 1.1), NO_VISIBLE_DIFFERENCE, False, "loading does not hold it back"),
        ((0.9, 1.0, 1.1), NO_VISIBLE_DIFFERENCE, True, "what loading costs is not known"),
        ((0.7, 0.8, 0.9), "slower", False, "loading does not hold it back"),
        ((0.6, 1.01, 1.7), NO_VISIBLE_DIFFERENCE, False, "what loading costs is not known"),
        ((0.4, 3.9, 38.0), NO_VISIBLE_DIFFERENCE, False, "what loading costs is not known"),
    ],
)
@pytest.mark.parametrize("is_on_device", [True, False])
def test_of_the_ceiling_no_more_is_said_than_it_tells(
    speedup: tuple[float, float, float],
    verdict: str,
    is_least: bool,
    said: str,
    is_on_device: bool,
) -> None:
    summary = tuned(FASTER)
    row = next(row for row in summary.trials if row.name == CEILING)
    row = replace(row, speedup=Times(*speedup), verdict=verdict, is_least=is_least)
    devices = [GPU] if is_on_device else None
    of_it = replace(summary, trials=[row], recommended=None, devices=devices)
    told = dict(tune.remarks(of_it))["Ceiling"]
    assert said in told
    can_be_told = is_on_device and not is_least and "not known" not in said
    assert ("copies to the device" in told) is can_be_told


@pytest.mark.parametrize(
    ("interval", "shown"),
    [
        ((2.71, 2.97), "2.71-2.97x"),
        ((0.4, 38.0), "too noisy"),
        ((5.1, 88.0), "over 5.10x"),
        ((None, None), "-"),
    ],
)
def test_an_interval_that_is_too_wide_says_as_much(interval: Any, shown: str) -> None:
    assert tune.between(*interval) == shown


@pytest.mark.parametrize(
    ("change", "label"),
    [
        ({"needed_budget_s": 45.0}, "Budget"),
        ({"uncontained": ["wrote /data/x"]}, "Outside"),
        ({"unfinished": ["num_workers=8"]}, "Not tried"),
        ({"notes": ["x"]}, "Note"),
    ],
)
def test_what_there_is_to_know_has_its_label(change: dict[str, Any], label: str) -> None:
    plain = tuned(FASTER)
    assert plain.tuning is not None
    plain = replace(plain, tuning=replace(plain.tuning, notes=[]))
    assert label not in dict(tune.remarks(plain))
    assert plain.tuning is not None
    changed = replace(plain, tuning=replace(plain.tuning, **change))
    assert label in dict(tune.remarks(changed))


def test_a_row_says_how_a_trial_ended() -> None:
    planted = Planted(
        lambda o: 0.005 if "num_workers" in o else 1.0 if o else 0.010, failing={CEILING: FAILED}
    )
    words = {row.name: tune.result_word(row) for row in tuned(planted).trials}
    assert words["torch_threads=1"] == "slower (cut)"
    assert (words["num_workers=2"], words[CEILING], words[BASELINE]) == ("faster", FAILED, "")


def test_one_that_ran_out_of_time_says_how_to_go_on() -> None:
    told = page(tuned(replace(FASTER, steps=2000), budget_s=40.0))
    again = "trainprof tune --resume runs/tune-x train.py configs/example_config.py"
    assert again in " ".join(told.replace("\\\n", " ").split())


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_no_line_is_wider_than_the_page(width: int) -> None:
    lines = page(tuned(FASTER, peak_memory_bytes=3e9), width).splitlines()
    commands = [line for line in lines if "trainprof " in line]
    assert max(cell_len(line) for line in lines if line not in commands) <= width


def with_forecasts() -> RunSummary:
    """Returns a page on which one forecast was right, one wrong, and one neither."""
    planted = {
        CEILING: ((1.30, 1.62, 2.03), (0.95, 1.41), None),
        LOADER_ALONE: ((2.01, 3.29, 5.38), (1.90, 6.00), True),
        "num_workers=2": ((1.91, 1.98, 2.05), (1.20, 1.70), False),
        "torch_threads=1": ((0.96, 1.00, 1.04), None, None),
    }
    summary = tuned(FASTER, peak_memory_bytes=6.5e8)
    rows = [row for row in summary.trials if row.name in (BASELINE, *planted)]
    for index, row in enumerate(rows[1:], 1):
        times, predicted, held = planted[row.name]
        told = None if predicted is None else list(predicted)
        rows[index] = replace(
            row, speedup=Times(*times), predicted=told, held=held, steps_per_s=100 * times[1]
        )
    rows[0] = replace(rows[0], steps_per_s=100.0)
    best = summary.recommended
    assert best is not None
    tuning = replace(summary.tuning, notes=["how fast it is"], spent_s=80.0)
    return replace(
        summary,
        trials=rows,
        tuning=tuning,
        recommended=replace(best, speedup=Times(1.91, 1.98, 2.05)),
    )


def test_each_row_shows_whether_its_forecast_was_right(golden: Callable[[str, str], None]) -> None:
    golden("tune_80.txt", page(with_forecasts()))


def test_a_forecast_of_what_could_not_be_measured_or_is_a_bound_has_no_mark() -> None:
    row = next(row for row in with_forecasts().trials if row.name == CEILING)
    assert tune.cells(row)[4] == "0.95-1.41x ?"
    for bare in (replace(row, is_least=True), replace(row, speedup=None, outcome=FAILED)):
        assert tune.cells(bare)[4] == "0.95-1.41x"


def test_markdown_has_the_same_table() -> None:
    told = tune.render_markdown(tuned(FASTER))
    assert re.match(r"\*\*(2\.0|1\.9)", told)
    assert told.count("\n| ") == 2 + 6 - 1
