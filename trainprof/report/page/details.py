"""What only the verbose page shows: distributions, facts and settings behind the short page."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, Final

from rich.text import Text

from trainprof.analysis.run.metadata import number_at
from trainprof.analysis.summary.run import Outlier, Statistics
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.analysis.timeline.ledger import LOADER_KEYS
from trainprof.report.page.sections import outlier_sentence, why_not_measured
from trainprof.report.text.layout import Column, Page
from trainprof.report.text.ledger import label_of
from trainprof.report.text.units import (
    NOT_MEASURED,
    byte_count,
    count,
    is_known,
    percent,
    seconds,
    share_of,
    three_digits,
)

# Where in a step the Python code between its parts ran, where the summary's words do not say it.
PLACES: Final = {"elsewhere": "at other places in the loop"}
_STATISTICS: Final = ("mean", "std", "min", "p50", "p90", "p95", "p99", "max")


def command_details(summary: RunSummary, page: Page) -> list[Text]:
    """The command, its environment and when it started."""
    run = summary.run
    facts = [
        f"started {run.started_at or NOT_MEASURED}",
        f"device {run.device or NOT_MEASURED}",
        f"device timing {run.device_timing}",
        *(f"{name} {version}" for name, version in run.versions.items()),
    ]
    return page.labelled("Command", [shlex.join(run.command)]) + page.labelled("", facts)


def phase_details(summary: RunSummary, page: Page) -> list[Text]:
    """Before, during and after training; the parts of `other`; data loading as a whole."""
    phases, ledger = summary.phases, summary.ledger
    loading_s = sum(ledger.seconds.get(key) or 0.0 for key in LOADER_KEYS)
    whole = percent(share_of(loading_s, ledger.wall_s))
    lines = page.labelled(
        "Phases",
        [
            f"initialization {seconds(phases.initialization_s)}",
            f"training {seconds(phases.training_s)}",
            f"finalization {seconds(phases.finalization_s)}",
            f"data loading as a whole {seconds(loading_s)} ({whole} of wall)",
        ],
    )
    places = [
        f"{PLACES.get(place, place)} {seconds(spent)}"
        for place, spent in ledger.other_by_place.items()
    ]
    return lines + (page.labelled("Other is", places) if places else [])


def step_details(summary: RunSummary, page: Page) -> list[Text]:
    """The distribution of steady steps and every outlier with what its window's samples saw."""
    step = summary.training.step_s
    lines = [] if step is None else page.labelled("Step time", _distribution(step))
    listed, every = len(summary.outliers), summary.outliers_in_all
    told = [[f"the longest {count(listed)} of {count(every)}"]] if every > listed else []
    told += [_outlier(outlier) for outlier in summary.outliers]
    for index, words in enumerate(told):
        lines += page.labelled("" if index else "Outliers", words)
    return lines


def system_details(summary: RunSummary, page: Page) -> list[Text]:
    """CPU, memory, disk, network and processes as sampled."""
    system = summary.system
    if system is None:
        return []
    lines = page.labelled("CPU", _cpu(system.cpu))
    lines += page.labelled("Memory", _memory(system.memory))
    lines += page.labelled("Per second", _rates(system.disk, system.network))
    if system.processes:
        lines += page.table(_process_columns(system.processes))
    cost = number_at(system.cost, "share_of_core")
    sampler = [
        f"{count(system.samples)} samples",
        f"every {seconds(system.interval_s)}",
        f"{NOT_MEASURED if cost is None else f'{cost * 100:.1f} %'} of one core",
    ]
    return lines + page.labelled("Sampler", sampler)


def rank_details(summary: RunSummary, page: Page) -> list[Text]:
    """Steps of each rank, and the ranks that others waited for."""
    told = [
        f"rank {rank.get('rank', '?')}: {count(number_at(rank, 'steps'))} steps, "
        f"mean {seconds(number_at(rank, 'step_s', 'mean'))}"
        for rank in summary.ranks
    ]
    late = [
        f"rank {one.get('rank', '?')} was last in {label_of(str(one.get('phase', '?')))} "
        f"in {percent(number_at(one, 'share_of_steps'))} of steps, by "
        f"{seconds(number_at(one, 'seconds'))} in all"
        for one in summary.stragglers
    ]
    lines = page.labelled("Ranks", told) if told else []
    return lines + (page.labelled("Stragglers", late) if late else [])


def training_details(summary: RunSummary, page: Page) -> list[Text]:
    """Counts behind the rates."""
    training = summary.training
    samples = NOT_MEASURED if training.samples is None else count(training.samples)
    told = [
        f"{count(training.iterations)} iterations (batches)",
        f"samples {samples}",
        f"steady steps took {seconds(training.steady_s)}",
    ]
    if training.per_step_s is None:
        told.append(f"parts of a step {why_not_measured(summary, 'training.per_step_s')}")
    return page.labelled("Training", told)


def _distribution(statistics: Statistics) -> list[str]:
    named = [f"{name} {seconds(getattr(statistics, name))}" for name in _STATISTICS]
    return [f"n {count(statistics.n)}", *named]


def _outlier(outlier: Outlier) -> list[str]:
    epoch = "" if outlier.epoch is None else f"epoch {outlier.epoch + 1}"
    samples = [f"{name} {three_digits(value)}" for name, value in (outlier.samples or {}).items()]
    return [outlier_sentence(outlier), f"{seconds(outlier.start_s)} into the run", epoch, *samples]


def _known_first(figures: Mapping[str, str]) -> list[str]:
    """Returns the figures that were measured, then the names of the others in one fragment."""
    known = [f"{name} {figure}" for name, figure in figures.items() if figure != NOT_MEASURED]
    missing = [name for name, figure in figures.items() if figure == NOT_MEASURED]
    return [*known, f"{NOT_MEASURED}: {', '.join(missing)}" if missing else ""]


def _cpu(cpu: Mapping[str, Any]) -> list[str]:
    switches = number_at(cpu, "context_switches_per_s")
    return _known_first(
        {
            "usable cores": _plain(number_at(cpu, "cores_usable")),
            "this run, in % of one core: mean": _of_hundred(number_at(cpu, "tree_percent", "mean")),
            "max": _of_hundred(number_at(cpu, "tree_percent", "max")),
            "whole host": _of_hundred(number_at(cpu, "host_percent", "mean")),
            "waiting for disks": percent(number_at(cpu, "iowait_share")),
            "some task waiting for a core": percent(number_at(cpu, "pressure_some_share")),
            "context switches a second": NOT_MEASURED if switches is None else count(switches),
        }
    )


def _memory(memory: Mapping[str, Any]) -> list[str]:
    limit = number_at(memory, "limit_bytes")
    figures = {
        "this run (RSS): mean": byte_count(number_at(memory, "tree_rss_bytes", "mean")),
        "max": byte_count(number_at(memory, "tree_rss_bytes", "max")),
        "max with shared pages once (PSS)": byte_count(number_at(memory, "tree_pss_bytes", "max")),
        "host": byte_count(number_at(memory, "host_total_bytes")),
        "free at least": byte_count(number_at(memory, "host_available_bytes", "min")),
        "swap at most": byte_count(number_at(memory, "swap_used_bytes", "max")),
    }
    return _known_first(figures | ({} if limit is None else {"limit": byte_count(limit)}))


def _rates(disk: Mapping[str, Any], network: Mapping[str, Any]) -> list[str]:
    named = (
        ("read from disk", disk, "read_bytes_per_s"),
        ("written to disk", disk, "write_bytes_per_s"),
        ("received by network", network, "received_bytes_per_s"),
        ("sent by network", network, "sent_bytes_per_s"),
    )
    return _known_first(
        {words: byte_count(number_at(rates, key, "mean")) for words, rates, key in named}
    )


def _process_columns(processes: list[dict[str, Any]]) -> list[Column]:
    cpu = [_of_hundred(number_at(one, "cpu_percent", "mean")) for one in processes]
    memory = [byte_count(number_at(one, "rss_bytes", "max")) for one in processes]
    return [
        Column(
            "Process",
            [str(one.get("name", "?")) for one in processes],
            is_number=False,
            gives_way=True,
        ),
        Column("pid", [str(one.get("pid", "?")) for one in processes], dropped=1),
        Column("role", [str(one.get("role", "?")) for one in processes], is_number=False),
        Column("CPU of one core", cpu),
        Column("memory at most", memory),
        Column("threads", [_plain(number_at(one, "threads")) for one in processes], dropped=2),
    ]


def _plain(value: float | None) -> str:
    return NOT_MEASURED if value is None or not is_known(value) else f"{value:,.6g}"


def _of_hundred(value: float | None) -> str:
    return NOT_MEASURED if value is None else f"{value:.0f} %"
