"""What a run's samples tell of a GPU and of energy: part of the summary's tree.

{stat} is {mean, min, max, p5, p50, p95, p99}, weighted by time; None means "not observed".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

ENERGY_COUNTER: Final = "counter"
ENERGY_ESTIMATED: Final = "estimated"


@dataclass(frozen=True, slots=True)
class Utilization:
    """How much of the time some kernel ran, in percent, weighted by time.

    NVML tells the share of its own window, a sixth of a second to a second.
    """

    mean: float
    min: float
    max: float
    p5: float
    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device over the run.

    Attributes:
        index: NVML's number.
        logical_index: The script's number by CUDA_VISIBLE_DEVICES, None where it has none.
        is_visible: Whether the script can see it; None: not known.
        is_number_assumed: CUDA may number the devices in another order than NVML.
        is_used: Whether a process of the run was on it; None: not known.
        throttled_share: Share of the time in which power, temperature or hardware limited clocks.
        processes: {pid, role: own|other|unknown, bytes (at most)}, biggest first; unknown: NVML
            tells a pid of another PID namespace.
        mig: {uuid, memory_bytes, logical_index} of each instance; None without MIG.
        energy_source: counter, or estimated where a part had to be found from power samples.
        seen_s: First and last sample, in s since the run's start.
        not_observed: Why a metric has no (more) values.
    """

    index: int
    uuid: str | None
    name: str | None
    logical_index: int | None = None
    is_visible: bool | None = None
    is_number_assumed: bool = True
    is_used: bool | None = None
    utilization: Utilization | None = None
    memory_bytes: dict[str, float] | None = None
    memory_total_bytes: float | None = None
    power_w: dict[str, float] | None = None
    power_limit_w: float | None = None
    temperature_c: dict[str, float] | None = None
    throttled_share: float | None = None
    processes: list[dict[str, Any]] | None = None
    mig: list[dict[str, Any]] | None = None
    energy_wh: float | None = None
    energy_source: str | None = None
    seen_s: list[float] = field(default_factory=list)
    not_observed: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Energy:
    """What the script's GPUs used together: those that a process of it was on, else those it sees.

    Attributes:
        gpus: NVML's numbers of the GPUs counted.
        samples_per_wh: Samples trained on, by the energy of the whole run.
    """

    wh: float
    source: str
    gpus: list[int]
    samples_per_wh: float | None
