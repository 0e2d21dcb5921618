"""Putting samples together into a batch takes longer than making the samples.

What it means: the loader's own collate function (padding, stacking, tokenizing in Python) is most
of the work on a batch. It runs where the batch is made: in the workers, or without them between the
steps. Only a function of the script's own counts, also where Hugging Face's Trainer keeps it in a
collator of its own.

How it is measured: the time from the call of the collate function to the end of each fetch, against
all of the fetch; and the recorded making of batches played again without it.

When it is wrong: where the function does what the dataset could not do any cheaper (reading a batch
in one go): then it is the batch that is slow, and not the putting together.

What to do: work on whole arrays instead of element by element (pad_sequence, torch.stack, one
tensor filled row by row), do once in the dataset what does not depend on the other samples, and
store what comes out the same each epoch.
"""

from __future__ import annotations

from typing import Final

from trainprof.analysis.diagnosis.case import Case, LoaderCase
from trainprof.analysis.diagnosis.changed_inputs import without_collate
from trainprof.analysis.diagnosis.gains import of_inputs
from trainprof.analysis.diagnosis.loader_change import (
    WAITED_FROM,
    call_with,
    finding,
    gain_of_cause,
    of_cause,
    with_workers,
)
from trainprof.analysis.diagnosis.rule import Threshold
from trainprof.analysis.diagnosis.tuneable import rerun_words
from trainprof.analysis.diagnosis.waiting import (
    COLLATE_SHARE,
    COLLATING,
    collate_share,
)
from trainprof.analysis.diagnosis.wording import span
from trainprof.analysis.finding import Finding
from trainprof.analysis.verdict_level import percent

ID: Final = "slow_collate"
KEYS: Final[tuple[str, ...]] = ("data_wait", "first_batch")
THRESHOLDS: Final = {
    **WAITED_FROM,
    "collate_share": Threshold(COLLATE_SHARE, "most of making a batch"),
}
_ADVICE: Final = "a collate function that works on whole arrays"


def find(case: Case) -> Finding | None:
    fed = of_cause(case, ID, COLLATING)
    if fed is None or fed.inputs is None or fed.measured is None or fed.loader.fetch is None:
        return None
    part = collate_share(fed.loader.fetch)
    worked_s, batches = fed.loader.receive_cpu_s, max(fed.loader.iterations, 1)
    received_s = None if worked_s is None else worked_s / batches
    gain = of_inputs(case, fed, without_collate(fed.inputs, part, received_s))
    made = fed.loader.fetch.wall_s
    if gain is None or made is None:
        return None
    title = (
        f"putting samples together takes {span(part * made.mean)} of the {span(made.mean)} that a "
        f"batch is made in, {percent(part)}; training waits {percent(fed.wait_share)} of its time"
    )
    return finding(
        case,
        fed,
        ID,
        title,
        gain,
        advice=_ADVICE,
        also=_also(case, fed),
        evidence={"collate_share": part, "collate_per_batch_s": part * made.mean},
        site=_site(fed),
    )


def _also(case: Case, fed: LoaderCase) -> list[str]:
    """Returns what workers would give; nothing where they would hardly give more than they take."""
    gain = gain_of_cause(case, fed)
    if fed.cause is None or fed.cause.setting is None or gain is None:
        return []
    low, high = gain.training
    if low * high < 1:
        return []
    workers = call_with(fed.loader, with_workers(fed, fed.cause.setting))
    if low < 1:
        rerun = rerun_words(case, fed, fed.cause.setting.workers)
        return [f"whether {workers} helps as well only a rerun tells: {rerun}"]
    return [f"as it is, {workers} would help too: steps {low:.2f} to {high:.2f} x as fast"]


def _site(fed: LoaderCase) -> str | None:
    """Returns the line of the collate function that was met most, else where it begins."""
    begins, line = fed.loader.collate_site, fed.hot_line()
    if line is None or begins is None:
        return begins
    is_inside = any(_file(one) == _file(begins) for one in (line.site, *line.called_from))
    # Who takes more than is left for the dataset is the collate function, or called by it.
    is_its_own = line.share > 1 - collate_share(fed.loader.fetch)
    return line.site if is_inside and is_its_own else begins


def _file(site: str) -> str:
    return site.rpartition(":")[0]
