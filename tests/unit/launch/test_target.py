from __future__ import annotations

import os
from pathlib import Path

import pytest

from trainprof.launch.target import (
    Entry,
    entry_of,
    resolve,
)

PYTHON = "/opt/python"


@pytest.fixture(autouse=True)
def in_empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


def make(path, text="pass\n", mode=0o644):
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(mode)
    return path


def test_a_script_runs_under_our_interpreter_named_as_typed():
    make("dir/train.v2.py")
    target = resolve(["dir/train.v2.py", "--lr", "-o"], interpreter=PYTHON)
    assert target.executable == PYTHON
    assert target.argv == (PYTHON, "dir/train.v2.py", "--lr", "-o")
    assert target.words == ("dir/train.v2.py", "--lr", "-o")
    assert (target.stem, target.is_ours) == ("train.v2", True)


def test_a_module_takes_all_words_as_arguments():
    target = resolve(["--", "-m", "x"], "package.train", interpreter=PYTHON)
    assert target.argv == (PYTHON, "-m", "package.train", "--", "-m", "x")
    assert target.words == ("-m", "package.train", "--", "-m", "x")
    assert target.stem == "package.train"


def test_a_name_with_a_dash_is_no_option_of_python_and_one_alone_is_a_script_on_stdin():
    make("-c")
    assert resolve(["-c"], interpreter=PYTHON).argv == (PYTHON, "./-c")
    make("-")
    target = resolve(["-", "-o"], interpreter=PYTHON)
    assert target.argv == (PYTHON, "-", "-o")
    assert (target.name, target.stem, target.is_ours) == ("-", "stdin", True)


def test_a_command_on_path_is_called_by_its_name():
    make("bin/torchrun", "#!/usr/bin/python3\n", 0o755)
    target = resolve(["torchrun", "--nproc-per-node=2", "train.py"], interpreter=PYTHON)
    assert os.path.samefile(target.executable, "bin/torchrun")
    assert target.argv == ("torchrun", "--nproc-per-node=2", "train.py")
    assert not target.is_ours


def test_a_file_goes_before_a_command_and_a_command_before_a_mere_folder():
    make("bin/accelerate", "#!/usr/bin/python3\n", 0o755)
    Path("accelerate").mkdir()
    assert not resolve(["accelerate"], interpreter=PYTHON).is_ours
    make("accelerate/__main__.py")
    assert resolve(["accelerate"], interpreter=PYTHON).is_ours
    make("bin/train", "#!/bin/sh\n", 0o755)
    make("train")
    assert resolve(["train"], interpreter=PYTHON).is_ours


@pytest.mark.parametrize(
    ("start", "is_ours"),
    [
        (b"\x7fELF\x02\x01", False),
        (b"#!/bin/bash\n", False),
        (b"#!/usr/bin/env python3\n", True),
        (b"import torch\n", True),
        (b"", True),
    ],
)
def test_an_executable_file_that_is_no_python_is_run_itself(start, is_ours):
    Path("it").write_bytes(start)
    Path("it").chmod(0o755)
    assert resolve(["./it", "x"], interpreter=PYTHON).is_ours == is_ours
    Path("it").chmod(0o644)
    assert resolve(["./it", "x"], interpreter=PYTHON).is_ours


def script(name):
    return Entry(name, is_module=False)


def module(name):
    return Entry(name, is_module=True)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("torchrun --nproc-per-node 2 src/a.py --config b.py", script("src/a.py")),
        ("torchrun --standalone -m pkg.a --config b.py", module("pkg.a")),
        ("accelerate launch --config_file x.yaml a.py", script("a.py")),
        ("accelerate launch --module pkg.a", module("pkg.a")),
        ("deepspeed --module pkg.a", module("pkg.a")),
        ("python -u a.py -m pkg.b", script("a.py")),
        ("python3.12 -mpkg.a", module("pkg.a")),
        ("/usr/bin/python -m torch.distributed.run --nproc_per_node=2 a.py", script("a.py")),
        ("python -m torch.distributed.run -m pkg.a", module("pkg.a")),
        # There -m says where memory is taken from, and how ranks are laid out.
        ("numactl -m all python -m pkg.a", module("pkg.a")),
        ("srun -m cyclic python a.py", script("a.py")),
        ("bash a.sh", None),
        ("python -m", None),
        ("torchrun -m --nproc-per-node 2", None),
        ("", None),
    ],
)
def test_of_a_command_what_it_starts(command, expected):
    assert entry_of(command.split(), is_script=False) == expected


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("train b.py", script("train")),
        ("a.py -m pkg.b c.py", script("a.py")),
        ("folder b.py", script("folder")),
        ("-", script("-")),
        ("-m pkg.a b.py", module("pkg.a")),
        ("-m torch.distributed.run --nproc_per_node 2 a.py", script("a.py")),
        ("-m torch.distributed.run -m pkg.a", module("pkg.a")),
        ("venv/bin/torchrun --standalone a.py", script("a.py")),
        ("-m", None),
    ],
)
def test_of_what_python_runs_itself(command, expected):
    assert entry_of(command.split(), is_script=True) == expected
