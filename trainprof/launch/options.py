"""What a run is asked to do."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from trainprof.record.names import ENV_DIRECTORY, ENV_OPTIONS

DEFAULT_INTERVAL_S: Final = 0.5
DEFAULT_WAIT_THRESHOLD_S: Final = 0.5
DEFAULT_SLOW_SAMPLES: Final = 10


@dataclass(frozen=True, slots=True)
class LineOptions:
    """Which lines are timed.

    Attributes:
        functions: Patterns `module:name` or `name`; without any, functions under `@profile`, or
            else the training loop and what it and its loaders call.
        only: "workers" of loaders, "main" for all other processes, or None for both.
    """

    functions: tuple[str, ...] = ()
    only: str | None = None


@dataclass(frozen=True, slots=True)
class TrialOptions:
    """What a trial of `tune` changes in the script that it runs.

    Attributes:
        loaders: DataLoader arguments that replace the script's: a value for all of `sites`, or a
            mapping from line to value.
        sites: The lines, as `file.py:84`, that built the loaders that `loaders` and `data` are for.
        data: "real"; "free": after some real batches copies of them, at no cost; "alone": the first
            epoch's batches are drawn without training, and the run ends.
        batches: How many are drawn "alone".
        epoch_batches: Batches in an epoch of "free" data, where the loader has no length.
        settings: torch_threads, fused, foreach, float32_matmul_precision, autocast,
            channels_last, cudnn_benchmark.
        scratch: The working directory of a trial without a sandbox; writes elsewhere are recorded.
        enough_s: Seconds in all, and since the first step: after both the run ends early. Without a
            step, the first counts from the first batch. None: it ends at its max_time_s.
        enough_steps: Steps that the run does before `enough_s` ends it.
    """

    loaders: Mapping[str, Any] = field(default_factory=dict)
    sites: tuple[str, ...] = ()
    data: Literal["real", "free", "alone"] = "real"
    batches: int | None = None
    epoch_batches: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    scratch: Path | None = None
    enough_s: tuple[float, float] | None = None
    enough_steps: int = 1

    def to_json(self) -> dict[str, Any]:
        scratch = None if self.scratch is None else str(self.scratch)
        return {**asdict(self), "scratch": scratch}


@dataclass(frozen=True, slots=True)
class RunOptions:
    """A run as the command line orders it.

    Attributes:
        words: SCRIPT ARGS, or with `module`, run as `python -m` does, its ARGS.
        wait_threshold_s: A wait for a batch over this is a slow one.
        lines: None times no lines.
        slow_samples: How many of a process's slowest samples are kept; with 0 none is timed.
        replaces_output: A run that is in `output` already is removed.
        rules: Thresholds of findings, by name.
        before: A command that ends by executing the script's, which becomes its last arguments.
        cwd: Where that command goes first.
        keeps_console: The script's output goes to files of the run directory, its stdin is empty.
        ended_after_s: The script is killed after this time.
    """

    words: tuple[str, ...]
    module: str | None = None
    output: Path | None = None
    replaces_output: bool = False
    interval_s: float = DEFAULT_INTERVAL_S
    wait_threshold_s: float = DEFAULT_WAIT_THRESHOLD_S
    max_steps: int | None = None
    max_time_s: float | None = None
    progress: bool = False
    lines: LineOptions | None = None
    slow_samples: int = DEFAULT_SLOW_SAMPLES
    cuda_sync: bool = False
    rules: Mapping[str, float] = field(default_factory=dict)
    find_syncs: bool = False
    trial: TrialOptions | None = None
    before: tuple[str, ...] = ()
    cwd: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    keeps_console: bool = False
    ended_after_s: float | None = None

    def child_options(self, *, spawned_ns: int, cwd: str | None) -> dict[str, Any]:
        """Returns what the script process has to know, as JSON; `cwd`: of the paths shown."""
        return {
            "cwd": cwd,
            "cuda_sync": self.cuda_sync,
            "find_syncs": self.find_syncs,
            "lines": self.lines and asdict(self.lines),
            "max_steps": self.max_steps,
            "max_time_s": self.max_time_s,
            "slow_samples": self.slow_samples,
            "spawned_ns": spawned_ns,
            "supervisor_pid": os.getpid(),
            "trial": self.trial.to_json() if self.trial is not None else None,
        }


ENV_PYTHONPATH: Final = "PYTHONPATH"


def script_environment(
    environ: Mapping[str, str],
    *,
    directory: str,
    options: Mapping[str, Any],
    site_directory: str,
) -> dict[str, str]:
    """Returns `environ` with what the script process needs, and nothing else changed.

    `site_directory` holds the `sitecustomize` that starts the recording.
    """
    return {
        **environ,
        ENV_DIRECTORY: directory,
        ENV_OPTIONS: json.dumps(options, allow_nan=False),
        ENV_PYTHONPATH: _with_first(environ.get(ENV_PYTHONPATH, ""), site_directory),
    }


def _with_first(search_path: str, entry: str) -> str:
    """Puts `entry` first; an empty search path stays empty behind it, as "" would mean the cwd."""
    if not search_path:
        return entry
    others = [other for other in search_path.split(os.pathsep) if other != entry]
    return os.pathsep.join([entry, *others])
