"""The making of a batch without the line of the user's that takes most of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from trainprof.analysis.code_figures import HotLine
from trainprof.analysis.diagnosis.case import Case, LoaderCase
from trainprof.analysis.diagnosis.changed_inputs import without_part
from trainprof.analysis.diagnosis.crowding import crowding_of
from trainprof.analysis.diagnosis.gains import Gain, most_of_loading, of_inputs, times_without
from trainprof.analysis.diagnosis.waiting import collate_share
from trainprof.analysis.diagnosis.wording import place
from trainprof.analysis.hot_lines import MAKING
from trainprof.analysis.loader_figures import Loader
from trainprof.analysis.passes import TRAINING

_HALF: Final = 0.5
# Hugging Face's, where no line of the user's makes samples: it decodes what is in all columns.
_OF_COLUMNS: Final = "Dataset"


def cheaper_samples(line: HotLine | None, loader: Loader) -> str:
    """Returns the advice to make samples cheaper, with the line to begin at."""
    if line is None:
        columns = ""
        if loader.dataset == _OF_COLUMNS:
            columns = (
                "of a datasets.Dataset only the columns that are used (with_format(columns=)); "
            )
        return (
            f"cheaper samples: {columns}what comes out the same each time (decoded and resized "
            "pictures, tokens, encodings) made once and stored"
        )
    return f"cheaper samples: {place(line)} first"


def own_share(line: HotLine) -> float:
    """Returns what of its part a line takes by itself, as far as anybody could look."""
    return line.share if line.line_share is None else line.line_share


def gain_of_cheaper_samples(case: Case, fed: LoaderCase) -> Gain | None:
    """Returns what it would give at most if batches cost nothing to make.

    None where that is neither a line of the user's nor a library's dataset, or it is not known.
    """
    if fed.hot_line() is None and not _is_made_by_library(case, fed):
        return None
    return _gain_without_share(case, fed, 1.0)


def _is_made_by_library(case: Case, fed: LoaderCase) -> bool:
    """Whether training waits in its own thread for what a library's dataset computes."""
    if fed.loader.num_workers or fed.loader.holds_tensors:
        return False
    waiting = (line for line in case.summary.part_lines if line.part == "data_wait")
    is_seen = any(line.share >= _HALF for line in waiting)
    return is_seen and collate_share(fed.loader.fetch) < _HALF


def gain_of_line(case: Case, fed: LoaderCase, line: HotLine) -> Gain | None:
    """Returns what training would gain at most without a line's function; None: not known.

    Who mends the line may do without the others around it.
    """
    return _gain_without_share(case, fed, _most_share(fed, line))


def _gain_without_share(case: Case, fed: LoaderCase, share: float) -> Gain | None:
    """Returns what training would gain at most without a share of making batches; None: not known.

    With what computing takes longer beside workers, which then have less to do.
    """
    if fed.inputs is None:
        return None
    inputs, crowding = fed.inputs, None if case.is_on_device else crowding_of(fed.inputs)
    if crowding is not None and crowding.is_sure:
        mean_s = float(inputs.compute_s.mean())
        kept = max(1 - crowding.saved_s / mean_s, 0.0) if mean_s > 0 else 1.0
        inputs = replace(inputs, compute_s=inputs.compute_s * kept)
    return of_inputs(case, fed, without_part(inputs, share))


def without_line(case: Case, fed: LoaderCase) -> float | None:
    """Returns how many times as fast steps were without the line that most of a batch goes to.

    On a device no more than it was idle for the loader. None where workers make them, where no step
    waits for them but evaluation does, and where that line is not known.
    """
    if fed.loader.role != TRAINING:
        return None
    line, rates = fed.hot_line(), fed.measured
    if line is None or fed.loader.num_workers or rates is None:
        return None
    kept_s = rates.step_s - own_share(line) * rates.wait_s
    kept_s = max(kept_s, rates.step_s / times_without(1.0))
    most = most_of_loading(case, fed)
    if kept_s <= 0:
        return None if most is None else most.likely
    times = fed.of_all_steps(rates.step_s / kept_s)
    return times if most is None else min(times, most.likely)


def _most_share(fed: LoaderCase, line: HotLine) -> float:
    """Returns what of the making of batches a line's function takes at most.

    Where at many moments nobody could look: all that is not known to go to others.
    """
    if not line.is_at_least:
        return line.share
    others = sum(x.share for x in fed.loader.hot_lines if x.part == MAKING and x is not line)
    return max(line.share, 1 - others)
