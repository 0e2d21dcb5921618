"""A trial ends before the disk is full, and where it is connected to is seen from outside."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

import psutil
import pytest

from trainprof.sampling import trial_watch
from trainprof.sampling.trial_watch import TrialWatch

MIB, GIB = 1 << 20, 1 << 30
PID, CHILD = 4711, 4712
HERE = "10.0.0.2"


@dataclass
class Machine:
    """What the watch sees; raise in its place what is an exception.

    Attributes:
        free_bytes: Of the file system that takes the trial's files.
        peers: Addresses and ports that a process is connected to, by its pid.
        now_s: The time.
        asked: Places whose file system was asked for.
        listings: How often connections were listed, of each process.
    """

    free_bytes: int | OSError = 100 * GIB
    peers: dict[int, list[tuple[str, int]] | Exception] = field(default_factory=dict)
    now_s: float = 1000.0
    asked: list[str] = field(default_factory=list)
    listings: int = 0

    def statvfs(self, path: str) -> object:
        self.asked.append(path)
        if isinstance(self.free_bytes, OSError):
            raise self.free_bytes
        return SimpleNamespace(f_bavail=self.free_bytes // 4096, f_frsize=4096)

    def process(self, pid: int) -> Process:
        if pid not in self.peers:
            raise psutil.NoSuchProcess(pid)
        return Process(self, pid)


@dataclass
class Process:
    machine: Machine
    pid: int

    def children(self, *, recursive: bool) -> list[Process]:
        assert recursive
        return [Process(self.machine, pid) for pid in self.machine.peers if pid != self.pid]

    def net_connections(self, *, kind: str) -> list[object]:
        assert kind == "inet"
        self.machine.listings += 1
        peers = self.machine.peers[self.pid]
        if isinstance(peers, Exception):
            raise peers
        here = SimpleNamespace(ip=HERE, port=9)
        theirs = [SimpleNamespace(ip=ip, port=port) for ip, port in peers]
        # The first one listens.
        return [SimpleNamespace(laddr=here, raddr=there) for there in ((), *theirs)]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    clock = SimpleNamespace(monotonic=lambda: machine.now_s)
    monkeypatch.setattr(trial_watch, "time", clock)
    monkeypatch.setattr(os, "statvfs", machine.statvfs)
    monkeypatch.setattr(psutil, "Process", machine.process)
    return machine


@pytest.fixture
def free(machine: Machine) -> Callable[[TrialWatch, int], bool]:
    """Asks whether a trial must end while so many bytes are free."""

    def asked(watch: TrialWatch, free_bytes: int) -> bool:
        machine.free_bytes = free_bytes
        return watch.must_end()

    return asked


def test_it_ends_before_less_than_2_gib_are_left(free: Callable[[TrialWatch, int], bool]) -> None:
    watch = TrialWatch(PID, "/work")
    assert [free(watch, n) for n in (100 * GIB, 3 * GIB, 2 * GIB)] == [False] * 3
    assert not watch.is_full
    assert free(watch, 2 * GIB - 4096)
    assert watch.is_full


def test_where_little_was_free_it_ends_before_half_of_that_is_left(
    free: Callable[[TrialWatch, int], bool],
) -> None:
    watch = TrialWatch(PID, "/work")
    assert [free(watch, n) for n in (GIB, 600 * MIB, 512 * MIB)] == [False] * 3
    assert free(watch, 511 * MIB)


def test_a_full_disk_from_the_start_ends_no_trial(free: Callable[[TrialWatch, int], bool]) -> None:
    watch = TrialWatch(PID, "/work")
    assert not free(watch, 0)
    assert not free(watch, 0)


def test_it_stays_full_when_the_trial_that_ends_frees_some(
    free: Callable[[TrialWatch, int], bool],
) -> None:
    watch = TrialWatch(PID, "/work")
    free(watch, 100 * GIB)
    assert free(watch, GIB)
    assert free(watch, 100 * GIB)
    assert watch.is_full


def test_the_file_system_is_the_one_that_the_process_sees(machine: Machine) -> None:
    TrialWatch(PID, "/work/my runs").must_end()
    assert machine.asked == [f"/proc/{PID}/root/work/my runs"]


def test_a_process_that_is_gone_is_neither_full_nor_connected(machine: Machine) -> None:
    machine.free_bytes = FileNotFoundError()
    watch = TrialWatch(PID, "/work")
    assert not watch.must_end()
    assert (watch.is_full, watch.connections) == (False, {})


def test_the_reserve_follows_from_the_first_answer(
    machine: Machine, free: Callable[[TrialWatch, int], bool]
) -> None:
    watch = TrialWatch(PID, "/work")
    machine.free_bytes = PermissionError()
    assert not watch.must_end()
    assert not free(watch, GIB)
    assert free(watch, 100 * MIB)


def test_connections_of_all_its_processes_are_named_each_once(machine: Machine) -> None:
    machine.peers = {
        PID: [("10.0.0.7", 443), ("10.0.0.7", 443)],
        CHILD: [("2001:db8::1", 5432), ("fe80::1%eth0", 80)],
    }
    watch = TrialWatch(PID, "/work")
    watch.must_end()
    assert list(watch.connections) == [
        "10.0.0.7 port 443",
        "2001:db8::1 port 5432",
        "fe80::1%eth0 port 80",
    ]


def test_what_stays_on_this_machine_is_left_out(machine: Machine) -> None:
    # The last two: ranks that meet at a socket of both protocols, or by the machine's own name.
    addresses = ("127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1", HERE)
    machine.peers = {PID: [(address, 29500) for address in addresses]}
    watch = TrialWatch(PID, "/work")
    watch.must_end()
    assert watch.connections == {}


def test_connections_are_listed_every_2_s_and_kept(machine: Machine) -> None:
    machine.peers = {PID: [("10.0.0.7", 1)]}
    watch = TrialWatch(PID, "/work")
    watch.must_end()
    machine.peers = {PID: [("10.0.0.8", 2)]}
    machine.now_s += 1.9
    watch.must_end()
    assert (machine.listings, list(watch.connections)) == (1, ["10.0.0.7 port 1"])
    machine.now_s += 0.2
    watch.must_end()
    assert list(watch.connections) == ["10.0.0.7 port 1", "10.0.0.8 port 2"]


def test_once_there_are_many_nobody_lists_them_any_more(machine: Machine) -> None:
    machine.peers = {PID: [("10.0.0.7", port) for port in range(1, 31)]}
    watch = TrialWatch(PID, "/work")
    for _ in range(3):
        watch.must_end()
        machine.now_s += 10.0
    assert machine.listings == 1


@pytest.mark.parametrize(
    "error", [psutil.AccessDenied(CHILD), psutil.ZombieProcess(CHILD), OSError(), ValueError()]
)
def test_a_process_whose_connections_cannot_be_listed_hides_no_other(
    machine: Machine, error: Exception
) -> None:
    machine.peers = {PID: [("10.0.0.7", 1)], CHILD: error, CHILD + 1: [("10.0.0.8", 2)]}
    watch = TrialWatch(PID, "/work")
    watch.must_end()
    assert list(watch.connections) == ["10.0.0.7 port 1", "10.0.0.8 port 2"]
