"""Builds recordings of line times, planted to the nanosecond.

run = LineRun(tmp_path)
run.source("data.py", "def f():\n    return 1\n")
main = run.process()
f = main.function("data.py", 1, "f", why="dataset")
main.lines(f, {2: (10, 5_000)})
run.write()                                   # a RunDirectory
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.events import FakeRun

from trainprof.record.run_directory import RunDirectory, write_json
from trainprof.record.schema import Kind, Topic

FIRST_PID = 4242
THREAD_MASK = 0xFFFF


@dataclass
class LineProcess:
    """A process that timed lines."""

    log: FakeRun
    sources: Mapping[str, str]
    folder: Path

    def function(self, file: str, line: int, name: str, why: str = "profile", **more: Any) -> int:
        """Returns the id of a function whose lines are timed; `file` is a source's name."""
        plain = {
            "file": str(self.folder / file),
            "line": line,
            "name": name,
            "why": why,
            "source": self.sources.get(file),
        }
        return self.log.text(Topic.LINE_FUNCTION, plain | more)

    def lines(self, function: int, times: Mapping[int, tuple[int, int]]) -> None:
        """Records line to (hits, ns), as they stand at this moment."""
        for line, (hits, ns) in times.items():
            self.log.thread = line & THREAD_MASK
            self.log.record(
                Kind.LINE,
                self.log.now,
                self.log.now + ns,
                site=function,
                value=hits,
                flags=line >> 16,
            )
        self.log.thread = 0

    def fetches(self, worker: int) -> None:
        """Makes it the worker of that number."""
        self.log.fetch(1000, 4, flags=worker + 1)


@dataclass
class LineRun:
    """A run of several processes.

    Attributes:
        parent: Where the run directory `run` and the scripts `project` are made.
        options: What was asked for.
    """

    parent: Path
    options: dict[str, Any] = field(default_factory=lambda: {"functions": [], "only": None})
    processes: list[LineProcess] = field(default_factory=list)
    saved: dict[str, str] = field(default_factory=dict)

    @property
    def directory(self) -> RunDirectory:
        return RunDirectory(self.parent / "run")

    @property
    def project(self) -> Path:
        return self.parent / "project"

    def source(self, name: str, text: str, *, saved: str | None = None) -> Path:
        """Writes a file, and its text as it ran (the same, or `saved`) into the run."""
        self.project.mkdir(exist_ok=True)
        path = self.project / name
        path.write_text(text, encoding="utf-8")
        if not self.directory.path.exists():
            self.directory.create()
            self.directory.sources.mkdir()
        self.saved[name] = f"{len(self.saved)}-{name}"
        copy = self.directory.sources / self.saved[name]
        copy.write_text(text if saved is None else saved, encoding="utf-8")
        return path

    def process(
        self,
        *,
        worker: int | None = None,
        overhead_ns: float | None = None,
        role: str | None = None,
        **header: Any,
    ) -> LineProcess:
        """Adds a process: the script, or the worker of that number."""
        number = len(self.processes)
        log_header = {"ancestors": [FIRST_PID], **header} if number else header
        role = role or ("child" if number else "script")
        log = FakeRun(pid=FIRST_PID + number, role=role, header=log_header)
        process = LineProcess(log, self.saved, self.project)
        if overhead_ns is not None:
            log.text(Topic.ENVIRONMENT, {"line_overhead_ns": overhead_ns})
        if worker is not None:
            process.fetches(worker)
        self.processes.append(process)
        return process

    def write(self, **manifest: Any) -> RunDirectory:
        for process in reversed(self.processes):
            process.log.write(self.parent)
        written = {
            "schema_version": 1,
            "name": "run",
            "cwd": str(self.project),
            "command": ["train.py"],
            "script_pid": FIRST_PID,
            "times": {"spawned_ns": 1_000_000_000, "ended_ns": 60_000_000_000},
            "exit": {"status": 0, "signal": None, "reason": "completed", "detail": None},
            "options": {"lines": self.options},
        }
        write_json(self.directory.manifest, written | manifest)
        return self.directory
