"""Workers that each yield the whole stream, and those that share it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.cases import Planted, case_of
from support.events import FakeRun

from trainprof.analysis.loading.workers import WorkerStream, equal_workers
from trainprof.findings.diagnose import diagnose
from trainprof.record.schema import Topic

SAMPLES = tuple(range(8))


@pytest.mark.parametrize(
    ("workers", "expected"),
    [
        ({11: (7, SAMPLES), 12: (7, SAMPLES), 13: (7, SAMPLES)}, 3),
        ({11: (7, SAMPLES), 12: (7, SAMPLES), 13: (7, SAMPLES[::-1])}, 2),
        ({11: (7, SAMPLES), 12: (7, SAMPLES[::-1])}, 1),
        # The next epoch's workers yield what the last epoch's did.
        ({11: (7, SAMPLES), 12: (8, SAMPLES)}, None),
        ({11: (7, (5,) * 8), 12: (7, (5,) * 8)}, None),
        ({11: (7, SAMPLES), 99: (7, SAMPLES)}, None),  # of another loader
    ],
)
def test_workers_with_equal_samples(workers: dict[int, Any], expected: int | None) -> None:
    streams = {pid: WorkerStream(*stream, False) for pid, stream in workers.items()}
    rows = [{"pid": pid} for pid in (11, 12, 13)]
    fetch = Planted().having(fetch={"per_worker": rows}).loader.fetch
    assert fetch is not None
    assert equal_workers(streams, fetch) == expected


EQUAL = {"is_iterable": True, "equal_workers": 6, "shares_samples": False}


@pytest.mark.parametrize(
    ("changes", "is_repeated", "is_shared"),
    [
        ({}, True, False),
        ({"shares_samples": None}, True, False),  # of a library
        ({"equal_workers": 1}, False, True),  # by a rank, a queue, at random
        ({"equal_workers": None}, False, False),
        ({"shares_samples": True}, False, True),
        ({"has_asked_for_worker": True}, False, True),
        ({"is_iterable": False}, False, True),
    ],
)
def test_duplicated_stream(changes: dict[str, Any], is_repeated: bool, is_shared: bool) -> None:
    planted = Planted(workers=6, fetch_s=0.2, running=1.0, compute_s=0.01, cores=12)
    findings = diagnose(case_of(planted.having(**{**EQUAL, **changes}))).findings
    assert (findings[0].id == "duplicated_stream") is is_repeated
    if is_repeated:
        assert (findings[0].site, findings[0].severity) == ("train.py:41", "high")
        assert findings[0].predicted_speedup == pytest.approx([1.0, 6.0], rel=0.01)
    # More workers are not advised without a share for each.
    more = [x for x in findings if "num_workers" in x.advice]
    assert more
    assert all(bool(x.change) is is_shared for x in more)


@pytest.mark.parametrize(
    ("metadata", "asks", "shares"),
    [
        ({"is_own_stream": True}, False, False),
        ({"is_own_stream": True}, True, True),
        ({"is_own_stream": True, "set_up_as_workers_start": True}, False, True),
        ({"is_own_stream": True, "set_up_as_workers_start": None}, False, None),
        ({"is_own_stream": False}, True, None),  # of a library
        ({}, True, None),  # an older recording
    ],
)
def test_whether_a_stream_asks_for_its_worker(
    tmp_path: Path, metadata: dict[str, bool | None], asks: bool, shares: bool | None
) -> None:
    run = FakeRun()
    plain = {"is_iterable": True, "num_workers": 0, "set_up_as_workers_start": False}
    loader, optimizer = run.loader(**plain | metadata), run.optimizer()
    if asks:
        run.text(Topic.ENVIRONMENT, {"asked_for_worker": True})
    run.train_pass(loader, optimizer, 4, samples=[4] * 4)
    (recorded,) = run.summary(tmp_path).loaders
    assert recorded.shares_samples is shares
