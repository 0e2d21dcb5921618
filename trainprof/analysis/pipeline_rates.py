"""Means over steps of a filled pipeline, and over whole passes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from trainprof.analysis.pipeline_model import Float64
from trainprof.analysis.pipeline_scenario import PipelineInputs, Setting, passes_of


@dataclass(frozen=True, slots=True)
class Rates:
    """Means over steps of filled pipelines, and of whole passes, in s."""

    step_s: float
    wait_s: float
    pass_wait_s: float


def filled_window(setting: Setting, batches: int) -> slice | None:
    """Returns the steps of a filled pipeline, whole cycles of the workers; None if none.

    At its end a pass draws on what was made ahead, as at its beginning: where it is long enough,
    both are left out.
    """
    cycle = max(setting.workers, 1)
    first = max(setting.prefetch * setting.workers, 1)
    last = batches - setting.prefetch * setting.workers
    cycles = (last - first) // cycle if last - first >= cycle else (batches - first) // cycle
    return slice(first, first + cycles * cycle) if cycles > 0 else None


def rates_of(setting: Setting, waits: list[Float64], steps: list[Float64]) -> tuple[Rates, bool]:
    """Returns the means over passes, and whether they are long enough to fill the pipeline.

    Args:
        setting: Of the loader.
        waits, steps: Of each pass, shape (n_batches,).
    """
    window = filled_window(setting, len(waits[0]))
    later = slice(1 if len(waits[0]) > 1 else 0, None)
    of_steps = later if window is None else window
    rates = Rates(
        step_s=mean_of([step[of_steps] for step in steps]),
        wait_s=mean_of([wait[of_steps] for wait in waits]),
        pass_wait_s=mean_of([wait[later] for wait in waits]),
    )
    return rates, window is not None


def mean_of(parts: list[Float64]) -> float:
    """Returns the mean of several series together."""
    return float(np.concatenate(parts).mean())


def measured_rates(inputs: PipelineInputs) -> Rates | None:
    """Returns what the recording itself shows in the same windows, None without its waits."""
    wait_s = inputs.wait_s
    if wait_s is None:
        return None
    # What a pass that was cut off would have been filled up with was not measured.
    inputs = replace(inputs, batches=min(inputs.batches, len(wait_s)))
    waits = passes_of(inputs, wait_s)
    pairs = zip(waits, passes_of(inputs, inputs.compute_s), strict=True)
    return rates_of(inputs.setting, waits, [wait + compute for wait, compute in pairs])[0]
