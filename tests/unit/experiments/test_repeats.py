"""What is not decided is repeated; a search that goes on repeats it as often again."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from support.planted_trials import FakeRunner, Planted, base_summary, plan_of, search_of, threads

from trainprof.analysis.tuning import BASELINE, BUDGET, CEILING, FINISHED
from trainprof.experiments.found import Found, Progress
from trainprof.experiments.results import summary_of_tune
from trainprof.experiments.trial import Limits, Measured, Trial

# One thread gives 25 %, and runs differ by as much: four of each do not tell how much it is.
ROUGH = Planted(lambda o: 0.008 if o else 0.010, free_s=0.007, spread=0.12, seed=3)
CLEAR = Planted(lambda o: 0.005 if o else 0.010, spread=0.001)
MOST = 4


class Remembering:
    """Makes no run twice."""

    def __init__(self, planted: Planted) -> None:
        self.runner = FakeRunner(planted)
        self.done: dict[tuple[str, int], Measured] = {}

    def now(self) -> float:
        return self.runner.now()

    def run(self, trial: Trial, number: int, limits: Limits) -> Measured:
        key = trial.name, number
        if key not in self.done:
            self.done[key] = self.runner.run(trial, number, limits)
        return self.done[key]


def searched(runner: Remembering, budget_s: float = 600.0) -> tuple[Found, list[Progress]]:
    before, told = set(runner.done), []
    search = search_of(
        runner,
        lambda base, free_s: plan_of(threads(1)),
        budget_s=budget_s,
        is_known=lambda trial, number: (trial.name, number) in before,
        tell=told.append,
    )
    return search.run(), told


def runs_of(found: Found) -> Counter[str]:
    return Counter(run.trial.name for run in found.runs)


def notes(found: Found) -> str:
    summary = summary_of_tune(base_summary(), found, name="t", directory="t", budget_s=600.0)
    assert summary.tuning is not None
    return " ".join(summary.tuning.notes)


def test_what_stays_undecided_is_named_once_it_had_its_runs() -> None:
    found, _ = searched(Remembering(ROUGH))
    assert found.ended_by == FINISHED
    assert runs_of(found)["torch_threads=1"] == MOST
    assert "torch_threads=1" in found.undecided
    assert "nothing is left to try" in notes(found)
    assert f"torch_threads=1 ({MOST} runs)" in notes(found)


def test_nothing_is_undecided_where_runs_tell() -> None:
    found, _ = searched(Remembering(CLEAR))
    assert found.ended_by == FINISHED
    assert not found.undecided
    assert "nothing is left to try" not in notes(found)


def test_nothing_is_said_to_be_left_where_the_budget_was_over() -> None:
    found, _ = searched(Remembering(ROUGH), budget_s=26.0)
    assert found.ended_by == BUDGET
    assert not found.undecided
    assert "nothing is left to try" not in notes(found)


def test_a_search_that_goes_on_repeats_what_is_undecided_as_often_again() -> None:
    runner = Remembering(ROUGH)
    begun, _ = searched(runner)
    ran = len(runner.runner.ran)
    found, _ = searched(runner)
    new = Counter(runner.runner.ran[ran:])
    assert {name for name in new if name != BASELINE} <= set(begun.undecided)
    assert 0 < new["torch_threads=1"] <= MOST
    assert new[BASELINE] >= new["torch_threads=1"] - 1
    assert not found.undecided


def test_what_stays_undecided_has_had_as_many_runs_again() -> None:
    runner = Remembering(replace(ROUGH, spread=0.2, seed=0))
    searched(runner)
    found, _ = searched(runner)
    assert {"torch_threads=1", CEILING} <= set(found.undecided)
    assert f"torch_threads=1 ({2 * MOST} runs)" in notes(found)
    assert f"ceiling ({2 * MOST} runs)" in notes(found)


@pytest.mark.parametrize("seed", [8, 31, 33, 37])
def test_nothing_is_left_undecided_before_it_had_its_runs(seed: int) -> None:
    """The last run of the script as it is may bring a change into question that was not."""
    planted = Planted(lambda o: 0.0098 if o else 0.010, free_s=0.0099, spread=0.03, seed=seed)
    found, _ = searched(Remembering(planted), budget_s=3600.0)
    assert found.ended_by == FINISHED
    assert all(runs_of(found)[name] >= MOST for name in found.undecided)
    assert found.runs[-1].trial.name == BASELINE


def test_one_that_goes_on_with_all_decided_runs_nothing() -> None:
    runner = Remembering(CLEAR)
    searched(runner)
    ran = len(runner.runner.ran)
    searched(runner)
    assert len(runner.runner.ran) == ran


def test_runs_from_before_are_told_as_kept() -> None:
    runner = Remembering(ROUGH)
    _, told = searched(runner)
    assert not any(one.is_kept for one in told)
    before = len(runner.done)
    _, told = searched(runner)
    ended = [one for one in told if one.measured is not None]
    assert sum(one.is_kept for one in ended) == before
    assert all(one.is_kept for one in ended[:before])
    assert not any(one.is_kept for one in ended[before:])


@pytest.mark.parametrize("seed", range(8))
def test_no_session_repeats_anything_more_often_than_it_may(seed: int) -> None:
    runner = Remembering(Planted(lambda o: 0.0095, free_s=0.009, spread=0.2, seed=seed))
    for session in (1, 2, 3):
        found, _ = searched(runner, budget_s=3600.0)
        assert found.ended_by == FINISHED
        made = runs_of(found)
        assert max(made["torch_threads=1"], made[CEILING]) <= session * MOST


def test_however_little_time_there_is_all_that_was_measured_before_counts() -> None:
    runner = Remembering(CLEAR)
    begun, _ = searched(runner)
    found, _ = searched(runner, budget_s=1.0)
    assert runs_of(found) == runs_of(begun)
    assert not found.unfinished
