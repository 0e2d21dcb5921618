"""Trials of a script whose data is a stream: how long its passes are with workers, and alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.styles import without_compiler
from support.trials import sandbox_for

from trainprof.analysis.summary.tune import OK
from trainprof.findings.saved import saved_summary
from trainprof.record.run_directory import RunDirectory
from trainprof.tune.choice import against
from trainprof.tune.measurements import Measurements
from trainprof.tune.runner import Script, ScriptRunner
from trainprof.tune.trial import FirstPass, Limits, Trial, baseline, loader_alone

# It begins after a second and trains for two passes of 30 batches; how a worker gives its own part,
# or asks which one it is only for its seed, is the first word.
SCRIPT = without_compiler("""
import random, sys, time
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Stream(IterableDataset):
    def __iter__(self):
        worker = get_worker_info()
        first, step = 0, 1
        if sys.argv[1] == "shares" and worker is not None:
            first, step = worker.id, worker.num_workers
        rng = random.Random(7 + (worker.id if worker else 0))
        for index in range(first, 30, step):
            yield torch.full((4,), rng.random())


time.sleep(1.0)
torch.set_num_threads(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(int(sys.argv[2])):
    for batch in DataLoader(Stream(), batch_size=int(sys.argv[3]) if sys.argv[3:] else None):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        time.sleep(0.002)
""")
SITE = "train.py:23"
LIMITS = Limits(steps=None, killed_after_s=120.0)


def runner_of(directory: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> ScriptRunner:
    (directory / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(directory)
    script = Script(("train.py", *words))
    sandbox = sandbox_for(directory)
    return ScriptRunner(script, RunDirectory(directory / "tune"), interval_s=0.5, sandbox=sandbox)


@pytest.mark.parametrize(("how", "with_workers"), [("shares", 30), ("repeats", 60)])
def test_workers_that_repeat_a_stream_are_told_from_those_that_share_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, with_workers: int
) -> None:
    runner = runner_of(tmp_path, monkeypatch, how, "2")
    trial = Trial("num_workers=2", {"num_workers": 2}, sites=(SITE,))
    base, changed = runner.run(baseline(), 1, LIMITS), runner.run(trial, 1, LIMITS)
    assert (base.outcome, changed.outcome) == (OK, OK)
    assert base.passes == {SITE: FirstPass(30, is_ended=True)}
    assert changed.passes == {SITE: FirstPass(with_workers, is_ended=True)}
    assert bool(against(Measurements([base, changed]), trial)) is (how == "repeats")
    summary = saved_summary(RunDirectory(tmp_path / "tune" / base.directory))
    assert summary is not None
    # That it asks is no proof.
    assert summary.loaders[0].shares_samples is True


def test_last_batches_of_workers_that_are_not_full_speak_against_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 30 samples three workers make 8 and 2 each: six batches, where there are four."""
    runner = runner_of(tmp_path, monkeypatch, "shares", "12", "8")
    trial = Trial("num_workers=3", {"num_workers": 3}, sites=(SITE,))
    measured = Measurements([runner.run(baseline(), 1, LIMITS), runner.run(trial, 1, LIMITS)])
    assert [run.passes[SITE].batches for run in measured.runs] == [4, 6]
    assert len(against(measured, trial)) == 1


def test_a_script_that_takes_long_to_begin_gets_its_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of half a second in all nothing would be left for steps."""
    runner = runner_of(tmp_path, monkeypatch, "shares", "1000")
    limits = Limits(None, 120.0, seconds=100.0, enough_s=(0.5, 0.5))
    measured = runner.run(baseline(), 1, limits)
    assert (measured.outcome, measured.was_cut) == (OK, True)
    assert measured.seconds < 60.0


def test_what_a_loader_alone_gave_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = runner_of(tmp_path, monkeypatch, "shares", "2")
    measured = runner.run(loader_alone((SITE,)), 1, Limits(25, 120.0))
    assert (measured.outcome, measured.steps) == (OK, 25)
    assert measured.read_bytes is not None
