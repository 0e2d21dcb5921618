"""A process of a trial tells that it has met its limit, and then that its code is over."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from trainprof.record.limit_met import AT_END, LIMIT_MET, processes_at_limit, record_limit_met


def test_it_tells_both_in_turn(tmp_path, monkeypatch):
    at_end: list[Callable[[], None]] = []

    def register(function, *args):
        at_end.append(lambda: function(*args))

    monkeypatch.setattr(threading, "_register_atexit", register)
    assert processes_at_limit(str(tmp_path)) == {}
    record_limit_met(str(tmp_path))
    assert processes_at_limit(str(tmp_path)) == {os.getpid(): LIMIT_MET}
    [end] = at_end
    end()
    assert processes_at_limit(str(tmp_path)) == {os.getpid(): AT_END}


def test_a_directory_that_is_gone_and_a_python_that_ends_raise_nothing(tmp_path, monkeypatch):
    def refuse(*_):
        raise RuntimeError("can't register atexit after shutdown")

    monkeypatch.setattr(threading, "_register_atexit", refuse)
    record_limit_met(str(tmp_path / "gone"))
    assert processes_at_limit(str(tmp_path / "gone")) == {}
    monkeypatch.delattr(threading, "_register_atexit")
    record_limit_met(str(tmp_path))
    assert processes_at_limit(str(tmp_path)) == {os.getpid(): LIMIT_MET}
