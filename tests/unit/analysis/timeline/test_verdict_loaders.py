"""Which of several loaders the headline names, and what share of the waiting it has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support import summaries
from support.events import LEARNS, MS, FakeRun

from trainprof.analysis.run.evidence import Evidence
from trainprof.analysis.run.ranks import common_evidence
from trainprof.analysis.summary.loader import Loader
from trainprof.analysis.timeline.checkpoints import Checkpoints
from trainprof.findings.verdict import verdict
from trainprof.record.schema import Kind


def loader(line: int, waited_s: float, **more: Any) -> Loader:
    plain = {"init_s": None, "first_batch_s": None}
    return summaries.loader(f"train.py:{line}", wait_total_s=waited_s, **plain | more)


def evidence(*loaders: Loader, **training: float) -> Evidence:
    """Half of training is waiting for loaders."""
    waits = {"data_wait": 1.0, **training}
    return Evidence(
        wall_s=3.0,
        startup_s=0.0,
        training_s=2 * sum(waits.values()),
        training=waits | {"forward": sum(waits.values())},
        has_device=False,
        steps=replace(summaries.healthy().training, per_step_s=None),
        loaders=list(loaders),
        checkpoints=Checkpoints(),
        evaluation_site=None,
        evaluation_call=None,
        other_place=None,
    )


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_of_ranks_that_wait_for_two_loaders_each_has_its_share(ranks: int) -> None:
    one = evidence(loader(41, 0.6), loader(42, 0.4))
    found = verdict(common_evidence([one] * ranks))
    assert found.site == "train.py:41"
    assert "the loop waits for its loaders in 50 % of training time" in found.headline
    assert found.headline.endswith("60 % of it for train.py:41")


def test_ranks_that_wait_for_a_loader_of_one_line_wait_for_that() -> None:
    each = [evidence(loader(41, seconds)) for seconds in (0.8, 1.2)]
    found = verdict(common_evidence(each))
    assert "the loop waits for train.py:41 in 50 % of training time" in found.headline
    # The longest wait of one rank is not the longest of all.
    uneven = [
        evidence(loader(41, 0.4), loader(42, 0.6)),
        evidence(loader(41, 0.9), loader(42, 0.1)),
        evidence(loader(41, 0.0), loader(42, 1.0)),
    ]
    assert verdict(common_evidence(uneven)).site == "train.py:42"


def test_loaders_of_one_line_are_waited_for_together() -> None:
    found = verdict(evidence(loader(41, 0.3), loader(41, 0.3), loader(42, 0.4)))
    assert found.site == "train.py:41"
    assert found.headline.endswith("60 % of it for train.py:41")


def test_waits_of_evaluation_are_none_of_training() -> None:
    both = loader(41, 5.0, evaluation_wait_s=4.6)
    found = verdict(evidence(both, loader(42, 0.6)))
    assert found.site == "train.py:42"
    assert found.headline.endswith("60 % of it for train.py:42")


@pytest.mark.parametrize("ended_s", [0.5, 50.0])
def test_ends_of_workers_count_as_far_as_they_lie_in_training(ended_s: float) -> None:
    """The rest came as the script ended."""
    one = loader(41, 0.4, end_s=ended_s)
    found = verdict(evidence(one, loader(42, 0.6), loader_end=0.5))
    assert found.site == "train.py:41"
    assert found.headline.endswith("60 % of it for train.py:41")  # 0.9 of 1.5 s


def test_a_loader_whose_restarts_cost_most_is_the_one_that_is_waited_for(tmp_path: Any) -> None:
    """A few labelled samples, whose workers start anew every fifth step, beside many others."""
    run = FakeRun()
    few, many, optimizer = run.loader(41, num_workers=2), run.loader(42), run.optimizer()
    run.iterate(many, 1)
    for step in range(100):
        if step % 5 == 0:
            if step:
                run.stop(few, 1)
                run.leaf(Kind.LOADER_CLOSE, 5 * MS, site=few)
            run.iterate(few, 20 * MS)
        run.next(few, 15 * MS if step % 5 == 0 else 1)
        run.next(many, 2 * MS)
        run.forward(1 * MS, flags=LEARNS)
        run.update(optimizer, 1)
    run.stop(many, 1)
    found = run.summary(tmp_path).verdict
    starts_ms, ends_ms, waits_ms = 20 * 35, 19 * 5, 100 * 2
    share = (starts_ms + ends_ms) / (starts_ms + ends_ms + waits_ms)
    assert (found.bottleneck, found.site) == ("data", "train.py:41")
    assert "the loop waits for its loaders in 91 % of training time" in found.headline
    assert found.headline.endswith(f"{share * 100:.0f} % of it for train.py:41")
