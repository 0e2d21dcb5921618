"""Which share of training's steps a loader feeds, and what it gives where that is not all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.cases import Planted, case_of
from support.loops import Loop

from trainprof.analysis.summary.finding import LIKELY, Finding
from trainprof.analysis.timeline.step_series import read_recorded_steps
from trainprof.analysis.timeline.step_table import are_all_fed, shares_of_steps
from trainprof.findings.diagnose import diagnose
from trainprof.findings.gain import times_without
from trainprof.findings.run_context import RunContext
from trainprof.tune.loader_forecast import LoaderForecast, modelled

ALL_FED = {
    "epochs": "3( i1 20( n1 l ) s1 i2 300( n2 f0 ) s2 )",
    "left early": "6( i1 4( n1 l ) )",
    "a new iterator each step": "30( i1 n1 l )",
    "looking ahead": "4( i1 n1 4( n1 l ) s1 l )",
    "accumulating": "3( i1 5( 3( n1 f b ) n1 f b u ) s1 )",
    "several updates": "i1 10( n1 5( l ) ) s1",
    "after a slow first step": "i1 n1 f ~ b u 19( n1 l ) s1",  # as torch.compile makes it
    "saving behind epochs": "4( i1 10( n1 l ) s1 c )",
}
BY_TURNS = "5( i1 6( n1 l ) s1 i2 4( n2 l ) s2 )"
KEPT_BATCHES = "i1 25( n1 l ) s1 150( l )"  # itertools.cycle(loader)
FROM_KEPT = 25 * 0.65 / (25 * 0.65 + 150 * 0.55)
# The shorter one begins again; the third is asked in every tenth step.
ZIPPED = "i1 i2 i3 " + " ".join(
    f"n1 {'s2 i2 ' * (step > 0 and step % 8 == 0)}n2 {'n3 ' * (step % 10 == 0)}l"
    for step in range(40)
)


def shares(tmp_path: Any, loop: str) -> tuple[list[float | None], bool]:
    """Returns the share of each of three loaders, and whether all steps are fed."""
    played = Loop().play(loop)
    recorded = read_recorded_steps(played.run.write(tmp_path))
    by_id = shares_of_steps(recorded.timeline, recorded.steps)
    return [by_id.get(played.loaders.get(n, 0)) for n in (1, 2, 3)], are_all_fed(recorded.timeline)


@pytest.mark.parametrize(
    ("loop", "expected", "is_all"),
    [
        *((loop, [1.0, None, None], True) for loop in ALL_FED.values()),
        (ZIPPED, [1.0, 1.0, 31 / 40], True),
        # An iterator made long ahead of its first batch, for a second phase.
        ("i2 i1 60( n1 l ) s1 20( n2 l ) s2", [0.75, 0.25, None], True),
        (BY_TURNS, [0.6, 0.4, None], True),
        (KEPT_BATCHES, [FROM_KEPT, None, None], False),
    ],
    ids=[*ALL_FED, "zipped", "phases", "by turns", "kept batches"],
)
def test_shares_of_steps(tmp_path, loop, expected, is_all):
    by_loader, are_all = shares(tmp_path, loop)
    assert are_all is is_all
    for share, wanted in zip(by_loader, expected, strict=True):
        assert share == (wanted if wanted in (None, 1.0) else pytest.approx(wanted, abs=0.01))


@pytest.mark.parametrize(
    ("loop", "samples"),
    [(KEPT_BATCHES, None), (ALL_FED["several updates"], 80), (ALL_FED["accumulating"], 480)],
)
def test_samples_of_kept_batches_are_not_counted(tmp_path, loop, samples):
    played = Loop()
    plain = played.run.next
    played.run.next = lambda loader, ns=0, **_: plain(loader, ns, samples=8)  # type: ignore[method-assign]
    summary = played.play(loop).run.summary(tmp_path)
    assert summary.training.samples == samples
    assert (summary.training.samples_per_s is None) is (samples is None)
    assert ("training.samples" in summary.not_observed) is (samples is None)


def in_two_phases(planted: Planted, share: float) -> RunContext:
    """Returns a run of which a loader feeds a share of the steps' time."""
    plain = case_of(planted)
    # The others' steps, which wait for nothing.
    longer_s = plain.training_s / share
    run = replace(plain.summary.run, wall_s=1.1 * longer_s)
    [feeding] = plain.feeding
    part = replace(feeding, training_s=longer_s, steps_share=share)
    summary = replace(plain.summary, run=run)
    return replace(plain, summary=summary, training_s=longer_s, feeding=[part])


def only(context: RunContext) -> Finding:
    [finding] = diagnose(context).findings
    return finding


@pytest.mark.parametrize(
    "planted",
    [
        {"fetch_s": 0.05, "compute_s": 0.01},
        {"workers": 1, "fetch_s": 0.05, "compute_s": 0.01},
        {"fetch_s": 0.05, "running": 1.0, "compute_s": 0.01, "collate": 0.8},
    ],
)
@pytest.mark.parametrize("share", [0.3, 0.6])
def test_steps_gain_no_more_than_those_take_that_are_fed(planted, share):
    whole = only(case_of(Planted(**planted)))
    part = only(in_two_phases(Planted(**planted), share))
    assert (part.id, part.of_steps) == (whole.id, True)
    for end, alone in zip(part.predicted_speedup, whole.predicted_speedup, strict=True):
        assert end <= times_without(share)
        assert end == pytest.approx(1 / (1 - share * (1 - 1 / alone)), rel=0.02)
    alone = whole.evidence[LIKELY]
    assert part.evidence[LIKELY] == pytest.approx(1 / (1 - share * (1 - 1 / alone)), rel=0.02)
    assert part.recoverable_s == pytest.approx(whole.recoverable_s, rel=0.15)


@pytest.mark.parametrize(("share", "other", "all_of_them"), [(0.3, 0.2, 0.5), (0.6, 0.39, 1.0)])
def test_the_forecast_of_loaders_by_turns(share: float, other: float, all_of_them: float) -> None:
    both = [Planted(fetch_s=0.05, compute_s=0.01, passes=1) for _ in range(2)]
    both[1].loader = replace(both[1].loader, id=1, site="train.py:50")
    context = case_of(*both)
    training = replace(context.summary.training, iterations=400, steps=400)
    context = replace(context, summary=replace(context.summary, training=training))
    settings = [replace(x.inputs.setting, workers=4) for x in both]

    def forecast(*of_each: float) -> Any:
        feeding = [
            replace(loader, steps_share=x)
            for loader, x in zip(context.feeding, of_each, strict=True)
        ]
        return LoaderForecast(context, modelled(feeding)).speedup(settings)

    whole, part = forecast(1.0, 1.0), forecast(share, other)
    for end in ("low", "mid", "high"):
        expected = 1 / (1 - all_of_them * (1 - 1 / whole.at(end)))
        assert part.at(end) == pytest.approx(expected)
    assert np.isfinite(part.high)
