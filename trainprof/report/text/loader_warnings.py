"""What is out of the ordinary about a loader, in sentences."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any, Final

from trainprof.analysis.loading.loader_figures import unusual_samples
from trainprof.analysis.run.metadata import known
from trainprof.analysis.summary.loader import Fetch, Loader
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report.text.batch_time import making_parts, named
from trainprof.report.text.loader_words import needs_words
from trainprof.report.text.units import count, percent, seconds

# Of a batch's making, from which on it is worth a sentence.
THROTTLED_FROM_SHARE: Final = 0.05


def deaths(loader: Loader) -> list[str]:
    """Returns a sentence for each worker that died."""
    return [_lost(one) for one in loader.lost_workers if isinstance(one, Mapping)]


def faults(loader: Loader) -> list[str]:
    """Returns a sentence for each thing that is wrong whatever it costs."""
    told = [_repeating(loader), _sharing_files(loader)]
    return [*deaths(loader), *(sentence for sentence in told if sentence)]


def warnings(loader: Loader, summary: RunSummary) -> list[str]:
    """Returns a sentence for each other thing; what training does not feel is left out."""
    fetch = loader.fetch
    if fetch is None:
        return []
    throttled = _throttled(fetch) if needs_words(loader, summary) else ""
    return [sentence for sentence in (throttled, _unusual(fetch)) if sentence]


def sample_name(sample: Mapping[str, Any]) -> str:
    """Returns which sample it was: by its index, else by its place in the batch, from 1."""
    index, place = known(sample.get("index")), known(sample.get("place_in_batch"))
    if index is not None:
        return f"dataset[{index:.0f}]"
    return "unknown" if place is None else f"number {count(place + 1)} of its batch"


def ended_by(worker: Mapping[str, Any]) -> str:
    """Returns how a worker ended: "was killed by SIGKILL", "ended with status 1"."""
    number, status = known(worker.get("signal")), known(worker.get("status"))
    if number is None:
        return "died" if status is None else f"ended with status {status:.0f}"
    try:
        return f"was killed by {signal.Signals(int(number)).name}"
    except ValueError:
        return f"was killed by signal {number:.0f}"


def _lost(worker: Mapping[str, Any]) -> str:
    number, pid, at_s = (known(worker.get(key)) for key in ("worker", "pid", "at_s"))
    who = "a worker" if number is None else f"worker {number:.0f}"
    which = "" if pid is None else f" (pid {pid:.0f})"
    when = "" if at_s is None else f" {seconds(at_s)} into the run"
    return f"{who}{which} {ended_by(worker)}{when}"


def _repeating(loader: Loader) -> str:
    if not loader.repeats_samples:
        return ""
    workers = loader.num_workers
    if loader.equal_workers is not None:
        return f"{loader.equal_workers} of its {workers} workers yield the same samples"
    return (
        f"each of its {workers} workers may yield the whole IterableDataset: your code never calls "
        "get_worker_info()"
    )


def _sharing_files(loader: Loader) -> str:
    if not loader.shares_files:
        return ""
    return (
        f"the dataset holds {' and '.join(loader.open_files)} open, and its {loader.num_workers} "
        "forked workers share its place in the file, or its connection: samples may be wrong, "
        "without any error, unless each worker opens it anew"
    )


def _throttled(fetch: Fetch) -> str:
    part = named(making_parts(fetch), "throttled")
    if part is None or part.share < THROTTLED_FROM_SHARE:
        return ""
    return (
        f"the container's CPU quota stops the making of batches {percent(part.share)} of the time"
    )


def _unusual(fetch: Fetch) -> str:
    found = unusual_samples(fetch)
    if not found or not fetch.typical_sample_s:
        return ""
    worst = known(found[0].get("seconds")) or 0.0
    times = count(worst / fetch.typical_sample_s)
    more = f"; {len(found) - 1} more like it" if len(found) > 1 else ""
    name = sample_name(found[0])
    return f"the slowest sample, {name}, took {seconds(worst)}, {times} x a typical one{more}"
