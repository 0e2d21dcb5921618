"""Runs of few steps: long even ones carry a verdict and findings, noisy ones do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.events import MS, US, FakeRun

from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.findings.summarize import summarize
from trainprof.record.schema import Kind


class Short:
    """A run without workers; each step is its fetch and its computing, ms."""

    def __init__(self) -> None:
        self.run = FakeRun()
        self.loader, self.optimizer = self.run.loader(), self.run.optimizer()
        self.run.passes_time(1000 * MS)
        self.run.iterate(self.loader, 50 * US)

    def step(self, fetch_ms: float, compute_ms: float, python_ms: float = 0.0) -> None:
        run, compute = self.run, int(compute_ms * MS)
        run.yielded[self.loader] += 1
        with run.span(Kind.LOADER_NEXT, site=self.loader, value=run.yielded[self.loader]):
            run.fetch(int(fetch_ms * MS), 32)
            run.passes_time(20 * US)
        run.passes_time(int(python_ms * MS))
        run.learn(
            self.optimizer, forward=compute // 3, backward=compute // 2, update=compute // 6 + 1
        )

    def summary(self, parent: Path) -> RunSummary:
        self.run.stop(self.loader)
        return summarize(self.run.write(parent, host={"cores": 8}))


def played(parent: Path, steps: list[tuple[float, ...]]) -> RunSummary:
    short = Short()
    for step in steps:
        short.step(*step)
    return short.summary(parent)


def of_spread(wait: float, spread: float, count: int, step_ms: float) -> list[tuple[float, ...]]:
    """Returns steps of which a share waits; both parts differ by a spread, independently."""
    random = np.random.default_rng(1)
    times = np.exp(random.normal(0, spread, (count, 2)) - spread**2 / 2)
    return [tuple(each) for each in times * step_ms * np.array([wait, 1 - wait])]


WAITING, FIRST = (1900.0, 2300.0), (100.0, 9000.0)


@pytest.mark.parametrize(
    ("steps", "verdict", "findings"),
    [
        pytest.param([WAITING] * 12, ("data", "highly"), ["serial_loading"], id="11 long, even"),
        pytest.param(
            of_spread(0.45, 0.06, 12, 4200),
            ("data", "highly"),
            ["serial_loading"],
            id="11 with a spread of 6 %",
        ),
        pytest.param([WAITING] * 7, ("data", "highly"), ["serial_loading"], id="6"),
        pytest.param([WAITING] * 6, ("unknown", None), [], id="5"),
        pytest.param(
            [WAITING] * 31, ("data", "highly"), ["serial_loading"], id="30, as with any number"
        ),
        pytest.param(of_spread(0.25, 1.2, 12, 40), ("unknown", None), [], id="11 noisy"),
        pytest.param([(0.2, 30.0)] * 9, ("compute", "not"), [], id="8 healthy"),
        pytest.param(of_spread(0.01, 0.1, 9, 300), ("compute", "not"), [], id="8 of 10 %"),
        # What the first step alone does is no part of later ones.
        pytest.param(
            [(900, 30)] + [(0.2, 30.0)] * 9, ("unknown", None), [], id="a slow first batch"
        ),
        pytest.param([(1, 30, 90)] + [(1, 30.0)] * 9, ("unknown", None), [], id="a slow start"),
        pytest.param(
            [FIRST] + [WAITING] * 11, ("data", "highly"), ["serial_loading"], id="compiles"
        ),
        # One step of eleven says nothing of the others.
        pytest.param(
            [(1, 30)] * 6 + [(1, 30, 300)] + [(1, 30)] * 5, ("unknown", None), [], id="one is slow"
        ),
    ],
)
def test_what_few_steps_show(
    steps: list[tuple[float, ...]],
    verdict: tuple[str, str | None],
    findings: list[str],
    tmp_path: Path,
) -> None:
    summary = played(tmp_path, steps)
    assert (summary.verdict.bottleneck, summary.verdict.level) == verdict
    assert [finding.id for finding in summary.findings] == findings


@pytest.mark.parametrize(
    ("epochs", "bottleneck"),
    [pytest.param(4, "data", id="recur"), pytest.param(1, "unknown", id="once, may be all")],
)
def test_starts_of_epochs_that_recur_are_a_part_of_training(
    epochs: int, bottleneck: str, tmp_path: Path
) -> None:
    run = FakeRun()
    loader, optimizer = run.loader(num_workers=2, prefetch_factor=2), run.optimizer()
    for _ in range(epochs):
        run.iterate(loader, 300 * MS)
        for batch in range(16 // epochs):
            run.next(loader, (600 if batch == 0 else 1) * MS)
            run.learn(optimizer, forward=60 * MS, backward=90 * MS)
        run.stop(loader)
    summary = run.summary(tmp_path)
    assert 6 <= summary.training.steady_steps < 20
    assert summary.verdict.bottleneck == bottleneck


def test_what_is_said_of_too_few_and_of_too_different_steps(tmp_path: Path, golden: Any) -> None:
    runs = {
        "five": [WAITING] * 6,
        "noisy": of_spread(0.25, 1.2, 12, 40),
        "a slow first batch": [(900.0, 30.0)] + [(0.2, 30.0)] * 9,
    }
    texts = [
        f"{title}: {played(tmp_path / title, x).verdict.headline}" for title, x in runs.items()
    ]
    golden("few_steps.txt", "\n".join(texts) + "\n")


def test_healthy_runs_of_few_noisy_steps_have_no_finding(tmp_path: Path) -> None:
    """Of 2,000 random runs, half of which wait for data, 6 had a wrong verdict or finding."""
    random, wrong = np.random.default_rng(5), 0
    for number in range(30):
        count, step_ms = int(random.integers(7, 21)), float(np.exp(random.uniform(1, 7)))
        short = Short()
        noise = random.choice([0.02, 0.1, 0.3], size=3)
        share = random.uniform(0, 0.02)
        for step in range(count):
            fetch, compute, common = np.exp(random.normal(0, noise))
            spike = random.uniform(1.5, 4) if random.random() < 0.05 else 1.0
            first = 5.0 if step == 0 else 1.0
            of_step = step_ms * common * spike
            short.step(share * fetch * of_step, (1 - share) * compute * of_step * first)
        summary = short.summary(tmp_path / str(number))
        is_wrong = summary.verdict.bottleneck not in ("compute", "unknown")
        wrong += is_wrong or bool(summary.findings)
    assert wrong <= 1
