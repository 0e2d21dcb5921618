"""Python code inside the model: stack samples that it held up, and values that it reads."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.events import LEARNS, MS, US, FakeRun
from support.stack_samples import sample, stack

from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.record.schema import Kind, StackFlag, SyncFlag, Topic

STEPS = 60
MASK, OTHER = 31, 35
BOOL = SyncFlag.BOOL | SyncFlag.ON_CPU
MODEL = "model.py"
MATCH, COMPUTE = (31, "match"), (19, "forward")


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
) -> RunSummary:
    """Steps of 20 ms of forward, a share of it Python, and 10 of backward, sampled in each."""
    loader, optimizer = run.loader(), run.optimizer()
    here = stack(run, let_go_at, (50, "train"), file=MODEL)
    there = stack(run, COMPUTE, (50, "train"), file=MODEL)
    backward = stack(run, (51, "train"), file=MODEL)
    run.iterate(loader)
    for step in range(STEPS):
        run.next(loader, MS)
        with run.span(Kind.FORWARD, flags=LEARNS):
            run.passes_time(10 * MS)
            is_python = (step % 10) < 10 * python
            known = StackFlag.KNOWN if is_known or not is_python else 0
            if is_python:
                sample(run, here, late=held_ns, held_ns=held_ns, flags=known | flags | arrays)
            else:
                sample(run, there, flags=known | flags)
            run.passes_time(10 * MS)
        with run.span(Kind.BACKWARD):
            run.passes_time(5 * MS)
            sample(run, backward, flags=StackFlag.KNOWN | flags)
            run.passes_time(5 * MS)
        run.update(optimizer)
    run.stop(loader)
    return run.summary(tmp_path)


def test_a_librarys_arrays_count_though_they_release_the_gil(tmp_path: Path) -> None:
    flags = StackFlag.RUNS | StackFlag.ARRAYS
    summary = train(FakeRun(), tmp_path, held_ns=0, is_known=True, arrays=flags)
    [finding] = summary.findings
    assert (finding.id, finding.site) == ("python_in_model", "model.py:31")
    assert summary.python_in_model.seconds["forward"] == pytest.approx(0.6, rel=0.05)
    assert summary.python_in_model.seconds["backward"] == 0
    # In the user's own code it looks like an operator of torch's.
    flags = StackFlag.RUNS | StackFlag.OPERATOR
    own = train(FakeRun(), tmp_path / "own", held_ns=0, is_known=True, arrays=flags)
    assert own.findings == []


@pytest.mark.parametrize(
    ("is_known", "let_go_at"), [(True, MATCH), (False, MATCH), (False, COMPUTE)]
)
def test_python_in_the_forward_has_its_share_and_line(
    tmp_path: Path, is_known: bool, let_go_at: tuple[int, str]
) -> None:
    summary = train(FakeRun(), tmp_path, is_known=is_known, let_go_at=let_go_at)
    python, [finding] = summary.python_in_model, summary.findings
    assert finding.id == "python_in_model"
    if let_go_at == COMPUTE:  # an operator behind it is not taken for it
        assert (python.lines, python.behind.site, finding.site) == ([], "model.py:19", None)
        return
    assert python.seconds["forward"] == pytest.approx(0.5 * STEPS * 0.020, rel=0.05)
    assert python.seconds["backward"] == 0
    assert python.held == pytest.approx(python.samples / 4, abs=2)
    [line] = python.lines
    assert (line.site, line.called_from) == ("model.py:31", ["model.py:50"])
    assert (python.behind, finding.site, finding.is_at_most) == (None, "model.py:31", True)
    # 30 of the 60 samples of forward and as many of backward met it: one standard error more.
    assert finding.predicted_speedup[1] > 1.1 * finding.evidence["likely_speedup"]
    assert summary.verdict.bottleneck == "compute"


def train_with_hook(run: FakeRun, tmp_path: Path, *, seen_in_it: int) -> RunSummary:
    """Steps of 20 ms of backward, half of it a hook; most samples are let through as it ends.

    Args:
        seen_in_it: In how many of the first steps the hook was made to release the GIL.
    """
    run.text(Topic.ENVIRONMENT, {"backward_code": {"sites": [run.site(29, "/work/hooks.py")]}})
    loader, optimizer = run.loader(), run.optimizer()
    call = stack(run, (51, "train"))
    frames = [
        run.text(Topic.SITE, ["hooks.py", 31, "clip"]),
        run.text(Topic.SITE, ["train.py", 51, "train"]),
    ]
    hook = run.text(Topic.STACK, frames)
    run.iterate(loader)
    for step in range(STEPS):
        run.next(loader, MS)
        run.forward(5 * MS)
        with run.span(Kind.BACKWARD):
            run.passes_time(5 * MS)
            sample(run, call)
            run.passes_time(10 * MS)
            is_seen = step < seen_in_it
            known = StackFlag.KNOWN if is_seen else 0
            sample(run, hook if is_seen else call, late=5 * MS, held_ns=5 * MS, flags=known)
            run.passes_time(5 * MS)
        run.update(optimizer)
    run.stop(loader)
    return run.summary(tmp_path)


@pytest.mark.parametrize(("seen_in_it", "site"), [(10, "hooks.py:31"), (0, "hooks.py:29")])
def test_python_that_backward_calls_is_not_at_the_line_of_the_call(
    tmp_path: Path, seen_in_it: int, site: str
) -> None:
    """Its own line where samples met it, else where the only function begins that may be it."""
    summary = train_with_hook(FakeRun(), tmp_path, seen_in_it=seen_in_it)
    python, [finding] = summary.python_in_model, summary.findings
    assert python.seconds["backward"] == pytest.approx(0.5 * STEPS * 0.020, rel=0.05)
    assert python.called_by_backward == (seen_in_it == 0)
    assert (python.behind, finding.id, finding.site) == (None, "python_in_model", site)


@pytest.mark.parametrize(
    "healthy",
    [
        {"python": 0.0},
        {"held_ns": 60 * US},  # as between two of torch's operators
        {"python": 0.1},  # by so few looks that it may be chance
        {"flags": StackFlag.CROWDED},  # another thread may have been the one
    ],
)
def test_what_a_model_of_torchs_operators_does_is_no_finding(
    tmp_path: Path, healthy: dict[str, float]
) -> None:
    summary = train(FakeRun(), tmp_path, **healthy)
    assert summary.findings == []
    assert summary.beside_share == (1.0 if "flags" in healthy else 0.0)


def test_where_samples_cannot_tell_it_nothing_is_said(tmp_path: Path) -> None:
    compiled, checked, on_device = (FakeRun() for _ in range(3))
    compiled.leaf(Kind.COMPILE, MS)
    checked.text(Topic.ENVIRONMENT, {"detects_anomalies": True})  # reads Python's stacks itself
    on_device.text(Topic.ENVIRONMENT, {"device": "cuda:0"})  # it may work in that time
    for number, run in enumerate((compiled, checked, on_device)):
        summary = train(run, tmp_path / str(number))
        assert (summary.python_in_model is None) is (run is not on_device)
        assert "python_in_model" not in [finding.id for finding in summary.findings]


def train_with_reads(
    run: FakeRun,
    tmp_path: Path,
    *,
    reads: int = 1_000,
    apart_ns: int = 10 * US,
    flags: int = BOOL,
    in_steps: int = STEPS,
    counted: int | None = None,
) -> RunSummary:
    """Steps with a forward of 10 ms, and as long as its reads take; the last at another line."""
    site, other = (run.text(Topic.SITE, ["model.py", n, "forward"]) for n in (MASK, OTHER))
    loader, optimizer = run.loader(), run.optimizer()
    run.iterate(loader)
    for step in range(STEPS):
        run.next(loader, MS)
        with run.span(Kind.FORWARD, flags=LEARNS):
            run.passes_time(5 * MS)
            for read in range(reads if step < in_steps else 0):
                if counted is None or step < counted:
                    at = other if read == reads - 1 else site
                    run.record(Kind.SYNC, run.now, run.now, site=at, flags=flags)
                run.passes_time(apart_ns)
            run.passes_time(5 * MS)
        if step + 1 == counted:
            note = {"reads_counted_until": run.now, "flag": int(SyncFlag.BOOL)}
            run.text(Topic.ENVIRONMENT, note)
        run.backward(5 * MS)
        run.update(optimizer)
    run.stop(loader)
    return run.summary(tmp_path)


@pytest.mark.parametrize("counted", [None, 20])
def test_all_the_time_between_reads_counts(tmp_path: Path, counted: int | None) -> None:
    summary = train_with_reads(FakeRun(), tmp_path, counted=counted)
    reads = summary.element_reads
    assert (reads.site, reads.part, reads.per_pass) == (f"model.py:{MASK}", "forward", 1_000)
    assert reads.seconds == pytest.approx(STEPS * 0.010, rel=0.01)
    [finding] = summary.findings
    assert (finding.id, finding.site) == ("python_in_model", f"model.py:{MASK}")
    assert finding.is_at_most
    # A step of 26 ms would be one of 16.
    assert finding.evidence["likely_speedup"] == pytest.approx(26 / 16, rel=0.05)


@pytest.mark.parametrize(
    "healthy",
    [
        {"reads": 12},  # a decision in each layer
        {"apart_ns": 150 * US, "reads": 100},  # as much is computed between as a layer does
        {"in_steps": 2},  # what is filled once
        {"flags": SyncFlag.BOOL},  # of a device's tensors
        {"counted": 1},  # nobody knows of the others
    ],
)
def test_reads_that_are_no_loop_over_elements(tmp_path: Path, healthy: dict[str, int]) -> None:
    summary = train_with_reads(FakeRun(), tmp_path, **healthy)
    assert summary.findings == []
