"""A run of many steps, written as numpy records: 1,000,000 steps take a few seconds.

    python -m support.long_run DIRECTORY STEPS          (from tests/)

Steps of 1 ms with 10 events, in epochs with an evaluation and a checkpoint after each; two
persistent workers, of whose fetches every 16th is measured; a full garbage collection in each
1,000th step. Planted: in the middle hundredth of the steps each batch is waited for 2 ms longer
(`SLOW_WAIT_NS`), and one step in each epoch for 50 ms (`OUTLIER_NS`), for the slow sample
`sample_of(step)`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trainprof.analysis.timeline.events import RECORD_DTYPE
from trainprof.record.names import EVENT_LOG_SUFFIX
from trainprof.record.run_directory import RunDirectory, write_json
from trainprof.record.schema import (
    HEADER_BYTES,
    HEADER_PREFIX,
    LAST_PART,
    MAGIC,
    SCHEMA_VERSION,
    TEXT_PART_BYTES,
    TEXT_RECORD,
    ForwardFlag,
    Kind,
    SlowSampleFlag,
    SyncFlag,
    Topic,
    TransferFlag,
)

Rows = npt.NDArray[np.void]
US: Final = 1_000
MS: Final = 1_000_000
S: Final = 1_000_000_000
PID: Final = 4242
TRAIN, VALIDATION, SITE, CLASS, OPTIMIZER = 1, 2, 3, 4, 5
TEXTS: Final = {
    TRAIN: (Topic.LOADER, {"kind": "DataLoader", "site": SITE, "num_workers": 2}),
    VALIDATION: (Topic.LOADER, {"kind": "DataLoader", "site": SITE, "num_workers": 0}),
    SITE: (Topic.SITE, ["/work/train.py", 41, "<module>"]),
    CLASS: (Topic.CLASS, "Net"),
    OPTIMIZER: (Topic.OPTIMIZER, "AdamW#1"),
}
LEARNS: Final = int(ForwardFlag.GRAD | ForwardFlag.TRAINING)
STEP_NS: Final = MS
SLOW_WAIT_NS: Final = 2 * MS
OUTLIER_NS: Final = 50 * MS
GC_EVERY: Final = 1_000
WORKERS: Final = 2
INTERVAL_NS: Final = S // 2
# Kind, flags, site, start and end within a step after its batch, us; in order of end.
STEP: Final = (
    (Kind.TRANSFER, TransferFlag.H2D, SITE, 91, 93),
    (Kind.FORWARD, LEARNS, CLASS, 95, 300),
    (Kind.LOSS, LEARNS, CLASS, 301, 320),
    (Kind.ZERO_GRAD, 0, 0, 322, 330),
    (Kind.BACKWARD, 0, 0, 332, 800),
    (Kind.CLIP_GRADIENTS, 0, 0, 802, 820),
    (Kind.OPTIMIZER_STEP, 0, OPTIMIZER, 822, 950),
    (Kind.SCHEDULER_STEP, 0, 0, 951, 953),
    (Kind.SYNC, SyncFlag.ITEM | SyncFlag.ON_CPU, SITE, 955, 957),
)
EVALUATION: Final = ((Kind.FORWARD, 0, CLASS, 95, 300), (Kind.LOSS, 0, CLASS, 301, 320))


def write_long_run(path: Path, steps: int, *, epochs: int = 10) -> RunDirectory:
    """Writes a run of `steps` steps, a multiple of `epochs`."""
    directory = RunDirectory(path)
    directory.create()
    waits = waits_ns(steps, epochs)
    origin, now = S, S + 2 * S
    script, fetches = [_rows(Kind.THREAD, [S], [S], site=1, value=PID)], []
    for epoch, wait in enumerate(waits.reshape(epochs, -1)):
        script.append(
            _rows(
                Kind.LOADER_INIT if epoch == 0 else Kind.LOADER_RESET,
                [now],
                [now + 100 * US],
                site=TRAIN,
            )
        )
        if epoch == 0:
            script += [
                _rows(
                    Kind.WORKER, [now], [now + 100 * US], site=TRAIN, flags=n + 1, value=PID + 1 + n
                )
                for n in range(WORKERS)
            ]
        now += 100 * US
        begins = now + np.append(0, np.cumsum(STEP_NS + wait))
        script.append(_steps(begins[:-1], wait, TRAIN, STEP))
        fetches.append((begins[:-1], wait))
        collected = begins[:-1][GC_EVERY - 1 :: GC_EVERY] + wait[GC_EVERY - 1 :: GC_EVERY]
        script.append(_rows(Kind.GC, collected + 960 * US, collected + 990 * US, value=2))
        now = int(begins[-1])
        script.append(_rows(Kind.LOADER_END, [now], [now + 50 * US], site=TRAIN))
        script.append(
            _rows(Kind.CHECKPOINT_SAVE, [now + 100 * US], [now + 20 * MS], site=SITE, value=MS)
        )
        now += 21 * MS
        script.append(_rows(Kind.LOADER_INIT, [now], [now + 50 * US], site=VALIDATION))
        count = max(len(wait) // 10, 1)
        begins = now + 100 * US + STEP_NS * np.arange(count + 1)
        script.append(_steps(begins[:-1], np.zeros(count, dtype=np.int64), VALIDATION, EVALUATION))
        now = int(begins[-1])
        script.append(_rows(Kind.LOADER_END, [now], [now + 50 * US], site=VALIDATION))
        now += MS
    end = now + S
    _write_log(directory, PID, "script", {}, script)
    for worker in range(WORKERS):
        rows = _fetches(worker, *map(np.concatenate, zip(*fetches, strict=True)))
        header = {"ppid": PID, "forked_from": PID, "worker": worker}
        _write_log(directory, PID + 1 + worker, "child", header, rows)
    _write_samples(directory, origin, end)
    ended = {"status": 0, "signal": None, "reason": "completed", "detail": None}
    manifest = {"schema_version": 1, "name": path.name, "command": ["train.py"], "cwd": "/work"}
    times = {"spawned_ns": origin, "ended_ns": end, "started_at": "2026-01-01T00:00:00+00:00"}
    host = {"usable_cores": 4, "cores": 4, "core_numbers": [0, 1, 2, 3]}
    write_json(
        directory.manifest,
        manifest | {"script_pid": PID, "times": times, "exit": ended, "host": host},
    )
    return directory


def waits_ns(steps: int, epochs: int) -> npt.NDArray[np.int64]:
    """Returns what each step waits beyond its 1 ms."""
    waits = np.zeros(steps, dtype=np.int64)
    waits[steps // 2 : steps // 2 + steps // 100] = SLOW_WAIT_NS
    waits[outliers(steps, epochs)] = OUTLIER_NS
    return waits


def outliers(steps: int, epochs: int) -> npt.NDArray[np.int64]:
    """Returns the planted steps: after four fifths of each epoch."""
    return np.arange(epochs) * (steps // epochs) + steps // epochs * 4 // 5


def sample_of(step: int) -> int:
    return 32 * step + 7


def _rows(
    kind: Kind, start: Any, end: Any, *, site: int = 0, value: Any = 0, flags: int = 0
) -> Rows:
    rows = np.zeros(len(start), dtype=RECORD_DTYPE)
    rows["kind"], rows["flags"], rows["site"] = int(kind), flags, site
    rows["start"], rows["end"], rows["value"] = start, end, value
    return rows


def _steps(
    begins: npt.NDArray[np.int64],
    wait: npt.NDArray[np.int64],
    loader: int,
    pattern: Iterable[tuple[int, int, int, int, int]],
) -> Rows:
    number = np.arange(1, len(begins) + 1)
    first = _rows(Kind.LOADER_NEXT, begins + US, begins + 90 * US + wait, site=loader, value=number)
    columns = [first]
    for kind, flags, site, start, end in pattern:
        at = begins + wait
        columns.append(_rows(Kind(kind), at + start * US, at + end * US, site=site, flags=flags))
    return np.stack(columns, axis=1).ravel()


def _fetches(worker: int, begins: npt.NDArray[np.int64], wait: npt.NDArray[np.int64]) -> list[Rows]:
    """Returns a worker's fetches: half of each 1.4 ms on a core, and what the loop waits for."""
    number = np.arange(len(begins))[worker::WORKERS]
    start, waited = begins[worker::WORKERS] + 5 * US, wait[worker::WORKERS]
    took = 1_400 * US + np.minimum(waited, SLOW_WAIT_NS) * 6 // 5
    is_slow = waited == OUTLIER_NS
    took[is_slow] = OUTLIER_NS
    fetches = _rows(Kind.FETCH, start, start + took, flags=worker + 1, value=32)
    measured = slice(None, None, 16)
    cpu = _rows(Kind.FETCH_CPU, start[measured], (start + took // 2)[measured], flags=16)
    cpu["value"], cpu["site"] = (took // 2)[measured], 0
    slow = start[is_slow]
    samples = _rows(
        *(Kind.SLOW_SAMPLE, slow + US, slow + OUTLIER_NS - 100 * US),
        site=TRAIN,
        value=sample_of(number[is_slow]),
        flags=SlowSampleFlag.IS_INDEX,
    )
    return [_rows(Kind.THREAD, [S], [S], site=1, value=PID + 1 + worker), fetches, cpu, samples]


def _write_log(
    directory: RunDirectory, pid: int, role: str, header: dict[str, Any], rows: list[Rows]
) -> None:
    encoded = json.dumps({"pid": pid, "role": role, "perf_ns": S, "time_ns": S, **header}).encode()
    with open(directory.events / f"{pid}-1{EVENT_LOG_SUFFIX}", "wb") as file:
        prefix = HEADER_PREFIX.pack(MAGIC, SCHEMA_VERSION, len(encoded)) + encoded
        file.write(prefix.ljust(HEADER_BYTES, b"\0"))
        for number, (topic, value) in TEXTS.items() if pid == PID else ():
            is_plain = topic in (Topic.CLASS, Topic.OPTIMIZER)
            text = (value if is_plain else json.dumps(value)).encode()
            for at in range(0, len(text), TEXT_PART_BYTES):
                last = LAST_PART if at + TEXT_PART_BYTES >= len(text) else 0
                piece = text[at : at + TEXT_PART_BYTES]
                part = at // TEXT_PART_BYTES | last
                file.write(TEXT_RECORD.pack(Kind.TEXT, topic, part, number, piece))
        for part in rows:
            part.tofile(file)


def _write_samples(directory: RunDirectory, start: int, end: int) -> None:
    """Writes samples of four cores, busy for 90, 80, 10 and 0 % of the time, of 1.7 in all."""
    hosts, processes = [], []
    for t_ns in range(start + INTERVAL_NS, end, INTERVAL_NS):
        passed = t_ns - start
        busy = [passed * percent // 100 for percent in (90, 80, 10, 0)]
        cpu = {"user_ns": sum(busy), "idle_ns": 4 * passed - sum(busy), "iowait_ns": 0}
        hosts.append(
            {"t_ns": t_ns, "cpu": cpu, "cores_busy_ns": busy}
            | {"memory_total_bytes": 1 << 34, "memory_available_bytes": 1 << 33}
            | {"disk_read_bytes": passed // 100, "disk_write_bytes": 0}
            | {"network_received_bytes": passed // 1000, "network_sent_bytes": 0}
        )
        tree = [
            {"pid": PID + n, "ppid": PID if n else 1, "started_ns": start + n, "name": "python"}
            | {"state": "R", "user_ns": ns, "system_ns": 0, "reaped_ns": 0}
            | {"rss_bytes": (3 - n) * 100 << 20, "threads": 1}
            for n, ns in enumerate((busy[0], busy[1] // 2, busy[1] // 2))
        ]
        processes.append({"t_ns": t_ns + MS, "processes": tree})
    for name, lines in (("host", hosts), ("processes", processes)):
        text = "".join(f"{json.dumps(line)}\n" for line in lines)
        (directory.samples / f"{name}.jsonl").write_text(text)


if __name__ == "__main__":
    write_long_run(Path(sys.argv[1]), int(sys.argv[2]), epochs=100)
