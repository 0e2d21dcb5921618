"""Typed notes: one definition both writes and reads what a probe records once.

A note is a frozen dataclass with a `KEY`. Its fields are ints, floats, strings, bools, any of these
or None, tuples of these, other notes and tuples of notes. Every field has a default, used for
missing or damaged values: a log's content is not trusted.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, TypeVar

# Larger numbers are damage, not measurements (10^18 ns are 31 years, 10^18 bytes an exabyte).
# Below it a time and a difference of times fit an int64.
MAX_NUMBER: Final = 1 << 62
MAX_PID: Final = (1 << 31) - 1
# Orders notes under one key: the highest was written last.
NUMBER: Final = "number"


@dataclasses.dataclass(frozen=True, slots=True)
class Note:
    """Base of all notes; a note inside another one needs no key."""

    KEY: ClassVar[str] = ""


AnyNote = TypeVar("AnyNote", bound=Note)


@dataclasses.dataclass(frozen=True, slots=True)
class UnusedGradients(Note):
    """Gradients of parameters that no optimizer has.

    Attributes:
        unused_share: Part of backward time in passes with only such gradients, 0 to 1.
        mixed_share: The same for passes that also compute used gradients.
        model_site: Line that calls the model with most of them.
        site: Line of their backward pass.
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
    """Returns a note, or a list of one kind, as JSON under its key; an empty list needs `key`."""
    if isinstance(notes, Note):
        return {notes.KEY: dataclasses.asdict(notes)}
    return {key or notes[0].KEY: [dataclasses.asdict(note) for note in notes]}


def last_note(kind: type[AnyNote], records: Iterable[Mapping[str, Any]]) -> AnyNote | None:
    """Returns the last written note of a kind, None without one."""
    value = last_record(kind.KEY, records).get(kind.KEY)
    return _read_note(kind, value) if isinstance(value, Mapping) else None


def last_notes(kind: type[AnyNote], records: Iterable[Mapping[str, Any]]) -> list[AnyNote]:
    """Returns the last written list of notes of a kind."""
    value = last_record(kind.KEY, records).get(kind.KEY)
    return list(_read_tuple(kind, value))


def last_record(key: str, records: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Returns the last written record with a key, {} without one."""
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
    """Returns a value if it has its field's type, else the default."""
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
    """Returns the items of a list that have a type."""
    missing = object()
    read = (_read(kind, value, missing) for value in (values if isinstance(values, list) else ()))
    return tuple(value for value in read if value is not missing)


def integer(value: Any) -> int | None:
    """Returns `value` if it is an int of plausible size, else None."""
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    return value if is_integer and -MAX_NUMBER < value < MAX_NUMBER else None


def known(value: Any) -> float | None:
    """Returns `value` if it is a number of plausible size, else None."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if is_number and -MAX_NUMBER < value < MAX_NUMBER else None
