"""A summary as JSON, and back."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from typing import Any

from trainprof.analysis.run.metadata import MAX_NUMBER
from trainprof.analysis.summary.code import JSON_KEY
from trainprof.analysis.summary.run_summary import RunSummary


def to_jsonable(summary: RunSummary) -> dict[str, Any]:
    """Returns the summary as plain JSON values, `schema_version` first; NaN becomes None."""
    plain = _plain(summary)
    return {"schema_version": plain.pop("schema_version"), **plain}


def from_jsonable(data: dict[str, Any]) -> RunSummary:
    """Builds a summary from what `to_jsonable` returned; unknown keys are ignored.

    Raises:
        KeyError, TypeError, ValueError: If `data` does not have the summary's shape.
    """
    return typing.cast(RunSummary, _build(RunSummary, data))


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {key: _plain(getattr(value, name)) for key, name in _names(value).items()}
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _names(kind: Any) -> dict[str, str]:
    """Returns the names of a dataclass's fields by their keys."""
    return {
        field.metadata.get(JSON_KEY, field.name): field.name for field in dataclasses.fields(kind)
    }


def _build(kind: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, dict):
            raise TypeError(f"{kind} needs an object, not {type(value).__name__}")
        hints = typing.get_type_hints(kind)
        names = {key: name for key, name in _names(kind).items() if key in value}
        built = {name: _build(hints[name], value[key]) for key, name in names.items()}
        return typing.cast(Any, kind)(**built)
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        if value is None:
            return None
        return _build(next(a for a in typing.get_args(kind) if a is not types.NoneType), value)
    if origin is list:
        (item_kind,) = typing.get_args(kind)
        return [_build(item_kind, item) for item in _checked(list, value)]
    if origin is dict:
        _, item_kind = typing.get_args(kind)
        return {key: _build(item_kind, item) for key, item in _checked(dict, value).items()}
    return value if kind is typing.Any else _checked(kind, value)


def _checked(kind: type, value: Any) -> Any:
    """Returns `value` if it is of a kind; an integer may stand for a float."""
    accepted = (int, float) if kind is float else kind
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"{kind.__name__} expected, not {type(value).__name__}")
    # NaN fails the comparison too.
    if isinstance(value, (int, float)) and not -MAX_NUMBER < value < MAX_NUMBER:
        raise ValueError("an impossible number")
    return value
