"""One headline: which part it names, when, and how loudly."""

from __future__ import annotations

import pytest
from support.events import LEARNS, MS, US, FakeRun

from trainprof.analysis.summary.code import ImportTime, OutsideLine, OutsideLoop
from trainprof.findings.verdict import _first_of_startup
from trainprof.record.schema import Kind, SyncFlag, Topic, TransferFlag


def loop(tmp_path, *, steps=100, device=None, compute=1000, **parts):
    """Steps of that many us each, of data, Python and so on; `evaluate` us after each 20th."""
    run = FakeRun()
    loader, validation, optimizer = run.loader(41), run.loader(42), run.optimizer()
    us = {name: microseconds * US for name, microseconds in parts.items()}
    if device:
        run.text(Topic.ENVIRONMENT, {"device": device})
    run.passes_time(us.get("startup", 0))
    run.iterate(loader, 1)

    def leaf(kind, part, **record):
        if part in us:
            run.leaf(kind, us[part], **record)

    line = run.site(77)
    for step in range(steps):
        run.next(loader, us.get("wait", 1))
        leaf(Kind.TRANSFER, "transfer", flags=TransferFlag.H2D, site=line)
        run.forward(compute * US, flags=LEARNS)
        leaf(Kind.GC, "gc")
        leaf(Kind.SYNC, "sync", flags=SyncFlag.ITEM, site=line)
        run.passes_time(us.get("python", 0))
        leaf(Kind.CHECKPOINT_SAVE, "save", site=line)
        run.update(optimizer, 1)
        if "evaluate" in us and step % 20 == 10:
            run.evaluation_pass(validation, 1, wait=1, forward=us["evaluate"])
    run.stop(loader, 1)
    return run.summary(tmp_path)


def of_two_loaders(directory, first_us, second_us):
    run = FakeRun()
    loaders, optimizer = (run.loader(41), run.loader(42)), run.optimizer()
    for loader in loaders:
        run.iterate(loader, 1)
    for _ in range(100):
        for loader, wait_us in zip(loaders, (first_us, second_us), strict=True):
            run.next(loader, wait_us * US)
        run.forward(600 * US, flags=LEARNS)
        run.update(optimizer, 1)
    return run.summary(directory)


def read_on_another_thread(directory):
    run = FakeRun()
    loader, optimizer = run.loader(41), run.optimizer()
    run.thread, at = 1, run.now
    run.iterate(loader)
    for _ in range(60):
        run.next(loader, 2 * MS)
    run.stop(loader)
    run.thread, run.now = 0, at + 2 * MS
    for _ in range(60):
        run.passes_time(2 * MS)  # for what the other thread fetches
        run.learn(optimizer)
    return run.summary(directory)


HEADLINES = {
    "a step has the share that training has": {"wait": 3000},
    "a step has nearly the share of training": {"wait": 3000, "evaluate": 800},
    "a step has another share than training": {"wait": 3000, "evaluate": 10_000},
    "checkpoints": {"save": 500},
    "evaluation": {"evaluate": 20_000},
    "host time with its place": {"python": 1000},
    "collections are most of it": {"gc": 600, "python": 300},
    "collections are the less of it": {"gc": 300, "python": 600},
    "a copy on an accelerator": {"transfer": 5000, "device": "cuda:0"},
    "a sync on an accelerator": {"sync": 5000, "device": "cuda:0"},
    "data on an accelerator": {"wait": 3000, "device": "cuda:0"},
    "host time on an accelerator": {"python": 3000, "device": "cuda:0"},
    "what comes next is worth it": {"wait": 100},
    "nothing else is worth it": {"wait": 10},
}


def test_headlines_are_the_golden_ones(tmp_path, golden):
    runs = {title: loop(tmp_path / title, **parts) for title, parts in HEADLINES.items()}
    runs["two loaders"] = of_two_loaders(tmp_path / "two", 300, 100)
    runs["one of two loaders"] = of_two_loaders(tmp_path / "one of two", 390, 10)
    runs["a loader on another thread"] = read_on_another_thread(tmp_path / "thread")
    verdicts = [(title, summary.verdict) for title, summary in runs.items()]
    texts = [
        f"== {title}\n{v.headline}\n{v.bottleneck}, {v.level}, {v.share:.1%}, {v.site}\n"
        for title, v in verdicts
    ]
    golden("headlines.txt", "\n".join(texts))


@pytest.mark.parametrize(
    ("parts", "bottleneck", "level"),
    [
        ({"wait": 300}, "data", "highly"),
        ({"wait": 100}, "compute", "moderately"),
        ({"wait": 150, "compute": 400, "python": 140, "save": 130, "gc": 130}, "host", "highly"),
        ({"python": 300}, "host", "highly"),
        ({"save": 300}, "checkpoint", "highly"),
        ({"evaluate": 20 * 300}, "evaluation", "highly"),
        ({}, "compute", "not"),
        ({"wait": 120, "compute": 400, "sync": 480}, "data", "moderately"),
        ({"transfer": 950, "compute": 30, "wait": 20}, "none", None),
        # What a device may have hidden is never called high.
        ({"wait": 3000, "device": "cuda:0"}, "data", "moderately"),
        ({"python": 3000, "device": "cuda:0"}, "host", "moderately"),
        # Start-up is named in long runs where it is most.
        ({"startup": 70_000_000}, "startup", "highly"),
        ({"startup": 50_000_000}, "compute", "not"),
        # Fewer than six steady steps are not enough.
        ({"wait": 5000, "steps": 6}, "unknown", None),
        ({"wait": 5000, "steps": 7}, "data", "highly"),
    ],
)
def test_the_largest_part_is_named(tmp_path, parts, bottleneck, level):
    verdict = loop(tmp_path, **parts).verdict
    assert (verdict.bottleneck, verdict.level) == (bottleneck, level)


@pytest.mark.parametrize(
    ("line_s", "torch_s", "words", "site"),
    [
        (8.1, 3.0, ", 8.1 s of it at train.py:24", "train.py:24"),
        (2.0, 3.0, ", 3.0 s of it importing torch", "train.py:3"),
        (0.0, 0.0, "", None),
    ],
)
def test_startup_is_named_with_its_first_place(line_s, torch_s, words, site):
    lines = [OutsideLine("train.py:24", "index", line_s)] if line_s else []
    imports = [ImportTime("torch", "train.py:3", torch_s)] if torch_s else []
    assert _first_of_startup(OutsideLoop(lines, imports)) == (words, site)


TRAINING = [(20, "train"), (90, "main")]


@pytest.mark.parametrize(
    ("training", "evaluating", "called_at"),
    [
        (TRAINING, [(40, "evaluate"), (25, "train"), (90, "main")], "train.py:25"),
        (TRAINING, [(40, "evaluate"), (91, "main")], "train.py:91"),
        (TRAINING, [(24, "train"), (90, "main")], "train.py:24"),
        # Of a framework's, that calls for both.
        ([(90, "main")], [(90, "main")], None),
        ([], [(40, "evaluate"), (91, "main")], None),
    ],
)
def test_evaluation_is_where_the_code_that_trains_calls_for_it(
    tmp_path, training, evaluating, called_at
):
    run = FakeRun()
    loader, validation, optimizer = run.loader(41), run.loader(42), run.optimizer()

    def begins(loader, frames):
        sites = [run.text(Topic.SITE, ["/work/train.py", *frame]) for frame in frames]
        value = run.text(Topic.STACK, sites) if frames else 0
        run.record(Kind.LOADER_EPOCH, run.now, run.now, site=loader, value=value)

    begins(validation, [(10, "main")])  # once, ahead of all
    for _ in range(4):
        begins(loader, training)
        run.train_pass(loader, optimizer, 10)
        begins(validation, evaluating)
        run.evaluation_pass(validation, 1, wait=1, forward=20 * MS)
    summary = run.summary(tmp_path)
    assert summary.loaders[1].called_at == called_at
    assert summary.verdict.bottleneck == "evaluation"
    assert summary.verdict.site == (called_at or "train.py:42")
