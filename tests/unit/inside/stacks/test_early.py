"""Samples of the main thread from before torch is there."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from trainprof.inside.process.own_thread import why_unsupported
from trainprof.inside.stacks import early
from trainprof.inside.stacks.copied_frames import CopiedFrame
from trainprof.inside.stacks.early import EarlyStacks

pytestmark = pytest.mark.skipif(why_unsupported() is not None, reason="not sampled here")


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early, "PERIOD_NS", 1_000_000)


def functions(frame: CopiedFrame | None) -> Iterator[str]:
    while frame is not None:
        yield frame.f_code.co_name
        frame = frame.f_back


def index_all(stacks: EarlyStacks, until: int) -> None:
    while len(stacks._samples) < until:
        sum(range(1_000))


@pytest.mark.usefixtures("often")
def test_they_meet_what_the_thread_runs_and_are_kept_no_longer_than_asked_for() -> None:
    stacks = EarlyStacks()
    stacks.begin()
    index_all(stacks, 50)
    samples = stacks.end()
    assert stacks.end() == []
    met = [list(functions(stack)) for _, _, stack in samples]
    assert sum("index_all" in names for names in met) > len(samples) / 2
    wanted = [at for at, _, _ in samples]
    assert wanted == sorted(wanted)
    assert all(at <= taken for at, taken, _ in samples)


@pytest.mark.usefixtures("often")
@pytest.mark.skipif(sys.platform != "linux", reason="as Linux forks")
def test_they_do_not_live_while_the_process_forks_and_go_on_behind_it() -> None:
    stacks = EarlyStacks()
    stacks.begin()
    pid = os.fork()
    if pid == 0:
        os._exit(0 if stacks._thread._stop is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    before = len(stacks._samples)
    index_all(stacks, before + 5)
    stacks.end()


def test_of_a_script_that_goes_on_for_long_so_many_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(early, "PERIOD_NS", 100_000)
    monkeypatch.setattr(early, "_MOST_SAMPLES", 20)
    stacks = EarlyStacks()
    stacks.begin()
    index_all(stacks, 20)
    assert 20 <= len(stacks.end()) < 1_000
