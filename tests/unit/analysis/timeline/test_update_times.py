"""What each optimizer's own steps took, and what that makes of the finding about them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.events import ITEM_ON_CPU, MS, US, FakeRun

from trainprof.analysis.model.torch_settings import TorchSettings, torch_settings
from trainprof.analysis.run.metadata import Metadata
from trainprof.analysis.summary.finding import OTHER_OPTIMIZERS
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.analysis.timeline.events import nest
from trainprof.analysis.timeline.intervals import Coverage
from trainprof.analysis.timeline.ledger import Window, attribute, update_seconds
from trainprof.record.schema import Kind, Topic


def updates_of(run: FakeRun, began: int = 0, compiling: Coverage | None = None) -> dict[int, int]:
    """Returns what each optimizer's steps took, in ns, from a time on."""
    events = run.events()
    nesting = nest(events)
    nothing = np.empty((0, 2), dtype=np.int64)
    attribution = attribute(events, nesting, nothing, has_device=False)
    window = Window(run.start, began or run.start, run.now, run.now)
    found = update_seconds(events, nesting, attribution, window, compiling)
    return {number: round(spent_s * 1e9) for number, spent_s in found.items()}


def test_each_optimizer_has_its_own_time() -> None:
    run = FakeRun()
    one, other = run.optimizer("Muon#1"), run.optimizer("AdamW#2")
    for _ in range(3):
        run.update(one, 700 * US)
        run.update(other, 50 * US)
    assert updates_of(run) == {one: 2_100 * US, other: 150 * US}


def test_compiling_in_a_step_is_no_time_of_the_optimizer() -> None:
    run = FakeRun()
    optimizer, began = run.optimizer(), run.now
    with run.span(Kind.OPTIMIZER_STEP, site=optimizer):
        run.passes_time(400 * MS)
        ended = run.now
        run.passes_time(3 * MS)
    compiling = Coverage.of(np.array([[began, ended]]), (run.start, run.now))
    assert updates_of(run, compiling=compiling) == {optimizer: 3 * MS}


def test_what_belongs_to_the_update_and_is_no_step_is_nobodys() -> None:
    run = FakeRun()
    optimizer = run.optimizer()
    run.leaf(Kind.CLIP_GRADIENTS, 900 * US)
    with run.span(Kind.SCALER_STEP, site=optimizer):
        run.passes_time(80 * US)
        run.update(optimizer, 50 * US)
    run.leaf(Kind.SCALER_UPDATE, 30 * US)
    run.leaf(Kind.SCHEDULER_STEP, 20 * US)
    with run.span(Kind.CLIP_GRADIENTS):
        run.leaf(Kind.SYNC, 40 * US, flags=ITEM_ON_CPU)
    assert updates_of(run) == {optimizer: 50 * US}


def test_what_a_step_asks_of_tensors_is_its_own_and_what_a_closure_does_is_not() -> None:
    run = FakeRun()
    optimizer = run.optimizer()
    with run.span(Kind.OPTIMIZER_STEP, site=optimizer):
        with run.span(Kind.CLOSURE):
            run.forward(500 * US)
            run.leaf(Kind.SYNC, 60 * US, flags=ITEM_ON_CPU)
            run.leaf(Kind.CLIP_GRADIENTS, 30 * US)
        run.leaf(Kind.SYNC, 4 * US, flags=ITEM_ON_CPU)
        run.leaf(Kind.GC, 8 * US)
        run.passes_time(10 * US)
    assert updates_of(run) == {optimizer: 14 * US}


def test_a_step_inside_another_optimizers_step_is_the_inner_ones() -> None:
    run = FakeRun()
    outer, inner = run.optimizer("Lookahead#1"), run.optimizer("Adam#2")
    with run.span(Kind.OPTIMIZER_STEP, site=outer):
        run.passes_time(20 * US)
        run.update(inner, 50 * US)
        with run.span(Kind.OPTIMIZER_STEP, site=outer):  # super().step()
            run.passes_time(5 * US)
    assert updates_of(run) == {outer: 25 * US, inner: 50 * US}


def test_only_the_loop_counts() -> None:
    run = FakeRun()
    optimizer = run.optimizer()
    run.update(optimizer, 9 * MS)
    began = run.now
    run.update(optimizer, 50 * US)
    assert updates_of(run, began) == {optimizer: 50 * US}
    assert updates_of(FakeRun()) == {}


def settings_of(
    told: list[dict[str, Any]], spent_s: dict[int, float], names: dict[int, str]
) -> TorchSettings:
    texts: dict[Topic, dict[int, Any]] = {topic: {} for topic in Topic}
    texts[Topic.ENVIRONMENT] = dict(enumerate(told))
    texts[Topic.OPTIMIZER] = dict(names)
    texts[Topic.SITE] = {line: ["/work/train.py", line, "<module>"] for line in (60, 61)}
    metadata = Metadata(texts)
    return torch_settings(metadata, metadata.sites("/work"), spent_s)


def looped(number: int | None, line: int = 60, name: str = "Adam") -> dict[str, Any]:
    one = {"class": name, "tensors": 30, "built": line, "site": 0}
    return {"torch_threads": 1, "looped_optimizer": one} | (
        {} if number is None else {"optimizer": number}
    )


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        pytest.param([looped(1), looped(2, 61)], [3.0, 4.0], id="each"),
        pytest.param([looped(1)], [12.0], id="nothing is told of later ones"),
        pytest.param(
            [{"torch_threads": 1, "optimizer": 2}, looped(1)], [3.0], id="one of its class is fused"
        ),
        pytest.param([looped(None)], [12.0], id="an older run: by its class"),
        pytest.param([looped(None), looped(None, 61)], [0.0, 0.0], id="not known of an older run"),
        pytest.param([looped(None, name="SGD")], [0.0], id="another class"),
    ],
)
def test_whose_time_it_is(told: list[dict[str, Any]], expected: list[float]) -> None:
    names = {1: "Adam#1", 2: "Adam#2", 3: "Muon#3", 4: "Adam#4"}
    found = settings_of(told, {1: 3.0, 2: 4.0, 3: 50.0, 4: 5.0}, names)
    assert [one.spent_s for one in found.looped] == expected


@pytest.mark.parametrize(
    ("more", "expected"),
    [({}, 3.0), ({9: "Adam#"}, 12.0), ({9: "Muon#"}, 3.0), ({8: "Muon#", 9: "Adam#"}, 3.0)],
)
def test_the_time_of_very_many_that_have_no_names(more: dict[int, str], expected: float) -> None:
    names = {1: "Adam#1", 3: "Muon#3", **more}
    found = settings_of([looped(1)], {1: 3.0, 2: 4.0, 3: 50.0, 4: 5.0}, names)
    assert [one.spent_s for one in found.looped] == [expected]


def train(tmp_path: Path, *, clip_ns: int, own_ns: int, fusable_ns: tuple[int, ...]) -> RunSummary:
    """A run of optimizers that could be fused, built by lines from 60 on, and one of the script's.

    Args:
        clip_ns: What clipping takes of a step; what optimizers of either kind do likewise.
    """
    run = FakeRun()
    loader, muon = run.loader(), run.optimizer("Muon#9")
    adams = [run.optimizer(f"Adam#{number}") for number in range(len(fusable_ns))]
    for line, adam in enumerate(adams, 60):
        one = {"class": "Adam", "tensors": 40, "built": run.site(line), "site": run.site(90)}
        run.text(
            Topic.ENVIRONMENT, {"torch_threads": 1, "optimizer": adam, "looped_optimizer": one}
        )
    run.text(Topic.ENVIRONMENT, {"torch_threads": 1, "optimizer": muon})
    run.iterate(loader)
    for _ in range(80):
        run.next(loader, 10 * US)
        run.forward()
        run.backward()
        run.leaf(Kind.CLIP_GRADIENTS, clip_ns)
        run.update(muon, own_ns)
        for adam, ns in zip(adams, fusable_ns, strict=True):
            run.update(adam, ns)
    run.stop(loader)
    return run.summary(tmp_path)


def test_an_optimizer_is_not_blamed_for_anothers_time_nor_for_clipping(tmp_path: Path) -> None:
    summary = train(tmp_path, clip_ns=900 * US, own_ns=2 * MS, fusable_ns=(50 * US,))
    assert [one.id for one in summary.findings] == []


def test_optimizers_are_told_with_the_time_of_their_own_steps(tmp_path: Path) -> None:
    summary = train(tmp_path, clip_ns=100 * US, own_ns=200 * US, fusable_ns=(400 * US, 600 * US))
    [finding] = summary.findings
    assert (finding.id, finding.site) == ("slow_optimizer", "train.py:61")
    assert finding.evidence["optimizer_s"] == pytest.approx(80 * 1e-3)
    assert finding.evidence[OTHER_OPTIMIZERS] == ["Adam train.py:60"]
