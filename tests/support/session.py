"""What one process recorded, read back from its log; and processes started under trainprof."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from trainprof.inside.session import Probe, Session
from trainprof.inside.start import site_directory
from trainprof.record.event_log import EventLog
from trainprof.record.log_reader import EventLogFile, join_texts, log_paths, read_log
from trainprof.record.names import ENV_DIRECTORY, ENV_OPTIONS
from trainprof.record.schema import COLLATE_SHIFT, RECORD, RECORD_BYTES, Kind, Topic

ROOT: Final = Path(__file__).parents[2]
PLAIN_TEXT: Final = (Topic.CLASS, Topic.OPTIMIZER, Topic.EXCEPTION)


class FakeClock:
    """A clock that stands still until told otherwise."""

    def __init__(self, start_ns: int = 1_000) -> None:
        self.now_ns = start_ns

    def __call__(self) -> int:
        return self.now_ns

    def advance(self, ns: int) -> None:
        self.now_ns += ns


def in_threads(functions: Sequence[Callable[[], object]]) -> None:
    """Runs functions at once, with a switch of threads wherever one is possible."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=function) for function in functions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)


@dataclass(frozen=True)
class Event:
    """One record, with its site or id put into words."""

    kind: Kind
    start: int
    end: int
    site: int
    value: int
    flags: int
    thread: int
    text: Any

    @property
    def ns(self) -> int:
        return self.end - self.start

    @property
    def samples(self) -> int:
        """Of a FETCH: how many samples it made."""
        return self.value & ((1 << COLLATE_SHIFT) - 1)

    @property
    def collate_ns(self) -> int:
        """Of a FETCH: the part of it that was collating."""
        return self.value >> COLLATE_SHIFT

    @property
    def line(self) -> str:
        """The site as file.py:line."""
        return f"{os.path.basename(self.text[0])}:{self.text[1]}"


@dataclass(frozen=True)
class Recording:
    """One log: its events from LOADER_INIT on in the order of writing, and its texts."""

    file: EventLogFile
    events: list[Event]
    marks: list[Event]
    texts: dict[int, tuple[Topic, str]]

    @property
    def header(self) -> dict[str, Any]:
        return self.file.header

    def of(self, *kinds: Kind) -> list[Event]:
        return [event for event in (*self.marks, *self.events) if event.kind in kinds]

    def kinds(self) -> list[str]:
        return [event.kind.name for event in self.events]

    def notes(self, topic: Topic) -> list[Any]:
        return [_meaning(entry) for entry in self.texts.values() if entry[0] is topic]


def _meaning(entry: tuple[Topic, str]) -> Any:
    topic, text = entry
    return text if topic in PLAIN_TEXT else json.loads(text)


def read_recording(path: Path) -> Recording:
    log = read_log(path)
    # At once: between two records another thread may write a text and, behind it, what names it.
    body = bytes(log.body)
    records = [body[at : at + RECORD_BYTES] for at in range(0, len(body), RECORD_BYTES)]
    texts = join_texts(record for record in records if record[0] == Kind.TEXT)
    events, marks = [], []
    for record in records:
        kind, flags, thread, site, start, end, value = RECORD.unpack(record)
        if kind in (Kind.HOLE, Kind.TEXT):
            continue
        text = _meaning(texts[site]) if site in texts else None
        event = Event(Kind(kind), start, end, site, value, flags, thread, text)
        (events if kind >= Kind.LOADER_INIT else marks).append(event)
    return Recording(log, events, marks, texts)


def read_recordings(events: Path) -> list[Recording]:
    """Returns all logs of a directory, that of the script first, then by age."""
    logs = [read_recording(path) for path in log_paths(events)]
    return sorted(logs, key=lambda log: (log.header["role"] != "script", log.header["perf_ns"]))


# Of sessions that are not over.
_LOGS = weakref.WeakSet[EventLog]()


def _reopen_logs() -> None:
    """Makes a forked child write logs of its own."""
    for log in _LOGS:
        log.reopen_in_child()


os.register_at_fork(after_in_child=_reopen_logs)


class Recorder:
    """A session that records into a temporary directory, and reads it back."""

    def __init__(self, directory: Path, torch: ModuleType) -> None:
        self._directory = directory
        self._torch = torch
        self._sessions: list[Session] = []

    def start(
        self,
        *probes: Probe,
        now: Callable[[], int] | None = None,
        options: dict[str, object] | None = None,
    ) -> Session:
        log = EventLog(str(self._directory), role="script")
        clock: dict[str, Any] = {} if now is None else {"now": now}
        session = Session(log, cwd=os.getcwd(), options=options, **clock)
        self._sessions.append(session)
        _LOGS.add(log)
        session.attach(self._torch, probes)
        return session

    @property
    def session(self) -> Session:
        """The last one that was started."""
        return self._sessions[-1]

    def stop(self) -> None:
        for session in reversed(self._sessions):
            session.detach()

    def close(self) -> None:
        """Stops, and lets go of the logs' files: what a probe leaves at fork keeps its session."""
        self.stop()
        for session in self._sessions:
            session.log.reopen_in_child()  # which lets go of the file that was its parent's
            _LOGS.discard(session.log)

    def read(self) -> Recording:
        """Returns what this process recorded, an empty recording included."""
        log = self._sessions[-1].log
        log.emit(Kind.LIMIT, 1, 1)  # opens a log that nothing was written to
        assert log.path is not None
        return read_recording(Path(log.path))

    def read_all(self) -> list[Recording]:
        return read_recordings(self._directory)


def hooked_environment(run: Path, **options: object) -> dict[str, str]:
    """Returns the environment in which a child of this process is the script of a run in `run`."""
    (run / "events").mkdir(parents=True, exist_ok=True)
    others = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([site_directory(), *([others] if others else [])]),
        ENV_DIRECTORY: str(run),
        ENV_OPTIONS: json.dumps({"supervisor_pid": os.getpid(), **options}),
        "TRAINPROF_DEBUG": "1",
        "KINETO_LOG_LEVEL": "6",
    }


def run_plain(
    words: Sequence[str | Path], cwd: Path, **more: Any
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "KINETO_LOG_LEVEL": "6", **more.pop("env", {})}
    return _run(words, cwd, environment, **more)


def run_hooked(
    words: Sequence[str | Path], cwd: Path, run: Path, **more: Any
) -> subprocess.CompletedProcess[str]:
    """Runs python with `words` as the script of a run, without a supervisor."""
    options = more.pop("options", {})
    environment = {**hooked_environment(run, **options), **more.pop("env", {})}
    return _run(words, cwd, environment, **more)


def run_under(
    words: Sequence[str | Path], cwd: Path, run: Path
) -> subprocess.CompletedProcess[str]:
    """Runs `trainprof run -q` with `words`, recording into `run`."""
    command = ["-m", "trainprof", "run", "-q", "-o", run]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return run_plain([*command, *words], cwd, env={"PYTHONPATH": path})


def _run(
    words: Sequence[str | Path], cwd: Path, environment: dict[str, str], **more: Any
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **more,
    )
