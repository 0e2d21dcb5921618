"""What is said of evaluation that training may learn from, and how it is told to be less."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import summaries
from support.cases import Planted, case_of

from trainprof.analysis.code_figures import HotLine
from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.diagnosis.diagnose import diagnose
from trainprof.analysis.finding import Finding
from trainprof.analysis.run_figures import Epoch, Evaluation

DECODING = HotLine("making batches", "data.py:12", "decode", [], 100, 0.9, 1.0)
LEAVE_IT = "leave it where training learns from it (labels, features, hard samples)"

FEWER_FIGURES = (
    "what goes by its figures (ReduceLROnPlateau, early stopping, the best checkpoint) sees fewer "
    "of them: shorten patience to match"
)


def only(case: Case) -> Finding:
    [finding] = diagnose(case).findings
    return finding


def in_turn(passes: str) -> list[Epoch]:
    """Returns passes in order: T trains, E evaluates, e does so for a few batches."""
    return [
        summaries.epoch(
            number,
            1.0,
            0.1,
            stage="training" if one == "T" else "evaluation",
            loader=0 if one == "T" else 1,
            iterations=2 if one == "e" else 125,
        )
        for number, one in enumerate(passes)
    ]


def evaluated(passes: str, **of_loader: object) -> Finding:
    training = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    quick = Planted(fetch_s=0.0001, compute_s=0.02, role="evaluation")
    quick.loader = replace(quick.loader, id=1, site="train.py:44", **of_loader)
    return only(case_of(training, quick, parts={"evaluation": 4.0}, epochs=in_turn(passes)))


@pytest.mark.parametrize(
    ("passes", "is_minded"),
    [
        ("ETETET", True),
        ("ETTETT", True),
        ("TETETE", False),
        ("ETETETE", False),
        ("eTETET", False),  # a try ahead of training, and a run that ended within an epoch
        ("TETET", False),
        ("ET", False),
        ("T", False),
    ],
)
def test_passes_ahead_of_each_epoch_may_be_what_training_learns_from(
    passes: str, is_minded: bool
) -> None:
    finding = evaluated(passes)
    assert finding.id == "slow_validation"
    assert "less often" in finding.advice
    assert (LEAVE_IT in finding.cautions) is is_minded


def test_so_may_passes_over_the_data_that_trains() -> None:
    assert LEAVE_IT in evaluated("TETETE", has_training_data=True).cautions


def test_and_those_over_the_loader_that_trains() -> None:
    training = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    training.loader = replace(training.loader, evaluation_s=4.0, called_at="train.py:70")
    finding = only(case_of(training, parts={"evaluation": 4.0}))
    assert "over the loader that trains" in finding.title
    assert finding.cautions == [FEWER_FIGURES, LEAVE_IT]


def test_of_evaluation_over_the_loader_that_trains_only_its_own_time_can_go() -> None:
    training = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    training.loader = replace(training.loader, evaluation_s=2.5)
    finding = only(case_of(training, parts={"evaluation": 4.0}))
    assert finding.recoverable_s == pytest.approx(2.5)
    assert finding.evidence["evaluation_s"] == pytest.approx(4.0)


def in_batches(of: int | None, iterations: int = 200, share: float | None = 0.0) -> Finding:
    """Returns what is said of evaluation in batches of so many samples, where training has 32."""
    training = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    quick = Planted(fetch_s=0.0001, compute_s=0.02, role="evaluation")
    quick.loader = replace(
        quick.loader, id=1, site="train.py:44", batch_size=of, iterations=iterations
    )
    evaluation = Evaluation(iterations, 2, 4.0, 0.0, [1], with_gradients_share=share)
    return only(case_of(training, quick, parts={"evaluation": 4.0}, evaluation=evaluation))


@pytest.mark.parametrize(
    ("of", "iterations", "is_told"),
    [(1, 200, True), (8, 200, True), (9, 200, False), (None, 200, False), (1, 6, False)],
)
def test_batches_of_evaluation_far_smaller_than_trainings_may_be_larger(
    of: int | None, iterations: int, is_told: bool
) -> None:
    told = in_batches(of, iterations)
    assert told.advice.startswith("take larger batches (of") is is_told
    assert "evaluate less often" in told.advice
    assert any("padded for larger batches" in one for one in told.cautions) is is_told


@pytest.mark.parametrize(("share", "is_told"), [(1.0, True), (0.4, False), (None, False)])
def test_a_forgotten_no_grad_is_told(share: float | None, is_told: bool) -> None:
    advice = in_batches(32, share=share).advice
    assert advice.startswith("put it under torch.no_grad(); evaluate less often") is is_told
    assert ("no_grad" in advice) is is_told


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_so_it_is_over_the_loader_that_trains(share: float) -> None:
    training = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    training.loader = replace(training.loader, evaluation_s=4.0)
    evaluation = Evaluation(0, 8, 4.0, 0.0, [], with_gradients_share=share)
    advice = only(case_of(training, parts={"evaluation": 4.0}, evaluation=evaluation)).advice
    assert advice.startswith("put it under torch.no_grad(); count while training") is (share > 0)


def by_hand(may_be_rollouts_s: float, checkpoint_s: float = 0.0) -> Case:
    evaluation = Evaluation(0, 8, 4.0, 0.0, [], may_be_rollouts_s=may_be_rollouts_s)
    parts = {"evaluation": 4.0, "checkpoint": checkpoint_s}
    return case_of(parts=parts, evaluation=evaluation)


def test_what_may_be_rollouts_is_said_to_be_without_a_gain() -> None:
    finding = only(by_hand(4.0))
    assert finding.id == "slow_validation"
    assert finding.title.startswith("forwards that no loader feeds, evaluation or rollouts, take")
    assert finding.advice.startswith("if it is evaluation, evaluate less often")
    assert finding.cautions[0] == FEWER_FIGURES
    assert "a policy that collects experience" in finding.cautions[1]
    assert finding.recoverable_s is finding.predicted_speedup is None
    plain = only(by_hand(1.0))
    assert plain.title.startswith("evaluation takes 4.00 s")
    assert plain.recoverable_s == pytest.approx(4.0)


def test_what_may_be_rollouts_comes_last() -> None:
    ids = [one.id for one in diagnose(by_hand(4.0, checkpoint_s=2.0)).findings]
    assert ids == ["slow_checkpoints", "slow_validation"]
    ids = [one.id for one in diagnose(by_hand(0.0, checkpoint_s=2.0)).findings]
    assert ids == ["slow_validation", "slow_checkpoints"]


@pytest.mark.parametrize("package", [None, "transformers"])
def test_who_evaluates_less_often_is_told_of_what_goes_by_the_figures(package: str | None) -> None:
    assert evaluated("TETETE", built_by=package).cautions == [FEWER_FIGURES]
    assert FEWER_FIGURES in only(by_hand(0.0)).cautions


def test_who_gives_its_loader_workers_has_as_many_figures_as_before() -> None:
    training = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    slow = Planted(fetch_s=0.03, compute_s=0.002, role="evaluation")
    slow.loader = replace(slow.loader, id=1, site="train.py:44")
    finding = only(case_of(training, slow, parts={"evaluation": slow.loader.evaluation_s}))
    assert "num_workers" in finding.change
    assert FEWER_FIGURES not in finding.cautions


def test_a_trainer_that_evaluates_with_each_epoch_does_not_look_at_steps_alone() -> None:
    advice = evaluated("TETETE", built_by="transformers").advice
    assert 'in TrainingArguments: eval_strategy="steps" with a larger eval_steps' in advice
    assert "TrainingArguments" not in evaluated("TETETE", built_by="timm").advice


@pytest.mark.parametrize(("told", "passes"), [(None, 8), (3, 3)])
def test_passes_outside_of_training_are_not_counted(told: int | None, passes: int) -> None:
    evaluation = Evaluation(0, 8, 9.0, 0.0, [], in_training_s=4.0, passes_in_training=told)
    finding = only(case_of(parts={"evaluation": 4.0}, evaluation=evaluation))
    assert finding.title.endswith(f" in {passes} passes")
    assert finding.evidence["passes"] == passes
