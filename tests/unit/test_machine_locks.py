"""The locks by which a test that measures again has the machine to itself."""

from __future__ import annotations

import threading
from pathlib import Path

from support.machine import Machine


def test_who_is_alone_waits_for_the_others_and_they_for_it(tmp_path: Path) -> None:
    ours, theirs = Machine(tmp_path), Machine(tmp_path)
    order: list[str] = []
    theirs_began, theirs_may_end = threading.Event(), threading.Event()

    def their_tests() -> None:
        with theirs.shared():
            theirs_began.set()
            theirs_may_end.wait()
            order.append("their first ends")
        with theirs.shared():
            order.append("their second begins")

    thread = threading.Thread(target=their_tests)
    thread.start()
    with ours.shared():
        theirs_began.wait()
        order.append("ours runs beside")
        theirs_may_end.set()
        ours.alone()
        ours.alone()
        order.append("ours is alone")
    thread.join()
    first, *later = order
    assert first == "ours runs beside"
    # The second may have begun before we asked; never while we were alone.
    assert later[0] == "their first ends"
    assert set(later[1:]) == {"ours is alone", "their second begins"}


def test_two_who_want_to_be_alone_are_so_one_after_the_other(tmp_path: Path) -> None:
    inside, most = [0], [0]
    both = threading.Barrier(2)

    def test(machine: Machine) -> None:
        with machine.shared():
            both.wait()
            machine.alone()
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            inside[0] -= 1

    threads = [threading.Thread(target=test, args=[Machine(tmp_path)]) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert most == [1]
