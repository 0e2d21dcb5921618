"""Two recorded runs, figure by figure: what was planted in their steps is what is told."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support import summaries
from support.compared_runs import made_up, read, recorded, repeated, steps_of, with_steps_longer
from support.events import MS, US

from trainprof.analysis.compared_figures import Metric
from trainprof.analysis.compared_run import ComparedRun, told_apart
from trainprof.analysis.comparison import Comparison, compare, notes, to_jsonable
from trainprof.analysis.gate import PASSED, TRIPPED
from trainprof.analysis.speedup import (
    FASTER,
    NO_VISIBLE_DIFFERENCE,
    SLOWER,
    UNKNOWN,
    Chance,
    chance_of,
)
from trainprof.report.comparison_rows import headline

# Of a step as `recorded` makes it, besides the forward and the wait.
REST = 300 * US + 50 * US
EVEN = [1 * MS] * 120


def metric(found: Comparison, name: str) -> Metric:
    one = found.metric(name)
    assert one is not None, name
    return one


def test_planted_steps_are_told_to_the_nanosecond(tmp_path: Path) -> None:
    base = read(recorded(tmp_path, "a", forwards=EVEN, wait=2 * MS))
    other = read(recorded(tmp_path, "b", forwards=EVEN, wait=100 * US))
    found = compare([base], [other])
    in_base, in_other = 3 * MS + REST, 1 * MS + 100 * US + REST
    assert metric(found, "step_s").base == pytest.approx(in_base / 1e9)
    assert metric(found, "step_s").other == pytest.approx(in_other / 1e9)
    assert found.speedup.mid == pytest.approx(in_base / in_other)
    assert found.speedup.verdict == FASTER
    wait = metric(found, "per_step_s.data_wait")
    assert (wait.base, wait.other) == (pytest.approx(0.002), pytest.approx(0.0001))
    assert wait.change == pytest.approx(-0.95)
    assert wait.verdict == FASTER
    assert metric(found, "per_step_s.forward").verdict == NO_VISIBLE_DIFFERENCE
    samples = metric(found, "samples_per_s")
    assert samples.base == pytest.approx(8 / (in_base / 1e9))
    assert samples.change == pytest.approx(in_base / in_other - 1)
    assert samples.verdict == FASTER
    assert found.comparable


def test_the_parts_of_a_step_add_up_to_it(tmp_path: Path) -> None:
    found = compare(
        [read(recorded(tmp_path, "a", forwards=steps_of(1)))],
        [read(recorded(tmp_path, "b", forwards=steps_of(2, 2 * MS)))],
    )
    parts = found.in_group("ledger")
    step = metric(found, "step_s")
    assert sum(one.base or 0 for one in parts) == pytest.approx(step.base)
    assert sum(one.other or 0 for one in parts) == pytest.approx(step.other)


def test_equal_runs_with_noise_of_their_own_show_no_difference(tmp_path: Path) -> None:
    runs = [read(recorded(tmp_path, str(n), forwards=steps_of(n))) for n in (1, 2)]
    found = compare(runs[:1], runs[1:])
    assert found.speedup.verdict == NO_VISIBLE_DIFFERENCE
    assert {one.verdict for one in found.metrics} <= {NO_VISIBLE_DIFFERENCE, UNKNOWN}
    assert notes(found) == [
        "One run each: differences under 3.5 % can be chance; three runs each tell smaller ones: "
        "--base A1 --base A2 --base A3 --other B1 --other B2 --other B3"
    ]


def with_starts(parent: Path, name: str, start: int, seed: int = 1):
    return read(recorded(parent, name, forwards=steps_of(seed, count=240), passes=8, start=start))


def test_what_only_starts_of_passes_cost_is_told_apart(tmp_path: Path) -> None:
    base, other = with_starts(tmp_path, "a", 40 * MS), with_starts(tmp_path, "b", 2 * MS, seed=2)
    found = compare([base], [other])
    assert found.speedup.verdict == NO_VISIBLE_DIFFERENCE
    starts = metric(found, "starts_per_step_s")
    assert (starts.base, starts.other) == (
        pytest.approx(0.040 / 30, rel=0.1),
        pytest.approx(0.002 / 30, rel=0.1),
    )
    assert starts.verdict == FASTER
    assert found.starts_alone() == starts
    back = compare([other], [base]).starts_alone()
    assert back is not None
    assert back.verdict == SLOWER


def test_more_passes_of_the_same_kind_are_no_change_of_their_starts(tmp_path: Path) -> None:
    few, many = (
        read(
            recorded(tmp_path, f"{n}", forwards=steps_of(n, count=30 * n), passes=n, start=40 * MS)
        )
        for n in (4, 20)
    )
    found = compare([few], [many])
    assert metric(found, "starts_per_step_s").verdict == NO_VISIBLE_DIFFERENCE
    assert found.starts_alone() is None


def test_starts_that_are_alike_or_hardly_matter_do_not_lead(tmp_path: Path) -> None:
    base = with_starts(tmp_path, "a", 40 * MS)
    alike = compare([base], [with_starts(tmp_path, "b", 38 * MS, seed=2)])
    assert metric(alike, "starts_per_step_s").verdict == NO_VISIBLE_DIFFERENCE
    assert alike.starts_alone() is None
    little = compare(
        [with_starts(tmp_path, "c", 1 * MS, seed=3)], [with_starts(tmp_path, "d", 100 * US, seed=4)]
    )
    assert metric(little, "starts_per_step_s").verdict == FASTER
    assert little.starts_alone() is None
    one_pass = compare(
        [read(recorded(tmp_path, "e", forwards=EVEN, start=90 * MS))],
        [read(recorded(tmp_path, "f", forwards=EVEN))],
    )
    assert one_pass.metric("starts_per_step_s") is None


def test_steps_that_differ_lead_whatever_starts_do(tmp_path: Path) -> None:
    base = with_starts(tmp_path, "a", 40 * MS)
    other = recorded(tmp_path, "b", forwards=steps_of(2, 500 * US, count=240), passes=8, start=MS)
    found = compare([base], [read(other)])
    assert found.speedup.verdict == FASTER
    assert found.starts_alone() is None


def test_steps_that_are_faster_do_not_lead_where_starts_of_passes_eat_it_up(
    tmp_path: Path,
) -> None:
    """Workers that are started anew for each pass: 2 ms less a step, 150 ms more a pass."""
    base = recorded(tmp_path, "a", forwards=steps_of(1, 4 * MS, count=240), passes=8)
    other = recorded(
        tmp_path, "b", forwards=steps_of(2, 2 * MS, count=240), passes=8, start=150 * MS
    )
    found = compare([read(base)], [read(other)], limit=0.05)
    assert found.speedup.verdict == FASTER
    turned = found.turned_by_starts()
    assert turned is not None
    assert turned.verdict == SLOWER
    assert turned.mid == pytest.approx(4.2 / (2.2 + 150 / 30), rel=0.1)
    assert headline(found).startswith("OTHER'S STEPS ARE FASTER, ITS TRAINING IS SLOWER: with ")
    assert found.gate is not None
    assert found.gate.outcome == TRIPPED
    back = compare([read(other)], [read(base)], limit=0.05)
    assert headline(back).startswith("OTHER'S STEPS ARE SLOWER, ITS TRAINING IS FASTER: with ")
    assert back.gate is not None
    assert back.gate.outcome == PASSED


def test_steps_that_are_faster_by_what_starts_take_are_no_faster_training(tmp_path: Path) -> None:
    base = recorded(tmp_path, "a", forwards=steps_of(1, 4 * MS, count=240), passes=8)
    other = recorded(
        tmp_path, "b", forwards=steps_of(2, 2 * MS, count=240), passes=8, start=60 * MS
    )
    found = compare([read(base)], [read(other)])
    assert found.speedup.verdict == FASTER
    assert "ITS TRAINING IS NOT FASTER FOR CERTAIN" in headline(found)
    little = recorded(
        tmp_path, "c", forwards=steps_of(2, 2 * MS, count=240), passes=8, start=5 * MS
    )
    assert headline(compare([read(base)], [read(little)])).startswith("OTHER IS FASTER")


def test_a_gate_counts_starts_of_passes_where_steps_are_alike(tmp_path: Path) -> None:
    base, other = with_starts(tmp_path, "a", 2 * MS), with_starts(tmp_path, "b", 40 * MS, seed=2)
    found = compare([base], [other], limit=0.05)
    assert found.speedup.is_undecided
    assert found.gate is not None
    assert found.gate.outcome == TRIPPED
    alike = compare([base], [with_starts(tmp_path, "c", 2 * MS, seed=3)], limit=0.05)
    assert alike.gate is not None
    assert alike.gate.outcome == PASSED
    assert alike.turned_by_starts() is None


def unsure(base: ComparedRun, other: ComparedRun) -> Comparison:
    """Returns a comparison whose steps do not tell which side is the faster."""
    found = compare([base], [other])
    return replace(found, speedup=replace(found.speedup, verdict=NO_VISIBLE_DIFFERENCE))


def test_a_part_that_clearly_changed_is_told_where_the_step_does_not_tell(tmp_path: Path) -> None:
    base = read(recorded(tmp_path, "a", forwards=steps_of(1), wait=2 * MS))
    other = read(recorded(tmp_path, "b", forwards=steps_of(2), wait=100 * US))
    for sides, verdict in (((base, other), FASTER), ((other, base), SLOWER)):
        part = unsure(*sides).clear_part()
        assert part is not None
        assert (part.name, part.verdict) == ("per_step_s.data_wait", verdict)
    assert compare([base], [other]).clear_part() is None  # the step tells more


def test_a_part_that_changed_a_little_or_made_room_for_another_is_not_told(tmp_path: Path) -> None:
    base = read(recorded(tmp_path, "a", forwards=steps_of(1), wait=2 * MS))
    little = read(recorded(tmp_path, "b", forwards=steps_of(2), wait=1500 * US))
    assert unsure(base, little).clear_part() is None  # not halved
    tiny = read(recorded(tmp_path, "c", forwards=steps_of(3, 10 * MS), wait=500 * US))
    gone = read(recorded(tmp_path, "d", forwards=steps_of(4, 10 * MS), wait=50 * US))
    assert unsure(tiny, gone).clear_part() is None  # a small part of a step
    elsewhere = read(recorded(tmp_path, "e", forwards=steps_of(5, 3500 * US), wait=100 * US))
    assert unsure(base, elsewhere).clear_part() is None  # as long, or longer, all the same


@pytest.mark.parametrize(
    ("share", "told"),
    [(0.035, "3.5 %"), (0.3, "30 %"), (14.99, "a factor of 16")],
)
def test_what_can_be_chance_is_said_as_people_say_it(
    tmp_path: Path, share: float, told: str
) -> None:
    run = read(recorded(tmp_path, "a", forwards=steps_of(1)))
    found = compare([run], [run])
    noisy = replace(found, speedup=replace(found.speedup, chance=Chance(share, "others")))
    assert f"differences under {told} can be chance" in notes(noisy)[-1]


def test_a_run_and_itself(tmp_path: Path) -> None:
    run = read(recorded(tmp_path, "a", forwards=steps_of(1)))
    found = compare([run], [run])
    assert found.speedup.mid == pytest.approx(1)
    assert found.speedup.verdict == NO_VISIBLE_DIFFERENCE


def test_the_interval_holds_what_was_planted(tmp_path: Path) -> None:
    base = read(recorded(tmp_path, "a", forwards=steps_of(1, 4 * MS)))
    other = read(recorded(tmp_path, "b", forwards=steps_of(2, 5 * MS)))
    found = compare([base], [other]).speedup
    truth = (4 * MS + 100 * US + REST) / (5 * MS + 100 * US + REST)
    assert found.low is not None
    assert found.high is not None
    assert found.low < truth < found.high < 1
    assert found.verdict == SLOWER


def test_of_other_batch_sizes_samples_are_compared_not_steps(tmp_path: Path) -> None:
    # Twice the samples in a step that takes 1.5 times as long: a third more samples a second.
    step = 1 * MS + 100 * US + REST
    longer = round(1.5 * step) - 100 * US - REST
    base = read(recorded(tmp_path, "a", forwards=EVEN, batch_size=8))
    other = read(recorded(tmp_path, "b", forwards=[longer] * 120, batch_size=16))
    found = compare([base], [other])
    assert not found.comparable
    assert notes(found)[0] == "Batch size 8 -> 16"
    assert found.measured_by == "sample"
    assert found.speedup.mid == pytest.approx(4 / 3)
    assert found.speedup.verdict == FASTER
    for name in ("step_s", "loop_step_s", "per_step_s.forward"):
        assert metric(found, name).verdict == UNKNOWN
    assert metric(found, "sample_s").verdict == FASTER
    assert metric(found, "samples_per_s").change == pytest.approx(1 / 3)


def test_starts_of_passes_count_beside_the_steady_steps(tmp_path: Path) -> None:
    # Every steady step is the same, but OTHER's first batch takes as long as a hundred steps.
    runs = [
        read(recorded(tmp_path, name, forwards=[first, *EVEN]))
        for name, first in (("a", 1 * MS), ("b", 150 * MS))
    ]
    found = compare(runs[:1], runs[1:])
    assert found.speedup.verdict == NO_VISIBLE_DIFFERENCE
    borders = metric(found, "loop_step_s")
    count = len(EVEN) + 1
    assert borders.other is not None
    assert borders.base is not None
    assert borders.other - borders.base == pytest.approx(0.149 / count)


def test_too_few_steps_give_no_verdict(tmp_path: Path) -> None:
    base = read(recorded(tmp_path, "a", forwards=EVEN))
    cut = read(recorded(tmp_path, "b", forwards=[9 * MS] * 12))
    found = compare([base], [cut])
    assert not found.comparable
    assert found.speedup.verdict == UNKNOWN
    assert found.speedup.why_unknown == "too few steady steps in OTHER"
    assert {one.verdict for one in found.metrics} == {UNKNOWN}
    assert notes(found)[0].startswith("OTHER has 11 steady steps")


def test_a_short_run_among_repeated_ones_is_left_out(tmp_path: Path) -> None:
    base = [read(recorded(tmp_path, f"a{n}", forwards=steps_of(n))) for n in range(3)]
    other = [read(recorded(tmp_path, f"b{n}", forwards=steps_of(n, 2 * MS))) for n in range(3)]
    cut = read(recorded(tmp_path, "b3", forwards=[90 * MS] * 12))
    whole, with_cut = compare(base, other), compare(base, [*other, cut])
    assert with_cut.speedup == whole.speedup
    assert not with_cut.comparable
    assert notes(with_cut)[-1].startswith("3 and 3 runs")
    assert "Run b3 of OTHER has 11 steady steps; a verdict takes 20" in notes(with_cut)


def test_a_slowed_run_gives_no_verdict(tmp_path: Path) -> None:
    base = read(recorded(tmp_path, "a", forwards=EVEN))
    slowed = read(recorded(tmp_path, "b", forwards=[5 * MS] * 120))
    run = replace(slowed.summary.run, device_timing="synchronized")
    slowed = replace(slowed, summary=replace(slowed.summary, run=run))
    found = compare([base], [slowed])
    assert found.speedup.verdict == UNKNOWN
    assert found.speedup.why_unknown == "OTHER was slowed: --cuda-sync waited for the device"
    assert found.speedup.mid == pytest.approx((1 * MS + 100 * US + REST) / (5 * MS + 450 * US))


def test_without_events_a_pair_has_no_verdict_but_repeated_runs_have(tmp_path: Path) -> None:
    def left_over(name: str, seed: int, mean_ns: int) -> object:
        directory = recorded(tmp_path, name, forwards=steps_of(seed, mean_ns))
        run = read(directory)
        shutil.rmtree(directory.events)
        return replace(run, series=None)

    base = [left_over(f"a{n}", n, 4 * MS) for n in range(3)]
    other = [left_over(f"b{n}", n + 3, 5 * MS) for n in range(3)]
    pair = compare(base[:1], other[:1])  # type: ignore[arg-type]
    assert pair.speedup.verdict == UNKNOWN
    assert metric(pair, "step_s").change == pytest.approx(1 / 4.45, rel=0.05)
    groups = compare(base, other)  # type: ignore[arg-type]
    assert groups.speedup.verdict == SLOWER
    assert metric(groups, "per_step_s.forward").verdict == SLOWER
    assert metric(groups, "per_step_s.backward").verdict == NO_VISIBLE_DIFFERENCE


def test_a_run_cut_off_and_without_manifest_compares_by_what_is_there(tmp_path: Path) -> None:
    whole = recorded(tmp_path, "a", forwards=EVEN)
    cut = recorded(tmp_path, "b", forwards=[2 * MS] * 120)
    (log,) = cut.events.iterdir()
    log.write_bytes(log.read_bytes()[:-1501])
    cut.manifest.unlink()
    found = compare([read(whole)], [read(cut)])
    assert found.speedup.verdict == SLOWER
    assert found.speedup.mid == pytest.approx((1 * MS + 450 * US) / (2 * MS + 450 * US))


def test_workers_that_take_turns_are_no_noise(tmp_path: Path) -> None:
    """Every fourth step waits: the mean over whole cycles is the same in each of them."""
    forwards = [1 * MS, 1 * MS, 1 * MS, 9 * MS] * 60
    base = read(recorded(tmp_path, "a", forwards=forwards, num_workers=4))
    other = read(recorded(tmp_path, "b", forwards=[f * 11 // 10 for f in forwards], num_workers=4))
    assert compare([base], [other]).speedup.verdict == SLOWER


def test_the_machine_side_by_side() -> None:
    busy = replace(
        summaries.slow_loader(),
        system=summaries.system(
            cpu={"tree_percent": {"mean": 250.0}},
            gpus=[summaries.gpu(energy_wh=9.0)],
        ),
    )
    found = compare([made_up(summaries.slow_loader(), "a")], [made_up(busy, "b")])
    cores = metric(found, "cpu_cores_busy")
    assert (cores.base, cores.other, cores.verdict) == (1.08, 2.5, UNKNOWN)
    memory = metric(found, "memory_peak_bytes")
    assert memory.base == 612.0 * summaries.MIB
    assert memory.change == 0
    gpu = metric(found, "gpu_memory_peak_bytes")
    assert (gpu.base, gpu.other, gpu.change) == (None, 12.3 * summaries.GIB, None)
    assert found.not_observed["energy_wh"]
    assert found.metric("energy_wh") is None


def test_other_processes_make_an_interval_wider() -> None:
    def beside(host: float, waited: float | None) -> float:
        """The run keeps one of two cores busy, the whole host is busy to so many percent."""
        cpu = {
            "host_percent": {"mean": host},
            "tree_percent": {"mean": 100.0},
            "per_core_percent": [host, host],
            "pressure_some_share": waited,
        }
        system = summaries.system(cpu=cpu)
        return made_up(replace(summaries.slow_loader(), system=system), "b").disturbance()

    assert beside(50.0, 0.6) == 0  # all of it is the run's own
    assert beside(60.0, 0.0) == pytest.approx(0.02)  # nobody waited for a core
    assert beside(90.0, 0.2) == pytest.approx(0.8**-3 - 1)
    assert beside(90.0, 0.7) == pytest.approx(0.6**-3 - 1)  # others had 40 % of the CPU
    # Where the kernel does not tell who waited, somebody did if no core was free.
    assert beside(95.0, None) == pytest.approx(0.55**-3 - 1)
    assert beside(80.0, None) == pytest.approx(0.06)
    unknown = replace(summaries.slow_loader(), system=None)
    assert made_up(unknown, "b").disturbance() == 0


def test_a_single_thread_loses_less_to_other_processes() -> None:
    cpu = {
        "host_percent": {"mean": 90.0},
        "tree_percent": {"mean": 100.0},
        "per_core_percent": [90.0, 90.0],
        "pressure_some_share": 0.7,
    }

    def disturbance(threads: int, workers: int) -> float:
        loader = summaries.loader("train.py:41", num_workers=workers)
        plain = replace(summaries.slow_loader(), loaders=[loader], torch_threads=threads)
        return made_up(replace(plain, system=summaries.system(cpu=cpu)), "b").disturbance()

    assert disturbance(1, 0) == pytest.approx(0.6**-2 - 1)
    assert disturbance(2, 0) == disturbance(1, 2) == pytest.approx(0.6**-3 - 1)


def test_a_virtual_machines_pace_is_not_trusted_where_the_run_computes() -> None:
    def wandering(
        busy_percent: float,
        device: str | None = None,
        threads: int | None = None,
        **host: bool | None,
    ) -> float:
        summary = replace(summaries.slow_loader(), torch_threads=threads)
        system = summaries.system(cpu={"tree_percent": {"mean": busy_percent}})
        run = replace(summary.run, device=device)
        return made_up(replace(summary, run=run, system=system), "b", host=host).wandering()

    assert wandering(100.0, is_virtual=True) == wandering(350.0, "cpu", is_virtual=True) == 0.5
    assert wandering(25.0, is_virtual=True) == pytest.approx(0.125)  # else it sleeps
    # No other thread to wait for.
    assert wandering(100.0, threads=1, is_virtual=True) == 0.35
    assert wandering(100.0, is_virtual=False) == 0
    assert wandering(100.0, is_virtual=None) == 0.5  # it may be one
    unknown = replace(summaries.slow_loader(), system=None)
    assert made_up(unknown, "b", host={"is_virtual": True}).wandering() == 0


def test_a_machine_that_may_be_virtual_is_not_called_one() -> None:
    runs = [made_up(summaries.slow_loader(), "b", host={"is_virtual": x}) for x in (True, None)]
    virtual, unknown = (chance_of([pace], [pace]) for run in runs if (pace := run.pace()))
    assert unknown.share == virtual.share > 0.1
    assert virtual.why == "a virtual machine's cores change their pace"
    assert unknown.why.startswith("nothing tells whether the cores are a virtual machine's")


def test_repeated_runs_are_the_units() -> None:
    found = repeated()
    # A step of 225.7 ms, and one of 57.3 ms; their runs differ by the same factors.
    factors = np.array([0.99, 1.0, 1.012])
    half = 2.7764 * math.sqrt(2 * np.var(factors / factors.mean(), ddof=1) / 3)
    assert found.speedup.mid is not None
    assert found.speedup.high == pytest.approx(found.speedup.mid * math.exp(half), rel=1e-4)
    assert found.speedup.chance is None
    assert notes(found)[-1] == "3 and 3 runs: the interval is that of their spread"
    wait = metric(found, "per_step_s.data_wait")
    assert wait.low is not None
    assert wait.change == pytest.approx(-0.9, rel=1e-3)
    assert wait.verdict == FASTER
    assert metric(found, "memory_peak_bytes").verdict == UNKNOWN


def test_the_json_is_strict_and_has_what_is_promised(tmp_path: Path) -> None:
    base = read(recorded(tmp_path, "a", forwards=EVEN))
    other = read(recorded(tmp_path, "b", forwards=[2 * MS] * 120))
    told = json.loads(json.dumps(to_jsonable(compare([base], [other])), allow_nan=False))
    assert {"base", "other", "comparable", "notes", "metrics"} <= told.keys()
    assert told["comparable"] is True
    assert told["base"]["runs"][0]["steady_steps"] == 119
    wanted = {"name", "base", "other", "change", "low", "high", "verdict"}
    verdicts = {FASTER, SLOWER, NO_VISIBLE_DIFFERENCE, UNKNOWN}
    for one in told["metrics"]:
        assert wanted <= one.keys()
        assert one["verdict"] in verdicts
    step = next(one for one in told["metrics"] if one["name"] == "step_s")
    assert step["verdict"] == SLOWER
    assert 0 < step["low"] < step["change"] < step["high"]


def test_longer_runs_of_the_same_steps_are_equal(tmp_path: Path) -> None:
    assert with_steps_longer(summaries.healthy(), 1.0) == summaries.healthy()
    short = read(recorded(tmp_path, "a", forwards=steps_of(1, count=60)))
    long = read(recorded(tmp_path, "b", forwards=steps_of(2, count=600)))
    found = compare([short], [long])
    assert found.speedup.verdict == NO_VISIBLE_DIFFERENCE
    assert found.comparable
    assert "Steps 60 -> 600" in notes(found)


def test_runs_of_one_name_are_told_apart_by_their_paths(tmp_path: Path) -> None:
    one = read(recorded(tmp_path, "one", forwards=steps_of(1)))

    def at(path: str) -> ComparedRun:
        run = replace(one.summary.run, name=Path(path).name)
        return replace(one, directory=path, summary=replace(one.summary, run=run))

    runs = [at(f"/work/{end}") for end in ("a/acc/r1", "b/acc/r1", "a/acc/r2", "b/sig/r1")]
    assert [one.name for one in told_apart(runs)] == ["a/acc/r1", "b/acc/r1", "r2", "sig/r1"]
    assert told_apart(runs[2:]) == runs[2:]
