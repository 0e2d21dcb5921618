"""Where threads stood is on disk at any moment, by the user's line and what that had called."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trainprof.inside.patching.call_site import CallSites
from trainprof.inside.stacks.last_stacks import LastStacks
from trainprof.record.event_log import EventLog
from trainprof.record.last_stacks import read_last_stacks, stack_paths


@pytest.fixture
def stacks(tmp_path: Path) -> LastStacks:
    return LastStacks(str(tmp_path), CallSites(EventLog(str(tmp_path), role="script"), os.getcwd()))


def taken(items: queue.Queue[None]) -> None:
    items.get()


@pytest.fixture
def waiting() -> Iterator[threading.Thread]:
    items: queue.Queue[None] = queue.Queue()
    thread = threading.Thread(target=taken, args=(items,))
    thread.start()
    yield thread
    items.put(None)
    thread.join()


def sample(events: Path) -> dict[str, Any]:
    (last,) = read_last_stacks(events)
    return last


def test_a_thread_that_waits_has_the_users_line_and_call(
    tmp_path: Path, stacks: LastStacks, waiting: threading.Thread
) -> None:
    assert waiting.ident is not None
    while True:
        stacks.write([waiting.ident])
        main, other = sample(tmp_path)["threads"]
        if other["innermost"][2].endswith("wait"):  # it has come there
            break
    assert (main["is_main"], other["is_main"]) == (True, False)
    file, line, function = other["user"]
    assert (os.path.basename(file), function) == ("test_last_stacks.py", "taken")
    assert line == taken.__code__.co_firstlineno + 1
    assert other["called"][2].rpartition(".")[2] == "get"
    since = other["since_ns"]
    stacks.write([waiting.ident])
    newer = sample(tmp_path)
    assert newer["threads"][1]["since_ns"] == since < newer["at_ns"]
    # The main thread has called this test from another line meanwhile.
    assert newer["threads"][0]["since_ns"] > since


def test_who_and_what_it_is_stands_with_it(
    tmp_path: Path, stacks: LastStacks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "3")
    stacks.write()
    last = sample(tmp_path)
    assert (last["pid"], last["ppid"], last["rank"]) == (os.getpid(), os.getppid(), "3")
    assert last["worker"] is last["ended_ns"] is None
    stacks.end()
    ended = sample(tmp_path)
    assert ended["ended_ns"] == ended["at_ns"] > last["at_ns"]
    assert ended["threads"] == last["threads"]


def test_a_forked_child_has_a_file_of_its_own(tmp_path: Path, stacks: LastStacks) -> None:
    stacks.write()
    child = os.fork()
    if child == 0:
        stacks.in_child().write()
        os._exit(0)
    os.waitpid(child, 0)
    assert {last["pid"] for last in read_last_stacks(tmp_path)} == {os.getpid(), child}


def test_a_directory_that_is_gone_costs_nothing_more(tmp_path: Path) -> None:
    sites = CallSites(EventLog(str(tmp_path), role="script"), os.getcwd())
    gone = LastStacks(str(tmp_path / "gone"), sites)
    gone.write()
    gone.write()
    assert gone.wait_s() > 60
    assert stack_paths(tmp_path) == []


def test_text_that_a_library_executes_is_not_the_users(tmp_path: Path, stacks: LastStacks) -> None:
    exec("write()", {"write": stacks.write})
    assert sample(tmp_path)["threads"][0]["user"][0] == __file__
