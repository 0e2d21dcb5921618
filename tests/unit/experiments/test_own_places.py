"""Where packages of the user's own are found, from files alone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from trainprof.experiments.own_places import Places
from trainprof.launch.target import resolve

STRANGER = "raise SystemExit('ran')\n"
SETUPTOOLS = """
from pathlib import Path
MAPPING: dict[str, str] = {{'mine': '{root}/lib', 'space.deep': '{root}/deep', 'torch': '{root}'}}
NAMESPACES: dict[str, list[str]] = {{'space': []}}
raise SystemExit('ran')
"""
EDITABLES = """
from editables.redirector import RedirectingFinder as F
F.install()
F.map_module('mine', '{root}/lib/__init__.py')
"""


def plant(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Has a Python of its own, with a package installed."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    root = tmp_path / "project"
    plant(
        root,
        {
            "lib/__init__.py": STRANGER,
            "lib/work.py": STRANGER,
            "deep/__init__.py": STRANGER,
            "scripts/train.py": STRANGER,
            "env/bin/python": "\x7fELF",
            "env/lib/python3.11/site-packages/other/__init__.py": STRANGER,
        },
    )
    (root / "env/bin/python").chmod(0o755)
    return root


def files_of(project: Path, dotted: str, *, is_ours: bool = False) -> list[str]:
    words = [str(project / "env/bin/python")] if not is_ours else []
    target = resolve([*words, str(project / "scripts/train.py")])
    found = Places(target, project).files_of(dotted.split("."), project / "scripts")
    return [str(path.relative_to(project)) for path in found]


MINE = ["lib/__init__.py", "lib/work.py"]
INSTALLED = "env/lib/python3.11/site-packages"


def test_packages_on_the_path_are_found(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(project, {"src/mine/__init__.py": "", "src/alone.py": "", "src/open/part.py": ""})
    assert files_of(project, "mine") == []
    for path in ("src", f"nowhere:{project / 'src'}", "lib/../src:"):
        monkeypatch.setenv("PYTHONPATH", path)
        assert files_of(project, "mine.Net") == ["src/mine/__init__.py"]
        assert files_of(project, "alone.f") == ["src/alone.py"]
        assert files_of(project, "open.part") == ["src/open/part.py"]


def test_what_is_installed_there_is_not_the_users(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(project, {"more/package/__init__.py": "", "more/package-1.0.dist-info/METADATA": ""})
    monkeypatch.setenv("PYTHONPATH", f"more:{INSTALLED}")
    assert files_of(project, "package") == []
    assert files_of(project, "other") == []


def test_what_is_beside_the_script_comes_first_and_the_working_directory_last(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "src")
    both = {"src/one.py": "", "one.py": "", "two.py": "", "other/__init__.py": "", "json.py": ""}
    plant(project, {**both, "src/three.py": "", "scripts/three.py": "", "data/x.csv": ""})
    assert files_of(project, "one") == ["src/one.py"]
    assert files_of(project, "two") == ["two.py"]
    assert files_of(project, "three") == ["scripts/three.py"]
    assert files_of(project, "lib.work.f") == MINE
    for name in ("other", "json", "data", "nowhere"):
        assert files_of(project, name) == []


@pytest.mark.parametrize("is_ours", [False, True])
def test_packages_installed_in_place_by_a_path_are_found(
    project: Path, is_ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(project, {"src/mine/__init__.py": "", "importable/that.py": ""})
    lines = ["# a comment", "import os; os.nothing()", "", "../../../../src", "/nowhere"]
    plant(
        project,
        {
            f"{INSTALLED}/mine.pth": "\n".join(lines),
            f"{INSTALLED}/self.pth": ".\n" + str(project / "importable"),
        },
    )
    if is_ours:
        monkeypatch.setattr(sys, "path", [*sys.path, str(project / INSTALLED)])
    assert files_of(project, "mine", is_ours=is_ours) == ["src/mine/__init__.py"]
    assert files_of(project, "that", is_ours=is_ours) == ["importable/that.py"]
    assert files_of(project, "other", is_ours=is_ours) == []


@pytest.mark.parametrize("finder", [SETUPTOOLS, EDITABLES])
def test_packages_installed_in_place_by_a_finder_are_found(project: Path, finder: str) -> None:
    name = "__editable___mine_1_0_finder"
    plant(
        project,
        {
            f"{INSTALLED}/__editable__.mine-1.0.pth": f"import {name}; {name}.install()\n",
            f"{INSTALLED}/{name}.py": finder.format(root=project),
        },
    )
    assert files_of(project, "mine.work.f") == MINE
    assert files_of(project, "torch.scripts.train") == []
    assert files_of(project, "space.deep.Net") == (["deep/__init__.py"] if "deep" in finder else [])
    plant(project, {"scripts/mine.py": ""})
    assert files_of(project, "mine.work") == ["scripts/mine.py"]


def test_a_finder_that_cannot_be_read_finds_nothing(project: Path) -> None:
    for text in (
        "def (",
        "F.map_module('mine', 'relative')\nx = {1: 2, **y, 'a b': '/tmp', 'mine': '/'}\n",
    ):
        plant(project, {f"{INSTALLED}/a.pth": "import gone, b\n", f"{INSTALLED}/gone.py": text})
        assert files_of(project, "mine") == []


def test_large_libraries_that_are_in_place_are_not_read(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(project, {"src/transformers/__init__.py": "", "scripts/timm.py": ""})
    monkeypatch.setenv("PYTHONPATH", "src")
    assert files_of(project, "transformers") == []
    assert files_of(project, "timm") == ["scripts/timm.py"]
