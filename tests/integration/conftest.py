"""After each test: no summary that its runs left contradicts its own page."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from support.contradictions import contradictions_of
from support.machine import SUMMARIES

_SUMMARY = "summary.json"
# It edits what runs left.
_EDITING = ("test_hostile_input.py",)
_checked: set[tuple[Path, int]] = set()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, None, None]:
    """Checks the test's own runs, behind a module's last test those that its tests shared."""
    factory: pytest.TempPathFactory = item.config._tmp_path_factory  # type: ignore[attr-defined]
    own = getattr(item, "funcargs", {}).get("tmp_path")
    yield
    is_last = nextitem is None or nextitem.path != item.path
    counted, wrong = 0, []
    for path in _runs(own, *(_shared(factory.getbasetemp()) if is_last else ())):
        found = contradictions_of(path) if item.path.name not in _EDITING else None
        counted += found is not None
        wrong += [f"{path}: {sentence}" for sentence in found or ()]
    item.user_properties.append((SUMMARIES, counted))
    assert not wrong, "\n".join(wrong)


def _shared(base: Path) -> Iterator[Path]:
    """Yields folders that are no test's own: unit tests plant summaries in theirs."""
    return (folder for folder in base.iterdir() if not folder.name.startswith("test_"))


def _runs(*tops: Path | None) -> Iterator[Path]:
    """Yields the run directories below folders whose summaries are not checked yet."""
    for top in tops:
        for folder, _, files in os.walk(top) if top is not None else ():
            if _SUMMARY in files:
                key = Path(folder), (Path(folder) / _SUMMARY).stat().st_mtime_ns
                if key not in _checked:
                    _checked.add(key)
                    yield key[0]
