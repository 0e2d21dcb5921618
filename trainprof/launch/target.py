"""What to run: a script, a module, or a command on PATH."""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import shlex
import shutil
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from trainprof.record.errors import TrainprofError

SUFFIX: Final = ".py"
_NOTEBOOK: Final = ".ipynb"
# ELF, Mach-O (both byte orders), fat Mach-O
NATIVE_MAGIC: Final = b"\x7fELF", b"\xcf\xfa\xed\xfe", b"\xfe\xed\xfa\xcf", b"\xca\xfe\xba\xbe"
STANDARD_INPUT: Final = "-"
MAIN_FILES: Final = ("__main__.py", "__main__.pyc")


class NothingToRun(TrainprofError):
    slug: ClassVar[str] = "nothing-to-run"
    exit_code: ClassVar[int] = 125


class ScriptNotRunnable(TrainprofError):
    slug: ClassVar[str] = "script-not-runnable"
    exit_code: ClassVar[int] = 126


class ScriptNotFound(TrainprofError):
    slug: ClassVar[str] = "script-not-found"
    exit_code: ClassVar[int] = 127


@dataclass(frozen=True, slots=True)
class Target:
    """A command ready to be started.

    Attributes:
        argv: The arguments of the executable, the name it is called by first.
        words: The command as the user typed it: SCRIPT ARGS, or -m MODULE ARGS.
        name: Script, module or command as typed.
        stem: Short name for people: no folder, no suffix.
        is_ours: It runs under the interpreter that runs us.
    """

    executable: str
    argv: tuple[str, ...]
    words: tuple[str, ...]
    name: str
    stem: str
    is_ours: bool


def resolve(
    words: Sequence[str], module: str | None = None, *, interpreter: str = sys.executable
) -> Target:
    """Returns what `words` ask to run; with `module`, they are its arguments.

    Raises NothingToRun, ScriptNotFound or ScriptNotRunnable.
    """
    if module is not None:
        typed = ("-m", module, *words)
        return Target(interpreter, (interpreter, *typed), typed, module, module, True)
    if not words:
        raise NothingToRun("no script given", hint="trainprof run train.py --epochs 3")
    script, *arguments = words
    if script == STANDARD_INPUT:
        return Target(interpreter, (interpreter, *words), tuple(words), script, "stdin", True)
    mode = _mode(script)
    if mode is not None and not stat.S_ISDIR(mode):
        if script.endswith(_NOTEBOOK):
            raise ScriptNotRunnable(
                f"{script} is a notebook, not a Python script",
                hint=f"convert it: jupyter nbconvert --to script {shlex.quote(script)}",
            )
        if _is_program(script, mode):
            return _program(os.path.abspath(script), words)
        return _python_script(script, arguments, interpreter)
    if mode is not None and _has_main(script):
        return _python_script(script, arguments, interpreter)
    # A folder that cannot be run may have the name of a command.
    command = shutil.which(script) if os.sep not in script else None
    if command is not None:
        return _program(command, words)
    if mode is not None:
        raise ScriptNotRunnable(
            f"{script} is a directory without {MAIN_FILES[0]}",
            hint=f"run the script inside it, such as {os.path.join(script, 'train.py')}",
        )
    raise ScriptNotFound(f"no such script: {script}", hint=_near(script))


def _near(script: str) -> str:
    """Returns a hint with the file that was probably meant."""
    folder, name = os.path.split(script)
    with contextlib.suppress(OSError):
        files = [file for file in os.listdir(folder or os.curdir) if file.endswith(SUFFIX)]
        near = [f"{name}{SUFFIX}"] if f"{name}{SUFFIX}" in files else None
        near = near or difflib.get_close_matches(name, files, n=1)
        if near:
            return f"did you mean {os.path.join(folder, near[0])}?"
    return "SCRIPT is a Python file, -m MODULE, or a command on PATH such as torchrun"


def _python_script(script: str, arguments: Sequence[str], interpreter: str) -> Target:
    if not os.access(script, os.R_OK):
        raise ScriptNotRunnable(
            f"{script} cannot be read: permission denied",
            hint=f"make it readable: chmod +r {shlex.quote(script)}",
        )
    # Python would read a leading dash as an option.
    path = os.path.join(os.curdir, script) if script.startswith("-") else script
    stem = os.path.splitext(os.path.basename(os.path.abspath(script)))[0]
    argv = interpreter, path, *arguments
    return Target(interpreter, argv, (script, *arguments), script, stem, is_ours=True)


def _program(path: str, words: Sequence[str]) -> Target:
    stem = os.path.basename(words[0])
    return Target(path, tuple(words), tuple(words), words[0], stem, False)


def _mode(script: str) -> int | None:
    """Returns a file's mode, None where it does not exist; or ScriptNotRunnable."""
    try:
        return os.stat(script).st_mode
    except PermissionError:
        raise ScriptNotRunnable(
            f"{script} cannot be read: permission denied",
            hint="check the permissions of the folders above it",
        ) from None
    except OSError:
        return None


def _has_main(directory: str) -> bool:
    return any(os.path.isfile(os.path.join(directory, name)) for name in MAIN_FILES)


def _is_program(path: str, mode: int) -> bool:
    """Returns whether an executable is not Python: a binary, or for another interpreter."""
    if not stat.S_ISREG(mode) or not os.access(path, os.X_OK) or not os.access(path, os.R_OK):
        return False
    with open(path, "rb") as file:
        first_line = file.readline(256)
    if first_line.startswith(b"#!"):
        return b"python" not in first_line
    return first_line.startswith(NATIVE_MAGIC)


# These commands start a module by -m, as Python does. Behind others (srun, numactl) -m means
# something else.
_STARTS_MODULES: Final = re.compile(
    r"python[\d.]*|torchrun|accelerate|deepspeed|composer|torchx|coverage|debugpy"
)
_LAUNCHERS: Final = frozenset(
    (
        *("torch.distributed.run", "torch.distributed.launch", "torch.backends.xeon.run_cpu"),
        *("accelerate.commands.launch", "accelerate.commands.accelerate_cli"),
        *("deepspeed.launcher.launch", "deepspeed.launcher.runner", "coverage", "debugpy"),
    )
)
_FLAG: Final = "-m"
_LONG_FLAG: Final = "--module"
_NAME: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@dataclass(frozen=True, slots=True)
class Entry:
    """A script, by its name as typed, or a module."""

    name: str
    is_module: bool


def entry_of(words: Sequence[str], *, is_script: bool) -> Entry | None:
    """Returns the script or module that runs in the end; None where no word is Python's.

    `words` is SCRIPT ARGS, -m MODULE ARGS (`is_script`), or a command and its words.
    """
    if not words:
        return None
    if is_script and words[0] != _FLAG and not _starts_modules(words[0]):
        return Entry(words[0], is_module=False)
    return next(_entries(words, may_be_module=is_script), None)


def _entries(words: Sequence[str], *, may_be_module: bool) -> Iterator[Entry]:
    """Yields scripts and modules in order; options' values that are Python files among them."""
    following = [*words[1:], ""]
    for word, after in zip(words, following, strict=True):
        if word.endswith(SUFFIX):
            yield Entry(word, is_module=False)
        name = _module(word, after) if may_be_module else None
        if name is not None and name not in _LAUNCHERS:
            yield Entry(name, is_module=True)
        may_be_module = may_be_module or _starts_modules(word)


def _module(word: str, after: str) -> str | None:
    name = after if word in (_FLAG, _LONG_FLAG) else word.removeprefix(_FLAG)
    is_named = word.startswith(_FLAG) or word == _LONG_FLAG
    return name if is_named and _NAME.fullmatch(name) else None


def _starts_modules(word: str) -> bool:
    return _STARTS_MODULES.fullmatch(os.path.basename(word)) is not None
