"""Memory that grows with the steps, from planted samples."""

from __future__ import annotations

import numpy as np
import pytest

from trainprof.analysis.fetches import FetchTable
from trainprof.analysis.memory_growth import (
    LEAST_GROWTH_BYTES,
    memory_growth,
    room_of,
    workers_growth,
)
from trainprof.analysis.system_processes import Samples, Tick

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


def found(rss: np.ndarray, *, passes: int = 2, steps: int = STEPS, warmup: int = 5):
    ends = (np.arange(steps) + 1) * S // 10
    starts = np.linspace(0, ends[-1], passes, endpoint=False).astype(np.int64)
    return memory_growth(ticks(rss), PID, ends, warmup, 4096.0 * MIB, starts)


T_S = np.arange(0, STEPS / 10, 0.5)


def test_what_each_step_keeps():
    grown = found((500 + 20 * T_S) * MIB)
    assert grown is not None
    assert grown.bytes_per_step == pytest.approx(2 * MIB, rel=0.02)
    assert grown.steps_left == pytest.approx(2048, rel=0.02)
    assert grown.last_bytes - grown.first_bytes == pytest.approx(grown.steps * 2 * MIB, rel=0.02)
    assert grown.passes == 2


def test_batches_that_come_and_go_do_not_hide_it():
    chance = np.random.default_rng(3)
    grown = found((500 + 20 * T_S + chance.uniform(0, 80, len(T_S))) * MIB)
    assert grown is not None
    assert grown.bytes_per_step == pytest.approx(2 * MIB, rel=0.1)


@pytest.mark.parametrize(
    "mib",
    [
        500 + 0 * T_S,
        500 + 300 * np.minimum(T_S / 20, 1),  # a cache, filled half-way through
        500 + 300 * (1 - np.exp(-T_S / 8)),
        500 + 300 * (T_S > 20),  # something loaded once
        500 + 300 * (np.floor(T_S / 8) % 2),  # an evaluation's
        3000 + 7 * T_S,  # a tenth of it would be more
        100 + 0.9 * LEAST_GROWTH_BYTES / MIB * T_S / T_S[-1],
        900 - 10 * T_S,
    ],
)
def test_what_comes_to_an_end_is_no_growth(mib: np.ndarray):
    assert found(mib * MIB) is None


def test_warm_up_does_not_count():
    mib = 500 + 60 * np.minimum(T_S, 10)
    assert found(mib * MIB, warmup=100) is None


def test_few_samples_or_steps_tell_nothing():
    rss = (500 + 200 * T_S) * MIB
    assert found(rss[:8]) is None
    assert found(rss, steps=20) is None
    assert found(np.full(len(T_S), np.nan)) is None
    assert memory_growth([], PID, np.arange(100), 0, None, np.array([0])) is None
    assert memory_growth(ticks(rss), None, np.arange(400) * S // 10, 0, None, np.array([0])) is None


def test_the_room_that_is_left():
    sample = {"host_available_bytes": 900}
    assert room_of({}, sample) == 900
    memory = {"limit_bytes": 1000, "tree_pss_bytes": {"max": 300}}
    assert room_of(memory, sample) == 700
    assert room_of({"limit_bytes": 1000, "tree_pss_bytes": {"max": 3000}}, sample) is None
    # Pages that forked workers share are counted for each of them.
    assert room_of({"limit_bytes": 1000, "tree_rss_bytes": {"max": 300}}, sample) is None
    assert room_of({}, None) is None


def test_what_the_first_pass_reads_in_is_not_said_to_fill_it_all():
    grown = found((500 + 20 * T_S) * MIB, passes=1)
    assert grown is not None
    assert grown.steps_left is None


def test_mapped_files_that_are_read_are_no_growth():
    def planted(resident: np.ndarray, own: np.ndarray):
        told = [
            Tick(
                n * S // 2,
                {(PID, 5): {"rss_bytes": float(all_of), "rss_without_files_bytes": float(part)}},
            )
            for n, (all_of, part) in enumerate(zip(resident, own, strict=True))
        ]
        ends = (np.arange(STEPS) + 1) * S // 10
        return memory_growth(told, PID, ends, 5, None, np.array([0]))

    grows, stays = (500 + 20 * T_S) * MIB, np.full(len(T_S), 500.0 * MIB)
    assert planted(grows, stays) is None
    assert planted(grows, grows) is not None


def fetches(pids: dict[int, tuple[float, float]], loader: int = 1) -> FetchTable:
    """A fetch each 0.1 s of each worker, from second to second."""
    rows = [
        (number, pid, int(at * S))
        for number, (pid, (begin, end)) in enumerate(pids.items(), 1)
        for at in np.arange(begin, end, 0.1)
    ]
    count = len(rows)
    columns: dict[str, np.ndarray] = {
        name: np.zeros(count)
        for name in FetchTable.__dataclass_fields__
        if name not in ("loader", "pid", "worker", "start_ns", "wall_ns")
    }
    return FetchTable(
        loader=np.full(count, loader),
        pid=np.array([pid for _, pid, _ in rows], dtype=np.int32),
        worker=np.array([number for number, _, _ in rows], dtype=np.int32),
        start_ns=np.array([at for _, _, at in rows]),
        wall_ns=np.full(count, S // 20),
        **columns,
    )


def samples(mib: np.ndarray, name: str = "rss_without_files_bytes", each_s: float = 0.5) -> Samples:
    return [(int(n * each_s * S), {name: float(size) * MIB}) for n, size in enumerate(mib)]


def test_what_each_batch_leaves_in_its_worker():
    table = fetches({11: (0, 40), 12: (0, 40)})
    grown = workers_growth(
        table, 1, {11: samples(200 + 10 * T_S), 12: samples(300 + 10 * T_S)}, is_forked=False
    )
    assert grown is not None
    assert grown.workers == 2
    assert not grown.is_copied
    # 20 MiB a second, of 20 batches a second.
    assert grown.bytes_per_batch == pytest.approx(1 * MIB, rel=0.02)
    assert grown.last_bytes - grown.first_bytes == pytest.approx(
        grown.batches * grown.bytes_per_batch, rel=0.02
    )
    assert workers_growth(table, 2, {}, is_forked=True) is None


def test_pages_that_are_copied_show_in_each_ones_part_alone():
    long = np.arange(0, 200, 10.0)
    even = samples(np.full(400, 900.0))
    parts = samples(300 + 4 * long, "pss_anonymous_bytes", each_s=10)
    grown = workers_growth(fetches({11: (0, 195)}), 1, {11: [*even, *parts]}, is_forked=True)
    assert grown is not None
    assert grown.is_copied
    assert grown.bytes_per_batch == pytest.approx(0.4 * MIB, rel=0.05)


def test_workers_that_begin_anew_have_what_their_pass_gives_them():
    mib = 200 + 10 * T_S
    table = fetches({11: (0, 12), 12: (12, 40)})
    grown = workers_growth(table, 1, {11: samples(mib[:24]), 12: samples(mib)}, is_forked=True)
    assert grown is not None
    assert grown.workers == 1
    sizes = np.concatenate([200 + 10 * T_S[:24] for _ in range(4)])
    short = fetches({pid: (12.0 * (pid - 11), 12.0 * (pid - 10)) for pid in (11, 12, 13)})
    each = {pid: samples(sizes[:5]) for pid in (11, 12, 13)}
    assert workers_growth(short, 1, each, is_forked=True) is None


@pytest.mark.parametrize(
    "mib", [200 + 0 * T_S, 200 + 300 * (1 - np.exp(-T_S / 8)), 200 + 2 * T_S, 900 - 10 * T_S]
)
def test_workers_whose_memory_settles_do_not_grow(mib: np.ndarray):
    assert workers_growth(fetches({11: (0, 40)}), 1, {11: samples(mib)}, is_forked=True) is None


def test_what_workers_keep_beside_much_that_they_share_is_no_copy():
    long = np.arange(0, 200, 10.0)
    # A tenth of what they were given would be more than they keep.
    own = samples(4000 + 1.5 * np.arange(0, 200, 0.5))
    parts = samples(500 + 1.5 * long, "pss_anonymous_bytes", each_s=10)
    table = fetches({11: (0, 195)})
    grown = workers_growth(table, 1, {11: [*own, *parts]}, is_forked=True)
    assert grown is not None
    assert not grown.is_copied
    assert workers_growth(table, 1, {11: parts}, is_forked=False) is None
