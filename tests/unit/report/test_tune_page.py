"""A `tune` run's page: the answer, the change, every trial; nothing wider than the page."""

from __future__ import annotations

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
from trainprof.report.text.layout import Page
from trainprof.tune.results import summary_of_tune


def tuned(planted: Planted, **changes: Any) -> RunSummary:
    plan, budget_s = plan_of(workers(2), threads(1)), 600.0
    search = search_of(FakeRunner(planted), lambda base, free_s: plan, budget_s=budget_s)
    measurements = search.run()
    measurements.runs = [replace(run, **changes) for run in measurements.runs]
    return summary_of_tune(
        base_summary(), measurements, name="tune-x", directory="runs/tune-x", budget_s=budget_s
    )


LEFT_RUNNING = "processes that the script leaves running are ended with each trial: tensorboard"
FASTER = Planted(lambda o: 0.005 if "num_workers" in o else 0.010)
GPU = Device(0, "cuda:0", None, None, {}, None, None, 0)


def page(summary: RunSummary, width: int = 80) -> str:
    return terminal.render(summary, Page(width))


def ended(how: str, *, failing: int = 0, tried: int = 2, **of_trials: Any) -> RunSummary:
    """Returns what two changes came to that were no faster, of which some failed."""
    names = ("torch_threads=1", "num_workers=2")[:failing]
    summary = tuned(Planted(lambda _: 0.01, failing=dict.fromkeys(names, FAILED)))
    rows = [replace(row, **of_trials) if row.overrides else row for row in summary.trials]
    rows = [row for row in rows if tried or not row.overrides]
    return replace(summary, trials=rows, tuning=replace(summary.tuning, ended_by=how))


def ceiling_words(times, verdict, is_least, is_on_device):
    summary = tuned(FASTER)
    row = next(row for row in summary.trials if row.name == CEILING)
    row = replace(row, speedup=Times(*times), verdict=verdict, is_least=is_least)
    devices = [GPU] if is_on_device else None
    bound = replace(summary, trials=[row], recommended=None, devices=devices)
    return dict(tune.remarks(bound))["Ceiling"]


def remark(label: str, **changes: Any) -> str:
    summary = tuned(FASTER)
    plain = replace(summary, tuning=replace(summary.tuning, notes=[]))
    assert label not in dict(tune.remarks(plain))
    changed = replace(plain, tuning=replace(summary.tuning, **{"notes": [], **changes}))
    return dict(tune.remarks(changed))[label]


def test_what_is_said_of_the_search(gallery):
    no_difference = NO_VISIBLE_DIFFERENCE
    bounds = [
        ((1.9, 2.0, 2.1), "faster", False),
        ((5.1, 21.2, 88.0), "faster", False),
        ((1.2, 1.33, 1.4), "faster", True),
        ((0.9, 1.0, 1.1), no_difference, False),
        ((0.9, 1.0, 1.1), no_difference, True),
        ((0.7, 0.8, 0.9), "slower", False),
        ((0.6, 1.01, 1.7), no_difference, False),
        ((0.4, 3.9, 38.0), no_difference, False),
    ]
    gallery(
        "tune_words.txt",
        {
            "faster": tune.headline(tuned(FASTER)),
            "no faster": tune.headline(ended(FINISHED)),
            "one failed": tune.headline(ended(FINISHED, failing=1)),
            "both failed": tune.headline(ended(FINISHED, failing=2)),
            "none tried": tune.headline(ended(FINISHED, tried=0)),
            "one refused": tune.headline(ended(FINISHED, against=["x"], verdict="faster")),
            "probably": tune.headline(ended(BUDGET, speedup=Times(0.9, 3.0, 9.0))),
            "unclear": tune.headline(ended(BUDGET, speedup=Times(0.4, 2.2, 12.0))),
            "out of time": tune.headline(ended(BUDGET)),
            "out of time, both failed": tune.headline(ended(BUDGET, failing=2)),
            "out of time, none tried": tune.headline(ended(BUDGET, tried=0)),
            **{
                f"ceiling {bound}, on device: {is_on_device}": ceiling_words(*bound, is_on_device)
                for bound in bounds
                for is_on_device in (False, True)
            },
            "budget": remark("Budget", needed_budget_s=45.0),
            "files": remark("Files", uncontained=["wrote /data/x"]),
            "not tried": remark("Not tried", unfinished=["num_workers=8"]),
            "note": remark("Note", notes=["x"]),
        },
    )


def test_an_interval_that_is_too_wide_says_as_much():
    assert tune.between(2.71, 2.97) == "2.71-2.97x"
    assert tune.between(0.4, 38.0) == "too noisy"
    assert tune.between(5.1, 88.0) == "over 5.10x"
    assert tune.between(None, None) == "-"


def test_a_row_says_how_a_trial_ended():
    planted = Planted(
        lambda o: 0.005 if "num_workers" in o else 1.0 if o else 0.010, failing={CEILING: FAILED}
    )
    words = {row.name: tune.result_word(row) for row in tuned(planted).trials}
    assert words["torch_threads=1"] == "slower (cut)"
    assert (words["num_workers=2"], words[CEILING], words[BASELINE]) == ("faster", FAILED, "")


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_no_line_is_wider_than_the_page(width):
    lines = page(tuned(FASTER, peak_memory_bytes=3e9), width).splitlines()
    assert max(cell_len(line) for line in lines if "trainprof " not in line) <= width


def with_forecasts() -> RunSummary:
    """Returns a page on which one forecast was right, one wrong, and one neither."""
    planted = {
        CEILING: ((2.05, 2.31, 2.60), (1.70, 2.40), None),
        LOADER_ALONE: ((1.60, 1.76, 1.94), (1.50, 2.10), True),
        "num_workers=2": ((1.91, 1.98, 2.05), (1.20, 1.70), False),
        "torch_threads=1": ((0.96, 1.00, 1.04), None, None),
    }
    summary = tuned(FASTER, peak_memory_bytes=6.5e8)
    rows = [row for row in summary.trials if row.name in (BASELINE, *planted)]
    rows[0] = replace(rows[0], steps_per_s=100.0)
    for index, row in enumerate(rows[1:], 1):
        times, forecast, held = planted[row.name]
        predicted = None if forecast is None else list(forecast)
        speedup, steps_per_s = Times(*times), 100 * times[1]
        rows[index] = replace(
            row, speedup=speedup, predicted=predicted, held=held, steps_per_s=steps_per_s
        )
    return replace(
        summary,
        trials=rows,
        tuning=replace(summary.tuning, notes=[LEFT_RUNNING], spent_s=80.0),
        recommended=replace(summary.recommended, speedup=Times(1.91, 1.98, 2.05)),
    )


def test_each_row_shows_whether_its_forecast_was_right(golden):
    golden("tune_80.txt", page(with_forecasts()))
    golden("tune.md", tune.render_markdown(with_forecasts()))


def test_a_forecast_of_what_could_not_be_measured_or_is_a_bound_has_no_mark():
    row = next(row for row in with_forecasts().trials if row.name == CEILING)
    assert tune.cells(row)[4] == "1.70-2.40x ?"
    for bare in (replace(row, is_least=True), replace(row, speedup=None, outcome=FAILED)):
        assert tune.cells(bare)[4] == "1.70-2.40x"
