"""Trainings on a device whose every moment is known, recorded as the probes record them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from support.events import LEARNS, MS, US, FakeRun

from trainprof.record.schema import DeviceMarkFlag, Kind, SyncFlag, Topic, TransferFlag

# The device's clock begins elsewhere, and gains 20 us a second.
DRIFT: Final = 20e-6
MARK_NS: Final = 3 * US
UNSIGNED: Final = (1 << 64) - 1
Spans = list[tuple[int, int]]


@dataclass
class Stream:
    """A device that works off what it is given, with marks as the probe puts them.

    The probe looks at its marks whenever it puts one; a mark takes the host 3 us.

    Attributes:
        worked, copied: When it did, ns; the two do not overlap.
        pending: Marks not yet seen reached: when put and reached, ns.
    """

    run: FakeRun
    idle_from: int = 0
    worked: Spans = field(default_factory=list)
    copied: Spans = field(default_factory=list)
    pending: list[tuple[int, int]] = field(default_factory=list)
    last: int | None = None

    def gets(self, ns: int, *, is_copy: bool = False) -> None:
        begins = max(self.run.now, self.idle_from)
        self.idle_from = begins + ns
        (self.copied if is_copy else self.worked).append((begins, self.idle_from))

    def mark(self) -> None:
        self.mark_reached(max(self.run.now, self.idle_from))

    def mark_reached(self, at: int) -> None:
        """Puts a mark that is reached at `at`: in another stream than the others, say."""
        self.look()
        self.pending.append((self.run.now, at))
        self.run.passes_time(MARK_NS)

    def look(self) -> None:
        while self.pending and self.pending[0][1] <= self.run.now:
            put, reached = self.pending.pop(0)
            clock = round(reached * (1 + DRIFT))
            since, flags = clock - (self.last or 0), 0
            if self.last is None:
                since, flags = 0, DeviceMarkFlag.FIRST
            self.last = clock
            self.run.record(
                Kind.DEVICE_MARK, put, self.run.now, value=since & UNSIGNED, flags=flags
            )

    def waits(self) -> None:
        self.run.passes_time(max(self.idle_from - self.run.now, 0))
        self.look()

    def busy_share(self, start: int, end: int) -> float:
        return inside(self.worked, [(start, end)]) / (end - start)


def inside(spans: Spans, others: Spans) -> int:
    """Returns how long both are, ns; neither overlaps itself."""
    spans, others = sorted(spans), sorted(others)
    total = first = second = 0
    while first < len(spans) and second < len(others):
        (a, b), (c, d) = spans[first], others[second]
        total += max(min(b, d) - max(a, c), 0)
        if b <= d:
            first += 1
        else:
            second += 1
    return total


class DeviceRun:
    """A training on one device.

    Attributes:
        host: What the training thread was doing, by cause of the device's idleness.
        ahead: The most work before the device, ns; then launching blocks. None: any.
    """

    def __init__(self) -> None:
        self.run = FakeRun()
        self.stream = Stream(self.run)
        self.host: dict[str, Spans] = {}
        self.loader, self.validation = self.run.loader(41), self.run.loader(42)
        self.optimizer = self.run.optimizer()
        self.run.text(Topic.ENVIRONMENT, {"device": "cuda:0"})
        # The lines of a copy, a sync and a save, unless another is named.
        self._sites = {line: self.run.site(line) for line in (50, 60, 70)}
        self.begins = self.ends = 0
        self.ahead: int | None = None

    def _site(self, line: int) -> int:
        if line not in self._sites:
            self._sites[line] = self.run.site(line)
        return self._sites[line]

    @contextmanager
    def doing(self, cause: str) -> Iterator[None]:
        start = self.run.now
        yield
        self.host.setdefault(cause, []).append((start, self.run.now))

    def start(self) -> None:
        self.stream.mark()  # a model was moved there
        self.run.passes_time(MS)
        self.begins = self.run.now
        with self.doing("loader_s"):
            self.run.iterate(self.loader)

    def next(self, ns: int, *, loader: int | None = None) -> None:
        loader = self.loader if loader is None else loader
        start = self.run.now
        with self.doing("loader_s"):
            self.stream.mark()
            self.run.passes_time(ns)
            end = self.run.now
            self.stream.mark()
        self.run.yielded[loader] = self.run.yielded.get(loader, 0) + 1
        value = self.run.yielded[loader]
        self.run.record(Kind.LOADER_NEXT, start, end, site=loader, value=value)

    def copy(
        self,
        ns: int,
        *,
        blocks: bool = False,
        to_host: bool = False,
        beside: bool = False,
        line: int = 50,
    ) -> None:
        """Copies 12 MB; `beside`: on a stream of its own, at once; `line`: of another one."""
        start = self.run.now
        with self.doing("copy_s"):
            if not self.stream.pending or start - self.stream.pending[-1][0] > 30 * US:
                self.stream.mark()
            if beside:
                self.run.passes_time(5 * US)
                end = self.run.now
                self.stream.mark_reached(end + ns)
            else:
                self.stream.gets(ns, is_copy=True)
                self.run.passes_time(5 * US)
                if blocks:
                    self.run.passes_time(max(self.stream.idle_from - self.run.now, 0))
                end = self.run.now
                self.stream.mark()
        flags = TransferFlag.D2H if to_host else TransferFlag.H2D
        flags |= 0 if blocks else TransferFlag.NON_BLOCKING
        site = self._site(line)
        self.run.record(Kind.TRANSFER, start, end, site=site, value=12_000_000, flags=flags)

    def phase(
        self, kind: Kind, launch: int, work: int, *, pieces: int = 1, waits_inside: bool = False
    ) -> None:
        """Gives out work in pieces; `waits_inside`: the host waits for it, seen by nobody."""
        start = self.run.now
        with self.doing("unknown_s"):
            self.stream.mark()
            for _ in range(pieces):
                self.run.passes_time(launch // pieces)
                self.stream.gets(work // pieces)
            if waits_inside or self.ahead is not None:
                ahead = 0 if waits_inside else self.ahead
                self.run.passes_time(max(self.stream.idle_from - self.run.now - ahead, 0))
            end = self.run.now
            self.stream.mark()
        site = self.optimizer if kind is Kind.OPTIMIZER_STEP else 0
        self.run.record(kind, start, end, site=site, flags=LEARNS if kind is Kind.FORWARD else 0)

    def learn(
        self,
        *work: int,
        launch: int = 200 * US,
        pieces: int = 1,
        kinds: tuple[Kind, ...] = (Kind.FORWARD, Kind.BACKWARD, Kind.OPTIMIZER_STEP),
    ) -> None:
        for kind, ns in zip(kinds, work, strict=True):
            self.phase(kind, launch, ns, pieces=pieces)

    def item(
        self,
        value: int = 10 * US,
        *,
        line: int = 60,
        in_chain: bool = False,
        flags: int = 0,
    ) -> None:
        """Waits for a value, which is brought in `value` ns; `line`: of another one.

        `in_chain`: right after another, so that no mark is put. `flags`: more of the record's.
        """
        start = self.run.now
        with self.doing("sync_s"):
            if not in_chain:
                self.stream.mark()
            self.run.passes_time(max(self.stream.idle_from - self.run.now, 0))
            self.run.passes_time(value)
            end = self.run.now
            self.stream.look()
        flags |= SyncFlag.ITEM | (SyncFlag.IN_CHAIN if in_chain else 0)
        self.run.record(Kind.SYNC, start, end, site=self._site(line), flags=flags)

    def python(self, ns: int) -> None:
        with self.doing("host_s"):
            self.run.passes_time(ns)

    def save(self, ns: int) -> None:
        with self.doing("checkpoint_s"):
            self.run.leaf(Kind.CHECKPOINT_SAVE, ns, site=self._site(70))

    def evaluate(
        self,
        batches: int,
        *,
        wait: int,
        work: int,
        value: int = 10 * US,
        line: int = 60,
    ) -> None:
        """Asks for a value after each batch, on `line`."""
        start = self.run.now
        self.run.iterate(self.validation)
        for _ in range(batches):
            self.next(wait, loader=self.validation)
            at = self.run.now
            self.stream.mark()
            self.run.passes_time(100 * US)
            self.stream.gets(work)
            end = self.run.now
            self.stream.mark()
            self.run.record(Kind.FORWARD, at, end)
            self.item(value, line=line)
        self.run.stop(self.validation)
        for spans in self.host.values():
            spans[:] = [span for span in spans if span[0] < start]
        self.host.setdefault("evaluation_s", []).append((start, self.run.now))

    def stop(self) -> None:
        self.ends = self.run.now
        self.run.stop(self.loader)
        self.stream.waits()

    def idle_shares(self) -> dict[str, float]:
        """Of the training phase, by cause: the device did not work; copying is copy_s."""
        window = [(self.begins, self.ends)]
        length = self.ends - self.begins
        busy = sorted(self.stream.worked + self.stream.copied)
        idle = {
            cause: inside(spans, window) - inside(spans, busy) for cause, spans in self.host.items()
        }
        idle["copy_s"] = idle.get("copy_s", 0) + inside(self.stream.copied, window)
        return {cause: ns / length for cause, ns in idle.items()}

    def busy_share(self) -> float:
        return self.stream.busy_share(self.begins, self.ends)


def trained(
    step: Callable[[DeviceRun, int], None], steps: int, run: DeviceRun | None = None
) -> DeviceRun:
    """Returns a run of these steps; `run`: what came before them."""
    run = run or DeviceRun()
    run.start()
    for number in range(steps):
        step(run, number)
    run.stop()
    return run
