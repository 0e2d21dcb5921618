"""What trials stand on, the machine, libraries and environment: others make them unlike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from trainprof.compare.comparability import GPU, TORCH, ground_of_host
from trainprof.launch.installed_torch import installed_torch
from trainprof.launch.manifest import host_now
from trainprof.launch.target import Target
from trainprof.record.errors import TrainprofError

# Variables that decide how fast a script is: threads and where they run, allocators, how devices
# compute. As OpenMP, MKL, OpenBLAS, glibc, tokenizers, CUDA and torch name them.
_OF_PACE: Final = frozenset(
    (
        *("OMP_NUM_THREADS", "OMP_DYNAMIC", "OMP_PLACES", "OMP_PROC_BIND", "OMP_WAIT_POLICY"),
        *("GOMP_CPU_AFFINITY", "GOMP_SPINCOUNT", "KMP_AFFINITY", "KMP_BLOCKTIME"),
        *("MKL_NUM_THREADS", "MKL_DYNAMIC", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"),
        *("RAYON_NUM_THREADS", "TOKENIZERS_PARALLELISM", "LD_PRELOAD", "CUDA_LAUNCH_BLOCKING"),
        *("CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"),
    )
)
_BEGINNINGS: Final = ("MALLOC_", "PYTORCH_")
_DEVICES: Final = "CUDA_VISIBLE_DEVICES"
# Which of several alike it is makes no difference, and a batch system gives others each time.
_NUMBER_OF_DEVICES: Final = f"the number of devices in {_DEVICES}"
_UNSET: Final = "not set"


class CannotResume(TrainprofError):
    slug: ClassVar[str] = "cannot-resume"
    exit_code: ClassVar[int] = 2


def ground_now(target: Target) -> dict[str, str]:
    """Returns what a run would stand on, as far as that is known before one was made."""
    found, torch = ground_of_host(host_now()), installed_torch(target)
    return found if torch is None else {**found, TORCH: torch}


def variables_of_pace(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns those of an environment that decide how fast a script is; of devices their number."""
    found = {
        name: value
        for name, value in environ.items()
        if name in _OF_PACE or name.startswith(_BEGINNINGS)
    }
    if _DEVICES in environ:
        devices = [one for one in environ[_DEVICES].split(",") if one.strip()]
        found[_NUMBER_OF_DEVICES] = str(len(devices))
    return found


def check_variables(before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Refuses where trials would run under variables that give them another pace.

    Raises:
        CannotResume: With what is another.
    """
    # Without the variable a script sees all devices, and they may be as many.
    both = before.keys() & now.keys()
    names = [x for x in {**before, **now} if x != _NUMBER_OF_DEVICES or x in both]
    check_alike(*({x: side.get(x, _UNSET) for x in names} for side in (before, now)))


def check_ground(before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Refuses where trials would stand on other ground, as `ground_of` tells it.

    Raises:
        CannotResume: With what is another.
    """
    # On which of several GPUs it was takes a while to see.
    one_gpu = [set(side.get(GPU, "").split(", ")) for side in (before, now)]
    is_same = bool(one_gpu[0] & one_gpu[1])
    check_alike(before, {x: told for x, told in now.items() if x != GPU or not is_same})


def check_alike(before: Mapping[str, object], now: Mapping[str, object]) -> None:
    """Refuses what would make later trials unlike earlier ones.

    Args:
        before, now: By its name; of what is not known of both, nothing is said.

    Raises:
        CannotResume: With what is another.
    """
    changed = [
        f"{what} was {before[what]} and is {told}"
        for what, told in now.items()
        if what in before and before[what] != told
    ]
    if changed:
        raise CannotResume(
            f"{', '.join(changed)}: its trials would not be alike",
            hint="go on as it was begun, or start again: trainprof tune SCRIPT",
        )
