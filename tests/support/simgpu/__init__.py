"""A simulated accelerator, built against the torch of this environment when a test asks for it."""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sysconfig
from pathlib import Path

import torch

HERE = Path(__file__).parent
SOURCE = HERE / "simgpu.cpp"


def built(directory: Path) -> Path:
    """Returns the extension, built into `directory` by the first process that asks for it there."""
    what = hashlib.sha256(SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:12]
    library = directory / f"simgpu-{what}.so"
    with (directory / "simgpu.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if not library.exists():
            unfinished = library.with_suffix(".unfinished")
            subprocess.run(_command(unfinished), check=True, capture_output=True)
            unfinished.rename(library)
    return library


def _command(library: Path) -> list[str]:
    torch_files = Path(torch.__file__).parent
    includes = (
        torch_files / "include",
        torch_files / "include/torch/csrc/api/include",
        sysconfig.get_paths()["include"],
    )
    return [
        *("g++", "-O0", "-std=c++20", "-fPIC", "-shared", "-DTORCH_EXTENSION_NAME=_simgpu"),
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        *(f"-I{path}" for path in includes),
        *(str(SOURCE), "-o", str(library)),
        *(f"-L{torch_files / 'lib'}", "-lc10", "-ltorch", "-ltorch_cpu", "-ltorch_python"),
        f"-Wl,-rpath,{torch_files / 'lib'}",
    ]
