"""What is advised against waiting for copies, by where the tensors come from and their size."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support import summaries
from support.cases import Planted, case_of, on_device

from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.diagnosis.diagnose import diagnose
from trainprof.analysis.finding import Finding

BATCH_BYTES = 4.6 * summaries.MIB


def copies(each: float = 4 * summaries.MIB, **changes: Any) -> Case:
    """A run of which copies of so many bytes each take 0.6 s."""
    case = on_device(case_of(Planted(workers=2, fetch_s=0.002)), copy_s=0.6)
    rows = [
        replace(row, bytes=round(row.count * each), **changes) for row in case.summary.transfers
    ]
    return replace(case, summary=replace(case.summary, transfers=rows))


def told(case: Case) -> Finding:
    [finding] = [one for one in diagnose(case).findings if one.id == "blocking_copies"]
    return finding


def test_what_is_as_large_as_a_batch_is_pinned_by_its_loader() -> None:
    finding = told(copies())
    assert finding.advice.startswith("DataLoader(..., pin_memory=True) with ")
    assert finding.change == {"pin_memory": True, "non_blocking": True}
    assert finding.recoverable_s == pytest.approx(0.6)


@pytest.mark.parametrize(("times", "is_batch"), [(1.0, True), (1.04, True), (1.5, False)])
def test_what_is_larger_than_a_batch_is_none(times: float, is_batch: bool) -> None:
    finding = told(copies(times * BATCH_BYTES))
    assert ("DataLoader" in finding.advice) is is_batch
    assert ("pin_memory" in finding.change) is is_batch
    assert finding.advice.startswith(".pin_memory() on the tensor") is not is_batch


def test_where_no_batch_tells_its_size_the_loader_is_pinned() -> None:
    case = copies(100 * summaries.MIB)
    [loader] = case.summary.loaders
    assert loader.fetch is not None
    untold = replace(loader, fetch=replace(loader.fetch, batch_bytes=None))
    summary = replace(case.summary, loaders=[untold])
    assert "DataLoader" in told(replace(case, summary=summary)).advice


def test_what_the_line_makes_is_made_on_the_device() -> None:
    finding = told(copies(is_made_there=True))
    assert finding.advice.startswith("make it on the device, by device=")
    assert "pin" not in finding.advice
    assert finding.change == {}
    assert "random numbers" in finding.cautions[0]
    # No more than that line's copies take.
    case = copies(is_made_there=True, exposed_s=0.5)
    assert told(case).recoverable_s == pytest.approx(0.5)


@pytest.mark.parametrize(("each", "is_small"), [(4_096, True), (65_535, True), (65_536, False)])
def test_small_copies_are_to_be_fewer_and_larger(each: int, is_small: bool) -> None:
    finding = told(copies(each))
    assert finding.advice.startswith("fewer and larger copies: with ") is is_small
    assert ("pin_memory" in finding.advice) is not is_small
    assert (finding.change == {}) is is_small
    # Two in one save half of it: nobody knows how many can be one.
    assert finding.recoverable_s == pytest.approx(0.3 if is_small else 0.6)
    assert ("decides what comes next" in " ".join(finding.cautions)) is is_small


def test_small_copies_beside_large_ones_save_no_more_than_they_take() -> None:
    case = copies(4_096, exposed_s=0.4)
    large = replace(case.summary.transfers[0], site="train.py:99", exposed_s=0.2, bytes=1 << 40)
    rows = [*case.summary.transfers, large]
    finding = told(replace(case, summary=replace(case.summary, transfers=rows)))
    assert finding.recoverable_s == pytest.approx(0.2)


def test_a_value_that_decides_what_comes_next_is_minded() -> None:
    finding = told(copies(64, direction="d2h"))
    assert finding.advice.startswith("bring fewer values back, and more rarely")
    assert "decides what comes next" in " ".join(finding.cautions)


def with_copies_back(case: Case, site: str) -> Case:
    """The run with as many copies from the device, by some line."""
    [there] = case.summary.transfers
    back = replace(there, site=site, direction="d2h", exposed_s=0.0)
    return replace(case, summary=replace(case.summary, transfers=[there, back]))


def test_a_line_that_copies_both_ways_is_not_patched_to_go_on() -> None:
    case = copies()
    [there] = case.summary.transfers
    finding = told(with_copies_back(case, there.site))
    assert finding.change == {"pin_memory": True}
    assert "non_blocking=True) for copies to the device alone" in finding.advice
    assert finding.cautions[0].startswith("the same line copies back to the host, too")
    elsewhere = told(with_copies_back(case, "train.py:99"))
    assert elsewhere.change == {"pin_memory": True, "non_blocking": True}
    assert "alone" not in elsewhere.advice
    assert "back to the host" not in " ".join(elsewhere.cautions)


def test_a_part_does_not_tell_what_its_line_copies_elsewhere() -> None:
    case = copies()
    run = replace(case.summary.run, part="epoch 2")
    finding = told(replace(case, summary=replace(case.summary, run=run)))
    assert finding.change == {"pin_memory": True}
    assert "in another part of the run" in finding.cautions[0]


def waiting_for_pinned(**changes: Any) -> Case:
    """A run whose host waits for copies from pinned memory."""
    case = copies(pinned_share=1.0, **changes)
    assert case.summary.devices is not None
    devices = [replace(one, copy_wait_s=0.6) for one in case.summary.devices]
    return replace(case, summary=replace(case.summary, devices=devices))


def test_what_is_copied_without_waiting_must_not_be_written_to() -> None:
    waiting = waiting_for_pinned()
    finding = told(waiting)
    assert finding.change == {"non_blocking": True}
    assert "must not be written to" in " ".join(finding.cautions)
    [there] = waiting.summary.transfers
    both_ways = told(with_copies_back(waiting, there.site))
    assert both_ways.change == {}
    assert "back to the host" in both_ways.cautions[0]
    assert "must not be written to" in " ".join(told(copies()).cautions)


def test_copies_that_stay_as_they_are_need_no_word_of_it() -> None:
    for case in (copies(direction="d2h"), copies(is_made_there=True), copies(pinned_share=1.0)):
        assert "must not be written to" not in " ".join(told(case).cautions)
