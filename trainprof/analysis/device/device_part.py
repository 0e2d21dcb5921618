"""The device in a summary: its time, copies, synchronizing calls and memory."""

from __future__ import annotations

from dataclasses import dataclass

from trainprof.analysis.device.activity import Overlap
from trainprof.analysis.device.devices import device_of, device_overlap
from trainprof.analysis.device.host_waits import (
    emptied_caches,
    found_syncs_of,
    held_back,
    placements,
    sync_points,
    transfers,
)
from trainprof.analysis.device.kernel_share import kernel_share
from trainprof.analysis.device.memory import out_of_memory_of, with_memory
from trainprof.analysis.run.analysed import Analysed
from trainprof.analysis.summary.device import (
    Device,
    EmptiedCache,
    FoundSyncs,
    OutOfMemory,
    Placement,
    SyncPoint,
    Transfer,
)
from trainprof.analysis.summary.run import System
from trainprof.analysis.timeline.intervals import Coverage
from trainprof.analysis.timeline.timeline_part import TimelinePart


@dataclass(frozen=True, slots=True)
class DevicePart:
    """What is known of the device that training uses.

    Attributes:
        timed: The one whose time is known, None where it is not.
        devices: All that are known, with their memory; None without any.
    """

    timed: Device | None
    devices: list[Device] | None
    transfers: list[Transfer]
    sync_points: list[SyncPoint]
    placements: list[Placement]
    found_syncs: FoundSyncs | None
    emptied_caches: list[EmptiedCache]
    out_of_memory: OutOfMemory | None


def overlap_of(run: Analysed) -> Overlap | None:
    """Returns what the one device did; None where devices were waited for, or nothing tells."""
    if run.metadata.device() is None or run.synchronized() is not None:
        return None
    return device_overlap(run.process.details, run.timeline)


def device_part(
    run: Analysed,
    time: TimelinePart,
    overlap: Overlap | None,
    system: System | None,
    compiling: Coverage,
) -> DevicePart:
    """Returns what a run tells of its device.

    Args:
        run: The run.
        time: Of its training thread.
        overlap: What the device did, as `overlap_of` has it.
        system: Of the machine.
        compiling: When torch.compile compiled.
    """
    timeline, metadata, details = run.timeline, run.metadata, run.process.details
    sites, window, kind = run.sites(), timeline.window, metadata.device()
    timed = held = None
    if overlap is not None:
        settled = (max(time.settled_ns, window.loop_start), window.loop_end)
        gpus = system.gpus if system is not None else []
        activity = overlap.activity
        driver = kernel_share(
            run.recording.gpu_lines, gpus, activity.index, settled, activity.first_ns
        )
        timed = device_of(overlap, time.attribution, time.steps.steady, kind, compiling, driver)
        held = held_back(overlap, details, settled[0])
    counted_until = {
        flag: (ns - run.origin_ns) / 1e9 for flag, ns in metadata.reads_counted_until().items()
    }
    return DevicePart(
        timed=timed,
        devices=with_memory(
            None if timed is None else [timed],
            details,
            timeline,
            kind=str(kind).partition(":")[0],
            warmup=time.steps.steady.warmup,
            is_part=run.part is not None,
        ),
        transfers=transfers(timeline.events, sites, overlap),
        sync_points=sync_points(timeline.events, sites, overlap, counted_until, held),
        placements=placements(timeline.events, sites) if kind is not None else [],
        found_syncs=found_syncs_of(details, sites),
        emptied_caches=[]
        if overlap is None
        else emptied_caches(details, timeline, time.attribution, sites, overlap.most),
        out_of_memory=out_of_memory_of(metadata, run.recording.manifest.get("cwd")),
    )
