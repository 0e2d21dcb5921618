"""Runs of unlike lengths: what comes now and then inside passes is no part of their steps."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from support.compared_runs import ended_early, read, steps_of
from support.events import MS, US, FakeRun

from trainprof.analysis.compared_run import ComparedRun
from trainprof.analysis.comparison import Comparison, compare
from trainprof.analysis.gate import NOT_JUDGED, PASSED, TRIPPED
from trainprof.analysis.speedup import FASTER, NO_VISIBLE_DIFFERENCE, SLOWER, UNKNOWN
from trainprof.analysis.unlike_lengths import as_alike
from trainprof.record.run_directory import RunDirectory
from trainprof.record.schema import Kind

STEP = 20 * MS
FULL = 32
AHEAD = 4  # batches that two workers pile up meanwhile


def recorded(
    parent: Path,
    name: str,
    forwards: Sequence[int],
    *,
    of_pass: int = 0,
    last: int = FULL,
    save_each: int = 0,
    save: int = 1000 * MS,
    evaluate_each: int = 0,
    wait: int = 100 * US,
    workers: int = 0,
    accumulated: int = 1,
) -> RunDirectory:
    """Writes a run of one batch for each forward, and passes of `of_pass` of them.

    The last batch of a pass holds `last` samples. Saves come with each `save_each` batches, and
    evaluations, while which workers pile up batches, with each `evaluate_each`.
    """
    run = FakeRun()
    loader = run.loader(batch_size=FULL, num_workers=workers, prefetch_factor=2)
    validation = run.loader(60, batch_size=FULL)
    optimizer = run.optimizer()
    run.passes_time(500 * MS)
    piled_up = 0
    of_pass = of_pass or len(forwards)
    for number, forward in enumerate(forwards):
        place = number % of_pass
        if place == 0:
            run.iterate(loader)
        is_last = place == of_pass - 1
        samples = last if is_last else FULL
        run.next(loader, 0 if piled_up else wait, samples=samples)
        piled_up = max(piled_up - 1, 0)
        run.forward(forward * samples // FULL)
        run.backward()
        if (place + 1) % accumulated == 0 or is_last:
            run.update(optimizer)
        if is_last:
            run.stop(loader)
        if save_each and (place + 1) % save_each == 0 and not is_last:
            run.leaf(Kind.CHECKPOINT_SAVE, save)
        if evaluate_each and (place + 1) % evaluate_each == 0 and not is_last:
            run.evaluation_pass(validation, 5)
            piled_up = AHEAD
    run.passes_time(20 * MS)
    plain = {"script": "train.py", "script_sha256": "0" * 64, "versions": {"torch": "2.13.0"}}
    return run.write(parent / name, **(plain | {"name": name}))


def run_of(
    parent: Path, name: str, seed: int, *, batches: int, step: int = STEP, **how: int
) -> ComparedRun:
    return read(recorded(parent, name, steps_of(seed, step, count=batches), **how))


def gate_of(found: Comparison) -> str:
    assert found.gate is not None
    return found.gate.outcome


def remarks(found: Comparison, what: str) -> list[str]:
    return [one.text for one in found.discrepancies if one.what == what and one.kind == "remark"]


def saving(parent: Path, *, step: int = STEP) -> tuple[ComparedRun, ComparedRun]:
    """A run that saves each 100 steps, which is half of a step, and one that is cut before."""
    whole = run_of(parent, "whole", 1, batches=1000, save_each=100)
    cut = run_of(parent, "cut", 2, batches=60, save_each=100, step=step)
    return whole, ended_early(cut, length=1000)


def test_a_run_that_is_cut_before_the_first_checkpoint_is_as_fast(tmp_path: Path) -> None:
    whole, cut = saving(tmp_path)
    for base, other in ((whole, cut), (cut, whole)):
        found = compare([base], [other], limit=0.05)
        assert found.verdict == NO_VISIBLE_DIFFERENCE
        assert gate_of(found) == PASSED
        assert found.comparable
        # Steps and what they consist of are told without them.
        step = found.metric("step_s")
        assert step is not None
        parts = found.in_group("ledger")
        assert sum(one.base or 0.0 for one in parts) == pytest.approx(step.base)
        assert sum(one.other or 0.0 for one in parts) == pytest.approx(step.other)
        assert found.metric("per_step_s.checkpoint") is None
        assert {one.verdict for one in parts} <= {NO_VISIBLE_DIFFERENCE, UNKNOWN}
        loop = found.metric("loop_step_s")
        assert loop is not None
        assert loop.verdict == UNKNOWN
    (told,) = remarks(compare([whole], [cut]), "checkpoints")
    assert told.startswith("the runs made unlike numbers of steps: those that save checkpoints are")
    assert "(saving took 9." in told
    assert told.endswith(" ms of a mean step in BASE, nothing in OTHER)")


def test_a_cut_run_that_is_slower_is_found_slower_whatever_the_other_saved(tmp_path: Path) -> None:
    whole, slower = saving(tmp_path, step=STEP * 12 // 10)
    found = compare([whole], [slower], limit=0.05)
    assert found.verdict == SLOWER
    assert gate_of(found) == TRIPPED


def test_checkpoints_of_runs_as_long_count(tmp_path: Path) -> None:
    base = run_of(tmp_path, "a", 1, batches=400, save_each=20, save=20 * MS)
    other = run_of(tmp_path, "b", 2, batches=400, save_each=20, save=600 * MS)
    assert as_alike([base], [other]) == ([base], [other])
    found = compare([base], [other])
    assert found.speedup.verdict == SLOWER
    part = found.metric("per_step_s.checkpoint")
    assert part is not None
    assert part.verdict == SLOWER
    assert not remarks(found, "checkpoints")


def both_saving(
    parent: Path,
    *,
    save: int,
    counts: tuple[int, int] = (600, 505),
    step: int = STEP,
    each: int = 20,
) -> list[ComparedRun]:
    """Two runs of other lengths that save each 20 steps, or the other one each so many."""
    base = run_of(parent, "a", 1, batches=counts[0], save_each=20, save=5 * MS)
    other = run_of(parent, "b", 2, batches=counts[1], save_each=each, save=save, step=step)
    return [ended_early(run, length=10_000) for run in (base, other)]


def test_saving_that_takes_longer_counts_in_runs_of_other_lengths_too(tmp_path: Path) -> None:
    base, other = both_saving(tmp_path, save=400 * MS)
    found = compare([base], [other], limit=0.2)
    assert found.speedup.verdict == SLOWER
    assert gate_of(found) == TRIPPED
    part = found.metric("per_step_s.checkpoint")
    assert part is not None
    assert part.verdict == SLOWER
    assert part.base == pytest.approx(5e-3 / 20)
    assert part.other == pytest.approx(400e-3 / 20)
    assert not remarks(found, "checkpoints")
    loop = found.metric("loop_step_s")
    assert loop is not None
    assert loop.verdict == SLOWER


@pytest.mark.parametrize("counts", [(600, 505), (600, 519), (619, 140), (139, 600)])
def test_saves_at_one_rate_make_no_run_of_another_length_slower(
    tmp_path: Path, counts: tuple[int, int]
) -> None:
    """A run that ends right before a save made fewer of them by the step."""
    found = compare(
        *([run] for run in both_saving(tmp_path, save=5 * MS, counts=counts)), limit=0.05
    )
    assert found.verdict == NO_VISIBLE_DIFFERENCE
    assert gate_of(found) == PASSED
    part = found.metric("per_step_s.checkpoint")
    assert part is not None
    assert part.base == pytest.approx(part.other)


@pytest.mark.parametrize(("batches", "each"), [(99, 20), (505, 30)])
def test_saves_that_are_few_or_at_another_rate_are_left_out(
    tmp_path: Path, batches: int, each: int
) -> None:
    """Of four saves nothing is sure; a script that saves at other times was cut, or changed."""
    runs = both_saving(tmp_path, save=400 * MS, counts=(600, batches), each=each)
    found = compare(*([run] for run in runs))
    assert found.verdict == NO_VISIBLE_DIFFERENCE
    assert remarks(found, "checkpoints")


def test_what_nearly_each_step_saves_is_a_part_of_steps(tmp_path: Path) -> None:
    base = run_of(tmp_path, "a", 1, batches=400, save_each=1, save=2 * MS)
    other = run_of(tmp_path, "b", 2, batches=200, save_each=1, save=20 * MS)
    found = compare([base], [other])
    assert found.speedup.verdict == SLOWER
    assert not remarks(found, "checkpoints")


def test_means_that_are_left_of_runs_lose_their_checkpoints_too(tmp_path: Path) -> None:
    def left_over(run: ComparedRun, number: int) -> ComparedRun:
        return replace(run, series=None, directory=f"{run.directory}-{number}")

    whole, cut = saving(tmp_path)
    found = compare([left_over(whole, n) for n in range(3)], [left_over(cut, n) for n in range(3)])
    assert found.speedup.mid == pytest.approx(1, abs=0.01)
    assert remarks(found, "checkpoints")


def test_evaluation_in_the_midst_of_a_pass_is_no_start_of_one(tmp_path: Path) -> None:
    """Batches that workers pile up meanwhile make more of a longer run's pass."""
    how = {"evaluate_each": 20, "wait": 15 * MS, "workers": 2}
    runs = [
        ended_early(run_of(tmp_path, f"{n}", n, batches=n, **how), length=1200) for n in (1000, 80)
    ]
    for run in runs:
        assert run.series is not None
        assert run.series.starts_inside_s[0] < -AHEAD * 3 * 0.014
    for base, other in (runs, runs[::-1]):
        found = compare([base], [other], limit=0.03)
        assert found.with_starts is not None
        assert found.with_starts.mid == pytest.approx(1, abs=0.01)
        assert found.verdict == NO_VISIBLE_DIFFERENCE
        assert gate_of(found) == PASSED
    # Of runs as long it counts as before.
    long = compare([runs[0]], [replace(runs[0], directory="b")]).base[0]
    assert long.series is runs[0].series


def test_starts_are_those_of_passes_where_there_is_no_evaluation(tmp_path: Path) -> None:
    run = run_of(tmp_path, "a", 1, batches=400, of_pass=50, workers=2)
    assert run.series is not None
    assert not run.series.starts_inside_s.any()
    assert not run.series.between_inside_s.any()


@pytest.mark.parametrize(
    ("of_pass", "last", "cut_at"), [(10, 3, 29), (31, 8, 30), (10, 3, 124), (4, 1, 41)]
)
def test_a_cut_run_ends_fewer_passes_and_is_the_same_work(
    tmp_path: Path, of_pass: int, last: int, cut_at: int
) -> None:
    whole = run_of(tmp_path, "whole", 1, batches=of_pass * 12, of_pass=of_pass, last=last)
    cut = run_of(tmp_path, "cut", 2, batches=cut_at, of_pass=of_pass, last=last)
    cut = ended_early(cut, length=of_pass)
    for base, other in ((whole, cut), (cut, whole)):
        found = compare([base], [other], limit=0.05)
        assert found.comparable
        assert found.measured_by == "step"
        assert gate_of(found) == PASSED
        assert found.speedup.mid == pytest.approx(1, abs=0.03)
        told = remarks(found, "samples a step")
        assert all(
            text.endswith(": last steps of passes are not full, and left out") for text in told
        )
        rate, step = found.metric("samples_per_s"), found.metric("step_s")
        assert rate is not None
        assert step is not None
        assert step.change is not None
        if told:
            assert rate.change == pytest.approx(1 / (1 + step.change) - 1)


def test_more_batches_in_each_step_are_other_work_in_runs_of_any_length(tmp_path: Path) -> None:
    base = run_of(tmp_path, "a", 1, batches=400, of_pass=40)
    for number, (batches, of_pass) in enumerate([(400, 40), (320, 40), (120, 40)]):
        other = run_of(tmp_path, f"b{number}", 2, batches=batches, of_pass=of_pass, accumulated=4)
        found = compare([base], [other], limit=0.05)
        assert found.measured_by == "sample"
        assert gate_of(found) == NOT_JUDGED
        assert [one.what for one in found.of_kind("work")] == ["samples a step"]


def test_runs_of_one_length_whose_steps_see_more_are_other_work(tmp_path: Path) -> None:
    base = run_of(tmp_path, "a", 1, batches=120, of_pass=10, last=3)
    other = run_of(tmp_path, "b", 2, batches=120, of_pass=10)
    found = compare([base], [other])
    assert not found.comparable
    assert [one.what for one in found.of_kind("work")] == ["samples a step"]


def test_of_short_passes_that_save_each_steps_remain(tmp_path: Path) -> None:
    how = {"of_pass": 4, "last": 1, "save_each": 2, "save": 30 * MS}
    whole = run_of(tmp_path, "whole", 1, batches=240, **how)
    cut = ended_early(run_of(tmp_path, "cut", 2, batches=90, **{**how, "save_each": 0}), length=4)
    assert whole.series is not None
    assert whole.series.ends_pass.any()
    (left,) = compare([whole], [cut]).base
    assert whole.steady_steps() > left.steady_steps() >= whole.steady_steps() / 2
    assert left.checkpoints_s > 0


def test_events_that_are_gone_do_no_harm(tmp_path: Path) -> None:
    directory = recorded(tmp_path, "a", steps_of(1, STEP, count=100), save_each=10)
    run = read(directory)
    shutil.rmtree(directory.events)
    short = run_of(tmp_path, "b", 2, batches=50, save_each=10)
    found = compare([replace(run, series=None)], [short])
    assert found.speedup.verdict == UNKNOWN
    assert found.verdict not in (FASTER, SLOWER)
