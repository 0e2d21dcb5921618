"""Stack samples added up for the flame graph, from planted ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.events import MS, FakeRun
from support.stack_samples import sample, stack

from trainprof.analysis.charts import stack_samples
from trainprof.analysis.charts.charts import charts_of
from trainprof.analysis.summary.charts import (
    BETWEEN,
    MET_LATE,
    NO_LINE,
    RARER,
    UNKNOWN_LINE,
    Stacks,
)
from trainprof.record.schema import FETCHED, KEPT_FRAMES, Kind, StackFlag, Topic
from trainprof.report.speedscope import render

STEPS, STEP_MS = 20, 60
KNOWN = StackFlag.KNOWN


def stacks(run: FakeRun, tmp_path: Path) -> Stacks:
    charts = charts_of(run.write(tmp_path))
    assert charts is not None
    return charts.stacks


def by_path(found: Stacks) -> dict[tuple[str, str, str], tuple[int, float]]:
    """Samples and seconds by thread, phase and "function place > ..."."""
    shown = {}
    for thread, phase, samples, numbers, seconds in found.stacks:
        path = " > ".join(" ".join(found.frames[number]).strip() for number in numbers)
        assert (thread, phase, path) not in shown
        shown[thread, phase, path] = samples, round(seconds, 6)
    return shown


def train(run: FakeRun, *in_loop: int, late: Mapping[int, int] | None = None) -> None:
    """Steps of 20 ms in the update and 40 in Python, a sample in the middle of each third."""
    loader, optimizer = run.loader(), run.optimizer()
    in_update = stack(run, (52, "train"), (90, "<module>"))
    run.iterate(loader)
    for step in range(STEPS):
        run.next(loader, 0)
        with run.span(Kind.OPTIMIZER_STEP, site=optimizer):
            run.passes_time(10 * MS)
            sample(run, in_update)
            run.passes_time(10 * MS)
        for _ in range(2):
            run.passes_time(10 * MS)
            by_ns = (late or {}).get(step)
            flags = KNOWN if by_ns is None else 0
            sample(run, in_loop[step % len(in_loop)], late=by_ns or 0, flags=flags)
            run.passes_time(10 * MS)
    run.stop(loader)


def test_stacks_have_the_time_of_their_phase(tmp_path: Path) -> None:
    run = FakeRun()
    run.passes_time(100 * MS)
    line = stack(run, (3, "<module>"))
    imports = run.text(Topic.STACK, [["torch", None], run.text(Topic.SITE, ["train.py", 3, "f"])])
    for seen, late in ((line, 0), (imports, 0), (imports, 5 * MS)):
        with run.span(Kind.GC):  # of an import
            sample(run, seen, late=late)  # before the loop also a late one has its place
            run.passes_time(100 * MS)
    library = run.text(Topic.SITE, ["/venv/lib/python3.11/site-packages/PIL/Image.py", 9, "I.open"])
    ours = run.text(Topic.SITE, ["/x/trainprof/inside/spans/gc.py", 9, "probe"])
    frames = json.loads(run.texts[stack(run, (9, "score"), (57, "train"), (90, "<module>")) - 1][1])
    with_library = run.text(Topic.STACK, [[library, ours], *frames])
    # The last one was due in the update.
    train(run, with_library, 0, late=dict.fromkeys(range(10), 0) | {11: 15 * MS})
    found = by_path(stacks(run, tmp_path))
    update = "<module> train.py:90 > train train.py:52"
    other = "<module> train.py:90 > train train.py:57 > score train.py:9 > I.open PIL.Image"
    # A sample stands for the time since the last: 20 ms, the first of a run for 40.
    assert {key: samples for key, (samples, _) in found.items()} == {
        ("training", "startup", "<module> train.py:3"): 1,
        ("training", "startup", "f train.py:3 > import torch torch"): 2,
        ("training", "optimizer", update): STEPS,
        ("training", "other", other): STEPS // 2,
        ("training", "other", NO_LINE): STEPS // 2 - 2,
        ("training", "other", f"{other} > {MET_LATE}"): STEPS // 2,
        ("training", "other", f"{NO_LINE} > {MET_LATE}"): STEPS // 2 + 1,
        ("training", "optimizer", UNKNOWN_LINE): 1,
    }
    assert found["training", "startup", "f train.py:3 > import torch torch"][1] == 0.195
    assert found["training", "other", other][1] == 0.2
    assert found["training", "other", f"{NO_LINE} > {MET_LATE}"][1] == 0.22


def test_workers_count_inside_fetches_and_other_threads_by_training(
    tmp_path: Path,
) -> None:
    run = FakeRun()
    worker = FakeRun(start=run.start, pid=4343, role="worker", header={"ppid": 4242})
    train(run, stack(run, (57, "train")))
    run.thread = 3
    in_thread = stack(run, (70, "prefetch"))
    run.record(Kind.STACK_SAMPLE, run.now - MS, run.now - MS, site=in_thread, flags=KNOWN)
    decode = stack(worker, (12, "<listcomp>"), (11, "decode"), (9, "__getitem__"))
    fetch = worker.text(Topic.STACK, [*json.loads(worker.texts[decode - 1][1]), FETCHED, FETCHED])
    for _ in range(STEPS):
        with worker.span(Kind.FETCH, value=1, flags=1):
            worker.passes_time(20 * MS)
            sample(worker, fetch)
            worker.passes_time(20 * MS)
        worker.passes_time(10 * MS)
        sample(worker, 0)  # idle
        worker.passes_time(10 * MS)
    worker.write(tmp_path)
    found = by_path(stacks(run, tmp_path))
    path = "fetch torch.utils.data > __getitem__ train.py:9 > decode train.py:12"
    (in_worker,) = ((key[1:], spent) for key, spent in found.items() if key[0] == "workers")
    assert in_worker == (("fetch", path), (STEPS, round(0.03 * STEPS + 0.01, 6)))
    assert found["thread 3", "other", "prefetch train.py:70"][0] == 1


def test_deep_stacks_have_both_ends_and_rare_ones_what_they_have_in_common(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = FakeRun()
    deep = stack(run, *((line, "deep") for line in range(2 * KEPT_FRAMES)))
    rare = [stack(run, (line, "rare"), (57, "train"), (90, "<module>")) for line in range(100)]
    train(run, deep, *rare[: STEPS // 2])
    monkeypatch.setattr(stack_samples, "_MOST_STACKS", 6)
    monkeypatch.setattr(stack_samples, "_COMMON_STACKS", 2)
    found = stacks(run, tmp_path)
    paths = by_path(found)
    assert len(paths) <= 6
    assert sum(samples for samples, _ in paths.values()) == 3 * STEPS
    ends = [f"deep train.py:{line}" for line in reversed(range(2 * KEPT_FRAMES))]
    ends.insert(KEPT_FRAMES, BETWEEN)
    assert ("training", "other", " > ".join(ends)) in paths
    assert any(path.endswith(f"train train.py:57 > {RARER}") for _, _, path in paths)
    assert [x[3] for x in found.stacks] == sorted(x[3] for x in found.stacks)


def test_speedscope_has_a_sampled_profile_of_each_thread() -> None:
    found = Stacks(
        frames=[("main\x1b[31m", "a:b.py:84"), ("Image.open", "PIL.Image"), (UNKNOWN_LINE, "")],
        stacks=[
            ("training", "forward", 2, [0], 0.25),
            ("training", "other", 1, [2], 0.5),
            ("workers", "fetch", 3, [0, 1], 1.5),
        ],
    )
    shown = json.loads(render(found, "run\n"))
    # As https://www.speedscope.app/file-format-schema.json requires.
    assert shown["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    assert (shown["name"], shown["exporter"]) == ("run ", "trainprof")
    frames, (training, workers) = shown["shared"]["frames"], shown["profiles"]
    assert frames[:3] == [
        {"name": "main", "file": "a:b.py", "line": 84},
        {"name": "Image.open", "file": "PIL.Image"},
        {"name": UNKNOWN_LINE},
    ]
    names = [[frames[number]["name"] for number in sample] for sample in training["samples"]]
    assert names == [["[forward]", "main"], ["[other]", UNKNOWN_LINE]]
    assert {**workers, "samples": None} == {
        "type": "sampled",
        "name": "workers",
        "unit": "seconds",
        "startValue": 0,
        "endValue": 1.5,
        "samples": None,
        "weights": [1.5],
    }
    assert training["endValue"] == sum(training["weights"]) == 0.75
