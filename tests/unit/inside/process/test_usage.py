"""What the kernel tells of the process comes from Python's own module, which nobody is told of."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from support.session import run_plain

from trainprof.inside.process import usage


def test_it_is_what_resource_tells() -> None:
    used = usage.getrusage(usage.RUSAGE_SELF)
    assert used.ru_maxrss == pytest.approx(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    assert getattr(resource, "RUSAGE_THREAD", None) == usage.RUSAGE_THREAD


def test_it_is_registered_nowhere(tmp_path: Path) -> None:
    code = "import sys, trainprof.inside.process.usage; print('resource' in sys.modules)"
    done = run_plain(["-c", code], tmp_path)
    assert done.stdout == "False\n"
