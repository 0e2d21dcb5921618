"""What it takes to begin, again and again or once, and workers that save nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from support import summaries
from support.cases import Planted, case_of
from support.found import (
    found,
    handed_over,
    hot_line,
    in_rows,
    with_slow_starts,
)

from trainprof.analysis.pipeline.bounds import Interval
from trainprof.analysis.summary.code import HotLine
from trainprof.analysis.summary.finding import COMES_ONCE, Finding
from trainprof.findings.diagnose import diagnose
from trainprof.findings.run_context import RunContext

KEPT = {"persistent_workers": True}
WITHOUT = {"num_workers": 0}


def of_facts(planted: Planted, **metadata: Any) -> Planted:
    planted.loader = replace(planted.loader, **metadata)
    return planted


def restarted(**changes: Any) -> Planted:
    """Two workers that take 100 ms to start in each of ten passes."""
    plain = {"workers": 2, "fetch_s": 0.004, "compute_s": 0.01, "passes": 10, "start_s": 0.1}
    return Planted(**{**plain, **changes})


def begun(*starts_s: float, **metadata: Any) -> Planted:
    """Passes that take so long to begin, without workers."""
    planted = Planted(fetch_s=0.0002, compute_s=0.02, passes=len(starts_s))
    mean_s = sum(starts_s) / len(starts_s)
    first = summaries.statistics(mean_s, n=len(starts_s), max=max(starts_s))
    later = {"first_start_s": starts_s[0], "later_starts_s": sum(starts_s[1:])}
    return of_facts(planted, first_batch_s=first, **later, **metadata)


def opened_late(**changes: Any) -> Planted:
    plain = {"workers": 2, "fetch_s": 0.004, "compute_s": 0.1, "passes": 1, "start_s": 8.0}
    return Planted(**{**plain, **changes})


def stays_open(first_s: float) -> Planted:
    """Workers that live on, and open something in their first fetch of a pass."""
    planted = with_slow_starts(first_s, 0.0, workers=2, is_persistent=True, fetch_s=0.004)
    return of_facts(planted, hot_lines=[hot_line("making batches")])


def each_step(workers: int = 0, **metadata: Any) -> Planted:
    planted = with_slow_starts(0.0, 0.0, workers=workers, **({"fetch_s": 0.004} if workers else {}))
    count = planted.loader.iterations
    begins_s = 0.06 if workers else 0.005
    starts = {
        "init_s": summaries.statistics(begins_s - 0.004, n=count),
        "first_batch_s": summaries.statistics(0.004, n=count),
        "later_starts_s": (count - 1) * begins_s,
    }
    waits = {"passes": count, "wait_s": None, "wait_total_s": 0.0}
    return of_facts(planted, **starts, **waits, **metadata)


def many_at_once(first_s: float) -> Planted:
    """Eight workers on two cores: their first batches of 10 ms are there after 40 ms."""
    plain = {"workers": 8, "fetch_s": 0.01, "running": 1.0, "compute_s": 0.006, "passes": 10}
    planted = Planted(**plain, cores=2, is_persistent=True)
    first = summaries.statistics(first_s, n=10)
    return of_facts(planted, first_batch_s=first, later_starts_s=9 * first_s)


ROWS_OF_WORKERS: dict[str, Any] = {
    "workers": 2,
    "receive_s": Interval.exactly(0.001),
}


@pytest.mark.parametrize(
    ("planted", "site", "change", "saved_s"),
    [
        # Started again for each pass.
        pytest.param(restarted, "train.py:41", KEPT, 0.9, id="restarts"),
        pytest.param(
            lambda: of_facts(restarted(), built=10), "train.py:41", {}, 0.9, id="built for each"
        ),
        pytest.param(
            lambda: of_facts(restarted(), built=10, persistent_workers=True),
            "train.py:41",
            {},
            0.9,
            id="built for each, its workers live on in vain",
        ),
        pytest.param(
            lambda: of_facts(restarted(), built=10, datasets=10),
            "train.py:41",
            {},
            0.9,
            id="of new parts for each",
        ),
        pytest.param(lambda: of_facts(restarted(), built=5), "train.py:41", KEPT, 0.5, id="folds"),
        pytest.param(
            lambda: of_facts(restarted(), changed_between_passes=["level"]),
            "train.py:41",
            {},
            0.9,
            id="what workers that live on would not see",
        ),
        pytest.param(
            lambda: of_facts(restarted(fetch_s=0.02), overlaps=True),
            "train.py:41",
            {},
            None,
            id="passes that overlap",
        ),
        # A batch of one iterator is there 2 ms later at most.
        pytest.param(
            lambda: each_step(2, end_s=200 * 0.02),
            "train.py:41",
            {},
            199 * 0.078,
            id="for each step",
        ),
        # Passes that begin slowly.
        pytest.param(lambda: with_slow_starts(0.1, 0.0), "train.py:41", {}, 0.9, id="slow starts"),
        pytest.param(lambda: stays_open(0.1), "data.py:12", {}, None, id="opened in each pass"),
        pytest.param(lambda: many_at_once(0.2), "train.py:41", {}, None, id="many workers"),
        pytest.param(each_step, "train.py:41", {}, None, id="an iterator for each step"),
        pytest.param(lambda: begun(0.01, 4.0, 0.01), "train.py:41", {}, 4.0, id="a later pass"),
        # What comes once.
        pytest.param(opened_late, "train.py:41", {}, 8.0, id="a late first batch"),
        pytest.param(lambda: begun(5.0, 0.01, 0.01), "train.py:41", {}, 5.0, id="a late pass"),
        pytest.param(
            lambda: begun(8.0, is_iterable=True, first_given_back_s=0.0),
            "train.py:41",
            {},
            8.0,
            id="a stream that begins late",
        ),
        # Workers that cost more than they save.
        pytest.param(lambda: handed_over(), "train.py:41", WITHOUT, None, id="needless"),
        pytest.param(
            lambda: in_rows(**ROWS_OF_WORKERS), "train.py:41", WITHOUT, None, id="of rows"
        ),
        pytest.param(
            lambda: of_facts(handed_over(), set_up_as_workers_start=True),
            "train.py:41",
            {},
            None,
            id="where the dataset needs them",
        ),
    ],
)
def test_what_it_takes_to_begin(
    planted: Callable[[], Planted], site: str, change: dict[str, Any], saved_s: float | None
) -> None:
    known = first(planted())
    assert (known.id, known.site, known.change) == ("worker_restart", site, change)
    if saved_s is not None:
        assert known.recoverable_s == pytest.approx(saved_s, rel=0.12)


@pytest.mark.parametrize(
    "planted",
    [
        pytest.param(lambda: restarted(start_s=0.0, is_persistent=True), id="kept"),
        pytest.param(lambda: with_slow_starts(0.0, 0.0), id="as they go on"),
        pytest.param(lambda: with_slow_starts(0.0, 0.0, fetch_s=0.03), id="slow all along"),
        pytest.param(lambda: many_at_once(0.035), id="many workers on few cores"),
        pytest.param(lambda: opened_late(start_s=1.0), id="soon there"),
        pytest.param(
            lambda: begun(8.0, is_iterable=True, first_given_back_s=7.5), id="fills a buffer"
        ),
        # Without them a step would take 3.5 ms instead of 1.6.
        pytest.param(lambda: handed_over(fetch_s=0.003), id="worth it"),
    ],
)
def test_what_begins_as_it_has_to(planted: Callable[[], Planted]) -> None:
    assert "worker_restart" not in found(case_of(planted()))


def first(planted: Planted) -> Finding:
    context = case_of(planted)
    return next(finding for finding in diagnose(context).findings if finding.id == "worker_restart")


def test_what_comes_once_is_told_so_and_only_of_a_whole_run() -> None:
    context = case_of(opened_late())
    [findings] = diagnose(context).findings
    assert findings.evidence[COMES_ONCE]
    run = replace(context.summary.run, part="epoch 2")
    assert found(replace(context, summary=replace(context.summary, run=run))) == []
    assert COMES_ONCE not in first(begun(0.01, 4.0)).evidence


def at_line(part: str = "first_batch", site: str = "data.py:36") -> HotLine:
    return HotLine(part, site, "__iter__", ["train.py:50"], 83, 0.9, 0.8)


def with_lines(context: RunContext, *lines: HotLine) -> RunContext:
    return replace(context, summary=replace(context.summary, part_lines=[*lines]))


def test_what_a_sampler_works_out_for_each_pass_is_named_by_its_line() -> None:
    context = with_lines(case_of(with_slow_starts(0.1, 0.09)), at_line())
    [findings] = diagnose(context).findings
    assert (findings.id, findings.site) == ("worker_restart", "data.py:36")
    needless = with_slow_starts(0.3, 0.3, workers=2, fetch_s=0.0002, start_s=0.1, compute_s=0.0005)
    assert first(needless).change == {}
    # Beside workers that are started again it is another matter: the dearer one is told.
    both = with_slow_starts(0.3, 0.3, workers=2, fetch_s=0.004, start_s=0.1)
    assert first(both).recoverable_s == pytest.approx(9 * 0.3, rel=0.1)


def test_what_is_collected_at_the_line_of_another_finding_comes_of_it() -> None:
    context = case_of(with_slow_starts(0.1, 0.09), parts={"gc": 0.5})
    [joined] = diagnose(with_lines(context, at_line(), at_line("gc"))).findings
    assert (joined.id, joined.site) == ("worker_restart", "data.py:36")
    assert joined.recoverable_s == pytest.approx(0.9 + 0.5, rel=0.05)
    apart = diagnose(with_lines(context, at_line(), at_line("gc", "model.py:7"))).findings
    assert sorted(x.id for x in apart) == ["gc_pauses", "worker_restart"]


def test_the_lines_of_training_are_none_of_evaluations() -> None:
    planted = with_slow_starts(1.0, 0.0, role="evaluation", compute_s=0.001)
    planted = of_facts(planted, id=1, site="train.py:44")
    training = Planted(workers=2, fetch_s=0.002, compute_s=0.05)
    context = with_lines(case_of(training, planted, parts={"evaluation": 10.0}), at_line())
    [findings] = [
        finding for finding in diagnose(context).findings if finding.id == "worker_restart"
    ]
    assert findings.site == "train.py:44"


def test_what_starting_needless_workers_takes_goes_too() -> None:
    plain = {"passes": 10, "is_persistent": False}
    kept, started = (first(handed_over(**plain, start_s=s)) for s in (0.0, 0.1))
    saved_s = (started.recoverable_s or 0.0) - (kept.recoverable_s or 0.0)
    assert saved_s == pytest.approx(10 * 0.1, rel=0.1)
    low, high = first(handed_over()).predicted_speedup or (0, 0)
    # Two and a half times by the model; more, for what sends batches beside it goes, too.
    assert 2.0 <= low <= 2.5 <= high <= 10.0
