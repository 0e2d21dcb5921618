"""A run with workers of which every moment is planted, to be drawn as a trace."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from support.events import MS, US, FakeRun

from trainprof.analysis.summary.trace import Slices, Thread
from trainprof.record.run_directory import RunDirectory
from trainprof.record.schema import Kind, SlowSampleFlag, Topic

WORKERS: Final = 2
NEXT_NS: Final = 300 * US
FETCH_NS: Final = 300 * US
COLLATE_NS: Final = 50 * US
GC_NS: Final = 20 * US
SAVE_NS: Final = 2 * MS
# Quotes, a terminal sequence, a format, a half of a surrogate pair, markup.
HOSTILE: Final = '"\\\x1b[31m%s{0}\ud800é</script><img src=x onerror=alert(1)>\n'


@dataclass
class TracedRun:
    """Epochs of steps of 850 us, whose batches workers prepare in turns, and validation.

    Attributes:
        batches: Of each batch so far: pid, start of its fetch, start of its `next`, ns.
    """

    script: FakeRun = field(default_factory=FakeRun)
    metadata: dict[str, Any] = field(default_factory=dict)
    workers: dict[int, FakeRun] = field(default_factory=dict)
    batches: list[tuple[int, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        run = self.script
        self.loader = run.loader(41, num_workers=WORKERS, **self.metadata)
        self.validation, self.optimizer = run.loader(42), run.optimizer()
        name = HOSTILE.encode(errors="replace").decode()
        self.module, self.line = run.text(Topic.CLASS, name), run.site(50)

    def fetch(self, worker: int, pid: int, start: int, ns: int = FETCH_NS) -> None:
        log = self.workers.setdefault(
            pid, FakeRun(pid=pid, role="child", header={"ppid": self.script.pid}, start=start)
        )
        log.now = start
        log.fetch(ns, 4, collate=COLLATE_NS, flags=worker + 1)
        slow = start + US
        flags = SlowSampleFlag.IS_INDEX
        log.record(Kind.SLOW_SAMPLE, slow, slow + 100 * US, value=4711, flags=flags)

    def epoch(
        self, count: int, *, pids: int, resumed: bool = False, stop: bool = True, left: int = 0
    ) -> None:
        """Trains an epoch; `pids`: of its first worker; `left`: fetches of batches not taken."""
        run, loader = self.script, self.loader
        run.yielded[loader] = 0
        begins = run.now
        run.leaf(Kind.LOADER_RESET if resumed else Kind.LOADER_INIT, 500 * US, site=loader)
        for worker in range(0 if resumed else WORKERS):
            pid, flags = pids + worker, worker + 1
            run.record(Kind.WORKER, begins, begins + US, site=loader, value=pid, flags=flags)
        for number in range(count + left):
            worker = number % WORKERS
            start = begins + 100 * US if number < WORKERS else run.now - 400 * US
            self.fetch(worker, pids + worker, start)
            if number < count:
                self.batches.append((pids + worker, start, run.now))
                run.next(loader, NEXT_NS)
                with run.span(Kind.FORWARD, flags=3, site=self.module):
                    run.passes_time(100 * US)
                    run.leaf(Kind.GC, GC_NS, value=2)
                    run.passes_time(80 * US)
                run.backward()
                run.update(self.optimizer)
            else:
                run.passes_time(850 * US)
        if stop:
            run.stop(loader)

    def validate(self, batches: int = 3) -> int:
        return self.script.evaluation_pass(self.validation, batches)

    def write(self, parent: Path, **manifest: Any) -> RunDirectory:
        for worker in self.workers.values():
            worker.write(parent)
        directory = self.script.write(parent, **manifest)
        lines = [
            {
                "t_ns": t_ns,
                "memory_available_bytes": 1 << 30,
                "cpu": {"user_ns": t_ns // 2, "idle_ns": t_ns // 2},
            }
            for t_ns in range(self.script.start, self.script.now + 1, MS)
        ]
        text = "\n".join(map(json.dumps, lines))
        (directory.samples / "host.jsonl").write_text(text + "\n")
        return directory


def traced_run() -> TracedRun:
    """Two epochs of 6 steps with new workers each, each followed by validation and a checkpoint."""
    run = TracedRun()
    run.script.passes_time(MS)
    for number in range(2):
        run.epoch(6, pids=5000 + 100 * number)
        run.validate()
        run.script.leaf(Kind.CHECKPOINT_SAVE, SAVE_NS, site=run.line, value=1000)
    run.script.thread = 3
    run.script.record(Kind.PIN, run.batches[0][2], run.batches[0][2] + 5 * US)
    run.script.passes_time(MS)
    return run


def assert_nested(thread: Thread) -> None:
    """Asserts that no slice of a track reaches out of the one around it."""
    around: list[int] = []
    for start, depth, ns in sorted(
        row for x in thread.slices for row in zip(*_columns(x), strict=True)
    ):
        assert start >= 0
        assert ns >= 0
        while around and around[-1] <= start:
            around.pop()
        assert not around or start + ns <= around[-1], (start, depth)
        around.append(start + ns)


def _columns(slices: Slices) -> tuple[list[int], list[int], list[int]]:
    return slices.start_ns.tolist(), slices.depth.tolist(), slices.ns.tolist()
