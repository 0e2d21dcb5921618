"""The machine in a summary: what was sampled of it, and how the run's memory grows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from trainprof.analysis.machine.processes import memory_growth, room_of, ticks_of
from trainprof.analysis.machine.system import system_summary
from trainprof.analysis.run.analysed import Analysed
from trainprof.analysis.run.metadata import integer, number
from trainprof.analysis.summary.device import MemoryGrowth
from trainprof.analysis.summary.run import System
from trainprof.analysis.timeline.iterations import epoch_starts

_DEFAULT_INTERVAL_S: Final = 0.5


def system_part(run: Analysed, samples: int | None) -> System | None:
    """Returns what was sampled of the machine, None without any sample.

    Args:
        run: The run.
        samples: That were trained on.
    """
    recording, window = run.recording, run.timeline.window
    not_sampled = recording.section("not_sampled").get("gpus")
    host, cores = run.host, run.host.cores
    interval = recording.section("options").get("interval_s")
    system = system_summary(
        recording.host_lines,
        recording.process_lines,
        recording.gpu_lines,
        start_ns=window.start,
        end_ns=window.end,
        main_pid=integer(recording.manifest.get("script_pid")),
        interval_s=number(interval, _DEFAULT_INTERVAL_S),
        usable_cores=cores.usable,
        physical_cores=cores.physical,
        core_numbers=cores.numbers,
        memory_limit_bytes=integer(recording.section("host").get("memory_limit_bytes")),
        trained_samples=samples,
        gpus_not_observed=not_sampled if isinstance(not_sampled, str) else None,
    )
    if system is None:
        return None
    of_ranks: dict[str, Any] = {}
    if host.recorded_on != cores.numbers:
        of_ranks["recorded_on"] = list(host.recorded_on)
    if host.ranks > 1:
        of_ranks["ranks"] = host.ranks
    if host.others_percent != 0:
        of_ranks["other_ranks_percent"] = host.others_percent
    return replace(system, cpu=system.cpu | of_ranks) if of_ranks else system


def growth_part(run: Analysed, warmup: int, system: System | None) -> MemoryGrowth | None:
    """Returns how the training process grows after some steps of warm-up; None if it does not."""
    if system is None:
        return None
    return memory_growth(
        ticks_of(run.recording.process_lines),
        run.process.pid,
        run.timeline.steps.ends,
        warmup,
        room_of(system.memory, system.last_sample),
        epoch_starts(run.timeline.loaders),
    )
