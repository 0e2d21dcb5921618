"""A loader's facts and tables, as they are written in the terminal and in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from trainprof.analysis.loading.loader_figures import worker_totals
from trainprof.analysis.summary.levels import known
from trainprof.analysis.summary.loader import Fetch, Loader
from trainprof.analysis.summary.run import Statistics
from trainprof.report.text.batch_time import BatchGroup, code_parts, making_parts, waiting_parts
from trainprof.report.text.layout import Column
from trainprof.report.text.loader_words import ready_words, sample_name
from trainprof.report.text.units import (
    NOT_MEASURED,
    byte_count,
    count,
    counted,
    known_first,
    percent,
    seconds,
)

# What the columns of seconds in the workers' table mean.
LEGEND: Final = (
    "running on a core; queued for a free core; stopped by the CPU quota; waiting for I/O; asleep "
    "(sleep, lock, network, and what the kernel does not tell apart); busy: of the time it could "
    "have been asked"
)
_NONE: Final = "-"
# Of the slowest sample: one that takes less is not worth a table.
_SAMPLES_TOLD_S: Final = 1e-3


def facts(loader: Loader) -> list[str]:
    """Returns what the loader is: its class, its data set, its settings."""
    settings = {
        "dataset": loader.dataset,
        "batches in a pass": loader.length,
        "batch size": loader.batch_size,
        "workers": loader.num_workers,
        "started by": loader.start_method,
        "prefetch factor": loader.prefetch_factor,
        "persistent workers": loader.persistent_workers,
        "pinned memory": loader.pin_memory,
    }
    needs_workers = ("started by", "prefetch factor", "persistent workers")
    shown = {
        name: _plain(value)
        for name, value in settings.items()
        if loader.num_workers or name not in needs_workers
    }
    return [
        loader.kind,
        f"built by {loader.built_by}" if loader.built_by else "",
        f"used for {loader.role}",
        *known_first(shown),
        "" if loader.thread == "training" else f"consumed by thread {loader.thread}",
    ]


def totals(loader: Loader) -> list[str]:
    """Returns what it did over the run: passes, batches, and what they took of training."""
    return [
        f"initialised {counted(loader.passes, 'time')}",
        f"{counted(loader.iterations, 'batch', 'batches')} taken",
        f"waits after the first batch {seconds(loader.wait_total_s)}",
        f"ends of passes {seconds(loader.end_s)}",
        f"pin thread {seconds(loader.pin_s)}" if loader.pin_s is not None else "",
        ready_words(loader),
    ]


def making(fetch: Fetch) -> list[str]:
    """Returns what making its batches took besides time."""
    figures = {
        "samples": count(fetch.samples),
        "tensors and arrays of a batch": byte_count(fetch.batch_bytes),
        "typical sample": seconds(fetch.typical_sample_s),
        "CPU time of all threads": seconds(fetch.cpu_s),
        "read from disk": byte_count(fetch.read_bytes),
        "page faults that read": count(fetch.major_faults),
    }
    measured = f"{count(fetch.measured)} of {counted(fetch.n, 'fetch', 'fetches')} measured closely"
    return [*known_first(figures), measured]


def distributions(loader: Loader) -> list[Column]:
    """Returns how long each kind of call took: median, tail and longest."""
    series: dict[str, Statistics | None] = {
        "making an iterator": loader.init_s,
        "first batch of a pass": loader.first_batch_s,
        "next(iterator), later ones": loader.wait_s,
        "making a batch": loader.fetch.wall_s if loader.fetch else None,
    }
    shown = {name: statistics for name, statistics in series.items() if statistics is not None}
    if not shown:
        return []
    rows = list(shown.values())
    return [
        Column("How long", list(shown), is_number=False, gives_way=True),
        Column("n", [count(row.n) for row in rows], dropped=2),
        Column("mean", [seconds(row.mean) for row in rows], dropped=3),
        Column("p50", [seconds(row.p50) for row in rows]),
        Column("p95", [seconds(row.p95) for row in rows], dropped=4),
        Column("p99", [seconds(row.p99) for row in rows], dropped=1),
        Column("max", [seconds(row.max) for row in rows], dropped=5),
    ]


def batch_groups(loader: Loader) -> list[BatchGroup]:
    """Returns where a batch's time goes: making it, by state and by code, and having it."""
    who = "the training process" if loader.num_workers == 0 else "a worker"
    groups = [BatchGroup("training waits for it", waiting_parts(loader))]
    if loader.fetch is None:
        return groups
    return [
        BatchGroup(f"made by {who}", making_parts(loader.fetch)),
        BatchGroup("by whose code", code_parts(loader.fetch)),
        *groups,
    ]


def worker_columns(loader: Loader) -> list[Column]:
    """Returns who made the batches, and what they did meanwhile; no column without a figure."""
    rows = worker_totals(loader.fetch.per_worker) if loader.fetch else []
    if not rows:
        return []

    def figures(name: str, written: Callable[[float | None], str]) -> list[str]:
        return [_or_none(written(row.figures[name])) for row in rows]

    columns = [
        Column("batches", figures("n", count)),
        Column("busy", [_or_none(percent(row.busy_share)) for row in rows]),
        Column("a batch", [_or_none(seconds(row.mean_s)) for row in rows]),
        Column("running", figures("running_s", seconds), dropped=6),
        Column("queued", figures("runnable_s", seconds), dropped=5),
        Column("stopped", figures("throttled_s", seconds), dropped=2),
        Column("I/O", figures("reading_s", seconds), dropped=3),
        Column("asleep", figures("asleep_s", seconds), dropped=4),
        Column("RSS", figures("rss_bytes", byte_count), dropped=1),
    ]
    who = Column("Worker", [_worker(row.number) for row in rows], is_number=False)
    return [who, *(column for column in columns if set(column.cells) != {_NONE})]


def slow_sample_columns(fetch: Fetch) -> list[Column]:
    """Returns the samples that took longest, slowest first; none where all of them are quick."""
    samples = [sample for sample in fetch.slow_samples if isinstance(sample, Mapping)]
    typical = known(fetch.typical_sample_s)
    took = [known(sample.get("seconds")) for sample in samples]
    if max((s for s in took if s is not None), default=0.0) < _SAMPLES_TOLD_S:
        return []
    return [
        Column("Sample", [sample_name(sample) for sample in samples], is_number=False),
        Column("took", [seconds(value_s) for value_s in took]),
        Column("x typical", [_times(value_s, typical) for value_s in took]),
        Column("worker", [_worker(known(sample.get("worker"))) for sample in samples], dropped=3),
        Column("pid", [_whole(known(sample.get("pid"))) for sample in samples], dropped=1),
        Column(
            "into the run", [seconds(known(sample.get("at_s"))) for sample in samples], dropped=2
        ),
    ]


def _plain(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {True: "yes", False: "no", None: NOT_MEASURED}[value]
    return count(value) if isinstance(value, int) else str(value)


def _or_none(written: str) -> str:
    return _NONE if written == NOT_MEASURED else written


def _worker(number: float | None) -> str:
    return "main" if number is None else f"{number:.0f}"


def _whole(value: float | None) -> str:
    return _NONE if value is None else f"{value:.0f}"


def _times(took: float | None, typical: float | None) -> str:
    if took is None or typical is None or typical <= 0:
        return _NONE
    return f"{took / typical:,.1f}"
