"""What trials stand on, and where that is another."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support import summaries
from support.compared_runs import made_up

from trainprof.compare.comparability import ground_of
from trainprof.launch.installed_torch import installed_torch
from trainprof.launch.target import Target
from trainprof.tune.journal import (
    CannotResume,
    check_ground,
    check_variables,
    ground_now,
    variables_of_pace,
)

OURS = Target("/p", ("/p", "t.py"), ("t.py",), "t.py", "t", True)
HOST = {"platform": "linux 6.1 x86_64", "cpu": "EPYC", "usable_cores": 8.0, "cores": 64}


def test_of_a_run_it_is_its_machine_and_its_libraries() -> None:
    run = made_up(summaries.healthy(), "a", script="t.py", script_sha256="0", host=HOST)
    told = ground_of(run)
    expected = {"platform": "linux x86_64", "CPU": "EPYC", "CPU cores": "8", "torch": "2.13.0"}
    assert {what: told[what] for what in expected} == expected
    assert not {"script", "the script's text"} & told.keys()


def test_of_this_machine_it_is_the_same_as_of_a_run_here(tmp_path: Path) -> None:
    told = ground_now(replace(OURS, is_ours=False))
    assert float(told["CPU cores"]) <= (os.cpu_count() or 1)
    assert told["platform"].startswith("linux ")
    assert "torch" not in told  # whose Python that is nobody knows


def test_torchs_version_is_read_and_nothing_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise SystemExit('imported')\n")
    version = tmp_path / "torch" / "version.py"
    version.write_text("from typing import Optional\n__version__ = '2.9.1+cu128'\ncuda = '12.8'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert installed_torch(OURS) == "2.9.1+cu128"
    version.write_text("from .other import __version__\n")
    assert installed_torch(OURS) is None
    version.unlink()
    assert installed_torch(OURS) is None


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ({"torch": "2.9.1", "CPU": "EPYC"}, {"torch": "2.9.1", "CPU": "EPYC"}, None),
        ({"torch": "2.9.1"}, {"CPU": "Xeon"}, None),
        ({"torch": "2.9.1"}, {"torch": "2.10.0"}, "torch was 2.9.1 and is 2.10.0: its trials"),
        ({"device": "cuda", "GPU": "NVIDIA H100"}, {"device": "cuda"}, None),
        ({"GPU": "NVIDIA H100"}, {"GPU": "NVIDIA H100, NVIDIA T4"}, None),
        ({"GPU": "NVIDIA H100"}, {"GPU": "NVIDIA T4"}, "GPU was NVIDIA H100 and is NVIDIA T4"),
        ({"device": "cuda", "GPU": "NVIDIA H100"}, {"device": "cpu"}, "device was cuda and is cpu"),
    ],
)
def test_only_what_is_known_to_be_another_is_refused(
    before: dict[str, str], now: dict[str, str], said: str | None
) -> None:
    if said is None:
        check_ground(before, now)
        return
    with pytest.raises(CannotResume) as refused:
        check_ground(before, now)
    assert str(refused.value).startswith(said)


def test_of_the_environment_only_what_decides_the_pace_is_kept() -> None:
    environ = {
        "OMP_NUM_THREADS": "1",
        "LD_PRELOAD": "/lib/libtcmalloc.so",
        "MALLOC_ARENA_MAX": "2",
        "PYTORCH_CUDA_ALLOC_CONF": "backend:native",
        "CUDA_VISIBLE_DEVICES": "3, 5",
        "WANDB_API_KEY": "abcdef0123456789",
        "HOME": "/home/me",
    }
    told = variables_of_pace(environ)
    assert not {"WANDB_API_KEY", "HOME", "CUDA_VISIBLE_DEVICES"} & told.keys()
    assert told == {name: environ[name] for name in list(environ)[:4]} | {DEVICES: "2"}


DEVICES = "the number of devices in CUDA_VISIBLE_DEVICES"


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ({}, {}, None),
        ({"OMP_NUM_THREADS": "4", "HOME": "/a"}, {"OMP_NUM_THREADS": "4", "HOME": "/b"}, None),
        # A batch system gives another one each time; without the variable all are seen.
        ({"CUDA_VISIBLE_DEVICES": "3"}, {"CUDA_VISIBLE_DEVICES": "5"}, None),
        ({"CUDA_VISIBLE_DEVICES": "0"}, {}, None),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, {"CUDA_VISIBLE_DEVICES": "0"}, f"{DEVICES} was 2 and is"),
        ({"OMP_NUM_THREADS": "1"}, {}, "OMP_NUM_THREADS was 1 and is not set: its trials"),
        ({}, {"LD_PRELOAD": "/x.so"}, "LD_PRELOAD was not set and is /x.so: its trials"),
        (
            {"TOKENIZERS_PARALLELISM": "true", "MKL_NUM_THREADS": "2"},
            {"TOKENIZERS_PARALLELISM": "false"},
            "TOKENIZERS_PARALLELISM was true and is false, MKL_NUM_THREADS was 2 and is not set:",
        ),
    ],
)
def test_an_environment_that_gives_another_pace_is_refused(
    before: dict[str, str], now: dict[str, str], said: str | None
) -> None:
    both = (variables_of_pace(before), variables_of_pace(now))
    if said is None:
        check_variables(*both)
        return
    with pytest.raises(CannotResume) as refused:
        check_variables(*both)
    assert str(refused.value).startswith(said)
