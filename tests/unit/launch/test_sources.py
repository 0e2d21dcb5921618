"""What is told of the files beside a script."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from trainprof.launch import sources
from trainprof.launch.sources import own_sources


def plant(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"# {name}\n")


def test_modules_beside_the_script_and_below_it(tmp_path: Path) -> None:
    plant(tmp_path, "train.py", "data.py", "lib/model.py", "notes.txt")
    told = own_sources(tmp_path / "train.py")
    assert told == {
        name: hashlib.sha256(f"# {name}\n".encode()).hexdigest()[:16]
        for name in ("data.py", "lib/model.py")
    }


def test_what_is_not_the_users_own_is_left_out(tmp_path: Path) -> None:
    plant(
        tmp_path,
        "train.py",
        ".git/hook.py",
        "venv/pyvenv.cfg",
        "venv/lib.py",
        "node_modules/a.py",
        "a/b/c/too_deep.py",
    )
    os.symlink("/etc", tmp_path / "elsewhere")
    os.mkfifo(tmp_path / "pipe.py")
    assert own_sources(tmp_path / "train.py") == {}
    assert own_sources(tmp_path / "missing" / "train.py") == {}


def test_it_never_reads_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path, *(f"m{number:03}.py" for number in range(150)))
    assert len(own_sources(tmp_path / "train.py")) == 100
    monkeypatch.setattr(sources, "_MOST_BYTES", 30)
    assert len(own_sources(tmp_path / "train.py")) == 3
    monkeypatch.setattr(sources, "_MOST_ENTRIES", 2)
    assert len(own_sources(tmp_path / "train.py")) == 2
