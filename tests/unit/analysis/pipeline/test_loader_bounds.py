"""Which loaders the pipeline model is asked about, with what, and when it is not believed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support import summaries

from trainprof.analysis.loading.loaders import with_bounds
from trainprof.analysis.pipeline.bounds import COMPUTE, LATENCY, PipelineInputs, Setting
from trainprof.analysis.pipeline.bounds import bound_of as bound_of_pipeline
from trainprof.analysis.pipeline.fit import MAX_BATCHES, model_of, shortened
from trainprof.analysis.pipeline.model import Pipeline
from trainprof.analysis.summary.loader import LoaderBound


def inputs(batches=60, passes=1, *, workers=0, fetch_s=0.03, compute_s=0.01, wait_s=0.03, **more):
    """Batches that sleep while they are made, and are waited for so long."""
    n = batches * passes
    return PipelineInputs(
        setting=Setting(workers),
        batches=batches,
        fetch_s=np.full(n, fetch_s),
        compute_s=np.full(n, compute_s),
        cores=4.0,
        running_s=np.zeros(n),
        wait_s=np.full(n, wait_s),
        **more,
    )


def bound_of(given: PipelineInputs | None) -> LoaderBound | None:
    (loader,) = with_bounds([summaries.loader("a.py:1", bound=None)], lambda _: model_of(given))
    return loader.bound


def test_batches_made_between_the_steps_bound_them() -> None:
    bound = bound_of(inputs())
    assert bound.by == LATENCY
    assert (bound.step_s, bound.measured_step_s) == pytest.approx((0.04, 0.04))
    assert bound.parts_s[COMPUTE] == pytest.approx(0.01)
    assert sum(bound.parts_s.values()) == pytest.approx(bound.step_s)
    enough = bound_of(inputs(workers=2, fetch_s=0.01, compute_s=0.03, wait_s=0.0))
    assert enough.by == COMPUTE


def test_no_limit_lies_above_what_the_run_came_to() -> None:
    # Batches of 30 ms came after 29: the model errs by 2.5 %, which it may.
    bound = bound_of(inputs(wait_s=0.029, compute_s=0.001))
    assert bound.measured_step_s == pytest.approx(0.03)
    assert max(bound.limits_s.values()) <= bound.measured_step_s < bound.step_s


@pytest.mark.parametrize(("cores", "by"), [(2.0, "CPU"), (8.0, "receive in the main process")])
def test_a_main_process_that_is_kept_from_the_cores_is_bound_by_them(cores: float, by: str) -> None:
    # Four workers burn on two cores: whatever the main process does, receiving mostly, takes long.
    n = 60
    pipeline = Pipeline(
        asleep_s=np.zeros(n),
        running_s=np.full(n, 0.04),
        compute_s=np.full(n, 0.003),
        receive_s=np.full(n, 0.012),
        workers=4,
        cores=cores,
    )
    parts = {"blocked": 0.0, "receive in the main process": 0.022, "sampler": 0.0, "compute": 0.006}
    bound = bound_of_pipeline(inputs(workers=4), pipeline, parts)
    assert bound.name == by


@pytest.mark.parametrize(
    ("given", "is_believed"),
    [
        (inputs(wait_s=0.049), True),
        (inputs(wait_s=0.051), False),  # of another pace than was measured
        (inputs(batches=6), True),
        (inputs(batches=5), False),
        (None, False),
    ],
)
def test_when_the_model_is_believed(given: PipelineInputs | None, is_believed: bool) -> None:
    assert (bound_of(given) is not None) is is_believed


@pytest.mark.parametrize(
    ("batches", "passes", "kept", "per_pass"),
    [
        (60, 3, 180, 60),
        (400, 5, 800, 400),
        (MAX_BATCHES, 3, MAX_BATCHES, MAX_BATCHES),
        (3 * MAX_BATCHES, 2, MAX_BATCHES, MAX_BATCHES),
        (20 * MAX_BATCHES, 1, MAX_BATCHES, MAX_BATCHES),
    ],
)
def test_a_long_recording_is_played_in_part(batches, passes, kept, per_pass):
    whole = inputs(batches, passes)
    numbered = replace(whole, fetch_s=np.arange(batches * passes, dtype=float))
    part = shortened(numbered)
    assert (len(part.fetch_s), part.batches) == (kept, per_pass)
    assert len(part.compute_s) == len(part.wait_s) == len(part.running_s) == kept  # type: ignore[arg-type]
    # Whole epochs from the end; of one that is too long its start; of the only one its end.
    first = part.fetch_s[0]
    assert first == batches - kept if passes == 1 else first % batches == 0
    assert first >= batches * (passes - 1) - kept
