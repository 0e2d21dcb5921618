"""Which of several loaders the headline names, and what share of the waiting it has."""

from __future__ import annotations

import re
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


def named(*evidences: Evidence) -> tuple[str | None, list[int]]:
    """Returns the line that the verdict of some ranks names, and the headline's percentages."""
    headline = verdict(common_evidence(list(evidences)))
    return headline.site, [int(x) for x in re.findall(r"(\d+) %", headline.headline)]


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_of_ranks_that_wait_for_two_loaders_each_has_its_share(ranks: int) -> None:
    both = evidence(loader(41, 0.6), loader(42, 0.4))
    assert named(*[both] * ranks) == ("train.py:41", [50, 60])


def test_ranks_that_wait_for_a_loader_of_one_line_wait_for_that() -> None:
    each = [evidence(loader(41, seconds)) for seconds in (0.8, 1.2)]
    assert named(*each) == ("train.py:41", [50])
    # The longest wait of one rank is not the longest of all.
    waits = [(0.4, 0.6), (0.9, 0.1), (0.0, 1.0)]
    uneven = [evidence(loader(41, first), loader(42, second)) for first, second in waits]
    assert named(*uneven)[0] == "train.py:42"


@pytest.mark.parametrize(
    ("loaders", "training", "line"),
    [
        pytest.param([(41, 0.3, {}), (41, 0.3, {}), (42, 0.4, {})], {}, 41, id="of one line"),
        pytest.param([(41, 5.0, {"evaluation_wait_s": 4.6}), (42, 0.6, {})], {}, 42, id="in tests"),
        # Ends of workers count as far as they lie in training: 0.9 of 1.5 s.
        pytest.param([(41, 0.4, {"end_s": 0.5}), (42, 0.6, {})], {"loader_end": 0.5}, 41, id="end"),
        pytest.param([(41, 0.4, {"end_s": 50}), (42, 0.6, {})], {"loader_end": 0.5}, 41, id="late"),
    ],
)
def test_what_is_waited_for(
    loaders: list[tuple[int, float, dict[str, float]]], training: dict[str, float], line: int
) -> None:
    rows = [loader(at, waited_s, **more) for at, waited_s, more in loaders]
    site, percents = named(evidence(*rows, **training))
    assert (site, percents[-1]) == (f"train.py:{line}", 60)


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
    verdict_of_run = run.summary(tmp_path).verdict
    starts_ms, ends_ms, waits_ms = 20 * 35, 19 * 5, 100 * 2
    share = (starts_ms + ends_ms) / (starts_ms + ends_ms + waits_ms)
    assert (verdict_of_run.bottleneck, verdict_of_run.site) == ("data", "train.py:41")
    assert re.findall(r"(\d+) %", verdict_of_run.headline) == ["91", f"{share * 100:.0f}"]
