"""What runs a command that is no Python script: a trial contains Python, and no other program."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trainprof.launch.target import Target
from trainprof.record.entry import SUFFIX
from trainprof.record.python_options import is_apart

# They look for programs elsewhere than we do: which Python it is they alone know.
_WITH_PLACES: Final = frozenset(
    ("conda", "hatch", "mamba", "micromamba", "pdm", "pipenv", "pixi", "poetry", "rye", "uv")
)
# They start the program behind their options, and write nothing themselves.
WRAPPERS: Final = _WITH_PLACES | frozenset(
    (
        *("chrt", "env", "ionice", "nice", "nohup", "numactl", "setsid", "stdbuf", "taskset"),
        *("time", "timeout", "mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prun", "srun"),
    )
)
# Python's own, also where a script of the shell finds the right one, as pyenv's do.
LAUNCHERS: Final = frozenset(
    ("accelerate", "colossalai", "composer", "deepspeed", "fabric", "horovodrun", "torchrun")
)
# Launchers that are told so start any program.
_NO_PYTHON: Final = frozenset(("--no-python", "--no_python"))
_ENV: Final = "env"
_EMPTY: Final = ("-", "-i", "--ignore-environment")
# Of srun.
_NOTHING_EXPORTED: Final = "--export=NONE"
_OURS: Final = ("PYTHONPATH", "TRAINPROF_DIR")
# Ours reaches from 3.10 on; of a name without a minor version nothing is known.
_VERSION: Final = re.compile(r"(?:python|pypy|ipython)([23])(?:\.(\d+))?t?")
_OLDEST: Final = (3, 10)
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
    if _starts_any_program(target):
        return False
    if target.is_ours:
        return True
    program = _program_in(target, cwd)
    return program is not None and _is_python(program.path)


def is_out_of_reach(target: Target, cwd: Path) -> bool:
    """Returns whether a command starts a Python so that nothing of ours gets into it.

    Args:
        target: The command.
        cwd: Where it is run.
    """
    program = None if target.is_ours else _program_in(target, cwd)
    if program is None:
        return False
    before, behind = target.words[: program.place], target.words[program.place + 1 :]
    if _loses_environment(before):
        return True
    if program.is_script:
        return False
    words = [program.path, *behind]
    if not _is_called_python(program.path):
        words = _first_line_of(program.path)
    is_known = not any(os.path.basename(word) in _WITH_PLACES for word in before)
    return bool(words) and (is_apart(words[1:]) or (is_known and _is_too_old(words[0])))


def interpreter_of(target: Target, cwd: Path) -> str:
    """Returns the Python that a command runs under, as far as can be told; ours if it cannot."""
    if target.is_ours:
        return sys.executable
    found = _program_in(target, cwd)
    program = None if found is None else found.path
    if program is not None and _is_called_python(program):
        return program
    named = _interpreter_named_in(program) if program is not None else None
    if named is not None and os.path.isabs(named):
        return named
    return shutil.which(named or "python") or shutil.which("python3") or sys.executable


@dataclass(frozen=True, slots=True)
class _Program:
    """What a command is about.

    Attributes:
        path: Its file.
        place: Of the command's word that names it.
        is_script: That word is the Python script itself.
    """

    path: str
    place: int
    is_script: bool = False


def _program_in(target: Target, cwd: Path) -> _Program | None:
    """Returns the program that a command is about, behind all wrappers."""
    if os.path.basename(target.executable) not in WRAPPERS:
        return _Program(target.executable, 0)
    for place, word in enumerate(target.words[1:], 1):
        # An option, or a variable.
        if word.startswith("-") or "=" in word:
            continue
        if word.endswith(SUFFIX):
            return _Program(sys.executable, place, is_script=True)
        path = str(cwd / word) if os.sep in word else shutil.which(word)
        # Not found: an option's value.
        if path is None or os.path.basename(path) in WRAPPERS or not os.path.isfile(path):
            continue
        return _Program(path, place)
    return None


def _starts_any_program(target: Target) -> bool:
    """Whether a launcher is told to start what need be no Python."""
    is_script = target.is_ours and target.words[:1] != ("-m",)
    words = () if is_script else target.words
    of_launcher = itertools.takewhile(lambda word: not word.endswith(SUFFIX), words)
    return any(word in _NO_PYTHON for word in of_launcher)


def _loses_environment(words: Sequence[str]) -> bool:
    """Whether wrappers leave out of the environment what leads Python to us.

    Args:
        words: Ahead of the program.
    """
    of_env = False
    for word, value in itertools.pairwise((*words, "")):
        name = os.path.basename(word)
        of_env = name == _ENV or (of_env and name not in WRAPPERS)
        unset = word.removeprefix("--unset=").removeprefix("-u") or value
        if word == _NOTHING_EXPORTED or (of_env and word in _EMPTY):
            return True
        if of_env and (word.startswith(tuple(f"{one}=" for one in _OURS)) or unset in _OURS):
            return True
    return False


def _is_too_old(interpreter: str) -> bool:
    """Whether its name, or that of the file that it is a link to, tells so."""
    names = (os.path.basename(interpreter), os.path.basename(os.path.realpath(interpreter)))
    told = [found for name in names if (found := _VERSION.fullmatch(name)) is not None]
    return any(
        one[1] == "2" or (one[2] is not None and (int(one[1]), int(one[2])) < _OLDEST)
        for one in told
    )


def _is_python(program: str) -> bool:
    if _is_called_python(program) or os.path.basename(program) in LAUNCHERS:
        return True
    return _interpreter_named_in(program) is not None


def _is_called_python(program: str) -> bool:
    return _PYTHON.fullmatch(os.path.basename(program)) is not None


def _interpreter_named_in(program: str) -> str | None:
    """Returns the Python that a script's first lines name, None where they name none."""
    words = _first_line_of(program)
    return words[0] if words else None


def _first_line_of(program: str) -> list[str]:
    """Returns the Python that a script's first lines name with its options, [] if they do not."""
    try:
        with open(program, "rb") as file:
            lines = [os.fsdecode(file.readline(_MOST_OF_A_LINE)) for _ in range(2)]
        if not lines[0].startswith("#!"):
            return []
        words = lines[0][2:].split()
        if words and os.path.basename(words[0]) in _SHELLS and lines[1].startswith(_BY_SHELL):
            words = shlex.split(lines[1].removeprefix(_BY_SHELL))
    except (OSError, ValueError):
        return []
    if words and os.path.basename(words[0]) == _ENV:
        is_other = (word.startswith("-") or "=" in word for word in words[1:])
        words = words[1 + sum(itertools.takewhile(bool, is_other)) :]
    return words if words and _is_called_python(words[0]) else []
