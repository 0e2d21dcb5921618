"""On a device only that counts in which it had run dry."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.cases import Planted, case_of, idle_device, on_device
from support.found import (
    compiled,
    found,
    handed_over,
    hot_line,
    looped,
    minded,
    only,
    with_slow_starts,
)

from trainprof.analysis.model.optimizer_builder import OptimizerCall
from trainprof.analysis.model.torch_settings import TorchSettings
from trainprof.analysis.pipeline.bounds import Interval
from trainprof.analysis.summary.code import PythonInModel
from trainprof.analysis.timeline.ledger import LOADER_KEYS
from trainprof.findings.diagnose import diagnose
from trainprof.findings.gain import FASTER_REST
from trainprof.findings.run_context import RunContext


def test_on_a_device_only_that_counts_in_which_it_had_run_dry() -> None:
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    context = case_of(healthy, parts={"other": 1.0, "gc": 0.5})
    assert found(on_device(context)) == []
    assert found(on_device(context, host_s=0.0)) == []
    assert "python_in_loop" in found(on_device(context, host_s=1.0))


@pytest.mark.parametrize(
    ("python_s", "expected"),
    [
        (0.0, ["launch_bound"]),
        (0.4, ["launch_bound", "python_in_model"]),
        (1.4, ["python_in_model"]),
    ],
)
def test_what_keeps_the_host_from_giving_out_work_is_counted_once(
    python_s: float, expected: list[str]
) -> None:
    context = on_device(case_of(Planted(workers=2, fetch_s=0.002, compute_s=0.01)), launch_s=1.0)
    known = PythonInModel(looks=100, held=20, seconds={"forward": python_s}, lines=[])
    summary = replace(context.summary, python_in_model=known)
    found_now = diagnose(replace(context, summary=summary)).findings
    assert [x.id for x in found_now] == expected
    # Longer than the device waited for the host it cannot have held it up.
    assert sum(x.recoverable_s or 0.0 for x in found_now) == pytest.approx(1.0)


def test_a_device_that_keeps_up_with_small_work_and_one_that_does_not() -> None:
    context = on_device(case_of(Planted(workers=2, fetch_s=0.002, compute_s=0.01)), unknown_s=1.0)
    assert found(context) == []
    [device] = context.summary.devices or ()
    dry = dict.fromkeys(("forward", "backward", "optimizer"), 0.95)
    keeps_up = replace(context.summary, devices=[replace(device, ran_dry=dry)])
    assert found(replace(context, summary=keeps_up)) == ["launch_bound"]


@pytest.mark.parametrize(
    ("unfused", "update_s", "told"),
    [
        (("AdamW", "SGD"), 2.0, ", fused=True for SGD and AdamW"),
        (("Muon", "Adagrad"), 2.0, ""),
        ((), 2.0, ""),  # they are fused, or nobody knows
        (("AdamW",), 0.1, ""),
    ],
)
@pytest.mark.parametrize("by_lightning", [True, False])
def test_which_optimizers_of_a_device_are_to_be_fused(
    unfused: tuple[str, ...], update_s: float, told: str, by_lightning: bool
) -> None:
    settings = TorchSettings(
        unfused=tuple(OptimizerCall(name) for name in unfused), trains_by_lightning=by_lightning
    )
    parts = {"optimizer": update_s}
    context = case_of(Planted(workers=2, fetch_s=0.002), parts=parts, torch=settings)
    finding = only(on_device(context, launch_s=1.0))
    assert finding.id == "launch_bound"
    assert f"{told}; larger batches" in finding.advice
    assert ("fused" in finding.advice) is bool(told)
    assert ("Lightning's Trainer ends" in minded(finding)) is (by_lightning and bool(told))


@pytest.mark.parametrize(
    ("is_compiled", "package", "advice"),
    [
        (True, None, "compile what lies around it too"),
        (False, None, "torch.compile(model), "),
        (False, "transformers", "TrainingArguments(..., torch_compile=True), "),
    ],
)
def test_small_work_is_joined(is_compiled: bool, package: str | None, advice: str) -> None:
    planted = Planted(workers=2, fetch_s=0.002)
    planted.loader = replace(planted.loader, built_by=package)
    context = on_device(case_of(planted), launch_s=1.0)
    compilations = [compiled(0, 0.0)] if is_compiled else []
    line = replace(hot_line("forward"), site="model.py:18")
    summary = replace(context.summary, compilations=compilations, part_lines=[line])
    finding = only(replace(context, summary=summary))
    assert (finding.id, finding.site) == ("launch_bound", "model.py:18")
    assert finding.advice.startswith(advice)
    assert "create_graph=True" in minded(finding)


@pytest.mark.parametrize(
    ("by_lightning", "clips", "change"),
    [(True, True, {}), (True, False, {"fused": True}), (False, True, {"fused": True})],
)
def test_lightning_refuses_fused_optimizers_that_clip(
    by_lightning: bool, clips: bool, change: dict[str, Any]
) -> None:
    settings = replace(looped(), trains_by_lightning=by_lightning)
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    context = case_of(healthy, parts={"optimizer": 1.0}, torch=settings)
    finding = only(replace(context, clips_gradients=clips))
    assert (finding.id, finding.change) == ("slow_optimizer", change)
    assert ("Lightning's Trainer ends" in minded(finding)) is by_lightning


def test_samples_of_a_librarys_dataset_are_to_be_cheaper_where_workers_may_lose() -> None:
    """No line of the user's makes them: the looks at the wait met the loop alone."""
    unsure = {"compute_cores": Interval(1.0, 1.8, 2.0), "receive_s": Interval(0.0, 0.012, 0.03)}
    planted = Planted(fetch_s=0.024, running=1.0, compute_s=0.02, cores=2, **unsure)
    context = case_of(planted)
    assert found(context) == []
    loop = replace(hot_line("data_wait"), site="train.py:50")
    seen = replace(context, summary=replace(context.summary, part_lines=[loop]))
    finding = only(seen)
    assert (finding.id, finding.site, finding.change) == ("serial_loading", "train.py:41", {})
    assert finding.advice.startswith("cheaper samples: what comes out the same each time")
    assert any("helps only a rerun tells" in x for x in finding.also)
    planted.loader = replace(planted.loader, dataset="Dataset")
    rows = only(replace(case_of(planted), summary=seen.summary))
    assert rows.advice.startswith("cheaper samples: of a datasets.Dataset only the columns that")
    planted.loader = replace(planted.loader, holds_tensors=True)
    tensors = case_of(planted)
    assert found(replace(tensors, summary=replace(tensors.summary, part_lines=[loop]))) == []


def test_what_chains_of_syncs_cost_at_most_is_all_of_their_time() -> None:
    context = on_device(case_of(Planted(workers=2, fetch_s=0.002)), sync_s=0.3, unknown_s=0.5)
    devices = [
        replace(device, exposed_s={"sync": [0.3, 0.7]}) for device in context.summary.devices or ()
    ]
    finding = only(replace(context, summary=replace(context.summary, devices=devices)))
    most = context.settled_s / (context.settled_s - 0.7)
    assert finding.recoverable_s == pytest.approx(0.3)
    assert finding.predicted_speedup is not None
    assert finding.predicted_speedup[1] == pytest.approx(most)


def test_a_sync_that_the_device_felt_and_one_that_it_did_not() -> None:
    context = case_of(Planted(workers=2, fetch_s=0.002))
    finding = only(on_device(context, sync_s=0.6))
    assert (finding.id, finding.site) == ("exposed_syncs", "train.py:60")
    assert found(on_device(context, sync_s=0.0)) == []


@pytest.mark.parametrize(("loader_s", "expected"), [(6.0, ["serial_loading"]), (0.1, [])])
def test_a_wait_that_the_device_did_not_feel_is_no_finding(
    loader_s: float, expected: list[str]
) -> None:
    planted = Planted(fetch_s=0.03, compute_s=0.01)
    device = idle_device({"loader_s": loader_s})
    context = case_of(planted, devices=[device], device="cuda:0")
    assert found(context) == expected
    for finding in diagnose(context).findings:
        assert finding.predicted_speedup is not None
        assert (
            finding.predicted_speedup[1]
            <= context.training_s / (context.training_s - loader_s) + 1e-9
        )


def felt(planted: Planted, idle_s: float, cause: str = "loader_s", **parts: float) -> RunContext:
    """Returns a run on a device that was idle for so long because of `cause`."""
    devices = [idle_device({cause: idle_s})]
    return case_of(planted, devices=devices, device="cuda:0", parts=parts)


def restarted(**changes: Any) -> Planted:
    plain = {"workers": 2, "fetch_s": 0.004, "compute_s": 0.01, "passes": 10, "start_s": 0.3}
    return Planted(**{**plain, **changes})


@pytest.mark.parametrize(
    ("planted", "rule"),
    [
        (with_slow_starts(0.1, 0.09), "worker_restart"),
        (restarted(), "worker_restart"),
        (handed_over(), "worker_restart"),
    ],
)
def test_of_starts_and_workers_a_device_feels_only_what_it_is_idle_for(
    planted: Planted, rule: str
) -> None:
    host = case_of(planted)
    assert rule in found(host)
    waited_s = sum(host.training[key] for key in LOADER_KEYS)
    gains = []
    for share in (1.0, 0.5):
        context = felt(planted, share * waited_s)
        finding = next(x for x in diagnose(context).findings if x.id == rule)
        gains.append(finding.recoverable_s or 0.0)
        assert gains[-1] <= share * waited_s + 1e-9
        assert finding.predicted_speedup is not None
        most = context.training_s / (context.training_s - share * waited_s)
        # What is left for the host may get faster, what the device works does not.
        most /= 1 - FASTER_REST * (1 - 1 / most)
        assert finding.predicted_speedup[1] <= most + 1e-9
    assert gains[1] < 0.7 * gains[0]
    assert found(felt(planted, 0.001)) == []


@pytest.mark.parametrize(("workers", "rule"), [(0, "serial_loading"), (1, "too_few_workers")])
def test_no_more_workers_than_a_device_can_use(workers: int, rule: str) -> None:
    # The host is done with a step after 4 ms, and a batch takes 60: sixteen workers would keep up.
    planted = Planted(workers=workers, fetch_s=0.06, running=1.0, compute_s=0.004, cores=32)
    host = only(case_of(planted)).change["num_workers"]
    assert host > 10
    waited_s = sum(case_of(planted).training[key] for key in LOADER_KEYS)
    # For half of the waits the device works: it takes some 30 ms a step, for which two will do.
    finding = only(felt(planted, 0.5 * waited_s))
    assert finding.id == rule
    assert finding.change["num_workers"] in (2, 3)
    assert only(felt(planted, waited_s)).change["num_workers"] == host


def test_what_evaluation_waits_for_is_felt_by_what_a_device_is_idle_in_it() -> None:
    planted = restarted(role="evaluation")
    waits = [case_of(planted, parts={"evaluation": 4.0})]
    waits.append(felt(planted, 4.0, "evaluation_s", evaluation=4.0))
    assert [found(context) for context in waits] == [["worker_restart"]] * 2
    assert "worker_restart" not in found(felt(planted, 0.1, "evaluation_s", evaluation=4.0))
