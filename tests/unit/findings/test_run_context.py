"""Passes ahead of training and behind it are no part of what training waits for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.events import MS, US, FakeRun

from trainprof.analysis.summary.finding import Finding
from trainprof.analysis.summary.loader import Loader
from trainprof.findings.run_context import RunContext
from trainprof.findings.summarize import context_of, summarize
from trainprof.record.schema import Kind

BATCHES = 60
FETCH = 20 * MS


class Script:
    """A script that takes batches of one loader."""

    def __init__(self, **metadata: object) -> None:
        self.run = FakeRun()
        self.run.passes_time(300 * MS)
        self.loader = self.run.loader(length=BATCHES, **metadata)
        self.optimizer = self.run.optimizer()

    def pass_over(
        self, work: Callable[[], None], loader: int = 0, *, begins: int = 10 * US
    ) -> None:
        loader = loader or self.loader
        self.run.iterate(loader, begins)
        for number in range(BATCHES):
            with self.run.span(Kind.LOADER_NEXT, site=loader, value=number + 1):
                self.run.leaf(Kind.SAMPLER, 10 * US, site=loader, value=4)
                self.run.fetch(FETCH, 4)
            work()
        self.run.stop(loader)
        self.run.passes_time(1 * MS)

    def statistics(self) -> None:
        self.pass_over(lambda: self.run.passes_time(1 * MS), begins=40 * MS)

    def train(self) -> None:
        self.pass_over(self.learn)

    def learn(self) -> None:
        self.run.learn(self.optimizer, forward=7 * MS, backward=7 * MS, update=1 * MS)

    def evaluate(self, loader: int = 0) -> None:
        self.pass_over(lambda: self.run.forward(1 * MS, flags=0), loader)

    def context(self, parent: Path) -> RunContext:
        context = context_of(self.run.write(parent, host={"usable_cores": 4}))
        assert context is not None
        return context

    def findings(self, parent: Path) -> list[Finding]:
        return summarize(self.run.write(parent, host={"usable_cores": 4})).findings


def feeder(parent: Path, *parts: Callable[[Script], None]) -> Loader:
    parent.mkdir()
    script = Script()
    for part in parts:
        part(script)
    [feeding] = script.context(parent).feeding
    return feeding.loader


def test_a_loader_has_the_figures_of_its_passes_in_training_alone(tmp_path: Path) -> None:
    plain = feeder(tmp_path / "plain", Script.train)
    for number, other in enumerate((Script.statistics, Script.evaluate)):
        loader = feeder(tmp_path / f"{number} ahead", other, Script.train)
        assert (loader.begun_ahead, replace(loader, begun_ahead=False)) == (True, plain)
        assert feeder(tmp_path / f"{number} behind", Script.train, other) == plain


def test_a_wait_is_a_share_of_training_and_its_gain_one_of_the_run(tmp_path: Path) -> None:
    script = Script()
    script.statistics()
    script.train()
    context = script.context(tmp_path)
    [feeding] = context.feeding
    share = FETCH / (FETCH + 15 * MS)
    assert feeding.wait_share == pytest.approx(share, abs=0.01)
    [finding] = script.findings(tmp_path)
    assert finding.id == "serial_loading"
    assert finding.run_speedup is not None
    saved_s = context.wall_s - context.wall_s / finding.run_speedup[1]
    assert saved_s < 1.05 * BATCHES * FETCH / 1e9
    # What the report lists is what the run had.
    assert [x.iterations for x in context.summary.loaders] == [2 * BATCHES]


def test_a_test_behind_training_does_not_stand_for_its_evaluation(tmp_path: Path) -> None:
    script = Script()
    validation, test = script.run.loader(42), script.run.loader(43)
    for _ in range(2):
        script.train()
        script.evaluate(validation)
    for _ in range(5):
        script.evaluate(test)
    context = script.context(tmp_path)
    assert [x.loader.site for x in context.evaluating] == ["train.py:42"]
    assert [x.site for x in context.summary.loaders] == [f"train.py:{x}" for x in (41, 42, 43)]
    [finding] = [x for x in script.findings(tmp_path) if x.id == "slow_validation"]
    assert finding.site == "train.py:42"


@pytest.mark.parametrize("ahead", [0, 1])
def test_workers_that_were_started_ahead_of_training_could_have_lived_on(
    tmp_path: Path, ahead: int
) -> None:
    script = Script(num_workers=2)
    run = script.run

    def pass_over(work: Callable[[], None]) -> None:
        run.iterate(script.loader, 200 * MS)
        for _ in range(5):
            run.next(script.loader, 1 * MS)
            work()
        run.stop(script.loader)

    for _ in range(ahead):
        pass_over(lambda: None)
    for _ in range(6):
        pass_over(script.learn)
    [feeding] = script.context(tmp_path).feeding
    assert feeding.loader.passes == 6
    assert feeding.loader.later_passes == (6 if ahead else 5)
    assert feeding.later_starts_s == pytest.approx(0.201 * (6 if ahead else 5))
    [finding] = [x for x in script.findings(tmp_path / "again") if x.id == "worker_restart"]
    assert finding.recoverable_s == pytest.approx(0.2 * (6 if ahead else 5), rel=0.05)
