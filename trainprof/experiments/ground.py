"""What trials stand on, the machine, libraries and environment: others make them unlike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from trainprof.analysis.comparability import GPU, TORCH, ground_of_host
from trainprof.analysis.compared_run import ComparedRun
from trainprof.analysis.passes import TRAINING
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
_SET_AS_BEFORE: Final = "set the environment as it was, or start again: trainprof tune SCRIPT"


BATCH_SIZE: Final = "the batch size"
BATCHES_A_STEP: Final = "the number of batches a step"
WORLD_SIZE: Final = "the number of ranks"
# Of these a run shows those that it came to: on which of several GPUs it was takes a while to see,
# and batches may grow as training goes on.
_ONE_OF: Final = frozenset({GPU, BATCH_SIZE})
_BETWEEN: Final = ", "
# Ends of passes, and a step that a limit cut off, make a mean of some more or less; one batch more
# to accumulate than one makes it twice as many.
_OTHER_BATCHES: Final = 1.4
_TELLING_STEPS: Final = 20


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

    Args:
        before, now: As `variables_of_pace` tells them.

    Raises:
        CannotResume: With what is another.
    """
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    # Without the variable a script sees all devices, and they may be as many.
    changed = [x for x in names if x != _NUMBER_OF_DEVICES or (x in before and x in now)]
    if changed:
        told = (f"{x} was {before.get(x, _UNSET)} and is {now.get(x, _UNSET)}" for x in changed)
        raise CannotResume(
            f"{', '.join(told)}: its trials would not be alike",
            hint=_SET_AS_BEFORE,
        )


def check_ground(before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Refuses where trials would stand on other ground; of what is not known of both, nothing.

    Args:
        before, now: As `ground_of` and `work_of` tell them.

    Raises:
        CannotResume: With what is another.
    """
    changed = [
        f"{what} was {before[what]} and is {told}"
        for what, told in now.items()
        if what in before and _is_another(what, before[what], told)
    ]
    if changed:
        raise CannotResume(
            f"{', '.join(changed)}: its trials would not be alike",
            hint="go on where it was begun, or start again: trainprof tune SCRIPT",
        )


def work_of(run: ComparedRun) -> dict[str, str]:
    """Returns how much work a step is, by the names of facts: as `ground_of` has the ground."""
    training = run.summary.training
    sizes = sorted({loader.batch_size for loader in run.loaders(TRAINING) if loader.batch_size})
    told = {WORLD_SIZE: str(run.summary.run.world_size or 1)}
    if sizes:
        told[BATCH_SIZE] = _BETWEEN.join(map(str, sizes))
    if training.iterations >= training.steps >= _TELLING_STEPS:
        told[BATCHES_A_STEP] = f"{training.iterations / training.steps:.3g}"
    return told


def _is_another(what: str, before: str, now: str) -> bool:
    if what in _ONE_OF:
        return not set(before.split(_BETWEEN)) & set(now.split(_BETWEEN))
    if what == BATCHES_A_STEP:
        both = sorted((float(before), float(now)))
        return both[1] > _OTHER_BATCHES * both[0]
    return before != now
