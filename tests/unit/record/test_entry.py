"""What a launcher starts, from the words of its command."""

from __future__ import annotations

import pytest

from trainprof.launch.target import Entry, entry_of


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
        ("python -m accelerate.commands.launch a.py", script("a.py")),
        ("taskset -c 0,1 python a.py", script("a.py")),
        # There -m says where memory is taken from, and how ranks are laid out.
        ("numactl -m all python -m pkg.a", module("pkg.a")),
        ("srun -m cyclic python a.py", script("a.py")),
        ("uv run a.py", script("a.py")),
        ("bash a.sh", None),
        ("python -c pass", None),
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
