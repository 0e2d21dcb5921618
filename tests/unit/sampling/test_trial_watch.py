"""A trial ends before the disk is full."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from trainprof.launch.deadline import TrialWatch

MIB, GIB = 1 << 20, 1 << 30
PID = 4711


@dataclass
class Machine:
    """What the watch sees; raised in its place what is an exception.

    Attributes:
        free_bytes: Of the file system that takes the trial's files.
        asked: Places whose file system was asked for.
    """

    free_bytes: int | OSError = 100 * GIB
    asked: list[str] = field(default_factory=list)

    def statvfs(self, path):
        self.asked.append(path)
        if isinstance(self.free_bytes, OSError):
            raise self.free_bytes
        return SimpleNamespace(f_bavail=self.free_bytes // 4096, f_frsize=4096)


@pytest.fixture
def machine(monkeypatch):
    machine = Machine()
    monkeypatch.setattr(os, "statvfs", machine.statvfs)
    return machine


@pytest.fixture
def free(machine):
    """Asks whether a trial must end while so many bytes are free."""

    def asked(watch, free_bytes):
        machine.free_bytes = free_bytes
        return watch.must_end()

    return asked


def test_it_ends_before_less_than_2_gib_are_left(free):
    watch = TrialWatch(PID, "/work")
    assert [free(watch, n) for n in (100 * GIB, 3 * GIB, 2 * GIB)] == [False] * 3
    assert not watch.is_full
    assert free(watch, 2 * GIB - 4096)
    assert watch.is_full


def test_where_little_was_free_it_ends_before_half_of_that_is_left(free):
    watch = TrialWatch(PID, "/work")
    assert [free(watch, n) for n in (GIB, 600 * MIB, 512 * MIB)] == [False] * 3
    assert free(watch, 511 * MIB)


def test_a_full_disk_from_the_start_ends_no_trial(free):
    watch = TrialWatch(PID, "/work")
    assert not free(watch, 0)
    assert not free(watch, 0)


def test_it_stays_full_when_the_trial_that_ends_frees_some(free):
    watch = TrialWatch(PID, "/work")
    free(watch, 100 * GIB)
    assert free(watch, GIB)
    assert free(watch, 100 * GIB)
    assert watch.is_full


def test_the_file_system_is_the_one_that_the_process_sees(machine):
    TrialWatch(PID, "/work/my runs").must_end()
    assert machine.asked == [f"/proc/{PID}/root/work/my runs"]


def test_a_process_that_is_gone_is_not_full(machine):
    machine.free_bytes = FileNotFoundError()
    watch = TrialWatch(PID, "/work")
    assert not watch.must_end()
    assert not watch.is_full


def test_the_reserve_follows_from_the_first_answer(machine, free):
    watch = TrialWatch(PID, "/work")
    machine.free_bytes = PermissionError()
    assert not watch.must_end()
    assert not free(watch, GIB)
    assert free(watch, 100 * MIB)
