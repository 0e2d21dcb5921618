"""The dataset gives nearly all batches to few of its workers; the others have nothing to do.

What it means: an IterableDataset shares its data out among workers by itself. Where it does so by
whole files (shards) and there are fewer of them than workers, or one holds most of the data, the
other workers soon come to their end.

How it is measured: how many batches each worker made. The gain is what the recorded batches would
take if they were spread evenly over the same workers on the same cores.

When it is wrong: in a run that was cut off before the other workers' turn came.

What to do: at least as many shards as workers, of one size; or every n-th sample for each worker:
itertools.islice(records, info.id, None, info.num_workers) with info = get_worker_info(), of records
that no work was done on yet.
"""

from __future__ import annotations

from typing import Final

from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.diagnosis.loader_change import WAITED_FROM, finding, gain_of_cause, of_cause
from trainprof.analysis.diagnosis.rule import Threshold
from trainprof.analysis.diagnosis.waiting import FAIR_SHARES, IDLE_WORKERS, batches_by_worker
from trainprof.analysis.diagnosis.wording import waited_of_batch
from trainprof.analysis.finding import Finding
from trainprof.analysis.verdict_level import percent

ID: Final = "idle_workers"
KEYS: Final[tuple[str, ...]] = ("data_wait", "first_batch")
THRESHOLDS: Final = {
    **WAITED_FROM,
    "fair_shares": Threshold(FAIR_SHARES, "of the batches, made by one worker"),
}


def find(case: Case) -> Finding | None:
    fed = of_cause(case, ID, IDLE_WORKERS)
    if fed is None or fed.measured is None:
        return None
    gain = gain_of_cause(case, fed)
    if gain is None:
        return None
    made = batches_by_worker(fed.loader)
    most = max(made.values()) / sum(made.values())
    title = (
        f"one of {fed.loader.num_workers} workers makes {percent(most)} of the batches, the "
        f"dataset gives the others little: training waits "
        f"{waited_of_batch(fed.measured, fed.wait_share)}, {percent(fed.wait_share)} of training"
    )
    return finding(
        case,
        fed,
        ID,
        title,
        gain,
        advice="share the data out evenly: as many shards as workers, or every n-th sample, by "
        "get_worker_info()",
        evidence={"batches_by_worker": {str(number): n for number, n in made.items()}},
    )
