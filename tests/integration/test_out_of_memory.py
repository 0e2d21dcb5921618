"""A real out-of-memory kill, in a control group of its own, where one can be made."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.control_groups import control_group

LIMIT_BYTES = 150 << 20

HOARDER = """
import time
hoard = []
while True:
    hoard.append(bytearray(b"x" * (1 << 20)))
    time.sleep(0.01)
"""


@pytest.fixture
def memory_group() -> Iterator[Path]:
    limit = str(LIMIT_BYTES)
    with control_group("memory", ("memory.limit_in_bytes", limit), ("memory.max", limit)) as file:
        yield file.parent


def test_a_run_killed_for_memory_says_so_and_shows_what_grew(tmp_path, memory_group):
    script = tmp_path / "hoarder.py"
    script.write_text(HOARDER)
    command = [
        *(sys.executable, "-m", "trainprof", "run", "--interval", "0.1"),
        *("-o", str(tmp_path / "run"), str(script)),
    ]
    enter = f'echo $$ > "{memory_group}/cgroup.procs" && exec "$@"'
    done = subprocess.run(
        ["sh", "-c", enter, "sh", *command], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == -9, done.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    end = summary["run"]["exit"]
    assert (end["reason"], end["signal"]) == ("killed", 9)
    assert end["detail"].startswith("out of memory")
    assert summary["system"]["last_sample"]["grown_bytes"]["main"] > 10 << 20
