"""Planted truth for the sampler: a fake /proc, a fake clock, a run directory, a stub NVML."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.nvml import build_stub, stub_environment, without_visible_devices

from trainprof.record.run_directory import RunDirectory
from trainprof.sampling.clock import Clock

REPOSITORY = Path(__file__).parents[3]
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass
class FakeTime:
    """Time that only the test moves; reading it takes `step_ns`."""

    ns: int = 1_000_000_000_000
    step_ns: int = 0
    thread_cpu_ns: int = 0

    def now_ns(self):
        self.ns += self.step_ns
        return self.ns

    @property
    def clock(self):
        return Clock(
            now_ns=self.now_ns,
            wall_ns=lambda: 1_700_000_000_000_000_000,
            thread_cpu_ns=lambda: self.thread_cpu_ns,
        )


@dataclass
class FakeProc:
    """A filesystem root with the /proc (and cgroup) files that a test writes."""

    root: Path
    pids: set[int] = field(default_factory=set)

    def write(self, path, text):
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def process(
        self,
        pid,
        parent,
        *,
        name="python",
        state="S",
        user_s=0.0,
        system_s=0.0,
        reaped_s=0.0,
        rss_pages=100,
        started_ticks=5000,
        threads=1,
    ):
        """Plants a process; the fields between the known ones hold numbers that mean nothing."""
        ticks = [round(s * TICKS_PER_S) for s in (user_s, system_s, reaped_s, 0)]
        fields = [
            *(state, parent, 1, 1, 0, -1, 4194304),
            *(11, 12, 13, 14),  # minor faults, of children, major faults, of children
            *ticks,
            *(20, 0, threads, 0, started_ticks, 10**9, rss_pages, 2**64 - 1),
        ]
        self.write(f"proc/{pid}/stat", f"{pid} ({name}) {' '.join(map(str, fields))}\n")
        kept = "RssAnon:\t    400 kB\nRssFile:\t  90 kB\nRssShmem:\t  10 kB\n"
        switches = "voluntary_ctxt_switches:\t21\nnonvoluntary_ctxt_switches:\t22\n"
        self.write(f"proc/{pid}/status", f"Name:\t{name}\n{kept}{switches}")
        self.write(f"proc/{pid}/io", "rchar: 1\nwchar: 2\nread_bytes: 31\nwrite_bytes: 32\n")
        parts = "Rss: 9 kB\nPss: 7 kB\nPss_Anon: 5 kB\nPrivate_Dirty: 3 kB\n"
        self.write(f"proc/{pid}/smaps_rollup", f"5-7 ---p 0 00:00 0 [rollup]\n{parts}")
        self.pids.add(pid)

    def end(self, pid):
        for file in (self.root / "proc" / str(pid)).iterdir():
            file.unlink()
        (self.root / "proc" / str(pid)).rmdir()
        self.pids.discard(pid)


@pytest.fixture
def fake_time():
    return FakeTime()


@pytest.fixture
def fake_proc(tmp_path):
    fake = FakeProc(tmp_path / "root")
    fake.write("proc/stat", "cpu 1 2 3 4 5 6 7 8\n")
    return fake


@pytest.fixture
def run_directory(tmp_path):
    directory = RunDirectory(tmp_path / "run")
    directory.create()
    return directory


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


@pytest.fixture(scope="session")
def nvml_libraries(tmp_path_factory):
    """Folders with the stub library, by driver: "new" and "old"."""
    return {
        "new": build_stub(tmp_path_factory.mktemp("new")),
        "old": build_stub(tmp_path_factory.mktemp("old"), "-DOLD_DRIVER"),
    }


@pytest.fixture
def nvml_environment(nvml_libraries, tmp_path):
    """Environment of a process that sees the stub; its files are `conf` and `log` in tmp_path."""
    return {
        **without_visible_devices(),
        "PYTHONPATH": str(REPOSITORY),
        **stub_environment(nvml_libraries["new"], tmp_path),
    }
