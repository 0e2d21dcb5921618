"""Figures that a run has one of, by name: the whole run, its loaders, the machine under it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from trainprof.analysis.compared_run import ComparedRun
from trainprof.analysis.facts import number_at
from trainprof.analysis.gpu_figures import Gpu
from trainprof.analysis.loader_figures import Loader
from trainprof.analysis.passes import EVALUATION, TRAINING

RUN_GROUP: Final = "run"
LOADER_GROUP: Final = "loader"
MACHINE_GROUP: Final = "machine"
_LOWER, _HIGHER = "lower", "higher"
_LOADERS_COMPARED: Final = 3


@dataclass(frozen=True, slots=True)
class RunMetric:
    """How to get a figure out of a run.

    Attributes:
        name, group, better: As comparison.Metric has them.
        value: None where the run has none.
        is_time: Less of it is faster.
    """

    name: str
    group: str
    value: Callable[[ComparedRun], float | None]
    better: str | None = None
    is_time: bool = False


def _evaluation_s(run: ComparedRun) -> float | None:
    evaluation = run.summary.evaluation
    return evaluation.seconds if evaluation.passes else None


def _of_system(section: str, *path: str) -> Callable[[ComparedRun], float | None]:
    def value(run: ComparedRun) -> float | None:
        system = run.summary.system
        found = None if system is None else number_at(getattr(system, section), *path)
        return None if found is None else float(found)

    return value


def _cores_busy(run: ComparedRun) -> float | None:
    percent = _of_system("cpu", "tree_percent", "mean")(run)
    return None if percent is None else percent / 100


def _host_busy(run: ComparedRun) -> float | None:
    percent = _of_system("cpu", "host_percent", "mean")(run)
    return None if percent is None else percent / 100


def _gpus(run: ComparedRun) -> list[Gpu]:
    """Those that the script used, else those it sees."""
    system = run.summary.system
    gpus = [] if system is None else system.gpus
    return [gpu for gpu in gpus if gpu.is_used] or [gpu for gpu in gpus if gpu.is_visible]


def _over_gpus(value: Callable[[Gpu], float | None]) -> Callable[[ComparedRun], float | None]:
    """The mean over the script's GPUs."""

    def mean(run: ComparedRun) -> float | None:
        told = [found for gpu in _gpus(run) if (found := value(gpu)) is not None]
        return sum(told) / len(told) if told else None

    return mean


def _gpu_utilization(gpu: Gpu) -> float | None:
    return None if gpu.utilization is None else gpu.utilization.mean / 100


def _gpu_memory(gpu: Gpu) -> float | None:
    return (gpu.memory_bytes or {}).get("max")


def _gpu_power(gpu: Gpu) -> float | None:
    return (gpu.power_w or {}).get("mean")


def _device_busy(run: ComparedRun) -> float | None:
    """Of all training, warm-up included: runs of other lengths have other shares of that."""
    summary = run.summary
    share, training_s = summary.device_busy_share, summary.phases.training_s
    if share is None or training_s <= 0:
        return None
    warmup_s = max((one.warmup_s for one in summary.devices or ()), default=0.0)
    return share * (1 - min(warmup_s / training_s, 1.0))


def _energy_wh(run: ComparedRun) -> float | None:
    system = run.summary.system
    return None if system is None or system.energy is None else system.energy.wh


def _samples_per_wh(run: ComparedRun) -> float | None:
    system = run.summary.system
    return None if system is None or system.energy is None else system.energy.samples_per_wh


RUN_METRICS: Final = (
    RunMetric("wall_s", RUN_GROUP, lambda run: run.summary.run.wall_s, _LOWER),
    RunMetric(
        "initialization_s",
        RUN_GROUP,
        lambda run: run.summary.phases.initialization_s,
        _LOWER,
        is_time=True,
    ),
    RunMetric("training_s", RUN_GROUP, lambda run: run.summary.phases.training_s, _LOWER),
    RunMetric("evaluation_s", RUN_GROUP, _evaluation_s, _LOWER),
    RunMetric("steps", RUN_GROUP, lambda run: float(run.summary.training.steps)),
    RunMetric("cpu_cores_busy", MACHINE_GROUP, _cores_busy),
    RunMetric("host_cpu_share", MACHINE_GROUP, _host_busy),
    RunMetric(
        "memory_peak_bytes", MACHINE_GROUP, _of_system("memory", "tree_rss_bytes", "max"), _LOWER
    ),
    RunMetric("device_busy_share", MACHINE_GROUP, _device_busy, _HIGHER),
    RunMetric("gpu_utilization_share", MACHINE_GROUP, _over_gpus(_gpu_utilization), _HIGHER),
    RunMetric("gpu_memory_peak_bytes", MACHINE_GROUP, _over_gpus(_gpu_memory), _LOWER),
    RunMetric("gpu_power_w", MACHINE_GROUP, _over_gpus(_gpu_power), _LOWER),
    RunMetric("energy_wh", MACHINE_GROUP, _energy_wh, _LOWER),
    RunMetric("samples_per_wh", MACHINE_GROUP, _samples_per_wh, _HIGHER),
)


def loader_metrics(base: Sequence[ComparedRun], other: Sequence[ComparedRun]) -> list[RunMetric]:
    """Returns the figures of loaders; those of two runs belong together by use and rank.

    A changed script moves lines: of loaders used alike, the one with most batches is the first.
    """
    return [
        RunMetric(
            f"loaders[{called}].{name}",
            LOADER_GROUP,
            _of_loader(role, rank, value),
            None if name == "num_workers" else _LOWER,
            is_time=name != "num_workers",
        )
        for called, role, rank in _called((*base, *other))
        for name, value in _LOADER_FIGURES.items()
    ]


def _called(runs: Sequence[ComparedRun]) -> list[tuple[str, str, int]]:
    """Returns name, role and rank of the loaders: by its line, and by what else tells it apart.

    One line may build several: `data.py:12`, `data.py:12, evaluation`, `data.py:12, 2`.
    """
    called: list[tuple[str, str, int]] = []
    role_at: dict[str, str] = {}
    taken = Counter[str]()
    for role in (TRAINING, EVALUATION):
        most = max((len(run.loaders(role)) for run in runs), default=0)
        for rank in range(min(most, _LOADERS_COMPARED)):
            site = _site(runs, role, rank)
            name = site if role_at.setdefault(site, role) == role else f"{site}, {role}"
            taken[name] += 1
            name = name if taken[name] == 1 else f"{name}, {taken[name]}"
            called.append((name, role, rank))
    return called


def _site(runs: Sequence[ComparedRun], role: str, rank: int) -> str:
    return next(run.loaders(role)[rank].site for run in runs if len(run.loaders(role)) > rank)


def _of_loader(
    role: str, rank: int, value: Callable[[Loader], float | None]
) -> Callable[[ComparedRun], float | None]:
    def found(run: ComparedRun) -> float | None:
        loaders = run.loaders(role)
        return value(loaders[rank]) if rank < len(loaders) else None

    return found


def _mean_wait(loader: Loader) -> float | None:
    return loader.wait_s.mean if loader.wait_s is not None else None


def _first_batch(loader: Loader) -> float | None:
    return loader.first_batch_s.mean if loader.first_batch_s is not None else None


def _making(loader: Loader) -> float | None:
    fetch = loader.fetch
    return fetch.wall_s.mean if fetch is not None and fetch.wall_s is not None else None


def _workers(loader: Loader) -> float | None:
    return None if loader.num_workers is None else float(loader.num_workers)


_LOADER_FIGURES: Final[dict[str, Callable[[Loader], float | None]]] = {
    "num_workers": _workers,
    "wait_s": _mean_wait,
    "first_batch_s": _first_batch,
    "making_a_batch_s": _making,
}
