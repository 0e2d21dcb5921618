"""Reads what a trial's process left: notes on what it changed, and its error messages."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trainprof.analysis.run.training_process import training_processes
from trainprof.analysis.timeline.step_series import first_recording
from trainprof.record.run_directory import RunDirectory
from trainprof.record.schema import Topic

_READ_BYTES: Final = 1 << 16
_MOST_CELLS: Final = 160
# Last line of a traceback: the exception's name, with its module.
_EXCEPTION: Final = r"(?:\w+\.)*{}(?:: .*)?"
_ANY_EXCEPTION: Final = re.compile(_EXCEPTION.format(r"\w*(?:Error|Exception|Interrupt|Exit)"))
# Error messages that the sandbox causes, and how.
_REFUSALS: Final = (
    (
        r"Errno 18\]|os error 18\)|[Cc]ross-device link",
        "The sandbox cannot rename existing directories (EXDEV). Use shutil.move, which copies",
    ),
    (
        r"Errno 75\]|os error 75\)|Value too large for defined data type",
        "The sandbox cannot modify files of another user or group (EOVERFLOW)",
    ),
    (
        r"Errno 30\]|os error 30\)|Read-only file system",
        "This path is read-only in the sandbox (EROFS)",
    ),
    (
        r"Errno 28\]|os error 28\)|No space left on device",
        "The sandbox keeps what a trial writes until it ends, and is full (ENOSPC)",
    ),
)


@dataclass(frozen=True, slots=True)
class TrialNotes:
    """Notes of the training process.

    Attributes:
        applied: Changes, by name.
        refused: Reasons why a change was not applied somewhere; a name may be in both.
        losses: Of the first backward passes; nan if not finite.
        written: Files changed outside the scratch directory, and whether they existed.
    """

    applied: Mapping[str, Any]
    refused: Mapping[str, str]
    losses: tuple[float, ...]
    written: Mapping[str, bool]


def read_trial_notes(directory: RunDirectory) -> TrialNotes:
    """Reads the notes of a run's recording; what cannot be read is empty."""
    recording = first_recording(directory)
    notes = training_processes(recording)[0].metadata.texts[Topic.TRIAL]
    applied: dict[str, Any] = {}
    refused: dict[str, str] = {}
    losses: list[float] = []
    # Each note is complete and replaces earlier ones.
    for _, note in sorted(notes.items()):
        if not isinstance(note, dict):
            continue
        if isinstance(note.get("applied"), dict):
            applied = note["applied"]
        if isinstance(note.get("refused"), dict):
            refused = {name: str(why) for name, why in note["refused"].items()}
        if isinstance(note.get("losses"), list):
            losses = [_loss(value) for value in note["losses"]]
    everywhere = [note for log in recording.logs for note in log.texts_of(Topic.TRIAL).values()]
    written = dict(file for note in everywhere for file in _written(note))
    return TrialNotes(applied, refused, tuple(losses), written)


def _loss(value: Any) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number else math.nan


def _written(note: Any) -> Iterator[tuple[str, bool]]:
    paths = note.get("written") if isinstance(note, dict) else None
    if isinstance(paths, list):
        yield from ((str(path), bool(note.get("was_there"))) for path in paths)


def last_words(console: Path, exception: str | None) -> str | None:
    """Returns the line with the cause of a failure, such as "ValueError: no such file".

    `exception`: the name of the exception. That of a worker comes after the one that forwards it.
    """
    lines = [line for line in end_of_errors(console).splitlines() if line.strip()]
    if exception is not None:
        wanted = re.compile(_EXCEPTION.format(re.escape(exception.rpartition(".")[2])))
        return next((_short(line) for line in reversed(lines) if wanted.fullmatch(line)), None)
    telling = [line for line in lines if _ANY_EXCEPTION.fullmatch(line)] or lines
    return _short(telling[-1]) if telling else None


def end_of_errors(console: Path) -> str:
    """Returns the end of a script's stderr; "" if not kept."""
    try:
        with (console / "stderr").open("rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - _READ_BYTES, 0))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def _short(line: str) -> str:
    line = line.strip()
    return line if len(line) <= _MOST_CELLS else f"{line[: _MOST_CELLS - 3]}..."


def refusal_in(errors: str) -> str | None:
    """Returns how the sandbox caused a failure, None if it did not."""
    return next((why for pattern, why in _REFUSALS if re.search(pattern, errors)), None)
