"""Python code inside the model: by its line, or by what backward calls."""

from __future__ import annotations

from typing import Any

from support.cases import healthy, noted, with_summary
from support.findings import hot_line, is_silent, reports, row

from trainprof.analysis.summary.code import PythonInModel
from trainprof.findings.model.python_in_model.probe import BackwardCodeNote
from trainprof.findings.run_context import RunContext

HOOKS = ("hooks.py:3", "net.py:40")


def with_python(seconds: float = 1.0, hooks: int = 0, **changes: Any) -> RunContext:
    """A run with as much Python in its backward of 2 s; some of HOOKS are noted."""
    notes = noted(BackwardCodeNote(tuple(range(1, hooks + 1))), places=HOOKS)
    context = healthy(parts={"backward": 2.0}, notes=notes)
    python = PythonInModel(200, 100, {"backward": seconds}, **{"lines": [], **changes})
    return with_summary(context, python_in_model=python)


LINES = {"lines": [hot_line("backward")]}
CALLED = {"called_by_backward": True}

test_python_in_model = reports(
    "python_in_model",
    {
        "its line": row(with_python(hooks=1, **LINES), "data.py:12", python_s=1.0, looks=200),
        "the only hook": row(with_python(hooks=1, **CALLED), "hooks.py:3", python_s=1.0),
        "one of two": row(with_python(hooks=2, **CALLED), None, called_by_backward=[*HOOKS]),
        "a library's": row(with_python(**CALLED), None, called_by_backward=None),
        "behind": row(with_python(hooks=1, behind=hot_line("backward")), None),
    },
)

test_a_little = is_silent("python_in_model", {"it": with_python(0.1, hooks=1, **CALLED)})
