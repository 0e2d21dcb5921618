"""The threads that a loader's workers told of, and what is made of them."""

from __future__ import annotations

from typing import Any

import pytest
from support.events import MS, FakeRun

from trainprof.analysis.loading.workers import recorded_threads
from trainprof.analysis.run.metadata import Sites
from trainprof.analysis.summary.json_text import from_jsonable, to_jsonable
from trainprof.analysis.summary.loader import WorkerThreads
from trainprof.record.schema import Topic

SITES = Sites({7: ["/work/train.py", 69, "starts"]}, "/work")


@pytest.mark.parametrize(
    ("notes", "expected"),
    [
        ([{"cores": "0-1"}], None),
        ([{"worker_threads": {"torch": 8, "set_at": 7}}], WorkerThreads(8, "train.py:69")),
        ([{"worker_threads": {"torch": 1, "set_at": 0, "opencv": 4}}], WorkerThreads(1)),  # older
        # The last one counts, wherever it stands.
        (
            [
                {"worker_threads": {"torch": 8, "set_at": 7}, "number": 2},
                {"worker_threads": {"torch": 1, "set_at": 0}, "number": 1},
            ],
            WorkerThreads(8, "train.py:69"),
        ),
        # Damage.
        (["nothing", {"worker_threads": [8]}], None),
        ([{"worker_threads": {"torch": 0}}], None),
        ([{"worker_threads": {"torch": 8, "set_at": "7"}}], WorkerThreads(8)),
    ],
)
def test_what_a_worker_recorded(notes: list[Any], expected: WorkerThreads | None) -> None:
    assert recorded_threads(notes, SITES) == expected


def worker(pid: int, threads: int | None, loader: int) -> FakeRun:
    run = FakeRun(pid=pid, role="child", header={"forked_from": 4242, "ppid": 4242})
    if threads is not None:
        site = run.site(69)
        note = {"torch": threads, "set_at": site}
        run.text(Topic.ENVIRONMENT, {"worker_threads": note, "number": 1})
    run.fetch(MS, 4, site=loader, flags=1)
    return run


@pytest.mark.parametrize(
    ("of_workers", "expected"),
    [
        ((8, 8), 8),
        ((8, 2), 2),  # no more than that is sure
        ((None, 8), 8),
        ((None,), None),
    ],
)
def test_the_workers_of_a_loader(tmp_path, of_workers, expected):
    run = FakeRun()
    loader, optimizer = run.loader(num_workers=2), run.optimizer()
    other = run.loader(60)
    run.train_pass(loader, optimizer, 4)
    run.train_pass(other, optimizer, 4)
    for number, threads in enumerate(of_workers):
        worker(5000 + number, threads, loader).write(tmp_path)
    summary = run.summary(tmp_path)
    by_site = {x.site: x.worker_threads for x in summary.loaders}
    threads = None if expected is None else WorkerThreads(expected, "train.py:69")
    assert by_site == {"train.py:41": threads, "train.py:60": None}
    again = from_jsonable(to_jsonable(summary))
    assert [x.worker_threads for x in again.loaders] == [threads, None]
