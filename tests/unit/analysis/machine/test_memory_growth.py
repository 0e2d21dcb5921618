"""Memory that grows with the steps, from planted samples."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support import summaries

from trainprof.analysis.machine.processes import (
    Tick,
    copied_by_workers,
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


WORKERS = {11: 0, 12: 1}


def forked(private: np.ndarray, own: np.ndarray, main: np.ndarray, *, every: int = 1):
    """Returns what two workers copied, whose private memory was read every so many samples."""
    samples = []
    for n, (mine, shared, parents) in enumerate(zip(private, own, main, strict=True)):
        each = {"rss_bytes": shared * MIB, "rss_without_files_bytes": shared * MIB}
        if n % every == 0:
            each["private_bytes"] = mine * MIB
        parent = {"rss_bytes": parents * MIB, "rss_without_files_bytes": parents * MIB}
        samples.append(Tick(n * S // 2, {(PID, 5): parent, (11, 6): each, (12, 6): each}))
    rows = [{"pid": PID, "worker": None}, *({"pid": p, "worker": n} for p, n in WORKERS.items())]
    loader = summaries.loader(
        "train.py:41", num_workers=2, python_objects=["rows (list of 600,000)"]
    )
    fetch = replace(summaries.fetch(0.01, 100), per_worker=rows)
    return copied_by_workers(samples, PID, [replace(loader, fetch=fetch)])


# As a case of lists of dicts had it: it flattens.
COPIES = 28 + 675 * (1 - np.exp(-T_S / 10))
STAYS, LOADS = 900 + 0 * T_S, 900 + COPIES


@pytest.mark.parametrize("every", [1, 20])
def test_what_workers_copy_of_shared_memory_though_it_flattens(every: int):
    copied = forked(COPIES, STAYS, STAYS, every=every)
    last = (len(T_S) - 1) // every * every
    assert (copied.workers, copied.first_bytes) == (2, 28 * MIB)
    assert copied.last_bytes == pytest.approx(COPIES[last] * MIB)
    assert copied.seconds == last / 2
    assert copied.python_objects == ["rows (list of 600,000)"]


@pytest.mark.parametrize(
    ("private", "own", "main"),
    [
        (COPIES, LOADS, STAYS),  # what it loads, or keeps in a cache
        (28 + 0 * T_S, STAYS, STAYS),
        (28 + COPIES / 8, STAYS, STAYS),  # imports, collections of garbage
        (400 + COPIES / 3, STAYS, STAYS),  # of the same size as before
        (COPIES, STAYS, 2000 - COPIES),  # the training process has given it back
    ],
)
def test_what_workers_have_of_their_own_is_no_copy(private, own, main):
    assert forked(private, own, main) is None


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
