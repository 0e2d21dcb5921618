"""Progress lines, from a log written by the real writer."""

from __future__ import annotations

import json
import os
from datetime import datetime, timezone

import pytest

from trainprof.launch.progress import LiveLog, Progress, ProgressThread
from trainprof.record.event_log import EventLog
from trainprof.record.last_stacks import STACKS_SUFFIX
from trainprof.record.schema import Kind, Topic

S = 1_000_000_000
NOON = datetime(2026, 11, 21, 12, 0, 0, tzinfo=timezone.utc)


class Training:
    """Writes what a training loop would record, on a planted clock."""

    def __init__(self, events):
        self.log = EventLog(str(events), role="script")
        self.now = 100 * S
        self.loaders = {}

    def loader(self, line, length):
        site = self.log.define(Topic.SITE, json.dumps(["/here/train.py", line, "main"]))
        metadata = {"site": site, "length": length}
        return self.log.define(Topic.LOADER, json.dumps(metadata))

    def span(self, kind, seconds, site=0, value=0):
        start, self.now = self.now, self.now + int(seconds * S)
        self.log.emit(kind, start, self.now, site, value)

    def begin(self, loader):
        self.span(Kind.LOADER_INIT, 0.1, loader)

    def batch(self, loader, number, wait_s, *, train=True):
        self.span(Kind.LOADER_NEXT, wait_s, loader, number)
        self.span(Kind.FORWARD, 0.1)
        if train:
            self.span(Kind.BACKWARD, 0.1)
            self.span(Kind.OPTIMIZER_STEP, 0.1, site=77)

    def end(self, loader):
        self.span(Kind.LOADER_END, 0.0001, loader)
        self.span(Kind.ZERO_GRAD, 0.0001)  # the reader leaves the last record for next time


@pytest.fixture
def training(tmp_path):
    return Training(tmp_path)


@pytest.fixture
def progress(tmp_path):
    log = LiveLog(tmp_path, os.getpid())
    return Progress(log, 100 * S, S // 2, "/here", utc=lambda: NOON)


def due(progress, training):
    return progress.lines(list(progress.log.read()), now_ns=training.now)


def test_an_epoch_ends_with_its_epoch_line(training, progress):
    loader = training.loader(41, 3)
    training.begin(loader)
    for number in (1, 2, 3):
        training.batch(loader, number, 0.4)
    training.end(loader)
    (line,) = due(progress, training)
    # 0.1 s start, 3 x (0.4 + 0.3) s; the first batch is no data wait
    assert line.startswith("2026-11-21T12:00:00Z trainprof: training epoch 1 took 2.2 s")
    assert line.endswith("data 0.8 s (36%), 3 batches")


def test_a_line_is_due_every_ten_seconds_with_share_and_estimate(training, progress):
    loader = training.loader(41, 40)
    training.begin(loader)
    for number in range(1, 21):
        training.batch(loader, number, 0.2)
    (line,) = due(progress, training)
    assert "training epoch 1 batch 20/40 (50%), step 19, 0:00:10 elapsed" in line
    assert "0:00:10 left" in line
    assert due(progress, training) == []


@pytest.mark.parametrize(("optimizers", "step"), [("A", 20), ("AB", 20), ("AAAAAABBBB", 200)])
@pytest.mark.parametrize("is_scaled", [False, True])
def test_steps_are_those_of_the_report(training, progress, optimizers, step, is_scaled):
    loader = training.loader(41, 40)
    training.begin(loader)
    for number in range(1, 21):
        training.span(Kind.LOADER_NEXT, 0.2, loader, number)
        for optimizer in optimizers:
            start, site = training.now, ord(optimizer)
            training.now += 1
            training.span(Kind.OPTIMIZER_STEP, 0.3, site)
            if is_scaled:  # written when it is over, around the update
                training.log.emit(Kind.SCALER_STEP, start, training.now, site, 0)
    training.end(loader)
    training.begin(loader)
    training.batch(loader, 1, 20.0)
    (line,) = [line for line in due(progress, training) if "step" in line]
    assert f" step {step}," in line


def test_slow_batches_are_warned_of_at_most_thrice_an_epoch_in_five_epochs(training, progress):
    loader = training.loader(41, 6)
    warnings = []
    for _ in range(7):
        training.begin(loader)
        for number in range(1, 7):
            training.batch(loader, number, 0.6)
        training.end(loader)
        lines = due(progress, training)
        warnings.append([line for line in lines if "slow batch" in line])
    assert [len(epoch) for epoch in warnings] == [3, 3, 3, 3, 3, 0, 0]
    assert "train.py:41 epoch 1 batch 2 took 0.60 s to arrive" in warnings[0][0]


def stands(events, line, pid):
    frame = ["/here/train.py", line, "main"]
    thread = {"is_main": True, "since_ns": 1, "user": frame, "called": None, "innermost": frame}
    sample = {"pid": pid, "at_ns": 1, "threads": [thread]}
    (events / f"{pid}-1{STACKS_SUFFIX}").write_text(json.dumps(sample))


def test_where_it_stands_is_said_while_nothing_comes(tmp_path, training, progress):
    assert progress.lines(list(progress.log.read()), now_ns=109 * S) == []
    stands(tmp_path, 21, os.getpid())
    stands(tmp_path, 99, 1)
    (line,) = progress.lines(list(progress.log.read()), now_ns=111 * S)
    assert line.endswith("no step yet, 0:00:11 elapsed; training thread at train.py:21")
    training.now = 111 * S
    loader = training.loader(41, 40)
    training.begin(loader)
    training.batch(loader, 1, 0.1)
    training.span(Kind.GC, 11)
    (line,) = due(progress, training)
    assert line.endswith("no step for 0:00:11, training thread at train.py:21")


def test_what_a_launcher_started_is_followed_once_it_trains(tmp_path):
    log = LiveLog(tmp_path, 1)  # that of torchrun, which records nothing
    progress = Progress(log, 100 * S, S // 2, "/here", utc=lambda: NOON)
    assert list(log.read()) == []
    training = Training(tmp_path)
    for _ in range(50):
        training.span(Kind.BACKWARD, 0.1)
        training.span(Kind.OPTIMIZER_STEP, 0.1, site=77)
    (line,) = due(progress, training)
    assert " step 49, " in line
    assert log.pid == os.getpid()


def test_records_are_read_once_however_the_log_grows(training, progress):
    loader = training.loader(41, 100_000)
    training.begin(loader)
    for number in range(1, 20_001):  # more than one chunk
        training.batch(loader, number, 0.001)
        if number % 5000 == 0:
            due(progress, training)
    training.end(loader)
    (line,) = [text for text in due(progress, training) if "took" in text]
    assert "20000 batches" in line


def test_the_thread_survives_a_log_that_fails(training):
    class Broken:
        def read(self):
            raise OSError("gone")

    lines = []
    thread = ProgressThread(Progress(Broken(), 0, 1, "/"), lines.append)
    thread.start()
    thread.stop(5)
    assert lines == ["trainprof: no more progress lines: OSError: gone"]


def test_workers_reset_inside_a_creation_is_no_epoch_of_its_own(training, progress):
    loader = training.loader(41, 2)
    for epoch in (1, 2):
        training.span(Kind.LOADER_RESET, 0.05, loader)  # written before the creation around it
        training.span(Kind.LOADER_INIT, 0.1, loader)
        training.batch(loader, 1, 0.1)
        training.batch(loader, 2, 0.1)
        training.end(loader)
        (line,) = due(progress, training)
        assert f"training epoch {epoch} took" in line


def test_zipped_loaders_train_both_and_one_that_only_evaluates_does_not(training, progress):
    images, captions, validation = (training.loader(line, 50) for line in (41, 42, 43))
    for loader in (images, captions, validation):
        training.begin(loader)
    for number in range(1, 21):
        training.span(Kind.LOADER_NEXT, 0.1, images, number)
        training.batch(captions, number, 0.2)
    training.span(Kind.LOADER_NEXT, 0.1, images, 21)
    training.span(Kind.ZERO_GRAD, 0.0001)  # the reader leaves the last record for next time
    (line,) = due(progress, training)
    assert "training epoch 1 batch 21/50" in line
    for number in range(1, 21):
        training.batch(validation, number, 1.0, train=False)
    training.batch(captions, 21, 0.2)
    training.batch(validation, 21, 20.0, train=False)
    training.span(Kind.ZERO_GRAD, 0.0001)  # the reader leaves the last record for next time
    assert "evaluation epoch 1 batch 21/50" in due(progress, training)[-1]
