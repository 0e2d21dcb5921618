"""Workers that each yield the whole stream, and those that share it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.cases import Planted, case_of
from support.events import FakeRun

from trainprof.analysis.loading.workers import WorkerStream, equal_workers, recorded_stream
from trainprof.analysis.summary.loader import Fetch
from trainprof.findings.diagnose import diagnose
from trainprof.record.schema import Topic

SAMPLES = tuple(range(8))


@pytest.mark.parametrize(
    ("notes", "expected"),
    [
        ([], WorkerStream(None, (), asked_for_worker=False)),
        (
            [{"first_samples": {"base_seed": 7, "checksums": [1, 2]}}, {"asked_for_worker": True}],
            WorkerStream(7, (1, 2), asked_for_worker=True),
        ),
        # Damage.
        (["nothing", {"first_samples": 3}], WorkerStream(None, (), asked_for_worker=False)),
        (
            [{"first_samples": {"base_seed": "7", "checksums": ["1", 2]}}],
            WorkerStream(None, (2,), asked_for_worker=False),
        ),
    ],
)
def test_notes_of_a_worker(notes: list[Any], expected: WorkerStream) -> None:
    assert recorded_stream(notes) == expected


@pytest.mark.parametrize(
    ("workers", "expected"),
    [
        ({11: (7, SAMPLES), 12: (7, SAMPLES), 13: (7, SAMPLES)}, 3),
        ({11: (7, SAMPLES), 12: (7, SAMPLES), 13: (7, SAMPLES[::-1])}, 2),
        ({11: (7, SAMPLES), 12: (7, SAMPLES[::-1])}, 1),
        # The next epoch's workers yield what the last epoch's did.
        ({11: (7, SAMPLES), 12: (8, SAMPLES)}, None),
        ({11: (7, (5,) * 8), 12: (7, (5,) * 8)}, None),
        ({11: (7, SAMPLES)}, None),
        ({11: (7, SAMPLES), 99: (7, SAMPLES)}, None),  # of another loader
    ],
)
def test_workers_with_equal_samples(
    workers: dict[int, tuple[int, tuple[int, ...]]], expected: int | None
) -> None:
    streams = {
        pid: WorkerStream(seed, samples, asked_for_worker=False)
        for pid, (seed, samples) in workers.items()
    }
    fetch = case_of(Planted()).feeding[0].loader.fetch
    assert isinstance(fetch, Fetch)
    fetch = replace(fetch, per_worker=[{"pid": pid} for pid in (11, 12, 13)])
    assert equal_workers(streams, fetch) == expected


@pytest.mark.parametrize(
    ("changes", "is_found"),
    [
        ({"equal_workers": 6, "shares_samples": False}, True),
        ({"equal_workers": 6, "shares_samples": None}, True),  # of a library
        ({"equal_workers": 1, "shares_samples": False}, False),  # by a rank, a queue, at random
        ({"equal_workers": None, "shares_samples": False}, False),
        ({"equal_workers": 6, "shares_samples": True}, False),
        ({"equal_workers": 6, "shares_samples": False, "has_asked_for_worker": True}, False),
        ({"equal_workers": 6, "is_iterable": False}, False),
    ],
)
def test_a_stream_that_each_worker_yields_comes_first(
    changes: dict[str, Any], is_found: bool
) -> None:
    planted = Planted(workers=6, fetch_s=0.2, running=1.0, compute_s=0.01, cores=12)
    planted.loader = replace(planted.loader, **{"is_iterable": True, **changes})
    findings = diagnose(case_of(planted)).findings
    assert (findings[0].id == "duplicated_stream") is is_found
    if is_found:
        assert findings[0].severity == "high"
        assert findings[0].predicted_speedup == pytest.approx([1.0, 6.0], rel=0.01)
    # More workers are not advised without a share for each.
    more = [x for x in findings if "num_workers" in x.advice]
    assert more
    is_shared = changes.get("is_iterable") is False or not is_found
    is_shared &= changes != {"equal_workers": None, "shares_samples": False}
    assert all(bool(x.change) is is_shared for x in more)


@pytest.mark.parametrize(
    ("facts", "asks", "shares"),
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
    tmp_path: Path, facts: dict[str, bool | None], asks: bool, shares: bool | None
) -> None:
    run = FakeRun()
    plain = {"is_iterable": True, "num_workers": 0, "set_up_as_workers_start": False}
    loader, optimizer = run.loader(**plain | facts), run.optimizer()
    if asks:
        run.text(Topic.ENVIRONMENT, {"asked_for_worker": True})
    run.train_pass(loader, optimizer, 4, samples=[4] * 4)
    (found,) = run.summary(tmp_path).loaders
    assert found.shares_samples is shares
