"""The notes of a training process's probes, with the places that they name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainprof.analysis.run.place_names import Sites
from trainprof.record import notes
from trainprof.record.notes import AnyNote


@dataclass(frozen=True, slots=True)
class Notes:
    """What probes noted, to be read by the kind of note.

    Attributes:
        records: All notes of the process's environment, as they stand in its log.
        sites: Names of the places that they name by number.
    """

    records: Sequence[Mapping[str, Any]] = ()
    sites: Sites = field(default_factory=lambda: Sites({}, None))

    def last(self, kind: type[AnyNote]) -> AnyNote | None:
        """Returns the note of a kind that was written last, None where there is none."""
        return notes.last_note(kind, self.records)

    def last_list(self, kind: type[AnyNote]) -> list[AnyNote]:
        """Returns the notes of a kind that were written last as one list."""
        return notes.last_notes(kind, self.records)
