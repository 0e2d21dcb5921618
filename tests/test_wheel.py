"""What is installed is what git has."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# What the extension module is built from.
SOURCES = ["trainprof/record/_hot.c"]


def test_a_wheel_contains_all_files_of_the_package() -> None:
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    patterns = ["*.py", *project["tool"]["setuptools"]["package-data"]["*"]]
    files = [path for path in (ROOT / "trainprof").rglob("*") if path.is_file()]
    built = {".pyc", ".so", ".pyd"}
    left_out = [
        path.relative_to(ROOT).as_posix()
        for path in files
        if path.suffix not in built and not any(fnmatch(path.name, x) for x in patterns)
    ]
    assert left_out == SOURCES
