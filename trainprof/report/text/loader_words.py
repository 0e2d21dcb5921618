"""A loader in words and tables: who prepares its batches, what bounds it, what is unusual."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from trainprof.analysis.summary.levels import known, number_at
from trainprof.analysis.summary.loader import (
    BLOCKED,
    COMPUTE,
    CPU,
    LATENCY,
    MAIN_PROCESS,
    RECEIVE,
    SAMPLER,
    STORAGE,
    Fetch,
    Loader,
    LoaderBound,
    cost_s,
    unusual_samples,
    worker_totals,
)
from trainprof.analysis.summary.run import Statistics
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report.text.batch_time import (
    BatchGroup,
    code_parts,
    making_parts,
    named,
    waiting_parts,
    was_read,
)
from trainprof.report.text.layout import Column
from trainprof.report.text.units import (
    NOT_MEASURED,
    byte_count,
    count,
    counted,
    known_first,
    percent,
    seconds,
    share_of,
    signal_name,
)

# A loader that costs less of training needs no words: XProf's "moderately input bound".
MATTERS_FROM_SHARE: Final = 0.05
# Of a step: below, a loader is not said to add to it.
_ADDS_FROM_SHARE: Final = 0.05
_PARTS: Final = {
    RECEIVE: "IPC transfer of batches",
    SAMPLER: "drawing indices",
    BLOCKED: "waiting for batches",
}

UNKNOWN_LIMIT: Final = "unknown: too few batches, or a pace that the pipeline model cannot explain"
# Of batch preparation, from which on it is worth a sentence.
_THROTTLED_FROM_SHARE: Final = 0.05
# What the columns of seconds in the workers' table mean.
LEGEND: Final = (
    "running on a core; runnable: waiting for a CPU core; stopped by the CPU quota; waiting for "
    "I/O; asleep (sleep, lock, network); busy: share of the time in which it had work"
)
_NONE: Final = "-"
# Of the slowest sample: one that takes less is not worth a table.
_SAMPLES_FROM_S: Final = 1e-3


def needs_words(loader: Loader, summary: RunSummary) -> bool:
    """Whether training spends enough on a loader that it has to be explained."""
    if loader.thread == "other":
        return False
    if loader.lost_workers or loader.repeats_samples or loader.shares_files:
        return True
    share = share_of(cost_s(loader), summary.phases.training_s)
    return share is not None and share >= MATTERS_FROM_SHARE


def makers(loader: Loader) -> str:
    """Returns who prepares batches and how long it takes: "4 workers, 3.00 ms a batch each"."""
    workers, wall_s = loader.num_workers, loader.fetch.wall_s if loader.fetch else None
    took = seconds(wall_s.mean if wall_s else None)
    who = "main process, " if workers == 0 else f"{counted(workers, 'worker')}, " if workers else ""
    each = " each" if (workers or 0) > 1 else ""
    return f"{who}a batch {took}" if took == NOT_MEASURED else f"{who}{took} a batch{each}"


def ready_words(loader: Loader) -> str:
    """Returns how often the batch was there when it was asked for; "" where that is not known."""
    share = percent(loader.ready_share)
    return "" if share == NOT_MEASURED else f"the batch was there in {share} of cases"


def limit_words(loader: Loader, summary: RunSummary) -> str:
    """Returns what limits a loader by the pipeline model; "" where that is unknown."""
    bound, fetch = loader.bound, loader.fetch
    if bound is None:
        return ""
    if bound.by == LATENCY:
        return _of_latency(loader, bound)
    if bound.by == CPU:
        cores = number_at(summary.system.cpu if summary.system else None, "cores_usable")
        which = "the cores are" if cores is None else f"all {cores:.3g} cores are"
        return f"{which} busy"
    if bound.by == STORAGE and fetch is not None and was_read(fetch):
        each = fetch.read_bytes / fetch.n if fetch.read_bytes and fetch.n > 0 else None
        return f"reading from disk, {byte_count(each)} a batch"
    if bound.by == RECEIVE:
        size = byte_count(fetch.batch_bytes if fetch else None)
        size_note = "" if size == NOT_MEASURED else f" of {size}"
        took = seconds(bound.parts_s.get(RECEIVE))
        return f"IPC transfer of a batch{size_note} from its worker, {took} each"
    if bound.by == SAMPLER:
        took = seconds(bound.parts_s.get(SAMPLER))
        return f"drawing the indices of a batch, {took} each, in the training process"
    return _of_computing(loader, bound) if bound.by == COMPUTE else ""


def _of_latency(loader: Loader, bound: LoaderBound) -> str:
    if not loader.num_workers:
        return "the training process prepares batches itself, between the steps"
    who = counted(loader.num_workers, "worker")
    limit = f"{who}: a batch per {seconds(bound.limits_s.get(LATENCY))}"
    if MAIN_PROCESS in bound.limits_s:
        limit += f", training takes one per {seconds(bound.limits_s[MAIN_PROCESS])}"
    return limit


def _of_computing(loader: Loader, bound: LoaderBound) -> str:
    parts = {name: s for name, s in bound.parts_s.items() if name != COMPUTE and s > 0}
    computing, added = bound.parts_s.get(COMPUTE), sum(parts.values())
    if not loader.num_workers:
        return f"computing; batch preparation adds {seconds(added)} of {seconds(bound.step_s)}"
    words = f"computing, {seconds(computing)} a batch"
    if not parts or computing is None or added < _ADDS_FROM_SHARE * (computing + added):
        return f"{words}; the loader keeps up once its buffer is filled"
    most = max(parts, key=lambda name: parts[name])
    return f"{words}; loading adds {seconds(added)} ({_PARTS.get(most, most)})"


def faults(loader: Loader, reported: Collection[str] = ()) -> list[str]:
    """Returns what is wrong whatever it costs, but for what a reported finding says."""
    died = [_died(worker) for worker in loader.lost_workers if isinstance(worker, Mapping)]
    repeating = "" if "duplicated_stream" in reported else _repeating(loader)
    return [*died, *filter(None, (repeating, _sharing_files(loader)))]


def warnings(loader: Loader, summary: RunSummary) -> list[str]:
    """Returns a sentence for each other thing; what training does not feel is left out."""
    fetch = loader.fetch
    if fetch is None:
        return []
    throttled = _throttled(fetch) if needs_words(loader, summary) else ""
    return [*filter(None, (throttled, _unusual(fetch)))]


def sample_name(sample: Mapping[str, Any]) -> str:
    """Returns which sample it was: by its index, else by its place in the batch, from 1."""
    index, place = known(sample.get("index")), known(sample.get("place_in_batch"))
    if index is not None:
        return f"dataset[{index:.0f}]"
    return "unknown" if place is None else f"number {count(place + 1)} of its batch"


def ended_by(worker: Mapping[str, Any]) -> str:
    """Returns how a worker ended: "was killed by SIGKILL", "ended with status 1"."""
    number, status = known(worker.get("signal")), known(worker.get("status"))
    if number is not None:
        return f"was killed by {signal_name(int(number))}"
    return "died" if status is None else f"ended with status {status:.0f}"


def _died(worker: Mapping[str, Any]) -> str:
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
        return f"{loader.equal_workers} of {workers} workers yield the same samples"
    return (
        f"each of {workers} workers may yield the whole IterableDataset: your code never calls "
        "get_worker_info()"
    )


def _sharing_files(loader: Loader) -> str:
    if not loader.shares_files:
        return ""
    return (
        f"the dataset keeps {' and '.join(loader.open_files)} open. {loader.num_workers} forked "
        "workers share its file offset and can silently read wrong samples: open it in "
        "__getitem__"
    )


def _throttled(fetch: Fetch) -> str:
    part = named(making_parts(fetch), "throttled")
    if part is None or part.share < _THROTTLED_FROM_SHARE:
        return ""
    return f"the CPU quota stops batch preparation {percent(part.share)} of the time"


def _unusual(fetch: Fetch) -> str:
    samples = unusual_samples(fetch)
    if not samples or not fetch.typical_sample_s:
        return ""
    worst = known(samples[0].get("seconds")) or 0.0
    times = count(worst / fetch.typical_sample_s)
    more = f"; {len(samples) - 1} more like it" if len(samples) > 1 else ""
    name = sample_name(samples[0])
    return f"the slowest sample, {name}, took {seconds(worst)}, {times}x the typical sample{more}"


def configuration(loader: Loader) -> list[str]:
    """Returns what the loader is: its class, its data set, its settings."""
    settings = {
        "dataset": loader.dataset,
        "batches an epoch": loader.length,
        "batch size": loader.batch_size,
        "workers": loader.num_workers,
        "start method": loader.start_method,
        "prefetch factor": loader.prefetch_factor,
        "persistent workers": loader.persistent_workers,
        "pinned memory": loader.pin_memory,
    }
    needs_workers = ("start method", "prefetch factor", "persistent workers")
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
    """Returns what it did over the run: iterators, batches, and what they took of training."""
    return [
        f"{counted(loader.starts, 'iterator')} created",
        f"{counted(loader.iterations, 'batch', 'batches')} taken",
        f"waits after the first batch {seconds(loader.wait_total_s)}",
        f"ends of epochs {seconds(loader.end_s)}",
        f"pin thread {seconds(loader.pin_s)}" if loader.pin_s is not None else "",
        ready_words(loader),
    ]


def making(fetch: Fetch) -> list[str]:
    """Returns what preparing its batches took besides time."""
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
        "creating the iterator": loader.init_s,
        "first batch": loader.first_batch_s,
        "later batches": loader.wait_s,
        "preparing a batch": loader.fetch.wall_s if loader.fetch else None,
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
    """Returns where a batch's time goes: preparation by state and by code, and the wait for it."""
    who = "the training process" if loader.num_workers == 0 else "a worker"
    of_all = " (all batches)" if loader.num_workers == 0 else ""
    groups = [BatchGroup(f"training waits for it{of_all}", waiting_parts(loader))]
    if loader.fetch is None:
        return groups
    return [
        BatchGroup(f"prepared by {who}", making_parts(loader.fetch)),
        BatchGroup("by code", code_parts(loader.fetch)),
        *groups,
    ]


def worker_columns(loader: Loader) -> list[Column]:
    """Returns what each worker did while it prepared batches; no column without a figure."""
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
        Column("runnable", figures("runnable_s", seconds), dropped=5),
        Column("stopped", figures("throttled_s", seconds), dropped=2),
        Column("I/O", figures("reading_s", seconds), dropped=3),
        Column("asleep", figures("asleep_s", seconds), dropped=4),
        Column("RSS", figures("rss_bytes", byte_count), dropped=1),
    ]
    who = Column("Worker", [_worker(row.number) for row in rows], is_number=False)
    return [who, *(column for column in columns if set(column.cells) != {_NONE})]


def slow_sample_columns(fetch: Fetch) -> list[Column]:
    """Returns the samples that took longest, slowest first; none where all are fast."""
    samples = [sample for sample in fetch.slow_samples if isinstance(sample, Mapping)]
    typical = known(fetch.typical_sample_s)
    took = [known(sample.get("seconds")) for sample in samples]
    if max((s for s in took if s is not None), default=0.0) < _SAMPLES_FROM_S:
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
