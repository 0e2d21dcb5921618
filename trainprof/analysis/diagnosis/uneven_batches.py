"""Batches take unevenly long to make, and too few are kept ready to bridge the long ones.

What it means: on average the workers keep up with training. But batches are handed out in order, so
that one which takes long holds up all that are made behind it, and what was ready is used up
meanwhile. Each worker keeps prefetch_factor batches ahead (2, where nothing is said).

How it is measured: the recorded making of each batch, in its order, played through torch's pipeline
with the same workers and more batches ahead: most of the wait goes.

When it is wrong: where the long ones come by chance of this run (a busy disk, a neighbour); where
they come close together, so that no buffer lasts.

What to do: the named prefetch_factor, which takes memory for the batches that wait; or batches of
more even cost (lengths sorted into buckets). in_order=False hands out what is ready first: other
batches then come in another order from run to run.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.diagnosis.loader_change import (
    WAITED_FROM,
    call_with,
    finding,
    gain_of_cause,
    of_cause,
)
from trainprof.analysis.diagnosis.waiting import UNEVEN
from trainprof.analysis.diagnosis.wording import span
from trainprof.analysis.finding import Finding
from trainprof.analysis.verdict_level import percent

ID: Final = "uneven_batches"
KEYS: Final[tuple[str, ...]] = ("data_wait", "first_batch")
THRESHOLDS: Final = WAITED_FROM


def find(case: Case) -> Finding | None:
    fed = of_cause(case, ID, UNEVEN)
    if fed is None or fed.inputs is None or fed.measured is None or fed.cause is None:
        return None
    setting, gain = fed.cause.setting, gain_of_cause(case, fed)
    if setting is None or gain is None:
        return None
    usual_s, long_s = np.quantile(fed.inputs.fetch_s, (0.5, 0.95)).tolist()
    title = (
        f"batches take unevenly long to make (half of them under {span(usual_s)}, one in twenty "
        f"over {span(long_s)}), and those kept ready run out: training waits "
        f"{span(fed.measured.wait_s)} of {span(fed.measured.step_s)} a batch, "
        f"{percent(fed.wait_share)} of training"
    )
    change = {"prefetch_factor": setting.prefetch}
    return finding(
        case,
        fed,
        ID,
        title,
        gain,
        advice=call_with(fed.loader, change),
        change=change,
        evidence={"usual_batch_s": usual_s, "long_batch_s": long_s},
    )
