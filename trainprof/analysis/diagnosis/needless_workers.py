"""Workers cost training more than they save it: a batch is made sooner than it is handed over.

What it means: a batch that a worker has made is packed, sent through a pipe and taken over by the
training process, and its index is sent the same way. Where a batch is made in a fraction of a
millisecond, that takes longer than making it, and workers and training share the cores besides.

How it is measured: the recorded making of each batch played through the pipeline without workers: a
step is a tenth shorter at least than with them, in the model and measured, what it takes to start
and end them included.

When it is wrong: where batches are far more expensive later in the run; where the workers are there
for another reason (a library that is not safe in the training process).

What to do: num_workers=0. The arguments that are for workers alone (persistent_workers,
prefetch_factor, multiprocessing_context) have to go with them: torch refuses those without workers.
A dataset that asks get_worker_info(), or that worker_init_fn sets up, has to work without them
first.
"""

from __future__ import annotations

from typing import Any, Final

from trainprof.analysis.diagnosis.case import Case, LoaderCase
from trainprof.analysis.diagnosis.gains import Gain, as_a_device_lets, outside_steps
from trainprof.analysis.diagnosis.loader_change import (
    WAITED_FROM,
    advised,
    finding,
    of_cause,
)
from trainprof.analysis.diagnosis.waiting import NEEDLESS_WORKERS, WAIT_SHARE, without_workers
from trainprof.analysis.diagnosis.whole_batches_call import (
    call_for_whole_batches,
    cautions_of_whole_batches,
)
from trainprof.analysis.diagnosis.wording import span, waited_of_batch
from trainprof.analysis.finding import Finding
from trainprof.analysis.least_gain import LEAST_GAIN
from trainprof.analysis.loader_figures import Loader
from trainprof.analysis.pipeline import Prediction
from trainprof.analysis.pipeline_scenario import running_of
from trainprof.analysis.verdict_level import percent

ID: Final = "needless_workers"
KEYS: Final[tuple[str, ...]] = ("data_wait", "first_batch", "loader_start")
# Of a loader which `as_good_without` has something for.
HARDLY_LONGER: Final = "without workers steps would take hardly longer"
THRESHOLDS: Final = WAITED_FROM
# Batches as quick as these are made up to so many times as fast one after the other, by code and
# from data that no step has driven out of the caches meanwhile (sample_scripts/python_heavy.py: 3).
QUICK_BATCH_S: Final = 0.001
WARM_TIMES: Final = 4.0
# The change itself.
WITHOUT: Final[dict[str, Any]] = {"num_workers": 0}


def find(case: Case) -> Finding | None:
    fed = of_cause(case, ID, NEEDLESS_WORKERS)
    if fed is None or fed.measured is None or fed.cause is None or fed.cause.found is None:
        return None
    loader = fed.loader
    made_s = loader.fetch.wall_s.mean if loader.fetch and loader.fetch.wall_s else None
    if made_s is None:
        return None
    one, several = "its worker costs more than it saves", "its workers cost more than they save"
    title = (
        f"{one if loader.num_workers == 1 else several}: making a batch takes {span(made_s)}, and "
        f"training waits {waited_of_batch(fed.measured, fed.wait_share)} to be "
        f"handed one, {percent(fed.wait_share)} of training"
    )
    around_s = fed.exposed * (fed.starts_s + loader.end_s)
    if around_s >= WAIT_SHARE * case.training_s:
        passes = f"each of {loader.passes} passes" if loader.passes > 1 else "the pass"
        title += f"; starting and ending them for {passes} {percent(around_s / case.training_s)}"
    advice, change = advised(loader, WITHOUT)
    return finding(
        case,
        fed,
        ID,
        title,
        gain_without(case, fed, fed.cause.found),
        advice=advice,
        change=change,
        alters=WITHOUT,
        also=_also(loader),
        is_of_making=False,
    )


def gain_without(case: Case, fed: LoaderCase, found: Prediction) -> Gain:
    """Returns what training gains with the starts of workers, and the steps."""
    assert fed.measured is not None
    loader, step_s = fed.loader, fed.measured.step_s
    around_s = fed.starts_s + loader.end_s - loader.passes * found.first_batch_s.mid
    # What the sampler takes meanwhile stays, in all passes.
    around_s -= (loader.sampler_starts_s or 0.0) * loader.passes / max(loader.passes - 1, 1)
    around_s = fed.exposed * max(around_s, 0.0)
    saved_s = [
        max(loader.iterations * (step_s - one) + around_s, 0.0)
        for one in (found.step_s.high, found.step_s.mid, _shortest_step_s(case, fed, found))
    ]
    low, mid, high = (outside_steps(case, one) for one in saved_s)
    gain = Gain(
        training=(low.likely, high.training[1]),
        run=(low.run[1], high.run[1]),
        likely=mid.likely,
        saved_s=mid.saved_s,
        is_at_most=False,
        of_steps=False,
    )
    return as_a_device_lets(case, fed, gain)


def _shortest_step_s(case: Case, fed: LoaderCase, found: Prediction) -> float:
    """Returns what a step takes at the least, where batches are quick and the cores were full.

    By how much computing was slower for the workers beside it no recording tells: at the most by
    as many as shared its core.
    """
    cores, workers = case.cores(), fed.loader.num_workers or 0
    if fed.inputs is None or cores is None or case.is_on_device:
        return found.step_s.low
    cores = min(cores, fed.inputs.cores / fed.inputs.ranks_per_core)
    sharing = max((workers + 1) / cores, 1.0)
    making_s = float(running_of(fed.inputs, "mid").mean())
    if making_s >= QUICK_BATCH_S * sharing:
        return found.step_s.low
    computing_s = float(fed.inputs.compute_s.mean())
    return min(found.step_s.low, computing_s / sharing + making_s / WARM_TIMES)


def _also(loader: Loader) -> list[str]:
    if not loader.whole_batches:
        return []
    told = "; ".join([call_for_whole_batches(loader), *cautions_of_whole_batches(loader)])
    return [f"whole batches at once may give more still: {told}"]


def as_good_without(fed: LoaderCase) -> Prediction | None:
    """Returns the loader without any workers to be started, where steps hardly take longer then."""
    if fed.inputs is None or fed.now is None:
        return None
    found = without_workers(fed.inputs)
    return found if found.step_s.mid <= (1 + LEAST_GAIN) * fed.now.step_s.mid else None


def shorter_without(fed: LoaderCase) -> Prediction | None:
    """Returns the loader without any workers to be started, where its passes are shorter then."""
    if fed.inputs is None or fed.measured is None:
        return None
    loader = fed.loader
    found = without_workers(fed.inputs)
    longer_s = loader.iterations * (found.step_s.mid - fed.measured.step_s)
    return found if longer_s < fed.starts_s + loader.end_s else None


def made_in(fed: LoaderCase) -> str:
    """Returns how long the making of a batch takes, in words."""
    assert fed.inputs is not None
    return span(float(fed.inputs.fetch_s.mean()))
