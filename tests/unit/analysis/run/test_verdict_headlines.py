"""One headline: which part it names, when, and how loudly."""

from __future__ import annotations

import pytest
from support.events import LEARNS, MS, US, FakeRun

from trainprof.record.schema import Kind, LookFlag, SyncFlag, Topic, TransferFlag


def loop(
    tmp_path,
    *,
    wait=0,
    compute=1000,
    python=0,
    save=0,
    transfer=0,
    sync=0,
    evaluate=0,
    steps=100,
    device=None,
    startup=0,
    gc=0,
):
    """`steps` steps of so many us each; `evaluate` us after each 20th."""
    run = FakeRun()
    loader, validation, optimizer = run.loader(41), run.loader(42), run.optimizer()
    line = run.site(77)
    if device:
        run.text(Topic.ENVIRONMENT, {"device": device})
    run.passes_time(startup * US)
    run.iterate(loader, 1)
    for step in range(steps):
        run.next(loader, max(1, wait * US))
        if transfer:
            run.leaf(Kind.TRANSFER, transfer * US, flags=TransferFlag.H2D, site=line)
        run.forward(compute * US, flags=LEARNS)
        if gc:
            run.leaf(Kind.GC, gc * US)
        if sync:
            run.leaf(Kind.SYNC, sync * US, flags=SyncFlag.ITEM, site=line)
        run.passes_time(python * US)
        if save:
            run.leaf(Kind.CHECKPOINT_SAVE, save * US, site=line)
        run.update(optimizer, 1)
        if evaluate and step % 20 == 10:
            run.evaluation_pass(validation, 1, wait=1, forward=evaluate * US)
    run.stop(loader, 1)
    return run.summary(tmp_path)


@pytest.mark.parametrize(
    ("waits", "told"),
    [
        ((0.3, 0.1), "for its loaders in 40 %"),
        ((0.39, 0.01), "for train.py:41 in 40 %"),
    ],
)
def test_a_wait_for_two_loaders_is_not_put_on_one(tmp_path, waits, told):
    run = FakeRun()
    loaders, optimizer = (run.loader(41), run.loader(42)), run.optimizer()
    for loader in loaders:
        run.iterate(loader, 1)
    for _ in range(100):
        for loader, share in zip(loaders, waits, strict=True):
            run.next(loader, round(share * MS))
        run.forward(600 * US, flags=LEARNS)
        run.update(optimizer, 1)
    found = run.summary(tmp_path).verdict
    assert found.bottleneck == "data"
    assert told in found.headline
    assert ("75 % of it for train.py:41" in found.headline) is (waits[1] > 0.05)
    assert found.site == "train.py:41"


@pytest.mark.parametrize(
    ("parts", "bottleneck", "level"),
    [
        ({"wait": 300}, "data", "highly"),
        ({"wait": 100}, "compute", "moderately"),
        ({"wait": 150, "compute": 400, "python": 140, "save": 130, "gc": 130}, "host", "highly"),
        ({"python": 300}, "host", "highly"),
        ({"gc": 300}, "host", "highly"),
        ({"save": 300}, "checkpoint", "highly"),
        ({"evaluate": 20 * 300}, "evaluation", "highly"),
        ({}, "compute", "not"),
        ({"wait": 120, "compute": 400, "sync": 480}, "data", "moderately"),
        ({"transfer": 950, "compute": 30, "wait": 20}, "none", None),
    ],
)
def test_the_largest_part_is_named(tmp_path, parts, bottleneck, level):
    found = loop(tmp_path, **parts).verdict
    assert (found.bottleneck, found.level) == (bottleneck, level)


@pytest.mark.parametrize(
    ("evaluate_us", "told"),
    [
        (0, "in 75 % of training time, 3.00 of 4.00 ms a step"),
        (800, "in 74 % of training time, 3.00 of 4.00 ms a step"),
        (10_000, "in 67 % of training time, 3.00 of 4.00 ms a step (75 %)"),
    ],
)
def test_a_step_has_its_own_percentage_where_it_is_not_that_of_training(
    tmp_path, evaluate_us, told
):
    found = loop(tmp_path, wait=3000, evaluate=evaluate_us).verdict
    assert found.headline == f"DATA-BOUND: the loop waits for train.py:41 {told}"


def test_waiting_for_data_names_the_line_that_built_the_loader_in_steady_figures(tmp_path):
    found = loop(tmp_path, wait=3000)
    assert found.verdict.site == "train.py:41"
    assert found.verdict.share == pytest.approx(0.75, abs=1e-3)
    assert found.verdict.headline == (
        "DATA-BOUND: the loop waits for train.py:41 in 75 % of training time, "
        "3.00 of 4.00 ms a step"
    )


def test_evaluation_and_checkpoints_name_their_lines(tmp_path):
    assert loop(tmp_path, evaluate=20_000).verdict.site == "train.py:42"
    saves = loop(tmp_path / "saves", save=500).verdict
    assert saves.site == "train.py:77"
    assert saves.headline == (
        "CHECKPOINTS: torch.save at train.py:77 takes 33 % of training time, 0.1 s"
    )


TRAINING = [(20, "train"), (90, "main")]


@pytest.mark.parametrize(
    ("training", "evaluating", "called_at"),
    [
        (TRAINING, [(40, "evaluate"), (25, "train"), (90, "main")], "train.py:25"),
        (TRAINING, [(40, "evaluate"), (91, "main")], "train.py:91"),
        (TRAINING, [(24, "train"), (90, "main")], "train.py:24"),
        ([(20, "run"), (90, "main")], [(20, "run"), (92, "main")], "train.py:92"),
        # Of a framework's, that calls for both.
        ([(90, "main")], [(90, "main")], None),
        (TRAINING, [(40, "evaluate"), (3, "serve")], None),
        ([], [(40, "evaluate"), (91, "main")], None),
        (TRAINING, [], None),
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
        run.record(Kind.LOADER_PASS, run.now, run.now, site=loader, value=value)

    begins(validation, [(10, "main")])  # once, ahead of all
    for _ in range(4):
        begins(loader, training)
        run.train_pass(loader, optimizer, 10)
        begins(validation, evaluating)
        run.evaluation_pass(validation, 1, wait=1, forward=20 * MS)
    found = run.summary(tmp_path)
    assert found.loaders[1].called_at == called_at
    where = f", called at {called_at}" if called_at else " over train.py:42"
    assert found.verdict.headline.startswith("EVALUATION: it takes ")
    assert f"of training time{where}, " in found.verdict.headline


@pytest.mark.parametrize(
    ("forwards", "where"), [(0, "over train.py:42"), (20, "called at train.py:31")]
)
def test_what_comes_behind_an_evaluation_and_takes_most_is_told_by_looks(tmp_path, forwards, where):
    run = FakeRun()
    loader, validation, optimizer = run.loader(41), run.loader(42), run.optimizer()
    drawing, training = (
        run.text(Topic.STACK, [run.text(Topic.SITE, ["/work/train.py", *f]) for f in frames])
        for frames in ([(5, "sample"), (31, "fit")], [(20, "fit")])
    )

    def looked_at(stack):
        with run.span(Kind.FORWARD, flags=LEARNS if stack == training else 0):
            run.passes_time(MS)
            run.record(Kind.LOOK, run.now, run.now, site=stack, flags=LookFlag.KNOWN)
            run.passes_time(MS)

    for _ in range(4):
        run.iterate(loader)
        for _ in range(10):
            run.next(loader)
            looked_at(training)
            run.backward()
            run.update(optimizer)
        run.stop(loader)
        run.evaluation_pass(validation, 4, wait=MS, forward=4 * MS)
        for _ in range(forwards):
            looked_at(drawing)
    assert f" {where}, " in run.summary(tmp_path).verdict.headline


def test_evaluation_that_waits_for_its_loader_is_told_by_that(tmp_path):
    run = FakeRun()
    loader, validation, optimizer = run.loader(41), run.loader(42), run.optimizer()
    train, call = (
        run.text(Topic.STACK, [run.text(Topic.SITE, ["/work/train.py", line, "fit"])])
        for line in (20, 30)
    )
    for _ in range(4):
        run.record(Kind.LOADER_PASS, run.now, run.now, site=loader, value=train)
        run.train_pass(loader, optimizer, 10)
        run.record(Kind.LOADER_PASS, run.now, run.now, site=validation, value=call)
        run.evaluation_pass(validation, 4, wait=6 * MS, forward=4 * MS)
    found = run.summary(tmp_path)
    assert found.loaders[1].called_at == "train.py:30"
    assert " over train.py:42, " in found.verdict.headline


def test_evaluation_over_the_loader_that_trains_is_told_by_its_call(tmp_path):
    run = FakeRun()
    loader, validation, optimizer = run.loader(41), run.loader(42), run.optimizer()
    train = [(20, "fit")]
    stack_of = {
        line: run.text(Topic.STACK, [run.text(Topic.SITE, ["/work/train.py", *f]) for f in frames])
        for line, frames in ((20, train), (30, [(5, "accuracy"), (30, "fit")]))
    }

    def begins(of, line):
        run.record(Kind.LOADER_PASS, run.now, run.now, site=of, value=stack_of[line])

    for _ in range(4):
        begins(loader, 20)
        run.train_pass(loader, optimizer, 10, wait=MS)
        begins(loader, 30)
        run.evaluation_pass(loader, 10, wait=2 * MS, forward=4 * MS)
        begins(validation, 30)
        run.evaluation_pass(validation, 1, wait=MS, forward=MS)
    found = run.summary(tmp_path)
    trained, evaluated = found.loaders
    assert trained.called_at == "train.py:30"
    assert trained.evaluation_s == pytest.approx(4 * 10 * 6e-3, rel=0.01)
    assert trained.evaluation_wait_s == pytest.approx(4 * 9 * 2e-3, rel=0.01)
    assert evaluated.evaluation_s == pytest.approx(4 * 2e-3, rel=0.05)
    assert ", called at train.py:30, " in found.verdict.headline


def test_host_time_names_its_place(tmp_path):
    found = loop(tmp_path, python=1000).verdict
    assert found.headline.endswith("1.00 of 2.00 ms a step, most of it between backward and update")


def test_collections_are_named_where_they_are_most_of_it(tmp_path):
    found = loop(tmp_path, gc=600, python=300).verdict
    assert found.headline.startswith("PYTHON-BOUND: Python's garbage collection, and code between")
    other = loop(tmp_path / "b", gc=300, python=600).verdict
    assert other.headline.startswith("PYTHON-BOUND: Python code between loading, forward")


def test_a_loop_fed_by_another_thread_may_wait_for_that(tmp_path):
    run = FakeRun()
    loader, optimizer = run.loader(41), run.optimizer()
    run.thread, at = 1, run.now
    run.iterate(loader)
    for _ in range(60):
        run.next(loader, 2 * MS)
    run.stop(loader)
    run.thread, run.now = 0, at + 2 * MS
    for _ in range(60):
        run.passes_time(2 * MS)  # for what the other thread makes
        run.learn(optimizer)
    found = run.summary(tmp_path).verdict
    assert found.bottleneck == "host"
    assert found.headline.endswith(
        "; train.py:41 is read on another thread: waiting for that thread is in it"
    )


@pytest.mark.parametrize("part", ["transfer", "sync"])
def test_on_an_accelerator_no_sync_or_transfer_is_headlined(tmp_path, part):
    found = loop(tmp_path, **{part: 5000}, device="cuda:0").verdict
    assert found.bottleneck == "compute"
    assert "waiting for the GPU or copying" in found.headline
    assert found.site is None


def test_what_comes_next_is_told_where_it_is_worth_it(tmp_path):
    assert loop(tmp_path, wait=100).verdict.headline.endswith(
        "next comes waiting for data with 9 %"
    )
    assert loop(tmp_path / "b", wait=10).verdict.headline.endswith("nothing else reaches 5 %")


def test_start_up_is_named_in_long_runs_where_it_is_most(tmp_path):
    assert loop(tmp_path, startup=70_000_000).verdict.bottleneck == "startup"
    assert loop(tmp_path / "short", startup=50_000_000).verdict.bottleneck == "compute"
    long = loop(tmp_path / "long", startup=70_000_000, compute=2_000_000, steps=60)
    assert long.verdict.bottleneck == "compute"


def test_less_than_twenty_steady_steps_are_not_enough(tmp_path):
    assert loop(tmp_path, wait=5000, steps=20).verdict.bottleneck == "unknown"
    assert loop(tmp_path / "enough", wait=5000, steps=21).verdict.bottleneck == "data"


def test_shares_are_of_the_training_phase_alone(tmp_path):
    run = FakeRun()
    loader, optimizer = run.loader(), run.optimizer()
    run.passes_time(500 * MS)
    run.iterate(loader, 1)
    for _ in range(40):
        run.next(loader, MS)
        run.learn(optimizer, forward=MS, backward=MS, update=MS)
    run.stop(loader, 1)
    run.passes_time(500 * MS)
    run.evaluation_pass(run.loader(50), 10, forward=100 * MS)
    assert run.summary(tmp_path).verdict.share == pytest.approx(0.25)


@pytest.mark.parametrize("part", ["wait", "python"])
def test_what_a_device_may_have_hidden_is_never_called_high(tmp_path, part):
    found = loop(tmp_path, **{part: 3000}, device="cuda:0").verdict
    assert found.level == "moderately"
    assert found.headline.endswith("; whether the device worked meanwhile is not known")
