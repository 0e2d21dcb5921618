"""Each pass over the data takes long to begin, and not for its workers.

What it means: before the first batch of each pass something is worked out or read anew: a sampler
that sorts or shuffles by its own code, a dataset whose __iter__ opens files, torch's permutation of
very many samples. Where `iter(loader)` is called for each step, all of that is done for each.

How it is measured: what creating (or resetting) the iterator and its first `next` take beyond the
making of a usual batch, in all passes but the first; on a GPU, so far as it had nothing to do
meanwhile. Of workers that are started for each pass only what the sampler takes meanwhile counts
here, and nothing where they are started for each step.

When it is wrong: where a pass has to begin with what takes long, as a new shuffle of shards does.

What to do: work it out once, ahead of all passes, and keep it; in torch or NumPy instead of Python
(torch.argsort of lengths, not sorted with a key), but draw anew in each pass what is random in it;
keep one iterator instead of next(iter(loader)). One iterator gives other batches: all of a pass in
turn, where each step had the first of a new one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from trainprof.analysis.code_figures import HotLine
from trainprof.analysis.diagnosis.case import Case, LoaderCase
from trainprof.analysis.diagnosis.changed_inputs import like_the_usual
from trainprof.analysis.diagnosis.gains import as_a_device_lets, outside_steps
from trainprof.analysis.diagnosis.loader_cautions import (
    DRAWN_ANEW,
    one_iterator,
)
from trainprof.analysis.diagnosis.loader_change import costliest, finding
from trainprof.analysis.diagnosis.rule import Threshold
from trainprof.analysis.diagnosis.wording import around, caller, place, share_of, span
from trainprof.analysis.finding import Finding
from trainprof.analysis.loader_figures import Loader
from trainprof.analysis.looks import least_share
from trainprof.analysis.passes import EVALUATION
from trainprof.analysis.pipeline import predict
from trainprof.analysis.verdict_level import percent

ID: Final = "slow_pass_starts"
KEYS: Final[tuple[str, ...]] = ("loader_start", "first_batch")
THRESHOLDS: Final = {
    "share": Threshold(0.03, "of training: what is worth a change"),
}
# Of what is lost: from here on the sampler is what takes it.
_MOST: Final = 0.5
# Of the mean of later passes: where the median one takes less to begin, few take most of it.
_LIKE_THE_OTHERS: Final = 0.5
# The making of a batch, while all workers make their first: on fewer cores, as a rule.
_AT_ONCE: Final = 2.0


def find(case: Case) -> Finding | None:
    least = case.threshold(ID, "share", THRESHOLDS["share"].value)
    found = costliest(case, (*case.feeding, *case.evaluating), lost_s, least)
    if found is None:
        return None
    spent_s, fed = found
    loader = fed.loader
    is_each = loader.is_each_step
    took_s = lost_s(fed)
    each = span(took_s / (loader.passes - 1))
    is_of_few = not is_each and _is_of_few(fed)
    told = f"{each} longer than a usual batch takes, {percent(spent_s / case.training_s)}"
    what = f"the first batch of each of {loader.passes} passes takes"
    if is_each:
        what = f"an iterator is made for each of {loader.iterations} batches, which takes"
    elif loader.passes == 2:
        what = "the first batch of the second pass takes"
    elif is_of_few:
        what = f"the first batches of the {loader.passes - 1} passes after the first take"
        told = (
            f"{span(took_s)} longer in all than usual batches, some far longer than others, "
            f"{percent(spent_s / case.training_s)}"
        )
    line = _line(case, fed, took_s)
    return finding(
        case,
        fed,
        ID,
        f"{what} {told} of training",
        as_a_device_lets(case, fed, outside_steps(case, spent_s)),
        advice=_advice(loader, took_s, is_each_step=is_each, is_of_few=is_of_few),
        cautions=_cautions(loader),
        also=[] if line is None or is_each else ["; ".join([_where(line), *caller(line)])],
        evidence={
            "starts_s": fed.starts_s,
            "passes": loader.passes,
            "lost_s": spent_s,
            "sampler_at_starts_s": loader.sampler_starts_s,
        },
        site=line.site if line is not None and not line.is_likely else None,
        is_of_making=False,
    )


def lost_s(fed: LoaderCase) -> float:
    """Returns what the beginnings of all passes but the first take beyond a usual batch."""
    loader = fed.loader
    if loader.passes < 2:
        return 0.0
    sampler_s = loader.sampler_starts_s or 0.0
    lives_on = loader.persistent_workers and not loader.is_rebuilt
    if loader.num_workers and not lives_on:
        return 0.0 if loader.is_each_step else sampler_s
    fetch = loader.fetch
    if fetch is None or fetch.wall_s is None or loader.later_starts_s is None:
        return sampler_s
    # Without workers a batch is made in the first `next`; workers begin theirs all at once.
    usual_s = fetch.wall_s.mean
    if loader.num_workers:
        usual_s = _AT_ONCE * usual_s + (loader.receive_s or 0.0) / max(loader.iterations, 1)
        if fed.inputs is not None:
            # Many on few cores take longer for their first, all at once, than twice a usual one.
            first = predict(like_the_usual(fed.inputs)).first_batch_s
            usual_s = max(usual_s, first.high + fed.inputs.reset_s)
    return max(loader.later_starts_s - (loader.passes - 1) * usual_s, 0.0)


def _line(case: Case, fed: LoaderCase, spent_s: float) -> HotLine | None:
    """Returns the line that most of the beginnings goes to, if it is much."""
    if fed.loader.num_workers and not _is_of_sampler(fed.loader, spent_s):
        return fed.hot_line()  # the training thread only waits
    if fed.loader.role == EVALUATION:
        return None if _is_of_sampler(fed.loader, spent_s) else _line_of_making(fed, spent_s)
    known = [line for part in KEYS if (line := case.hot_line(part)) is not None]
    return max(known, key=lambda one: one.seconds or 0.0, default=None)


def _line_of_making(fed: LoaderCase, spent_s: float) -> HotLine | None:
    """Returns the line of all batches that most of the first ones must go to.

    Looks at the training thread tell the parts of evaluation from no others.
    """
    loader, line = fed.loader, fed.hot_line()
    fetch, first = loader.fetch, loader.first_batch_s
    if line is None or first is None or fetch is None or fetch.wall_s is None:
        return None
    beyond_s = (first.mean - fetch.wall_s.mean) * first.n
    made_s = fetch.wall_s.mean * fetch.n
    # Making an iterator is no part of making batches.
    if made_s <= 0 or beyond_s < _MOST * spent_s:
        return None
    of_starts = min(beyond_s / made_s, 1.0)
    known = least_share(line.share, line.looks / line.share)
    least = (known - (1 - of_starts)) / of_starts
    if least < _MOST:
        return None
    return replace(line, share=least, line_share=None, is_at_least=True, looks=0)


def _is_of_sampler(loader: Loader, spent_s: float) -> bool:
    return (loader.sampler_starts_s or 0.0) >= _MOST * spent_s


def _where(line: HotLine) -> str:
    if line.is_likely:
        return f"most of it seems to go to {place(line)} and around it"
    return f"{share_of(line)} of it goes to {place(line)}{around(line)}"


def _is_of_few(fed: LoaderCase) -> bool:
    """Whether most passes begin far sooner than a few do."""
    loader = fed.loader
    if loader.init_s is None or loader.first_batch_s is None or loader.passes < 3:
        return False
    usual_s = loader.init_s.p50 + loader.first_batch_s.p50
    return usual_s < _LIKE_THE_OTHERS * (loader.later_starts_s or 0.0) / (loader.passes - 1)


def _cautions(loader: Loader) -> list[str]:
    return [] if loader.is_each_step or loader.draws_in_order else [DRAWN_ANEW]


def _advice(loader: Loader, spent_s: float, *, is_each_step: bool, is_of_few: bool) -> str:
    if is_each_step:
        return one_iterator(loader)
    if _is_of_sampler(loader, spent_s):
        return "work out what the sampler needs once, ahead of all passes; or by torch or NumPy"
    if is_of_few:
        return (
            "do ahead of the passes, or while one before goes on, what some of them begin with: "
            "other files to open, a disk or a server that is slow at first"
        )
    if loader.is_iterable:
        return "open and read once, ahead of all passes, what __iter__ of the dataset begins with"
    return "do once, ahead of all passes, what each of them begins with"
