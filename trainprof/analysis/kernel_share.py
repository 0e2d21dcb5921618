"""How long a kernel ran, as NVIDIA's driver counts it: bounds of a device's work.

Held against kernels that wait for a known time, on an H100 with driver 580: of 20 us and more, at
10 to 90 % of the time, the driver's figure was the truth to a point or two; each kernel counts for
2.5 us more than it takes, so that launches of 5 us at 30 % read 45 %. It is never too low.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from trainprof.analysis.gpu_figures import Gpu
from trainprof.analysis.system_processes import entries
from trainprof.analysis.time_weighted import NS_PER_S, Line, number

_ASKED: Final = "utilization_gpu_percent"
# The driver's windows are up to a second long; on fewer, and over less time, nothing is to rest.
_LEAST_NS: Final = 2 * NS_PER_S
_LEAST_READINGS: Final = 4
# Of all time: what a reading may be off, and how many standard errors the mean of them.
_OFF: Final = 0.03
_ERRORS: Final = 2.0
# A device that is given the smallest kernels counts as at work for so many times as long as it
# takes for them once they have piled up (1.2 was seen).
_LAUNCHES: Final = 1.3
# From here on there was always a next one.
_ALWAYS: Final = 0.97


@dataclass(frozen=True, slots=True)
class KernelShare:
    """Of some time, the share in which a kernel ran on a device.

    Attributes:
        mean: As the driver tells.
        low, high: What the device worked, very likely at least, and at most.
    """

    mean: float
    low: float
    high: float


def kernel_share(
    gpu_lines: Sequence[Line], gpus: Sequence[Gpu], index: int, span: tuple[int, int]
) -> KernelShare | None:
    """Returns what the driver tells of a device in a part of the run, None where it is too little.

    Args:
        gpu_lines: Samples of all GPUs, in order of time.
        gpus: All of them.
        index: Of the device, as the script has it.
        span: Start and end of the part, ns.
    """
    gpu = _of_script(gpus, index)
    if gpu is None:
        return None
    of_it = [
        device
        for line in gpu_lines
        for device in entries(line, "gpus")
        if number(device.get("index")) == gpu.index
    ]
    told = [(number(one.get("t_ns")), number(one.get(_ASKED))) for one in of_it]
    known = [(int(at), busy / 100) for at, busy in told if at is not None and busy is not None]
    if len(known) <= _LEAST_READINGS:
        return None
    at_ns, share = np.array([at for at, _ in known]), np.array([share for _, share in known])
    inside = (at_ns[:-1] >= span[0]) & (at_ns[1:] <= span[1]) & (np.diff(at_ns) > 0)
    lasted_ns, share = np.diff(at_ns)[inside], share[1:][inside]
    if len(share) < _LEAST_READINGS or lasted_ns.sum() < _LEAST_NS:
        return None
    mean = float(np.average(share, weights=lasted_ns))
    off = _OFF + _ERRORS * float(share.std(ddof=1)) / len(share) ** 0.5
    least = mean if mean >= _ALWAYS else mean / _LAUNCHES
    return KernelShare(mean, max(least - off, 0.0), min(mean + off, 1.0))


def _of_script(gpus: Sequence[Gpu], index: int) -> Gpu | None:
    """Returns the GPU that the script numbers so, None where that is not sure or it is a part."""
    found = [gpu for gpu in gpus if gpu.logical_index == index]
    seen = [gpu for gpu in gpus if gpu.is_visible is not False]
    if len(found) != 1 or found[0].mig is not None:
        return None
    return None if found[0].is_number_assumed and len(seen) > 1 else found[0]
