"""Which operation a thread was busy with, where Python let go of the GIL only after it.

A thread that is asked for the GIL gives it up at the end of a call, where a loop begins anew and
where a Python function begins, and nowhere else: a list that is copied or searched by an operator
goes on until the next of these places, which may stand at another line or in another function.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, Final

from trainprof.probes.copied_frames import Place
from trainprof.probes.garbage import TOLD_OF_COLLECTIONS

# Names of functions in C that are over at once, whatever they are given: where one of them is met,
# the time went to what came before. A tensor that is made a number may have to be waited for.
_QUICK: Final = frozenset(
    (
        "append",
        "callable",
        "chr",
        "enumerate",
        "getattr",
        "hasattr",
        "id",
        "isinstance",
        "issubclass",
        "iter",
        "len",
        "monotonic",
        "ord",
        "perf_counter",
        "perf_counter_ns",
        "range",
        "setattr",
        "slice",
        "super",
        "time",
        "type",
        "zip",
    )
)
# They take as long as the container is; an index or a sum need not.
_LONG_OF_CONTAINERS: Final = frozenset(
    (
        "BINARY_SLICE",
        "CONTAINS_OP",
        "DELETE_SUBSCR",
        "DICT_MERGE",
        "DICT_UPDATE",
        "LIST_EXTEND",
        "SET_UPDATE",
        "STORE_SLICE",
    )
)
_MAY_BE_LONG: Final = frozenset(("BINARY_OP", "COMPARE_OP"))
_MAKE_CONTAINERS: Final = ("BINARY_SLICE", "BUILD_LIST", "BUILD_SLICE")
_ENDS_PATH: Final = frozenset(
    ("JUMP_BACKWARD", "JUMP_FORWARD", "RAISE_VARARGS", "RERAISE", "RETURN_CONST", "RETURN_VALUE")
)
# A function's first instruction, and what goes on with a generator.
_RESUME: Final = dis.opmap.get("RESUME", -1)
# A larger function would take too long to read beside the run.
_MOST_BYTES: Final = 20_000
_MOST_PLACES: Final = 5_000


class LongOperations:
    """Remembers for each place where the GIL was let go which line the time before it went to."""

    def __init__(self, is_user_code: Callable[[CodeType], bool]) -> None:
        self._is_user_code = is_user_code
        self._is_told_here = sys.version_info >= (3, 11)  # before, it is let go almost anywhere
        self._lines: dict[tuple[CodeType, int], int | None] = {}
        self._met_once: set[tuple[int, int]] = set()

    def before(self, frame: Place) -> tuple[Place, int | None]:
        """Returns the frame and the line of the operation that came before, if one must be it.

        Args:
            frame: The innermost of a thread that let go of the GIL.

        Returns:
            `frame` and None where the line it stands at took the time itself, for all one can tell.
        """
        if not self._is_told_here:
            return frame, None
        code, caller = frame.f_code, frame.f_back
        if code is TOLD_OF_COLLECTIONS:
            return frame, None
        if code.co_code[frame.f_lasti] == _RESUME:
            if caller is None or not self._is_user_code(caller.f_code):
                return frame, None
            line = self._line(caller.f_code, caller.f_lasti, calls_python=True)
            return (frame, None) if line is None else (caller, line)
        return frame, self._line(code, frame.f_lasti) if self._is_user_code(code) else None

    def _line(self, code: CodeType, place: int, *, calls_python: bool = False) -> int | None:
        """Returns the line of the operation before an instruction, if it must be it.

        Code is read at its second time only: most places are met once.

        Args:
            code: Of the frame.
            place: Where in it.
            calls_python: Whether the instruction has only begun a Python function.

        Returns:
            None where there is no such operation.
        """
        key = (code, ~place if calls_python else place)
        if key in self._lines:
            return self._lines[key]
        met = (id(code), key[1])
        if met not in self._met_once and len(self._met_once) < _MOST_PLACES:
            self._met_once.add(met)
            return None
        if len(self._lines) >= _MOST_PLACES:
            return None
        line = _line_before(code, place, calls_python=calls_python)
        self._lines[key] = line
        return line


def _line_before(code: CodeType, place: int, *, calls_python: bool) -> int | None:
    if len(code.co_code) > _MOST_BYTES:
        return None
    instructions = list(dis.get_instructions(code))
    at = next((n for n, one in enumerate(instructions) if one.offset == place), None)
    if at is None:
        return None
    name = instructions[at].opname
    is_call = name.startswith(("CALL", "PRECALL"))
    if is_call and instructions[at - 1].opname == "PRECALL":
        at -= 1
    if is_call and not calls_python and not _is_quick_call(instructions, at):
        return None
    if not is_call and (calls_python or not name.startswith("JUMP_BACKWARD")):
        return None
    lines = _lines(instructions)
    before = list(_since_last_chance(instructions, at))
    long = [n for n in before if _is_long(instructions, n)]
    may_be = [n for n in before if instructions[n].opname in _MAY_BE_LONG]
    may_be = [n for n in may_be if instructions[n - 1].opname != "LOAD_CONST"]
    chosen = next(iter(long or may_be), None)
    return None if chosen is None else lines[chosen]


def _is_long(instructions: list[dis.Instruction], at: int) -> bool:
    name, before = instructions[at].opname, instructions[at - 1].opname
    # Before Python 3.12 a slice is taken by an index.
    if name in _LONG_OF_CONTAINERS:
        return before != "LOAD_CONST" or name != "CONTAINS_OP"
    return name.startswith(("BINARY_", "STORE_SUBSCR")) and before in _MAKE_CONTAINERS


def _is_quick_call(instructions: list[dis.Instruction], at: int) -> bool:
    """Whether a call is one of a function that is over at once, by its name."""
    for n in range(at - 1, -1, -1):
        one = instructions[n]
        if _is_chance(one):
            return False
        if one.opname == "PUSH_NULL":
            return False
        if one.opname == "LOAD_METHOD" or "NULL" in one.argrepr:
            name: Any = one.argval
            while instructions[n + 1].opname == "LOAD_ATTR":
                n += 1
                name = instructions[n].argval
            return name in _QUICK
    return False


def _since_last_chance(instructions: list[dis.Instruction], at: int) -> Iterator[int]:
    """Yields the instructions that may have run since the GIL could last be given up, last first.

    Args:
        instructions: Of a function.
        at: The number of the one at which it was given up.
    """
    numbers = {one.offset: n for n, one in enumerate(instructions)}
    comes_from: dict[int, list[int]] = {}
    for n, one in enumerate(instructions):
        if one.opname not in _ENDS_PATH and n + 1 < len(instructions):
            comes_from.setdefault(n + 1, []).append(n)
        if one.opcode in dis.hasjrel or one.opcode in dis.hasjabs:
            comes_from.setdefault(numbers.get(one.argval, -1), []).append(n)
    seen, next_ones = {at}, [at]
    while next_ones:
        for n in comes_from.get(next_ones.pop(0), ()):
            if n not in seen and not _is_chance(instructions[n]):
                seen.add(n)
                next_ones.append(n)
                yield n


def _is_chance(instruction: dis.Instruction) -> bool:
    """Whether a thread that is asked for the GIL gives it up at an instruction."""
    return instruction.opname.startswith(("CALL", "JUMP_BACKWARD", "RESUME"))


def _lines(instructions: list[dis.Instruction]) -> list[int | None]:
    lines: list[int | None] = []
    for one in instructions:
        positions = getattr(one, "positions", None)
        lines.append(None if positions is None else positions.lineno)
    return lines
