"""The last stack sample of a process is read however its file was left."""

from __future__ import annotations

import json

import pytest

from trainprof.record.last_stacks import (
    SLOT_BYTES,
    STACKS_SUFFIX,
    main_place,
    read_last_stacks,
    stack_paths,
)

FRAME = ["/here/train.py", 41, "main"]


def slot(at_ns, **more):
    return json.dumps({"pid": 7, "at_ns": at_ns, **more}).encode().ljust(SLOT_BYTES)


def left(events, content, name="7-1"):
    (events / f"{name}{STACKS_SUFFIX}").write_bytes(content)


@pytest.mark.parametrize("content", [slot(1) + slot(2), slot(2) + slot(1), slot(2), slot(2)[:30]])
def test_the_newer_of_two_counts(tmp_path, content):
    left(tmp_path, content)
    assert read_last_stacks(tmp_path) == [{"pid": 7, "at_ns": 2}]


def test_a_half_written_sample_leaves_the_one_before(tmp_path):
    half = slot(3, threads=[])[:25] + slot(1, threads=[1, 2, 3])[20:]
    left(tmp_path, slot(2) + half[:SLOT_BYTES])
    assert read_last_stacks(tmp_path) == [{"pid": 7, "at_ns": 2}]


@pytest.mark.parametrize("content", [b"", b"[" * 4000, b"[]", b'{"at_ns": true}', b"\xff"])
def test_what_is_no_sample_is_left_out(tmp_path, content):
    assert stack_paths(tmp_path / "none") == read_last_stacks(tmp_path) == []
    left(tmp_path, content)
    left(tmp_path, slot(5), "8-1")
    (tmp_path / f"9-1{STACKS_SUFFIX}").symlink_to("/etc/passwd")
    assert read_last_stacks(tmp_path) == [{"pid": 7, "at_ns": 5}]


def test_the_main_threads_line_is_the_users(tmp_path):
    other = {"is_main": False, "user": ["/here/other.py", 1, "f"]}
    main = {"is_main": True, "user": FRAME}
    assert main_place({"threads": [other, main]}, "/here") == "train.py:41"
    assert main_place({"threads": [{**main, "user": None}]}, "/here") is None
    assert main_place({"threads": 3}, None) is None
