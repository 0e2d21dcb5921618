"""What is told of modules that a script imported from elsewhere."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from trainprof.launch import imported
from trainprof.launch.imported import imported_sources

BEGAN_NS = 1_000_000_000_000_000_000


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Three files of one project, older than the run."""
    (tmp_path / "pkg").mkdir()
    for name in ("model", "data", "loss"):
        path = tmp_path / "pkg" / f"{name}.py"
        path.write_text(f"# {name}\n")
        os.utime(path, ns=(BEGAN_NS - 1, BEGAN_NS - 1))
    return tmp_path / "pkg"


def told_of(package: Path, *more: str, known: tuple[str, ...] = ()) -> dict[str, str]:
    told = package.parent / "imported.jsonl"
    modules = {f"pkg.{path.stem}": str(path) for path in sorted(package.iterdir())}
    told.write_text("\n".join([*more, json.dumps(modules)]) + "\n")
    found = imported_sources(told, known=known, since_ns=BEGAN_NS)
    assert not told.exists()
    return found


def test_each_module_has_the_digest_of_its_file(package: Path) -> None:
    expected = {f"pkg.{name}": digest(f"# {name}\n") for name in ("data", "loss", "model")}
    assert told_of(package) == expected
    # Another process of the run may have imported them as well.
    assert told_of(package, json.dumps({"pkg.data": str(package / "data.py")})) == expected
    known = (digest("# loss\n"),)
    assert set(told_of(package, known=known)) == {"pkg.data", "pkg.model"}


def test_one_that_was_edited_while_the_run_went_on_is_not_known(package: Path) -> None:
    os.utime(package / "data.py", ns=(BEGAN_NS, BEGAN_NS))
    (package / "loss.py").unlink()
    assert set(told_of(package)) == {"pkg.model"}


def test_whatever_stands_in_its_place_is_no_trouble(package: Path) -> None:
    os.mkfifo(package / "pipe.py")
    os.utime(package / "pipe.py", ns=(BEGAN_NS - 1, BEGAN_NS - 1))
    odd = ("{", "[" * 100_000, "[1]", "7", '{"a": 1, "b": "\\u0000", "c": null}', "")
    assert set(told_of(package, *odd)) == {"pkg.data", "pkg.loss", "pkg.model"}
    assert imported_sources(package / "none", known=(), since_ns=BEGAN_NS) == {}
    assert imported_sources(package, known=(), since_ns=BEGAN_NS) == {}


def test_it_never_reads_much(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imported, "_MOST_BYTES", 10)
    assert set(told_of(package)) == {"pkg.data"}
    monkeypatch.setattr(imported, "_MOST_SECONDS", -1.0)
    assert told_of(package) == {}
