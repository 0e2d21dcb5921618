"""What it takes to begin, again and again or once, and workers that save nothing."""

from __future__ import annotations

from typing import Any

import pytest
from support import summaries
from support.cases import HEALTHY, Planted, case_of, idle_device, with_run, with_summary
from support.findings import (
    finding_of,
    handed_over,
    high_of,
    hot_line,
    is_silent,
    only,
    reports,
    row,
    with_slow_starts,
)

from trainprof.analysis.model.torch_settings import TorchSettings
from trainprof.analysis.summary.code import PREPARATION, HotLine
from trainprof.analysis.timeline.ledger import LOADER_KEYS
from trainprof.findings.diagnose import diagnose
from trainprof.findings.gain import FASTER_REST
from trainprof.findings.run_context import RunContext

KEPT = {"persistent_workers": True}
WITHOUT = {"num_workers": 0}


def restarted(start_s: float = 0.1, fetch_s: float = 0.004, **loader: Any) -> Planted:
    """Two workers that take 100 ms to start in each of ten epochs."""
    planted = Planted(workers=2, fetch_s=fetch_s, compute_s=0.01, passes=10, start_s=start_s)
    return planted.having(**loader)


def reloaded(planted: Planted) -> RunContext:
    """Lightning's Trainer builds its loader again for each epoch."""
    return case_of(planted, torch=TorchSettings(reloads_loaders=True))


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
    return planted.having(hot_lines=[hot_line(PREPARATION)])


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


def at_line(part: str = "first_batch", site: str = "data.py:36") -> HotLine:
    return HotLine(part, site, "__iter__", ["train.py:50"], 83, 0.9, 0.8)


SAMPLER = with_summary(case_of(with_slow_starts(0.1, 0.09)), part_lines=[at_line()])
LEVEL = {"changed_between_passes": ["transform.p", "level"]}
STREAM = {"is_iterable": True, "first_given_back_s": 0.0}
A_LATER = {"saved_s": 0.9, "rel": 0.12}

test_worker_restart = reports(
    "worker_restart",
    {
        # Started again for each epoch.
        "restarts": row(restarted(), change=KEPT, **A_LATER),
        "built for each": row(restarted(built=10), change={}, **A_LATER),
        "reloaded": row(reloaded(restarted(built=10)), change={}, **A_LATER),
        "reloaded, persistent workers": row(
            reloaded(restarted(built=10, persistent_workers=True)), change={}, **A_LATER
        ),
        # Of 19 iterators, each of which takes 100 ms, 10 are used: so long do those wait, too.
        "reloaded, with two iterators each": row(
            reloaded(restarted(built=10, init_s=summaries.statistics(0.1, n=19))),
            change={},
            saved_s=18 * 0.1 + 9 * 0.1,
            rel=0.12,
        ),
        "folds": row(restarted(built=5), change=KEPT, saved_s=0.5, rel=0.12),
        "what persistent workers would not see": row(restarted(**LEVEL), change={}, **A_LATER),
        "epochs that overlap": row(restarted(fetch_s=0.02, overlaps=True), change={}),
        # A batch of one iterator is there 2 ms later at most.
        "for each step": row(each_step(2, end_s=4.0), change={}, saved_s=199 * 0.078),
        # Epochs that begin slowly.
        "slow starts": row(with_slow_starts(0.1, 0.0), change={}, **A_LATER),
        "a sampler": row(SAMPLER, "data.py:36", change={}, **A_LATER),
        "opened in each epoch": row(stays_open(0.1), "data.py:12", change={}),
        "an iterator for each step": row(each_step(), change={}),
        "a later epoch": row(begun(0.01, 4.0, 0.01), change={}, saved_s=4.0, rel=0.12),
        # What comes once.
        "a late first batch": row(opened_late(), change={}, saved_s=8.0, comes_once=True),
        "a line ahead of the first batch": row(
            with_summary(case_of(begun(8.0)), part_lines=[at_line()]),
            "data.py:36",
            change={},
            saved_s=8.0,
            comes_once=True,
        ),
        "a sampler ahead of workers": row(
            with_summary(
                case_of(opened_late()),
                part_lines=[at_line("loader_start"), at_line("data_wait", "train.py:50")],
            ),
            "data.py:36",
            change={},
            saved_s=8.0,
            comes_once=True,
        ),
        "workers that training waits for": row(
            with_summary(
                case_of(opened_late()),
                part_lines=[at_line(x, "train.py:50") for x in ("first_batch", "data_wait")],
            ),
            change={},
            saved_s=8.0,
            comes_once=True,
        ),
        "a late stream": row(begun(8.0, **STREAM), change={}, saved_s=8.0, comes_once=True),
        # Workers that cost more than they save: two and a half times by the model, and more, as
        # what sends batches beside it goes, too.
        "needless": row(handed_over(), change=WITHOUT, low=(2.0, 2.5), high=(2.5, 10.0)),
        "needed by its dataset": row(handed_over().having(set_up_as_workers_start=True), change={}),
    },
)

test_what_begins_as_it_has_to = is_silent(
    "worker_restart",
    {
        "kept": Planted(**HEALTHY, passes=10, is_persistent=True),
        "as they go on": with_slow_starts(0.0, 0.0),
        "soon there": opened_late(start_s=1.0),
        "fills a buffer": begun(8.0, is_iterable=True, first_given_back_s=7.5),
        "a late first batch of a part": with_run(case_of(opened_late()), part="epoch 2"),
        # Without them a step would take 3.5 ms instead of 1.6.
        "worth it": handed_over(fetch_s=0.003),
    },
)


@pytest.mark.parametrize(("at", "is_joined"), [("data.py:36", True), ("model.py:7", False)])
def test_what_is_collected_at_the_line_of_another_finding_comes_of_it(
    at: str, is_joined: bool
) -> None:
    context = case_of(with_slow_starts(0.1, 0.09), parts={"gc": 0.5})
    context = with_summary(context, part_lines=[at_line(), at_line("gc", at)])
    findings = {x.id: x.recoverable_s for x in diagnose(context).findings}
    assert ("gc_pauses" in findings) is not is_joined
    assert findings["worker_restart"] == pytest.approx(0.9 + 0.5 * is_joined, rel=0.05)


def test_what_starting_needless_workers_takes_goes_too() -> None:
    kept_s, started_s = (
        only(case_of(handed_over(passes=10, is_persistent=False, start_s=s))).recoverable_s or 0.0
        for s in (0.0, 0.1)
    )
    assert started_s - kept_s == pytest.approx(10 * 0.1, rel=0.1)


@pytest.mark.parametrize(
    "planted",
    [with_slow_starts(0.1, 0.09), restarted(0.3), handed_over()],
    ids=["a sampler", "restarts", "needless"],
)
def test_of_starts_and_workers_a_device_feels_only_what_it_is_idle_for(planted: Planted) -> None:
    waited_s = sum(case_of(planted).training[key] for key in LOADER_KEYS)
    gains = []
    for idle_s in (waited_s, 0.5 * waited_s):
        devices = [idle_device({"loader_s": idle_s})]
        context = case_of(planted, devices=devices, device="cuda:0")
        finding = finding_of("worker_restart", context)
        assert finding is not None
        gains.append(finding.recoverable_s or 0.0)
        assert gains[-1] <= idle_s + 1e-9
        most = context.training_s / (context.training_s - idle_s)
        # What is left for the host may get faster, what the device works does not.
        most /= 1 - FASTER_REST * (1 - 1 / most)
        assert high_of(finding) <= most + 1e-9
    assert gains[1] < 0.7 * gains[0]
