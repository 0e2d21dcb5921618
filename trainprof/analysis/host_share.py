"""For how much of a step on a device the host's pace is the step's."""

from __future__ import annotations

from typing import Final

from trainprof.analysis.device_figures import Device
from trainprof.analysis.device_verdict import DeviceEvidence
from trainprof.analysis.ledger import LOADER_KEYS
from trainprof.analysis.summary import RunSummary

# Copies go through the host's memory, and most of them are made by its cores.
_OF_HOST: Final = ("copy_s", "sync_s", "host_s", "checkpoint_s")
# Where passes begin and end: of their time no step tells.
_STARTS: Final = ("loader_start", "first_batch", "loader_end")
# Of training, but of no step.
_OF_NO_STEP: Final = ("evaluation_s", "startup_s", "compile_s")


def host_share(summary: RunSummary) -> float:
    """Returns the share of its steps' time in which nothing but the host's work went on.

    That is all of it where no device is used; else what a device waited for: batches, copies,
    Python, launches. Where no device tells, it is the wait for batches. Of several ranks the one
    that waits most counts, for the others wait for it; of several devices of one process that which
    waits least, for they may take turns.

    Returns:
        From 0 to 1.
    """
    if not summary.run.is_on_device:
        return 1.0
    known = [
        share
        for device in summary.devices or ()
        if (share := _waits_for_host(device, summary)) is not None
    ]
    if not known:
        return _waits_for_batches(summary)
    return max(known) if summary.ranks else min(known)


def _waits_for_host(device: Device, summary: RunSummary) -> float | None:
    training, training_s = summary.training, summary.phases.training_s
    evidence = DeviceEvidence.of(device, training_s)
    if evidence is None:
        return None
    settled_s = max(training_s - device.warmup_s, 0.0) or 1.0
    of_steps = 1 - sum(evidence.idle.get(cause, 0.0) for cause in _OF_NO_STEP)
    if training.step_s is not None:
        # Of an evaluation that keeps the device at work no cause tells.
        of_steps = min(of_steps, training.steps * training.step_s.mean / settled_s)
    starts = sum(summary.ledger.seconds.get(key, 0.0) for key in _STARTS) / settled_s
    waits = max(evidence.idle.get("loader_s", 0.0) - starts, 0.0) + evidence.launching
    waits += sum(evidence.idle.get(cause, 0.0) for cause in _OF_HOST)
    return min(max(waits / of_steps, 0.0), 1.0) if of_steps > 0 else 0.0


def _waits_for_batches(summary: RunSummary) -> float:
    parts = summary.training.per_step_s or {}
    whole_s = sum(parts.values())
    waits_s = sum(parts.get(key, 0.0) for key in LOADER_KEYS)
    return min(waits_s / whole_s, 1.0) if whole_s > 0 else 0.0
