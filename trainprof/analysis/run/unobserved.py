"""What a run could not be told, and why."""

from __future__ import annotations

from typing import Final

from trainprof.analysis.device.devices import several_devices
from trainprof.analysis.device.host_waits import why_none_found
from trainprof.analysis.device.memory import why_no_memory
from trainprof.analysis.loading.loader_steps import are_all_fed
from trainprof.analysis.run.analysed import Analysed
from trainprof.analysis.run.recording import inner_runs
from trainprof.analysis.summary.device import Device, FoundSyncs
from trainprof.analysis.summary.run import System, Training

# From here on the bounds of a device's time at work are said to be far apart.
WIDE_SHARE: Final = 0.25


def not_observed(
    run: Analysed, system: System | None, training: Training, devices: list[Device] | None
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
    if timing == "async" and not devices:
        reasons["devices"] = _why_no_device_time(run)
    elif timing == "async" and any(map(_is_wide, devices or ())):
        reasons["devices.busy_share"] = (
            "known within wide bounds only: between two pieces of work that the host gives out the "
            "device may be idle or not, which marks do not tell"
        )
    elif timing == "cpu" and run.recording.section("options").get("cuda_sync"):
        reasons["devices"] = "--cuda-sync had nothing to wait for: no accelerator was used"
    return reasons


def not_found(run: Analysed, found: FoundSyncs | None) -> dict[str, str]:
    """Returns why nothing is known of devices' memory, or of what --find-syncs looked for."""
    reasons = {"devices.memory": why_no_memory(run.metadata)}
    if run.recording.section("options").get("find_syncs"):
        reasons["found_syncs"] = why_none_found(run.metadata, found)
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
