"""What is found of logits that a loss ignores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.cases import Planted, case_of, on_device
from support.found import found, minded, only

from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.diagnosis.diagnose import diagnose
from trainprof.analysis.diagnosis.together import together
from trainprof.analysis.finding import Finding
from trainprof.analysis.ignored_positions import IgnoringLoss, ignored_positions
from trainprof.analysis.names import Sites
from trainprof.analysis.padding import Padding
from trainprof.analysis.torch_settings import TorchSettings

IGNORING = IgnoringLoss("bert.py:52", 2304, 5000, 0.8, 1.5)


def ignoring(*losses: IgnoringLoss) -> Case:
    """2 s of forward and loss, and 4 s of backward."""
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    return case_of(healthy, parts={"backward": 4.0}, torch=TorchSettings(ignored=list(losses)))


def test_logits_that_the_loss_ignores() -> None:
    finding = only(ignoring(IGNORING))
    assert (finding.id, finding.site) == ("ignored_positions", "bert.py:52")
    assert "ignores 80 % of its 2,304 targets a step, for which 5,000 logits each" in finding.title
    # 1.5 times what forward and loss take, of which 80 % are for nothing.
    assert "about 2.40 s" in finding.title
    assert finding.recoverable_s == pytest.approx(1.05 * 0.8 * 1.5 * 2.0)
    assert "cross_entropy(head(hidden[known]), targets[known])" in str(finding.advice)
    assert "a metric" in minded(finding)
    assert "padding" not in minded(finding)


def test_several_losses_that_ignore_some_are_one_finding() -> None:
    other = replace(IGNORING, site="bert.py:60", ignored=0.5, times=0.2)
    finding = only(ignoring(IGNORING, other))
    assert finding.recoverable_s == pytest.approx(1.05 * (0.8 * 1.5 + 0.5 * 0.2) * 2.0)
    assert finding.also[0] == "so it is at bert.py:60: 50 % ignored"


def test_no_more_than_computing_is_saved() -> None:
    finding = only(ignoring(replace(IGNORING, times=10.0)))
    assert finding.predicted_speedup is not None
    assert 1 < finding.predicted_speedup[0] < finding.predicted_speedup[1] < 1e4


@pytest.mark.parametrize(
    "losses",
    [(), (replace(IGNORING, ignored=0.09),), (replace(IGNORING, times=0.05),)],
)
def test_losses_that_ignore_little_or_cost_little(losses: tuple[IgnoringLoss, ...]) -> None:
    assert found(ignoring(*losses)) == []


PADDED = Padding(12, 128.0, 36.0, 64.0, (), is_left_out=False)


def told_with_padding(padding: Padding, ignored: float) -> tuple[Case, list[Finding]]:
    """Forward and backward are 6 s, and half of that goes with batches half as wide."""
    losses = [replace(IGNORING, ignored=ignored, times=1.5)]
    settings = TorchSettings(ignored=losses, padding=padding)
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    case = case_of(healthy, parts={"backward": 4.0}, torch=settings)
    return case, diagnose(case).findings


@pytest.mark.parametrize(("ignored", "beside"), [(0.75, 1 / 3), (0.5, 0.0), (0.4, 0.0)])
def test_padding_that_a_loss_ignores_is_counted_once(ignored: float, beside: float) -> None:
    """Half of all positions are padding; what the loss ignores beside it is saved as well."""
    case, told = told_with_padding(PADDED, ignored)
    saved_s = {one.id: one.recoverable_s or 0.0 for one in told}
    assert set(saved_s) == {"padded_batches", "ignored_positions"}
    both_s = saved_s["padded_batches"] + beside * saved_s["ignored_positions"]
    alone = max(one.predicted_speedup[1] for one in told if one.predicted_speedup is not None)
    times = max(case.settled_s / (case.settled_s - both_s), alone)
    assert together(case, told) == pytest.approx(times)
    [finding] = [one for one in told if one.id == "ignored_positions"]
    assert "padding is among what the loss ignores" in minded(finding)


def test_losses_on_a_device_are_not_judged() -> None:
    assert "ignored_positions" not in found(on_device(ignoring(IGNORING)))


def test_they_are_read_from_what_was_told() -> None:
    sites = Sites({1: ["/work/bert.py", 52, "forward"]}, "/work")
    one = {"site": 1, "positions": 2304, "classes": 5000, "ignored": 0.8, "times": 1.5}
    note: dict[str, Any] = {"ignored_positions": {"looks": 7, "lines": [one, "x"]}, "number": 1}
    assert ignored_positions([note], sites) == [IGNORING]
    for nonsense in ({"ignored": "x"}, {"site": 9}, {"ignored": 0}, {"times": 0}, {"times": "x"}):
        bad = {"ignored_positions": {"looks": 7, "lines": [one | nonsense]}, "number": 1}
        assert ignored_positions([bad], sites) == []
    assert ignored_positions([{"ignored_positions": 3, "number": 1}], sites) == []
