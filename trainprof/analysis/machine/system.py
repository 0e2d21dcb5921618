"""The machine over the run and inside short windows, from the sampler's raw lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from trainprof.analysis.machine.gpus import energy_of, gpus_of
from trainprof.analysis.machine.processes import (
    Tick,
    last_sample,
    processes_of,
    tick_times,
    ticks_of,
    tree_percent,
)
from trainprof.analysis.run.metadata import integer
from trainprof.analysis.statistics.time_weighted import (
    NS_PER_S,
    Floats,
    Line,
    Spans,
    Window,
    column,
    field_column,
    gauge,
    gauge_statistics,
    lines_around,
    rates,
    spans_between,
    statistics,
    times_of,
)
from trainprof.analysis.summary.run import System
from trainprof.record.notes import known

if TYPE_CHECKING:
    from trainprof.analysis.machine.cores import HostPart
    from trainprof.analysis.run.recording import Recording

_DEFAULT_INTERVAL_S: Final = 0.5
_US_PER_S: Final = 1_000_000
# Samples whose spans lie mostly outside a window are not used for it.
_MIN_WINDOW_SHARE: Final = 0.5
_IDLE_MODES: Final = ("idle_ns", "iowait_ns")


def system_of(
    recording: Recording, host: HostPart, span: tuple[int, int], samples: int | None
) -> System | None:
    """Returns the machine over the run's span, ns, or None when nothing was sampled.

    Each {stat} is {mean, min, max, p5, p50, p95, p99}, or None where nothing was observed.

    Args:
        samples: Training samples.
    """
    host_lines, gpu_lines, window = recording.host_lines, recording.gpu_lines, Window(*span)
    if not (host_lines or recording.process_lines or gpu_lines):
        return None
    ticks = ticks_of(recording.process_lines)
    main_pid = integer(recording.manifest.get("script_pid"))
    interval_s = known(recording.section("options").get("interval_s"))
    limit_bytes = integer(recording.section("host").get("memory_limit_bytes"))
    gpus = gpus_of(gpu_lines, window, pids_of(ticks, main_pid) if gpu_lines else ())
    not_sampled = recording.section("not_sampled").get("gpus")
    return System(
        interval_s=_DEFAULT_INTERVAL_S if interval_s is None else float(interval_s),
        samples=len(host_lines),
        cpu=_cpu(host_lines, ticks, window, host),
        memory=_memory(host_lines, ticks, window, limit_bytes),
        disk={
            **_byte_rates(host_lines, "disk", ("read", "write"), window),
            "pressure_some_share": _share_of_time(host_lines, window, "pressure", "io", "some_us"),
        },
        network=_byte_rates(host_lines, "network", ("received", "sent"), window),
        processes=processes_of(ticks, window, main_pid),
        gpus=gpus,
        cost=_cost(host_lines),
        last_sample=last_sample(host_lines, ticks, window, main_pid),
        energy=energy_of(gpus, samples),
        gpus_not_observed=not_sampled if isinstance(not_sampled, str) else None,
    )


def samples_between(
    host_lines: Sequence[Line], process_lines: Sequence[Line], start_ns: int, end_ns: int
) -> dict[str, float] | None:
    """Returns the machine's means inside a short window; None where unknown.

    In host_cpu_percent 100 is all cores, in tree_cpu_percent one. A window is unknown if its
    samples cover mostly the time around it.
    """
    window = Window(start_ns, end_ns)
    host = lines_around(host_lines, window)
    ticks = ticks_of(lines_around(process_lines, window))
    busy, iowait = _cpu_shares(host, window)
    series = {
        "host_cpu_percent": busy,
        "tree_cpu_percent": tree_percent(ticks, window),
        "iowait_share": iowait,
        "disk_read_bytes_per_s": _host_rates(host, window, "disk_read_bytes"),
        "tree_rss_bytes": _tree_rss_between(ticks, window),
    }
    means = {
        name: mean
        for name, spans in series.items()
        if (mean := spans.mean) is not None and (spans.share_inside or 0) >= _MIN_WINDOW_SHARE
    }
    return means or None


def _cpu(
    host_lines: Sequence[Line], ticks: list[Tick], window: Window, host: HostPart
) -> dict[str, Any]:
    busy, iowait = _cpu_shares(host_lines, window)
    cpu: dict[str, Any] = {
        "cores_usable": host.cores.usable,
        "host_percent": statistics(busy),
        "tree_percent": statistics(tree_percent(ticks, window)),
        "per_core_percent": _per_core_percent(host_lines, window),
        "iowait_share": iowait.mean,
        "pressure_some_share": _share_of_time(host_lines, window, "pressure", "cpu", "some_us"),
        "stolen_share": _stolen_share(host_lines, window),
        "throttled_share": _share_of_time(host_lines, window, "throttled_us"),
        "cpu_mhz": _host_gauge(host_lines, "cpu_mhz", window),
        "context_switches_per_s": _host_rates(host_lines, window, "context_switches").mean,
        "cores_physical": host.cores.physical,
        "core_numbers": list(host.cores.numbers) or None,
    }
    if host.recorded_on != host.cores.numbers:
        cpu["recorded_on"] = list(host.recorded_on)
    is_alone = host.ranks == 1 and host.recorded_on == host.cores.numbers
    if is_alone and 0 < len(host.cores.numbers) < host.launched_on:
        cpu["cores_launched_on"] = host.launched_on
    if host.ranks > 1:
        cpu["ranks"] = host.ranks
    if host.others_percent != 0:
        cpu["other_ranks_percent"] = host.others_percent
    return cpu


def _memory(
    host_lines: Sequence[Line],
    ticks: list[Tick],
    window: Window,
    memory_limit_bytes: int | None,
) -> dict[str, Any]:
    # PSS is read far less often than the rest: a sample without it does not end a span.
    with_pss = [tick for tick in ticks if tick.pss_bytes is not None]
    # It is read every 10 s: the single reading at the start of a short run is not used.
    with_pss = with_pss if len(with_pss) > 1 else []
    return {
        "host_total_bytes": _last(host_lines, "memory_total_bytes"),
        "host_available_bytes": _host_gauge(host_lines, "memory_available_bytes", window),
        "tree_rss_bytes": _tree_gauge(ticks, column(tick.rss_bytes for tick in ticks), window),
        "tree_pss_bytes": _tree_gauge(
            with_pss, column(tick.pss_bytes for tick in with_pss), window
        ),
        "swap_used_bytes": _host_gauge(host_lines, "swap_used_bytes", window),
        "shm_used_bytes": _host_gauge(host_lines, "shm_used_bytes", window),
        "shm_total_bytes": _last(host_lines, "shm_total_bytes"),
        "limit_bytes": memory_limit_bytes,
        "pressure_some_share": _share_of_time(host_lines, window, "pressure", "memory", "some_us"),
    }


def _last(host_lines: Sequence[Line], name: str) -> float | None:
    """Returns the last sample's value that is not 0."""
    values = (known(line.get(name)) for line in reversed(host_lines))
    return next((value for value in values if value), None)


def _host_gauge(host_lines: Sequence[Line], name: str, window: Window) -> dict[str, float] | None:
    values, times_ns = field_column(host_lines, name), times_of(host_lines)
    return gauge_statistics(values, times_ns, window, since_ns=window.start_ns)


def _tree_gauge(ticks: list[Tick], values: Floats, window: Window) -> dict[str, float] | None:
    return gauge_statistics(values, tick_times(ticks), window, since_ns=window.start_ns)


def _tree_rss_between(ticks: list[Tick], window: Window) -> Spans:
    """Returns the tree's memory in spans between two samples alone."""
    times_ns = tick_times(ticks)
    since_ns = int(times_ns[0]) if ticks else window.start_ns
    return gauge(column(tick.rss_bytes for tick in ticks), times_ns, window, since_ns=since_ns)


def _host_rates(host_lines: Sequence[Line], window: Window, *names: str) -> Spans:
    return rates(field_column(host_lines, *names), times_of(host_lines), window)


def _byte_rates(
    host_lines: Sequence[Line], what: str, directions: tuple[str, ...], window: Window
) -> dict[str, Any]:
    return {
        f"{direction}_bytes_per_s": statistics(
            _host_rates(host_lines, window, f"{what}_{direction}_bytes")
        )
        for direction in directions
    }


def pids_of(ticks: list[Tick], main_pid: int | None) -> set[int]:
    pids = {pid for tick in ticks for pid, _ in tick.processes}
    return pids if main_pid is None else {*pids, main_pid}


def _cost(host_lines: Sequence[Line]) -> dict[str, Any]:
    """Returns the sampler's own CPU time per second, from its first sample to its last."""
    samples = [
        (line["t_ns"], cpu_ns)
        for line in host_lines
        if (cpu_ns := known(line.get("sampler_cpu_ns"))) is not None
    ]
    share = None
    if samples and samples[-1][0] > samples[0][0]:
        share = (samples[-1][1] - samples[0][1]) / (samples[-1][0] - samples[0][0])
    return {"share_of_core": share, "samples": len(host_lines)}


def _cpu_shares(host_lines: Sequence[Line], window: Window) -> tuple[Spans, Spans]:
    """Returns busy percent, 100 = all cores, and the share of waiting for I/O.

    Both are shares of the kernel's total, so its ticks may differ from the clock.
    """
    modes = [_cpu_times(line) for line in host_lines]
    # The kernel's iowait may step back by a tick.
    busy, iowait, idle = (
        np.maximum(np.diff(column(None if times is None else times[mode] for times in modes)), 0)
        for mode in range(3)
    )
    total = busy + iowait + idle
    total[~(total > 0)] = np.nan
    times_ns = times_of(host_lines)
    return (
        spans_between(100 * busy / total, times_ns, window),
        spans_between(iowait / total, times_ns, window),
    )


def cpu_busy_ns(host_lines: Sequence[Line]) -> Floats:
    """Returns the busy time of all cores together since boot, ns, of each line."""
    times = map(_cpu_times, host_lines)
    return column(None if modes is None else modes[0] for modes in times)


def _cpu_times(line: Line) -> tuple[float, float, float] | None:
    """Returns (busy, waiting for I/O, idle) since boot in ns, or None where not recorded."""
    modes = line.get("cpu")
    if not isinstance(modes, dict):
        return None
    times = {mode: known(ns) for mode, ns in modes.items()}
    idle = times.get("idle_ns")
    busy = [ns for mode, ns in times.items() if mode not in _IDLE_MODES]
    if idle is None or not busy or any(ns is None for ns in busy):
        return None
    return sum(ns for ns in busy if ns is not None), times.get("iowait_ns") or 0.0, idle


def _per_core_percent(host_lines: Sequence[Line], window: Window) -> list[float | None]:
    """Returns each core's mean over the run, from its first and last sample inside."""
    inside = lines_around(host_lines, window)
    cores = max((len(cores_busy(line)) for line in inside), default=0)
    return [_core_percent(inside, core) for core in range(cores)]


def _core_percent(lines: Sequence[Line], core: int) -> float | None:
    times = [
        (line["t_ns"], busy_ns)
        for line in lines
        for busy_ns in map(known, cores_busy(line)[core : core + 1])
        if busy_ns is not None
    ]
    if len(times) < 2:
        return None
    span_ns, used_ns = (last - first for first, last in zip(times[0], times[-1], strict=True))
    if used_ns < 0 or span_ns <= 0:
        return None
    # Ticks of 10 ms may add up to a little more than the time.
    return float(min(100.0, 100 * used_ns / span_ns))


def cores_busy(line: Line) -> list[Any]:
    """Returns each core's busy time since boot, ns, as it is in the line."""
    cores = line.get("cores_busy_ns")
    return cores if isinstance(cores, list) else []


def _stolen_share(host_lines: Sequence[Line], window: Window) -> float | None:
    """Returns the share of all cores' time that other virtual machines had (Linux steal time)."""
    cores = max((len(cores_busy(line)) for line in host_lines), default=0)
    ns_per_s = _host_rates(host_lines, window, "cpu", "steal_ns").mean
    return None if ns_per_s is None or not cores else ns_per_s / NS_PER_S / cores


def _share_of_time(host_lines: Sequence[Line], window: Window, *names: str) -> float | None:
    """Returns the share of a counter of microseconds: throttled by a quota, or stalled (PSI)."""
    us_per_s = _host_rates(host_lines, window, *names).mean
    return None if us_per_s is None else us_per_s / _US_PER_S
