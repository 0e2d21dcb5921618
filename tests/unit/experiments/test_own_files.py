"""What the script of a `tune` run is made of, told without running it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trainprof.experiments.own_files import digests_of, edited
from trainprof.launch.target import resolve


def plant(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def files_of(cwd: Path, *words: str, module: str | None = None) -> list[str]:
    return sorted(digests_of(resolve(words, module), cwd))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    plant(
        tmp_path,
        {
            "train.py": "import torch, dataset\nfrom lib import model\n",
            "dataset.py": "import os\n",
            "lib/__init__.py": "",
            "lib/model.py": "raise SystemExit('ran')\n",
            "plots.py": "raise SystemExit('ran')\n",
        },
    )
    return tmp_path


def test_the_script_and_what_it_imports_from_beside_it(project: Path) -> None:
    told = digests_of(resolve(["train.py"]), project)
    assert sorted(told) == ["dataset.py", "lib/__init__.py", "lib/model.py", "train.py"]
    assert edited(told, project) == []
    for name in told:
        text = (project / name).read_text()
        (project / name).write_text(text + "x = 1\n")
        assert edited(told, project) == [name]
        (project / name).write_text(text)


def test_one_that_is_gone_or_can_no_longer_be_parsed_is_edited(project: Path) -> None:
    told = digests_of(resolve(["train.py"]), project)
    (project / "dataset.py").write_text("def (\n")
    (project / "lib" / "model.py").unlink()
    assert sorted(edited(told, project)) == ["dataset.py", "lib/model.py"]


def test_what_the_script_does_not_import_or_came_later_is_no_matter(project: Path) -> None:
    told = digests_of(resolve(["train.py"]), project)
    (project / "plots.py").write_text("x = 1\n")
    plant(project, {"imported_by_a_later_trial.py": "x = 1\n"})
    assert edited(told, project) == []


@pytest.mark.parametrize(
    "code", ["import importlib\nimportlib.import_module(name)\n", "exec(open(name).read())\n"]
)
def test_where_a_text_imports_what_it_does_not_name_all_beside_it_counts(
    project: Path, code: str
) -> None:
    (project / "train.py").write_text(code)
    assert files_of(project, "train.py") == [
        "dataset.py",
        "lib/__init__.py",
        "lib/model.py",
        "plots.py",
        "train.py",
    ]


def test_a_module_has_its_files_wherever_the_path_finds_it(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = project / "src" / "package_of_mine"
    plant(package, {"__init__.py": "", "train.py": "from . import other\n", "other.py": ""})
    own = [f"src/package_of_mine/{name}.py" for name in ("__init__", "other", "train")]
    assert files_of(project, module="package_of_mine.train") == []
    monkeypatch.setenv("PYTHONPATH", "src")
    assert files_of(project, "--lr", "1", module="package_of_mine.train") == own
    assert files_of(project, module="lib.model") == ["lib/__init__.py", "lib/model.py"]


def test_what_a_launcher_runs_is_read_and_the_launcher_is_not(project: Path) -> None:
    (project / "torchrun").write_bytes(b"\x7fELF")
    (project / "torchrun").chmod(0o755)
    launcher = str(project / "torchrun")
    plain = ["dataset.py", "lib/__init__.py", "lib/model.py", "train.py"]
    assert files_of(project, launcher, "--nproc=2", "train.py") == plain
    assert files_of(project, "--nproc=2", "train.py", module="torch.distributed.run") == plain
    assert files_of(project, launcher, "-m", "lib.model") == ["lib/__init__.py", "lib/model.py"]


def test_settings_that_the_command_names_count(project: Path) -> None:
    plant(project, {"small.yaml": "lr: 1\n", "ds.json": "{}", "data.csv": "1\n"})
    words = ["dataset.py", "--config", "small.yaml", "--deepspeed=ds.json", "data.csv", "no.yaml"]
    assert files_of(project, *words) == ["dataset.py", "ds.json", "small.yaml"]


def test_what_is_no_plain_file_or_holds_a_secret_is_left_out(project: Path) -> None:
    os.mkfifo(project / "pipe.yaml")
    secret = "ghp_" + "a1B2" * 9
    plant(project, {f"{secret}.yaml": ""})
    words = ["dataset.py", "pipe.yaml", f"{secret}.yaml", "a\0b.yaml"]
    assert files_of(project, *words) == ["dataset.py"]


def test_a_package_on_the_path_counts_and_its_edits_are_seen(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(project, {"scripts/train.py": "from mine import work\n", "src/mine/work.py": "x = 1\n"})
    monkeypatch.setenv("PYTHONPATH", "src")
    told = digests_of(resolve(["scripts/train.py"]), project)
    assert sorted(told) == ["scripts/train.py", "src/mine/work.py"]
    plant(project, {"src/mine/work.py": "x = 2\n"})
    assert edited(told, project) == ["src/mine/work.py"]


def test_what_hydra_makes_settings_of_counts(project: Path) -> None:
    plant(
        project,
        {
            "scripts/train.py": "import hydra\n"
            "@hydra.main(config_path='../conf', config_name='train')\ndef main(c): ...\n",
            "conf/train.yaml": "defaults:\n  - model: small\n",
            "conf/model/small.yaml": "_target_: lib.model.Net\n",
            "conf/model/large.yaml": "",
        },
    )
    small = ["conf/model/small.yaml", "conf/train.yaml", "lib/__init__.py", "lib/model.py"]
    large = ["conf/model/large.yaml", "conf/train.yaml"]
    assert files_of(project, "scripts/train.py") == [*small, "scripts/train.py"]
    assert files_of(project, "scripts/train.py", "model=large") == [*large, "scripts/train.py"]


def test_a_script_of_the_shell_counts(project: Path) -> None:
    plant(project, {"run": "#!/bin/sh\npython train.py\n", "more.sh": "python dataset.py\n"})
    (project / "run").chmod(0o755)
    assert files_of(project, "./run", "more.sh") == ["more.sh", "run"]
