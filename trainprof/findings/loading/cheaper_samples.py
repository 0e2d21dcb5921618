"""The making of a batch without the line of the user's that takes most of it."""

from __future__ import annotations

from typing import Final

from trainprof.analysis.summary.code import HotLine
from trainprof.analysis.summary.loader import Loader
from trainprof.findings.gain import Gain, of_inputs
from trainprof.findings.loading.model_inputs import without_part
from trainprof.findings.loading.waiting import collate_share
from trainprof.findings.run_context import Case, LoaderCase
from trainprof.findings.wording import place

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

    With what computing takes longer beside workers, which then have nothing to do. None where that
    is neither a line of the user's nor a library's dataset, or it is not known.
    """
    if fed.inputs is None or (fed.hot_line() is None and not _is_made_by_library(case, fed)):
        return None
    return None if fed.inputs is None else of_inputs(case, fed, without_part(fed.inputs, 1.0))


def _is_made_by_library(case: Case, fed: LoaderCase) -> bool:
    """Whether training waits in its own thread for what a library's dataset computes."""
    if fed.loader.num_workers or fed.loader.holds_tensors:
        return False
    waiting = (line for line in case.summary.part_lines if line.part == "data_wait")
    is_seen = any(line.share >= _HALF for line in waiting)
    return is_seen and collate_share(fed.loader.fetch) < _HALF
