"""What is missing of a run: what could not be observed, and faults of ours, in sentences."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from typing import Final

from trainprof.analysis.device.devices import several_devices
from trainprof.analysis.device.host_waits import why_none_found
from trainprof.analysis.device.memory import why_no_memory
from trainprof.analysis.run.analysed import Analysed
from trainprof.analysis.run.recording import Recording, inner_runs
from trainprof.analysis.summary.device import Device, FoundSyncs
from trainprof.analysis.summary.run import System, Training
from trainprof.analysis.summary.run_summary import RECORDING_STOPPED
from trainprof.analysis.timeline.events import ProcessLog
from trainprof.analysis.timeline.step_table import are_all_fed
from trainprof.record.schema import MAX_WRITTEN_BYTES, Stop, Topic

# From here on the bounds of a device's time at work are said to be far apart.
WIDE_SHARE: Final = 0.25
_STOPS: Final[dict[int, str]] = {
    Stop.LARGE: f"its log had {MAX_WRITTEN_BYTES >> 30} GiB, the most that is kept of a process",
    Stop.LITTLE_ROOM: "its disk was nearly full, and what was left is the script's",
}


def not_observed(
    run: Analysed, system: System | None, training: Training, device: Device | None
) -> dict[str, str]:
    reasons: dict[str, str] = {}
    inside = inner_runs(run.recording.directory) if training.steps == 0 else []
    if inside:
        more = f" and {len(inside) - 1} more" if len(inside) > 1 else ""
        reasons["training"] = f"recorded by the trainprof run inside this one: {inside[0]}{more}"
    elif not run.process.logs:
        reasons["training"] = (
            "no event was recorded: the script did not get as far as torch, or used it where "
            "trainprof does not reach (a cleared environment, python -I)"
        )
    elif training.steps == 0:
        reasons["training.step_s"] = "no parameter update and no backward was seen"
    if run.timeline.feeder() is not None and training.samples is None:
        reasons["training.samples"] = (
            "the sampler does not tell how large a batch is"
            if are_all_fed(run.timeline)
            else "no loader feeds some of the steps, as with itertools.cycle, which keeps all "
            "batches of its first pass in memory and gives them again as they are"
        )
    if system is None:
        reasons["system"] = "no sample was taken"
    elif run.metadata.device() is not None and system.gpus_not_observed is not None:
        reasons["system.gpus"] = system.gpus_not_observed
    timing = run.device_timing()
    if timing == "async" and device is None:
        reasons["devices"] = _why_no_device_time(run)
    elif timing == "async" and device is not None and _is_wide(device):
        reasons["devices.busy_share"] = (
            "known within wide bounds only: between two pieces of work that the host gives out the "
            "device may be idle or not, which marks do not tell"
        )
    elif timing == "cpu" and run.recording.section("options").get("cuda_sync"):
        reasons["devices"] = "--cuda-sync had nothing to wait for: no accelerator was used"
    return reasons


def not_found(run: Analysed, result: FoundSyncs | None) -> dict[str, str]:
    """Returns why nothing is known of devices' memory, or of what --find-syncs looked for."""
    reasons = {"devices.memory": why_no_memory(run.metadata)}
    if run.recording.section("options").get("find_syncs"):
        reasons["found_syncs"] = why_none_found(run.metadata, result)
    return {field: reason for field, reason in reasons.items() if reason is not None}


def _is_wide(device: Device) -> bool:
    low, high = device.busy_share or (0.0, 0.0)
    return high - low > WIDE_SHARE


def _why_no_device_time(run: Analysed) -> str:
    if several_devices(run.process.details, run.timeline):
        return "several were used: how far each was at work is not told apart"
    if run.metadata.launch_blocking():
        return (
            "CUDA_LAUNCH_BLOCKING=1: each call waits for the device, so phases hold its time as "
            "with --cuda-sync"
        )
    return "device time is not measured: host time alone; --cuda-sync measures it"


def faults_of(recording: Recording, origin_ns: int) -> list[str]:
    """Returns one sentence each for faults of the supervisor, the files and the probes.

    Args:
        recording: The run.
        origin_ns: Start of the run.
    """
    noted = recording.manifest.get("faults")
    faults = [str(fault) for fault in noted] if isinstance(noted, list) else []
    faults += recording.damage
    for log in recording.logs:
        faults += _of_probes(log)
    for log in recording.logs:
        if log.stopped_ns is not None:
            after_s = (log.stopped_ns - origin_ns) / 1e9
            why = _reason(log.stopped_errno or 0)
            faults.append(f"{RECORDING_STOPPED} after {after_s:.1f} s (process {log.pid}): {why}")
    return list(dict.fromkeys(faults))


def _reason(number: int) -> str:
    if number in _STOPS:
        return _STOPS[number]
    # A damaged log may hold any number.
    return "unknown reason" if number not in errno.errorcode else os.strerror(number)


def _of_probes(log: ProcessLog) -> Iterator[str]:
    for topic, say in ((Topic.PROBE_FAILED, "failed"), (Topic.PROBE_UNAVAILABLE, "is missing")):
        for note in log.texts_of(topic).values():
            if isinstance(note, dict):
                why = note.get("error") or note.get("reason")
                yield f"probe {note.get('probe')} {say}: {why}"
