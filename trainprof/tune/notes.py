"""What a trial's process told of itself: what was changed, what was not, and its first losses."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trainprof.analysis.run.training_process import training_processes
from trainprof.analysis.timeline.step_series import first_recording
from trainprof.record.run_directory import RunDirectory
from trainprof.record.schema import Topic


@dataclass(frozen=True, slots=True)
class TrialNotes:
    """Of the process that trained.

    Attributes:
        applied: What was changed, by name, as it was asked for.
        refused: What was not changed, somewhere, and why; a name may be in both.
        losses: Of the first backward passes; one that was not finite is nan.
        written: Files that a trial without a sandbox changed outside of its scratch directory, and
            whether they were there before.
    """

    applied: Mapping[str, Any]
    refused: Mapping[str, str]
    losses: tuple[float, ...]
    written: Mapping[str, bool]


def read_trial_notes(directory: RunDirectory) -> TrialNotes:
    """Reads them from a run's recording; what is not there, or not to be read, is empty."""
    recording = first_recording(directory)
    told = training_processes(recording)[0].metadata.texts[Topic.TRIAL]
    applied: dict[str, Any] = {}
    refused: dict[str, str] = {}
    losses: list[float] = []
    # Later notes are whole: they stand for those before.
    for _, note in sorted(told.items()):
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
