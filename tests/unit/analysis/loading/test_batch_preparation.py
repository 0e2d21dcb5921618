"""A loader's fetches summed up, from logs with planted records: in all, by worker, slow samples."""

from __future__ import annotations

import json
import random
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from support.events import MS, FakeRun

from trainprof.analysis.machine.processes import resources_of, samples_by_pid, ticks_of
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.findings.summarize import summarize
from trainprof.record.schema import FAULTS_SHIFT, RECORD, Kind, SlowSampleFlag, Topic

S = 1_000_000_000


def fetch(run, ns, *, cpu=0, delay_us=0, read=0, batch_bytes=0, slow=(), stands_for=1, **record):
    """A measured fetch of 4 samples; `slow` are (index, ns), from its start on."""
    start, at = run.now, run.now
    run.fetch(ns, 4, **record)
    run.record(Kind.FETCH_CPU, start, start + cpu, site=delay_us, value=cpu, flags=stands_for)
    if read:
        value = read | 1 << FAULTS_SHIFT
        run.record(Kind.FETCH_IO, start, start, value=value, flags=stands_for)
    if batch_bytes:
        run.record(Kind.FETCH_BATCH, start, start, site=3, value=batch_bytes, flags=stands_for)
    for index, took in slow:
        flags = SlowSampleFlag.IS_INDEX
        run.record(Kind.SLOW_SAMPLE, at, at + took, value=index, flags=flags)
        at += took


def worker(main: FakeRun, pid: int, number: int, loader: int) -> FakeRun:
    """The log of a worker, which knows nothing, and that the main process knows it."""
    main.record(Kind.WORKER, main.now, main.now, site=loader, value=pid, flags=number + 1)
    return FakeRun(pid=pid, role="child", now=main.now, header={"ppid": main.pid})


def summary(tmp_path: Path, run: FakeRun, *workers: FakeRun, **manifest: Any) -> RunSummary:
    directory = run.write(tmp_path, **manifest)
    for number, log in enumerate(workers):
        (directory.events / f"{log.pid}-{number}.events").write_bytes(log.log_bytes())
    return summarize(directory)


def training(run: FakeRun, loader: int, batches: int = 4) -> None:
    run.train_pass(loader, run.optimizer(), batches)


def test_workers_are_known_by_the_iterator_that_started_them(tmp_path):
    """Two loaders with workers, started by spawn: the workers do not know whose they are."""
    run = FakeRun()
    loaders, logs = [run.loader(line, num_workers=1) for line in (1, 2)], []
    for loader, pid in zip(loaders, (11, 12), strict=True):
        logs.append(worker(run, pid, 0, loader))
        fetch(logs[-1], pid * MS, flags=1)
        training(run, loader)
    fetches = [x.fetch for x in summary(tmp_path, run, *logs).loaders]
    assert [x.dataset_s for x in fetches] == pytest.approx([0.011, 0.012])
    assert [[row["pid"] for row in x.per_worker] for x in fetches] == [[11], [12]]


def test_a_workers_row(tmp_path):
    run = FakeRun()
    loader = run.loader(num_workers=2)
    workers = [worker(run, 11 + number, number, loader) for number in range(2)]
    for number, log in enumerate(workers):
        log.passes_time(2 * MS)
        for _ in range(3):
            fetch(
                log,
                (number + 1) * 10 * MS,
                cpu=4 * MS,
                delay_us=1000,
                read=8192,
                batch_bytes=256,
                flags=number + 1,
            )
    run.iterate(loader)
    run.next(loader, 80 * MS)
    training_end = run.now
    fetches = summary(tmp_path, run, *workers).loaders[0].fetch
    assert (fetches.n, fetches.measured, fetches.samples) == (6, 6, 24)
    assert fetches.cpu_s == pytest.approx(0.024)
    assert (fetches.read_bytes, fetches.major_faults, fetches.batch_bytes) == (6 * 8192, 6, 256)
    assert fetches.batch_tensors == 3
    first, second = fetches.per_worker
    assert (first["worker"], first["pid"], first["n"]) == (0, 11, 3)
    assert (first["running_s"], first["runnable_s"], first["asleep_s"]) == pytest.approx(
        (0.012, 0.003, 0.015)
    )
    assert second["asleep_s"] == pytest.approx(0.045)
    asked_s = (training_end - run.start - 2 * MS) / 1e9
    assert first["busy_share"] == pytest.approx(0.030 / asked_s)
    assert first["first_fetch_s"] == pytest.approx(0.002)


def test_delays_are_no_loaders(tmp_path):
    """A run delay in us may look like the id of a loader that was built anew."""
    run = FakeRun()
    loaders = [run.loader(num_workers=0, serial=1) for _ in range(2)]
    optimizer = run.optimizer()
    site = json.loads(run.texts[loaders[0] - 1][1])["site"]
    for number in loaders:
        topic, text = run.texts[number - 1]
        run.texts[number - 1] = (topic, json.dumps(json.loads(text) | {"site": site}))
        run.iterate(number)
        for batch in range(4):
            with run.span(Kind.LOADER_NEXT, site=number, value=batch + 1):
                fetch(run, 10 * MS, delay_us=loaders[1])
            run.learn(optimizer)
        run.stop(number)
    [row] = summary(tmp_path, run).loaders
    assert row.passes == 2
    assert row.fetch.runnable_s == pytest.approx(8 * loaders[1] * 1e-6)


# Slow samples


def test_slow_samples_have_an_index_or_a_place_and_what_kept_them_from_the_cores(tmp_path):
    run = FakeRun()
    loader = run.loader(num_workers=1)
    log = worker(run, 11, 0, loader)
    log.record(Kind.SLOW_SAMPLE, log.now, log.now + MS, value=3)
    fetch(log, 20 * MS, slow=((7, 3 * MS),), flags=1)
    fetch(log, 20 * MS, slow=((8, 9 * MS),), flags=1, delay_us=6000)
    fetch(log, 20 * MS, slow=((9, 5 * MS),), flags=1, delay_us=6000)
    training(run, loader)
    samples = summary(tmp_path, run, log).loaders[0].fetch.slow_samples
    assert [(x["index"], x["place_in_batch"], x["kept_off_s"]) for x in samples] == [
        (8, None, 0.006),
        (9, None, 0.005),
        (7, None, 0.0),
        (None, 3, 0.0),
    ]


# What the supervisor's samples add


def test_resources_of_a_process_in_a_stretch_of_time():
    figures = {
        "rss_bytes": [1, 9, 5, 20],
        "threads": [1, 2, 1, 1],
        "read_bytes": [0, 100, 300, 900],
        "user_ns": [0, 0, S, S],
    }
    lines = [
        {
            "t_ns": number * S,
            "processes": [
                {"pid": 7, "started_ns": 5, "state": state}
                | {name: values[number] for name, values in figures.items()}
            ],
        }
        for number, state in enumerate("RRSD")
    ]
    samples = samples_by_pid(ticks_of(lines), [7, 8])
    resources = resources_of(samples[7], S, 2 * S)
    assert (resources["rss_bytes"], resources["threads"]) == (9, 2)
    assert (resources["read_bytes_per_s"], resources["cpu_percent"]) == (200, 100)
    assert samples[8] == []
    assert resources_of([], 0, S) == {}


# Damage

DETAILS = [int(kind) for kind in Kind if Kind.FETCH_CPU <= kind < Kind.LINE]


@pytest.mark.parametrize("seed", range(16))
def test_details_of_any_content_do_not_stop_the_analysis(tmp_path, seed):
    """Their times may be anything, and near those of real fetches most of all."""
    chance = random.Random(seed)
    run = FakeRun()
    loader = run.loader(num_workers=2)
    workers = [worker(run, 11 + number, number, loader) for number in range(2)]
    for log in workers:
        for _ in range(20):
            fetch(log, chance.randrange(1, 10 * MS), cpu=chance.randrange(MS), flags=1)
    training(run, loader, 30)
    for log in (run, *workers):
        for _ in range(300):
            start = chance.choice([run.start, run.now, chance.getrandbits(64), log.now])
            start += chance.randrange(-100, 100)
            end = chance.choice([start, start + chance.randrange(MS), chance.getrandbits(64)])
            columns = (
                chance.choice(DETAILS),
                *(chance.getrandbits(chance.choice(bits)) for bits in ([8], [1, 16], [3, 32])),
                *(max(time, 0) % (1 << 64) for time in (start, end)),
                chance.getrandbits(chance.choice([4, 33, 64])),
            )
            log.records.append(RECORD.pack(*columns))
    damaged = summary(tmp_path, run, *workers)
    assert damaged.training.steps == 30
    assert sum(x.fetch.n for x in damaged.loaders if x.fetch) <= 40
    assert json.dumps(asdict(damaged), allow_nan=False)


@pytest.mark.parametrize(("is_inside", "is_noted"), [(True, False), (False, False), (False, True)])
def test_a_loader_that_uses_a_device_as_it_prepares_batches(tmp_path, is_inside, is_noted):
    """It copies to one in its fetches, or its batches are on one."""
    run = FakeRun()
    using, other = run.loader(1), run.loader(2)
    optimizer = run.optimizer()
    if is_noted:
        run.text(Topic.ENVIRONMENT, {"batch_on_device": using})
    for loader in (using, other):
        run.iterate(loader)
        for number in range(1, 5):
            with run.span(Kind.LOADER_NEXT, site=loader, value=number):
                with run.span(Kind.FETCH, value=4):
                    run.passes_time(MS)
                    if loader == using and is_inside:
                        run.leaf(Kind.TRANSFER, MS, flags=1, value=8)
                run.passes_time(MS)
            if not is_inside:
                run.leaf(Kind.TRANSFER, MS, flags=1, value=8)
            run.learn(optimizer)
        run.stop(loader)
    touches = {loader.id: loader.touches_device for loader in summary(tmp_path, run).loaders}
    assert touches == {using: is_inside or is_noted, other: False}
