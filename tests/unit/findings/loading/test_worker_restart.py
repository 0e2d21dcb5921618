"""What it takes to begin, again and again or once, and workers that save nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support import summaries
from support.cases import HEALTHY, Planted, case_of, idle_device, with_run, with_summary
from support.findings import (
    finding_of,
    handed_over,
    high_of,
    hot_line,
    in_rows,
    only,
    reported,
    with_slow_starts,
)

from trainprof.analysis.pipeline.bounds import Interval
from trainprof.analysis.summary.code import HotLine
from trainprof.analysis.summary.finding import COMES_ONCE, Finding
from trainprof.analysis.timeline.ledger import LOADER_KEYS
from trainprof.findings.diagnose import diagnose
from trainprof.findings.gain import FASTER_REST
from trainprof.findings.run_context import Feeder, RunContext

KEPT = {"persistent_workers": True}
WITHOUT = {"num_workers": 0}


def restarted(start_s: float = 0.1, fetch_s: float = 0.004, **loader: Any) -> Planted:
    """Two workers that take 100 ms to start in each of ten epochs."""
    planted = Planted(workers=2, fetch_s=fetch_s, compute_s=0.01, passes=10, start_s=start_s)
    return planted.having(**loader)


def begun(*starts_s: float, **loader: Any) -> Planted:
    """Epochs that take so long to begin, without workers."""
    planted = Planted(fetch_s=0.0002, compute_s=0.02, passes=len(starts_s))
    mean_s = sum(starts_s) / len(starts_s)
    first = summaries.statistics(mean_s, n=len(starts_s), max=max(starts_s))
    later = {"first_start_s": starts_s[0], "later_starts_s": sum(starts_s[1:])}
    return planted.having(first_batch_s=first, **later, **loader)


def opened_late(start_s: float = 8.0) -> Planted:
    return Planted(workers=2, fetch_s=0.004, compute_s=0.1, passes=1, start_s=start_s)


def stays_open(first_s: float) -> Planted:
    """Workers that live on, and open something in their first fetch of an epoch."""
    planted = with_slow_starts(first_s, 0.0, workers=2, is_persistent=True, fetch_s=0.004)
    return planted.having(hot_lines=[hot_line("making batches")])


def each_step(workers: int = 0, **loader: Any) -> Planted:
    planted = with_slow_starts(0.0, 0.0, workers=workers, **({"fetch_s": 0.004} if workers else {}))
    count = planted.loader.iterations
    begins_s = 0.06 if workers else 0.005
    return planted.having(
        init_s=summaries.statistics(begins_s - 0.004, n=count),
        first_batch_s=summaries.statistics(0.004, n=count),
        later_starts_s=(count - 1) * begins_s,
        passes=count,
        wait_s=None,
        wait_total_s=0.0,
        **loader,
    )


def many_at_once(first_s: float) -> Planted:
    """Eight workers on two cores: their first batches of 10 ms are there after 40 ms."""
    plain = {"workers": 8, "fetch_s": 0.01, "running": 1.0, "compute_s": 0.006, "passes": 10}
    planted = Planted(**plain, cores=2, is_persistent=True)
    first = summaries.statistics(first_s, n=10)
    return planted.having(first_batch_s=first, later_starts_s=9 * first_s)


def restart_of(planted: Planted) -> Finding:
    finding = finding_of("worker_restart", case_of(planted))
    assert finding is not None
    return finding


LEVEL = {"changed_between_passes": ["transform.p", "level"]}


@pytest.mark.parametrize(
    ("planted", "site", "change", "saved_s"),
    [
        # Started again for each epoch.
        pytest.param(restarted, "train.py:41", KEPT, 0.9, id="restarts"),
        pytest.param(lambda: restarted(built=10), "train.py:41", {}, 0.9, id="built for each"),
        pytest.param(
            lambda: restarted(built=10, persistent_workers=True),
            *("train.py:41", {}, 0.9),
            id="built for each, its workers live on in vain",
        ),
        pytest.param(
            lambda: restarted(built=10, datasets=10),
            *("train.py:41", {}, 0.9),
            id="of new parts for each",
        ),
        pytest.param(lambda: restarted(built=5), "train.py:41", KEPT, 0.5, id="folds"),
        pytest.param(lambda: restarted(built=2), "train.py:41", KEPT, 0.8, id="halves"),
        pytest.param(
            lambda: restarted(built=5, built_by="transformers"),
            *("train.py:41", KEPT, 0.9),
            id="a library's",
        ),
        pytest.param(
            lambda: restarted(**LEVEL),
            *("train.py:41", {}, 0.9),
            id="what workers that live on would not see",
        ),
        pytest.param(
            lambda: restarted(fetch_s=0.02, overlaps=True),
            *("train.py:41", {}, None),
            id="epochs that overlap",
        ),
        # A batch of one iterator is there 2 ms later at most.
        pytest.param(
            lambda: each_step(2, end_s=200 * 0.02),
            *("train.py:41", {}, 199 * 0.078),
            id="for each step",
        ),
        # Epochs that begin slowly.
        pytest.param(lambda: with_slow_starts(0.1, 0.0), "train.py:41", {}, 0.9, id="slow starts"),
        pytest.param(lambda: stays_open(0.1), "data.py:12", {}, None, id="opened in each epoch"),
        pytest.param(lambda: many_at_once(0.2), "train.py:41", {}, None, id="many workers"),
        pytest.param(each_step, "train.py:41", {}, None, id="an iterator for each step"),
        pytest.param(lambda: begun(0.01, 4.0, 0.01), "train.py:41", {}, 4.0, id="a later epoch"),
        # Beside workers that are started again it is another matter: the longer one is reported.
        pytest.param(
            lambda: with_slow_starts(0.3, 0.3, workers=2, fetch_s=0.004, start_s=0.1),
            *("train.py:41", {}, 9 * 0.3),
            id="a slow sampler beside restarts",
        ),
        # What comes once.
        pytest.param(opened_late, "train.py:41", {}, 8.0, id="a late first batch"),
        pytest.param(lambda: begun(5.0, 0.01, 0.01), "train.py:41", {}, 5.0, id="a late epoch"),
        pytest.param(
            lambda: begun(8.0, is_iterable=True, first_given_back_s=0.0),
            *("train.py:41", {}, 8.0),
            id="a stream that begins late",
        ),
        # Workers that cost more than they save.
        pytest.param(lambda: handed_over(), "train.py:41", WITHOUT, None, id="needless"),
        pytest.param(
            lambda: in_rows(workers=2, receive_s=Interval.exactly(0.001)),
            *("train.py:41", WITHOUT, None),
            id="of rows",
        ),
        pytest.param(
            lambda: handed_over().having(set_up_as_workers_start=True),
            *("train.py:41", {}, None),
            id="where the dataset needs them",
        ),
    ],
)
def test_worker_restart(
    planted: Callable[[], Planted], site: str, change: dict[str, Any], saved_s: float | None
) -> None:
    finding = restart_of(planted())
    assert (finding.site, finding.change) == (site, change)
    if saved_s is not None:
        assert finding.recoverable_s == pytest.approx(saved_s, rel=0.12)


@pytest.mark.parametrize(
    "planted",
    [
        pytest.param(Planted(**HEALTHY, passes=10, is_persistent=True), id="kept"),
        pytest.param(with_slow_starts(0.0, 0.0), id="as they go on"),
        pytest.param(with_slow_starts(0.0, 0.0, fetch_s=0.03), id="slow all along"),
        pytest.param(many_at_once(0.035), id="many workers on few cores"),
        pytest.param(opened_late(start_s=1.0), id="soon there"),
        pytest.param(begun(8.0, is_iterable=True, first_given_back_s=7.5), id="fills a buffer"),
        # Without them a step would take 3.5 ms instead of 1.6.
        pytest.param(handed_over(fetch_s=0.003), id="worth it"),
    ],
)
def test_what_begins_as_it_has_to(planted: Planted) -> None:
    assert "worker_restart" not in reported(case_of(planted))


def test_what_comes_once_is_of_a_whole_run_alone() -> None:
    context = case_of(opened_late())
    assert only(context).evidence[COMES_ONCE]
    assert reported(with_run(context, part="epoch 2")) == []
    assert COMES_ONCE not in restart_of(begun(0.01, 4.0)).evidence


def at_line(part: str = "first_batch", site: str = "data.py:36") -> HotLine:
    return HotLine(part, site, "__iter__", ["train.py:50"], 83, 0.9, 0.8)


def test_what_a_sampler_works_out_for_each_epoch_is_named_by_its_line() -> None:
    context = case_of(with_slow_starts(0.1, 0.09))
    finding = only(with_summary(context, part_lines=[at_line()]))
    assert (finding.id, finding.site) == ("worker_restart", "data.py:36")


@pytest.mark.parametrize(("at", "is_joined"), [("data.py:36", True), ("model.py:7", False)])
def test_what_is_collected_at_the_line_of_another_finding_comes_of_it(
    at: str, is_joined: bool
) -> None:
    context = case_of(with_slow_starts(0.1, 0.09), parts={"gc": 0.5})
    context = with_summary(context, part_lines=[at_line(), at_line("gc", at)])
    findings = {x.id: x.recoverable_s for x in diagnose(context).findings}
    assert ("gc_pauses" in findings) is not is_joined
    saved_s = 0.9 + 0.5 * is_joined
    assert findings["worker_restart"] == pytest.approx(saved_s, rel=0.05)


def test_the_lines_of_training_are_none_of_evaluations() -> None:
    planted = with_slow_starts(1.0, 0.0, role="evaluation", compute_s=0.001)
    planted = planted.having(id=1, site="train.py:44")
    training = Planted(workers=2, fetch_s=0.002, compute_s=0.05)
    context = case_of(training, planted, parts={"evaluation": 10.0})
    finding = finding_of("worker_restart", with_summary(context, part_lines=[at_line()]))
    assert finding is not None
    assert finding.site == "train.py:44"


def test_what_starting_needless_workers_takes_goes_too() -> None:
    plain = {"passes": 10, "is_persistent": False}
    kept, started = (restart_of(handed_over(**plain, start_s=s)) for s in (0.0, 0.1))
    saved_s = (started.recoverable_s or 0.0) - (kept.recoverable_s or 0.0)
    assert saved_s == pytest.approx(10 * 0.1, rel=0.1)
    low, high = restart_of(handed_over()).predicted_speedup or (0, 0)
    # Two and a half times by the model; more, for what sends batches beside it goes, too.
    assert 2.0 <= low <= 2.5 <= high <= 10.0


def test_the_only_batch_of_each_epoch_is_waited_for_too() -> None:
    loader = Planted(compute_s=0.01, fetch_s=0.04, passes=40).loader
    count = loader.iterations
    first = summaries.statistics(0.04, n=count)
    whole = {"passes": count, "ended": count, "first_batch_s": first, "wait_s": None}
    planted = Planted(compute_s=0.01, fetch_s=0.04, passes=40).having(**whole, wait_total_s=0.0)
    feeder = Feeder(planted.loader, None, None, None, None, 0.05 * count)
    assert feeder.wait_share == pytest.approx(0.8)
    workers = planted.having(num_workers=2).loader
    assert Feeder(workers, None, None, None, None, 1.0).wait_share == 0.0


# -- on a device


def felt(planted: Planted, idle_s: float, cause: str = "loader_s", **parts: float) -> RunContext:
    """Returns a run on a device that was idle for so long because of `cause`."""
    return case_of(planted, devices=[idle_device({cause: idle_s})], device="cuda:0", parts=parts)


@pytest.mark.parametrize(
    "planted",
    [with_slow_starts(0.1, 0.09), restarted(0.3), handed_over()],
    ids=["a sampler", "restarts", "needless"],
)
def test_of_starts_and_workers_a_device_feels_only_what_it_is_idle_for(planted: Planted) -> None:
    waited_s = sum(case_of(planted).training[key] for key in LOADER_KEYS)
    gains = []
    for share in (1.0, 0.5):
        context = felt(planted, share * waited_s)
        finding = finding_of("worker_restart", context)
        assert finding is not None
        gains.append(finding.recoverable_s or 0.0)
        assert gains[-1] <= share * waited_s + 1e-9
        most = context.training_s / (context.training_s - share * waited_s)
        # What is left for the host may get faster, what the device works does not.
        most /= 1 - FASTER_REST * (1 - 1 / most)
        assert high_of(finding) <= most + 1e-9
    assert gains[1] < 0.7 * gains[0]
    assert reported(felt(planted, 0.001)) == []


def test_what_evaluation_waits_for_is_felt_by_what_a_device_is_idle_in_it() -> None:
    planted = Planted(
        workers=2, fetch_s=0.004, compute_s=0.01, passes=10, start_s=0.3, role="evaluation"
    )
    waits = [case_of(planted, parts={"evaluation": 4.0})]
    waits.append(felt(planted, 4.0, "evaluation_s", evaluation=4.0))
    assert [reported(context) for context in waits] == [["worker_restart"]] * 2
    assert "worker_restart" not in reported(felt(planted, 0.1, "evaluation_s", evaluation=4.0))
