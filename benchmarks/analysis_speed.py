"""Times the analysis: from a run directory on disk to the page in the terminal.

    python benchmarks/analysis_speed.py [STEPS ...]          default: 20000 1000000

Writes a log of so many steps, in the real format, into a temporary directory: 100 epochs, each with
a pass over a validation loader, 11 events to a step. A fresh process then does what `trainprof run`
does after the script has ended. Once as a plain loop writes them, and once as Lightning does, where
the optimizer's step calls a closure that computes. Budgets: 1 s for 20,000 steps, 10 s and 1 GB for
1,000,000.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

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
    TransferFlag,
)

FIELDS = ("kind", "flags", "thread", "site", "start", "end", "value")
ROW = np.dtype(list(zip(FIELDS, ("u1", "u1", "<u2", "<u4", "<u8", "<u8", "<u8"), strict=True)))
PID = 4242
TRAIN, VALIDATION, SITE, CLASS, OPTIMIZER = 1, 2, 3, 4, 5
TEXTS = {
    TRAIN: (Topic.LOADER, json.dumps({"kind": "DataLoader", "site": SITE, "num_workers": 0})),
    VALIDATION: (Topic.LOADER, json.dumps({"kind": "DataLoader", "site": SITE, "num_workers": 0})),
    SITE: (Topic.SITE, json.dumps(["/project/train.py", 41, "<module>"])),
    CLASS: (Topic.CLASS, "Net"),
    OPTIMIZER: (Topic.OPTIMIZER, "AdamW#1"),
}
US = 1_000
STEP_NS = 1_000 * US
EPOCHS = 100
LEARNS = ForwardFlag.GRAD | ForwardFlag.TRAINING

# kind, flags, site, start and end within a step in us; in order of end, as they are written
STEP = [
    (Kind.FETCH, 0, 0, 8, 82),
    (Kind.LOADER_NEXT, 0, TRAIN, 1, 90),
    (Kind.TRANSFER, TransferFlag.H2D, SITE, 91, 93),
    (Kind.FORWARD, LEARNS, CLASS, 95, 300),
    (Kind.LOSS, LEARNS, CLASS, 301, 320),
    (Kind.ZERO_GRAD, 0, 0, 322, 330),
    (Kind.BACKWARD, 0, 0, 332, 800),
    (Kind.CLIP_GRADIENTS, 0, 0, 802, 820),
    (Kind.OPTIMIZER_STEP, 0, OPTIMIZER, 822, 950),
    (Kind.SCHEDULER_STEP, 0, 0, 951, 953),
    (Kind.SYNC, SyncFlag.ITEM | SyncFlag.ON_CPU, SITE, 955, 957),
]
CLOSURE_STEP = [
    (kind, flags, site, 94 if kind == Kind.OPTIMIZER_STEP else start, end)
    for kind, flags, site, start, end in STEP
]
EVALUATION_STEP = [
    (Kind.LOADER_NEXT, 0, VALIDATION, 1, 90),
    (Kind.FORWARD, 0, CLASS, 95, 300),
    (Kind.LOSS, 0, CLASS, 301, 320),
]


def repeated(
    pattern: list[tuple[int, int, int, int, int]], count: int, start_ns: int, jitter: np.ndarray
) -> np.ndarray:
    """Returns `count` repetitions, STEP_NS apart; ends move by up to 1 us."""
    rows = np.zeros((count, len(pattern)), dtype=ROW)
    origin = start_ns + np.arange(count, dtype=np.uint64) * np.uint64(STEP_NS)
    for place, (kind, flags, site, start, end) in enumerate(pattern):
        column = rows[:, place]
        column["kind"], column["flags"], column["site"] = int(kind), flags, site
        column["start"] = origin + np.uint64(start * US)
        column["end"] = origin + np.uint64(end * US)
        if kind in (Kind.BACKWARD, Kind.FORWARD):
            column["end"] += jitter[:count]
        if kind == Kind.LOADER_NEXT:
            column["value"] = np.arange(1, count + 1)
        if kind == Kind.FETCH:
            column["value"] = 32 | 20 * US << COLLATE_SHIFT
    return rows.reshape(-1)


def single(kind: Kind, site: int, start_ns: int) -> np.ndarray:
    return np.array([(kind, 0, 0, site, start_ns, start_ns + 50 * US, 0)], dtype=ROW)


def write_run(
    directory: RunDirectory, step: list[tuple[int, int, int, int, int]], steps: int, epochs: int
) -> int:
    """Writes a run of `steps` times `step` and returns its number of records."""
    directory.create()
    jitter = np.random.default_rng(0).integers(0, US, steps // epochs).astype(np.uint64)
    now = 10**9
    with open(directory.events / f"{PID}-1{EVENT_LOG_SUFFIX}", "wb") as file:
        header = json.dumps({"pid": PID, "role": "script", "perf_ns": now, "time_ns": now}).encode()
        prefix = HEADER_PREFIX.pack(MAGIC, SCHEMA_VERSION, len(header))
        file.write((prefix + header).ljust(HEADER_BYTES, b"\0"))
        file.write(RECORD.pack(Kind.THREAD, 0, 0, 1, now, now, PID))
        for number, (topic, text) in TEXTS.items():
            pieces = [text[i : i + TEXT_PART_BYTES] for i in range(0, len(text), TEXT_PART_BYTES)]
            for part, piece in enumerate(pieces):
                last = LAST_PART if part == len(pieces) - 1 else 0
                record = TEXT_RECORD.pack(Kind.TEXT, topic, part | last, number, piece.encode())
                file.write(record)
        now += 2 * 10**9
        for _ in range(epochs):
            for loader, pattern, count in (
                (TRAIN, step, steps // epochs),
                (VALIDATION, EVALUATION_STEP, steps // epochs // 10),
            ):
                single(Kind.LOADER_INIT, loader, now).tofile(file)
                now += 100 * US
                repeated(pattern, count, now, jitter).tofile(file)
                now += count * STEP_NS
                single(Kind.LOADER_END, loader, now).tofile(file)
                now += 100 * US
        records = (file.tell() - HEADER_BYTES) // RECORD.size
    ended = {"status": 0, "signal": None, "reason": "completed", "detail": None}
    times = {"spawned_ns": 10**9, "ended_ns": now + 10**9}
    write_json(
        directory.manifest,
        {"schema_version": 1, "name": "run", "command": ["train.py"], "script_pid": PID}
        | {"cwd": "/work", "times": times, "exit": ended, "host": {"usable_cores": 4}},
    )
    return records


CHILD = """
import json, resource, sys, time
from pathlib import Path
from trainprof.findings.summarize import summarize
from trainprof.analysis.summary.json_text import to_jsonable
from trainprof.record.run_directory import RunDirectory, write_json
from trainprof.report.page import page as terminal
from trainprof.report.text.layout import Page
directory = RunDirectory(Path(sys.argv[1]))
started = time.perf_counter()
summary = summarize(directory)
summarized = time.perf_counter()
write_json(directory.summary, to_jsonable(summary))
text = terminal.render(summary, Page(verbose=True))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"steps": summary.training.steps, "epochs": summary.training.epochs,
    "peak_bytes": peak, "summarize_s": summarized - started,
    "render_s": time.perf_counter() - summarized}))
"""


def main() -> None:
    for steps in [int(word) for word in sys.argv[1:]] or [20_000, 1_000_000]:
        measure("a plain loop", STEP, steps)
        measure("with closures", CLOSURE_STEP, steps)


def measure(name: str, step: list[tuple[int, int, int, int, int]], steps: int) -> None:
    """Writes a run, has a fresh process analyse it, and prints what that took."""
    with tempfile.TemporaryDirectory() as parent:
        directory = RunDirectory(Path(parent) / "run")
        records = write_run(directory, step, steps, EPOCHS)
        started = time.perf_counter()
        child = subprocess.run(
            [sys.executable, "-c", CHILD, str(directory.path)],
            check=True,
            capture_output=True,
            text=True,
        )
        seconds = time.perf_counter() - started
    measured = json.loads(child.stdout)
    assert measured["steps"] == steps, measured
    assert measured["epochs"] == EPOCHS, measured
    print(
        f"{name:13} {steps:>9,} steps, {records:>10,} records: {seconds:.2f} s with imports "
        f"(summarize {measured['summarize_s']:.2f} s, render {measured['render_s']:.2f} s), "
        f"peak {measured['peak_bytes'] / 1e9:.2f} GB"
    )


if __name__ == "__main__":
    main()
