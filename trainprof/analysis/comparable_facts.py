"""What two runs should have in common, or may differ in: one fact each."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final

from trainprof.analysis.compared_run import ComparedRun
from trainprof.analysis.facts import MAX_NUMBER, number_at

# Kinds of differences. But for UNFINISHED, SETTING and REMARK the sides are unlike by them.
WORK: Final = "work"  # a step is another amount of work
GROUND: Final = "ground"  # another script, machine or library
UNUSABLE: Final = "unusable"  # recording slowed a run, or it has too few steps
UNFINISHED: Final = "unfinished"  # a run failed, was ended from outside, or still runs
SETTING: Final = "setting"  # what the user may have meant to change
REMARK: Final = "remark"  # worth knowing when reading the numbers
UNLIKE: Final = frozenset({WORK, GROUND, UNUSABLE})

SCRIPT: Final = "script"
SCRIPT_TEXT: Final = "the script's text"
BATCH_BYTES: Final = "a batch's size"
DEVICE: Final = "device"
GPU: Final = "GPU"
TRAINERS: Final = "training processes"
CPU: Final = "CPU"
CPU_CORES: Final = "CPU cores"
TORCH: Final = "torch"
TORCH_THREADS: Final = "torch's threads"
_DIGEST_CHARACTERS: Final = 12

Fact = Callable[[ComparedRun], Hashable]


def _script(run: ComparedRun) -> str | None:
    """What was run in the end: of torchrun, python or accelerate the script that they start."""
    name = run.manifest.get("entry") or run.manifest.get("script")
    return os.path.basename(name.rstrip("/")) if isinstance(name, str) else None


def script_text(run: ComparedRun) -> str | None:
    """Returns the beginning of the digest of its text, None where that is not known."""
    told = run.manifest.get("script_sha256")
    return told[:_DIGEST_CHARACTERS] if isinstance(told, str) else None


def _batch_size(run: ComparedRun) -> int | None:
    feeder = run.feeder()
    return feeder.batch_size if feeder is not None else None


def _device(run: ComparedRun) -> str | None:
    """Such as "cpu" or "cuda"; the number of a device makes no difference."""
    device = run.summary.run.device
    return None if device is None else device.split(":")[0]


def _gpu(run: ComparedRun) -> str | None:
    """Such as "NVIDIA H100"; None where nothing tells which of several kinds it was."""
    system = run.summary.system
    gpus = [] if system is None or _device(run) in (None, "cpu") else system.gpus
    used = [gpu for gpu in gpus if gpu.is_used]
    names = sorted({gpu.name for gpu in used or gpus if gpu.name and (used or gpu.is_visible)})
    return ", ".join(names) or None if used or len(names) == 1 else None


def _training_processes(run: ComparedRun) -> int:
    """Returns how many processes trained, each for itself; ranks are one together."""
    return 1 + len(run.summary.trained_apart)


def _world_size(run: ComparedRun) -> int:
    return run.summary.run.world_size or 1


def _cores(host: Mapping[str, Any]) -> str | None:
    for name in ("usable_cores", "cores"):
        told = host.get(name)
        if isinstance(told, (int, float)) and 0 < told < MAX_NUMBER:
            return f"{told:.3g}"
    return None


def _cpu(host: Mapping[str, Any]) -> str | None:
    told = host.get("cpu")
    return told if isinstance(told, str) and told else None


def _platform(host: Mapping[str, Any]) -> str | None:
    """Such as "linux x86_64": the kernel's version between makes no other machine."""
    told = host.get("platform")
    words = told.split() if isinstance(told, str) else []
    return f"{words[0]} {words[-1]}" if len(words) > 1 else None


_OF_HOST: Final = {"platform": _platform, CPU: _cpu, CPU_CORES: _cores}


def _of_host(what: str) -> Fact:
    return lambda run: _OF_HOST[what](run.section("host"))


def ground_of_host(host: Mapping[str, Any]) -> dict[str, str]:
    """Returns what a manifest's host is, by the names of facts, as far as it is known."""
    told = {what: fact(host) for what, fact in _OF_HOST.items()}
    return {what: value for what, value in told.items() if value is not None}


def ground_of(run: ComparedRun) -> dict[str, str]:
    """Returns the machine and libraries of a run, by the names of facts, as far as known.

    To which of the machine's cores a script binds itself is its own affair.
    """
    told = {what: fact(run) for what, kind, fact in FACTS if kind == GROUND}
    told[CPU_CORES] = _cores(run.section("host"))
    of_script = (SCRIPT, SCRIPT_TEXT, TRAINERS)
    return {what: str(x) for what, x in told.items() if x is not None and what not in of_script}


def _cores_of_run(run: ComparedRun) -> str | None:
    """Those that training could use: a command or the script may have bound it to fewer."""
    host = run.section("host")
    system = run.summary.system
    bound = None if system is None else number_at(system.cpu, "cores_usable")
    known = number_at(host, "usable_cores")
    return _cores(host if bound is None or known is None or bound >= known else {"cores": bound})


def _torch_threads(run: ComparedRun) -> int | None:
    return run.summary.torch_threads


def _batches(run: ComparedRun) -> str:
    """A trial's cost nothing from one step on: they are copies of some that were made."""
    return "made by the loader" if run.summary.training.free_from_step is None else "free"


def _version(package: str) -> Fact:
    return lambda run: run.summary.run.versions.get(package)


def _step_source(run: ComparedRun) -> str | None:
    source = run.summary.training.step_source
    return None if source == "none" else source


FACTS: Final[tuple[tuple[str, str, Fact], ...]] = (
    (SCRIPT, GROUND, _script),
    (SCRIPT_TEXT, GROUND, script_text),
    ("batch size", WORK, _batch_size),
    ("world size", WORK, _world_size),
    ("what counts as a step", WORK, _step_source),
    (TRAINERS, GROUND, _training_processes),
    (DEVICE, GROUND, _device),
    (GPU, GROUND, _gpu),
    *((what, GROUND, _of_host(what)) for what in _OF_HOST if what != CPU_CORES),
    (CPU_CORES, GROUND, _cores_of_run),
    (TORCH, GROUND, _version("torch")),
    ("CUDA", GROUND, _version("cuda")),
    ("batches", SETTING, _batches),
    (TORCH_THREADS, SETTING, _torch_threads),
    ("Python", SETTING, _version("python")),
)
