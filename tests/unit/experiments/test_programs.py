"""Whether a command runs Python alone, told from its name and its first lines."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from trainprof.experiments.programs import interpreter_of, is_out_of_reach, runs_only_python
from trainprof.launch.target import resolve

BY_SHELL = "#!/bin/sh\n'''exec' \"/a long/path/bin/python3.11\" \"$0\" \"$@\"\n' '''\n"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Has programs on PATH, and some in the working directory."""
    programs = {
        "bin/torchrun": "#!/usr/bin/env bash\nexec pyenv exec\n",
        "bin/lightning": "#!/opt/env/bin/python3\n",
        "bin/by_shell": BY_SHELL,
        "bin/by_env": "#!/usr/bin/env -S PYTHONUNBUFFERED=1 python3\n",
        "bin/python3.12": "\x7fELF",
        "bin/python-config": "#!/bin/sh\n",
        "bin/bash": "\x7fELF",
        "bin/make": "\x7fELF",
        "bin/env": "\x7fELF",
        "bin/nice": "\x7fELF",
        "bin/srun": "\x7fELF",
        "bin/uv": "\x7fELF",
        "train.sh": "#!/bin/bash\n",
        "of_shell": "#!/bin/sh\nexec python train.py\n",
        "own/launch": "#!/usr/bin/env python\n",
        "bin/python3.9": "\x7fELF",
    }
    for name, text in programs.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    (tmp_path / "train.py").write_text("")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "command",
    [
        "train.py",
        "torchrun --nproc-per-node 2 train.py",
        "lightning fit",
        "by_shell train.py",
        "by_env train.py",
        "python3.12 train.py",
        "env A=/b python3.12 train.py",
        "nice -n 5 env A=b torchrun train.py",
        "srun -p gpu own/launch",
        "uv run train.py",
        "uv run torchrun train.py",
    ],
)
def test_what_runs_python_alone(machine: Path, command: str) -> None:
    assert runs_only_python(resolve(command.split()), machine)


@pytest.mark.parametrize(
    "command",
    [
        "bash train.sh",
        "bash -c python3.12",
        "./train.sh --lr 1",
        "./of_shell",
        "make train",
        "python-config",
        "env A=b bash train.sh",
        "nice -n 5 ./train.sh",
        "srun -n 2 bash -c python3.12",
        "env A=b",
        "uv run",
        "torchrun --nproc-per-node 2 --no-python ./train.sh",
        "python3.12 -m torch.distributed.run --no_python ./train.sh",
    ],
)
def test_what_may_do_something_else(machine: Path, command: str) -> None:
    assert not runs_only_python(resolve(command.split()), machine)


@pytest.mark.parametrize(
    "command",
    [
        "env -i A=/b python3.12 train.py",
        "nice -n 5 env - python3.12 train.py",
        "env PYTHONPATH=src python3.12 train.py",
        "env -u PYTHONPATH python3.12 train.py",
        "env --unset=PYTHONPATH torchrun train.py",
        "srun --export=NONE python3.12 train.py",
        "python3.12 -I train.py",
        "python3.12 -u -W ignore -Xdev -bE -m package.train",
        "nice python3.12 -sS train.py",
        "apart fit",
        "python3.9 train.py",
        "python2 train.py",
        "nice python train.py",
        "uv run python -I train.py",
        "old fit",
    ],
)
def test_a_python_that_nothing_of_ours_gets_into(machine: Path, command: str) -> None:
    for name, text in {
        "apart": "#!/usr/bin/env -S python3 -I\n",
        "old": "#!/opt/old/bin/python3.8\n",
        "python3.9": "",
        "python2": "",
    }.items():
        (machine / "bin" / name).write_text(text)
        (machine / "bin" / name).chmod(0o755)
    (machine / "bin" / "python").symlink_to("python3.9")
    target = resolve(command.split())
    assert runs_only_python(target, machine)
    assert is_out_of_reach(target, machine)


@pytest.mark.parametrize(
    "command",
    [
        "train.py -I",
        "python3.12 train.py -I -E -S",
        "python3.12 -u -s -P -W ignore -X importtime train.py",
        "python3.12 -m package.train -I",
        "python3.12 -c pass -S",
        "python3.12 --check-hash-based-pycs never train.py",
        "env A=b -u OTHER python3.12 train.py PYTHONPATH=x",
        "nice -n 5 srun -i x python3.12 train.py -i",
        "torchrun --nproc-per-node 2 train.py --no-python -I",
        "lightning fit -I",
        "uv run train.py -I",
        "uv run python3.9 train.py",
        "bash train.sh",
    ],
)
def test_a_python_that_is_reached(machine: Path, command: str) -> None:
    assert not is_out_of_reach(resolve(command.split()), machine)


def test_a_launcher_of_ours_that_starts_any_program(machine: Path) -> None:
    target = resolve(["--no-python", "./train.sh"], "torch.distributed.run")
    assert not runs_only_python(target, machine)
    assert runs_only_python(resolve(["train.py", "--no-python"]), machine)


def test_a_module_runs_python_alone(machine: Path) -> None:
    assert runs_only_python(resolve(["--lr", "1"], "package.train"), machine)


@pytest.mark.parametrize(
    ("command", "interpreter"),
    [
        ("train.py", sys.executable),
        ("lightning fit", "/opt/env/bin/python3"),
        ("by_shell train.py", "/a long/path/bin/python3.11"),
        ("srun python3.12 train.py", "bin/python3.12"),
        ("bash train.sh", sys.executable),
    ],
)
def test_the_python_that_it_runs_under(machine: Path, command: str, interpreter: str) -> None:
    found = interpreter_of(resolve(command.split()), machine)
    assert found == (str(machine / interpreter) if interpreter.startswith("bin/") else interpreter)
