"""Logs that were cut, flipped, swapped, or come from another version."""

from __future__ import annotations

import mmap
import os
import random
import struct
from pathlib import Path

import pytest
from support.session import read_recording

from trainprof.record.event_log import EventLog
from trainprof.record.log_reader import UnreadableLog, join_texts, log_paths, read_log
from trainprof.record.schema import (
    CHUNK_BYTES,
    HEADER_BYTES,
    HEADER_PREFIX,
    LAST_PART,
    MAGIC,
    RECORD_BYTES,
    SCHEMA_VERSION,
    TEXT_RECORD,
    Kind,
    Topic,
)

EVENTS = 40


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A log's bytes up to its last record."""
    log = EventLog(str(tmp_path_factory.mktemp("log")), role="script")
    log.define(Topic.CLASS, "Net" * 20)
    for number in range(EVENTS):
        log.emit(Kind.FORWARD, number, number + 1, 1, number)
    assert log.path is not None
    data = Path(log.path).read_bytes()
    return data[: len(data.rstrip(b"\0")) // RECORD_BYTES * RECORD_BYTES + RECORD_BYTES]


def read_or_refused(path, data):
    path.write_bytes(data)
    try:
        return read_log(path)
    except UnreadableLog:
        return None


def test_a_file_cut_anywhere_keeps_its_whole_records(whole, tmp_path):
    cuts = {*range(64), *range(64, HEADER_BYTES, 97), *range(HEADER_BYTES - 2, len(whole) + 1)}
    path = tmp_path / "cut.events"
    for cut in sorted(cuts):
        log = read_or_refused(path, whole[:cut])
        if cut < HEADER_PREFIX.size:
            assert log is None
            continue
        assert log is not None
        records = max(0, cut - HEADER_BYTES) // RECORD_BYTES
        assert bytes(log.body) == whole[HEADER_BYTES : HEADER_BYTES + records * RECORD_BYTES]
        assert log.cut_bytes == max(0, cut - HEADER_BYTES) - len(log.body)
        # The header's text is whole, or nothing of it is believed.
        assert log.header == {} or log.header["pid"] == os.getpid()
    assert len(read_recording(path).of(Kind.FORWARD)) == EVENTS


def parts(number, text, topic=Topic.CLASS):
    pieces = [text[at : at + 24] for at in range(0, len(text), 24)]
    return [
        TEXT_RECORD.pack(
            Kind.TEXT, topic, at | (LAST_PART if at == len(pieces) - 1 else 0), number, piece
        )
        for at, piece in enumerate(pieces)
    ]


def test_texts_join_in_any_order():
    texts = {number: str(number).encode() * 40 for number in range(1, 20)}
    records = [record for number, text in texts.items() for record in parts(number, text)]
    random.Random(0).shuffle(records)
    assert join_texts(records) == {n: (Topic.CLASS, t.decode()) for n, t in texts.items()}


def test_incomplete_texts_are_left_out():
    first, second = parts(1, b"x" * 72), parts(2, b"y" * 72)
    assert join_texts([*first[:2], *second[1:], *parts(3, b"ok"), *parts(4, b"?", topic=250)]) == {
        3: (Topic.CLASS, "ok")
    }
    beyond = TEXT_RECORD.pack(Kind.TEXT, Topic.CLASS, 9, 1, b"of another")
    assert join_texts([first[0], first[2], beyond]) == {}


@pytest.mark.parametrize("version", [0, SCHEMA_VERSION + 1, 2**32 - 1])
def test_another_schema_is_refused(whole, tmp_path, version):
    path = tmp_path / "other.events"
    path.write_bytes(MAGIC + struct.pack("<I", version) + whole[12:])
    with pytest.raises(UnreadableLog) as refused:
        read_log(path)
    assert ("newer" in (refused.value.hint or "")) == (version > 0)


def test_a_hole_at_the_end_of_a_very_large_log_is_not_read(whole, tmp_path, monkeypatch):
    path = tmp_path / "sparse.events"
    path.write_bytes(whole)
    try:
        os.truncate(path, 1 << 40)
    except OSError as error:
        pytest.skip(f"no sparse files here: {error.strerror}")
    log = read_log(path)
    assert len(read_recording(path).of(Kind.FORWARD)) == EVENTS
    assert len(log.body) < 1 << 20
    assert log.unread_bytes == 0
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"x")
    monkeypatch.setattr("trainprof.record.log_reader.MAX_LOG_BYTES", len(whole))
    cut = read_log(path)
    assert bytes(cut.body) == whole[HEADER_BYTES:]
    assert cut.unread_bytes == (1 << 40) - len(whole)


@pytest.mark.parametrize("chunk_bytes", [CHUNK_BYTES, 1 << 20])  # of this version, of earlier ones
def test_what_an_ending_process_cuts_off_is_not_mapped(whole, tmp_path, chunk_bytes):
    path = tmp_path / "running.events"
    path.write_bytes(whole.ljust(chunk_bytes, b"\0"))
    log = read_log(path)
    os.truncate(path, -(-len(whole) // mmap.PAGESIZE) * mmap.PAGESIZE)
    assert bytes(log.body).rstrip(b"\0") == whole[HEADER_BYTES:].rstrip(b"\0")


def test_a_log_in_a_room_that_is_a_link_is_not_read(whole, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "1-1.events").write_bytes(whole)
    (tmp_path / "events").symlink_to(outside)
    assert log_paths(outside) == [outside / "1-1.events"]
    assert log_paths(tmp_path / "events") == []
    with pytest.raises(UnreadableLog):
        read_log(tmp_path / "events" / "1-1.events")


def test_what_is_no_file_is_refused(tmp_path):
    (tmp_path / "dir.events").mkdir()
    os.mkfifo(tmp_path / "fifo.events")
    (tmp_path / "empty.events").touch()
    (tmp_path / "link.events").symlink_to(tmp_path / "empty.events")
    for name in ("dir.events", "fifo.events", "empty.events", "link.events", "missing.events"):
        with pytest.raises(UnreadableLog):
            read_log(tmp_path / name)
    assert log_paths(tmp_path / "gone") == []
