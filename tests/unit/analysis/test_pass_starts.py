"""What passes begin with: the first of a run, single later ones, and what all of that comes to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, median

import pytest
from support import summaries
from support.cases import Planted, case_of

from trainprof.analysis.code_figures import HotLine
from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.diagnosis.diagnose import diagnose
from trainprof.analysis.diagnosis.together import together
from trainprof.analysis.finding import Finding


def begun(*starts_s: float) -> Case:
    """Returns a run whose passes take so long to begin, without workers."""
    planted = Planted(fetch_s=0.0002, compute_s=0.02, passes=len(starts_s))
    first = summaries.statistics(
        fmean(starts_s), n=len(starts_s), p50=median(starts_s), max=max(starts_s)
    )
    planted.loader = replace(
        planted.loader,
        first_batch_s=first,
        first_start_s=starts_s[0],
        later_starts_s=sum(starts_s[1:]),
    )
    return case_of(planted)


def only(case: Case) -> Finding:
    [finding] = diagnose(case).findings
    return finding


@pytest.mark.parametrize(
    ("starts_s", "words"),
    [
        (
            (0.01, 4.0, 0.01),
            "the first batches of the 2 passes after the first take 4.01 s longer in all than "
            "usual batches, some far longer than others",
        ),
        ((0.01, 4.0), "the first batch of the second pass takes 4.00 s longer than a usual batch"),
        ((2.0, 2.0, 2.0), "the first batch of each of 3 passes takes 2.00 s longer than a usual"),
        ((0.01, 2.0, 2.0), "the first batch of each of 3 passes takes 2.00 s longer than a usual"),
    ],
)
def test_later_passes_that_begin_late_are_told_as_they_are(
    starts_s: Sequence[float], words: str
) -> None:
    """And not as a first batch that came late, which was there at once or is one of many."""
    case = begun(*starts_s)
    finding = only(case)
    assert finding.id == "slow_pass_starts"
    assert finding.title.startswith(words)
    assert ("what some of them begin with" in finding.advice) is ("some far" in finding.title)
    assert finding.recoverable_s == pytest.approx(sum(starts_s[1:]), rel=0.01)
    assert together(case, [finding]) is None


OPENING = HotLine("making batches", "data.py:9", "__iter__", ["train.py:60"], 90, 0.9, 8.0)
DECODING = HotLine("making batches", "data.py:12", "decode", [], 90, 0.3, 2.0)
OF_TRAINING = HotLine("first_batch", "train.py:50", "train", [], 90, 0.9, 8.0)


def evaluating(
    *lines: HotLine, init_s: float = 0.0, sampler_s: float = 0.0, workers: int = 0
) -> Finding:
    """Returns what is said of passes of evaluation whose starts are 2 s of 2.02 s of making."""
    planted = Planted(
        fetch_s=0.0002,
        compute_s=0.001,
        passes=4,
        role="evaluation",
        workers=workers,
        is_persistent=workers > 0,
    )
    assert planted.loader.fetch is not None
    first_s = 2.0 - init_s
    made_s = 4 * first_s + 196 * 0.0002
    wall = summaries.statistics(made_s / 200, n=200)
    planted.loader = replace(
        planted.loader,
        id=1,
        site="train.py:44",
        first_batch_s=summaries.statistics(first_s, n=4),
        init_s=summaries.statistics(init_s, n=4),
        first_start_s=2.0,
        later_starts_s=6.0,
        sampler_starts_s=sampler_s,
        fetch=replace(planted.loader.fetch, wall_s=wall),
        hot_lines=list(lines),
    )
    training = Planted(workers=2, fetch_s=0.002, compute_s=0.05)
    case = case_of(training, planted, parts={"evaluation": 10.0})
    case = replace(case, summary=replace(case.summary, part_lines=[OF_TRAINING]))
    [told] = [one for one in diagnose(case).findings if one.id == "slow_pass_starts"]
    return told


def test_of_evaluation_its_own_line_is_named_and_none_of_trainings() -> None:
    told = evaluating(OPENING)
    assert told.site == "data.py:9"
    [line] = [one for one in told.also if "data.py:9 (__iter__)" in one]
    assert line.startswith("at least 82 % of it goes to")
    assert line.endswith("called from train.py:60")
    assert evaluating(OPENING, workers=2).site == "data.py:9"


@pytest.mark.parametrize(
    ("lines", "how"),
    [
        ((), {}),
        ((DECODING,), {}),  # it may lie in later batches alone
        ((OPENING,), {"init_s": 1.5}),  # it began before any batch was made
        ((OPENING,), {"sampler_s": 4.0}),
    ],
)
def test_of_evaluation_whose_starts_may_go_elsewhere_the_loader_is_named(
    lines: Sequence[HotLine], how: dict[str, float]
) -> None:
    told = evaluating(*lines, **how)
    assert told.site == "train.py:44"
    assert not any("goes to" in one for one in told.also)


def test_a_first_batch_that_came_late_is_told_with_its_own_time() -> None:
    finding = only(begun(5.0, 0.01, 0.01))
    assert finding.id == "slow_first_batch"
    assert finding.title.startswith("the first batch came 5.00 s after it was asked for")
    # Another one that began late is told apart from it.
    first, later = diagnose(begun(5.0, 0.01, 0.01, 3.0, 0.01)).findings
    assert (first.id, later.id) == ("slow_first_batch", "slow_pass_starts")
    assert first.title.startswith("the first batch came 5.00 s after it was asked for")
    assert "passes after the first take 3.0" in later.title


def test_an_older_run_tells_only_the_longest_start() -> None:
    case = begun(5.0, 0.01, 0.01)
    [fed] = case.feeding
    older = replace(fed, loader=replace(fed.loader, first_start_s=None))
    finding = only(replace(case, feeding=[older]))
    assert finding.evidence["first_batch_s"] == pytest.approx(5.0, rel=0.01)


def told(case: Case, *saved_s: tuple[str, float], loader: int = 0) -> list[Finding]:
    [found] = diagnose(case).findings
    return [
        replace(
            found,
            id=name,
            recoverable_s=seconds,
            predicted_speedup=[1.0, 1.01],
            evidence={"loader_id": loader},
        )
        for name, seconds in saved_s
    ]


@pytest.mark.parametrize(
    ("saved_s", "saved_together_s"),
    [
        # 4.02 s of starts, and no more.
        ((("worker_restart", 3.9), ("slow_pass_starts", 3.9)), 4.02),
        # What comes once does not make a longer run faster.
        ((("slow_first_batch", 2.0), ("worker_restart", 1.5), ("slow_pass_starts", 1.5)), 3.0),
        ((("slow_first_batch", 1.0), ("worker_restart", 2.0)), None),
        # Without workers steps may be shorter, too.
        ((("slow_pass_starts", 1.0), ("worker_restart", 5.0)), 5.0),
        ((("slow_checkpoints", 1.0), ("slow_pass_starts", 4.0)), 5.0),
    ],
)
def test_starts_are_saved_once(
    saved_s: Sequence[tuple[str, float]], saved_together_s: float | None
) -> None:
    case = begun(0.01, 4.0, 0.01)
    times = together(case, told(case, *saved_s))
    if saved_together_s is None:
        assert times is None
        return
    assert times == pytest.approx(case.training_s / (case.training_s - saved_together_s), rel=0.01)
