"""Samples the script's process and its descendants: raw counters per process.

The states of processes that read from storage are sampled far more often. Linux counts the time
that a thread waits for block devices only with kernel.task_delayacct, off by default since 5.14.
In state D a thread waits for storage, local or NFS; with FUSE it sleeps instead.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trainprof.record.masking import masked_text
from trainprof.sampling.clock import NS_PER_S
from trainprof.sampling.machine import FILESYSTEM_ROOT
from trainprof.sampling.procfs import labelled_int, read_bytes

# Measuring PSS walks all page tables, milliseconds per GB: rarely, and a bounded share of time.
PSS_INTERVAL_NS: Final = 10 * NS_PER_S
PSS_MAX_SHARE: Final = 1 / 500
# New processes are measured at once, which delays the next measurement by at most this.
_LONGEST_DELAY_NS: Final = 60 * NS_PER_S

# Pids known as not ours are read again this often: they may be reused.
OUTSIDERS_INTERVAL_NS: Final = 10 * NS_PER_S

WATCH_INTERVAL_S: Final = 0.04
# While no process reads.
IDLE_INTERVAL_NS: Final = NS_PER_S // 4
# Intervals vary by this share, so that samples do not align with steps of the same duration.
_SPREAD: Final = 0.5
_GOLDEN_SHARE: Final = 0.6180339887498949
# A process reads if one of these grew by that number between two samples: less takes little time.
_LEAST_READ: Final = {"read_bytes": 1 << 16, "major_faults": 4}
_WAITING, _ASLEEP = "D", "S"
# Only the main thread is read of a process with more threads.
_MOST_THREADS: Final = 12


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """The fields of /proc/<pid>/stat.

    Attributes:
        reaped_ns: CPU time of children that ended and were waited for.
        started_ns: Since boot; differs for processes that reuse a pid.
    """

    name: str
    state: str
    parent_pid: int
    minor_faults: int
    major_faults: int
    user_ns: int
    system_ns: int
    reaped_ns: int
    threads: int
    started_ns: int
    rss_bytes: int


class ProcessTree:
    """Reads a process and all its descendants, orphans included, from /proc."""

    def __init__(
        self,
        root_pid: int,
        root: Path = FILESYSTEM_ROOT,
        now_ns: Callable[[], int] = time.perf_counter_ns,
        cpu_ns: Callable[[], int] = time.thread_time_ns,
    ) -> None:
        self._proc = str(root).rstrip("/") + "/proc"
        self._root_pid = root_pid
        self._now_ns, self._cpu_ns = now_ns, cpu_ns
        self._tick_ns = NS_PER_S // os.sysconf("SC_CLK_TCK")
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._root_started_ns: int | None = None
        self._members: dict[int, int] = {}  # pid -> start time
        self._outsiders: set[int] = set()
        self._outsiders_until_ns = 0
        self._next_pss_ns = 0
        self._measured: set[tuple[int, int]] = set()
        self._seen: set[tuple[int, int]] = set()

    def sample(self) -> dict[str, Any] | None:
        """Returns `processes`, one entry per process, parents first; None once all have ended."""
        stats = self._tree()
        entries = [self._entry(pid, stat) for pid, stat in stats.items()]
        if not entries:
            return None
        self._add_pss(entries)
        return {"processes": entries}

    def _tree(self) -> dict[int, ProcessStat]:
        listed = self._listed_pids()
        stats = self._known_members(listed)
        newcomers = self._stats(listed - self._members.keys() - self._outsiders)
        joined = self._join(stats, newcomers)
        self._outsiders.update(newcomers.keys() - joined.keys())
        self._outsiders &= listed
        stats.update(joined)
        self._members = {pid: stat.started_ns for pid, stat in stats.items()}
        return stats

    def _listed_pids(self) -> set[int]:
        try:
            names = os.listdir(self._proc)
        except OSError:
            return set()
        now_ns = self._now_ns()
        if now_ns >= self._outsiders_until_ns:
            self._outsiders.clear()
            self._outsiders_until_ns = now_ns + OUTSIDERS_INTERVAL_NS
        return {int(name) for name in names if name.isdigit()}

    def _known_members(self, listed: set[int]) -> dict[int, ProcessStat]:
        """Returns the members that still run; a reused pid becomes unknown."""
        stats = self._stats(pid for pid in self._members if pid in listed)
        alive = {p: stat for p, stat in stats.items() if stat.started_ns == self._members[p]}
        self._members = {pid: stat.started_ns for pid, stat in alive.items()}
        return alive

    def _join(
        self, members: dict[int, ProcessStat], newcomers: dict[int, ProcessStat]
    ) -> dict[int, ProcessStat]:
        """Returns the newcomers that are the root or descend from a member."""
        joined: dict[int, ProcessStat] = {}
        root = newcomers.get(self._root_pid)
        if root is not None and self._root_started_ns is None:
            self._root_started_ns = root.started_ns
            joined[self._root_pid] = root
        children: dict[int, list[int]] = defaultdict(list)
        for pid, stat in newcomers.items():
            children[stat.parent_pid].append(pid)
        waiting = [*members, *joined]
        while waiting:
            for child in children.get(waiting.pop(), ()):
                if child not in joined:
                    joined[child] = newcomers[child]
                    waiting.append(child)
        return joined

    def _stats(self, pids: Iterable[int]) -> dict[int, ProcessStat]:
        stats = {}
        for pid in pids:
            text = read_bytes(f"{self._proc}/{pid}/stat")
            stat = None if text is None else parse_stat(text, self._tick_ns, self._page_bytes)
            if stat is not None:
                stats[pid] = stat
        return stats

    def _entry(self, pid: int, stat: ProcessStat) -> dict[str, Any]:
        entry = {
            "pid": pid,
            "ppid": stat.parent_pid,
            "started_ns": stat.started_ns,
            "name": masked_text(stat.name),
            "state": stat.state,
            "user_ns": stat.user_ns,
            "system_ns": stat.system_ns,
            "reaped_ns": stat.reaped_ns,
            "rss_bytes": stat.rss_bytes,
            "threads": stat.threads,
            "minor_faults": stat.minor_faults,
            "major_faults": stat.major_faults,
        }
        status = read_bytes(f"{self._proc}/{pid}/status") or b""
        traffic = read_bytes(f"{self._proc}/{pid}/io") or b""
        for key, text, label in (
            ("voluntary_switches", status, b"voluntary_ctxt_switches:"),
            ("involuntary_switches", status, b"nonvoluntary_ctxt_switches:"),
            ("read_bytes", traffic, b"read_bytes:"),
            ("write_bytes", traffic, b"write_bytes:"),
            ("read_calls", traffic, b"syscr:"),
        ):
            value = labelled_int(text, label)
            if value is not None:
                entry[key] = value
        kept_kb = [labelled_int(status, label) for label in (b"RssAnon:", b"RssShmem:")]
        if None not in kept_kb:
            entry["rss_without_files_bytes"] = sum(size or 0 for size in kept_kb) * 1024
        return entry

    def _add_pss(self, entries: list[dict[str, Any]]) -> None:
        """Measures all processes rarely, and new ones at their second sample: they may grow."""
        now_ns, began_ns = self._now_ns(), self._cpu_ns()
        keys = {(entry["pid"], entry["started_ns"]): entry for entry in entries}
        newcomers = (self._seen & keys.keys()) - self._measured
        self._seen, is_due = set(keys), now_ns >= self._next_pss_ns
        if not is_due and self._next_pss_ns > now_ns + _LONGEST_DELAY_NS:
            return
        measured = keys.keys() if is_due else newcomers
        for key in measured:
            rollup = read_bytes(f"{self._proc}/{key[0]}/smaps_rollup") or b""
            for name, label in (("pss_bytes", b"Pss:"), ("private_bytes", b"Private_Dirty:")):
                size_kb = labelled_int(rollup, label)
                if size_kb is not None:
                    keys[key][name] = size_kb * 1024
        self._measured = (self._measured | measured) & keys.keys()
        pause_ns = int((self._cpu_ns() - began_ns) / PSS_MAX_SHARE)
        if is_due:
            self._next_pss_ns = now_ns + max(PSS_INTERVAL_NS, pause_ns)
        elif measured:
            self._next_pss_ns += pause_ns


def parse_stat(text: bytes, tick_ns: int, page_bytes: int) -> ProcessStat | None:
    """Returns the fields of a /proc/<pid>/stat text, None for a process being removed."""
    # The name may contain blanks and parentheses.
    opening, closing = text.find(b"("), text.rfind(b")")
    try:
        state, *numbers = text[closing + 1 :].split()
        fields = [int(number) for number in numbers[:21]]
        if fields[16] == 0:  # being removed: all counters are 0
            return None
        return ProcessStat(
            name=text[opening + 1 : closing].decode("utf-8", "backslashreplace"),
            state=state.decode("ascii", "replace"),
            parent_pid=fields[0],
            minor_faults=fields[6],
            major_faults=fields[8],
            user_ns=fields[10] * tick_ns,
            system_ns=fields[11] * tick_ns,
            reaped_ns=(fields[12] + fields[13]) * tick_ns,
            threads=fields[16],
            started_ns=fields[18] * tick_ns,
            rss_bytes=fields[20] * page_bytes,
        )
    except (ValueError, IndexError):
        return None


class ReadingWatch:
    """Samples the states of processes that read recently: the main thread, and readers for it."""

    def __init__(self, root: Path = FILESYSTEM_ROOT) -> None:
        self._proc = str(root).rstrip("/") + "/proc"
        self._watched: tuple[int, ...] = ()
        self._counted: dict[tuple[int, int], dict[str, int]] = {}
        self._place = 0.0

    def choose(self, processes: Iterable[Mapping[str, Any]]) -> None:
        """Sets the processes to sample, from entries of `ProcessTree.sample`."""
        watched, counted = [], {}
        for entry in processes:
            key = entry["pid"], entry["started_ns"]
            counted[key] = now = {name: entry.get(name, 0) for name in _LEAST_READ}
            before = self._counted.get(key, {})
            if any(now[x] - before.get(x, 0) >= least for x, least in _LEAST_READ.items()):
                watched.append(entry["pid"])
        self._counted, self._watched = counted, tuple(watched)

    def sample(self) -> dict[str, Any] | None:
        """Returns `states`, the letter of /proc/<pid>/stat by pid; None while no process reads."""
        states = {}
        for pid in self._watched:
            state = self._state(f"{pid}/task/{pid}")
            if state == _ASLEEP and self._has_reader(pid):
                state = _WAITING
            if state:
                states[str(pid)] = state
        return {"states": states} if states else None

    def _state(self, thread: str) -> str:
        """Returns a thread's letter, "" if it has ended."""
        text = read_bytes(f"{self._proc}/{thread}/stat") or b""
        name_end = text.rfind(b")")  # the name may contain any character
        return text[name_end + 2 : name_end + 3].decode("ascii", "replace") if name_end >= 0 else ""

    def _has_reader(self, pid: int) -> bool:
        """Returns whether one of a few threads waits for storage, presumably for the main one."""
        try:
            threads = os.listdir(f"{self._proc}/{pid}/task")
        except OSError:
            return False
        return 1 < len(threads) <= _MOST_THREADS and any(
            self._state(f"{pid}/task/{thread}") == _WAITING for thread in threads
        )

    def pause_ns(self, interval_ns: int) -> int:
        """Returns the time to the next sample, `interval_ns` on average."""
        if not self._watched:
            return max(interval_ns, IDLE_INTERVAL_NS)
        self._place = (self._place + _GOLDEN_SHARE) % 1.0
        return round(interval_ns * (1 - _SPREAD + 2 * _SPREAD * self._place))
