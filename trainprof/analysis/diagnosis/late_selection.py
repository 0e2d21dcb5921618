"""Each worker of a stream makes samples of which it leaves out those that other workers give.

What it means: an IterableDataset shares its samples out among workers by itself: every n-th is a
worker's own, of those of this process or of all ranks. It asks whose a sample is only once the
sample is made (read, decoded, tokenized), so that each of n workers makes n times as many as it
gives. Or it asks ahead of that, but to read a record takes long itself (of one gzip file, say), and
each worker reads all of them. More workers make or read more for nothing.

How it is measured: by the text of the dataset's `__iter__`, the line that compares a running number
modulo the number of workers with a worker's own (or itertools.islice by them, also one that is
returned), through which all samples go; and by looks at where workers stand while they make
batches: how many met them at what is done ahead of it. Those that met a line at which a generator
draws its records, and there no function of the script's own, are at reading. The gain is what the
recorded batches would take without the work on samples that are left out. Where they are there in
time, while computing lacks the cores that workers take, it is the cores' time of that work.

When it is wrong: where what stands ahead of it is needed for every sample (records are to be read
one by one to come to the next): then so much of it stays. Nothing is told where the text shows that
rounds hand something on that later samples need (a running state, a window, what was seen so far);
what an object of another class keeps, or another function changes of what it is given, is not seen.
Where random numbers are drawn ahead of the selection, each worker draws others once the work is
moved. A library's generator that makes samples is taken for reading. Work that a loop begins with
at each record, in no function of its own, too. A stream that selects in other words, or in another
function, is not known.

What to do: ask whose a sample is ahead of the work: of the raw record, line, path or index. Where
reading is much, give each worker whole files.
"""

from __future__ import annotations

from typing import Final

from trainprof.analysis.code_figures import LateSelection
from trainprof.analysis.diagnosis.case import Case, LoaderCase
from trainprof.analysis.diagnosis.cheaper_samples import gain_without_share
from trainprof.analysis.diagnosis.crowded_cores import gain_without_crowding, leaves_out_much
from trainprof.analysis.diagnosis.gains import Gain, larger, of_batches
from trainprof.analysis.diagnosis.loader_change import WAITED_FROM, finding, of_cause
from trainprof.analysis.diagnosis.rule import Threshold
from trainprof.analysis.diagnosis.waiting import LATE_SELECTION, LEFT_OUT_SHARE
from trainprof.analysis.diagnosis.wording import span, waited_of_batch
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
_ADVICE_OF_READING: Final = (
    "give each worker whole files of its own: split what all of them read, a file per worker at "
    "least"
)
_CAUTION: Final = (
    "a sample made of several records (a window, a packed sequence), or of a buffer of them, needs "
    "those of others too"
)
_CAUTION_OF_RANDOM: Final = (
    "random numbers are drawn ahead of the selection: moved behind, each worker draws others"
)


def find(case: Case) -> Finding | None:
    fed = of_cause(case, ID, LATE_SELECTION)
    if fed is None:
        beside = [_beside_computing(case, one) for one in case.feeding]
        return next((one for one in beside if one is not None), None)
    if fed.measured is None or fed.loader.late_selection is None:
        return None
    selection = fed.loader.late_selection
    if selection.is_carried:
        return None  # nor would more workers gain: each makes all of it
    share = _share_to_go(case, fed)
    gain, measured = gain_without_share(case, fed, share), fed.measured
    # Late batches set the pace, which is then as much quicker as they are, on whatever cores.
    saved_s = min(measured.wait_s, share * measured.step_s)
    quicker = of_batches(case, fed, saved_s)
    if gain is None or quicker is None:
        return None
    waits = (
        f"training waits {waited_of_batch(measured, fed.wait_share)}, "
        f"{percent(fed.wait_share)} of its time"
    )
    return _told(case, fed, selection, waits, larger(gain, quicker))


def _beside_computing(case: Case, fed: LoaderCase) -> Finding | None:
    """Returns what is to be said where batches are there in time, and computing lacks the cores."""
    selection, fetch, inputs = fed.loader.late_selection, fed.loader.fetch, fed.inputs
    whole = gain_without_crowding(case, fed) if leaves_out_much(case, fed) else None
    if whole is None or selection is None or fetch is None or inputs is None or not fed.measured:
        return None
    if selection.is_carried:
        return None
    step_s = fed.measured.step_s
    # The cores' time that is left out goes, as long as it is cores that all wait for.
    left_out_s = _share_to_go(case, fed) * (fetch.running_s or 0.0) / max(fetch.n, 1)
    gain = of_batches(case, fed, min(left_out_s / inputs.cores, (1 - 1 / whole.likely) * step_s))
    if gain is None:
        return None
    waits = (
        f"batches are there in time, but workers share the cores that training computes on with "
        f"it, for {span(step_s)} a batch"
    )
    return _told(case, fed, selection, waits, gain)


def _share_to_go(case: Case, fed: LoaderCase) -> float:
    """Returns what the change told spares of the making of batches."""
    return fed.loader.left_out_share if _is_reading(case, fed) else fed.loader.made_for_others_share


def _is_reading(case: Case, fed: LoaderCase) -> bool:
    """Whether it takes the reading of records to make it much that is left out."""
    least = case.threshold(ID, "left_out_share", LEFT_OUT_SHARE)
    return fed.loader.made_for_others_share < least


def _told(case: Case, fed: LoaderCase, selection: LateSelection, waits: str, gain: Gain) -> Finding:
    who = f"each of {fed.loader.num_workers or 0} workers"
    if is_reading := _is_reading(case, fed):
        title = (
            f"{who} reads all records, also those that it leaves out here, as other workers give "
            f"them: {percent(selection.read_share)} of making a batch is reading; {waits}"
        )
    else:
        title = (
            f"{who} leaves out the samples of the others here once they are made: "
            f"{percent(selection.share)} of making a batch is done ahead of that line, for all of "
            f"them; {waits}"
        )
    return finding(
        case,
        fed,
        ID,
        title,
        gain,
        advice=_ADVICE_OF_READING if is_reading else _ADVICE,
        cautions=[] if is_reading else _cautions(selection),
        evidence={
            "ahead_share": selection.share,
            "read_share": selection.read_share,
            "left_out_share": _share_to_go(case, fed),
        },
        site=selection.site,
    )


def _cautions(selection: LateSelection) -> list[str]:
    return [_CAUTION, *([_CAUTION_OF_RANDOM] if selection.is_random else [])]
