"""Streams whose workers leave out what they have made for others: by planted looks and loaders."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.cases import Planted, case_of
from support.events import MS, FakeRun

from trainprof.analysis.code_figures import LateSelection
from trainprof.analysis.diagnosis.diagnose import diagnose
from trainprof.analysis.finding import LIKELY, Finding
from trainprof.analysis.loader_figures import Loader
from trainprof.record.schema import FETCHED, Kind, LookFlag, Topic

STEPS = 30
# `__iter__` goes through samples at line 31, and asks whose one is at line 33.
FIRST, LAST, GIVES = 31, 33, 35


def seen(run: FakeRun, *frames: tuple[int, str]) -> int:
    numbers = [run.text(Topic.SITE, ["train.py", *frame]) for frame in frames]
    return run.text(Topic.STACK, [*numbers, FETCHED, run.site(50)])


def recorded(
    tmp_path: Path,
    told: Any,
    *frames: tuple[tuple[int, str], ...],
    of: str = "__iter__",
    drawn: tuple[int, ...] = (),
    more: tuple[Any, ...] = (),
) -> Loader:
    """Returns a loader of a run whose making of batches was met at these frames in turn.

    Args:
        told: Of where it selects samples, the first place and the function apart.
        of: The function.
        drawn: Lines that only draw records.
        more: What is told besides.
    """
    run = FakeRun()
    facts = told
    if isinstance(told, list):
        facts = [run.text(Topic.SITE, ["train.py", FIRST, "__iter__"]), *told, of, list(drawn)]
        facts += more
    loader, optimizer = run.loader(selects_late=facts, num_workers=2), run.optimizer()
    stacks = [seen(run, *one) for one in frames]
    run.iterate(loader)
    for step in range(STEPS):
        with (
            run.span(Kind.LOADER_NEXT, site=loader, value=step + 1),
            run.span(Kind.FETCH, site=loader, value=4),
        ):
            run.passes_time(5 * MS)
            stack = stacks[step % len(stacks)]
            run.record(Kind.LOOK, run.now, run.now, site=stack, flags=LookFlag.KNOWN)
            run.passes_time(5 * MS)
        run.learn(optimizer)
    run.stop(loader)
    [found] = run.summary(tmp_path).loaders
    return found


PARSES = ((7, "parse"), (20, "examples"), (FIRST, "__iter__"))
GIVEN = ((7, "parse"), (GIVES, "__iter__"))
ELSEWHERE = ((7, "parse"), (60, "collate"))


def test_what_is_done_ahead_of_the_selection_is_its_share(tmp_path: Path) -> None:
    found = recorded(tmp_path, [LAST, LAST], PARSES, PARSES, GIVEN)
    assert found.late_selection is not None
    assert found.late_selection.site == "train.py:33"
    assert found.late_selection.share == pytest.approx(2 / 3)
    assert found.left_out_share == pytest.approx(1 / 3)  # of two workers
    assert replace(found, num_workers=4).left_out_share == pytest.approx(1 / 2)
    assert replace(found, num_workers=1).left_out_share == 0


def test_what_a_returned_selection_goes_over_is_met_by_its_own_name(tmp_path: Path) -> None:
    samples = ((7, "parse"), (LAST, "samples"))
    found = recorded(tmp_path, [LAST, GIVES], samples, samples, GIVEN, of="samples")
    assert found.late_selection == LateSelection(f"train.py:{GIVES}", pytest.approx(2 / 3))
    other = recorded(tmp_path / "other", [LAST, GIVES], PARSES, of="samples")
    assert other.late_selection == LateSelection(f"train.py:{GIVES}", 0.0)


READS = ((FIRST, "__iter__"),)


def test_what_is_met_at_drawing_a_record_is_reading(tmp_path: Path) -> None:
    drawn = (FIRST, 20)
    found = recorded(tmp_path, [LAST, LAST], READS, PARSES, GIVEN, drawn=drawn)
    third = pytest.approx(1 / 3)
    assert found.late_selection == LateSelection("train.py:33", third, third)
    assert found.made_for_others_share == pytest.approx(1 / 6)
    assert found.left_out_share == pytest.approx(1 / 3)
    # In a generator that only reads.
    found = recorded(tmp_path / "deep", [LAST, LAST], PARSES[1:], drawn=drawn)
    assert found.late_selection == LateSelection("train.py:33", 0.0, 1.0)


def test_what_is_done_for_a_workers_own_samples_is_none_of_it(tmp_path: Path) -> None:
    found = recorded(tmp_path, [LAST, LAST], GIVEN, ELSEWHERE)
    assert found.late_selection == LateSelection("train.py:33", 0.0)
    assert found.left_out_share == 0


@pytest.mark.parametrize(
    ("more", "is_random", "is_carried"),
    [
        ((), False, False),
        ((False, False), False, False),
        ((True, False), True, False),
        ((False, True), False, True),
        ((True,), True, False),
        (("1", None), False, False),
    ],
)
def test_what_is_told_of_the_work_ahead_of_it_is_read(
    tmp_path: Path, more: tuple[Any, ...], is_random: bool, is_carried: bool
) -> None:
    found = recorded(tmp_path, [LAST, LAST], PARSES, more=more)
    assert found.late_selection == LateSelection("train.py:33", 1.0, 0.0, is_random, is_carried)


@pytest.mark.parametrize(
    "told", [None, [], [LAST], [1.5, LAST], "31", [LAST, LAST, LAST], [1 << 60, 1 << 60]]
)
def test_where_nothing_is_told_nothing_is_said(tmp_path: Path, told: Any) -> None:
    found = recorded(tmp_path, told, PARSES)
    expected = 1.0 if told == [1 << 60, 1 << 60] else 0.0
    assert (found.late_selection.share if found.late_selection else 0.0) == expected


def planted(share: float, **changes: Any) -> Planted:
    """A stream of two workers that training waits for, making each batch in 80 ms."""
    one = Planted(workers=2, fetch_s=0.08, running=1.0, compute_s=0.005, cores=2)
    selection = LateSelection("data.py:33", share)
    stream = {"is_iterable": True, "shares_samples": True, "late_selection": selection}
    one.loader = replace(one.loader, **{**stream, **changes})
    return one


def found(one: Planted, **settings: float) -> list[Finding]:
    told = {name.replace("__", "."): value for name, value in settings.items()}
    return diagnose(case_of(one, settings=told)).findings


def test_samples_that_are_left_out_once_they_are_made() -> None:
    [finding] = found(planted(0.9))
    assert (finding.id, finding.site, finding.change) == ("late_selection", "data.py:33", {})
    assert finding.title.startswith("each of 2 workers leaves out the samples of the others")
    assert "90 % of making a batch is done ahead of that line" in finding.title
    assert finding.is_at_most
    # 40 of 80 ms go, but for a tenth of them, on full cores.
    assert finding.evidence[LIKELY] == pytest.approx(1 / 0.55, rel=0.1)
    assert "whole files" in finding.advice


def test_random_numbers_that_change_with_it_are_to_be_minded() -> None:
    def cautions(**changes: Any) -> list[str]:
        selection = replace(LateSelection("data.py:33", 0.9), **changes)
        [finding] = found(planted(0, late_selection=selection))
        return [one for one in finding.cautions if "random numbers" in one]

    assert cautions() == []
    assert len(cautions(is_random=True)) == 1
    # Whole files of its own: read as they were.
    assert cautions(is_random=True, share=0.1, read_share=0.8) == []


def test_reading_all_records_is_told_as_such() -> None:
    [finding] = found(planted(0, late_selection=LateSelection("data.py:33", 0.1, 0.8)))
    assert finding.id == "late_selection"
    assert "90" not in finding.title
    assert finding.title.startswith("each of 2 workers reads all records")
    assert "80 % of making a batch is reading" in finding.title
    assert "ahead of" not in finding.title + finding.advice
    assert finding.advice.startswith("give each worker whole files of its own")
    assert finding.evidence["left_out_share"] == pytest.approx(0.45)


def test_reading_is_no_part_of_what_asking_earlier_gains() -> None:
    [finding] = found(planted(0, late_selection=LateSelection("data.py:33", 0.6, 0.3)))
    assert finding.title.startswith("each of 2 workers leaves out the samples of the others")
    assert finding.evidence["left_out_share"] == pytest.approx(0.3)


def test_what_training_does_not_wait_for_cannot_go() -> None:
    one = planted(0.9)
    one.inputs = replace(one.inputs, compute_s=one.inputs.compute_s + 0.025)
    [finding] = found(one)
    case = case_of(one)
    measured = case.feeding[0].measured
    assert measured is not None
    most = measured.step_s / (measured.step_s - measured.wait_s)
    assert 1 < finding.evidence[LIKELY] <= 1.05 * most


def test_it_is_no_matter_of_more_workers() -> None:
    asleep = Planted(workers=2, fetch_s=0.08, compute_s=0.005)
    selection = LateSelection("data.py:33", 0.9)
    assert [one.id for one in found(asleep)] == ["too_few_workers"]
    asleep.loader = replace(asleep.loader, is_iterable=True, late_selection=selection)
    assert [one.id for one in found(asleep)] == ["late_selection"]


@pytest.mark.parametrize(
    "one",
    [
        planted(0.3),  # as reading the lines of a file that are then decoded
        planted(0.9, num_workers=1),
        planted(0.9, late_selection=None),
    ],
)
def test_what_is_not_left_out_is_none(one: Planted) -> None:
    assert "late_selection" not in [finding.id for finding in found(one)]


@pytest.mark.parametrize("running", [0.0, 1.0], ids=["asleep", "on cores"])
def test_what_later_samples_need_is_not_to_be_moved_nor_made_by_more_workers(
    running: float,
) -> None:
    one = Planted(workers=2, fetch_s=0.08, compute_s=0.005, running=running, cores=16)
    assert [one.id for one in found(one)] == ["too_few_workers"]
    selection = LateSelection("data.py:33", 0.9, is_carried=True)
    one.loader = replace(one.loader, is_iterable=True, late_selection=selection)
    assert found(one) == []


def test_from_which_share_on_is_for_the_user_to_say() -> None:
    ids = [one.id for one in found(planted(0.3), late_selection__left_out_share=0.1)]
    assert ids == ["late_selection"]


def test_workers_that_keep_up_may_leave_out_what_they_like() -> None:
    one = Planted(workers=2, fetch_s=0.008, running=1.0, compute_s=0.03)
    one.loader = replace(one.loader, late_selection=LateSelection("data.py:33", 0.9))
    assert found(one) == []
