"""What tests of `tune` as a command share: trials that answer at once."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from support import summaries
from support.planted_trials import FakeRunner, Planted, plan_of, threads, workers

from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.record.run_directory import RunDirectory
from trainprof.tune import journal, session
from trainprof.tune.candidates import Plan
from trainprof.tune.runner import label_of
from trainprof.tune.sandbox.sandbox import Sandbox
from trainprof.tune.search import Search
from trainprof.tune.trial import Limits, Measured, Trial


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """`tune` without a script: trials answer at once; the names of those that ran."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    Path("train.py").write_text("print(1)\n")
    ran: list[str] = []
    runs: dict[tuple[str, int], Measured] = {}
    fake = FakeRunner(Planted(lambda o: 0.005 if "num_workers" in o else 0.010))

    class Runner:
        def __init__(
            self,
            script: object,
            directory: RunDirectory,
            *,
            interval_s: float,
            sandbox: Sandbox | None,
        ) -> None:
            self._directory = directory

        def run(self, trial: Trial, number: int, limits: Limits) -> Measured:
            ran.append(trial.name)
            found = fake.run(trial, number, limits)
            made = self._directory.trials / label_of(trial, number)
            made.mkdir(parents=True, exist_ok=True)
            runs[trial.name, number] = found
            return found

    def read(trial: Trial, number: int, *_: object, **__: object) -> Measured:
        return runs[trial.name, number]

    def planned(*_: object) -> Plan:
        return plan_of(workers(2), threads(1))

    def summary(directory: RunDirectory) -> RunSummary:
        return summaries.slow_loader()

    def made(directory: Path, words: object) -> Sandbox:
        return Sandbox((str(tmp_path),), (), None, str(tmp_path))

    monkeypatch.setattr(session, "ScriptRunner", Runner)
    monkeypatch.setattr(session, "Search", partial(Search, now=fake.now))
    monkeypatch.setattr(session, "make_sandbox", made)
    monkeypatch.setattr(session, "_planned", planned)
    monkeypatch.setattr(session, "saved_summary", summary)
    monkeypatch.setattr(session, "ground_now", lambda target: {})
    monkeypatch.setattr(journal, "read", read)
    monkeypatch.setattr(journal, "saved_summary", summary)
    return ran
