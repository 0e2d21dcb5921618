"""What a command runs in the end: the script, or the module, that a launcher starts."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

SUFFIX: Final = ".py"
# What starts a module by -m, as Python does; before one of these -m means something else (srun,
# numactl).
_STARTS_MODULES: Final = re.compile(
    r"python[\d.]*|torchrun|accelerate|deepspeed|composer|torchx|coverage|debugpy"
)
_LAUNCHERS: Final = frozenset(
    (
        "torch.distributed.run",
        "torch.distributed.launch",
        "accelerate.commands.launch",
        "accelerate.commands.accelerate_cli",
        "deepspeed.launcher.launch",
        "deepspeed.launcher.runner",
        "torch.backends.xeon.run_cpu",
        "coverage",
        "debugpy",
    )
)
_FLAG: Final = "-m"
_LONG_FLAG: Final = "--module"
_NAME: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@dataclass(frozen=True, slots=True)
class Entry:
    """A script or a module.

    Attributes:
        name: The script as it was typed, or the module's name.
        is_module: It is one.
    """

    name: str
    is_module: bool


def entry_of(words: Sequence[str], *, is_script: bool) -> Entry | None:
    """Returns what runs in the end; None where nothing among the words is Python's.

    Args:
        words: SCRIPT ARGS, -m MODULE ARGS, or a command and its words.
        is_script: The first word is a Python file, or the module is Python's to run.
    """
    if not words:
        return None
    if is_script and words[0] != _FLAG and not _starts_modules(words[0]):
        return Entry(words[0], is_module=False)
    return next(_found(words, may_be_module=is_script), None)


def _found(words: Sequence[str], *, may_be_module: bool) -> Iterator[Entry]:
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
