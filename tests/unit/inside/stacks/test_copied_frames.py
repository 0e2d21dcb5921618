"""A copy of a stack has the same places, and holds nothing of the script."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from threading import Event, Lock, Thread, get_ident
from types import FrameType
from typing import Any

import pytest

from trainprof.inside.patching.call_site import CallSites
from trainprof.inside.stacks.copied_frames import CopiedFrame, codes_by_thread, globals_of, stack_of
from trainprof.record.event_log import EventLog


class Held:
    pass


def here() -> CopiedFrame:
    """Returns a copy of the caller's stack."""
    stands = stack_of(get_ident())
    while stands is not None and stands.f_code is not here.__code__:
        stands = stands.f_back
    assert stands is not None
    assert stands.f_back is not None
    return stands.f_back


def test_the_same_places_are_named(tmp_path: Path) -> None:
    sites = CallSites(EventLog(str(tmp_path), role="script"), "/")

    def inner(frame: FrameType) -> tuple[list[int], list[int]]:
        return sites.frames(here()), sites.frames(frame)

    of_copy, of_frames = inner(sys._getframe())
    assert of_copy[1:] == of_frames
    assert sites.shown(of_copy[0], "/").startswith(__file__.removeprefix("/"))


def test_nothing_is_kept_alive() -> None:
    copies = []

    def inner() -> weakref.ref[Held]:
        held = Held()
        copies.append(here())
        copies.append(codes_by_thread())
        return weakref.ref(held)

    assert inner()() is None
    assert copies[0].f_code.co_name == "inner"


def test_another_thread_has_a_stack_until_it_ends() -> None:
    begun, ends = Lock(), Lock()
    begun.acquire()
    ends.acquire()

    def stands() -> None:
        begun.release()
        ends.acquire()

    thread = Thread(target=stands)
    thread.start()
    begun.acquire()
    ident = thread.ident
    assert ident is not None
    stack, code, names = stack_of(ident), codes_by_thread()[ident], []
    while stack is not None:
        names.append(stack.f_code.co_name)
        stack = stack.f_back
    assert (names[:2], names[-1], code.co_name) == (["stands", "run"], "_bootstrap", "stands")
    assert globals_of(ident, code) is globals()
    assert globals_of(ident, here.__code__) is None
    assert codes_by_thread()[get_ident()] is codes_by_thread.__code__
    ends.release()
    thread.join()
    assert stack_of(ident) is None
    assert globals_of(ident, code) is None
    assert ident not in codes_by_thread()


@pytest.mark.parametrize("look", [stack_of, lambda _: codes_by_thread()])
def test_no_other_thread_goes_on_while_its_frames_are_held(look: Callable[[int], Any]) -> None:
    """One that has a frame of its own held finds what was in it still there once it returns."""
    kept: list[int] = []
    ends = Event()

    def inner() -> weakref.ref[Held]:
        held = Held()
        return weakref.ref(held)

    def works() -> None:
        calls = 0
        while not ends.is_set():
            calls += 1
            if inner()() is not None:
                kept.append(calls)

    usual = sys.getswitchinterval()
    thread = Thread(target=works)
    thread.start()
    assert thread.ident is not None
    sys.setswitchinterval(1e-6)
    gc.disable()  # whom it tells, as hypothesis once it has run, lets the thread in
    try:
        for _ in range(20_000):
            look(thread.ident)
    finally:
        gc.enable()
        sys.setswitchinterval(usual)
        ends.set()
        thread.join()
    assert kept == []
