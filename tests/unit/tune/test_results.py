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
    Times,
)
from trainprof.tune.candidate import Candidate
from trainprof.tune.results import summary_of_tune, trials_of, whether_held


def twice(overrides):
    return 0.005 if overrides else 0.010


def searched(*candidates, alter=lambda trial, number: {}, optimizers=(), **planted):
    plan = replace(plan_of(*(candidates or (workers(2), workers(4)))), optimizers=optimizers)
    runner = FakeRunner(Planted(twice, **planted), alter)
    return search_of(runner, lambda base, free_s: plan, budget_s=600.0).run()


def summary_of(measurements, **loader):
    base = base_summary()
    base = replace(base, loaders=[replace(base.loaders[0], **loader), *base.loaders[1:]])
    return summary_of_tune(
        base, measurements, name="tune-x", directory="runs/tune-x", budget_s=600.0
    )


def rows_of(measurements):
    return {row.name: row for row in trials_of(measurements)}


@pytest.mark.parametrize(
    ("candidate", "optimizers", "loader", "change"),
    [
        (workers(2), (), {}, ["train.py:9: DataLoader(..., num_workers=2)"]),
        # Where a package builds it, the change is that of its own settings.
        (
            workers(2),
            (),
            {"built_by": "transformers"},
            ["train.py:9: TrainingArguments(..., dataloader_num_workers=2)"],
        ),
        (
            Candidate(
                "workers",
                {"num_workers": {"train.py:9": 3, "data.py:5": 2}, "persistent_workers": True},
                (1.5, 2.5),
                sites=("train.py:9", "data.py:5"),
            ),
            (),
            {},
            [
                "train.py:9: DataLoader(..., num_workers=3, persistent_workers=True)",
                "data.py:5: DataLoader(..., num_workers=2, persistent_workers=True)",
            ],
        ),
        (
            Candidate("optimizer", {"fused": True}, None),
            (OptimizerCall("Adam", "train.py:5"),),
            {},
            ["train.py:5: torch.optim.Adam(..., fused=True)"],
        ),
        (
            Candidate("optimizer", {"fused": True}, None),
            (OptimizerCall("AdamW", "train.py:9", "transformers"),),
            {},
            ['train.py:9: TrainingArguments(..., optim="adamw_torch_fused")'],
        ),
        (Candidate("optimizer", {"fused": True}, None), (), {}, ["optimizer: fused=True"]),
        (
            Candidate(
                "numbers", {"float32_matmul_precision": "high", "autocast": "bfloat16"}, None
            ),
            (),
            {},
            [
                "torch.set_float32_matmul_precision('high')",
                "torch.autocast(..., enabled=True, dtype=torch.bfloat16)",
            ],
        ),
    ],
)
def test_the_recommended_setting_is_the_change_to_make(candidate, optimizers, loader, change):
    summary = summary_of(searched(candidate, optimizers=optimizers), **loader)
    recommended = summary.recommended
    assert (recommended.overrides, recommended.name) == (candidate.overrides, candidate.name)
    assert recommended.change == change
    assert recommended.sites == list(candidate.sites)
    assert recommended.speedup.low < 2.0 < recommended.speedup.high
    assert (summary.tuning.ended_by, summary.tuning.uncontained) == (FINISHED, [])
    saved = to_jsonable(summary)
    assert from_jsonable(saved) == summary
    # What is not kept any more may be in older ones.
    saved["tuning"] |= {"predictions": 3, "held": 2}
    saved["trials"][1] |= {"run_speedup": None, "conditions": {"cpu_mhz": 2e3}, "read_bytes": 7}
    assert from_jsonable(saved) == summary


def test_rows_stand_in_the_order_in_which_they_were_tried_with_their_forecasts():
    base, ceiling, alone, *_ = rows = trials_of(searched(workers(2), workers(4, 3.0, 4.0)))
    assert [row.name for row in (base, ceiling, alone)] == [BASELINE, CEILING, LOADER_ALONE]
    assert (base.speedup.mid, base.overrides, base.held) == (1.0, {}, None)
    assert (ceiling.overrides, ceiling.predicted) == ({}, [1.5, 4.0])
    assert abs(ceiling.speedup.mid - 2.5) < 0.1
    held = {row.name: row.held for row in rows}
    assert (held["num_workers=2"], held["num_workers=4"]) == (True, False)


@pytest.mark.parametrize(
    ("measured", "held"),
    [
        ((1.4, 1.7, 2.0), True),
        ((0.9, 1.1, 1.3), False),
        ((2.1, 2.4, 2.8), False),
        ((1.3, 1.5, 1.7), None),  # across an edge of it
        ((0.8, 1.6, 2.8), None),  # around it
        ((None, 1.6, None), None),
    ],
)
def test_only_an_interval_wholly_inside_or_outside_tells_whether_a_forecast_was_right(
    measured, held
):
    assert whether_held(Times(*measured), (1.4, 2.0)) is held


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        (lambda trial, number: 0.3 if "4" in trial.name else 0.25, ["same", "other", None]),
        # Of a script whose losses differ by themselves nothing is said.
        (lambda trial, number: float(number), [None, None, None]),
    ],
)
def test_losses_tell_whether_a_change_alters_the_numbers(losses, expected):
    rows = rows_of(searched(alter=lambda *run: {"losses": (1.0, 0.5, losses(*run))}))
    assert [rows[name].losses for name in ("num_workers=2", "num_workers=4", BASELINE)] == expected
    apart = [rows[name].losses_apart for name in ("num_workers=2", "num_workers=4")]
    assert apart == [None, pytest.approx(0.2) if "other" in expected else None]


def test_a_change_that_makes_losses_nan_is_not_recommended():
    nan = float("nan")
    summary = summary_of(
        searched(
            Candidate("numbers", {"autocast": "float16"}, None),
            alter=lambda trial, _: {"losses": (1.0, 0.5, nan if "autocast" in trial.name else 0.2)},
        )
    )
    [row] = [row for row in summary.trials if row.overrides]
    assert (row.losses, row.losses_apart) == ("other", None)
    assert len(row.against) == 1
    assert summary.recommended is None


@pytest.mark.parametrize(
    "changes",
    [
        lambda run: {"read_bytes": float(run.steps * (8 << 20))},
        lambda run: {"pace": replace(run.pace, mean_s=20 * run.pace.mean_s)},
    ],
)
def test_a_run_that_was_cold_or_held_up_is_not_compared(changes):
    measurements = searched(alter=lambda *_: {"read_bytes": 0.0})
    base = next(run for run in measurements.runs if run.trial.name == BASELINE)
    odd = replace(base, **changes(base))
    measurements.runs = [odd if run is base else run for run in measurements.runs]
    summary = summary_of(measurements)
    assert len([note for note in summary.tuning.notes if base.directory in note]) == 1
    rows = {row.name: row for row in summary.trials}
    assert rows[BASELINE].steps_per_s == pytest.approx(100, rel=0.1)
    assert rows["num_workers=2"].speedup.mid == pytest.approx(2.0, rel=0.1)


def test_a_last_baseline_that_was_cut_short_hides_no_earlier_one():
    measurements = searched()
    last = measurements.runs[-1]
    assert last.trial.name == BASELINE
    measurements.runs[-1] = replace(last, outcome=CUT_SHORT, pace=None, was_cut=True)
    base = rows_of(measurements)[BASELINE]
    assert (base.outcome, base.was_cut) == (OK, False)
    assert base.runs == len(measurements.of(BASELINE)) - 1


def test_what_ctrl_c_cut_off_is_no_result():
    measurements = searched(interrupted_at=4, alter=lambda *_: {"written": ("/data/x",)})
    assert list(rows_of(measurements)) == [BASELINE, CEILING]
    summary = summary_of(measurements)
    assert (summary.recommended, summary.tuning.uncontained) == (None, ["wrote /data/x"])
