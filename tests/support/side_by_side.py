"""A training project run under plain python and under trainprof, and what both came to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from support.machine import attempts
from support.processes import TRAINPROF, Ended, path_with_scripts
from support.styles import PREAMBLE, ROOT, Style, check_counts, missed_costs

DEADLINE_S: Final = 120.0

LOOP: Final = """
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    for x, y in make_loader():
        with timed("forward"):
            p = model(x)
        loss = mse(p, y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    print(epoch, loss.item().hex(), flush=True)
"""
TRAINING: Final = f"{PREAMBLE}{LOOP}\ntell()\n"


@dataclass(frozen=True)
class Project:
    """Files, and the command that trains with them.

    Attributes:
        words: What stands behind `python`, and behind `trainprof run`.
        files: Text by path.
        cwd: Where the command is typed, relative to the project; -o is relative to it too.
        command: What runs `words` in place of python; {} where `words` are the command.
        ours: The command under trainprof, where it is not `trainprof run` before all of it.
        steps: What the summary must say.
    """

    words: Sequence[str]
    files: Mapping[str, str] = field(default_factory=lambda: {"train.py": TRAINING})
    cwd: str = "."
    command: Sequence[str] = (sys.executable,)
    ours: Sequence[str] = ()
    stdin: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    steps: int = 12

    def write(self, directory: Path) -> Path:
        """Makes the directory with its files and returns where the command is to be typed."""
        for name, text in self.files.items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        cwd = directory / self.cwd
        cwd.mkdir(parents=True, exist_ok=True)
        return cwd


@dataclass(frozen=True)
class Pair:
    """Both ends of one project; `run` is the run directory."""

    plain: Ended
    ours: Ended
    run: Path

    def summary(self) -> dict[str, Any]:
        parsed = json.loads((self.run / "summary.json").read_text())
        assert isinstance(parsed, dict)
        return parsed


def run_both(project: Project, tmp_path: Path) -> Pair:
    """Runs the project both ways at the same time."""
    ours = _trainprof_of(project)
    plain_cwd, our_cwd = (project.write(tmp_path / name / "all") for name in ("plain", "ours"))
    with (
        _started([*project.command, *project.words], plain_cwd, project) as plain_process,
        _started(ours, our_cwd, project) as our_process,
    ):
        plain = _ended(plain_process, project)
        return Pair(plain, _ended(our_process, project), our_cwd / "run")


def run_plain(project: Project, tmp_path: Path) -> Ended:
    """Runs the project under plain python alone."""
    cwd = project.write(tmp_path / "plain" / "all")
    with _started([*project.command, *project.words], cwd, project) as process:
        return _ended(process, project)


def run_ours(project: Project, tmp_path: Path, plain: Ended) -> Pair:
    """Runs the project under trainprof, to be compared with a plain run that was made already."""
    cwd = project.write(tmp_path / "ours" / "all")
    with _started(_trainprof_of(project), cwd, project) as process:
        return Pair(plain, _ended(process, project), cwd / "run")


def prove_both(project: Project, tmp_path: Path, plain: Ended | None = None) -> dict[str, Any]:
    """Asserts that both did the same, that counts and a planted cost are right; gives the summary.

    The last line of the script's stdout is what it timed. Costs that miss are measured again, as
    in `styles.prove`.

    Args:
        plain: What it came to under plain python, where that is known.
    """
    pair = run_ours(project, tmp_path, plain) if plain else run_both(project, tmp_path)
    check_same(pair)
    style = Style("", project.steps, 12, 2)
    for attempt in attempts():
        if attempt:
            pair = run_ours(project, tmp_path / f"again-{attempt}", pair.plain)
        summary = pair.summary()
        check_counts(style, summary)
        missed = missed_costs(style, summary, truth_of(pair.ours))
        if not missed:
            break
    assert not missed, missed
    return summary


def check_same(pair: Pair) -> None:
    """Asserts the same status and output, up to the times that the script took itself."""
    assert pair.ours.status == pair.plain.status == 0, (pair.plain.stderr, pair.ours.stderr)
    assert lines_of(pair.ours) == lines_of(pair.plain)
    assert pair.ours.stderr == pair.plain.stderr
    assert truth_of(pair.ours)["counts"] == truth_of(pair.plain)["counts"]


def truth_of(ended: Ended) -> dict[str, Any]:
    """Returns what the script told at its end."""
    parsed = json.loads(ended.stdout.splitlines()[-1])
    assert isinstance(parsed, dict)
    return parsed


def lines_of(ended: Ended) -> list[bytes]:
    return ended.stdout.splitlines()[:-1]


def _trainprof_of(project: Project) -> list[str]:
    if project.ours:
        return [*project.ours]
    command = [] if tuple(project.command) == (sys.executable,) else [*project.command]
    return [*TRAINPROF, "-o", "run", *command, *project.words]


def _started(command: list[str], cwd: Path, project: Project) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        cwd=cwd,
        env={**os.environ, **environment(), **project.env},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def environment() -> dict[str, str]:
    """What both need: trainprof and torchrun to be found from any folder, and few threads."""
    return {
        "OMP_NUM_THREADS": "1",
        "PATH": path_with_scripts(),
        "PYTHONPATH": str(ROOT),
        "KINETO_LOG_LEVEL": "6",
    }


def _ended(process: subprocess.Popen[bytes], project: Project) -> Ended:
    try:
        stdout, stderr = process.communicate(project.stdin.encode(), timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return Ended(stdout, stderr, process.returncode)
