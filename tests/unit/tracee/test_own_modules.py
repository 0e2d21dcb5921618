"""Which modules are the user's own."""

from __future__ import annotations

import json
import os
import sys
from importlib import util
from pathlib import Path
from types import ModuleType

import pytest

from trainprof.tracee import imported
from trainprof.tracee.imported import own_modules, tell_imported


def module(name: str, file: object) -> ModuleType:
    found = ModuleType(name)
    found.__dict__["__file__"] = file
    return found


def test_only_what_was_not_installed(tmp_path: Path) -> None:
    own = str(tmp_path / "lib" / "model.py")
    files: dict[str, object] = {
        "pkg.model": own,
        "__main__": "/work/train.py",
        "numpy": "/venv/lib/python3.12/site-packages/numpy/__init__.py",
        "apt": "/usr/lib/python3/dist-packages/apt/__init__.py",
        "json": json.__file__,
        "trainprof.record": str(Path(imported.__file__).parents[1] / "record" / "__init__.py"),
        "native": "/work/native.so",
        "relative": "pkg/other.py",
        "builtin": None,
        "odd": 7,
    }
    modules: dict[str, object] = {name: module(name, file) for name, file in files.items()}
    del modules["builtin"].__dict__["__file__"]
    modules |= {"gone": None, "mocked": object()}
    assert own_modules(modules) == {"pkg.model": own}
    assert not {name.partition(".")[0] for name in own_modules(sys.modules)} & {
        "trainprof",
        "json",
        "pytest",
    }


def test_a_lazy_module_stays_unloaded(tmp_path: Path) -> None:
    path = tmp_path / "slow.py"
    path.write_text("raise SystemExit('loaded')\n")
    spec = util.spec_from_file_location("slow", path)
    assert spec is not None
    assert spec.loader is not None
    spec.loader = util.LazyLoader(spec.loader)
    lazy = util.module_from_spec(spec)
    spec.loader.exec_module(lazy)

    class Strange(ModuleType):
        def __getattribute__(self, name: str) -> object:
            raise SystemExit("asked")

    assert own_modules({"slow": lazy, "strange": Strange("strange")}) == {"slow": str(path)}


def test_of_a_large_package_a_part_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [*(f"large.m{number}" for number in range(9)), "zoo", "zoo.net"]
    monkeypatch.setattr(imported, "MOST_MODULES", 4)
    told = own_modules({name: module(name, f"/work/{name}.py") for name in names})
    assert list(told) == ["zoo", "zoo.net", "large.m0", "large.m1"]


def test_processes_of_a_run_write_a_line_each(tmp_path: Path) -> None:
    modules = {"pkg": module("pkg", "/work/\u00fc.py")}
    tell_imported(modules, str(tmp_path))
    tell_imported(modules, str(tmp_path))
    tell_imported({}, str(tmp_path))
    lines = (tmp_path / "imported.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"pkg": "/work/\u00fc.py"}] * 2
    assert (tmp_path / "imported.jsonl").stat().st_mode & 0o777 == 0o600
    other = tmp_path / "other"
    other.mkdir()
    os.symlink(tmp_path / "victim", other / "imported.jsonl")
    with pytest.raises(OSError, match=r"imported\.jsonl"):
        tell_imported(modules, str(other))
    assert not (tmp_path / "victim").exists()
