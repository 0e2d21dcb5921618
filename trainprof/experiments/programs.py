"""What runs a command that is no Python script: a trial contains Python, and no other program."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Final

from trainprof.launch.target import Target

# They start the program behind their options, and write nothing themselves.
WRAPPERS: Final = frozenset(
    (
        *("chrt", "env", "ionice", "nice", "nohup", "numactl", "setsid", "stdbuf", "taskset"),
        *("time", "timeout", "mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prun", "srun"),
        *("conda", "hatch", "mamba", "micromamba", "pdm", "pipenv", "pixi", "poetry", "rye", "uv"),
    )
)
# Python's own, also where a script of the shell finds the right one, as pyenv's do.
LAUNCHERS: Final = frozenset(
    ("accelerate", "colossalai", "composer", "deepspeed", "fabric", "horovodrun", "torchrun")
)
_PYTHON: Final = re.compile(r"(?:python|pypy|ipython)[\d.]*t?")
_SHELLS: Final = frozenset(("sh", "bash", "dash"))
# As pip and uv begin a script whose Python has too long a path for the kernel.
_BY_SHELL: Final = "'''exec'"
_MOST_OF_A_LINE: Final = 1024


def runs_only_python(target: Target, cwd: Path) -> bool:
    """Returns whether a command does nothing by itself that a trial could not contain.

    Args:
        target: The command.
        cwd: Where it is run.
    """
    if target.is_ours:
        return True
    program = _program_in(target, cwd)
    return program is not None and _is_python(program)


def interpreter_of(target: Target, cwd: Path) -> str:
    """Returns the Python that a command runs under, as far as can be told; ours if it cannot."""
    if target.is_ours:
        return sys.executable
    program = _program_in(target, cwd)
    if program is not None and _is_called_python(program):
        return program
    named = _interpreter_named_in(program) if program is not None else None
    if named is not None and os.path.isabs(named):
        return named
    return shutil.which(named or "python") or shutil.which("python3") or sys.executable


def _program_in(target: Target, cwd: Path) -> str | None:
    """Returns the file of the program that a command is about, behind all wrappers."""
    if os.path.basename(target.executable) not in WRAPPERS:
        return target.executable
    for word in target.words[1:]:
        # An option, or a variable.
        if word.startswith("-") or "=" in word:
            continue
        if word.endswith(".py"):
            return sys.executable
        path = str(cwd / word) if os.sep in word else shutil.which(word)
        # Not found: an option's value.
        if path is None or os.path.basename(path) in WRAPPERS or not os.path.isfile(path):
            continue
        return path
    return None


def _is_python(program: str) -> bool:
    if _is_called_python(program) or os.path.basename(program) in LAUNCHERS:
        return True
    return _interpreter_named_in(program) is not None


def _is_called_python(program: str) -> bool:
    return _PYTHON.fullmatch(os.path.basename(program)) is not None


def _interpreter_named_in(program: str) -> str | None:
    """Returns the Python that a script's first lines name, None where they name none."""
    try:
        with open(program, "rb") as file:
            lines = [os.fsdecode(file.readline(_MOST_OF_A_LINE)) for _ in range(2)]
        if not lines[0].startswith("#!"):
            return None
        words = lines[0][2:].split()
        if words and os.path.basename(words[0]) in _SHELLS and lines[1].startswith(_BY_SHELL):
            words = shlex.split(lines[1].removeprefix(_BY_SHELL))
    except (OSError, ValueError):
        return None
    if words and os.path.basename(words[0]) == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    return words[0] if words and _is_called_python(words[0]) else None
