"""What the headline names: why the device was idle, or which loader is waited for."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support import summaries

from trainprof.analysis.run.evidence import DeviceEvidence, Evidence
from trainprof.analysis.run.ranks import common_evidence
from trainprof.analysis.summary.loader import Loader
from trainprof.analysis.timeline.checkpoints import Checkpoints
from trainprof.analysis.timeline.step_table import StepTable
from trainprof.findings.verdict import device_verdict, verdict

SITES = {"data": "train.py:41", "transfer": "train.py:50", "sync": "train.py:60"}


@pytest.mark.parametrize(
    ("busy", "idle", "bottleneck", "level"),
    [
        (0.3, {"loader": 0.6}, "data", "highly"),
        (0.4, {"loader": 0.15, "host": 0.12}, "data", "moderately"),
        ((0.8, 0.85), {"loader": 0.1}, "compute", "moderately"),
        (0.95, {"loader": 0.05}, "compute", "not"),
        (0.6, {"copy": 0.3}, "transfer", "highly"),
        (0.6, {"sync": 0.3}, "sync", "highly"),
        (0.6, {"host": 0.3}, "host", "highly"),
        (0.6, {"checkpoint": 0.3}, "checkpoint", "highly"),
        (0.6, {"evaluation": 0.4}, "evaluation", "highly"),
        ((0.2, 0.9), {"keeps_up": True}, "host", "highly"),
        ((0.2, 0.9), {}, "unknown", None),
        ((0.2, 0.7), {"loader": 0.3}, "data", "highly"),
        ((0.6, 0.9), {}, "compute", "not"),
    ],
)
def test_the_largest_certain_reason_is_named(
    busy: float | tuple[float, float],
    idle: dict[str, Any],
    bottleneck: str,
    level: str | None,
    says: Callable[..., None],
) -> None:
    low, high = busy if isinstance(busy, tuple) else (busy, busy)
    causes = {key: share for key, share in idle.items() if key not in ("keeps_up", "evaluation")}
    shares = {f"{cause}_s": share for cause, share in causes.items()} | {"unknown_s": high - low}
    evidence = DeviceEvidence((low, high), shares, bool(idle.get("keeps_up")))
    evaluation_s = 20 * idle.get("evaluation", 0.0)
    known = device_verdict(evidence, training_s=20.0, evaluation_s=evaluation_s, sites=SITES)
    assert (known.bottleneck, known.level) == (bottleneck, level)
    says(known.headline)


def test_of_several_ranks_it_is_the_mean_and_all_must_keep_up() -> None:
    first = DeviceEvidence((0.2, 0.3), {"loader_s": 0.7}, keeps_up=True)
    other = DeviceEvidence((0.4, 0.5), {"loader_s": 0.5}, keeps_up=False)
    common = DeviceEvidence.common([first, other])
    assert common.busy == (0.2, 0.5)
    assert common.idle == {"loader_s": pytest.approx(0.6)}
    assert not common.keeps_up
    assert DeviceEvidence.common([first, replace(other, keeps_up=True)]).keeps_up


@pytest.mark.parametrize(
    ("walls_ms", "loader", "bottleneck"),
    [
        ([4000, 4100, 3900] * 4, 0.3, "data"),
        ([4000, 900, 9000] * 4, 0.3, "unknown"),  # the device may as well work more
        ([4000, 4100, 3900] * 4, 0.05, "compute"),
    ],
)
def test_on_a_device_few_uneven_steps_are_not_enough(
    walls_ms: list[int], loader: float, bottleneck: str
) -> None:
    wall_ns, never = np.array(walls_ms) * 1_000_000, np.zeros(12, dtype=bool)
    table = StepTable.of(
        wall_ns, {}, epoch_of=np.zeros(12, dtype=np.int64), border=never, buffered=never, cycle=1
    )
    device = DeviceEvidence((0.6, 0.65), {"loader_s": loader}, keeps_up=False)
    evidence = replace(waiting_for(), has_device=True, device=device, few_steps=table)
    assert verdict(evidence).bottleneck == bottleneck


# -- which of several loaders


def loader(line: int, waited_s: float, **more: Any) -> Loader:
    plain = {"init_s": None, "first_batch_s": None}
    return summaries.loader(f"train.py:{line}", wait_total_s=waited_s, **plain | more)


def waiting_for(*loaders: Loader, **training: float) -> Evidence:
    """Half of training is waiting for loaders."""
    waits = {"data_wait": 1.0, **training}
    return Evidence(
        wall_s=3.0,
        startup_s=0.0,
        training_s=2 * sum(waits.values()),
        training=waits | {"forward": sum(waits.values())},
        has_device=False,
        steps=replace(summaries.healthy().training, per_step_s=None),
        loaders=list(loaders),
        checkpoints=Checkpoints(),
        evaluation_site=None,
        evaluation_call=None,
        other_place=None,
    )


def named(*ranks: Evidence) -> tuple[str | None, list[int]]:
    """Returns the line that the verdict of some ranks names, and the headline's percentages."""
    common = verdict(common_evidence([*ranks]))
    return common.site, [int(x) for x in re.findall(r"(\d+) %", common.headline)]


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_of_ranks_that_wait_for_two_loaders_each_has_its_share(ranks: int) -> None:
    both = waiting_for(loader(41, 0.6), loader(42, 0.4))
    assert named(*[both] * ranks) == ("train.py:41", [50, 60])


@pytest.mark.parametrize(
    ("loaders", "training", "line"),
    [
        pytest.param([(41, 0.3, {}), (41, 0.3, {}), (42, 0.4, {})], {}, 41, id="of one line"),
        pytest.param([(41, 5.0, {"evaluation_wait_s": 4.6}), (42, 0.6, {})], {}, 42, id="in tests"),
        # Ends of workers count as far as they lie in training: 0.9 of 1.5 s.
        pytest.param([(41, 0.4, {"end_s": 0.5}), (42, 0.6, {})], {"loader_end": 0.5}, 41, id="end"),
        pytest.param([(41, 0.4, {"end_s": 50}), (42, 0.6, {})], {"loader_end": 0.5}, 41, id="late"),
    ],
)
def test_what_is_waited_for(
    loaders: list[tuple[int, float, dict[str, float]]], training: dict[str, float], line: int
) -> None:
    rows = [loader(at, waited_s, **more) for at, waited_s, more in loaders]
    site, percents = named(waiting_for(*rows, **training))
    assert (site, percents[-1]) == (f"train.py:{line}", 60)
