"""Workers that are started for each pass, and what else the first batch of one waits for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support import summaries
from support.cases import Planted, case_of
from support.found import found, hot_line, needing_workers, only, with_slow_starts

from trainprof.analysis.code_figures import HotLine
from trainprof.analysis.diagnosis.case import Case, LoaderCase
from trainprof.analysis.diagnosis.diagnose import diagnose
from trainprof.analysis.diagnosis.slow_pass_starts import one_iterator
from trainprof.analysis.finding import Finding


def test_workers_that_are_started_for_each_pass_are_to_be_kept() -> None:
    planted = Planted(workers=2, fetch_s=0.004, compute_s=0.01, passes=10, start_s=0.1)
    finding = only(case_of(planted))
    assert (finding.id, finding.change) == ("worker_restart", {"persistent_workers": True})
    assert finding.recoverable_s == pytest.approx(9 * 0.1, rel=0.1)
    kept = Planted(
        workers=2, fetch_s=0.004, compute_s=0.01, passes=10, start_s=0.0, is_persistent=True
    )
    assert found(case_of(kept)) == []


@pytest.mark.parametrize(("fetch_s", "is_told"), [(0.0005, True), (0.02, False)])
def test_workers_that_hardly_help_need_not_be_started_at_all(fetch_s: float, is_told: bool) -> None:
    planted = Planted(
        workers=2, fetch_s=fetch_s, running=1.0, compute_s=0.06, passes=10, start_s=0.3, cores=2
    )
    finding = only(case_of(planted))
    assert finding.id == "worker_restart"
    assert any("(num_workers=0) steps would" in one for one in finding.also) is is_told


def test_workers_that_take_long_to_start_and_hardly_help_are_to_go() -> None:
    plain = {"workers": 2, "fetch_s": 0.0005, "running": 1.0, "compute_s": 0.06, "cores": 2}
    planted = Planted(**plain, passes=10, start_s=2.0)
    finding = only(case_of(planted))
    assert (finding.id, finding.change) == ("worker_restart", {"num_workers": 0})
    # The first start goes, too.
    assert finding.recoverable_s == pytest.approx(10 * 2.0, rel=0.1)
    rebuilt = Planted(**plain, passes=10, start_s=0.3)
    rebuilt.loader = replace(rebuilt.loader, built=10)
    assert only(case_of(rebuilt)).change == {"num_workers": 0}
    late = Planted(**plain, passes=1, start_s=8.0)
    finding = only(case_of(late))
    assert (finding.id, finding.change) == ("slow_first_batch", {"num_workers": 0})


def test_a_part_of_a_run_does_not_tell_what_comes_once() -> None:
    case = case_of(needing_workers("slow_first_batch"))
    assert found(case) == ["slow_first_batch"]
    run = replace(case.summary.run, part="epoch 2")
    assert found(replace(case, summary=replace(case.summary, run=run))) == []


def test_a_loader_that_is_built_anew_for_each_pass_is_to_be_built_once() -> None:
    planted = Planted(workers=2, fetch_s=0.004, compute_s=0.01, passes=10, start_s=0.1)
    planted.loader = replace(planted.loader, built=10)
    finding = only(case_of(planted))
    assert (finding.id, finding.change) == ("worker_restart", {})
    assert "build it once, ahead of all" in finding.advice
    assert finding.recoverable_s == pytest.approx(9 * 0.1, rel=0.1)
    serial = Planted(fetch_s=0.03, compute_s=0.01)
    serial.loader = replace(serial.loader, built=serial.loader.passes)
    finding = only(case_of(serial))
    assert finding.change == {"num_workers": 3}  # nothing lives on from pass to pass
    # It does not help that its workers would live on.
    planted.loader = replace(planted.loader, persistent_workers=True)
    assert found(case_of(planted)) == ["worker_restart"]
    # A package that builds it knows what it does.
    serial.loader = replace(serial.loader, built_by="transformers")
    assert "persistent_workers" in only(case_of(serial)).change


def built_anew(planted: Planted, **facts: Any) -> Planted:
    """Returns a loader that is built anew for each pass."""
    planted.loader = replace(planted.loader, built=planted.loader.passes, **facts)
    return planted


def test_built_once_workers_would_not_see_what_training_changes() -> None:
    planted = Planted(workers=2, fetch_s=0.004, compute_s=0.01, passes=10, start_s=0.1)
    finding = only(case_of(built_anew(planted, changed_between_passes=["level"])))
    assert (finding.id, finding.change) == ("worker_restart", {})
    assert finding.advice.startswith("keep the dataset's level, which your loop changes")
    assert "build it once, ahead of all" in finding.advice


@pytest.mark.parametrize("datasets", [10, 8, 7, 1, None])
def test_each_pass_has_another_dataset(datasets: int | None) -> None:
    planted = Planted(workers=2, fetch_s=0.018, compute_s=0.01, passes=10, start_s=0.1)
    finding = only(case_of(built_anew(planted, datasets=datasets)))
    is_new = (datasets or 1) > 7
    assert (finding.id, finding.change) == ("worker_restart", {})
    assert finding.recoverable_s == pytest.approx(9 * 0.1, rel=0.1)
    assert (
        "of the 9 passes after the first, each over another dataset: " in finding.title
    ) is is_new
    assert ("build it once" in finding.advice) is not is_new
    assert finding.advice.startswith("where all passes may have the same samples") is is_new
    assert ("fewer workers, which start sooner" in finding.advice) is is_new


def test_there_is_no_less_than_one_worker() -> None:
    planted = Planted(workers=1, fetch_s=0.009, compute_s=0.01, passes=10, start_s=0.1)
    finding = only(case_of(built_anew(planted, datasets=10)))
    assert "now each has another dataset" in finding.advice
    assert "fewer workers" not in finding.advice


@pytest.mark.parametrize(("datasets", "is_to_go"), [(10, True), (1, False)])
def test_workers_that_cost_more_than_they_save_go_where_none_can_live_on(
    datasets: int, is_to_go: bool
) -> None:
    plain = {"workers": 2, "fetch_s": 0.008, "running": 1.0, "compute_s": 0.06, "cores": 2}
    planted = built_anew(Planted(**plain, passes=10, start_s=0.8), datasets=datasets)
    finding = only(case_of(planted))
    assert finding.id == "worker_restart"
    assert (finding.change == {"num_workers": 0}) is is_to_go
    assert ("without workers its passes would be shorter" in finding.title) is is_to_go


def test_what_a_sampler_works_out_for_each_pass() -> None:
    case = case_of(with_slow_starts(0.1, 0.09))
    line = HotLine("first_batch", "data.py:36", "__iter__", ["train.py:50"], 83, 0.9, 0.8)
    finding = only(replace(case, summary=replace(case.summary, part_lines=[line])))
    assert (finding.id, finding.site) == ("slow_pass_starts", "data.py:36")
    assert "each of 10 passes takes 100 ms longer than a usual batch" in finding.title
    assert finding.recoverable_s == pytest.approx(9 * 0.1, rel=0.05)
    assert finding.advice.startswith("work out what the sampler needs once")
    assert finding.also == ["90 % of it goes to data.py:36 (__iter__); called from train.py:50"]
    assert only(case).site == "train.py:41"  # where no line is known, the loader's


@pytest.mark.parametrize("in_order", [True, False, None])
@pytest.mark.parametrize("is_iterable", [True, False])
def test_what_is_random_in_the_beginning_of_a_pass_is_drawn_anew(
    in_order: bool | None, is_iterable: bool
) -> None:
    planted = with_slow_starts(0.1, 0.0)
    planted.loader = replace(planted.loader, draws_in_order=in_order, is_iterable=is_iterable)
    finding = only(case_of(planted))
    assert finding.id == "slow_pass_starts"
    assert bool(finding.cautions) is not in_order


def test_what_a_stream_opens_for_each_pass() -> None:
    planted = with_slow_starts(0.1, 0.0)
    planted.loader = replace(planted.loader, is_iterable=True)
    finding = only(case_of(planted))
    assert finding.id == "slow_pass_starts"
    assert "__iter__ of the dataset" in finding.advice
    # Workers that live on do it in their first fetch of a pass.
    kept = with_slow_starts(0.1, 0.0, workers=2, is_persistent=True, fetch_s=0.004)
    kept.loader = replace(kept.loader, hot_lines=[hot_line("making batches")])
    finding = only(case_of(kept))
    assert (finding.id, finding.site) == ("slow_pass_starts", "data.py:12")


def test_many_workers_that_begin_at_once_on_few_cores_are_no_slow_start() -> None:
    """Eight first batches of 10 ms on two cores are there after 40 ms."""
    planted = Planted(
        workers=8,
        fetch_s=0.01,
        running=1.0,
        compute_s=0.006,
        passes=10,
        cores=2,
        is_persistent=True,
    )
    first = summaries.statistics(0.035, n=10)
    planted.loader = replace(planted.loader, first_batch_s=first, later_starts_s=9 * 0.035)
    assert "slow_pass_starts" not in found(case_of(planted))
    slow = replace(planted.loader, later_starts_s=9 * 0.2)
    planted.loader = replace(slow, first_batch_s=summaries.statistics(0.2, n=10))
    assert "slow_pass_starts" in found(case_of(planted))


@pytest.mark.parametrize(
    ("workers", "facts", "begins"),
    [
        (0, {}, "one iterator"),
        (2, {}, "one iterator"),
        (0, {"changed_between_passes": ["level"]}, "one iterator"),  # it has no copy
        (2, {"changed_between_passes": ["level"]}, "keep the dataset's level, which"),
        (0, {"built": 10, "datasets": 10}, "where all steps may have one dataset"),
        (2, {"built": 10, "datasets": 10}, "where all steps may have one dataset"),
        (2, {"built": 10, "datasets": 1}, "one iterator"),
    ],
)
def test_one_iterator_gives_the_samples_of_one_dataset(
    workers: int, facts: dict[str, Any], begins: str
) -> None:
    told = one_iterator(replace(Planted(workers=workers, passes=10).loader, **facts))
    assert told.startswith(begins)
    assert "one iterator, batches = iter(loader)" in told


def test_an_iterator_for_each_step() -> None:
    planted = with_slow_starts(0.0, 0.0)
    count = planted.loader.iterations
    planted.loader = replace(
        planted.loader, passes=count, wait_s=None, wait_total_s=0.0, later_starts_s=count * 0.005
    )
    finding = only(case_of(planted))
    assert finding.id == "slow_pass_starts"
    assert finding.title.startswith(f"an iterator is made for each of {count} batches")
    assert finding.advice.startswith("one iterator")


def test_batches_that_an_iterator_for_each_step_makes_are_waited_for() -> None:
    planted = Planted(compute_s=0.01, fetch_s=0.04)
    count = planted.loader.iterations
    first = summaries.statistics(0.045, n=count)
    planted.loader = replace(
        planted.loader,
        passes=count,
        first_batch_s=first,
        wait_s=None,
        wait_total_s=0.0,
        later_starts_s=count * 0.045,
        sampler_starts_s=count * 0.005,
    )
    case = replace(case_of(planted), training_s=count * 0.055)
    serial, each = diagnose(case).findings
    assert (serial.id, each.id) == ("serial_loading", "slow_pass_starts")
    assert "73 % of training" in serial.title
    assert serial.advice.startswith("one iterator, batches = iter(loader)")
    assert "num_workers=" in serial.advice
    assert serial.change == {}
    assert each.advice.startswith("one iterator")


def test_the_only_batch_of_each_pass_is_waited_for_too() -> None:
    planted = Planted(compute_s=0.01, fetch_s=0.04, passes=40)
    loader = planted.loader
    whole = replace(
        loader,
        passes=loader.iterations,
        ended=loader.iterations,
        first_batch_s=summaries.statistics(0.04, n=loader.iterations),
        wait_s=None,
        wait_total_s=0.0,
    )
    assert LoaderCase(whole, None, None, None, None, 0.05 * loader.iterations).wait_share == (
        pytest.approx(0.8)
    )
    workers = replace(whole, num_workers=2)
    assert LoaderCase(workers, None, None, None, None, 1.0).wait_share == 0.0


@pytest.mark.parametrize("sampler_s", [0.0, 0.02])
def test_workers_for_each_step_want_one_iterator(sampler_s: float) -> None:
    planted = with_slow_starts(0.0, 0.0, workers=2, fetch_s=0.004)
    count = planted.loader.iterations
    planted.loader = replace(
        planted.loader,
        passes=count,
        init_s=summaries.statistics(0.05, n=count),
        first_batch_s=summaries.statistics(0.01, n=count),
        wait_s=None,
        wait_total_s=0.0,
        end_s=count * 0.02,
        later_starts_s=(count - 1) * 0.06,
        sampler_starts_s=(count - 1) * sampler_s,
    )
    case = case_of(planted)
    finding = only(replace(case, training_s=case.training_s + count * 0.08))
    assert (finding.id, finding.change) == ("worker_restart", {})
    assert finding.title.startswith(f"an iterator is made for each of {count} batches")
    assert "80.0 ms each time" in finding.title
    assert finding.advice.startswith("one iterator")
    assert "up to 4 batches" in finding.also[0]
    # A batch of one iterator is there 2 ms later at most.
    assert finding.recoverable_s == pytest.approx((count - 1) * 0.078)
    # Passes of one batch, each to its end.
    planted.loader = replace(planted.loader, ended=count)
    told = diagnose(replace(case_of(planted), training_s=case.training_s + count * 0.08)).findings
    assert "one iterator" not in " ".join(one.advice for one in told)


def restart_of(case: Case) -> Finding:
    return next(one for one in diagnose(case).findings if one.id == "worker_restart")


def begun_late(first_s: float, passes: int = 3, compute_s: float = 0.25) -> Case:
    """A run of some passes, whose first one takes so long to begin, and the others 0.3 s."""
    planted = Planted(workers=2, fetch_s=0.004, compute_s=compute_s, passes=passes, start_s=0.3)
    loader = planted.loader
    assert loader.first_batch_s is not None
    assert loader.init_s is not None
    each_s = loader.first_batch_s.mean
    mean_s = each_s + (first_s - each_s) / passes
    planted.loader = replace(
        loader,
        first_batch_s=replace(loader.first_batch_s, mean=mean_s, max=first_s),
        first_start_s=first_s + loader.init_s.mean,
    )
    return case_of(planted)


def test_a_first_start_that_takes_far_longer_is_not_said_to_come_again() -> None:
    assert found(begun_late(8.0)) == ["slow_first_batch"]
    # Where the others are worth it, they are told as long as they are.
    told, plain = (restart_of(begun_late(first_s, compute_s=0.04)) for first_s in (8.0, 0.3))
    assert "of the 2 passes after the first: each time 30" in told.title
    assert told.recoverable_s == pytest.approx(0.6, rel=0.05)
    assert told.recoverable_s == pytest.approx(plain.recoverable_s)
    assert told.evidence["later_starts_s"] == pytest.approx(0.6, rel=0.05)
    assert told.evidence["starts_s"] == pytest.approx(8.6, rel=0.05)


def test_of_two_passes_the_second_is_the_one_that_starts_workers_again() -> None:
    restart = restart_of(begun_late(0.3, passes=2, compute_s=0.04))
    assert restart.title.startswith("its 2 workers are started again for the second pass: 30")


def test_an_iterator_for_each_step_whose_first_start_takes_far_longer() -> None:
    case = begun_late(8.0)
    fed = case.feeding[0]
    loader = replace(fed.loader, passes=200, init_s=summaries.statistics(0.05, n=200))
    first = summaries.statistics(0.01 + (8.0 - 0.01) / 200, n=200)
    each = replace(fed, loader=replace(loader, first_batch_s=first, first_start_s=8.05))
    told = restart_of(replace(case, feeding=[each], training_s=60.0))
    assert "60.0 ms each time, 20 % of training" in told.title
    assert told.recoverable_s == pytest.approx(199 * (0.06 - 0.002), rel=0.001)


def test_workers_that_are_started_again_take_what_the_sampler_does_not() -> None:
    plain = {"workers": 2, "fetch_s": 0.004, "start_s": 0.1}
    drawn = diagnose(case_of(with_slow_starts(0.1, 0.1, **plain))).findings
    assert sorted(one.id for one in drawn) == ["slow_pass_starts", "worker_restart"]
    restart = next(one for one in drawn if one.id == "worker_restart")
    assert "of the 9 passes after the first: each time 10" in restart.title  # and not 200 ms
    assert [one.recoverable_s for one in drawn] == [
        pytest.approx(0.9, rel=0.1),
        pytest.approx(0.9, rel=0.15),
    ]
    assert found(case_of(with_slow_starts(0.0, 0.0, **plain))) == ["worker_restart"]


@pytest.mark.parametrize("fetch_s", [0.0002, 0.03])
def test_passes_that_begin_as_they_go_on_are_no_finding(fetch_s: float) -> None:
    planted = with_slow_starts(0.0, 0.0, fetch_s=fetch_s)
    assert "slow_pass_starts" not in found(case_of(planted))
    # Opened once, by the first of them.
    planted.loader = replace(
        planted.loader, first_batch_s=summaries.statistics(0.2, n=10), later_starts_s=9 * fetch_s
    )
    assert "slow_pass_starts" not in found(case_of(planted))


def test_what_is_collected_at_the_line_of_another_finding_comes_of_it() -> None:
    case = case_of(with_slow_starts(0.1, 0.09), parts={"gc": 0.5})
    line = HotLine("first_batch", "data.py:36", "__iter__", ["train.py:50"], 83, 0.9, 0.8)
    there = replace(line, part="gc")
    joined = only(replace(case, summary=replace(case.summary, part_lines=[line, there])))
    assert (joined.id, joined.site) == ("slow_pass_starts", "data.py:36")
    assert joined.recoverable_s == pytest.approx(0.9 + 0.5, rel=0.05)
    assert joined.also[-1].startswith("at the same line, and counted with it: Python's garbage")
    elsewhere = replace(there, site="model.py:7")
    apart = diagnose(
        replace(case, summary=replace(case.summary, part_lines=[line, elsewhere]))
    ).findings
    assert sorted(one.id for one in apart) == ["gc_pauses", "slow_pass_starts"]


def test_a_late_first_batch_is_named_once() -> None:
    planted = Planted(workers=2, fetch_s=0.004, compute_s=0.1, passes=1, start_s=8.0)
    assert found(case_of(planted)) == ["slow_first_batch"]
    soon = Planted(workers=2, fetch_s=0.004, compute_s=0.1, passes=1, start_s=1.0)
    assert found(case_of(soon)) == []


@pytest.mark.parametrize(
    ("method", "began_s", "slowest_s", "advice"),
    [
        ("spawn", 7.9, 0.01, "fewer imports"),
        ("forkserver", 7.9, 0.01, "fewer imports"),
        ("fork", 7.9, 0.01, "a smaller dataset object"),
        ("spawn", 0.4, 0.01, "a smaller dataset object"),
        ("spawn", 0.4, 7.5, "less to open or read"),
        ("spawn", None, 0.01, "a smaller dataset object"),
    ],
)
def test_what_a_late_first_batch_waits_for(
    method: str, began_s: float | None, slowest_s: float, advice: str
) -> None:
    planted = Planted(workers=2, fetch_s=0.004, compute_s=0.1, passes=1, start_s=8.0)
    fetch = planted.loader.fetch
    assert fetch is not None
    assert fetch.wall_s is not None
    rows = [{**row, "first_fetch_s": began_s} for row in fetch.per_worker]
    fetch = replace(fetch, per_worker=rows, wall_s=replace(fetch.wall_s, max=slowest_s))
    planted.loader = replace(planted.loader, start_method=method, fetch=fetch)
    finding = only(case_of(planted))
    assert finding.advice.startswith(advice)
    assert finding.evidence["first_fetch_s"] == began_s


@pytest.mark.parametrize(
    ("facts", "is_told"),
    [
        ({"is_iterable": True, "first_given_back_s": 7.5}, False),
        ({"is_iterable": True, "first_given_back_s": 0.0}, True),
        ({"is_iterable": False, "first_given_back_s": 7.5}, True),  # nothing is read ahead
        ({"is_iterable": True}, True),  # an older run
    ],
)
def test_a_buffer_that_is_filled_first_makes_no_late_first_batch(
    facts: dict[str, Any], is_told: bool
) -> None:
    planted = Planted(fetch_s=0.004, compute_s=0.1, passes=1)
    first = summaries.statistics(8.0, n=1, max=8.0)
    planted.loader = replace(planted.loader, first_batch_s=first, **facts)
    assert ("slow_first_batch" in found(case_of(planted))) is is_told
