"""The machine in a summary, from planted lines of the sampler."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainprof.analysis.machine.cores import Cores, HostPart
from trainprof.analysis.machine.system import system_of
from trainprof.analysis.run.recording import Recording
from trainprof.analysis.summary.run import System
from trainprof.record.run_directory import RunDirectory

Lines = Sequence[dict[str, Any]]


def sampled_system(
    host_lines: Lines = (),
    process_lines: Lines = (),
    gpu_lines: Lines = (),
    *,
    start_s: float = 0.0,
    end_s: float = 10.0,
    samples: int | None = None,
) -> System | None:
    """Returns it for a script of pid 100 on 1.5 cores, that trained on some samples."""
    lines = {
        "host_lines": list(host_lines),
        "process_lines": list(process_lines),
        "state_lines": [],
        "gpu_lines": list(gpu_lines),
    }
    directory, manifest = RunDirectory(Path("run")), {"script_pid": 100}
    recording = Recording(directory, manifest, [], damage=[], is_alive=False, **lines)
    span = round(start_s * 1e9), round(end_s * 1e9)
    return system_of(recording, HostPart(Cores(1.5, 1.0)), span, samples)
