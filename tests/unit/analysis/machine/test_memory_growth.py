"""Memory that grows with the steps, from planted samples."""

from __future__ import annotations

import numpy as np
import pytest

from trainprof.analysis.machine.processes import (
    Tick,
    memory_growth,
    room_of,
)

MIB = 1 << 20
S = 1_000_000_000
PID = 7
# Of 0.1 s each, sampled every 0.5 s.
STEPS = 400


def ticks(rss: np.ndarray) -> list[Tick]:
    return [
        Tick(number * S // 2, {(PID, 5): {"rss_bytes": float(size)}, (8, 5): {"rss_bytes": 1}})
        for number, size in enumerate(rss)
    ]


def growth(rss: np.ndarray, *, passes: int = 2, steps: int = STEPS, warmup: int = 5):
    ends = (np.arange(steps) + 1) * S // 10
    starts = np.linspace(0, ends[-1], passes, endpoint=False).astype(np.int64)
    return memory_growth(ticks(rss), PID, ends, warmup, 4096.0 * MIB, starts)


T_S = np.arange(0, STEPS / 10, 0.5)


def test_what_each_step_keeps():
    grown = growth((500 + 20 * T_S) * MIB)
    assert grown.bytes_per_step == pytest.approx(2 * MIB, rel=0.02)
    assert grown.steps_left == pytest.approx(2048, rel=0.02)
    assert grown.last_bytes - grown.first_bytes == pytest.approx(grown.steps * 2 * MIB, rel=0.02)
    assert grown.passes == 2
    # In the first epoch it may be data that is read in.
    assert growth((500 + 20 * T_S) * MIB, passes=1).steps_left is None
    # Batches that come and go do not hide it.
    chance = np.random.default_rng(3)
    noisy = growth((500 + 20 * T_S + chance.uniform(0, 80, len(T_S))) * MIB)
    assert noisy.bytes_per_step == pytest.approx(2 * MIB, rel=0.1)


@pytest.mark.parametrize(
    "mib",
    [
        500 + 0 * T_S,
        500 + 300 * np.minimum(T_S / 20, 1),  # a cache, filled half-way through
        500 + 300 * (T_S > 20),  # something loaded once
        500 + 300 * (np.floor(T_S / 8) % 2),  # an evaluation's
        3000 + 7 * T_S,  # a tenth of it would be more
        900 - 10 * T_S,
    ],
)
def test_what_comes_to_an_end_is_no_growth(mib: np.ndarray):
    assert growth(mib * MIB) is None


def test_the_room_that_is_left():
    sample = {"host_available_bytes": 900}
    assert room_of({}, sample) == 900
    memory = {"limit_bytes": 1000, "tree_pss_bytes": {"max": 300}}
    assert room_of(memory, sample) == 700
    assert room_of({"limit_bytes": 1000, "tree_pss_bytes": {"max": 3000}}, sample) is None
    # Pages that forked workers share are counted for each of them.
    assert room_of({"limit_bytes": 1000, "tree_rss_bytes": {"max": 300}}, sample) is None
    assert room_of({}, None) is None


def test_mapped_files_that_are_read_are_no_growth():
    def planted(resident: np.ndarray, own: np.ndarray):
        samples = [
            Tick(
                n * S // 2,
                {(PID, 5): {"rss_bytes": float(all_of), "rss_without_files_bytes": float(part)}},
            )
            for n, (all_of, part) in enumerate(zip(resident, own, strict=True))
        ]
        ends = (np.arange(STEPS) + 1) * S // 10
        return memory_growth(samples, PID, ends, 5, None, np.array([0]))

    grows, stays = (500 + 20 * T_S) * MIB, np.full(len(T_S), 500.0 * MIB)
    assert planted(grows, stays) is None
    assert planted(grows, grows) is not None
