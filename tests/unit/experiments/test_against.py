"""What speaks against a setting whose steps were faster, and what does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
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

from trainprof.analysis.summary import RunSummary
from trainprof.analysis.tuning import BASELINE
from trainprof.experiments.against import against
from trainprof.experiments.beside_steps import (
    Evaluated,
    SeenPasses,
    evaluated,
    seen_passes,
)
from trainprof.experiments.found import Found
from trainprof.experiments.results import summary_of_tune
from trainprof.experiments.trial import Limits, Measured, Trial, workers_of
from trainprof.report import terminal

SITE = "train.py:9"


class Seen(FakeRunner):
    """As FakeRunner; each run shows something besides, by its trial and number."""

    def __init__(self, planted: Planted, seen: Callable[[Trial, int], dict[str, Any]]) -> None:
        super().__init__(planted)
        self._seen = seen

    def run(self, trial: Trial, number: int, limits: Limits) -> Measured:
        return replace(super().run(trial, number, limits), **self._seen(trial, number))


def by_workers(overrides: object) -> float:
    return 0.005 if "num_workers" in overrides else 0.010  # type: ignore[operator]


def searched(seen: Callable[[Trial, int], dict[str, Any]], *candidates: Any, **how: Any) -> Found:
    runner = Seen(Planted(how.pop("step_s", by_workers)), seen)
    plan = plan_of(*(candidates or (workers(2), workers(4))))
    return search_of(runner, lambda base, free_s: plan, budget_s=600.0).run()


def summary_of(found: Found, **loader: Any) -> RunSummary:
    base = base_summary()
    changed = replace(base.loaders[0], **loader)
    return summary_of_tune(
        replace(base, loaders=[changed]), found, name="t", directory="runs/t", budget_s=600.0
    )


def passes(*batches: int, made_by: int) -> dict[str, Any]:
    return {"passes": {SITE: (SeenPasses(batches, made_by),)}}


def stream(of_workers: Callable[[int], tuple[int, ...]]) -> Callable[[Trial, int], dict[str, Any]]:
    """Passes as so many workers make them."""

    def seen(trial: Trial, number: int) -> dict[str, Any]:
        now = workers_of(trial.overrides)
        return passes(*of_workers(now), made_by=now)

    return seen


def page(summary: RunSummary) -> str:
    return " ".join(terminal.render(summary, width=100, color=False).split())


@pytest.mark.parametrize("batches", [(300,), (50, 60, 70, 80), (100, 200, 300)])
def test_workers_that_each_give_all_of_a_stream_are_not_recommended(
    batches: tuple[int, ...],
) -> None:
    found = searched(stream(lambda n: tuple(one * max(n, 1) for one in batches)))
    assert found.best is None
    summary = summary_of(found)
    assert summary.recommended is None
    rows = {row.name: row for row in summary.trials}
    assert rows["num_workers=4"].verdict == "faster"
    [why] = rows["num_workers=4"].against
    times, once = sum(batches) * 4 // len(batches), sum(batches) // len(batches)
    assert f"a pass over {SITE} has {times:,} batches with it, and {once:,} in the script" in why
    told = page(summary)
    assert "NOTHING IS RECOMMENDED: num_workers=" in told
    assert "AS FAST" not in told
    assert "VISIBLY FASTER" not in told
    assert f"Against num_workers=4: a pass over {SITE} has {times:,}" in told


def test_a_pass_that_goes_on_beyond_the_end_of_the_scripts_own_is_another_one() -> None:
    """Trials end soon after the script as it is would begin its second pass."""

    def seen(trial: Trial, number: int) -> dict[str, Any]:
        if trial.overrides:
            return {"passes": {SITE: (SeenPasses((), 4, begun=200),)}}
        return {"passes": {SITE: (SeenPasses((100,), 0, begun=10),)}}

    found = searched(seen)
    assert found.best is None
    [why] = next(row.against for row in summary_of(found).trials if row.name == "num_workers=2")
    assert f"a pass over {SITE} has over 200 batches with it, and 100 in the script" in why


def test_what_follows_a_pass_that_was_another_one_hides_it_not() -> None:
    def seen(trial: Trial, number: int) -> dict[str, Any]:
        if trial.overrides:
            return {"passes": {SITE: (SeenPasses((200,), 2, begun=5),)}}
        return {"passes": {SITE: (SeenPasses((100, 100), 0),)}}

    assert searched(seen).best is None


@pytest.mark.parametrize("begun", [60, 112])
def test_a_pass_that_a_trial_does_not_see_end_is_no_evidence(begun: int) -> None:
    def seen(trial: Trial, number: int) -> dict[str, Any]:
        ended = () if trial.overrides else (100,)
        return {"passes": {SITE: (SeenPasses(ended, 4, begun=begun),)}}

    summary = summary_of(searched(seen), is_iterable=True, shares_samples=True)
    assert summary.recommended is not None
    assert any("count the batches of an epoch" in one for one in summary.recommended.cautions)


def test_what_else_is_faster_is_recommended_then() -> None:
    def step_s(overrides: Any) -> float:
        return by_workers(overrides) * (0.8 if "torch_threads" in overrides else 1)

    shared = stream(lambda n: (100 * max(n, 1),))
    found = searched(shared, workers(2), threads(1), step_s=step_s)
    assert found.best is not None
    assert found.best.overrides == {"torch_threads": 1}
    # Nor is a change that is not to be taken put together with others.
    assert not any(len(run.trial.overrides) > 1 for run in found.runs)


@pytest.mark.parametrize(
    "of_workers",
    [
        lambda n: (100 + n,),  # each worker's last batch is not full
        lambda n: (100 - n,),  # or is left out
        lambda n: (5 + n, 5 + n),
        lambda n: (105, 100) if n else (100, 100),
        lambda n: (100, 200, 300) if n else (100, 200),  # quick trials see more of a curriculum
        lambda n: (70, 100, 65) if n else (120, 70, 130),  # at random
        lambda n: (),
    ],
)
def test_streams_that_are_shared_out_are(of_workers: Callable[[int], tuple[int, ...]]) -> None:
    found = searched(stream(of_workers))
    assert found.best is not None
    assert found.best.overrides == {"num_workers": 2}
    assert all(row.against == [] for row in summary_of(found).trials)


def test_smaller_batches_of_a_stream_are_no_gain() -> None:
    """Of 8 batches six workers make 12: as many samples, in steps that take two thirds."""
    found = searched(
        stream(lambda n: (12, 12) if n else (8, 8)),
        workers(6),
        step_s=lambda overrides: 0.0067 if "num_workers" in overrides else 0.010,
    )
    assert found.best is None
    summary = summary_of(found)
    row = next(row for row in summary.trials if row.name == "num_workers=6")
    assert row.speedup is not None
    assert row.speedup.mid == pytest.approx(1, abs=0.02)
    assert row.against == []
    assert summary.tuning is not None
    told = [one for one in summary.tuning.notes if "by passes, not by steps" in one]
    assert [one.endswith(": num_workers=6 (1.5 times as many)") for one in told] == [True]


def test_a_gain_that_is_more_than_smaller_batches_is_left() -> None:
    found = searched(stream(lambda n: (12,) if n else (8,)), workers(6), step_s=by_three)
    summary = summary_of(found)
    assert summary.recommended is not None
    assert summary.recommended.speedup.mid == pytest.approx(2, abs=0.05)
    assert any("sees fewer samples" in one for one in summary.recommended.cautions)


@pytest.mark.parametrize("of_workers", [lambda n: (6,) if n else (7,), lambda n: (100 + n // 6,)])
def test_passes_with_fewer_batches_or_hardly_more_count_by_steps(
    of_workers: Callable[[int], tuple[int, ...]],
) -> None:
    summary = summary_of(searched(stream(of_workers), workers(6), step_s=by_three))
    assert summary.recommended is not None
    assert summary.recommended.speedup.mid == pytest.approx(3, abs=0.05)
    assert summary.tuning is not None
    assert not any("by passes" in one for one in summary.tuning.notes)
    assert not any("fewer samples" in one for one in summary.recommended.cautions)


def by_three(overrides: Any) -> float:
    return 0.004 if "num_workers" in overrides else 0.012


def test_one_of_several_runs_whose_passes_differ_is_no_evidence() -> None:
    found = searched(stream(lambda n: (100,)))
    of_trial = found.of("num_workers=2")
    assert len(of_trial) > 1
    odd = replace(of_trial[0], **passes(40, made_by=2))
    found.runs = [odd if run is of_trial[0] else run for run in found.runs]
    assert against(found, odd.trial) == []
    found.runs = [
        replace(run, **passes(40, made_by=2)) if run.trial == odd.trial else run
        for run in found.runs
    ]
    assert against(found, odd.trial) != []


@pytest.mark.parametrize(
    ("loader", "ended", "is_told"),
    [
        ({"is_iterable": True, "shares_samples": True}, (), True),
        ({"is_iterable": True, "shares_samples": True}, (100,), False),
        ({"is_iterable": True, "shares_samples": None}, (), False),  # it has its own caution
        ({"is_iterable": False}, (), False),
    ],
)
def test_where_no_pass_ended_it_is_said_what_sharing_is_taken_from(
    loader: dict[str, Any], ended: tuple[int, ...], is_told: bool
) -> None:
    told = summary_of(searched(stream(lambda n: ended)), **loader).recommended
    assert told is not None
    assert any("count the batches of an epoch" in one for one in told.cautions) is is_told


def whole(
    slower: float, evaluation: float = 1.0, noise: float = 0.002
) -> Callable[[Trial, int], dict[str, Any]]:
    """Runs to the script's end, with a change so many times as long; likewise their evaluation."""

    def seen(trial: Trial, number: int) -> dict[str, Any]:
        is_changed = bool(trial.overrides)
        return {
            "run_s": 10.0 * (1 + noise * number) * (slower if is_changed else 1.0),
            "evaluated": Evaluated(50, 4.0 * (evaluation if is_changed else 1.0)),
        }

    return seen


def test_what_made_the_whole_script_slower_is_not_recommended() -> None:
    found = searched(whole(1.5, 3.1))
    assert found.best is None
    [why] = next(row.against for row in summary_of(found).trials if row.name == "num_workers=2")
    assert why == (
        "the whole script was 0.67 times as fast from start to end: evaluation takes 3.1 times as "
        "long"
    )


@pytest.mark.parametrize(
    ("seen", "is_told"),
    [
        (whole(0.6), False),
        (whole(1.0), False),
        (whole(1.02), False),  # less than counts
        (whole(1.2, noise=0.1), True),
    ],
)
def test_what_may_have_made_it_slower_is_said_beside(
    seen: Callable[[Trial, int], dict[str, Any]], is_told: bool
) -> None:
    found = searched(seen)
    told = summary_of(found).recommended
    assert told is not None
    assert any("from start to end" in one for one in told.cautions) is is_told


def stopping_early(steps_of: Callable[[Trial, int], int], times: float = 1.4) -> Any:
    """Runs to the script's end, which take so many times as long with a change."""
    of_whole = whole(times)
    return lambda trial, number: {**of_whole(trial, number), "steps": steps_of(trial, number)}


@pytest.mark.parametrize(
    ("steps_of", "is_judged"),
    [
        (lambda trial, number: 160 if trial.overrides else 120, False),
        (lambda trial, number: 90 if trial.overrides else 120, False),
        (lambda trial, number: 120, True),
        (lambda trial, number: 122 if trial.overrides else 120, True),
    ],
)
def test_whole_runs_that_stopped_after_other_numbers_of_steps_tell_nothing(
    steps_of: Callable[[Trial, int], int], is_judged: bool
) -> None:
    found = searched(stopping_early(steps_of), workers(2))
    assert (found.best is None) is is_judged
    summary = summary_of(found)
    row = next(row for row in summary.trials if row.name == "num_workers=2")
    assert (row.run_speedup is not None) is is_judged
    assert bool(row.against) is is_judged
    if summary.recommended is not None:
        assert not any("from start to end" in one for one in summary.recommended.cautions)


def test_of_runs_that_stop_at_random_those_as_long_are_compared() -> None:
    found = searched(whole(1.4), workers(2))
    runs = found.of("num_workers=2")
    assert len(runs) > 1
    longer = {runs[0].directory: 160}
    found.runs = [replace(run, steps=longer.get(run.directory, 120)) for run in found.runs]
    assert [one.steps for one in found.of("num_workers=2")][:2] == [160, 120]
    row = next(row for row in summary_of(found).trials if row.name == "num_workers=2")
    assert row.run_speedup is not None


def test_more_steps_of_the_same_passes_are_the_same_run() -> None:
    in_passes = stream(lambda n: (12,) if n else (8,))
    alike = stopping_early(lambda trial, number: 180 if trial.overrides else 120, times=2.0)
    found = searched(
        lambda trial, number: {**in_passes(trial, number), **alike(trial, number)},
        workers(6),
        step_s=by_three,
    )
    row = next(row for row in summary_of(found).trials if row.name == "num_workers=6")
    assert row.run_speedup is not None
    assert row.run_speedup.mid == pytest.approx(0.5, abs=0.01)


def limited(
    times: float, batches: int = 50, seconds: float = 4.0
) -> Callable[[Trial, int], dict[str, Any]]:
    def seen(trial: Trial, number: int) -> dict[str, Any]:
        return {"evaluated": Evaluated(batches, seconds * (times if trial.overrides else 1.0))}

    return seen


@pytest.mark.parametrize(
    ("seen", "is_told"),
    [
        (limited(3.1), True),
        (limited(1.2), False),
        (limited(0.5), False),
        (limited(3.1, batches=2), False),  # a check ahead of training, mostly its start
        (limited(3.1, seconds=0.01), False),  # nothing that counts
    ],
)
def test_evaluation_that_takes_longer_is_said_beside(
    seen: Callable[[Trial, int], dict[str, Any]], is_told: bool
) -> None:
    told = summary_of(searched(seen)).recommended
    assert told is not None
    said = "with it evaluation takes 3.1 times as long"
    assert (said in told.cautions) is is_told


def test_passes_of_streams_alone_are_read_by_their_line() -> None:
    loaders = [
        summaries.loader(
            SITE,
            id=2,
            is_iterable=True,
            passes=3,
            ended=2,
            ended_batches=[7, 7],
            iterations=17,
            num_workers=2,
        ),
        summaries.loader(SITE, id=1, is_iterable=True, passes=1, iterations=9),
        summaries.loader("train.py:20", id=3, is_iterable=False, ended_batches=[5]),
        summaries.loader("train.py:30", id=4, is_iterable=True, role="evaluation"),
    ]
    summary = replace(base_summary(), loaders=loaders)
    assert seen_passes(summary) == {SITE: (SeenPasses((), 0, 9), SeenPasses((7, 7), 2, 3))}


def test_evaluation_without_batches_has_no_pace() -> None:
    summary = base_summary()
    told = replace(summary.evaluation, iterations=40, seconds=2.0)
    assert evaluated(replace(summary, evaluation=told)) == Evaluated(40, 2.0)
    assert evaluated(replace(summary, evaluation=replace(told, iterations=0))) is None


def test_baselines_are_compared_with_nothing() -> None:
    found = searched(stream(lambda n: (100,)))
    row = next(row for row in summary_of(found).trials if row.name == BASELINE)
    assert row.against == []
