"""A copy of a stack tells the same places, and holds nothing of the script's."""

from __future__ import annotations

import sys
import weakref
from pathlib import Path
from types import FrameType

from trainprof.probes.call_site import CallSites, _line_of
from trainprof.probes.copied_frames import CopiedFrame, copied
from trainprof.record.event_log import EventLog


class Held:
    pass


def test_the_same_places_are_named(tmp_path: Path) -> None:
    sites = CallSites(EventLog(str(tmp_path), role="script"), "/")

    def inner(frame: FrameType | None) -> list[tuple[list[int], list[int]]]:
        assert frame is not None
        return [(sites.frames(copied(frame)), sites.frames(frame)) for _ in range(2)]

    for of_copy, of_frames in inner(sys._getframe()):
        assert of_copy == of_frames
        texts = [sites.shown(one) for one in of_copy]
    lines = _lines_of(sys._getframe())
    assert texts[1:] == [sites.shown(one) for one in of_frames][1:]
    assert len(lines) > 2
    assert all(one == other for one, other in lines)
    assert texts[0].startswith(__file__.removeprefix("/"))


def _lines_of(frame: FrameType | None) -> list[tuple[int, int]]:
    """Returns the lines of a stack, by a copy and by the frames."""
    assert frame is not None
    stands: CopiedFrame | None = copied(frame)
    lines = []
    while stands is not None and frame is not None:
        if frame.f_lineno is not None:
            lines.append((_line_of(stands), frame.f_lineno))
        stands, frame = stands.f_back, frame.f_back
    assert stands is frame is None
    return lines


def test_nothing_is_kept_alive() -> None:
    copies = []

    def inner() -> weakref.ref[Held]:
        held = Held()
        copies.append(copied(sys._getframe()))
        return weakref.ref(held)

    assert inner()() is None
    assert copies[0].f_code.co_name == "inner"
