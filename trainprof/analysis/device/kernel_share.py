"""The share of kernel time by NVIDIA's driver: bounds of a device's busy time.

Compared with kernels of known duration on an H100 with driver 580: for 20 us and more, at 10 to
90 % of the time, the driver's figure was right to one or two points. Each kernel counts for 2.5 us
more than it takes, so kernels of 5 us at 30 % read 45 %. It is never too low, and includes other
programs on the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from trainprof.analysis.machine.processes import entries
from trainprof.analysis.statistics.time_weighted import NS_PER_S, Line
from trainprof.analysis.summary.device import Gpu
from trainprof.record.notes import known

_ASKED: Final = "utilization_gpu_percent"
# The driver's windows are up to a second long; fewer windows, or less time, are not used.
_WINDOW_NS: Final = NS_PER_S
_LEAST_NS: Final = 2 * NS_PER_S
_LEAST_READINGS: Final = 4
# Of all time: the error of a reading, and the standard errors of their mean.
_OFF: Final = 0.03
_ERRORS: Final = 2.0
# A device may count as busy for this many times its busy time: with the smallest kernels, 2 us,
# launched one by one by a slow host; and with larger or queued ones.
_OF_SMALL: Final = 1.7
_OF_OTHERS: Final = 1.15
# From here on there was always a next kernel.
_ALWAYS: Final = 0.97
# A device that is busy before the script uses it works for another program.
_OF_OTHERS_FROM: Final = 0.05


@dataclass(frozen=True, slots=True)
class KernelShare:
    """The share of a part of the run in which a kernel ran on a device, by its driver."""

    span: tuple[int, int]
    mean: float
    off: float
    is_ours_alone: bool = True

    @property
    def high(self) -> float:
        """Upper bound of the busy share of the part."""
        return min(self.mean + self.off, 1.0)

    def low(self, *, keeps_up: bool) -> float:
        """Returns the likely lower bound of the busy share for the script.

        It is lower where the device keeps up, as it often was idle before the next kernel.
        """
        if not self.is_ours_alone:
            return 0.0
        if keeps_up:
            return max(self.mean / _OF_SMALL - self.off, 0.0)
        least = self.mean if self.mean >= _ALWAYS else self.mean / _OF_OTHERS
        return max(least - self.off, 0.0)


def kernel_share(
    gpu_lines: Sequence[Line],
    gpus: Sequence[Gpu],
    index: int,
    span: tuple[int, int],
    first_used_ns: int,
) -> KernelShare | None:
    """Returns the driver's figure for a span of the run, ns, None with too few readings.

    Args:
        index: Of the device in the script, which first used it at `first_used_ns`.
    """
    gpu = _of_script(gpus, index)
    if gpu is None:
        return None
    own_devices = [
        device
        for line in gpu_lines
        for device in entries(line, "gpus")
        if known(device.get("index")) == gpu.index
    ]
    readings = [(known(sample.get("t_ns")), known(sample.get(_ASKED))) for sample in own_devices]
    shares = [(int(at), busy / 100) for at, busy in readings if at is not None and busy is not None]
    if len(shares) <= _LEAST_READINGS:
        return None
    at_ns, share = np.array([at for at, _ in shares]), np.array([share for _, share in shares])
    before = share[at_ns < first_used_ns]
    inside = (at_ns[1:] >= span[0] + _WINDOW_NS) & (at_ns[1:] <= span[1]) & (np.diff(at_ns) > 0)
    lasted_ns, share = np.diff(at_ns)[inside], share[1:][inside]
    # Readings closer than its windows cover the same time.
    count = min(len(share), 1 + int(lasted_ns.sum() / _WINDOW_NS))
    if len(share) < _LEAST_READINGS or lasted_ns.sum() < _LEAST_NS:
        return None
    mean = float(np.average(share, weights=lasted_ns))
    off = _OFF + _ERRORS * float(share.std(ddof=1)) / count**0.5
    is_idle_before = len(before) == 0 or float(before.mean()) < _OF_OTHERS_FROM
    return KernelShare(span, mean, off, _is_ours_alone(gpu) and is_idle_before)


def _of_script(gpus: Sequence[Gpu], index: int) -> Gpu | None:
    """Returns the GPU of that number in the script, None if that is unsure or it is a slice."""
    numbered = [gpu for gpu in gpus if gpu.logical_index == index]
    if len(numbered) != 1 or numbered[0].mig is not None:
        return None
    # In some virtual machines the driver lists no processes.
    if numbered[0].is_used is False and numbered[0].processes:
        return None
    used = [gpu for gpu in gpus if gpu.is_used]
    if numbered[0].is_number_assumed and len(gpus) > 1:
        return numbered[0] if used == numbered else None
    return numbered[0]


def _is_ours_alone(gpu: Gpu) -> bool:
    processes = gpu.processes or []
    return len(processes) <= 1 and all(process.get("role") != "other" for process in processes)
