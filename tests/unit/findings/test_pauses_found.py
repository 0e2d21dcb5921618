"""Checkpoints and evaluation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.cases import STEPS, Planted, case_of
from support.found import found, hot_line, only

from trainprof.analysis.pipeline.bounds import Interval
from trainprof.analysis.summary.code import HotLine
from trainprof.analysis.timeline.checkpoints import Checkpoints
from trainprof.findings.combined_speedup import together
from trainprof.findings.diagnose import diagnose
from trainprof.findings.run_context import RunContext
from trainprof.record.schema import Writer

SAVED = Checkpoints(saves=4, save_s=0.8, saved_bytes=3 << 20, site="train.py:70")


@pytest.mark.parametrize(
    ("calls", "title"),
    [
        (
            SAVED,
            "torch.save, 4 times, takes 800 ms, 29 % of training: a save of 3.00 MiB takes 200 ms",
        ),
        (
            replace(SAVED, saves=1, loads=2, load_s=0.4, saved_bytes=None),
            "torch.save, once, and torch.load, 2 times, take 800 ms, 29 % of training: a "
            "save takes 800 ms",
        ),
        (Checkpoints(loads=2, load_s=0.8), "torch.load, 2 times, takes 800 ms, 29 % of training"),
        (
            replace(SAVED, writers=(Writer.SAFETENSORS, Writer.TORCH)),
            "safetensors' serialize_file and torch.save, 4 times in all, take 800 ms, 29 % of "
            "training: a save of 3.00 MiB takes 200 ms",
        ),
        (
            replace(SAVED, writers=(Writer.TRANSFORMERS,)),
            "Trainer._save_checkpoint, 4 times, takes 800 ms, 29 % of training: "
            "a save of 3.00 MiB takes 200 ms",
        ),
    ],
)
def test_checkpoints_are_told_by_what_was_called(calls: Checkpoints, title: str) -> None:
    context = case_of(steady_steps=100, parts={"checkpoint": 0.8})
    finding = only(replace(context, checkpoints=calls))
    assert (finding.title, finding.site) == (title, calls.site)


@pytest.mark.parametrize(
    ("writer", "argument"),
    [
        (Writer.TRANSFORMERS, "save_steps="),
        (Writer.LIGHTNING, "every_n_train_steps="),
        (Writer.ACCELERATE, None),
        (Writer.TORCH, None),
    ],
)
def test_where_a_trainer_is_told_how_often_it_saves(writer: Writer, argument: str | None) -> None:
    context = case_of(steady_steps=100, parts={"checkpoint": 0.8})
    finding = only(replace(context, checkpoints=replace(SAVED, writers=(writer,)))).also
    assert [x.split()[5] for x in finding] == ([argument] if argument else [])


@pytest.mark.parametrize(
    ("key", "rule", "spent_s", "little_s"),
    [
        ("checkpoint", "slow_checkpoints", 0.5, 0.05),
        ("other", "python_in_loop", 0.5, 0.15),
        ("gc", "gc_pauses", 0.5, 0.05),
    ],
)
def test_what_training_spends_elsewhere(
    key: str, rule: str, spent_s: float, little_s: float
) -> None:
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    context = case_of(healthy, parts={key: spent_s})
    finding = only(
        replace(context, summary=replace(context.summary, part_lines=[hot_line("other")]))
    )
    assert finding.id == rule
    assert finding.is_at_most
    assert finding.predicted_speedup is not None
    assert finding.predicted_speedup[0] == 1.0
    # A fifth goes; what remains may get faster by a quarter of that share.
    assert finding.predicted_speedup[1] == pytest.approx(1.25 / 0.95, rel=0.05)
    assert found(case_of(healthy, parts={key: little_s})) == []


def test_evaluation_wants_no_workers_that_take_longer_to_start_than_they_save() -> None:
    """Built anew for each of 20 passes of ten batches, by spawn."""
    training = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    evaluating = Planted(fetch_s=0.02, compute_s=0.002, passes=20, role="evaluation")
    spawned = replace(evaluating.inputs, boot_s=Interval(1.0, 2.5, 6.0))
    for inputs, is_wanted in ((evaluating.inputs, True), (spawned, False)):
        evaluating.loader = replace(evaluating.loader, id=1, site="train.py:44", built=20)
        evaluating.inputs = inputs
        spent_s = evaluating.loader.wait_total_s + 0.002 * STEPS
        finding = only(case_of(training, evaluating, parts={"evaluation": spent_s}))
        assert finding.id == "slow_validation"
        assert ("num_workers" in finding.change) is is_wanted


def test_waits_that_most_of_the_run_does_not_have_are_not_saved_in_all_of_it() -> None:
    planted = Planted(fetch_s=0.04, compute_s=0.01)
    whole = only(case_of(planted))
    planted.loader = replace(planted.loader, wait_total_s=planted.loader.wait_total_s / 4)
    part = only(case_of(planted))
    assert part.id == whole.id == "serial_loading"
    assert part.recoverable_s < whole.recoverable_s / 3


def test_evaluation_wants_workers_for_its_loader() -> None:
    training = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    evaluating = Planted(fetch_s=0.02, compute_s=0.002, role="evaluation")
    evaluating.loader = replace(evaluating.loader, id=1, site="train.py:44")
    spent_s = evaluating.loader.wait_total_s + 0.002 * STEPS
    finding = only(case_of(training, evaluating, parts={"evaluation": spent_s}))
    assert (finding.id, finding.site) == ("slow_validation", "train.py:44")
    assert finding.change["num_workers"] >= 2
    quick = Planted(fetch_s=0.0001, compute_s=0.02, role="evaluation")
    quick.loader = replace(quick.loader, id=1, site="train.py:44")
    finding = only(case_of(training, quick, parts={"evaluation": 4.0}))
    assert finding.change == {}
    assert "less often" in finding.advice
    assert finding.site == "train.py:44"
    again = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    again.loader = replace(again.loader, evaluation_s=3.0, called_at="train.py:70")
    short = Planted(fetch_s=0.0001, compute_s=0.005, role="evaluation")
    short.loader = replace(short.loader, id=1, site="train.py:44")
    finding = only(case_of(again, short, parts={"evaluation": 4.0}))
    assert (finding.site, finding.change) == ("train.py:70", {})
    assert finding.recoverable_s == pytest.approx(3.0)
    quick.loader = replace(quick.loader, called_at="train.py:60")
    finding = only(case_of(training, quick, parts={"evaluation": 4.0}))
    assert finding.site == "train.py:60"


@pytest.mark.parametrize(
    ("over_it_s", "is_told_by_it"), [(1.0, False), (14.0, False), (16.0, True), (31.0, True)]
)
def test_samples_that_are_drawn_after_a_validation_are_not_its_loaders(
    over_it_s: float, is_told_by_it: bool
) -> None:
    validating = Planted(fetch_s=0.0001, compute_s=0.005, role="evaluation")
    validating.loader = replace(
        validating.loader, id=1, site="val.py:40", called_at="train.py:60", evaluation_s=over_it_s
    )
    drawing = HotLine("evaluation", "ddpm.py:8", "sample", ["train.py:61"], 90, 0.9, 28.0)
    context = case_of(
        Planted(workers=2, fetch_s=0.002, compute_s=0.01), validating, parts={"evaluation": 31.0}
    )
    lines = [drawing, replace(hot_line("forward"), called_from=["train.py:59"])]
    finding = only(replace(context, summary=replace(context.summary, part_lines=lines)))
    assert finding.id == "slow_validation"
    assert finding.site == ("train.py:60" if is_told_by_it else "train.py:61")
    assert "most of it goes to ddpm.py:8 (sample): 90 % of it" in finding.also


def test_several_loaders_of_which_none_is_most_of_evaluation_are_most_of_it_together() -> None:
    validating = [Planted(fetch_s=0.0001, compute_s=0.005, role="evaluation") for _ in range(3)]
    for number, x in enumerate(validating):
        x.loader = replace(x.loader, id=number + 1, site=f"val.py:{number}", evaluation_s=1.0)
    training = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    finding = only(case_of(training, *validating, parts={"evaluation": 3.1}))
    assert finding.site == "val.py:0"


@pytest.mark.parametrize(
    "healthy",
    [
        pytest.param({"workers": 2, "fetch_s": 0.01, "compute_s": 0.03}, id="workers keep up"),
        pytest.param({"fetch_s": 0.0004, "compute_s": 0.03}, id="data in memory, no workers"),
        pytest.param(
            {"workers": 4, "fetch_s": 0.01, "compute_s": 0.03, "passes": 10, "start_s": 0.001},
            id="quick starts",
        ),
        pytest.param(
            {"workers": 2, "fetch_s": 0.004, "compute_s": 0.03, "slow_every": 40},
            id="slow samples that the buffer hides",
        ),
        pytest.param(
            {"workers": 4, "fetch_s": 0.01, "reading": 0.9, "compute_s": 0.03},
            id="reading that nobody waits for",
        ),
        pytest.param(
            {
                "workers": 2,
                "fetch_s": 0.001,
                "compute_s": 0.004,
                "receive_s": Interval.exactly(0.0015),
            },
            id="a plain batch takes its time to be taken over",
        ),
        pytest.param(
            {
                "fetch_s": 0.0001,
                "running": 1.0,
                "compute_s": 0.0003,
                "cores": 2,
                "receive_s": Interval(0.0003, 0.0004, 0.0006),
            },
            id="batches that no worker could hand over sooner",
        ),
    ],
)
def test_healthy_runs_have_no_finding(healthy: dict[str, Any]) -> None:
    assert found(case_of(Planted(**healthy))) == []


def evaluated_with_new_workers(evaluation_s: float) -> RunContext:
    """Workers are started for each of 20 passes of evaluation: 0.1 s and more each."""
    training = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    evaluation = Planted(
        workers=2, fetch_s=0.002, compute_s=0.002, start_s=0.1, passes=20, role="evaluation"
    )
    evaluation.loader = replace(evaluation.loader, id=1)
    return case_of(training, evaluation, parts={"evaluation": evaluation_s})


@pytest.mark.parametrize(
    ("line", "share", "is_joined"),
    [
        ("train.py:71", 0.9, True),
        ("train.py:80", 0.9, False),
        ("train.py:69", 0.9, False),
        ("save.py:71", 0.9, False),
        ("train.py:71", 0.5, False),
    ],
)
def test_what_follows_a_checkpoint_belongs_to_it(line: str, share: float, is_joined: bool) -> None:
    """Such as a rename, for which the disk is waited for."""
    findings = diagnose(with_saves((0.0, 0.3), (0.0, 0.3), line, share)).findings
    by_id = {x.id: x for x in findings}
    assert (set(by_id) == {"slow_checkpoints"}) is is_joined
    if is_joined:
        joined = by_id["slow_checkpoints"]
        assert joined.recoverable_s == pytest.approx(1.0, rel=0.05)
        assert joined.also[-1].startswith(f"at {line}, and counted with it: Python code between")


def with_saves(
    saved: tuple[float, float], python: tuple[float, float], line: str, share: float = 0.9
) -> RunContext:
    """Half a second each of saving and of Python at a line, with shares of the halves' steps."""
    context = case_of(
        Planted(workers=2, fetch_s=0.002, compute_s=0.01),
        parts={"checkpoint": 0.5, "other": 0.5},
        halves={"checkpoint": saved, "other": python},
    )
    there = replace(hot_line("other", 0.95), site=line, function="save", line_share=share)
    return replace(context, summary=replace(context.summary, part_lines=[there]))


@pytest.mark.parametrize(
    ("saved", "python", "is_joined"),
    [
        pytest.param((0.0, 0.3), (0.01, 0.31), True, id="with saves, and a little in every step"),
        pytest.param((0.0, 0.3), (0.15, 0.15), False, id="in every step"),
        pytest.param((0.0, 0.3), (0.1, 0.2), False, id="as much in steps that do not save"),
        pytest.param((0.0, 0.3), (0.3, 0.0), False, id="in steps that do not save"),
        pytest.param((0.15, 0.15), (0.15, 0.15), False, id="of saves in every step nobody knows"),
        # The last epoch's, say: what trains no further is in no step.
        pytest.param((0.0, 0.0), (0.0, 0.0), True, id="behind the last step, as the saves"),
        pytest.param(
            (0.0, 0.34), (0.0, 0.0), False, id="behind the last step, which saves no more"
        ),
    ],
)
def test_only_what_comes_with_saves_belongs_to_them(
    saved: tuple[float, float], python: tuple[float, float], is_joined: bool
) -> None:
    findings = diagnose(with_saves(saved, python, "train.py:72")).findings
    by_id = {x.id: x for x in findings}
    assert (set(by_id) == {"slow_checkpoints"}) is is_joined
    if not is_joined:
        assert by_id["python_in_loop"].site == "train.py:72"
        assert by_id["slow_checkpoints"].recoverable_s == pytest.approx(0.5, rel=0.05)


def test_evaluation_that_is_mostly_starting_workers_has_that_cause_alone() -> None:
    finding = only(evaluated_with_new_workers(2.6))
    assert (finding.id, finding.change) == ("worker_restart", {"persistent_workers": True})


def test_starting_workers_for_evaluation_is_part_of_what_evaluation_takes() -> None:
    context = evaluated_with_new_workers(5.0)
    findings = diagnose(context).findings
    assert {x.id for x in findings} == {"slow_validation", "worker_restart"}
    everything = together(context, findings)
    of_all = next(x for x in findings if x.id == "slow_validation")
    assert everything is not None
    assert of_all.predicted_speedup is not None
    assert everything <= of_all.predicted_speedup[1] * 1.001
