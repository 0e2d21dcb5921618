"""A stand-in for NVIDIA's libnvidia-ml, and the environment of a process that finds it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SOURCE = Path(__file__).parent / "nvml_stub" / "stub_nvml.c"


def build_stub(folder: Path, *options: str) -> Path:
    """Compiles the stub into a folder, `-DOLD_DRIVER` among the options or not; returns it."""
    command = [
        *("gcc", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"),
        *("-fvisibility=hidden", "-Wl,-soname,libnvidia-ml.so.1", *options),
        *("-o", str(folder / "libnvidia-ml.so.1"), str(SOURCE), "-lpthread"),
    ]
    subprocess.run(command, check=True)
    return folder


def stub_environment(library: Path, directory: Path) -> dict[str, str]:
    """Returns what leads a process to the stub; its files are `conf` and `log` in `directory`."""
    return {
        "LD_LIBRARY_PATH": str(library),
        "STUB_NVML_CONF": str(directory / "conf"),
        "STUB_NVML_LOG": str(directory / "log"),
    }


def without_visible_devices() -> dict[str, str]:
    """Returns this process's environment without what leads to libraries and GPUs."""
    return {
        key: value for key, value in os.environ.items() if key[:3] != "LD_" and key[:4] != "CUDA"
    }
