"""What evaluation comes to: ahead of training, in it and behind it, and a few batches at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.events import MS, US, FakeRun, seconds

from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.findings.summarize import context_of, summarize
from trainprof.record.schema import ForwardFlag
from trainprof.report.text.ending import progress, steps_per_second

STEPS = 40
LOADED = 20 * MS


def trained(run: FakeRun, loader: int, optimizer: int) -> int:
    """Returns what an epoch took."""
    began = run.now
    run.train_pass(loader, optimizer, STEPS, samples=[4] * STEPS)
    return run.now - began


def evaluated(tmp_path: Path, order: str) -> tuple[RunSummary, int]:
    """Returns what a run showed, and what its epochs took, ns: T trains, E evaluates for longer."""
    run = FakeRun()
    loader, validation, optimizer = run.loader(1), run.loader(2), run.optimizer()
    took = 0
    for letter in order:
        if letter == "T":
            took += trained(run, loader, optimizer)
        else:
            run.evaluation_pass(validation, 10, wait=9 * MS)
    return run.summary(tmp_path), took


@pytest.mark.parametrize(
    ("order", "inside"), [("TE", 0), ("ET", 0), ("TETE", 2), ("ETETE", 2), ("TEET", 2)]
)
def test_the_pace_of_training_is_without_the_evaluation_in_it_alone(
    tmp_path: Path, order: str, inside: int
) -> None:
    summary, took = evaluated(tmp_path, order)
    steps = STEPS * order.count("T")
    assert summary.training.samples == 4 * steps
    assert steps_per_second(summary) == pytest.approx(steps / took * 1e9)
    assert summary.training.samples_per_s == pytest.approx(4 * steps / took * 1e9)
    evaluation = summary.evaluation
    each = evaluation.seconds / order.count("E")
    assert (evaluation.passes, evaluation.passes_in_training) == (order.count("E"), inside)
    assert evaluation.in_training_s == pytest.approx(inside * each)
    assert any("without validation" in part for part in progress(summary)) is (inside > 0)


@pytest.mark.parametrize(
    ("modes", "share"),
    [((), None), ((0,), 0.0), ((0, ForwardFlag.GRAD, 0, ForwardFlag.GRAD), 0.5)],
)
def test_what_evaluation_computes_with_gradients(
    tmp_path: Path, modes: tuple[int, ...], share: float | None
) -> None:
    run = FakeRun()
    loader, validation, optimizer = run.loader(1), run.loader(2), run.optimizer()
    trained(run, loader, optimizer)
    for mode in modes:
        run.evaluation_pass(validation, 10, flags=mode)
        trained(run, loader, optimizer)
    evaluation = run.summary(tmp_path).evaluation
    assert evaluation.iterations == 10 * len(modes)
    assert evaluation.with_gradients_share == (None if share is None else pytest.approx(share))


def in_portions(*, ahead: bool) -> tuple[FakeRun, int]:
    """A validation iterator that gives 5 batches after every 20 steps, and what that took, ns."""
    run = FakeRun()
    loader, validation, optimizer = run.loader(1), run.loader(2), run.optimizer()
    run.passes_time(100 * MS)
    if ahead:
        run.iterate(validation)
        run.passes_time(MS)
    run.iterate(loader)
    if not ahead:
        run.next(loader)
        run.learn(optimizer)
        run.iterate(validation)
    took = 0
    for step in range(200):
        run.next(loader)
        run.learn(optimizer, forward=2 * MS, backward=2 * MS)
        if step % 20 == 19:
            began = run.now
            for _ in range(5):
                run.next(validation, LOADED)
                run.forward(MS, flags=0)
            took += run.now - began
    return run, took


@pytest.mark.parametrize("ahead", [False, True])
def test_an_iterator_that_gives_evaluation_a_few_batches_at_a_time(
    tmp_path: Path, ahead: bool
) -> None:
    run, took = in_portions(ahead=ahead)
    directory = run.write(tmp_path, host={"usable_cores": 4})
    summary, context = summarize(directory), context_of(directory)
    making_ns = 0 if ahead else 10 * US
    evaluation = summary.evaluation
    assert seconds(summary)["evaluation"] == took + 10 * US
    assert (evaluation.passes, evaluation.passes_in_training) == (10, 10)
    assert evaluation.in_training_s * 1e9 == pytest.approx(took + making_ns)
    # The last forward comes after its last batch.
    assert summary.loaders[1].evaluation_s * 1e9 == pytest.approx(took - MS)
    [epoch] = [epoch for epoch in summary.epochs if epoch.stage == "evaluation"]
    assert epoch.seconds * 1e9 == pytest.approx(took - MS)
    # Its loader is what there is to change.
    [evaluating] = context.evaluating
    assert (evaluating.loader.site, evaluating.loader.iterations) == ("train.py:2", 50)
    assert evaluating.loader.init_s.max == (0 if ahead else pytest.approx(10e-6))
    finding = next(x for x in summary.findings if x.id == "slow_validation")
    assert finding.site == "train.py:2"
    assert finding.evidence["passes"] == 10
