"""Each worker of a stream makes samples of which it leaves out those that other workers give.

What it means: an IterableDataset shares its samples out among workers by itself: every n-th is a
worker's own. It asks whose a sample is only once the sample is made (read, decoded, tokenized), so
that each of n workers makes n times as many as it gives. More workers make more for nothing.

How it is measured: by the text of the dataset's `__iter__`, the line that compares a running number
modulo the number of workers with a worker's own (or itertools.islice by them), through which all
samples go; and by looks at where workers stand while they make batches: how many met them at what
is done ahead of it. The gain is what the recorded batches would take without the work on samples
that are left out.

When it is wrong: where what stands ahead of it is needed for every sample (records are to be read
one by one to come to the next): then so much of it stays. A stream that selects in other words, or
in another function, is not known.

What to do: ask whose a sample is ahead of the work: of the raw record, line, path or index. Where
even reading is much, give each worker whole files.
"""

from __future__ import annotations

from typing import Final

from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.diagnosis.cheaper_samples import gain_without_share
from trainprof.analysis.diagnosis.gains import larger, of_batches
from trainprof.analysis.diagnosis.loader_change import WAITED_FROM, finding, of_cause
from trainprof.analysis.diagnosis.rule import Threshold
from trainprof.analysis.diagnosis.waiting import LATE_SELECTION, LEFT_OUT_SHARE
from trainprof.analysis.diagnosis.wording import span
from trainprof.analysis.finding import Finding
from trainprof.analysis.verdict_level import percent

ID: Final = "late_selection"
KEYS: Final[tuple[str, ...]] = ("data_wait", "first_batch")
THRESHOLDS: Final = {
    **WAITED_FROM,
    "left_out_share": Threshold(LEFT_OUT_SHARE, "of the making of batches, for what is left out"),
}
_ADVICE: Final = (
    "ask whose a sample is ahead of that work: of the raw record (line, path, index) as it is "
    "read; or give each worker whole files of its own"
)
_CAUTION: Final = (
    "a sample made of several records (a window, a packed sequence), or of a buffer of them, needs "
    "those of others too"
)


def find(case: Case) -> Finding | None:
    fed = of_cause(case, ID, LATE_SELECTION)
    if fed is None or fed.measured is None or fed.loader.late_selection is None:
        return None
    selection, workers = fed.loader.late_selection, fed.loader.num_workers or 0
    gain, measured = gain_without_share(case, fed, fed.loader.left_out_share), fed.measured
    # Late batches set the pace, which is then as much quicker as they are, on whatever cores.
    saved_s = min(measured.wait_s, fed.loader.left_out_share * measured.step_s)
    quicker = of_batches(case, fed, saved_s)
    if gain is None or quicker is None:
        return None
    title = (
        f"each of {workers} workers leaves out {workers - 1} of {workers} samples here once they "
        f"are made, as other workers give them: {percent(selection.share)} of making a batch is "
        f"done ahead of that line, for all of them; training waits {span(measured.wait_s)} of "
        f"{span(measured.step_s)} a batch, {percent(fed.wait_share)} of its time"
    )
    return finding(
        case,
        fed,
        ID,
        title,
        larger(gain, quicker),
        advice=_ADVICE,
        cautions=[_CAUTION],
        evidence={"ahead_share": selection.share, "left_out_share": fed.loader.left_out_share},
        site=selection.site,
    )
