"""What is recorded of a loader's building lets its call be changed, and no other."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import summaries
from support.session import Recorder
from torch.utils.data import DataLoader

from trainprof.analysis.loading.loader_builder import call_of
from trainprof.analysis.run.metadata import Sites
from trainprof.analysis.summary.finding import LOADER_ID
from trainprof.analysis.summary.loader import Loader
from trainprof.cli.patches import patches
from trainprof.inside.spans.loader import LoaderProbe
from trainprof.record.run_directory import RunDirectory
from trainprof.record.schema import Topic

WORKERS = {"num_workers": 1, "persistent_workers": True}
PLACES_KNOWN = sys.version_info >= (3, 11)

HEAD = """\
import functools
import torch
import torch.utils.data
from torch.utils import data
from torch.utils.data import DataLoader
from torch.utils.data import DataLoader as DL

DS = list(range(16))
CONFIG = {"batch_size": 2}


def wrap(loader):
    return loader


"""

# The loader whose call is to change is `loader`; all others are to stay as they are.
PATCHED = {
    "plain": "loader = DataLoader(DS)",
    "positions": "loader = DataLoader(DS, 2, True)",
    "comments": (
        "loader = DataLoader(  # data (all)\n    DS,  # sixteen\n    2  # each )\n    # end\n)"
    ),
    "workers on a line": (
        "loader = DataLoader(\n    DS,\n    num_workers=0,  # none\n    shuffle=True,\n)"
    ),
    "backslash": "loader = \\\n    DataLoader(DS, \\\n        2)",
    "in a factory": (
        "def make(size, **more):\n    return DataLoader(DS, size)\nloader = make(2, a=1)"
    ),
    "module": "loader = torch.utils.data.DataLoader(DS, 2)",
    "conditional": "loader = DataLoader(DS, 2) if DS else DataLoader(DS, 4)",
    "local heir": (
        "def make():\n    class Own(DataLoader):\n        pass\n"
        "    return Own(DS, 2)\nloader = make()"
    ),
}
# Where Python does not tell the place in the line, that is not guessed.
ONE_OF_SEVERAL = {
    "two of a line": "loader, other = DataLoader(DS, 2), DataLoader(DS, 4)",
    "second of a line": "other, loader = DataLoader(DS, 2), DataLoader(DS, 4)",
    "accents ahead": 'other, ü, loader = DataLoader(DS, 2), "größe", DataLoader(DS, 4)',
    "within another": "loader = DataLoader(DataLoader(DS, 2).dataset, 4)",
}
UNPATCHED = {
    "workers by position": "loader = DataLoader(DS, 2, True, None, None, 0)",
    "aliased class": "loader = DL(DS, 2)",
    "heir": "class Own(DataLoader):\n    pass\nloader = Own(DS, 2, True, None, None, 0)",
    "heir that hands on": (
        "class Own(DataLoader):\n    def __init__(self, size, **more):\n"
        "        super().__init__(DS, size, **more)\nloader = Own(2)"
    ),
    "mapping": "loader = DataLoader(DS, **CONFIG)",
    "expression": "n = 0\nloader = DataLoader(DS, num_workers=n)",
    "heir whose own arguments are not all": (
        "class Own(DataLoader):\n    def __init__(self, size, **more):\n"
        "        super().__init__(DS, **more)\nloader = Own(2, num_workers=len(CONFIG) - 1)"
    ),
}


def ran(path: Path) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "script"}
    exec(compile(path.read_bytes(), str(path), "exec"), names)
    return names


def recorded(recorder: Recorder, path: Path) -> tuple[Loader, dict[str, Any]]:
    """Returns what the summary has of the loader that the script at `path` calls `loader`."""
    recorder.start(LoaderProbe())
    names = ran(path)
    iter(names["loader"])
    recording = recorder.read()
    recorder.stop()
    [metadata] = recording.notes(Topic.LOADER)
    places = {k: json.loads(x) for k, (topic, x) in recording.texts.items() if topic is Topic.SITE}
    sites = Sites(places, str(path.parent))
    call, built_by = call_of(metadata, sites), metadata["built_by"]
    loader = summaries.loader(
        sites[metadata["site"]], kind=metadata["kind"], call=call, built_by=built_by
    )
    return loader, names


def patched(loader: Loader, folder: Path, change: dict[str, Any] = WORKERS) -> str:
    """Changes the script on the disk; returns why not, "" where it did."""
    finding = summaries.finding(site=loader.site, change=change, evidence={LOADER_ID: loader.id})
    summary = replace(summaries.slow_loader(), findings=[finding], loaders=[loader])
    (folder / "run").mkdir(exist_ok=True)
    manifest = {"schema_version": 1, "cwd": str(folder)}
    (folder / "run" / "manifest.json").write_text(json.dumps(manifest))
    remarks, diffs = patches(RunDirectory(folder / "run"), summary)
    if diffs:
        apply = ["git", "apply", "-p1", "-"]
        subprocess.run(apply, input=diffs, cwd=folder, check=True, capture_output=True)
    return "".join(remark for remark in remarks if remark.startswith("Edit by hand: "))


def settings(names: dict[str, Any]) -> dict[str, Any]:
    return {
        name: (value.num_workers, value.persistent_workers, value.batch_size)
        for name, value in names.items()
        if isinstance(value, DataLoader)
    }


def script(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "train.py"
    path.write_text(f"{HEAD}{text}\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("text", [*PATCHED.values(), *ONE_OF_SEVERAL.values()])
def test_a_patched_script_has_workers(text: str, recorder: Recorder, tmp_path: Path) -> None:
    path = script(tmp_path, text)
    loader, names = recorded(recorder, path)
    before = settings(names)
    after = before | {"loader": (1, True, names["loader"].batch_size)}
    # A recording of an older Python, which does not tell the place in a line.
    assert loader.call is not None
    by_hand = patched(replace(loader, call=replace(loader.call, ends_at=None)), tmp_path)
    is_one_of_several = text in ONE_OF_SEVERAL.values() or "if DS else" in text
    assert bool(by_hand) is is_one_of_several
    assert settings(ran(path)) == (before if is_one_of_several else after)
    if PLACES_KNOWN:
        path = script(tmp_path, text)
        assert patched(loader, tmp_path) == ""
        assert settings(ran(path)) == after


@pytest.mark.parametrize("text", UNPATCHED.values(), ids=UNPATCHED)
def test_what_takes_a_decision_is_left_alone(text: str, recorder: Recorder, tmp_path: Path) -> None:
    path = script(tmp_path, text)
    loader, _ = recorded(recorder, path)
    before = path.read_text()
    reason = patched(loader, tmp_path)
    assert path.read_text() == before
    assert len(reason) > 30
    assert "<" not in reason


def test_arguments_for_workers_keep_their_workers(recorder: Recorder, tmp_path: Path) -> None:
    text = "loader = DataLoader(DS, num_workers=1, prefetch_factor=4)"
    loader, _ = recorded(recorder, script(tmp_path, text))
    assert patched(loader, tmp_path, change={"num_workers": 0}) != ""
