"""Calls of torch.distributed by line, and ranks that others wait for, as planted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from support.events import LEARNS, MS, FakeRun

from trainprof.analysis.distributed.collectives import (
    COMMUNICATION,
    RankSteps,
    Straggler,
    stragglers,
)
from trainprof.analysis.summary.code import Collective
from trainprof.record.schema import COLLECTIVES, Kind

REDUCE, BARRIER = COLLECTIVES.index("all_reduce"), COLLECTIVES.index("barrier")


def averaging_step(run: FakeRun, optimizer: int, site: int, ns: int) -> None:
    """Two gradients averaged between backward and update, a shard gathered in the forward."""
    with run.span(Kind.FORWARD, flags=LEARNS):
        run.leaf(Kind.COLLECTIVE, MS, site=site, flags=REDUCE)
        run.passes_time(MS)
    with run.span(Kind.BACKWARD):
        run.passes_time(2 * MS)
    for _ in range(2):
        run.leaf(Kind.COLLECTIVE, ns, site=site, flags=REDUCE)
    run.passes_time(MS)
    run.update(optimizer)


def test_calls_between_the_parts_of_a_step(tmp_path: Path) -> None:
    run = FakeRun()
    optimizer, here, there = run.optimizer(), run.site(50), run.site(60)
    run.leaf(Kind.COLLECTIVE, 500 * MS, site=there, flags=BARRIER)  # ahead of training
    for _ in range(40):
        averaging_step(run, optimizer, here, 4 * MS)
    run.leaf(Kind.COLLECTIVE, 20 * MS, site=there, flags=BARRIER)
    averaging_step(run, optimizer, here, 4 * MS)
    run.thread = 1
    run.leaf(Kind.COLLECTIVE, 70 * MS, site=there, flags=BARRIER)  # another thread's
    run.thread = 0
    summary = run.summary(tmp_path)
    assert summary.collectives == [
        Collective("train.py:50", "all_reduce", 82, pytest.approx(0.328)),
        Collective("train.py:60", "barrier", 1, pytest.approx(0.020)),
    ]
    assert summary.verdict.bottleneck == "communication"
    assert summary.verdict.site == "train.py:50"
    assert "most of it all_reduce at train.py:50" in summary.verdict.headline
    assert summary.findings == []


def test_evaluations_own_are_part_of_it(tmp_path: Path) -> None:
    run = FakeRun()
    optimizer, site = run.optimizer(), run.site(50)
    training, evaluation = run.loader(41), run.loader(43)
    run.train_pass(training, optimizer, 30)
    run.iterate(evaluation)
    for _ in range(2):
        run.next(evaluation)
        run.leaf(Kind.COLLECTIVE, 100 * MS, site=site, flags=REDUCE)
        with run.span(Kind.FORWARD):
            run.passes_time(MS)
    run.stop(evaluation)
    run.train_pass(training, optimizer, 30)
    assert run.summary(tmp_path).collectives == []


STEPS = 100


def together(*own_ms: dict[str, Sequence[float] | float]) -> list[RankSteps]:
    """Ranks of which each waits in its backward until the slowest is there, as DDP makes them."""
    columns = [
        {key: np.broadcast_to(np.asarray(value, dtype=float), STEPS) for key, value in own.items()}
        for own in own_ms
    ]
    totals = np.array([sum(own.values()) for own in columns])
    waits = totals.max(axis=0) - totals
    return [
        RankSteps(
            rank,
            {
                **{key: (ms * MS).astype(np.int64) for key, ms in own.items()},
                "backward": ((5.0 + waits[rank]) * MS).astype(np.int64),
            },
        )
        for rank, own in enumerate(columns)
    ]


def every(n: int, ms: float) -> list[float]:
    return [ms if step % n == 0 else 0.0 for step in range(STEPS)]


SAVES = [1.0 + ms for ms in every(10, 50.0)]


@pytest.mark.parametrize(
    ("own_ms", "late"),
    [
        # A rank that waits longer for its batches.
        (
            ({"data_wait": 2.0, "other": 1.0}, {"data_wait": 12.0, "other": 1.0}, {"data_wait": 4}),
            [(1, "data_wait", 1.0, STEPS * 0.008)],
        ),
        # What one rank does alone.
        (
            ({"data_wait": 2.0, "checkpoint": every(50, 400.0)}, {"data_wait": 2.1}),
            [(0, "checkpoint", 0.02, 0.7998)],
        ),
        # Ranks that are last in turn.
        (
            ({"data_wait": every(2, 10.0)}, {"data_wait": every(4, 20.0)}),
            [(0, "data_wait", 0.25, 0.25), (1, "data_wait", 0.25, 0.25)],
        ),
        # Rank 0 saves, rank 1 waits for it between the parts of a step.
        (
            ({"checkpoint": every(10, 50.0), "other": 1.0}, {"checkpoint": 0.0, "other": SAVES}),
            [(0, "checkpoint", 0.1, 0.5)],
        ),
        # Rank 1 waits in its forward, where buffers are handed out, for rank 0 and its batches.
        (
            ({"data_wait": 22.0, "forward": 10.0}, {"data_wait": 2.0, "forward": 30.0}),
            [(0, "data_wait", 1.0, 2.0)],
        ),
        # A forward that is 20 of 30 ms longer, but for the first; so is its backward of 5 ms.
        (
            ({"forward": 10.0}, {"forward": 30.0}),
            [(1, "forward", 0.99, (STEPS - 1) * 0.020 * (1 + 5 / 30))],
        ),
        # Nobody's fault: a first forward that sets things up, and lengths that differ in turn.
        (({"forward": 10.0}, {"forward": [3000.0] + [10.0] * (STEPS - 1)}), []),
        (({"forward": [30.0, 10.0] * (STEPS // 2)}, {"forward": [10.0, 30.0] * (STEPS // 2)}), []),
        (({"data_wait": 5.0},), []),
        ((), []),
    ],
)
def test_ranks_that_the_others_wait_for(own_ms, late) -> None:
    expected = [Straggler(*row[:3], pytest.approx(row[3])) for row in late]
    assert stragglers(together(*own_ms) if own_ms else []) == expected


def test_python_on_one_rank_counts_where_the_others_wait_in_the_model() -> None:
    ranks = together({"other": 20.0}, {"other": 1.0})
    assert stragglers(ranks) == [Straggler(0, "other", 1.0, pytest.approx(1.9))]
    # They may wait for it in calls of the script's own.
    elsewhere = [
        RankSteps(
            rank.rank,
            {
                "other": rank.spent["other"],
                COMMUNICATION: rank.spent["backward"] - 5 * MS,
                "backward": np.full(STEPS, 5 * MS),
            },
        )
        for rank in ranks
    ]
    assert stragglers(elsewhere) == stragglers(ranks)


def test_what_a_backward_waits_in_is_not_what_it_computes() -> None:
    """All gradients are averaged for 200 ms, which no rank computes."""
    ranks = together({"forward": 10.0}, {"forward": 60.0})
    slow = [
        RankSteps(rank.rank, {**rank.spent, "backward": rank.spent["backward"] + 200 * MS})
        for rank in ranks
    ]
    [straggler] = stragglers(slow)
    assert straggler.seconds == pytest.approx((STEPS - 1) * 0.050 * 3)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("count", "steps"), [(2, 100), (2, 40), (4, 60)])
def test_lengths_that_differ_by_chance_are_nobodys_fault(count: int, steps: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    ranks = together(*({"forward": random.exponential(20, STEPS)} for _ in range(count)))
    cut = [RankSteps(x.rank, {key: ns[:steps] for key, ns in x.spent.items()}) for x in ranks]
    assert stragglers(cut) == []


@pytest.mark.parametrize(("key", "ms", "noise"), [("forward", 20, 4), ("data_wait", 5, 0.4)])
def test_ranks_that_differ_by_noise_are_equal(key: str, ms: float, noise: float) -> None:
    random = np.random.default_rng(0)
    ranks = [{key: ms + noise * random.normal(size=STEPS)} for _ in range(4)]
    assert stragglers(together(*ranks)) == []


def test_processes_that_do_not_train_in_step_are_not_compared() -> None:
    slow, quick = together({"data_wait": 20.0}), together({"data_wait": 2.0})
    assert stragglers([*slow, RankSteps(1, quick[0].spent)]) == []


def test_a_rank_that_ended_early_counts_as_far_as_it_went() -> None:
    first, second = together({"data_wait": 2.0}, {"data_wait": 12.0})
    cut = RankSteps(1, {key: column[:40] for key, column in second.spent.items()})
    (straggler,) = stragglers([first, cut])
    assert (straggler.rank, straggler.seconds) == (1, pytest.approx(0.4))


def test_a_longer_forward_that_nobody_waits_for_is_not_told() -> None:
    """Rank 1 has a longer forward, and as much less to do between the parts of a step."""
    ranks = together({"forward": 10.0, "other": 21.0}, {"forward": 30.0, "other": 1.0})
    assert "forward" not in [rank.phase for rank in stragglers(ranks)]
