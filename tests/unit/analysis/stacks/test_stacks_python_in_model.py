"""Python code inside the model, from planted looks that it kept waiting."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.events import LEARNS, MS, US, FakeRun

from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.record.schema import Kind, LookFlag, Topic

STEPS = 60
MATCH, COMPUTE = (31, "match"), (19, "forward")


def stack(run: FakeRun, *frames: tuple[int, str]) -> int:
    sites = [run.text(Topic.SITE, ["model.py", *frame]) for frame in frames]
    return run.text(Topic.STACK, sites)


def train(
    run: FakeRun,
    tmp_path: Path,
    *,
    python: float = 0.5,
    held_ns: int = MS,
    let_go_at: tuple[int, str] = MATCH,
    is_known: bool = False,
    flags: int = 0,
    arrays: int = 0,
    first_held: int = 0,
    crowded_of: int = 0,
) -> RunSummary:
    """Steps of 20 ms of forward and 10 of backward, with a look in each of the two.

    Args:
        python: Share of the forward that is Python code, as looks meet it.
        held_ns: For how long it keeps a look waiting.
        let_go_at: Where such a look is let through.
        is_known: The code is still there then.
        flags: Of each look besides.
        arrays: Of those besides that meet it.
        first_held: In so many first steps the looks are kept waiting anyway.
        crowded_of: Of so many steps one is looked at beside another thread at work; 0: none is.
    """
    loader, optimizer = run.loader(), run.optimizer()
    here = stack(run, let_go_at, (50, "train"))
    there, backward = stack(run, COMPUTE, (50, "train")), stack(run, (51, "train"))
    run.iterate(loader)
    for step in range(STEPS):
        run.next(loader, MS)
        with run.span(Kind.FORWARD, flags=LEARNS):
            run.passes_time(10 * MS)
            is_python = step < first_held or (step % 10) < 10 * python
            told = LookFlag.KNOWN if is_known or not is_python else 0
            if crowded_of and step % crowded_of == 0:
                told |= LookFlag.CROWDED
            run.record(
                Kind.LOOK,
                run.now - held_ns if is_python else run.now,
                run.now,
                site=here if is_python else there,
                value=held_ns if is_python else 0,
                flags=told | flags | (arrays if is_python else 0),
            )
            run.passes_time(10 * MS)
        with run.span(Kind.BACKWARD):
            run.passes_time(5 * MS)
            run.record(Kind.LOOK, run.now, run.now, site=backward, flags=LookFlag.KNOWN | flags)
            run.passes_time(5 * MS)
        run.update(optimizer)
    run.stop(loader)
    return run.summary(tmp_path)


def test_a_librarys_arrays_are_told_though_they_let_others_run(tmp_path: Path) -> None:
    flags = LookFlag.RUNS | LookFlag.ARRAYS
    told = train(FakeRun(), tmp_path, held_ns=0, is_known=True, arrays=flags)
    [finding] = told.findings
    assert (finding.id, finding.site) == ("python_in_model", "model.py:31")
    assert told.python_in_model.seconds["forward"] == pytest.approx(0.6, rel=0.05)
    assert told.python_in_model.seconds["backward"] == 0


def test_what_lets_others_run_in_the_users_own_code_is_not(tmp_path: Path) -> None:
    flags = LookFlag.RUNS | LookFlag.OPERATOR
    told = train(FakeRun(), tmp_path, held_ns=0, is_known=True, arrays=flags)
    assert told.findings == []


@pytest.mark.parametrize("is_known", [True, False])
def test_python_in_the_forward_is_told_by_share_and_line(tmp_path: Path, is_known: bool) -> None:
    told = train(FakeRun(), tmp_path, is_known=is_known)
    found = told.python_in_model
    assert found.seconds["forward"] == pytest.approx(0.5 * STEPS * 0.020, rel=0.05)
    assert found.seconds["backward"] == 0
    assert found.held == pytest.approx(found.looks / 4, abs=2)
    assert [line.site for line in found.lines] == ["model.py:31"]
    assert found.lines[0].called_from == ["model.py:50"]
    assert found.behind is None
    [finding] = told.findings
    assert (finding.id, finding.site) == ("python_in_model", "model.py:31")
    assert "about 590 ms, 32 % of training and 49 % of forward" in finding.title
    assert finding.is_at_most
    # 30 of the 60 looks at forward and as many at backward met it: one standard error more.
    assert finding.predicted_speedup[1] > 1.1 * finding.evidence["likely_speedup"]
    assert "Python code inside them about 32 % of it" in told.verdict.headline
    assert told.verdict.bottleneck == "compute"


def test_an_operator_behind_it_is_not_taken_for_it(tmp_path: Path) -> None:
    told = train(FakeRun(), tmp_path, let_go_at=COMPUTE)
    found = told.python_in_model
    assert (found.lines, found.behind is not None) == ([], True)
    [finding] = told.findings
    assert (finding.id, finding.site) == ("python_in_model", None)
    assert finding.also[0] == "it comes ahead of model.py:19 (forward), which computes with torch"


@pytest.mark.parametrize(
    "healthy",
    [
        {"python": 0.0},
        {"held_ns": 60 * US},  # as between two of torch's operators
        {"python": 0.1},  # by so few looks that it may be chance
        {"flags": LookFlag.CROWDED},  # another thread may have been the one
        {"crowded_of": 10},  # and at the other looks, before it went to wait
    ],
)
def test_what_a_model_of_torchs_operators_does_is_no_finding(
    tmp_path: Path, healthy: dict[str, float]
) -> None:
    told = train(FakeRun(), tmp_path, **healthy)
    assert told.findings == []
    if "crowded_of" in healthy:  # of each step's two looks one in ten is
        assert told.beside_share == pytest.approx(0.05, abs=0.01)
    assert "Python code inside" not in told.verdict.headline


def test_a_first_forward_that_imports_is_not_counted(tmp_path: Path) -> None:
    found = train(FakeRun(), tmp_path, python=0.0, first_held=1).python_in_model
    assert found is None or found.held == 0


def test_with_a_compiler_nothing_is_said(tmp_path: Path) -> None:
    run = FakeRun()
    run.leaf(Kind.COMPILE, MS)
    assert train(run, tmp_path).python_in_model is None


def test_with_anomaly_detection_which_looks_at_python_itself_nothing_is_said(
    tmp_path: Path,
) -> None:
    run = FakeRun()
    run.text(Topic.ENVIRONMENT, {"detects_anomalies": True})
    told = train(run, tmp_path)
    assert told.python_in_model is None
    assert "python_in_model" not in [one.id for one in told.findings]


def test_on_a_device_that_may_be_at_work_meanwhile_nothing_is_found(tmp_path: Path) -> None:
    run = FakeRun()
    run.text(Topic.ENVIRONMENT, {"device": "cuda:0"})
    told = train(run, tmp_path)
    assert told.python_in_model is not None
    assert told.findings == []
    assert "Python code inside" not in told.verdict.headline


def test_a_comprehension_is_part_of_the_function_that_it_stands_in(tmp_path: Path) -> None:
    run = FakeRun()
    loader, optimizer = run.loader(), run.optimizer()
    inner = stack(run, (33, "<listcomp>"), (32, "match"), (50, "train"))
    run.iterate(loader)
    for _ in range(STEPS):
        run.next(loader, MS)
        with run.span(Kind.FORWARD, flags=LEARNS):
            run.passes_time(10 * MS)
            run.record(Kind.LOOK, run.now, run.now, site=inner, flags=LookFlag.KNOWN)
            run.passes_time(MS)
        run.backward()
        run.update(optimizer)
    run.stop(loader)
    [line] = [one for one in run.summary(tmp_path).part_lines if one.part == "forward"]
    assert (line.site, line.function, line.called_from) == ("model.py:33", "match", ["model.py:50"])
