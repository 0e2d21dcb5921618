"""Planted stack samples."""

from __future__ import annotations

from support.events import FakeRun

from trainprof.record.schema import Kind, StackFlag, Topic


def stack(run: FakeRun, *frames: tuple[int, str] | int, file: str = "train.py") -> int:
    """Returns the id of a stack of (line, function), innermost first; or of ids of places."""
    sites = [
        run.text(Topic.SITE, [file, *frame]) if isinstance(frame, tuple) else frame
        for frame in frames
    ]
    return run.text(Topic.STACK, sites)


def sample(
    run: FakeRun, seen: int, *, late: int = 0, flags: int | None = None, held_ns: int = 0
) -> None:
    """Takes one now, that was due some ns earlier."""
    if flags is None:
        flags = 0 if late else StackFlag.KNOWN
    run.record(Kind.STACK_SAMPLE, run.now - late, run.now, site=seen, value=held_ns, flags=flags)
