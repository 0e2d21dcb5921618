"""A summary as JSON, and back."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from typing import Any

from trainprof.analysis.run.metadata import MAX_NUMBER
from trainprof.analysis.summary.run_summary import RunSummary


def to_jsonable(summary: RunSummary) -> dict[str, Any]:
    """Returns the summary as plain JSON values, `schema_version` first; NaN becomes None."""
    plain = _finite(dataclasses.asdict(summary))
    return {"schema_version": plain.pop("schema_version"), **plain}


def from_jsonable(data: dict[str, Any]) -> RunSummary:
    """Builds a summary from what `to_jsonable` gave; unknown keys are left out.

    Raises:
        KeyError, TypeError, ValueError: If `data` does not have the summary's shape.
    """
    return typing.cast(RunSummary, _build(RunSummary, data))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def _build(kind: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, dict):
            raise TypeError(f"{kind} needs an object, not {type(value).__name__}")
        hints = typing.get_type_hints(kind)
        known = {f.name for f in dataclasses.fields(kind)}
        built = {name: _build(hints[name], item) for name, item in value.items() if name in known}
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
    """Returns `value` if JSON would give it for `kind`; an integer may stand for a float."""
    accepted = (int, float) if kind is float else kind
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"{kind.__name__} expected, not {type(value).__name__}")
    # NaN fails the comparison too.
    if isinstance(value, (int, float)) and not -MAX_NUMBER < value < MAX_NUMBER:
        raise ValueError("a number that nothing can measure")
    return value
