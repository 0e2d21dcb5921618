"""Ranks that others wait for, from the steps of all: planted, and what must not be told."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from trainprof.analysis.distributed.collectives import (
    COMMUNICATION,
    RankSteps,
    Straggler,
    stragglers,
)

MS = 1_000_000
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


def test_a_rank_that_waits_longer_for_its_batches() -> None:
    ranks = together(
        {"data_wait": 2.0, "other": 1.0}, {"data_wait": 12.0, "other": 1.0}, {"data_wait": 4.0}
    )
    assert stragglers(ranks) == [Straggler(1, "data_wait", 1.0, pytest.approx(STEPS * 0.008))]


@pytest.mark.parametrize("phase", ["checkpoint", "evaluation"])
def test_what_one_rank_does_alone(phase: str) -> None:
    ranks = together({"data_wait": 2.0, phase: every(50, 400.0)}, {"data_wait": 2.1, phase: 0.0})
    assert stragglers(ranks) == [Straggler(0, phase, 0.02, pytest.approx(0.7998))]


def test_ranks_that_are_last_in_turn() -> None:
    ranks = together({"data_wait": every(2, 10.0)}, {"data_wait": every(4, 20.0)})
    assert stragglers(ranks) == [
        Straggler(0, "data_wait", 0.25, pytest.approx(0.25)),
        Straggler(1, "data_wait", 0.25, pytest.approx(0.25)),
    ]


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


def test_waiting_where_nobody_looks_is_not_what_is_waited_for() -> None:
    """Rank 0 saves, rank 1 waits for it between the parts of a step."""
    ranks = together(
        {"checkpoint": every(10, 50.0), "other": 1.0},
        {"checkpoint": 0.0, "other": [1.0 + ms for ms in every(10, 50.0)]},
    )
    assert stragglers(ranks) == [Straggler(0, "checkpoint", 0.1, pytest.approx(0.5))]


def test_a_rank_that_computes_longer_is_waited_for_in_backward() -> None:
    """Its forward is 20 of 30 ms longer; so is its backward of 5 ms, in proportion."""
    ranks = together({"forward": 10.0}, {"forward": 30.0})
    late_s = STEPS * 0.020 * (1 + 5 / 30)
    share = (STEPS - 1) / STEPS  # but for the first
    assert stragglers(ranks) == [Straggler(1, "forward", share, pytest.approx(share * late_s))]


def test_what_is_late_elsewhere_as_well_is_counted_once() -> None:
    """Rank 0 loads 8 ms longer, rank 1 computes 20 ms longer: steps are 12 ms longer for it."""
    ranks = together({"data_wait": 9.0, "forward": 10.0}, {"data_wait": 1.0, "forward": 30.0})
    [straggler] = [rank for rank in stragglers(ranks) if rank.phase == "forward"]
    assert straggler.seconds == pytest.approx((STEPS - 1) * 0.012 * (1 + 5 / 30))


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


def test_a_first_forward_that_sets_things_up_on_one_rank_makes_no_slow_one() -> None:
    ranks = together({"forward": [10.0] * STEPS}, {"forward": [3000.0] + [10.0] * (STEPS - 1)})
    assert stragglers(ranks) == []


def test_who_waits_in_its_forward_computes_no_longer() -> None:
    """Rank 1 waits in its forward, where buffers are handed out, for rank 0 and its batches."""
    ranks = together({"data_wait": 22.0, "forward": 10.0}, {"data_wait": 2.0, "forward": 30.0})
    assert stragglers(ranks) == [Straggler(0, "data_wait", 1.0, pytest.approx(2.0))]


def test_ranks_that_compute_longer_in_turn_are_nobodys_fault() -> None:
    in_turn = together(
        {"forward": [10.0 + ms for ms in every(2, 20.0)]}, {"forward": [10.0, 30.0] * (STEPS // 2)}
    )
    assert stragglers(in_turn) == []
    random = np.random.default_rng(0)
    noisy = [{"forward": 20 + 4 * random.normal(size=STEPS)} for _ in range(4)]
    assert stragglers(together(*noisy)) == []


def test_a_longer_forward_that_nobody_waits_for_is_not_told() -> None:
    """Rank 1 has a longer forward, and as much less to do between the parts of a step."""
    ranks = together({"forward": 10.0, "other": 21.0}, {"forward": 30.0, "other": 1.0})
    assert "forward" not in [rank.phase for rank in stragglers(ranks)]


def test_equal_ranks_have_none() -> None:
    random = np.random.default_rng(0)
    waits = [{"data_wait": 5 + 0.4 * random.normal(size=STEPS)} for _ in range(4)]
    assert stragglers(together(*waits)) == []
    assert stragglers(together({"data_wait": 5.0})) == []
    assert stragglers([]) == []


def test_processes_that_do_not_train_in_step_are_not_compared() -> None:
    slow, quick = together({"data_wait": 20.0}), together({"data_wait": 2.0})
    assert stragglers([*slow, RankSteps(1, quick[0].spent)]) == []


def test_a_rank_that_ended_early_counts_as_far_as_it_went() -> None:
    first, second = together({"data_wait": 2.0}, {"data_wait": 12.0})
    cut = RankSteps(1, {key: column[:40] for key, column in second.spent.items()})
    (straggler,) = stragglers([first, cut])
    assert (straggler.rank, straggler.seconds) == (1, pytest.approx(0.4))
