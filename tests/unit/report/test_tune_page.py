"""A `tune` run's page: the answer, the change, every trial; nothing wider than the page."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from rich.cells import cell_len
from support import summaries
from support.planted_trials import (
    FakeRunner,
    Planted,
    base_summary,
    plan_of,
    search_of,
    threads,
    workers,
)

from trainprof.analysis.code_figures import HotLine
from trainprof.analysis.device_figures import Device
from trainprof.analysis.speedup import NO_VISIBLE_DIFFERENCE
from trainprof.analysis.summary import RunSummary
from trainprof.analysis.tuning import BASELINE, BUDGET, CEILING, FAILED, LOADER_ALONE, Times
from trainprof.experiments.results import summary_of_tune
from trainprof.report import terminal, tune_markdown


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


def test_the_answer_and_the_change_stand_first() -> None:
    told = page(tuned(FASTER)).splitlines()
    answer = next(index for index, line in enumerate(told) if "x AS FAST" in line)
    assert re.match(r"(2\.0|1\.9)\dx AS FAST with num_workers=2 \(1\.9", told[answer])
    assert told[answer + 1] == "  train.py:9: DataLoader(..., num_workers=2)"


def test_what_loading_can_give_at_most_is_said() -> None:
    told = " ".join(page(tuned(FASTER)).split())
    assert "with batches that cost nothing it is 2." in told
    assert "no change of loading can give more" in told
    assert "without any training it makes batches 1.6" in told


def test_where_free_data_is_no_faster_loading_is_cleared() -> None:
    told = " ".join(page(tuned(Planted(lambda _: 0.01, free_s=0.01))).split())
    assert "NOTHING WAS VISIBLY FASTER" in told
    assert "loading does not hold it back" in told
    assert "other memory is in use" not in told
    assert "AS FAST" not in told


@pytest.mark.parametrize(
    ("failed", "said"),
    [
        (set(), "NOTHING WAS VISIBLY FASTER than the script as it is, of 2 tried"),
        ({"torch_threads=1"}, "as it is, of 1 measured (1 more could not be)"),
        ({"torch_threads=1", "num_workers=2"}, "NO CHANGE COULD BE MEASURED, of 2 tried"),
    ],
)
def test_only_what_was_measured_is_said_to_be_no_faster(failed: set[str], said: str) -> None:
    planted = Planted(lambda _: 0.01, failing=dict.fromkeys(failed, FAILED))
    told = " ".join(page(tuned(planted)).split())
    assert said in told
    assert ("VISIBLY FASTER" in told) == (len(failed) < 2)


def test_before_the_time_is_over_too() -> None:
    planted = Planted(lambda _: 0.01, failing={"torch_threads=1": FAILED, "num_workers=2": FAILED})
    summary = tuned(planted)
    short = replace(summary, tuning=replace(summary.tuning, ended_by=BUDGET))
    told = " ".join(page(short).split())
    assert "NO CHANGE COULD BE MEASURED before the time was over" in told


def test_where_free_data_makes_steps_slower_it_is_said_how_that_can_be() -> None:
    told = " ".join(page(tuned(Planted(lambda _: 0.01, free_s=0.012))).split())
    assert "loading does not hold it back; its steps were slower, as the same work can be" in told


def test_where_no_setting_gives_what_free_batches_do_their_line_is_told() -> None:
    summary = replace(tuned(Planted(lambda _: 0.01, free_s=0.005)), recommended=None)
    line = HotLine("making batches", "data.py:12", "decode", [], 90, 0.9, 1.0)
    loader = summaries.loader("train.py:9", role="training", hot_lines=[line])
    told = " ".join(page(replace(summary, loaders=[loader])).split())
    assert "no setting gave it, cheaper samples may: look at data.py:12 (decode) first" in told
    told = " ".join(page(replace(summary, loaders=[replace(loader, hot_lines=[])])).split())
    assert "cheaper samples may: trainprof lines SCRIPT shows which" in told


def test_no_setting_is_said_not_to_give_it_that_was_not_measured() -> None:
    summary = replace(tuned(Planted(lambda _: 0.01, free_s=0.005)), recommended=None)
    unfinished = ["num_workers=8"]
    short = replace(summary, tuning=replace(summary.tuning, unfinished=unfinished))
    told = " ".join(page(short).split())
    assert "a setting that may give some of it was not tried yet" in told
    assert "cheaper samples" not in told
    failed = [replace(row, outcome=FAILED) if row.overrides else row for row in summary.trials]
    told = " ".join(page(replace(summary, trials=failed)).split())
    assert "no setting of loading could be measured, cheaper samples may" in told
    bare = [row for row in summary.trials if not row.overrides]
    told = " ".join(page(replace(summary, trials=bare)).split())
    assert "no setting of loading is tried, cheaper samples may" in told


def test_on_a_device_copies_to_it_are_not_counted() -> None:
    for planted, said in (
        (FASTER, "no change of how batches are made can give more"),
        (Planted(lambda _: 0.01, free_s=0.01), "making them does not hold it back"),
    ):
        summary = replace(tuned(planted), devices=[GPU])
        told = " ".join(page(summary).split())
        assert f"{said}; copies to the device are not counted in it" in told
        assert "no change of loading can give more" not in told
        assert "loading does not hold it back" not in told
        on_cpu = " ".join(page(replace(summary, devices=None)).split())
        assert said not in on_cpu
        assert "copies to the device" not in on_cpu


@pytest.mark.parametrize(
    ("speedup", "verdict", "said"),
    [
        ((1.2, 1.33, 1.4), "faster", "it is at least 1.33x as fast: giving copies of batches"),
        ((0.9, 1.0, 1.1), NO_VISIBLE_DIFFERENCE, "it may be faster or not: giving copies of"),
        ((0.8, 1.3, 2.1), NO_VISIBLE_DIFFERENCE, "what loading costs is not known"),
    ],
)
def test_of_free_data_that_a_device_may_have_hidden_the_least_is_said(
    speedup: tuple[float, float, float], verdict: str, said: str
) -> None:
    summary = noisy_ceiling(*speedup, verdict)
    rows = [replace(row, is_least=row.name == CEILING) for row in summary.trials]
    told = " ".join(page(replace(summary, trials=rows, devices=[GPU])).split())
    assert said in told
    assert "can give more" not in told
    assert "does not hold it back" not in told


def noisy_ceiling(low: float, mid: float, high: float, verdict: str) -> RunSummary:
    summary = tuned(FASTER)
    rows = [
        replace(row, speedup=Times(low, mid, high), verdict=verdict) if row.name == CEILING else row
        for row in summary.trials
    ]
    return replace(summary, trials=rows)


@pytest.mark.parametrize(
    ("interval", "verdict", "said", "shown"),
    [
        ((0.4, 3.9, 38.0), NO_VISIBLE_DIFFERENCE, "what loading costs is not known", "too noisy"),
        ((0.6, 1.01, 1.7), NO_VISIBLE_DIFFERENCE, "up to 1.70x", "0.60-1.70x"),
        ((5.1, 21.2, 88.0), "faster", "no change of loading can give more", "over 5.10x"),
    ],
)
def test_of_noisy_trials_no_more_is_said_than_they_tell(
    interval: tuple[float, float, float], verdict: str, said: str, shown: str
) -> None:
    told = " ".join(page(noisy_ceiling(*interval, verdict), 120).split())
    assert said in told
    assert shown in told
    assert "does not hold it back" not in told
    assert ("no change of loading can give more" in told) is (verdict == "faster")


def test_a_failed_trial_is_told_with_its_reason() -> None:
    planted = replace(FASTER, failing={"torch_threads=1": FAILED})
    told = " ".join(page(tuned(planted)).split())
    assert "torch_threads=1: failed: ValueError; what it wrote is in runs/tune-x/trials/" in told
    assert "torch_threads=1.1/console" in told


def out_of_time() -> RunSummary:
    summary = tuned(FASTER)
    assert summary.tuning is not None
    tuning = replace(summary.tuning, ended_by=BUDGET, needed_budget_s=45.0)
    rows = [row for row in summary.trials if row.name == BASELINE]
    return replace(summary, trials=rows, recommended=None, tuning=tuning)


def test_a_budget_in_which_no_change_fits_is_told_with_one_that_does() -> None:
    told = " ".join(page(out_of_time()).split())
    assert "NO CHANGE WAS TRIED before the time was over" in told
    assert "a baseline and one change need about 45.0 s (--budget 45s)" in told
    assert "Budget" not in page(tuned(FASTER, budget_s=120.0))
    assert "Budget" not in page(tuned(FASTER))


def test_a_trial_that_was_ended_by_time_says_so_in_its_row() -> None:
    slow = Planted(lambda o: 0.005 if "num_workers" in o else 1.0 if o else 0.010)
    lines = page(tuned(slow)).splitlines()
    row = next(line for line in lines if line.startswith("torch_threads=1"))
    assert row.endswith("slower (cut)")
    told = " ".join(" ".join(lines).split())
    assert "torch_threads=1: its time was over before it was done" in told
    assert "(cut)" not in page(tuned(FASTER))


def test_one_that_ran_out_of_time_says_how_to_go_on() -> None:
    told = page(tuned(replace(FASTER, steps=2000), budget_s=40.0))
    again = "trainprof tune --resume runs/tune-x train.py configs/example_config.py"
    assert again in " ".join(told.replace("\\\n", " ").split())


def test_what_trials_did_outside_is_listed_a_few_by_name() -> None:
    assert "Outside" not in page(tuned(FASTER))
    written = tuple(f"/data/{number}" for number in range(4))
    told = page(tuned(FASTER, written=written, connections=("10.0.0.7 port 443",)))
    said = " ".join(told.split())
    assert "Trials also wrote /data/0; wrote /data/1; " in said
    assert "; connected to 10.0.0.7 port 443" in said
    assert "more" not in said.partition("Trials also")[2].partition("443")[0]
    many = tuple(f"/data/{number}" for number in range(12))
    said = " ".join(page(tuned(FASTER, written=many)).split())
    assert "wrote /data/4; and 7 more" in said
    assert "/data/5" not in said


def test_one_that_ran_out_of_time_before_any_change_says_so() -> None:
    told = page(out_of_time())
    assert "NO CHANGE WAS TRIED before the time was over" in told


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_no_line_is_wider_than_the_page(width: int) -> None:
    figures = {"peak_memory_bytes": 3e9, "cpu_percent": 187.0}
    lines = page(tuned(FASTER, figures=figures), width).splitlines()
    commands = [line for line in lines if "trainprof " in line]
    assert max(cell_len(line) for line in lines if line not in commands) <= width


def test_at_80_columns_the_forecast_stands_beside_what_came() -> None:
    told = page(tuned(FASTER, figures={"peak_memory_bytes": 3e9, "cpu_percent": 187.0}))
    heading = next(line for line in told.splitlines() if line.startswith("Trial"))
    assert "95 % sure" in heading
    assert "predicted" in heading


def with_forecasts() -> RunSummary:
    """Returns a page on which one forecast was right, one wrong, and one neither."""
    planted = {
        CEILING: ((1.30, 1.62, 2.03), (0.95, 1.41), None),
        LOADER_ALONE: ((2.01, 3.29, 5.38), (1.90, 6.00), True),
        "num_workers=2": ((1.91, 1.98, 2.05), (1.20, 1.70), False),
        "torch_threads=1": ((0.96, 1.00, 1.04), None, None),
    }
    summary = tuned(FASTER, figures={"peak_memory_bytes": 6.5e8})
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
    tuning = replace(summary.tuning, predictions=2, held=1, notes=["how fast it is"], spent_s=80.0)
    return replace(
        summary,
        trials=rows,
        tuning=tuning,
        recommended=replace(best, speedup=Times(1.91, 1.98, 2.05)),
    )


def test_each_row_shows_whether_its_forecast_was_right(golden: Callable[[str, str], None]) -> None:
    golden("tune_80.txt", page(with_forecasts()))


def test_what_was_not_told_of_a_forecast_is_counted_beside_what_was() -> None:
    told = " ".join(page(with_forecasts()).split())
    assert "0.95-1.41x ?" in told
    assert "1.90-6.00x =" in told
    assert "1.20-1.70x !" in told
    assert "1 right (=: measured wholly inside), 1 wrong (!: wholly outside), 1 not told" in told


def test_where_no_trial_tells_of_a_forecast_none_is_said_to_be_right() -> None:
    summary = with_forecasts()
    rows = [replace(row, held=None) for row in summary.trials]
    tuning = replace(summary.tuning, predictions=0, held=0)
    told = " ".join(page(replace(summary, trials=rows, tuning=tuning)).split())
    assert "0 right (=: measured wholly inside), 0 wrong (!: wholly outside), 3 not told" in told


def test_a_forecast_of_what_could_not_be_measured_or_is_a_bound_has_no_mark() -> None:
    summary = with_forecasts()
    bare = [replace(row, held=None, is_least=True) for row in summary.trials]
    lost = [replace(row, held=None, speedup=None, outcome=FAILED) for row in summary.trials]
    for rows in (bare, lost):
        tuning = replace(summary.tuning, predictions=0, held=0)
        told = page(replace(summary, trials=rows, tuning=tuning, recommended=None))
        assert "0.95-1.41x  " in told
        assert "Forecasts" not in told


def test_losses_that_are_alike_are_not_said_to_be_so_to_the_last_digit() -> None:
    told = " ".join(page(tuned(FASTER, losses=(1.0, 0.5, 0.25))).split())
    assert "the first ones are those of the script as it is, to about six digits" in told


def test_markdown_has_the_same_table() -> None:
    told = tune_markdown.render(tuned(FASTER))
    assert re.match(r"\*\*(2\.0|1\.9)", told)
    assert told.count("\n| ") == 2 + 6 - 1
