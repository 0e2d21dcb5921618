"""Recorded runs compared: what was planted in their steps decides, and nothing else."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support import summaries
from support.compared_runs import ended_early, made_up, read, recorded, repeated, steps_of
from support.events import MS, US

from trainprof.analysis.statistics.speedup import (
    FASTER,
    NO_VISIBLE_DIFFERENCE,
    SLOWER,
    UNKNOWN,
    Chance,
    Pace,
    SpeedUp,
)
from trainprof.analysis.summary.device import Device
from trainprof.compare.comparability import SCRIPT_TEXT, Difference
from trainprof.compare.compared_run import ComparedRun, named_apart
from trainprof.compare.comparison import (
    NOT_JUDGED,
    PART_PREFIX,
    PASSED,
    TRIPPED,
    Comparison,
    Gate,
    Metric,
    compare,
    judged,
)
from trainprof.report.comparison import to_jsonable

# Of a step as `recorded` makes it, besides the forward and the wait.
REST = 300 * US + 50 * US
EVEN = [1 * MS] * 120
UNDECIDED = {NO_VISIBLE_DIFFERENCE, UNKNOWN}


def metric(comparison: Comparison, name: str) -> Metric:
    return next(figure for figure in comparison.metrics if figure.name == name)


def parts(comparison: Comparison) -> list[Metric]:
    return [x for x in comparison.metrics if x.name.startswith(PART_PREFIX)]


def gate_of(comparison: Comparison) -> str:
    return comparison.gate.outcome


def run_of(parent, name, seed, *, passes=8, steps=30, forward=4 * MS, is_cut=False, **how: int):
    """A run of `steps` steps a pass; one that is cut was ended by a limit."""
    forwards = steps_of(seed, forward, count=steps * passes)
    run = read(recorded(parent, name, forwards=forwards, passes=passes, **how))
    return ended_early(run, length=steps) if is_cut else run


def test_planted_steps_are_shown_to_the_nanosecond(tmp_path):
    base = read(recorded(tmp_path, "a", forwards=EVEN, wait=2 * MS))
    other = read(recorded(tmp_path, "b", forwards=EVEN, wait=100 * US))
    comparison = compare([base], [other])
    in_base, in_other = 3 * MS + REST, 1 * MS + 100 * US + REST
    step = metric(comparison, "step_s")
    assert (step.base, step.other) == (pytest.approx(in_base / 1e9), pytest.approx(in_other / 1e9))
    assert comparison.speedup.mid == pytest.approx(in_base / in_other)
    assert comparison.verdict == FASTER
    wait = metric(comparison, "per_step_s.data_wait")
    assert (wait.base, wait.other) == (pytest.approx(0.002), pytest.approx(0.0001))
    assert (wait.change, wait.verdict) == (pytest.approx(-0.95), UNKNOWN)
    samples = metric(comparison, "samples_per_s")
    assert samples.base == pytest.approx(8 / (in_base / 1e9))
    assert samples.change == pytest.approx(in_base / in_other - 1)
    assert samples.verdict == FASTER
    assert comparison.comparable
    assert sum(part.base or 0 for part in parts(comparison)) == pytest.approx(step.base)
    assert sum(part.other or 0 for part in parts(comparison)) == pytest.approx(step.other)


CUT: dict[str, Any] = {"passes": 1, "steps": 25, "is_cut": True}
CHECKPOINTS: dict[str, Any] = {"passes": 20, "between": 1000 * MS}
LONE: dict[str, Any] = {"passes": 1, "start": 300 * MS}
EQUAL = NO_VISIBLE_DIFFERENCE
PLANTED: dict[str, tuple[dict[str, Any], dict[str, Any], str | None, str | None]] = {
    "equal": ({}, {}, EQUAL, PASSED),
    "slower": ({}, {"forward": 5 * MS}, SLOWER, TRIPPED),
    "faster": ({"forward": 5 * MS}, {}, FASTER, PASSED),
    # Workers that are started again for each pass.
    "starts": ({}, {"start": 40 * MS}, SLOWER, TRIPPED),
    "equal starts": ({"start": 40 * MS}, {"start": 38 * MS}, None, PASSED),
    "starts eat up more": ({}, {"forward": 2 * MS, "start": 150 * MS}, SLOWER, TRIPPED),
    "starts eat it up": ({}, {"forward": 2 * MS, "start": 60 * MS}, None, None),
    "small starts": ({}, {"forward": 2 * MS, "start": 5 * MS}, FASTER, PASSED),
    "more passes": ({"passes": 4}, {"passes": 20}, None, PASSED),
    "cut before the first checkpoint": (CHECKPOINTS, CUT, EQUAL, PASSED),
    "cut and slower": (CHECKPOINTS, {**CUT, "forward": 5 * MS}, SLOWER, TRIPPED),
    "later starts": ({"passes": 20}, {"start": 400 * MS, "is_cut": True}, SLOWER, TRIPPED),
    # The loader tells no length: what a start is of a whole pass nobody knows.
    "one pass, other lengths": ({**LONE, "steps": 60}, {**LONE, "steps": 600}, EQUAL, PASSED),
}


@pytest.mark.parametrize(("base", "other", "verdict", "outcome"), PLANTED.values(), ids=PLANTED)
def test_what_is_planted_decides(tmp_path, base, other, verdict, outcome):
    sides = run_of(tmp_path, "a", 1, **base), run_of(tmp_path, "b", 2, **other)
    comparison = compare([sides[0]], [sides[1]], limit=0.05)
    assert comparison.verdict in (UNDECIDED if verdict is None else {verdict})
    if (base, other) == ({}, {"forward": 5 * MS}):  # the interval holds what was planted
        truth = (4 * MS + 100 * US + REST) / (5 * MS + 100 * US + REST)
        assert comparison.speedup.low < truth < comparison.speedup.high < 1
    assert to_jsonable(comparison)["verdict"] == comparison.verdict
    assert outcome is None or gate_of(comparison) == outcome
    assert comparison.comparable
    back = compare([sides[1]], [sides[0]])
    opposite = {FASTER: SLOWER, SLOWER: FASTER}
    assert back.verdict in (UNDECIDED if verdict not in opposite else {opposite[verdict]})


def test_what_comes_once_is_no_later_start(tmp_path):
    """Workers that live on take longer to start for the first pass."""
    many, few = (run_of(tmp_path, f"{n}", n, passes=n) for n in (20, 3))
    for run in (many, few):
        run.series.starts_s[0] += 2.0
    comparison = compare([many], [few], limit=0.05)
    assert (comparison.verdict, gate_of(comparison)) == (NO_VISIBLE_DIFFERENCE, PASSED)
    assert comparison.with_starts is not None


def test_steps_that_save_are_left_out(tmp_path):
    def saving(name: str, seed: int, each: int) -> ComparedRun:
        run = run_of(tmp_path, name, seed, passes=1, steps=240)
        saves_s = np.where(np.arange(239) % each == 0, 0.5, 0.0)
        series = replace(
            run.series,
            steady_s=run.series.steady_s + saves_s,
            parts_s={**run.series.parts_s, "checkpoint": saves_s},
        )
        return replace(run, series=series)

    comparison = compare([saving("a", 1, 20)], [saving("b", 2, 200)], limit=0.05)
    assert (comparison.verdict, gate_of(comparison)) == (NO_VISIBLE_DIFFERENCE, PASSED)
    assert metric(comparison, "checkpoints_per_step_s").base == pytest.approx(0.5 / 20, rel=0.01)
    step = metric(comparison, "step_s")
    assert sum(part.base or 0 for part in parts(comparison)) == pytest.approx(step.base)
    # What each step does is a part of it.
    each = compare([saving("c", 1, 1)], [run_of(tmp_path, "d", 2, passes=1, steps=240)])
    assert each.verdict == FASTER


def test_of_other_batch_sizes_samples_are_compared_not_steps(tmp_path):
    # Twice the samples in a step that takes 1.5 times as long: a third more samples a second.
    step = 1 * MS + 100 * US + REST
    longer = round(1.5 * step) - 100 * US - REST
    base = read(recorded(tmp_path, "a", forwards=EVEN, batch_size=8))
    other = read(recorded(tmp_path, "b", forwards=[longer] * 120, batch_size=16))
    comparison = compare([base], [other])
    assert not comparison.comparable
    assert to_jsonable(comparison)["notes"][0] == "batch size 8 -> 16"
    assert comparison.measured_by == "sample"
    assert comparison.speedup.mid == pytest.approx(4 / 3)
    assert comparison.verdict == FASTER
    assert metric(comparison, "step_s").verdict == UNKNOWN
    samples = metric(comparison, "samples_per_s")
    assert (samples.change, samples.verdict) == (pytest.approx(1 / 3), FASTER)


def slowed(run: ComparedRun) -> ComparedRun:
    of_run = replace(run.summary.run, device_timing="synchronized")
    return replace(run, summary=replace(run.summary, run=of_run))


@pytest.mark.parametrize(
    ("forwards", "change", "why"),
    [
        ([9 * MS] * 6, lambda run: run, "OTHER has 5 steady steps (6 needed)"),
        ([5 * MS] * 120, slowed, "OTHER was slowed by --cuda-sync"),
    ],
)
def test_unusable_runs_give_no_verdict(tmp_path, forwards, change, why):
    base = read(recorded(tmp_path, "a", forwards=EVEN))
    other = change(read(recorded(tmp_path, "b", forwards=forwards)))
    comparison = compare([base], [other], limit=0.05)
    assert not comparison.comparable
    assert (comparison.verdict, gate_of(comparison)) == (UNKNOWN, NOT_JUDGED)
    assert comparison.speedup.why_unknown == why
    assert {x.verdict for x in comparison.metrics} == {UNKNOWN}
    assert why in to_jsonable(comparison)["notes"]
    # Among repeated runs it is left out, and named.
    runs = [read(recorded(tmp_path, f"{n}", forwards=steps_of(n))) for n in range(6)]
    whole, with_it = compare(runs[:3], runs[3:]), compare(runs[:3], [*runs[3:], other])
    assert with_it.speedup == whole.speedup
    assert not with_it.comparable


def test_without_events_a_pair_has_no_verdict_but_repeated_runs_have(tmp_path):
    def left_over(name: str, seed: int, mean_ns: int) -> ComparedRun:
        run = read(recorded(tmp_path, name, forwards=steps_of(seed, mean_ns)))
        return replace(run, series=None)

    base = [left_over(f"a{n}", n, 4 * MS) for n in range(3)]
    other = [left_over(f"b{n}", n + 3, 5 * MS) for n in range(3)]
    pair = compare(base[:1], other[:1])
    assert pair.verdict == UNKNOWN
    assert metric(pair, "step_s").change == pytest.approx(1 / 4.45, rel=0.05)
    assert compare(base, other).verdict == SLOWER


def beside_others(run: ComparedRun, others_percent: float) -> ComparedRun:
    """A run on two cores of which it keeps one busy; others the rest, to so many percent."""
    cpu = {
        "host_percent": {"mean": 50.0 + others_percent},
        "tree_percent": {"mean": 100.0},
        "per_core_percent": [50.0, 50.0],
        "pressure_some_share": others_percent / 100,
    }
    system = summaries.system(cpu=cpu)
    manifest = {**run.manifest, "host": {"is_virtual": False}}
    return replace(run, manifest=manifest, summary=replace(run.summary, system=system))


@pytest.mark.parametrize(
    ("others_percent", "verdict", "outcome"), [(0.0, SLOWER, TRIPPED), (30.0, UNKNOWN, NOT_JUDGED)]
)
def test_one_run_against_three_keeps_what_it_met(tmp_path, others_percent, verdict, outcome):
    base = [beside_others(run_of(tmp_path, f"a{n}", n), 0.0) for n in range(3)]
    other = beside_others(run_of(tmp_path, "b", 5, forward=5 * MS), others_percent)
    comparison = compare(base, [other], limit=0.05)
    assert (comparison.verdict, gate_of(comparison)) == (verdict, outcome)


def chances(cpu, threads=8, device="cpu", busy_share=None, **host):
    base = summaries.healthy()
    devices = None if device == "cpu" else [Device(0, device, busy_share, {}, {}, None, None, 1000)]
    run = replace(base.run, device=device)
    system = summaries.system(cpu=cpu)
    loaders = [replace(loader, num_workers=0) for loader in base.loaders]
    of_run = {"run": run, "devices": devices, "system": system, "loaders": loaders}
    run = made_up(replace(base, torch_threads=threads, **of_run), "b", host=host)
    return run.disturbance(), run.wandering()


def test_what_other_processes_and_virtual_cores_may_change():
    cpu = {"host_percent": {"mean": 90.0}, "per_core_percent": [90.0, 90.0]}
    cpu |= {"tree_percent": {"mean": 100.0}}
    # A single thread waits for no other.
    for waited, threads, share in ((0, 8, 0.08), (0.2, 8, 0.8**-3 - 1), (0.7, 1, 0.6**-2 - 1)):
        disturbance, _ = chances({**cpu, "pressure_some_share": waited}, threads)
        assert disturbance == pytest.approx(share)
    for percent, threads, is_virtual, share in (
        (350.0, 8, True, 0.5),
        (350.0, 8, None, 0.5),
        (350.0, 1, True, 0.35),
        (25.0, 8, True, 0.125),
        (350.0, 8, False, 0.0),
    ):
        _, wandering = chances({"tree_percent": {"mean": percent}}, threads, is_virtual=is_virtual)
        assert wandering == pytest.approx(share)
    # Where a device works the host changes nothing.
    for busy, share in (([0.9, 0.95], 0.05), ([0.2, 0.3], 0.4), (None, 0.5)):
        cpu = {"tree_percent": {"mean": 100.0}}
        assert chances(cpu, 8, "cuda:0", busy, is_virtual=True)[1] == pytest.approx(share)


def test_repeated_runs_are_the_units():
    comparison = repeated()
    # A step of 225.7 ms, and one of 57.3 ms; their runs differ by the same factors.
    factors = np.array([0.99, 1.0, 1.012])
    half = 2.7764 * math.sqrt(2 * np.var(factors / factors.mean(), ddof=1) / 3)
    speedup = comparison.speedup
    assert speedup.high == pytest.approx(speedup.mid * math.exp(half), rel=1e-4)
    assert speedup.chance is None
    assert metric(comparison, "per_step_s.data_wait").change == pytest.approx(-0.9, rel=1e-3)


def test_the_json_is_strict_and_has_what_is_promised(tmp_path):
    base = read(recorded(tmp_path, "a", forwards=EVEN))
    other = read(recorded(tmp_path, "b", forwards=[2 * MS] * 120))
    plain = json.loads(json.dumps(to_jsonable(compare([base], [other])), allow_nan=False))
    promised = {"base", "other", "comparable", "notes", "verdict", "speedup", "gate", "metrics"}
    assert {*promised, "speedup_with_starts"} <= plain.keys()
    assert plain["base"]["runs"][0]["steady_steps"] == 119
    step = next(figure for figure in plain["metrics"] if figure["name"] == "step_s")
    assert step.keys() == {"name", "base", "other", "change", "low", "high", "verdict"}
    assert 0 < step["low"] < step["change"] < step["high"]


def test_runs_of_one_name_go_by_their_paths(tmp_path):
    run = read(recorded(tmp_path, "r1", forwards=steps_of(1)))
    runs = [replace(run, directory=f"/work/{place}/r1") for place in "ab"]
    assert [x.name for x in named_apart(runs)] == ["/work/a/r1", "/work/b/r1"]
    assert named_apart(runs[:1]) == runs[:1]


# How fast a run trains, starts of passes included


STEP_S = (2 * MS + 1 * MS + REST) / 1e9
START_S = 0.060
WITH_STARTS_S = STEP_S + START_S / 12


@pytest.mark.parametrize(
    ("steps", "passes", "between", "length", "mean_s"),
    [
        # Starts of passes are spread over their steps.
        (120, 10, 0, ..., WITH_STARTS_S),
        # Ended in its first pass: it starts as often as passes would, if their length is known.
        (60, 1, 0, 300, STEP_S + START_S / 300),
        (60, 1, 0, None, STEP_S),
        # Its loader has far more batches, which no pass ever asks for.
        (120, 10, 0, 5000, WITH_STARTS_S),
        # Checkpoints and plots between passes are no starts.
        (120, 10, 1000 * MS, ..., WITH_STARTS_S),
        (120, 10, 1000 * MS, 12, WITH_STARTS_S),
    ],
)
def test_starts_of_passes_are_spread_over_their_steps(
    tmp_path, steps, passes, between, length, mean_s
):
    times = {"start": 60 * MS, "wait": 2 * MS, "between": between}
    run = read(recorded(tmp_path, "run", forwards=[1 * MS] * steps, passes=passes, **times))
    assert run.pace().mean_s == pytest.approx(STEP_S)
    ended = run if length is ... else ended_early(run, length=length)
    assert ended.training_pace().mean_s == pytest.approx(mean_s, rel=0.02)


def test_what_starts_add_does_not_grow_where_the_last_pass_was_cut(tmp_path):
    forwards = [1 * MS] * 48
    cut = recorded(tmp_path, "run", forwards=forwards, wait=2 * MS, passes=4, start=60 * MS, cut=11)
    run = ended_early(read(cut), length=12)
    for pace in (run.later_pace(), run.training_pace()):
        assert pace.mean_s == pytest.approx(STEP_S + START_S / 12, rel=0.02)


def test_starts_that_differ_make_the_mean_less_sure():
    steps_s = np.full(100, 0.002)

    def error_s(*starts_s: float) -> float:
        return 0.003 * Pace(0.003, steps_s, starts_s=np.array(starts_s)).error()

    assert error_s(*[0.0, 0.002] * 4) > 1.5 * error_s(*[0.001] * 8) > 0
    # Two tell hardly more than one, and no single one is certain.
    assert error_s(*[0.001] * 8) < error_s(0.0009, 0.0011) < error_s(0.001)
    # By hand: 0.3 of it, known as if by four; Student's t of three degrees of freedom is 3.18.
    assert error_s(0.001) == pytest.approx(0.0003 * 3.182446 / 1.959964, rel=1e-3)


# The gate


def gate(limit: float, bounds: tuple[float, float, float], *listed: Difference) -> Gate:
    """Judges a step that takes so much longer, as shares: at least, most likely, at most."""
    least, middle, most = bounds
    verdict = SLOWER if least > 0 else FASTER if most < 0 else NO_VISIBLE_DIFFERENCE
    speedup = SpeedUp(
        1 / (1 + most), 1 / (1 + middle), 1 / (1 + least), verdict, Chance(0.035, "quiet")
    )
    return judged(limit, speedup.unless_too_noisy(), listed, "step")


@pytest.mark.parametrize(
    ("limit", "bounds", "outcome"),
    [
        (0.05, (0.06, 0.08, 0.10), TRIPPED),
        (0.05, (-0.02, 0.01, 0.04), PASSED),  # surely not over the limit
        (0.05, (-0.30, -0.20, -0.10), PASSED),
        (0.05, (0.02, 0.06, 0.09), PASSED),  # over it, but not for certain, and told finely
        (0.0, (-0.02, 0.01, 0.04), PASSED),
        (0.05, (-0.14, 2.68, 14.8), NOT_JUDGED),
        (0.05, (-0.17, 0.0, 0.21), NOT_JUDGED),  # a slow-down by a fifth would not be seen
        (0.25, (-0.17, 0.0, 0.21), PASSED),  # but the limit is above that
        (0.05, (-0.03, 0.12, 0.20), NOT_JUDGED),  # measured over it, and noise hides more than it
        (0.02, (-0.01, 0.04, 0.09), NOT_JUDGED),
        (0.05, (0.036, 0.186, 0.358), NOT_JUDGED),
    ],
)
def test_a_gate_trips_passes_or_cannot_judge(limit, bounds, outcome):
    judgement = gate(limit, bounds)
    assert judgement.outcome == outcome
    assert (judgement.hint is not None) is (outcome == NOT_JUDGED)


@pytest.mark.parametrize("bounds", [(0.06, 0.08, 0.10), (-0.02, 0.01, 0.04)])
@pytest.mark.parametrize(
    ("what", "kind", "is_between", "is_judged"),
    [
        ("end", "unfinished", False, False),
        ("batch size", "work", True, False),
        ("script", "ground", True, False),
        ("torch", "ground", False, False),  # runs of one side that are not alike
        ("steady steps", "unusable", False, False),  # of one of several runs: why did it leave?
        (SCRIPT_TEXT, "ground", True, True),
        ("torch", "ground", True, True),
        ("arguments", "setting", True, True),
        ("end", "remark", False, True),  # Ctrl-C
    ],
)
def test_what_may_differ_for_a_gate(what, kind, is_between, is_judged, bounds):
    judgement = gate(0.05, bounds, Difference(what, kind, f"{what} differs", is_between))
    if is_judged:
        assert judgement.outcome == (TRIPPED if bounds[0] > 0 else PASSED)
    else:
        assert (judgement.outcome, judgement.why) == (NOT_JUDGED, f"{what} differs")


def test_without_an_interval_there_is_nothing_to_judge():
    why = "OTHER has 3 steady steps"
    judgement = judged(0.05, SpeedUp(None, 1.0, None, UNKNOWN, None, why), [], "step")
    assert (judgement.outcome, judgement.why) == (NOT_JUDGED, why)
