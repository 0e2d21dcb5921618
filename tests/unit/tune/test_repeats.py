"""What is not decided is repeated; a search that goes on repeats it as often again."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from support.planted_trials import FakeRunner, Planted, plan_of, search_of, threads

from trainprof.analysis.summary.tune import BASELINE, CEILING, FINISHED
from trainprof.tune.measurements import Measurements, Progress
from trainprof.tune.trial import Limits, Measured, Trial

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


def searched(runner: Remembering, budget_s: float = 600.0) -> tuple[Measurements, list[Progress]]:
    before, told = set(runner.done), []
    search = search_of(
        runner,
        lambda base, free_s: plan_of(threads(1)),
        budget_s=budget_s,
        is_known=lambda trial, number: (trial.name, number) in before,
        tell=told.append,
    )
    return search.run(), told


def runs_of(found: Measurements) -> Counter[str]:
    return Counter(run.trial.name for run in found.runs)


def test_what_stays_undecided_has_its_runs_and_no_more() -> None:
    found, _ = searched(Remembering(ROUGH))
    assert found.ended_by == FINISHED
    assert runs_of(found)["torch_threads=1"] == MOST


def test_a_search_that_goes_on_repeats_what_is_undecided_as_often_again() -> None:
    runner = Remembering(ROUGH)
    searched(runner)
    ran = len(runner.runner.ran)
    searched(runner)
    new = Counter(runner.runner.ran[ran:])
    assert 0 < new["torch_threads=1"] <= MOST
    assert new[BASELINE] >= new["torch_threads=1"] - 1


def test_what_stays_undecided_has_had_as_many_runs_again() -> None:
    runner = Remembering(replace(ROUGH, spread=0.2, seed=0))
    searched(runner)
    made = runs_of(searched(runner)[0])
    assert (made["torch_threads=1"], made[CEILING]) == (2 * MOST, 2 * MOST)


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
