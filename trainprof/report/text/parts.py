"""The parts of a step, one list for headline, ledger and findings, and those without a cause."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from trainprof.analysis.summary.code import HottestLine
from trainprof.analysis.summary.finding import SYMPTOM
from trainprof.analysis.summary.levels import HIGH_SHARE, known
from trainprof.analysis.summary.loader import cost_s
from trainprof.analysis.summary.run import COMPILE_KEY, COMPUTE_KEYS, LOADER_KEYS
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report.text.ledger import DEVICE_KEYS, waits_are_merged

# Of a step: a part of this share stands on the page, whatever is found.
LARGE_SHARE: Final = 0.25
_WAITING: Final = "waiting for data"
_RECOMPUTING: Final = "recomputing forward"
# Activation checkpointing is a choice that the reader may have forgotten.
_LEAST_SHARES: Final = {_WAITING: HIGH_SHARE, _RECOMPUTING: 0.05}
PYTHON: Final = "Python in the loop"
_UNKNOWN: Final = "idle or busy: unknown"
_COMMUNICATION: Final = "communication"
_EVALUATION: Final = ("evaluation",)
_PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    _WAITING: LOADER_KEYS,
    "forward": ("forward",),
    "loss": ("loss",),
    "backward": ("backward",),
    _RECOMPUTING: ("recompute",),
    "optimizer": ("optimizer", "zero_grad"),
    "torch.compile": (COMPILE_KEY,),
    PYTHON: ("other",),
    "torch.distributed": (_COMMUNICATION,),
    "garbage collection": ("gc",),
    "copying": ("transfer",),
    "syncs": ("sync", "device_wait"),
    "checkpoints": ("checkpoint",),
}
_GPU_WAITS: Final = "waiting for the GPU"
# What a device idles for: its part, and the ledger keys of the findings that are about it.
_OF_DEVICE: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "loader_s": ("idle: waiting for data", LOADER_KEYS),
    "copy_s": ("idle: copying", ("transfer",)),
    "sync_s": ("idle: around syncs", ("sync", "device_wait")),
    "host_s": ("idle: Python in the loop", ("other", "gc")),
    "launch_s": ("idle: between small kernels", COMPUTE_KEYS),
    "checkpoint_s": ("idle: checkpoints", ("checkpoint",)),
    "compile_s": ("idle: torch.compile", (COMPILE_KEY,)),
    "evaluation_s": ("idle: validation", _EVALUATION),
    "startup_s": ("idle: before its first kernel", ()),
}


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a step; on a device of training, steps or not.

    Attributes:
        keys: Of the ledger.
        site: The user's line that stands for it, where there is one: a loader's.
        line: Of the user's lines in it the hottest.
    """

    name: str
    keys: tuple[str, ...]
    share: float
    of: str
    site: str | None = None
    line: HottestLine | None = None


def parts_of_step(summary: RunSummary) -> list[Part]:
    """Returns all parts, largest first: of a step, on a device of its time in training.

    [] for a device of unknown time: the host's own times say little there.
    """
    parts = _of_device(summary) if summary.run.is_on_device else _of_step(summary)
    return sorted(parts, key=lambda part: -part.share)


def parts_shown(summary: RunSummary) -> list[Part]:
    """Returns the parts that a page draws, which add up to a whole, largest first.

    Of a device of unknown time those of the host, with all that waits for the device as one.
    """
    parts = parts_of_step(summary)
    if parts and summary.run.is_on_device:
        rest = 1.0 - sum(part.share for part in parts)
        return [*parts, Part(_UNKNOWN, (), rest, parts[0].of)] if rest > 0 else parts
    if not parts:
        parts = list(_of_step(summary))
    if waits_are_merged(summary):
        merged = [part for part in parts if set(part.keys) <= set(DEVICE_KEYS)]
        parts = [part for part in parts if part not in merged]
        share = sum(part.share for part in merged)
        parts += [Part(_GPU_WAITS, DEVICE_KEYS, share, "a step")] if share > 0 else []
    return sorted(parts, key=lambda part: -part.share)


def without_cause(summary: RunSummary) -> list[Part]:
    """Returns the large parts without a finding."""
    # The cause of a symptom is known, too.
    roots = {finding.id for finding in summary.findings}
    symptoms = (x.finding for x in summary.passed_over if x.why == SYMPTOM and x.root in roots)
    traits = [finding.traits for finding in (*summary.findings, *symptoms)]
    # What slows everything may be any part of a step.
    if any(x.slows_everything or x.of_all_parts for x in traits):
        return []
    known_keys = {key for x in traits for key in x.keys}
    return [
        part
        for part in parts_of_step(summary)
        if part.share >= _LEAST_SHARES.get(part.name, LARGE_SHARE) and not {*part.keys} & known_keys
    ]


def _of_step(summary: RunSummary) -> Iterator[Part]:
    step_s = summary.training.per_step_s or {}
    spent = {key: value for key, value in step_s.items() if known(value)}
    whole_s = sum(spent.values())
    if whole_s <= 0:
        return
    calls_s = sum(call.seconds for call in summary.collectives) / max(summary.training.steps, 1)
    spent[_COMMUNICATION] = min(known(calls_s) or 0.0, spent.get("other", 0.0))
    spent["other"] = spent.get("other", 0.0) - spent[_COMMUNICATION]
    for name, keys in _PARTS.items():
        share = sum(spent.get(key, 0.0) for key in keys) / whole_s
        if share > 0:
            yield Part(name, keys, share, "a step", _site(keys, summary), _hottest(keys, summary))


def _of_device(summary: RunSummary) -> Iterator[Part]:
    """Yields what a device idles for, and of its certain busy time that of each phase.

    All of it is of training: which of its idle time lies inside steps is unknown.
    """
    device = summary.devices[0] if summary.devices else None
    if device is None or device.idle_because is None or not device.busy_share:
        return
    settled_s = summary.phases.training_s - device.warmup_s
    busy, of = known(device.busy_share[0]) or 0.0, device.time
    for cause, (name, keys) in _OF_DEVICE.items():
        share = known(device.idle_because.get(cause, 0.0) / settled_s) if settled_s > 0 else None
        if share:
            line = _hottest(keys, summary) if keys == LOADER_KEYS else None
            yield Part(name, keys, share, of, _site(keys, summary), line)
    phases = {key: known(device.seconds.get(key)) or 0.0 for key in (*COMPUTE_KEYS, *_EVALUATION)}
    # Over the run there may be more of it, after training.
    evaluated_s = summary.phases.training_s - summary.without_evaluation_s
    evaluated_s -= device.idle_because.get("evaluation_s", 0.0)
    phases["evaluation"] = min(phases["evaluation"], max(known(evaluated_s) or 0.0, 0.0))
    computing_s = sum(phases.values())
    if not computing_s:
        yield Part("busy", COMPUTE_KEYS, busy, of)
    for name, keys in (*_PARTS.items(), ("validation", _EVALUATION)):
        part_s = sum(phases.get(key, 0.0) for key in keys)
        if part_s > 0:
            yield Part(name, keys, busy * part_s / computing_s, of)


def _site(keys: tuple[str, ...], summary: RunSummary) -> str | None:
    """Returns the line of the loader that is waited for, or of the slowest distributed call."""
    if keys == (_COMMUNICATION,):
        return summary.collectives[0].site if summary.collectives else None
    if keys != LOADER_KEYS:
        return None
    if summary.verdict.bottleneck == "data":
        return summary.verdict.site
    feeding = [x for x in summary.loaders if x.role == "training" and x.thread == "training"]
    slowest = max(feeding, key=cost_s, default=None)
    return None if slowest is None else slowest.site


def _hottest(keys: tuple[str, ...], summary: RunSummary) -> HottestLine | None:
    """Returns the hottest line of a part; of loading, workers' lines first, if they have any."""
    of_workers = [line for line in summary.hot_lines if line.thread == "worker"]
    if keys == LOADER_KEYS and of_workers:
        return of_workers[0]
    for line in summary.hot_lines:
        if line.thread == "training" and line.part in keys:
            return line
    return None
