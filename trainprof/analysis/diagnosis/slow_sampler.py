"""Drawing the indices of a batch costs the training process: workers do not draw.

What it means: the sampler's own code (weights, shuffling a huge list, a batch sampler that sorts)
runs in the training process at each batch, whatever the number of workers.

How it is measured: the time that the sampler's iterator takes inside `next` on the loader's.

When it is wrong: where the first batch alone is slow (a permutation drawn once per epoch): that is
in the first batch of a pass, not here.

What to do: draw all indices of an epoch at once, with torch or numpy, and hand them out; what is
random in them anew in each.
"""

from __future__ import annotations

from typing import Final

from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.diagnosis.changed_inputs import drawn_at_once
from trainprof.analysis.diagnosis.gains import of_inputs
from trainprof.analysis.diagnosis.loader_cautions import DRAWN_ANEW
from trainprof.analysis.diagnosis.loader_change import WAITED_FROM, finding, of_cause
from trainprof.analysis.diagnosis.waiting import SAMPLING
from trainprof.analysis.diagnosis.wording import place, share_of, span
from trainprof.analysis.finding import Finding
from trainprof.analysis.verdict_level import percent

ID: Final = "slow_sampler"
KEYS: Final[tuple[str, ...]] = ("data_wait", "first_batch")
THRESHOLDS: Final = WAITED_FROM


def find(case: Case) -> Finding | None:
    fed = of_cause(case, ID, SAMPLING)
    if fed is None or fed.inputs is None or fed.measured is None:
        return None
    gain = of_inputs(case, fed, drawn_at_once(fed.inputs))
    if gain is None:
        return None
    drawn_s = fed.inputs.sampler_s
    title = (
        f"drawing the indices of a batch takes {span(drawn_s)} of {span(fed.measured.step_s)} in "
        f"the training process; training waits {percent(fed.wait_share)} of its time"
    )
    advice = "a sampler that works out beforehand what it needs; workers do not draw"
    line = case.hot_line("data_wait")
    if line is not None:
        advice += f"; {place(line)} takes {share_of(line)} of the wait for data"
    return finding(
        case,
        fed,
        ID,
        title,
        gain,
        advice=advice,
        cautions=[DRAWN_ANEW],
        evidence={"sampler_per_batch_s": drawn_s},
        site=None if line is None else line.site,
        is_of_making=False,
    )
