"""What makes a run's figures doubtful, and what is wrong whatever it costs."""

from __future__ import annotations

from typing import Final

from trainprof.analysis.summary.code import UnsharedData
from trainprof.analysis.summary.levels import MANY_STEPS, MODERATE_SHARE, number_at, sentence
from trainprof.analysis.summary.run import COSTLY_RECORDING
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report.page.memory import device_memory_sentences, memory_sentences
from trainprof.report.text.loader_words import faults
from trainprof.report.text.units import count, counted, percent, seconds

SHOWN: Final = 3
_THROTTLED_FROM: Final = 0.05


def doubt(summary: RunSummary) -> str:
    """Returns why times are estimates, as one sentence; "" where they are not, or none is shown."""
    if not summary.training.steps:
        return ""
    reasons = [*_disturbed(summary), *_by_recording(summary)]
    steady = summary.training.steady_steps
    if summary.is_judged and steady < MANY_STEPS:
        reasons.append(f"only {counted(steady, 'steady step')} were measured")
    if not reasons:
        return ""
    *others, last = reasons
    words = f"{', '.join(others)} and {last}" if others else last
    return f"{sentence(words)} Treat the times as estimates."


def _disturbed(summary: RunSummary) -> list[str]:
    system, reasons = summary.system, []
    if system is None:
        return []
    shared = system.shared_cpu
    if shared is not None and shared.is_disturbed:
        used = shared.others_share * shared.cores
        of = counted(shared.cores, "CPU core")
        reasons.append(f"other programs used {used:.1f} of your {of}")
    quota = number_at(system.cpu, "throttled_share") or 0.0
    if quota >= _THROTTLED_FROM:
        reasons.append(f"the CPU quota stopped the run {percent(quota)} of the time")
    gpus = [gpu.throttled_share or 0.0 for gpu in system.gpus if gpu.is_used]
    if max(gpus, default=0.0) >= _THROTTLED_FROM:
        reasons.append(f"the GPU was throttled {percent(max(gpus))} of the time")
    return reasons


def _by_recording(summary: RunSummary) -> list[str]:
    overhead, free_from, reasons = summary.overhead, summary.training.free_from_step, []
    if free_from is not None:
        reasons.append(f"batches are free from step {count(free_from + 1)} on (a trial)")
    if overhead.synchronized_s is not None:
        reasons.append(f"--cuda-sync added up to {seconds(overhead.synchronized_s)}")
    if overhead.share is not None and overhead.share >= COSTLY_RECORDING:
        reasons.append(f"recording took about {percent(overhead.share)} of a step")
    return reasons


def notices(summary: RunSummary) -> list[str]:
    """Returns sentences: the doubt, then what was not recorded, then what is wrong."""
    reported = {finding.id for finding in summary.findings}
    wrong = [
        f"Loader at {loader.site}: {fault}."
        for loader in summary.loaders
        for fault in faults(loader, reported)
    ]
    sentences = [
        doubt(summary),
        *map(sentence, summary.faults),
        *wrong,
        *map(unshared, summary.unshared),
        *(words[0] for words in memory_sentences(summary)),
        *device_memory_sentences(summary),
        bound_to(summary),
        other_thread(summary),
    ]
    return [sentence for sentence in sentences if sentence]


def unshared(loader: UnsharedData) -> str:
    """Returns that every rank draws from all of a loader's data."""
    return (
        f"Each of the {loader.ranks} ranks draws from all {counted(loader.samples, 'sample')} at "
        f"{loader.site}. Use sampler=DistributedSampler(dataset) unless that is intended."
    )


def other_thread(summary: RunSummary) -> str:
    """Returns that another thread of the process often ran; "" where none did."""
    share = summary.beside_share
    if share is None or share < MODERATE_SHARE:
        return ""
    return (
        f"Another thread of your process ran in {percent(share)} of the stack samples. While it "
        "holds the GIL, training waits."
    )


def bound_to(summary: RunSummary) -> str:
    """Returns that the script may use fewer cores than it was started on; "" where all."""
    cores = "" if summary.system is None else summary.system.bound_to
    if not cores:
        return ""
    return f"Your script and its workers run on {cores} only (os.sched_setaffinity)."
