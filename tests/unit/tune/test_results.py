"""What the summary says of a search."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.planted_trials import FakeRunner, Planted, base_summary, plan_of, search_of, workers

from trainprof.analysis.model.optimizer_builder import OptimizerCall
from trainprof.analysis.summary.json_text import from_jsonable, to_jsonable
from trainprof.analysis.summary.tune import (
    BASELINE,
    CEILING,
    CUT_SHORT,
    FINISHED,
    LOADER_ALONE,
    OK,
    OUT_OF_MEMORY,
    Times,
)
from trainprof.tune.candidate import Candidate
from trainprof.tune.measurements import Measurements
from trainprof.tune.results import (
    recommended_of,
    summary_of_tune,
    trials_of,
    whether_held,
)


def found_with(planted: Planted, *candidates: object, **changes: object) -> Measurements:
    plan = plan_of(*(candidates or (workers(2), workers(4))))  # type: ignore[arg-type]
    found = search_of(FakeRunner(planted), lambda base, free_s: plan, budget_s=600.0).run()
    found.runs = [replace(run, **changes) for run in found.runs]  # type: ignore[arg-type]
    return found


def twice(overrides: object) -> float:
    return 0.005 if overrides else 0.010


def summary_of(found: Measurements) -> object:
    return summary_of_tune(
        base_summary(), found, name="tune-x", directory="runs/tune-x", budget_s=600.0
    )


def test_the_recommended_setting_is_the_change_to_make() -> None:
    summary = summary_of(found_with(Planted(twice)))
    assert summary.recommended.overrides == {"num_workers": 2}
    assert summary.recommended.change == ["train.py:9: DataLoader(..., num_workers=2)"]
    assert summary.recommended.speedup.low < 2.0 < summary.recommended.speedup.high
    assert summary.tuning.ended_by == FINISHED
    assert from_jsonable(to_jsonable(summary)) == summary


def test_a_saved_run_with_what_is_not_kept_any_more_is_read() -> None:
    summary = summary_of(found_with(Planted(twice)))
    saved = to_jsonable(summary)
    saved["tuning"] |= {"predictions": 3, "held": 2}
    saved["trials"][1] |= {"run_speedup": None, "conditions": {"cpu_mhz": 2e3}, "read_bytes": 7}
    assert from_jsonable(saved) == summary


def test_the_change_of_several_loaders_is_told_line_by_line():
    two = Candidate(
        "workers",
        {"num_workers": {"train.py:9": 3, "data.py:5": 2}, "persistent_workers": True},
        (1.5, 2.5),
        sites=("train.py:9", "data.py:5"),
    )
    summary = summary_of(found_with(Planted(twice), two))
    assert summary.recommended.name == "num_workers=3+2,persistent_workers=True"
    assert summary.recommended.sites == ["train.py:9", "data.py:5"]
    assert summary.recommended.change == [
        "train.py:9: DataLoader(..., num_workers=3, persistent_workers=True)",
        "data.py:5: DataLoader(..., num_workers=2, persistent_workers=True)",
    ]
    assert from_jsonable(to_jsonable(summary)) == summary


def test_where_a_package_builds_the_loader_the_change_is_that_of_its_own_settings():
    found = found_with(Planted(twice))
    base = base_summary()
    loader = replace(base.loaders[0], built_by="transformers")
    told = recommended_of(found, trials_of(found), replace(base, loaders=[loader]))
    assert told.change == ["train.py:9: TrainingArguments(..., dataloader_num_workers=2)"]


def test_rows_stand_in_the_order_in_which_they_were_tried() -> None:
    rows = trials_of(found_with(Planted(twice)))
    assert [row.name for row in rows[:3]] == [BASELINE, CEILING, LOADER_ALONE]
    base, ceiling = rows[0], rows[1]
    assert (base.speedup.mid, base.overrides) == (1.0, {})
    assert ceiling.overrides == {}
    assert abs(ceiling.speedup.mid - 2.5) < 0.1
    assert ceiling.predicted == [1.5, 4.0]


def test_whether_forecasts_held_is_counted() -> None:
    summary = summary_of(found_with(Planted(twice), workers(2), workers(4, 3.0, 4.0)))
    held = {row.name: row.held for row in summary.trials}
    assert held["num_workers=2"] is True
    assert held["num_workers=4"] is False
    assert held[BASELINE] is None


def test_a_forecast_of_what_is_too_noisy_is_neither_right_nor_wrong() -> None:
    found = found_with(Planted(twice))
    slow = next(run for run in found.runs if run.trial.name == BASELINE)
    pace = slow.pace
    slower = replace(pace, mean_s=pace.mean_s * 9, steps_s=pace.steps_s * 9)
    found.runs = [run for run in found.runs if run.trial.name != BASELINE]
    found.runs = [slow, replace(slow, number=2, pace=slower, training_pace=slower), *found.runs]
    row = next(row for row in trials_of(found) if row.name == CEILING)
    assert row.speedup is not None
    assert (row.predicted, row.held) == ([1.5, 4.0], None)
    # As noisy as it is, it tells that this one was wrong.
    found.predicted[CEILING] = (1e6, 2e6)
    assert next(row for row in trials_of(found) if row.name == CEILING).held is False


@pytest.mark.parametrize(
    ("measured", "predicted", "held"),
    [
        ((1.5, 1.6, 1.7), (1.4, 2.0), True),
        ((1.4, 1.7, 2.0), (1.4, 2.0), True),
        ((0.9, 1.1, 1.3), (1.4, 2.0), False),
        ((2.1, 2.4, 2.8), (1.4, 2.0), False),
        # Across an edge of it, with the middle inside or outside.
        ((1.3, 1.5, 1.7), (1.4, 2.0), None),
        ((1.2, 1.3, 1.42), (1.4, 2.0), None),
        ((1.3, 1.62, 2.03), (0.95, 1.41), None),
        # Around it: as rough a hit tells as little as such a miss.
        ((0.8, 1.6, 2.8), (1.4, 2.0), None),
        ((0.63, 1.02, 1.65), (0.64, 1.67), None),
        # How well it is known is not known.
        ((None, 1.6, None), (1.4, 2.0), None),
        ((None, 1.3, None), (1.4, 2.0), None),
    ],
)
def test_only_an_interval_wholly_inside_or_outside_tells_whether_a_forecast_was_right(
    measured: tuple[float | None, float, float | None],
    predicted: tuple[float, float],
    held: bool | None,
) -> None:
    assert whether_held(Times(*measured), predicted) is held


def test_losses_tell_whether_a_change_alters_the_numbers() -> None:
    found = found_with(Planted(twice), losses=(1.0, 0.5, 0.25))
    altered = [
        replace(run, losses=(1.0, 0.5, 0.3)) if run.trial.name == "num_workers=4" else run
        for run in found.runs
    ]
    found.runs = altered
    rows = {row.name: row.losses for row in trials_of(found)}
    assert rows["num_workers=2"] == "same"
    assert rows["num_workers=4"] == "other"
    assert rows[BASELINE] is None


def test_of_a_script_whose_losses_differ_by_themselves_nothing_is_said() -> None:
    found = found_with(Planted(twice))
    found.runs = [replace(run, losses=(1.0, 0.5 + k, 0.25)) for k, run in enumerate(found.runs)]
    assert all(row.losses is None for row in trials_of(found))


def test_a_run_with_a_cold_page_cache_is_not_compared() -> None:
    found = found_with(Planted(twice), read_bytes=0.0)
    slow = next(run for run in found.runs if run.trial.name == BASELINE)
    cold = replace(slow, read_bytes=float(slow.steps * (8 << 20)))
    found.runs = [cold if run is slow else run for run in found.runs]
    summary = summary_of(found)
    assert any(cold.directory in note and "not compared" in note for note in summary.tuning.notes)


def test_a_run_that_something_else_held_up_is_not_compared() -> None:
    found = found_with(Planted(twice))
    plain = {row.name: row for row in trials_of(found)}
    base = next(run for run in found.runs if run.trial.name == BASELINE)
    stalled = replace(base, pace=replace(base.pace, mean_s=20 * base.pace.mean_s))
    found.runs = [stalled if run is base else run for run in found.runs]
    summary = summary_of(found)
    assert any(base.directory in note and "twice as long" in note for note in summary.tuning.notes)
    rows = {row.name: row for row in summary.trials}
    assert rows[BASELINE].steps_per_s == pytest.approx(plain[BASELINE].steps_per_s, rel=0.1)
    seen, before = rows["num_workers=2"].speedup, plain["num_workers=2"].speedup
    assert seen.mid == pytest.approx(before.mid, rel=0.1)


def test_a_setting_of_the_optimizer_is_told_at_its_line() -> None:
    fused = Candidate("optimizer", {"fused": True}, None)
    planted = Planted(lambda o: 0.005 if o else 0.010)
    for optimizers, told in (
        (
            (OptimizerCall("Adam", "train.py:5"),),
            ["train.py:5: torch.optim.Adam(..., fused=True)"],
        ),
        (
            (OptimizerCall("AdamW", "train.py:9", "transformers"),),
            ['train.py:9: TrainingArguments(..., optim="adamw_torch_fused")'],
        ),
        ((), ["the optimizer: fused=True"]),
    ):
        plan = replace(plan_of(fused), optimizers=optimizers)
        found = search_of(FakeRunner(planted), lambda *_, plan=plan: plan, budget_s=600.0).run()
        recommended = recommended_of(found, trials_of(found), base_summary())
        assert recommended.change == told


def test_a_failed_trial_has_no_speed() -> None:
    planted = Planted(twice, failing={"num_workers=4": OUT_OF_MEMORY})
    row = next(row for row in trials_of(found_with(planted)) if row.name == "num_workers=4")
    assert (row.outcome, row.speedup, row.steps_per_s) == (OUT_OF_MEMORY, None, None)


def test_a_last_baseline_that_was_cut_short_hides_no_earlier_one():
    found = found_with(Planted(twice))
    last = found.runs[-1]
    assert last.trial.name == BASELINE
    found.runs[-1] = replace(last, outcome=CUT_SHORT, pace=None, was_cut=True)
    base = trials_of(found)[0]
    assert (base.outcome, base.was_cut) == (OK, False)
    assert base.runs == len(found.of(BASELINE)) - 1


def test_what_ctrl_c_cut_off_is_no_result() -> None:
    found = found_with(Planted(twice, interrupted_at=4))
    assert [row.name for row in trials_of(found)] == [BASELINE, CEILING]
    assert summary_of(found).recommended is None


def test_what_trials_did_outside_is_listed_once() -> None:
    assert summary_of(found_with(Planted(twice))).tuning.uncontained == []
    found = found_with(Planted(twice), written=("/data/log", "/data/x"))
    assert summary_of(found).tuning.uncontained == ["wrote /data/log", "wrote /data/x"]
