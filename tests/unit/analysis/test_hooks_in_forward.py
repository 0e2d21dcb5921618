"""What hooks on modules take, from planted looks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.events import LEARNS, MS, FakeRun

from trainprof.analysis.summary import RunSummary
from trainprof.record.schema import Kind, LookFlag, Topic

STEPS = 60
HOOK, INSIDE, COMPUTE = (31, "watch"), (12, "histogram"), (19, "forward")


def stack(run: FakeRun, *frames: tuple[int, str]) -> int:
    sites = [run.text(Topic.SITE, ["model.py", *frame]) for frame in frames]
    return run.text(Topic.STACK, sites)


def train(
    run: FakeRun,
    tmp_path: Path,
    *,
    share: float = 0.5,
    told: Any = None,
    inside: tuple[tuple[int, str], ...] = (HOOK,),
) -> RunSummary:
    """Steps of 20 ms of forward and 10 of backward, with a look in each forward.

    Args:
        share: Of the looks, those that meet a hook.
        told: Of the hook; None: its lines 30 to 33.
        inside: The frames of such a look, innermost first.
    """
    first = run.text(Topic.SITE, ["model.py", 30, "watch"])
    run.text(Topic.ENVIRONMENT, told or {"module_hook": first, "last_line": 33})
    loader, optimizer = run.loader(), run.optimizer()
    hook, other = stack(run, *inside, (50, "train")), stack(run, COMPUTE, (50, "train"))
    run.iterate(loader)
    for step in range(STEPS):
        run.next(loader, MS)
        with run.span(Kind.FORWARD, flags=LEARNS):
            run.passes_time(10 * MS)
            met = hook if step % 10 < 10 * share else other
            run.record(Kind.LOOK, run.now, run.now, site=met, flags=LookFlag.KNOWN)
            run.passes_time(10 * MS)
        run.backward(10 * MS)
        run.update(optimizer)
    run.stop(loader)
    return run.summary(tmp_path)


@pytest.mark.parametrize("inside", [(HOOK,), (INSIDE, HOOK)])
def test_what_they_take_of_a_forward(tmp_path: Path, inside: tuple[tuple[int, str], ...]) -> None:
    told = train(FakeRun(), tmp_path, inside=inside)
    found = told.hooks_in_forward
    assert found is not None
    assert found.share == pytest.approx(0.5, abs=0.05)
    assert found.seconds == pytest.approx(STEPS * 0.020 * 0.5, rel=0.1)
    assert found.lines[0].site == f"model.py:{inside[0][0]}"
    [finding] = told.findings
    assert (finding.id, finding.site) == ("module_hooks", found.lines[0].site)


@pytest.mark.parametrize(
    "told",
    [
        {"module_hook": 9_999, "last_line": 33},
        {"module_hook": None, "last_line": "nonsense"},
        {"something": 1},
    ],
)
def test_other_code_is_none_of_theirs(tmp_path: Path, told: dict[str, Any]) -> None:
    assert train(FakeRun(), tmp_path, told=told).hooks_in_forward is None


def test_hooks_that_take_little_are_not_told(tmp_path: Path) -> None:
    assert train(FakeRun(), tmp_path, share=0.0).hooks_in_forward is None


def test_on_a_device_the_hosts_time_does_not_tell(tmp_path: Path) -> None:
    run = FakeRun()
    run.text(Topic.ENVIRONMENT, {"device": "cuda:0"})
    assert "module_hooks" not in [one.id for one in train(run, tmp_path).findings]
