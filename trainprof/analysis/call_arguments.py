"""Gives a call in a Python file's text other arguments."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from trainprof.analysis.call_search import name_of
from trainprof.analysis.source_text import Edit, NotMechanical, lines_of, segment, span

KEPT: Final = "persistent_workers"
_WORKERS: Final = "num_workers"
_AHEAD: Final = "prefetch_factor"
# What torch refuses where there are no workers, and what it takes instead.
_WITHOUT_WORKERS: Final = {
    KEPT: False,
    _AHEAD: None,
    "multiprocessing_context": None,
    "timeout": 0,
}


def set_arguments(
    text: str,
    call: ast.Call,
    change: Mapping[str, Any],
    takes: Sequence[str] = (),
    prefix: str = "",
) -> Iterator[Edit]:
    """Yields edits that give a call arguments, others' values where it has them already.

    Args:
        text: Of the file.
        call: In it.
        change: Arguments.
        takes: The parameters of what is called, in order; those behind "*" by keyword alone.
        prefix: Of a loader's arguments there.

    Raises:
        NotMechanical: If it takes more than that.
    """
    given = _given(call, takes)
    is_without_workers = change.get(f"{prefix}{_WORKERS}") == 0
    handed_on = [one for one in call.keywords if one.arg is None and _unpacked(one.value) is None]
    if handed_on and (is_without_workers or not change.keys() <= given.keys()):
        line = handed_on[0].value.lineno
        raise NotMechanical(f"line {line} passes arguments on by **: set them there")
    if is_without_workers:
        refused = {f"{prefix}{name}": value for name, value in _WITHOUT_WORKERS.items()}
        change = {**change, **{name: value for name, value in refused.items() if name in given}}
    added = []
    for name, value in change.items():
        held = given.get(name)
        if held is None:
            added.append(f"{name}={_value(text, name, value, change, given)}")
        elif not isinstance(held, ast.Constant):
            told = segment(text, held)
            raise NotMechanical(f"{name} is {told} on line {held.lineno}: make that {value!r}")
        elif held.value is not value and held.value != value:
            yield Edit(*span(text, held), repr(value))
    if added:
        yield _insertion(text, call, added)


def with_argument_last(text: str, call: ast.Call, added: str) -> Edit:
    """Returns the edit that gives a call one more argument; it may have none."""
    if call.args or call.keywords:
        return _insertion(text, call, [added])
    _, end = span(text, call)
    return Edit(end - 1, end - 1, added)


def _given(call: ast.Call, takes: Sequence[str]) -> dict[str, ast.expr]:
    """Returns a call's arguments by name, those that are given by position included."""
    by_place = list(takes[: takes.index("*")] if "*" in takes else takes)
    if any(isinstance(argument, ast.Starred) for argument in call.args):
        raise NotMechanical(f"line {call.lineno} passes arguments on by *: set them there")
    given = dict(zip(by_place, call.args, strict=False))
    for keyword in call.keywords:
        if keyword.arg is None:
            given |= _unpacked(keyword.value) or {}
        else:
            given[keyword.arg] = keyword.value
    return given


def _unpacked(value: ast.expr) -> dict[str, ast.expr] | None:
    """Returns what `**` hands over, where it is written out there, by {...} or dict(...)."""
    if isinstance(value, ast.Dict):
        keys = [key.value if isinstance(key, ast.Constant) else None for key in value.keys]
        known = {
            key: one for key, one in zip(keys, value.values, strict=True) if isinstance(key, str)
        }
        if len(known) == len(keys):
            return known
    elif isinstance(value, ast.Call) and name_of(value.func) == "dict" and not value.args:
        by_name = {one.arg: one.value for one in value.keywords if one.arg is not None}
        if len(by_name) == len(value.keywords):
            return by_name
    return None


def _value(
    text: str,
    name: str,
    value: Any,
    change: Mapping[str, Any],
    given: Mapping[str, ast.expr],
) -> str:
    """Returns an argument's text; workers can only be kept where there are any."""
    of_workers = next((one for one in (KEPT, _AHEAD) if name.endswith(one)), None)
    workers_name = name.replace(of_workers, _WORKERS) if of_workers else ""
    workers = given.get(workers_name)
    if of_workers is None or workers is None or workers_name in change:
        return repr(value)
    if isinstance(workers, ast.Constant):
        if not workers.value:
            raise NotMechanical(f"{workers_name} is {workers.value!r} on line {workers.lineno}")
        return repr(value)
    told = segment(text, workers)
    if not isinstance(workers, (ast.Name, ast.Attribute, ast.Subscript, ast.Call)):
        told = f"({told})"
    return f"{told} > 0" if of_workers == KEPT else f"{value!r} if {told} else None"


def _insertion(text: str, call: ast.Call, added: list[str]) -> Edit:
    """Returns the edit that puts arguments behind a call's last one, as that is laid out."""
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    if not arguments:
        raise NotMechanical(f"line {call.lineno} gives no arguments")
    last = max(arguments, key=lambda node: (node.end_lineno or 0, node.end_col_offset or 0))
    (_, end), (_, call_end) = span(text, last), span(text, call)
    if end >= call_end:  # f(x for x in y) has no brackets of its own
        raise NotMechanical(f"line {call.lineno} hands over a generator alone")
    end = _behind_brackets(text.encode(), end, call_end - 1)
    line = lines_of(text)[last.lineno - 1]
    separator = ", "
    if last.lineno != call.lineno:
        line_end = line[len(line.rstrip("\r\n")) :] or "\n"
        separator = f",{line_end}{line[: len(line) - len(line.lstrip())]}"
    return Edit(end, end, "".join(f"{separator}{one}" for one in added))


def _behind_brackets(data: bytes, start: int, stop: int) -> int:
    """Returns where an argument ends with the brackets around it.

    Args:
        data: The file's.
        start: Where the argument itself ends.
        stop: Where its call's own bracket closes.
    """
    end = place = start
    while place < stop:
        byte = data[place : place + 1]
        if byte == b"#":
            ends = [found for one in (b"\r", b"\n") if (found := data.find(one, place)) >= 0]
            place = min(ends, default=stop)
            continue
        place += 1
        if byte == b")":
            end = place
    return end
