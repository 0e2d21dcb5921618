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

    NVML tells the share of its own window, a sixth of a second to a second: shares and histogram
    are of such windows. A busy GPU need not be a full one.

    Attributes:
        share_below_10: Share of the time with less than 10 %.
        share_10_to_90: Both ends included.
        share_above_90: Share of the time with more than 90 %.
        histogram: Eleven shares of the time: 0 to 10 % (10 excluded), ..., 90 to 100 % (100
            excluded), and 100 % itself.
    """

    mean: float
    min: float
    max: float
    p5: float
    p50: float
    p95: float
    p99: float
    share_below_10: float
    share_10_to_90: float
    share_above_90: float
    histogram: list[float]


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device over the run.

    Attributes:
        index: NVML's number.
        logical_index: The script's number by CUDA_VISIBLE_DEVICES, None where it has none.
        is_visible: Whether the script can see it; None: not known.
        is_number_assumed: CUDA may number the devices in another order than NVML.
        is_used: Whether a process of the run was on it; None: not known.
        utilization_by_phase: initialization, training, evaluation, finalization; training is
            without evaluation. Those that were observed.
        clock_reasons: Share of the time in which each kept the clocks down.
        throttled_share: Share of the time with a reason among them that is a limit: power,
            temperature, hardware.
        pcie_sent_bytes_per_s, pcie_received_bytes_per_s: By the GPU.
        pcie_link: {generation, width, max_generation, max_width}: the best seen, and the limits.
        processes: {pid, role: own|other|unknown, bytes (at most), share_of_samples}, biggest first;
            unknown: NVML tells a pid of another PID namespace.
        mig: {uuid, gpu_instance, compute_instance, memory_bytes, logical_index} of each instance;
            None without MIG.
        energy_source: counter, or estimated where a part had to be found from power samples;
            `energy_estimated_share` of the `energy_s` that were observed.
        epoch_energy_wh: In the order of the summary's `epochs`; None for those that are too short.
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
    utilization_by_phase: dict[str, Utilization] = field(default_factory=dict)
    memory_utilization: dict[str, float] | None = None
    memory_bytes: dict[str, float] | None = None
    memory_total_bytes: float | None = None
    power_w: dict[str, float] | None = None
    power_limit_w: float | None = None
    temperature_c: dict[str, float] | None = None
    sm_clock_mhz: dict[str, float] | None = None
    sm_clock_max_mhz: float | None = None
    memory_clock_mhz: dict[str, float] | None = None
    memory_clock_max_mhz: float | None = None
    throttled_share: float | None = None
    clock_reasons: dict[str, float] | None = None
    pcie_sent_bytes_per_s: dict[str, float] | None = None
    pcie_received_bytes_per_s: dict[str, float] | None = None
    pcie_link: dict[str, float | None] = field(default_factory=dict)
    processes: list[dict[str, Any]] | None = None
    mig: list[dict[str, Any]] | None = None
    energy_wh: float | None = None
    energy_source: str | None = None
    energy_estimated_share: float | None = None
    energy_s: float | None = None
    epoch_energy_wh: list[float | None] = field(default_factory=list)
    seen_s: list[float] = field(default_factory=list)
    not_observed: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Energy:
    """What the script's GPUs used together: those that a process of it was on, else those it sees.

    Attributes:
        gpus: NVML's numbers of the GPUs counted.
        samples_per_wh: Samples trained on, by the energy of the whole run.
        epoch_wh: In the order of the summary's `epochs`.
    """

    wh: float
    source: str
    gpus: list[int]
    samples_per_wh: float | None
    epoch_wh: list[float | None]
