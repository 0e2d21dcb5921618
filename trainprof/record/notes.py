"""Typed notes: what a probe writes down once, and how it is read back, by one definition.

A note is a frozen dataclass with a `KEY`. Its fields are ints, floats, strings, bools, any of these
or None, tuples of these, other notes and tuples of them. Every field has a default, which stands
for what is missing or damaged: nothing in a log is trusted.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, TypeVar

# Beyond it a number is damage, not a measurement (10^18 ns are 31 years, 10^18 bytes an exabyte);
# below it a time and its difference to another fit an int64.
MAX_NUMBER: Final = 1 << 62
# Which of several notes under a key was written last.
NUMBER: Final = "number"


@dataclasses.dataclass(frozen=True, slots=True)
class Note:
    """What every note is; a note inside another one needs no key."""

    KEY: ClassVar[str] = ""


AnyNote = TypeVar("AnyNote", bound=Note)


@dataclasses.dataclass(frozen=True, slots=True)
class UnusedGradients(Note):
    """Gradients that no optimizer has; shares of backward's time, alone and mixed with used ones.

    `model_site` is the line that calls the model with most of them, `site` that of their pass.
    """

    KEY: ClassVar[str] = "unused_gradients"

    unused_share: float = 0.0
    mixed_share: float = 0.0
    from_start: bool = False
    model: str = ""
    model_site: int = 0
    site: int = 0


class DiscardedGradients(UnusedGradients):
    """Gradients that are reset before their optimizer steps."""

    __slots__ = ()

    KEY: ClassVar[str] = "discarded_gradients"


def record_of(notes: Note | Sequence[Note], key: str | None = None) -> dict[str, object]:
    """Returns a note, or several of one kind, as JSON under their key; several may be none."""
    if isinstance(notes, Note):
        return {notes.KEY: dataclasses.asdict(notes)}
    return {key or notes[0].KEY: [dataclasses.asdict(note) for note in notes]}


def last_note(kind: type[AnyNote], records: Iterable[Mapping[str, Any]]) -> AnyNote | None:
    """Returns the note of a kind that was written last, None where there is none."""
    value = last_record(kind.KEY, records).get(kind.KEY)
    return _read_note(kind, value) if isinstance(value, Mapping) else None


def last_notes(kind: type[AnyNote], records: Iterable[Mapping[str, Any]]) -> list[AnyNote]:
    """Returns the notes of a kind that were written last as one list."""
    value = last_record(kind.KEY, records).get(kind.KEY)
    return list(_read_tuple(kind, value))


def last_record(key: str, records: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Returns the record with a key that was written last, an empty one where there is none."""
    with_key = [record for record in records if key in record]
    return max(with_key, key=lambda record: integer(record.get(NUMBER)) or 0, default={})


def _read_note(kind: type[AnyNote], value: Mapping[str, Any]) -> AnyNote:
    types = typing.get_type_hints(kind)
    known = {
        field.name: _read(types[field.name], value[field.name], field.default)
        for field in dataclasses.fields(kind)
        if field.name in value
    }
    return kind(**known)


def _read(kind: Any, value: Any, default: Any) -> Any:
    """Returns a value as its field's type has it, the default where it is something else."""
    options = typing.get_args(kind)
    if typing.get_origin(kind) is tuple:
        return _read_tuple(options[0], value)
    for option in options or (kind,):
        if option is type(None) and value is None:
            return None
        if option is int and integer(value) is not None:
            return value
        if option is float and (number := known(value)) is not None:
            return float(number)
        if option in (str, bool) and isinstance(value, option):
            return value
        is_note = isinstance(option, type) and issubclass(option, Note)
        if is_note and isinstance(value, Mapping):
            return _read_note(option, value)
    return default


def _read_tuple(kind: Any, values: Any) -> tuple[Any, ...]:
    """Returns those of a list that are of a type."""
    missing = object()
    read = (_read(kind, value, missing) for value in (values if isinstance(values, list) else ()))
    return tuple(value for value in read if value is not missing)


def integer(value: Any) -> int | None:
    """Returns `value` if it is an int that something can have measured, else None."""
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    return value if is_integer and -MAX_NUMBER < value < MAX_NUMBER else None


def known(value: Any) -> float | None:
    """Returns a number that something can have measured, None for anything else."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if is_number and -MAX_NUMBER < value < MAX_NUMBER else None
