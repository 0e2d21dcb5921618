"""Notes are read as they were written, whatever has become of them on disk."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import ClassVar

import pytest

from trainprof.record.notes import NUMBER, Note, last_note, last_notes, record_of


@dataclass(frozen=True, slots=True)
class Part(Note):
    name: str = ""
    share: float = 0.0


@dataclass(frozen=True, slots=True)
class Whole(Note):
    KEY: ClassVar[str] = "whole"

    count: int = 3
    site: int | None = None
    is_on: bool = False
    names: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()


WHOLE = Whole(7, 12, True, ("a", "b"), (Part("x", 0.5), Part("y", 1.0)))


def on_disk(value):
    return json.loads(json.dumps(value))


def test_a_note_or_several_come_back_as_they_were():
    records = [on_disk({**record_of(WHOLE), NUMBER: 2}), {**record_of(Whole()), NUMBER: 1}]
    assert last_note(Whole, records) == WHOLE
    assert last_note(Whole, [{"other": 1}]) is None
    assert last_notes(Whole, [on_disk(record_of([WHOLE, Whole()]))]) == [WHOLE, Whole()]
    assert last_notes(Whole, [on_disk(record_of([], Whole.KEY))]) == []


@pytest.mark.parametrize(
    ("value", "note"),
    [
        ({}, Whole()),
        *((value, None) for value in (3, "text", [1, {}])),
        ({"count": "many", "site": None, "is_on": 1, "names": "ab", "unknown": 4}, Whole()),
        ({"count": True, "names": ["a", 3, None, "b"]}, Whole(names=("a", "b"))),
        ({"count": 1 << 70, "parts": [{"name": "x"}, 5]}, Whole(parts=(Part("x"),))),
        (
            {"parts": [{"share": 1}, {"share": float("nan")}]},
            Whole(parts=(Part(share=1.0), Part())),
        ),
    ],
)
def test_what_is_damaged_has_its_default(value, note):
    assert last_note(Whole, [{"whole": value}]) == note
