"""Which line the time before a place goes to where Python lets go of the GIL."""

from __future__ import annotations

import dis
import sys
from types import CodeType, SimpleNamespace
from typing import Any

import pytest

from trainprof.probes.garbage import TOLD_OF_COLLECTIONS
from trainprof.probes.long_operation import LongOperations

pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="let go almost anywhere there")

COPIED = """
def step(kept, at, more):
    at = at % 10
    kept = kept[:at] + kept[at + 1 :]
    for number in range(more):
        pass
    return kept
"""
SEARCHED = """
def step(known, key, load):
    if key in known:
        key = 0
    return load(key)
"""
SEARCHED_IN_LOOP = """
def step(known, keys):
    count = 0
    for key in keys:
        if key in known:
            count += 1
    return count
"""
CONSTANTS = """
def step(mode, load):
    if mode in ("train", "test"):
        mode = ""
    return load(mode)
"""
CALLED = """
def step(kept, load):
    kept = kept + [1]
    return load(kept)
"""
CHANCE_BETWEEN = """
def step(known, key, load):
    if key in known:
        key = 0
    print(key)
    return load(key)
"""
SUMMED = """
def step(text, line, lines):
    text = text + line
    lines.append(1)
    return text
"""


def code_of(text: str) -> CodeType:
    made: dict[str, Any] = {}
    exec(compile(text, "train.py", "exec"), made)
    code: CodeType = made["step"].__code__
    return code


def frame_at(code: CodeType, line: int, opname: str, back: Any = None) -> Any:
    """Returns what stands for a frame at the last instruction of a kind in a line."""
    [*_, at] = [
        one.offset
        for one in dis.get_instructions(code)
        if one.opname == opname and one.positions is not None and one.positions.lineno == line
    ]
    return SimpleNamespace(f_code=code, f_lasti=at, f_back=back)


def line_before(frame: Any, *, users: bool = True) -> tuple[Any, int | None]:
    operations = LongOperations(lambda code: users)
    operations.before(frame)  # code is read at its second time only
    return operations.before(frame)


def begun(back: Any) -> Any:
    """Returns what stands for the frame of a function that has only begun."""
    code = code_of("def step():\n    return 1\n")
    return frame_at(code, 1, "RESUME", back)


def test_a_list_that_is_copied_is_told_and_not_the_call_that_follows() -> None:
    frame = frame_at(code_of(COPIED), 5, "CALL")
    assert line_before(frame) == (frame, 4)


def test_a_list_that_is_searched_is_told_and_not_the_function_that_begins_then() -> None:
    caller = frame_at(code_of(SEARCHED), 5, "CALL")
    assert line_before(begun(caller)) == (caller, 3)


def test_a_list_that_is_searched_is_told_and_not_the_loop_that_goes_on() -> None:
    code = code_of(SEARCHED_IN_LOOP)
    [*_, last] = [one.offset for one in dis.get_instructions(code) if one.opname == "JUMP_BACKWARD"]
    frame = SimpleNamespace(f_code=code, f_lasti=last, f_back=None)
    assert line_before(frame) == (frame, 5)


def test_a_text_that_grows_is_told_and_not_what_is_over_at_once() -> None:
    frame = frame_at(code_of(SUMMED), 4, "CALL")
    assert line_before(frame) == (frame, 3)


@pytest.mark.parametrize("text", [CALLED, SEARCHED])
def test_a_call_that_may_itself_take_long_is_told(text: str) -> None:
    code = code_of(text)
    line = 4 if text == CALLED else 5
    frame = frame_at(code, line, "CALL")
    assert line_before(frame) == (frame, None)


def test_a_function_is_told_where_nothing_before_it_can_take_long() -> None:
    for text, line in ((CONSTANTS, 5), (CHANCE_BETWEEN, 6)):
        frame = begun(frame_at(code_of(text), line, "CALL"))
        assert line_before(frame) == (frame, None)


def test_a_place_is_read_at_its_second_time_only() -> None:
    frame = frame_at(code_of(COPIED), 5, "CALL")
    operations = LongOperations(lambda code: True)
    assert operations.before(frame) == (frame, None)
    assert operations.before(frame) == (frame, 4)
    assert operations.before(frame) == (frame, 4)


def test_what_is_not_the_users_is_left_as_it_is() -> None:
    copied = frame_at(code_of(COPIED), 5, "CALL")
    searched = begun(frame_at(code_of(SEARCHED), 5, "CALL"))
    for frame in (copied, searched):
        assert line_before(frame, users=False) == (frame, None)


def test_frames_that_have_not_begun_or_have_no_caller_are_left_as_they_are() -> None:
    alone = begun(None)
    new = SimpleNamespace(f_code=code_of(COPIED), f_lasti=-1, f_back=None)
    for frame in (alone, new):
        assert line_before(frame) == (frame, None)


def test_what_python_calls_in_the_midst_of_a_collection_comes_after_nothing() -> None:
    """A collection takes the time, and calls ours at its end: what came before it does not."""
    caller = frame_at(code_of(COPIED), 5, "CALL")
    resumed = next(
        n for n, op in enumerate(TOLD_OF_COLLECTIONS.co_code) if op == dis.opmap["RESUME"]
    )
    frame = SimpleNamespace(f_code=TOLD_OF_COLLECTIONS, f_lasti=resumed, f_back=caller)
    assert line_before(frame) == (frame, None)
