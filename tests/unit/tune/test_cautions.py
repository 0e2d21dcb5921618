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

from trainprof.analysis.summary.tune import Recommended
from trainprof.tune.choice import against
from trainprof.tune.measurements import Measurements
from trainprof.tune.results import summary_of_tune
from trainprof.tune.trial import FirstPass, Limits, Measured, Trial
from trainprof.tune.trial_reading import first_passes

SITE = "train.py:9"
Seen = Callable[[Trial, int], dict[str, Any]]


class Showing(FakeRunner):
    """As FakeRunner; each run shows something besides, by its trial and number."""

    def __init__(self, planted: Planted, seen: Seen) -> None:
        super().__init__(planted)
        self._seen = seen

    def run(self, trial: Trial, number: int, limits: Limits) -> Measured:
        return replace(super().run(trial, number, limits), **self._seen(trial, number))


def step_s(overrides: Any) -> float:
    return (0.005 if "num_workers" in overrides else 0.010) * (
        0.8 if "torch_threads" in overrides else 1
    )


def searched(seen: Seen, *candidates: Any) -> Measurements:
    plan = plan_of(*(candidates or (workers(2),)))
    runner = Showing(Planted(step_s), seen)
    return search_of(runner, lambda base, free_s: plan, budget_s=600.0).run()


def recommended(found: Measurements, **loader: Any) -> Recommended | None:
    base = base_summary()
    changed = replace(base, loaders=[replace(base.loaders[0], **loader)])
    return summary_of_tune(changed, found, name="t", directory="t", budget_s=600.0).recommended


def passes(base: FirstPass | None, other: FirstPass | None) -> Seen:
    """The first pass of the script as it is, and with other workers."""

    def seen(trial: Trial, number: int) -> dict[str, Any]:
        told = other if "num_workers" in trial.overrides else base
        return {"passes": {} if told is None else {SITE: told}}

    return seen


def whole(slower: float, *, noise: float = 0.002, steps: int = 120, more_steps: int = 0) -> Seen:
    """Runs to the script's end, that take so many times as long with a change."""

    def seen(trial: Trial, number: int) -> dict[str, Any]:
        times = slower if trial.overrides else 1.0
        count = steps + (more_steps if trial.overrides else 0)
        return {"run_s": 10.0 * (1 + noise * number) * times, "steps": count}

    return seen


def ended(batches: int) -> FirstPass:
    return FirstPass(batches, is_ended=True)


def begun(batches: int) -> FirstPass:
    return FirstPass(batches, is_ended=False)


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (passes(ended(100), ended(200)), "200 batches with it, and 100 in"),  # each gives all
        (passes(ended(8), ended(12)), "12 batches with it, and 8 in"),  # many last ones not full
        (passes(ended(100), begun(200)), "over 200 batches with it, and 100 in"),
        (passes(begun(200), ended(100)), "100 batches with it, and over 200 in"),
        (passes(ended(100), ended(102)), None),
        (passes(ended(100), ended(98)), None),
        (passes(ended(100), begun(60)), None),
        (passes(begun(60), begun(200)), None),
        (passes(None, ended(200)), None),
        (whole(1.5), "0.67 times as fast from start to end"),
        (whole(1.0), None),
        (whole(1.02), None),  # less than counts
        (whole(1.2, noise=0.1), None),  # it may be chance
        (whole(1.5, more_steps=2), "0.67 times as fast"),
        (whole(1.5, more_steps=40), None),  # one that stops early by its loss
    ],
)
def test_what_speaks_against_a_setting_that_is_faster(seen: Seen, why: str | None) -> None:
    found = searched(seen)
    told = against(found, workers(2).trial())
    assert (found.best is None) is (recommended(found) is None) is (why is not None)
    assert [why in one for one in told] == [True] if why else told == []


def test_what_else_is_faster_is_recommended_then_and_alone() -> None:
    found = searched(passes(ended(100), ended(200)), workers(2), threads(1))
    assert found.best.overrides == {"torch_threads": 1}
    assert not any(len(run.trial.overrides) > 1 for run in found.runs)


@pytest.mark.parametrize(
    ("loader", "first", "is_told"),
    [
        ({"is_iterable": True, "shares_samples": True}, None, True),
        ({"is_iterable": True, "shares_samples": True}, begun(60), True),
        ({"is_iterable": True, "shares_samples": True}, ended(100), False),
        ({"is_iterable": True, "shares_samples": None}, None, False),  # it has its own caution
        ({"is_iterable": False}, None, False),
    ],
)
def test_where_no_pass_ended_it_is_said_what_sharing_is_taken_from(
    loader: dict[str, Any], first: FirstPass | None, is_told: bool
) -> None:
    told = recommended(searched(passes(first, first)), **loader)
    assert any(SITE in one for one in told.cautions) is is_told


def test_first_passes_of_streams_alone_are_read_by_their_line() -> None:
    stream = summaries.loader(SITE, is_iterable=True, num_workers=2)
    loaders = [
        replace(stream, id=2, passes=3, ended=2, ended_batches=[7, 8], iterations=17),
        replace(stream, id=3, passes=1, iterations=9),
        replace(stream, id=4, site="train.py:15", passes=1, iterations=9),
        summaries.loader("train.py:20", id=5, is_iterable=False, ended_batches=[5]),
        replace(stream, id=6, site="train.py:30", role="evaluation"),
    ]
    summary = replace(base_summary(), loaders=loaders)
    assert first_passes(summary) == {SITE: ended(7), "train.py:15": begun(9)}
