"""Which of its parent's texts a forked child writes: those that its log cannot be read without."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.session import read_recording

from trainprof.record.event_log import EventLog
from trainprof.record.log_chunk import FIRST_CHUNK_BYTES
from trainprof.record.schema import Kind, Topic

MANY = 1_000


@pytest.fixture
def log(tmp_path):
    return EventLog(str(tmp_path), role="script")


def read(log):
    assert log.path is not None
    return read_recording(Path(log.path))


def define_many(log, topic):
    return [log.define(topic, json.dumps([number] * 300)) for number in range(MANY)]


@pytest.mark.parametrize("topic", [Topic.LOADER, Topic.STACK])
def test_a_child_writes_the_loaders_and_stacks_that_it_refers_to(log, topic):
    ids = define_many(log, topic)
    log.emit(Kind.FETCH, 1, 2, ids[0])
    parent = read(log)
    assert len(parent.notes(topic)) == MANY
    log.reopen_in_child()
    log.refer(ids[3])
    log.emit(Kind.FETCH, 1, 2, ids[3])
    log.refer(ids[5])
    assert log.define(topic, json.dumps([7] * 300)) == ids[7]
    log.emit(Kind.FETCH, 1, 2, ids[5])
    log.emit(Kind.FETCH, 1, 2, ids[7])
    child = read(log)
    assert [event.text[0] for event in child.events] == [3, 5, 7]
    assert {number: child.texts[number] for number in child.texts} == {
        ids[n]: parent.texts[ids[n]] for n in (3, 5, 7)
    }
    assert child.file.path.stat().st_size == FIRST_CHUNK_BYTES


def test_a_childs_own_are_written_as_ever(log):
    define_many(log, Topic.LOADER)
    log.reopen_in_child()
    before = log.define(Topic.LOADER, "[1]")
    log.emit(Kind.FETCH, 1, 2, before)
    log.emit(Kind.FETCH, 1, 2, log.define(Topic.LOADER, "[2]"))
    log.refer(0)
    assert read(log).notes(Topic.LOADER) == [[1], [2]]


def test_a_grandchild_refers_to_any_of_them(log):
    first = log.define(Topic.LOADER, "[1]")
    log.reopen_in_child()
    second = log.define(Topic.LOADER, "[2]")
    log.emit(Kind.FETCH, 1, 2, second)
    log.reopen_in_child()
    log.emit(Kind.FETCH, 1, 2)
    assert read(log).notes(Topic.LOADER) == []
    log.refer(first)
    log.refer(second)
    assert read(log).notes(Topic.LOADER) == [[1], [2]]


def test_what_stands_for_itself_or_is_named_in_texts_is_written_at_once(log):
    texts = {topic: '["x"]' for topic in Topic if topic not in (Topic.LOADER, Topic.STACK)}
    for topic, text in texts.items():
        log.define(topic, text)
    log.reopen_in_child()
    log.emit(Kind.FETCH, 1, 2)
    assert dict(read(log).texts.values()) == texts
