"""Line times that a run recorded, by function and line."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.session import run_hooked, run_plain

from trainprof.analysis.timeline.events import ProcessLog, load_process
from trainprof.record.log_reader import log_paths, read_log
from trainprof.record.schema import Kind, Topic

# Hits and ns.
Times = tuple[int, int]


@dataclass(frozen=True)
class TimedLines:
    """What one process, or all of them together, recorded of lines.

    Attributes:
        metadata: Of each function, by its qualified name.
        rows: Line to (hits, ns), by the same.
    """

    metadata: dict[str, dict[str, Any]]
    rows: dict[str, dict[int, Times]]

    def hits(self, function: str) -> dict[int, int]:
        return {line: hits for line, (hits, _) in sorted(self.rows.get(function, {}).items())}

    def why(self) -> dict[str, str]:
        return {name: metadata["why"] for name, metadata in self.metadata.items()}


@dataclass(frozen=True)
class LinesRun:
    """A run with its processes, the script first."""

    directory: Path
    processes: list[tuple[ProcessLog, TimedLines]]
    stdout: str

    @property
    def script(self) -> TimedLines:
        return self.processes[0][1]

    @property
    def children(self) -> list[TimedLines]:
        return [lines for _, lines in self.processes[1:]]

    def together(self) -> TimedLines:
        metadata: dict[str, dict[str, Any]] = {}
        rows: dict[str, dict[int, Times]] = {}
        for _, lines in self.processes:
            metadata |= lines.metadata
            for name, of_function in lines.rows.items():
                total = rows.setdefault(name, {})
                for line, (hits, ns) in of_function.items():
                    before = total.get(line, (0, 0))
                    total[line] = (before[0] + hits, before[1] + ns)
        return TimedLines(metadata, rows)

    def notes(self, topic: Topic) -> list[Any]:
        return [note for log, _ in self.processes for note in log.texts_of(topic).values()]


def read_lines(directory: Path, stdout: str = "") -> LinesRun:
    logs = [load_process(read_log(path)) for path in log_paths(directory / "events")]
    logs.sort(key=lambda log: (log.role != "script", log.header["perf_ns"]))
    return LinesRun(directory, [(log, _timed(log)) for log in logs], stdout)


def _timed(log: ProcessLog) -> TimedLines:
    functions = log.texts_of(Topic.LINE_FUNCTION)
    rows: dict[str, dict[int, Times]] = {}
    for record in log.details[log.details["kind"] == Kind.LINE]:
        line = int(record["thread"]) | int(record["flags"]) << 16
        assert record["start"] > 0
        times = (int(record["value"]), int(record["end"] - record["start"]))
        rows.setdefault(functions[int(record["site"])]["name"], {})[line] = times
    return TimedLines({x["name"]: x for _, x in sorted(functions.items())}, rows)


def time_lines(
    tmp_path: Path,
    script: str,
    *arguments: str,
    functions: Sequence[str] = (),
    only: str | None = None,
    **more: Any,
) -> LinesRun:
    """Runs a script plainly and with its lines timed; both look the same from outside."""
    name = "script.py"
    (tmp_path / name).write_text(script)
    return time_words(tmp_path, [name, *arguments], functions=functions, only=only, **more)


def time_words(
    tmp_path: Path,
    words: Sequence[str],
    *,
    functions: Sequence[str] = (),
    only: str | None = None,
    **more: Any,
) -> LinesRun:
    plain = run_plain(words, tmp_path, **more)
    options = {"lines": {"functions": list(functions), "only": only}}
    ours = run_hooked(words, tmp_path, tmp_path / "run", options=options, **more)
    assert (ours.stdout, ours.stderr, ours.returncode) == (
        plain.stdout,
        plain.stderr,
        plain.returncode,
    )
    return read_lines(tmp_path / "run", ours.stdout)


def time_lines_alone(tmp_path: Path, script: str, *arguments: str, **more: Any) -> LinesRun:
    """Runs a script with its lines timed; its stdout ends with what it timed itself, as JSON."""
    name = "script.py"
    (tmp_path / name).write_text(script)
    options = {"lines": {"functions": [], "only": None, **more.pop("lines", {})}}
    done = run_hooked([name, *arguments], tmp_path, tmp_path / "run", options=options, **more)
    assert (done.returncode, done.stderr) == (0, "")
    return read_lines(tmp_path / "run", done.stdout)


def kernprof_hits(tmp_path: Path, script: Path) -> dict[str, dict[int, int]]:
    """Returns hits by function and line, as line_profiler's own command counts them."""
    command = ["-m", "kernprof", "-q", "-l", "-o", "kernprof.lprof", str(script)]
    done = subprocess.run(
        [sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    reader = (
        "import json, line_profiler\n"
        "timings = line_profiler.load_stats('kernprof.lprof').timings\n"
        "print(json.dumps([[*key, rows] for key, rows in timings.items()]))"
    )
    read = subprocess.run(
        [sys.executable, "-c", reader], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    hits: dict[str, Counter[int]] = {}
    for _, _, name, rows in json.loads(read.stdout):
        hits.setdefault(name, Counter()).update({line: count for line, count, _ in rows})
    return {name: dict(sorted(counted.items())) for name, counted in hits.items()}
