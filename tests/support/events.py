"""Builds recordings on a fake clock: nested spans, planted to the nanosecond.

run = FakeRun()
loader = run.loader("train.py", 41)
run.passes_time(1000)                         # python between the spans
with run.span(Kind.FORWARD, flags=LEARNS):
    run.passes_time(500)
    run.leaf(Kind.GC, 20)                     # inside the forward
run.summary(tmp_path)                         # through the real files and the real reader
run.events()                                  # or straight to the columns
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.analysis.timeline.events import Events, ProcessLog, load_process
from trainprof.findings.summarize import summarize
from trainprof.record.log_reader import EventLogFile
from trainprof.record.names import EVENT_LOG_SUFFIX
from trainprof.record.run_directory import RunDirectory, write_json
from trainprof.record.schema import (
    COLLATE_SHIFT,
    HEADER_BYTES,
    HEADER_PREFIX,
    LAST_PART,
    MAGIC,
    RECORD,
    SCHEMA_VERSION,
    TEXT_PART_BYTES,
    TEXT_RECORD,
    ForwardFlag,
    Kind,
    SyncFlag,
    Topic,
)

US: Final = 1_000
MS: Final = 1_000_000
LEARNS: Final = ForwardFlag.GRAD | ForwardFlag.TRAINING
ITEM_ON_CPU: Final = SyncFlag.ITEM | SyncFlag.ON_CPU
START_NS: Final = 1_000_000_000


@dataclass
class FakeRun:
    """A process that records what the test says it did.

    Attributes:
        header: What stands in the log's header besides.
        now: The fake clock, ns; starts at `start`.
        thread: Number of the thread that later records come from.
    """

    start: int = START_NS
    pid: int = 4242
    role: str = "script"
    header: dict[str, Any] = field(default_factory=dict)
    now: int = START_NS
    thread: int = 0
    records: list[bytes] = field(default_factory=list)
    texts: list[tuple[Topic, str]] = field(default_factory=list)
    yielded: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.mark(Kind.THREAD, site=1)

    # clock and records

    def passes_time(self, ns: int) -> None:
        self.now += ns

    def record(
        self, kind: int, start: int, end: int, *, site: int = 0, value: int = 0, flags: int = 0
    ) -> None:
        self.records.append(RECORD.pack(kind, flags, self.thread, site, start, end, value))

    def mark(self, kind: Kind, *, site: int = 0, value: int = 0) -> None:
        self.record(kind, self.now, self.now, site=site, value=value)

    @contextmanager
    def span(self, kind: Kind, *, site: int = 0, value: int = 0, flags: int = 0) -> Iterator[None]:
        """Records what happens inside, when it is over: as probes do."""
        start = self.now
        yield
        self.record(kind, start, self.now, site=site, value=value, flags=flags)

    def leaf(self, kind: Kind, ns: int, *, site: int = 0, value: int = 0, flags: int = 0) -> None:
        with self.span(kind, site=site, value=value, flags=flags):
            self.passes_time(ns)

    # texts

    def text(self, topic: Topic, value: Any) -> int:
        plain = topic in (Topic.CLASS, Topic.OPTIMIZER, Topic.EXCEPTION)
        self.texts.append((topic, value if plain else json.dumps(value)))
        return len(self.texts)

    def site(self, line: int, file: str = "/work/train.py") -> int:
        return self.text(Topic.SITE, [file, line, "<module>"])

    def loader(self, line: int = 41, **header_fields: Any) -> int:
        """Returns the id of a loader built at /work/train.py:`line`."""
        plain = {"kind": "DataLoader", "num_workers": 0, "batch_sampler": "BatchSampler"}
        return self.text(Topic.LOADER, {**plain, "site": self.site(line), **header_fields})

    def optimizer(self, name: str = "SGD#1") -> int:
        return self.text(Topic.OPTIMIZER, name)

    # what loops do

    def iterate(self, loader: int, ns: int = 10 * US) -> None:
        """Makes a new iterator."""
        self.yielded[loader] = 0
        self.leaf(Kind.LOADER_INIT, ns, site=loader)

    def next(self, loader: int, ns: int = 100 * US, *, samples: int = 0) -> None:
        """Takes a batch; with `samples` it is fetched there and then."""
        self.yielded[loader] = self.yielded.get(loader, 0) + 1
        with self.span(Kind.LOADER_NEXT, site=loader, value=self.yielded[loader]):
            if samples:
                self.fetch(0, samples)
            self.passes_time(ns)

    def fetch(self, ns: int, samples: int, *, collate: int = 0, **record: int) -> None:
        """Makes a batch; `collate` ns of it at the end."""
        self.leaf(Kind.FETCH, ns, value=samples | collate << COLLATE_SHIFT, **record)

    def stop(self, loader: int, ns: int = 5 * US) -> None:
        """Asks once more, and there is no batch left."""
        self.leaf(Kind.LOADER_END, ns, site=loader)

    def forward(self, ns: int = 200 * US, *, flags: int = LEARNS, site: int = 0) -> None:
        self.leaf(Kind.FORWARD, ns, flags=flags, site=site)

    def backward(self, ns: int = 300 * US) -> None:
        self.leaf(Kind.BACKWARD, ns)

    def update(self, optimizer: int, ns: int = 50 * US) -> None:
        self.leaf(Kind.OPTIMIZER_STEP, ns, site=optimizer)

    def learn(
        self,
        optimizer: int,
        *,
        forward: int = 200 * US,
        backward: int = 300 * US,
        update: int = 50 * US,
    ) -> None:
        """Forward, backward and update, with nothing between."""
        self.forward(forward)
        self.backward(backward)
        self.update(optimizer, update)

    def train_pass(
        self,
        loader: int,
        optimizer: int,
        batches: int,
        *,
        wait: int = 100 * US,
        samples: Sequence[int] | None = None,
    ) -> None:
        """A pass of plain steps; `samples` per batch."""
        self.iterate(loader)
        for batch in range(batches):
            self.next(loader, wait, samples=samples[batch] if samples else 0)
            self.learn(optimizer)
        self.stop(loader)

    def evaluation_pass(
        self,
        loader: int,
        batches: int,
        *,
        wait: int = 50 * US,
        forward: int = 70 * US,
        stop: bool = True,
        flags: int = 0,
    ) -> int:
        """A pass of forwards without gradients; returns what it took, to its last call's end."""
        began = self.now
        self.iterate(loader)
        for _ in range(batches):
            self.next(loader, wait)
            self.forward(forward, flags=flags)
        if stop:
            self.stop(loader)
        return self.now - began

    # results

    def log_bytes(self) -> bytes:
        header_fields = {
            "pid": self.pid,
            "role": self.role,
            "perf_ns": self.start,
            "time_ns": self.start,
            **self.header,
        }
        encoded = json.dumps(header_fields).encode()
        header = HEADER_PREFIX.pack(MAGIC, SCHEMA_VERSION, len(encoded)) + encoded
        return header.ljust(HEADER_BYTES, b"\0") + b"".join([*self._text_records(), *self.records])

    def _text_records(self) -> Iterator[bytes]:
        for number, (topic, text) in enumerate(self.texts, 1):
            data = text.encode()
            starts = range(0, max(1, len(data)), TEXT_PART_BYTES)
            for part, start in enumerate(starts):
                last = LAST_PART if part == len(starts) - 1 else 0
                piece = data[start : start + TEXT_PART_BYTES]
                yield TEXT_RECORD.pack(Kind.TEXT, topic, part | last, number, piece)

    def log(self) -> ProcessLog:
        header = {"pid": self.pid, "role": self.role, **self.header}
        body = memoryview(self.log_bytes())[HEADER_BYTES:]
        return load_process(EventLogFile(Path("log"), header, body, 0, None, None))

    def events(self) -> Events:
        return self.log().events

    def write(self, parent: Path, **manifest: Any) -> RunDirectory:
        """Writes the run; it began at `start` and ends now."""
        directory = RunDirectory(parent / "run")
        if not directory.path.exists():
            directory.create()
        path = directory.events / f"{self.pid}-{self.start}{EVENT_LOG_SUFFIX}"
        path.write_bytes(self.log_bytes())
        plain = {
            "schema_version": 1,
            "name": "run",
            "cwd": "/work",
            "command": ["train.py"],
            "script_pid": self.pid,
            "times": {"spawned_ns": self.start, "ended_ns": self.now},
            "exit": {"status": 0, "signal": None, "reason": "completed", "detail": None},
        }
        write_json(directory.manifest, plain | manifest)
        return directory

    def write_rank(self, top: Path, rank: str, /, **manifest: Any) -> RunDirectory:
        """Writes the run as that of a rank with a trainprof of its own."""
        directory = self.write(top / "written" / rank, **manifest)
        (top / "ranks").mkdir(parents=True, exist_ok=True)
        return RunDirectory(directory.path.rename(top / "ranks" / rank))

    def summary(
        self, parent: Path, *, epoch: int | None = None, steps: tuple[int, int] | None = None
    ) -> RunSummary:
        return summarize(self.write(parent), epoch=epoch, steps=steps)


def seconds(summary: RunSummary) -> dict[str, int]:
    """The ledger in ns, without what is 0."""
    return {key: round(s * 1e9) for key, s in summary.ledger.seconds.items() if s}
