"""What is said of a loader: who makes its batches, what bounds it, what is out of the ordinary."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from support import summaries

from trainprof.analysis.summary.bounds import (
    COMPUTE,
    CPU,
    LATENCY,
    RECEIVE,
    SAMPLER,
    STORAGE,
)
from trainprof.analysis.summary.loader import Fetch, Loader
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report.text.loader_tables import slow_sample_columns
from trainprof.report.text.loader_words import (
    busy_words,
    deaths,
    ended_by,
    faults,
    keeps_up,
    limit_words,
    makers,
    needs_words,
    ready_words,
    sample_name,
    warnings,
)

STORAGE_WORDS = re.compile(r"disk|storage", re.IGNORECASE)


def loader(workers: int | None = 4, **changes: Any) -> Loader:
    """A loader with workers, in trouble only where `changes` say so."""
    made = summaries.fetch(0.4, 400, workers=workers or 0, running=0.9, asleep=0.1)
    plain = summaries.loader(
        "train.py:84", num_workers=workers, iterations=400, fetch=made, bound=None, passes=1
    )
    return replace(plain, **changes)


def made(**changes: Any) -> Fetch:
    fetch = loader().fetch
    assert fetch is not None
    return replace(fetch, **changes)


def run(used_percent: float = 390.0, cores: float = 4) -> RunSummary:
    """A run that keeps so much of so many cores busy."""
    cpu = {"cores_usable": cores, "tree_percent": {"mean": used_percent / 2, "p95": used_percent}}
    return replace(summaries.slow_loader(), system=summaries.system(cpu=cpu))


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (loader(4), "4 workers, 400 ms a batch each"),
        (loader(1), "1 worker, 400 ms a batch"),
        (loader(0), "no workers, 400 ms a batch"),
        (loader(None), "400 ms a batch"),
        (loader(4, fetch=None), "4 workers, a batch not measured"),
        (loader(None, fetch=None), "a batch not measured"),
    ],
)
def test_who_makes_a_batch(one: Loader, words: str) -> None:
    assert makers(one) == words


def test_how_busy_workers_were_and_how_often_a_batch_was_there() -> None:
    rows = [summaries.worker(n, 0.4, 100, busy=busy) for n, busy in enumerate((0.31, 0.97))]
    assert busy_words(loader(fetch=made(per_worker=rows))) == (
        "workers were busy 31 % to 97 % of the time"
    )
    assert busy_words(loader(1, fetch=made(per_worker=rows[:1]))) == (
        "the worker was busy 31 % of the time"
    )
    assert busy_words(loader(0)) == busy_words(loader(fetch=None)) == ""
    assert ready_words(loader(ready_share=0.73)) == "the batch was there in 73 % of cases"
    assert ready_words(loader(ready_share=None)) == ""


def test_only_a_loader_that_training_waits_for_needs_words() -> None:
    training_s = run().phases.training_s
    little = loader(wait_total_s=0.04 * training_s, init_s=None, first_batch_s=None)
    assert not needs_words(little, run())
    assert keeps_up(replace(little, ready_share=0.99)) == (
        "keeps up: the batch was there in 99 % of cases"
    )
    much = replace(little, wait_total_s=0.06 * training_s)
    assert needs_words(much, run())
    assert not needs_words(replace(much, thread="other"), run())
    starts = replace(little, first_batch_s=summaries.statistics(0.06 * training_s, n=1))
    assert needs_words(starts, run())
    assert needs_words(replace(little, lost_workers=[{}]), run())


@pytest.mark.parametrize(
    ("workers", "by", "parts", "limit"),
    [
        (0, LATENCY, {"blocked": 0.4, "compute": 0.1}, "batches are made between the steps, by"),
        (0, COMPUTE, {"blocked": 0.0003, "compute": 0.3577}, "computing; making a batch adds 300"),
        (4, LATENCY, {"blocked": 0.05, "compute": 0.05}, "4 workers give a batch per 100 ms, tr"),
        (1, LATENCY, {"blocked": 0.05, "compute": 0.05}, "1 worker gives a batch per 100 ms, tra"),
        (4, CPU, {"blocked": 0.05, "compute": 0.05}, "all 4 cores are at work"),
        (4, STORAGE, {"blocked": 0.05, "compute": 0.05}, "reading from disk, 3.00 MiB a batch"),
        (4, RECEIVE, {"receive": 0.03, "compute": 0.1}, "taking a batch of 4.60 MiB over from its"),
        (4, SAMPLER, {"sampler": 0.03, "compute": 0.01}, "drawing the indices of a batch, 30.0 ms"),
        (4, COMPUTE, {"compute": 0.1, "receive": 0.001}, "computing, 100 ms a batch; the loader k"),
        (4, COMPUTE, {"compute": 0.1, "receive": 0.02}, "computing, 100 ms a batch; loading adds"),
        (4, "something of a later version", {"compute": 0.1}, None),
    ],
)
def test_each_limit_is_named(
    workers: int, by: str, parts: dict[str, float], limit: str | None
) -> None:
    reads = summaries.fetch(0.4, 400, workers=workers, reading=0.9, running=0.1)
    one = loader(workers, bound=summaries.bound(by, **parts), fetch=reads)
    told = limit_words(one, run())
    assert told == "" if limit is None else told.startswith(limit)
    assert limit_words(replace(one, bound=None), run()) == ""


@pytest.mark.parametrize("nothing", [0, None])
def test_storage_is_never_said_where_no_byte_was_read(nothing: int | None) -> None:
    reading = summaries.fetch(0.4, 400, workers=4, reading=0.9, running=0.1)
    told = loader(
        bound=summaries.bound("storage", blocked=0.05, compute=0.05),
        fetch=replace(reading, read_bytes=nothing),
    )
    assert not STORAGE_WORDS.search(f"{limit_words(told, run())} {warnings(told, run())}")


def test_a_loader_without_trouble_has_no_warning() -> None:
    assert warnings(loader(), run()) == []
    assert warnings(loader(fetch=None), run()) == []
    crowded = summaries.fetch(0.4, 400, workers=4, runnable=0.7, throttled=0.3)
    unfelt = loader(passes=9, wait_total_s=0.1, first_batch_s=None, fetch=crowded)
    assert not needs_words(unfelt, run())
    assert warnings(unfelt, run()) == []


@pytest.mark.parametrize(
    ("lost", "words"),
    [
        (
            {"pid": 91, "worker": 2, "status": None, "signal": 9, "at_s": 3.5},
            "worker 2 (pid 91) was killed by SIGKILL 3.50 s into the run",
        ),
        (
            {"pid": 91, "worker": 0, "status": 1, "signal": None, "at_s": 3.5},
            "worker 0 (pid 91) ended with status 1 3.50 s into the run",
        ),
        ({"signal": 64}, "a worker was killed by SIGRTMAX"),
        ({"signal": 4444}, "a worker was killed by signal 4444"),
        ({}, "a worker died"),
        ({"worker": "x", "pid": [], "signal": {}, "at_s": float("nan")}, "a worker died"),
    ],
)
def test_a_worker_that_died_is_named(lost: dict[str, Any], words: str) -> None:
    assert deaths(loader(lost_workers=[lost])) == [words]


def test_workers_that_each_give_all_of_a_stream_are_named() -> None:
    streamed = {"is_iterable": True, "shares_samples": False}
    [sentence] = faults(loader(2, **streamed))
    assert "each of its 2 workers may yield the whole IterableDataset" in sentence
    [certain] = faults(loader(3, **streamed, equal_workers=2))
    assert certain == "2 of its 3 workers yield the same samples"
    assert faults(loader(3, **streamed, equal_workers=1)) == []
    assert faults(loader(1, **streamed)) == []
    assert faults(loader(2, **{**streamed, "shares_samples": True})) == []
    assert faults(loader(2, **{**streamed, "shares_samples": None})) == []


def test_workers_that_share_an_open_file_are_a_fault() -> None:
    held = {"open_files": ["data (BufferedReader)"], "start_method": "fork"}
    [sentence] = faults(loader(2, **held))
    assert "data (BufferedReader) open, and its 2 forked workers share its place" in sentence
    assert faults(loader(1, **held)) == []  # it has the file to itself
    assert faults(loader(2, **{**held, "start_method": "spawn"})) == []
    assert faults(loader(2, start_method="fork")) == []


def test_a_quota_that_stops_the_workers_is_named() -> None:
    stopped = loader(fetch=summaries.fetch(0.4, 400, workers=4, running=0.8, throttled=0.2))
    assert warnings(stopped, run()) == [
        "the container's CPU quota stops the making of batches 20 % of the time"
    ]


def test_a_sample_that_takes_far_longer_is_named_by_its_index() -> None:
    slow = [summaries.slow_sample(307, 0.25), summaries.slow_sample(None, 0.15)]
    fetch = made(typical_sample_s=0.0125, slow_samples=slow)
    assert warnings(loader(fetch=fetch), run()) == [
        "the slowest sample, dataset[307], took 250 ms, 20 x a typical one; 1 more like it"
    ]
    assert [sample_name(one) for one in slow] == ["dataset[307]", "number 5 of its batch"]
    assert sample_name({}) == "unknown"


def test_how_a_worker_ended() -> None:
    assert ended_by({"status": 3}) == "ended with status 3"
    assert ended_by({}) == "died"


def test_samples_that_are_all_quick_get_no_table() -> None:
    quick = made(typical_sample_s=0.0001, slow_samples=[summaries.slow_sample(7, 0.0009)])
    assert slow_sample_columns(quick) == []
    slow = made(typical_sample_s=0.0001, slow_samples=[summaries.slow_sample(7, 0.0011)])
    assert slow_sample_columns(slow) != []
