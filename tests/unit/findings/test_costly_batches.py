"""What a batch costs to be made and handed over: cores, disks, slow samples, collate functions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support import summaries
from support.cases import STEPS, Planted, case_of
from support.found import found, hot_line, minded, only

from trainprof.analysis.pipeline.bounds import Interval
from trainprof.analysis.summary.loader import BLOCKED, RECEIVE
from trainprof.findings.diagnose import diagnose


def test_full_cores_want_cheaper_samples_and_no_workers() -> None:
    planted = Planted(workers=2, fetch_s=0.08, running=1.0, compute_s=0.01, cores=2)
    planted.loader = replace(planted.loader, hot_lines=[hot_line("making batches")])
    finding = only(case_of(planted))
    assert (finding.id, finding.site, finding.change) == ("saturated_cpu", "data.py:12", {})
    assert finding.is_at_most
    assert "decode" in finding.advice


def test_cores_that_are_half_idle_are_not_what_is_short() -> None:
    # Two workers of which each is on a core for 56 %: three and a half would fill both.
    finding = only(
        case_of(Planted(workers=2, fetch_s=0.14, running=0.56, compute_s=0.006, cores=2))
    )
    assert (finding.id, finding.change["num_workers"]) == ("too_few_workers", 4)
    assert not [caution for caution in finding.cautions if "disk" in caution]


@pytest.mark.parametrize("how", [{"running": 0.6, "reading": 0.35}, {}])
def test_what_a_disk_or_sleep_gives_to_more_workers_is_unknown(how: dict[str, float]) -> None:
    planted = Planted(workers=1, fetch_s=0.06, compute_s=0.006, cores=2, **how)
    finding = only(case_of(planted))
    assert (finding.id, finding.is_at_most) == ("too_few_workers", True)


def test_much_reading_is_named_where_neither_workers_nor_cores_are_short() -> None:
    # Forty workers at one disk: no more are tried.
    planted = Planted(workers=40, fetch_s=0.8, running=0.3, reading=0.4, compute_s=0.005, cores=40)
    assert found(case_of(planted)) == ["storage_bound"]


def test_one_core_wants_cheaper_samples_without_workers_too() -> None:
    planted = Planted(fetch_s=0.03, running=1.0, compute_s=0.03, cores=1)
    finding = only(case_of(planted))
    assert (finding.id, finding.change) == ("saturated_cpu", {})


def test_reading_is_named_where_bytes_were_read() -> None:
    planted = Planted(workers=4, fetch_s=0.08, reading=0.9, compute_s=0.005)
    finding = only(case_of(planted))
    assert finding.id == "storage_bound"
    assert finding.evidence["reading_share"] == pytest.approx(0.9)
    assert planted.loader.fetch is not None
    nothing = replace(planted.loader, fetch=replace(planted.loader.fetch, read_bytes=0))
    planted.loader = nothing
    assert "storage_bound" not in found(case_of(planted))


@pytest.mark.parametrize(
    ("read", "calls", "told"),
    [
        (40e6, 2000, "for a read brings 20 KiB: small files as one"),
        (400e6, 200, "a faster disk"),
        (None, None, "a faster disk"),
    ],
)
def test_small_reads_want_larger_files(read: float | None, calls: float | None, told: str) -> None:
    planted = Planted(workers=2, fetch_s=0.08, reading=0.9, compute_s=0.005)
    rows = [
        {"worker": number, "read_bytes_per_s": read, "read_calls_per_s": calls}
        for number in range(2)
    ]
    assert planted.loader.fetch is not None
    planted.loader = replace(planted.loader, fetch=replace(planted.loader.fetch, per_worker=rows))
    assert told in only(case_of(planted)).advice


def test_a_few_slow_samples_are_named() -> None:
    planted = Planted(workers=2, fetch_s=0.01, compute_s=0.01, slow_every=40)
    finding = only(case_of(planted))
    assert finding.id == "slow_samples"
    of_run = "trainprof report trainprof-runs/healthy-20261121-034512-c01d --loader 0"
    assert finding.advice == f"mend or leave out the slow samples: {of_run} lists them"
    assert "dataset[0]" in finding.title
    assert finding.evidence["slow_indices"] == list(range(STEPS // 40))


def test_samples_that_begin_a_part_of_the_data_are_not_to_be_left_out() -> None:
    planted = Planted(workers=2, fetch_s=0.01, compute_s=0.01, slow_every=40)
    fetch = planted.loader.fetch
    assert fetch is not None
    slow = [{**sample, "index": 1000 * number} for number, sample in enumerate(fetch.slow_samples)]
    planted.loader = replace(planted.loader, fetch=replace(fetch, slow_samples=slow))
    assert not any(
        "slow_indices" in finding.evidence for finding in diagnose(case_of(planted)).findings
    )


def test_slow_samples_are_named_beside_what_handing_over_costs() -> None:
    # A batch is late now and then; that each takes 2 ms to be taken over is no matter of samples.
    handed_over = {"receive_s": Interval.exactly(0.002)}
    planted = Planted(workers=2, fetch_s=0.006, compute_s=0.006, slow_every=40, **handed_over)
    assert found(case_of(planted)) == ["slow_samples"]


def test_batches_of_uneven_cost_want_more_of_them_ahead() -> None:
    planted = Planted(workers=2, fetch_s=0.003, bursts=(30, 11, 13.3), compute_s=0.0126, passes=1)
    context = case_of(planted)
    finding = only(context)
    assert (finding.id, finding.site) == ("slow_samples", "train.py:41")
    assert finding.change == {"prefetch_factor": 8}
    assert finding.advice == "DataLoader(..., prefetch_factor=8)"
    assert "3.00 ms" in finding.title
    assert "39.9 ms" in finding.title
    low, high = finding.predicted_speedup or (0, 0)
    # Without any wait a step would take 12.6 ms.
    assert low < planted.step_s.mean() / 0.0126 < high


def test_late_batches_are_named_beside_what_handing_over_costs() -> None:
    # Of 15.0 ms a step 0.9 are for late batches, and 1.5 ms for taking over any.
    handed_over = {"receive_s": Interval.exactly(0.0015)}
    bursts = (30, 11, 12.8)
    planted = Planted(
        workers=2, fetch_s=0.003, bursts=bursts, compute_s=0.0126, passes=1, **handed_over
    )
    context = case_of(planted)
    assert context.feeding[0].now is not None
    parts_s = context.feeding[0].now.bound.parts_s
    assert 0.05 * sum(parts_s.values()) < parts_s[BLOCKED] < parts_s[RECEIVE]
    finding = only(context)
    assert finding.id == "slow_samples"
    # More batches ahead delay none.
    assert (finding.predicted_speedup or (0, 0))[0] == 1.0


def test_uneven_batches_that_workers_cannot_make_want_more_workers() -> None:
    """No buffer lasts where they are made more slowly than they are used, on the whole."""
    short = Planted(workers=2, fetch_s=0.006, bursts=(30, 11, 13.3), compute_s=0.01, passes=1)
    assert found(case_of(short)) == ["too_few_workers"]


def shared_out(*batches: int, **changes: Any) -> Planted:
    """A stream of which one worker makes nearly all batches, however many there are."""
    planted = Planted(workers=len(batches), fetch_s=0.02, compute_s=0.01, turnaround_s=0.02)
    assert planted.loader.fetch is not None
    rows = [{"worker": number, "n": n, "seconds": n * 0.02} for number, n in enumerate(batches)]
    fetch = replace(planted.loader.fetch, per_worker=rows)
    planted.loader = replace(planted.loader, fetch=fetch, **{"is_iterable": True, **changes})
    return planted


def test_workers_that_get_nothing_of_the_data() -> None:
    finding = only(case_of(shared_out(198, 2)))
    assert (finding.id, finding.site, finding.change) == ("too_few_workers", "train.py:41", {})
    assert finding.title.startswith("one of 2 workers makes 99 % of the batches")
    assert finding.evidence["batches_by_worker"] == {"0": 198, "1": 2}
    low, high = finding.predicted_speedup or (0, 0)
    assert low < 2.0 < high  # two workers would just keep up


def test_workers_that_share_alike_are_no_finding_of_that_kind() -> None:
    assert found(case_of(shared_out(100, 100))) == ["too_few_workers"]
    assert found(case_of(shared_out(198, 2, is_iterable=False))) == ["too_few_workers"]


def test_from_how_many_fair_shares_on_is_for_the_user_to_say() -> None:
    # 198 of 200 batches are 1.98 fair shares of two workers.
    for fair_shares, is_of_shares in ((1.98, True), (1.99, False)):
        context = case_of(shared_out(198, 2), settings={"too_few_workers.fair_shares": fair_shares})
        assert ("batches_by_worker" in only(context).evidence) is is_of_shares


def test_long_waits_for_a_core_tell_that_cores_are_short() -> None:
    """Where others take them, too: the run's own work would not fill them."""
    planted = Planted(workers=2, fetch_s=0.08, running=0.5, compute_s=0.005, cores=2)
    assert planted.loader.fetch is not None
    waited = replace(planted.loader.fetch, runnable_s=0.4 * 0.08 * STEPS, asleep_s=0.0)
    planted.loader = replace(planted.loader, fetch=waited)
    planted.inputs = replace(planted.inputs, runnable_s=planted.inputs.fetch_s * 0.5)
    finding = only(case_of(planted))
    assert finding.id == "saturated_cpu"
    # Without running nobody waits for a core: nothing is left of making batches.
    assert finding.predicted_speedup is not None
    assert finding.predicted_speedup[1] > 6


def test_a_collate_function_that_takes_most_of_a_batch() -> None:
    planted = Planted(fetch_s=0.03, running=1.0, compute_s=0.02, collate=0.8)
    finding = only(case_of(planted))
    assert (finding.id, finding.site) == ("slow_collate", "data.py:30")
    assert finding.evidence["collate_per_batch_s"] == pytest.approx(0.024)
    assert finding.predicted_speedup is not None
    assert finding.predicted_speedup[1] == pytest.approx(0.05 / 0.026, rel=0.25)
    # Whoever takes more than the dataset has is the function, or called by it.
    lines = [replace(hot_line("making batches", share), site="data.py:33") for share in (0.7, 0.15)]
    named = {}
    for line in lines:
        planted.loader = replace(planted.loader, hot_lines=[line])
        named[line.share] = only(case_of(planted)).site
    assert named == {0.7: "data.py:33", 0.15: "data.py:30"}


def test_a_collate_function_that_keeps_its_worker_from_handing_batches_over() -> None:
    # Each is made in time, and handed over late: its worker is at the next one.
    handed_over = {"receive_s": Interval.exactly(0.009)}
    planted = Planted(
        workers=1, fetch_s=0.024, running=1.0, compute_s=0.016, collate=0.99, **handed_over
    )
    planted.loader = replace(planted.loader, receive_s=0.009 * STEPS, receive_cpu_s=0.001 * STEPS)
    finding = only(case_of(planted))
    assert (finding.id, finding.site) == ("slow_collate", "data.py:30")
    assert finding.predicted_speedup is not None
    assert finding.predicted_speedup[1] == pytest.approx(0.025 / 0.017, rel=0.25)


@pytest.mark.parametrize("collate", [0.3, None])
def test_a_collate_function_that_does_little_or_is_torchs_own(collate: float | None) -> None:
    planted = Planted(fetch_s=0.03, running=1.0, compute_s=0.02, collate=collate)
    assert found(case_of(planted)) == ["serial_loading"]
    in_time = Planted(workers=2, fetch_s=0.01, compute_s=0.02, collate=0.9)
    assert found(case_of(in_time)) == []


def test_a_wait_of_the_first_pass_alone_is_over() -> None:
    cold = Planted(fetch_s=0.01, compute_s=0.01, passes=5, cold_passes=1)
    assert cold.loader.wait_total_s > 0.1 * float(cold.step_s.sum())
    assert found(case_of(cold)) == []
    still = Planted(fetch_s=0.01, compute_s=0.01, passes=5, cold_passes=4)
    assert found(case_of(still)) == ["serial_loading"]


def test_receiving_is_not_blamed_on_workers() -> None:
    planted = Planted(workers=4, fetch_s=0.004, compute_s=0.01, receive_s=Interval.exactly(0.02))
    planted.loader = replace(planted.loader, receive_s=0.02 * STEPS, receive_cpu_s=0.019 * STEPS)
    finding = only(case_of(planted))
    assert (finding.id, finding.site) == ("slow_receive", "train.py:41")
    assert "waiting" not in finding.title
    own = Planted(workers=4)
    own.inputs, own.loader = planted.inputs, replace(planted.loader, collate_site="data.py:30")
    assert only(case_of(own)).site == "data.py:30"
    planted.loader = replace(planted.loader, receive_cpu_s=0.001 * STEPS)
    plain = only(case_of(planted))
    assert "waiting for its process, which is asked for each tensor" in plain.title
    assert plain.advice.startswith("few large tensors")
    planted.loader = replace(planted.loader, kind="StatefulDataLoader")
    stateful = only(case_of(planted))
    assert "mostly waiting for its process; more" in stateful.title
    assert stateful.advice.startswith("StatefulDataLoader(..., snapshot_every_n_steps=N)")


@pytest.mark.parametrize(
    ("runnable", "disturbed", "cpu_s", "is_found"),
    [
        (0.0, False, 0.001, True),  # the worker answers late
        (0.3, False, 0.001, False),
        (0.0, True, 0.001, False),
        (0.3, True, 0.019, True),  # many small tensors, on a loaded machine too
    ],
)
def test_waiting_for_a_core_is_no_cost_of_receiving(
    runnable: float, disturbed: bool, cpu_s: float, is_found: bool
) -> None:
    planted = Planted(workers=4, fetch_s=0.004, compute_s=0.01, receive_s=Interval.exactly(0.02))
    assert planted.loader.fetch is not None
    fetch = replace(planted.loader.fetch, runnable_s=runnable * 0.004 * STEPS)
    planted.loader = replace(
        planted.loader, fetch=fetch, receive_s=0.02 * STEPS, receive_cpu_s=cpu_s * STEPS
    )
    system = summaries.healthy().system
    assert system is not None
    if disturbed:
        busy = {"host_percent": {"mean": 90.0}, "tree_percent": {"mean": 80.0}}
        system = replace(system, cpu={**system.cpu, **busy, "pressure_some_share": 0.9})
    findings = found(case_of(planted, system=system))
    assert ("slow_receive" in findings) is is_found


def test_drawing_indices_is_not_blamed_on_workers() -> None:
    planted = Planted(workers=4, fetch_s=0.004, compute_s=0.01, sampler_s=0.02)
    finding = only(case_of(planted))
    assert finding.id == "slow_sampler"
    assert "has to be drawn anew in each pass" in minded(finding)
    assert finding.predicted_speedup is not None
    assert finding.predicted_speedup[1] == pytest.approx(3.0 / (1 - 0.25 * 2 / 3), rel=0.15)
