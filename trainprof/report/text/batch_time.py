"""What one batch takes, in rows: to be made, and to be had by training."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from trainprof.analysis.summary.loader import Fetch, Loader
from trainprof.report.text.units import is_known, share_of

_UNTOLD_WAITS: Final = ("sleep", "lock", "network")
# Of the time asleep: below, what other threads ran is of no account.
_OTHERS_FROM_SHARE: Final = 0.2


@dataclass(frozen=True, slots=True)
class BatchPart:
    """A part of a batch's time.

    Attributes:
        name: Of the field that it comes from, without its unit.
        words: What it is.
        seconds: Of a mean batch.
        share: Of the whole that it is part of.
    """

    name: str
    words: str
    seconds: float
    share: float


def making_parts(fetch: Fetch) -> list[BatchPart]:
    """Returns what the process that makes a batch does meanwhile: parts that add up to the fetch.

    What the kernel does not tell has no part of its own: it is in the last one, and in its words.
    """
    words = {
        "running": "running (on a core)",
        "runnable": "waiting for a free core",
        "throttled": "stopped by the CPU quota",
        "reading": _words_of_reading(fetch),
        "asleep": _words_of_sleep(fetch),
    }
    seconds = {
        "running": fetch.running_s,
        "runnable": fetch.runnable_s,
        "throttled": fetch.throttled_s,
        "reading": fetch.reading_s,
        "asleep": fetch.asleep_s,
    }
    return _parts(words, seconds, fetch.n)


def code_parts(fetch: Fetch) -> list[BatchPart]:
    """Returns whose code makes a batch: the dataset's, then collate's; they add up to the fetch."""
    words = {"dataset": "dataset[i], the samples", "collate": "collate, samples into a batch"}
    return _parts(words, {"dataset": fetch.dataset_s, "collate": fetch.collate_s}, fetch.n)


def waiting_parts(loader: Loader) -> list[BatchPart]:
    """Returns what training waits for at each batch but the first of a pass."""
    wait, fetch = loader.wait_s, loader.fetch
    if wait is None or not is_known(wait.mean) or wait.n <= 0:
        return []
    receive_s, handover_s = receiving(loader)
    of_batch = {
        "blocked": _each(loader.blocked_s, wait.n),
        "receive": _each(receive_s, wait.n),
        "handover": _each(handover_s, wait.n),
        "making": None,
        "sampler": _each(loader.sampler_s, loader.iterations),
    }
    if loader.num_workers == 0 and fetch is not None and fetch.wall_s is not None:
        of_batch["making"] = fetch.wall_s.mean
    words = {
        "blocked": "no batch was there",
        "receive": "taking it over from a worker",
        "handover": "taking it over: waiting for its worker",
        "making": "making it",
        "sampler": "drawing its indices",
    }
    rest = wait.mean - sum(s for s in of_batch.values() if s is not None and is_known(s))
    parts = _parts(words, of_batch, 1, whole=wait.mean)
    if parts and rest > 0:
        parts.append(BatchPart("rest", "the rest of next(iterator)", rest, rest / wait.mean))
    return parts


def receiving(loader: Loader) -> tuple[float | None, float | None]:
    """Returns the seconds in which batches were unpickled, and those waited for the worker's part.

    A worker's process hands out the memory of each tensor, when its interpreter and a core let it.
    """
    took_s, cpu_s = loader.receive_s, loader.receive_cpu_s
    if took_s is None or cpu_s is None or not is_known(took_s) or not is_known(cpu_s):
        return took_s, None
    return cpu_s, max(took_s - cpu_s, 0.0)


def was_read(fetch: Fetch) -> bool:
    """Tells whether making batches read from a disk: without it nothing is to be called storage."""
    return bool(fetch.read_bytes and fetch.read_bytes > 0)


def named(parts: Iterable[BatchPart], name: str) -> BatchPart | None:
    """Returns the part of that name."""
    return next((part for part in parts if part.name == name), None)


def _words_of_reading(fetch: Fetch) -> str:
    return "reading from disk" if was_read(fetch) else "waiting for I/O"


def _words_of_sleep(fetch: Fetch) -> str:
    waits = [*_UNTOLD_WAITS]
    if fetch.reading_s is None and (fetch.read_bytes is None or was_read(fetch)):
        waits.append("disk")
    if fetch.runnable_s is None:
        waits.append("no core")
    if _others_ran(fetch):
        waits.append("other threads")
    return f"asleep ({', '.join(waits)})"


def _others_ran(fetch: Fetch) -> bool:
    """Whether threads ran meanwhile that the one which makes batches may have waited for."""
    if fetch.cpu_s is None or fetch.running_s is None or fetch.asleep_s is None:
        return False
    return fetch.cpu_s - fetch.running_s >= _OTHERS_FROM_SHARE * fetch.asleep_s > 0


def _each(total_s: float | None, count: int) -> float | None:
    return None if total_s is None or count <= 0 else total_s / count


def _parts(
    words: dict[str, str],
    seconds: dict[str, float | None],
    count: int,
    *,
    whole: float | None = None,
) -> list[BatchPart]:
    known = {name: s for name, s in seconds.items() if s is not None and is_known(s) and s >= 0}
    if count <= 0:
        return []
    total = sum(known.values()) if whole is None else whole * count
    return [
        BatchPart(name, words[name], s / count, share_of(s, total) or 0.0)
        for name, s in known.items()
    ]
