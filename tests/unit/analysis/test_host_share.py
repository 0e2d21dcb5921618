"""How much of a step on a device the host decides, and what `compare` makes of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support import summaries
from support.compared_runs import made_up, read, recorded, steps_of, with_steps_longer
from support.events import MS, US

from trainprof.analysis.comparability import discrepancies
from trainprof.analysis.comparable_facts import UNLIKE
from trainprof.analysis.compared_figures import chance_between
from trainprof.analysis.compared_run import ComparedRun
from trainprof.analysis.comparison import compare
from trainprof.analysis.device_figures import Device
from trainprof.analysis.device_idle import IDLE_CAUSES
from trainprof.analysis.gate import TRIPPED
from trainprof.analysis.host_share import host_share
from trainprof.analysis.run_figures import Phases
from trainprof.analysis.speedup import (
    BOUNDLESS_CHANCE,
    LEAST_CHANCE,
    NO_VISIBLE_DIFFERENCE,
    SLOWER,
)
from trainprof.analysis.summary import RunSummary

TRAINING_S = 100.0


def device(dry: float = 0.0, **idle_s: float) -> Device:
    """One that is at work in what is left of 100 s, and so while `unknown_s` at the most."""
    settled_s = TRAINING_S - idle_s.get("warmup_s", 0.0)
    low = (TRAINING_S - sum(idle_s.values())) / settled_s
    return Device(
        0,
        "cuda:0",
        [low, low + idle_s.get("unknown_s", 0.0) / settled_s],
        dict.fromkeys(IDLE_CAUSES, 0.0) | idle_s,
        {},
        None,
        None,
        1000,
        ran_dry=dict.fromkeys(("forward", "backward", "optimizer"), dry),
    )


def on(*devices: Device) -> RunSummary:
    base = summaries.healthy()
    return replace(
        base,
        ledger=summaries.ledger({"data_wait": 10.0, "forward": 90.0}),
        run=replace(base.run, device="cuda:0", device_timing="async"),
        phases=Phases(1.0, TRAINING_S, 1.0),
        devices=list(devices) or None,
    )


BUSY = device(loader_s=1.0, host_s=2.0, sync_s=1.0, unknown_s=2.0)
STARVED = device(loader_s=80.0, host_s=2.0, unknown_s=5.0)


@pytest.mark.parametrize(
    ("found", "share"),
    [
        (summaries.healthy(), 1.0),
        (on(BUSY), 0.04),
        (on(STARVED), 0.82),
        # Where the device keeps up with the host, it waits for it while it is given work.
        (on(device(dry=1.0, host_s=10.0, unknown_s=50.0)), 0.6),
        (on(device(host_s=10.0, launch_s=40.0, unknown_s=10.0)), 0.6),
        (on(device(host_s=10.0, unknown_s=50.0)), 0.1),
        # No step of training waits for these.
        (on(device(loader_s=10.0, evaluation_s=30.0, startup_s=5.0, compile_s=15.0)), 0.2),
        (on(device(loader_s=10.0, warmup_s=50.0)), 0.2),
        # Two devices of one process may take turns; ranks wait for one another.
        (on(BUSY, STARVED), 0.04),
        (replace(on(BUSY, STARVED), ranks=[{"rank": 0}, {"rank": 1}]), 0.82),
    ],
)
def test_it_is_what_a_device_waits_for(found: RunSummary, share: float) -> None:
    assert host_share(found) == pytest.approx(share)


def test_an_evaluation_that_keeps_the_device_at_work_is_no_part_of_steps() -> None:
    found = on(device(loader_s=20.0))
    step = summaries.statistics(0.05, n=780)
    training = replace(found.training, steps=800, step_s=step)
    assert host_share(found) == pytest.approx(0.2)
    assert host_share(replace(found, training=training)) == pytest.approx(0.5)


def test_waits_where_passes_begin_are_no_part_of_steps() -> None:
    found = on(device(loader_s=20.0, host_s=10.0))
    starts = summaries.ledger({"loader_start": 10.0, "first_batch": 5.0, "loader_end": 1.0})
    assert host_share(replace(found, ledger=starts)) == pytest.approx(0.14)


def test_where_no_device_tells_it_is_the_wait_for_batches() -> None:
    training = replace(on().training, per_step_s={"data_wait": 0.03, "forward": 0.07})
    assert host_share(replace(on(), training=training)) == pytest.approx(0.3)
    assert host_share(replace(on(), training=replace(training, per_step_s=None))) == 0
    untold = replace(BUSY, busy_share=None)
    assert host_share(replace(on(untold), training=training)) == pytest.approx(0.3)


def virtual(found: RunSummary, cpu: str = "EPYC", **fields: object) -> ComparedRun:
    system = summaries.system(cpu={"tree_percent": {"mean": 180.0}})
    changed = replace(found, system=system, **fields)  # type: ignore[arg-type]
    return made_up(changed, cpu, host={"is_virtual": True, "cpu": cpu, "usable_cores": 8})


def test_cores_of_a_virtual_machine_wander_where_a_device_waits_for_them() -> None:
    assert virtual(on(STARVED)).wandering() == pytest.approx(0.5 * 0.82)
    assert virtual(on(BUSY)).wandering() == pytest.approx(0.5 * 0.04)
    assert virtual(summaries.healthy()).wandering() == 0.5
    for found, share in ((on(STARVED), 0.41), (on(BUSY), LEAST_CHANCE)):
        chance = chance_between([virtual(found)], [virtual(with_steps_longer(found, 1.2))])
        assert chance.share == pytest.approx(share)


def beside_others(found: RunSummary, name: str = "a", waited: float = 0.3) -> ComparedRun:
    """A run on 8 cores of which others kept 44 % busy."""
    cpu = {
        "host_percent": {"mean": 56.5},
        "tree_percent": {"mean": 100.0},
        "per_core_percent": [56.5] * 8,
        "pressure_some_share": waited,
    }
    return made_up(replace(found, system=summaries.system(cpu=cpu)), name)


def test_other_programs_disturb_a_device_where_it_waits_for_the_host() -> None:
    whole = 0.7**-3 - 1
    assert beside_others(summaries.healthy()).disturbance() == pytest.approx(whole)
    assert beside_others(on(STARVED)).disturbance() == pytest.approx(whole * 0.82)
    assert beside_others(on(BUSY)).disturbance() == pytest.approx(whole * 0.04)
    # What loaders and starts of passes take is the host's all the same.
    assert beside_others(on(BUSY)).host_chance() == pytest.approx(whole)
    # Least of all it is what runs on a quiet machine differ by.
    slower = beside_others(with_steps_longer(on(BUSY), 1.3), "b")
    assert chance_between([beside_others(on(BUSY))], [slower]).share == pytest.approx(whole * 0.04)
    idle = chance_between([beside_others(on(BUSY), waited=0.05)], [slower])
    assert idle.share >= LEAST_CHANCE


def test_a_device_at_work_is_judged_however_busy_the_host(tmp_path: Path) -> None:
    def recorded_on(name: str, seed: int, forward: int) -> ComparedRun:
        run = read(recorded(tmp_path, name, forwards=steps_of(seed, forward)))
        told = beside_others(on(BUSY), waited=0.5).summary
        summary = replace(
            run.summary,
            run=told.run,
            phases=told.phases,
            training=replace(run.summary.training, steps=50_000),
            devices=told.devices,
            system=told.system,
        )
        return replace(run, summary=summary)

    base, other = recorded_on("a", 1, 20 * MS), recorded_on("b", 2, 26 * MS)
    assert base.host_disturbance() > BOUNDLESS_CHANCE
    found = compare([base], [other], limit=0.05)
    assert found.verdict == SLOWER
    assert found.gate is not None
    assert found.gate.outcome == TRIPPED


def test_waits_for_batches_wander_by_more_than_the_step_on_a_device(tmp_path: Path) -> None:
    def recorded_on(name: str, seed: int, forward: int, wait: int) -> ComparedRun:
        run = read(recorded(tmp_path, name, forwards=steps_of(seed, forward), wait=wait))
        told = virtual(on(BUSY))
        summary = replace(
            run.summary,
            run=told.summary.run,
            phases=told.summary.phases,
            training=replace(run.summary.training, steps=50_000),
            devices=told.summary.devices,
            system=told.summary.system,
        )
        return replace(run, summary=summary, manifest=told.manifest)

    base = recorded_on("a", 1, 2 * MS, 1 * MS)
    other = recorded_on("b", 2, 3 * MS, 1300 * US)
    found = compare([base], [other])
    verdicts = {one.name: one.verdict for one in found.in_group("ledger")}
    assert verdicts["per_step_s.forward"] == SLOWER
    assert verdicts["per_step_s.data_wait"] == NO_VISIBLE_DIFFERENCE


@pytest.mark.parametrize(
    ("base", "other", "kind"),
    [
        (on(STARVED), on(STARVED), "ground"),
        # The faster of two processors may be the one that keeps the device busy.
        (on(BUSY), on(STARVED), "ground"),
        (on(BUSY), on(BUSY), "remark"),
        (summaries.healthy(), summaries.healthy(), "ground"),
    ],
)
def test_another_processor_is_another_machine_where_the_host_decides(
    base: RunSummary, other: RunSummary, kind: str
) -> None:
    runs = [virtual(base, torch_threads=8)], [virtual(other, "Xeon", torch_threads=4)]
    found = {one.what: one for one in discrepancies(*runs)}
    assert (found["CPU"].kind, found["CPU"].text) == (kind, "CPU EPYC -> Xeon")
    assert ("torch's threads" in found) is (kind == "ground")
    assert any(one.kind in UNLIKE for one in found.values()) is (kind == "ground")
