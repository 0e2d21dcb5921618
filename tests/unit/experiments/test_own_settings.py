"""Which files Hydra makes a configuration of, and what settings name."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

from trainprof.experiments.own_settings import HydraSettings, named_settings, read_settings

DECORATED = "import hydra\n@hydra.main({})\ndef main(config): ...\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    files = {
        "conf/train.yaml": """
# what is trained
defaults:
  - _self_
  - model: small  # or large
  - optional data: [text, "images"]
  - logger: null
  - override hydra/launcher: basic
  - experiment: null
  - more

lr: 0.1
others:
  - model: large
""",
        "conf/more.yaml": "defaults:\n- /optimizer@inner: adam\n",
        "conf/model/small.yaml": "a: 1\n",
        "conf/model/large.yaml": "defaults:\n  - small\n  - parts/head: wide\n",
        "conf/model/parts/head/wide.yaml": "",
        "conf/data/text.yaml": "",
        "conf/data/images.yaml": "",
        "conf/logger/wandb.yaml": "",
        "conf/logger/csv.yaml": "",
        "conf/logger/both.yaml": "defaults:\n  - wandb\n  - csv\n",
        "conf/optimizer/adam.yaml": "defaults: [nothing]\n",
        "conf/experiment/one.yaml": "defaults:\n- override /logger:\n    - wandb\n    - csv\n",
        "other/train.yaml": "",
        "scripts/train.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def read(project: Path, code: str, *words: str) -> list[str]:
    module = (project / "scripts" / "train.py", ast.parse(code))
    found = HydraSettings(["scripts/train.py", *words], project).of([module])
    return [os.path.relpath(path, project / "conf").removesuffix(".yaml") for path in found]


GIVEN = DECORATED.format("version_base=None, config_path='../conf', config_name='train'")
PLAIN = ["train", "model/small", "data/text", "data/images", "more", "optimizer/adam"]


@pytest.mark.parametrize(
    "arguments",
    [
        "version_base=None, config_path='../conf', config_name='train'",
        "config_path='../conf', config_name='train.yaml'",
        "'../conf', 'train'",
        "config_path='conf', config_name='train'",  # as seen from the working directory
    ],
)
def test_the_defaults_are_followed(project: Path, arguments: str) -> None:
    assert read(project, DECORATED.format(arguments)) == PLAIN


def test_a_configuration_that_is_composed_is_followed(project: Path) -> None:
    code = "from hydra import compose, initialize\nwith initialize(config_path='../conf'):\n"
    assert read(project, code + "    compose(config_name='train')\n") == PLAIN


@pytest.mark.parametrize(
    ("words", "more", "less"),
    [
        (["model=large"], ["model/large", "model/small", "model/parts/head/wide"], []),
        (["data=text"], [], ["data/images"]),
        (["logger=both"], ["logger/both", "logger/wandb", "logger/csv"], []),
        (["logger=csv,wandb"], ["logger/csv", "logger/wandb"], []),
        (["+logger=[csv]"], ["logger/csv"], []),
        (["experiment=one"], ["experiment/one", "logger/wandb", "logger/csv"], []),
        (["experiment=one", "logger=csv"], ["experiment/one", "logger/csv"], []),
        (["lr=0.2", "model.a=3", "~logger", "--lr", "x=\0"], [], []),
        (["--config-name", "more"], [], ["train", "model/small", "data/text", "data/images"]),
        (["-cn=more"], [], ["train", "model/small", "data/text", "data/images"]),
    ],
)
def test_the_command_chooses_others(
    project: Path, words: list[str], more: list[str], less: list[str]
) -> None:
    expected = {*PLAIN, *more} - set(less)
    assert set(read(project, GIVEN, *words)) == expected


def test_the_command_names_another_directory(project: Path) -> None:
    assert read(project, GIVEN, "--config-path", "../other") == ["../other/train"]
    (project / "other" / "logger").mkdir()
    (project / "other" / "logger" / "own.yaml").write_text("")
    told = read(project, GIVEN, "--config-dir=other", "logger=own")
    assert sorted(told) == sorted([*PLAIN, "../other/logger/own"])


@pytest.mark.parametrize(
    "code",
    [
        "print(1)\n",
        GIVEN.replace("import hydra", "from .hydra import main"),
        DECORATED.format("config_path=None, config_name=name"),
        DECORATED.format("config_path='a\\0b', config_name='train'"),
    ],
)
def test_where_hydra_is_not_told_anything_nothing_is_read(project: Path, code: str) -> None:
    assert read(project, code) == []


def test_files_that_name_each_other_are_read_once(project: Path) -> None:
    (project / "conf" / "more.yaml").write_text("defaults:\n  - train\n  - more\n")
    assert read(project, GIVEN, "--config-name", "more") == ["more", *PLAIN[:4]]


def test_what_a_command_names_is_there_and_settings(project: Path) -> None:
    words = [
        "--a=conf/more.yaml",
        "conf/more.yaml",
        "conf/gone.yaml",
        "scripts/train.py",
        "x\0.yml",
    ]
    assert named_settings(words, project) == [project / "conf" / "more.yaml"]


def test_values_are_told_with_their_lines(project: Path) -> None:
    path = project / "s.yaml"
    path.write_text(
        "a:\r\n  _target_: 'pkg.mod.Cls'  # _target_: no.other\r\n"
        "  b: {class_path: x.Y, report_to: ${z}}\r\nlog_with: [wandb,\r\n  aim]\r\n"
    )
    told = read_settings(path)
    assert [(one.key, one.value, one.line) for one in told.classes] == [
        ("_target_", "pkg.mod.Cls", 2),
        ("class_path", "x.Y", 3),
    ]
    assert [(one.key, one.value, one.line) for one in told.trackers] == [
        ("log_with", "wandb", 4),
        ("log_with", "aim", 4),
    ]
    assert read_settings(project / "gone.yaml").classes == []


@pytest.mark.parametrize(
    ("text", "values"),
    [("report_to: []", ["none"]), ("report_to: null", []), ("report_to: 'none'", ["none"])],
)
def test_none_is_told_from_nothing_said(project: Path, text: str, values: list[str]) -> None:
    (project / "s.yaml").write_text(text)
    assert [one.value for one in read_settings(project / "s.yaml").trackers] == values
