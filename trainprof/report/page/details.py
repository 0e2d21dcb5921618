"""Details of the verbose page: the command, distributions, processes, ranks."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, Final

from rich.text import Text

from trainprof.analysis.summary.levels import number_at
from trainprof.analysis.summary.run import LOADER_KEYS, Outlier
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report.page.sections import outlier_sentence, why_not_measured
from trainprof.report.text.layout import Column, Page
from trainprof.report.text.ledger import label_of
from trainprof.report.text.units import (
    NOT_MEASURED,
    byte_count,
    count,
    is_known,
    known_first,
    percent,
    seconds,
    share_of,
    three_digits,
    whole_percent,
)

# Where in a step the Python code between its parts ran, where the summary's words do not say it.
_PLACES: Final = {"elsewhere": "at other places in the loop"}
_STATISTICS: Final = ("mean", "std", "min", "p50", "p90", "p95", "p99", "max")


def command_details(summary: RunSummary, page: Page) -> list[Text]:
    """The command, its environment and when it started."""
    run = summary.run
    environment = [
        f"started {run.started_at or NOT_MEASURED}",
        f"device {run.device or NOT_MEASURED}",
        f"device timing {run.device_timing}",
        *(f"{name} {version}" for name, version in run.versions.items()),
    ]
    return page.labelled("Command", [shlex.join(run.command)]) + page.labelled("", environment)


def phase_details(summary: RunSummary, page: Page) -> list[Text]:
    """Before, during and after training; where Python ran; data loading as a whole."""
    phases, ledger = summary.phases, summary.ledger
    loading_s = sum(ledger.seconds.get(key) or 0.0 for key in LOADER_KEYS)
    whole = percent(share_of(loading_s, ledger.wall_s))
    parts = [
        f"initialization {seconds(phases.initialization_s)}",
        f"training {seconds(phases.training_s)}",
        f"finalization {seconds(phases.finalization_s)}",
        f"data loading {seconds(loading_s)} ({whole} of the run)",
    ]
    spent = ledger.other_by_place
    places = [f"{_PLACES.get(place, place)} {seconds(s)}" for place, s in spent.items()]
    return page.labelled("Phases", parts) + page.labelled("Python", places)


def step_time(summary: RunSummary, page: Page) -> list[Text]:
    """The distribution of steady steps."""
    step, named = summary.training.step_s, []
    if step is not None:
        named = [f"{name} {seconds(getattr(step, name))}" for name in _STATISTICS]
        named.insert(0, f"n {count(step.n)}")
    return page.labelled("Step time", named)


def step_details(summary: RunSummary, page: Page) -> list[Text]:
    """The distribution of steady steps and every outlier with its system samples."""
    listed, every = len(summary.outliers), summary.outliers_in_all
    outliers = [[f"the longest {count(listed)} of {count(every)}"]] if every > listed else []
    outliers += [_outlier(outlier) for outlier in summary.outliers]
    return step_time(summary, page) + page.labelled_rows("Outliers", outliers)


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
    ranks = [
        f"rank {rank.get('rank', '?')}: {count(number_at(rank, 'steps'))} steps, "
        f"mean {seconds(number_at(rank, 'step_s', 'mean'))}"
        for rank in summary.ranks
    ]
    return page.labelled("Ranks", ranks) + stragglers(summary, page)


def stragglers(summary: RunSummary, page: Page) -> list[Text]:
    """The ranks that others waited for."""
    late = [
        f"rank {rank.get('rank', '?')} was last in {label_of(str(rank.get('phase', '?')))} "
        f"in {percent(number_at(rank, 'share_of_steps'))} of steps, by "
        f"{seconds(number_at(rank, 'seconds'))} in all"
        for rank in summary.stragglers
    ]
    return page.labelled("Stragglers", late)


def training_details(summary: RunSummary, page: Page) -> list[Text]:
    """Counts behind the rates."""
    training = summary.training
    fragments = [
        f"{count(training.iterations)} iterations (batches)",
        f"samples {count(training.samples)}",
        f"steady steps took {seconds(training.steady_s)}",
    ]
    if training.per_step_s is None:
        fragments.append(f"parts of a step {why_not_measured(summary, 'training.per_step_s')}")
    return page.labelled("Training", fragments)


def _outlier(outlier: Outlier) -> list[str]:
    epoch = "" if outlier.epoch is None else f"epoch {outlier.epoch + 1}"
    samples = [f"{name} {three_digits(value)}" for name, value in (outlier.samples or {}).items()]
    return [outlier_sentence(outlier), f"{seconds(outlier.start_s)} into the run", epoch, *samples]


def _cpu(cpu: Mapping[str, Any]) -> list[str]:
    return known_first(
        {
            "usable cores": _plain(number_at(cpu, "cores_usable")),
            "this run, in % of one core: mean": whole_percent(
                number_at(cpu, "tree_percent", "mean")
            ),
            "max": whole_percent(number_at(cpu, "tree_percent", "max")),
            "whole host": whole_percent(number_at(cpu, "host_percent", "mean")),
            "I/O wait": percent(number_at(cpu, "iowait_share")),
            "some task waiting for a CPU core": percent(number_at(cpu, "pressure_some_share")),
            "context switches a second": count(number_at(cpu, "context_switches_per_s")),
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
    return known_first(figures | ({} if limit is None else {"limit": byte_count(limit)}))


def _rates(disk: Mapping[str, Any], network: Mapping[str, Any]) -> list[str]:
    named = (
        ("read from disk", disk, "read_bytes_per_s"),
        ("written to disk", disk, "write_bytes_per_s"),
        ("received by network", network, "received_bytes_per_s"),
        ("sent by network", network, "sent_bytes_per_s"),
    )
    return known_first(
        {words: byte_count(number_at(rates, key, "mean")) for words, rates, key in named}
    )


def _process_columns(processes: list[dict[str, Any]]) -> list[Column]:
    names, pids, roles = (
        [str(process.get(key, "?")) for process in processes] for key in ("name", "pid", "role")
    )
    cpu = [whole_percent(number_at(process, "cpu_percent", "mean")) for process in processes]
    return [
        Column("Process", names, is_number=False, gives_way=True),
        Column("pid", pids, dropped=1),
        Column("role", roles, is_number=False),
        Column("CPU of one core", cpu),
        Column("memory at most", [byte_count(number_at(x, "rss_bytes", "max")) for x in processes]),
        Column("threads", [_plain(number_at(x, "threads")) for x in processes], dropped=2),
    ]


def _plain(value: float | None) -> str:
    return f"{value:,.6g}" if is_known(value) else NOT_MEASURED
