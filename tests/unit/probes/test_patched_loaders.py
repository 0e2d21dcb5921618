"""What is recorded of a loader's building lets its call be changed, and no other."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import summaries
from support.session import Recorder, Recording
from torch.utils.data import DataLoader

from trainprof.analysis.finding import LOADER_ID
from trainprof.analysis.loader_builder import call_of
from trainprof.analysis.loader_figures import Loader
from trainprof.analysis.names import Sites
from trainprof.analysis.patching import changes_of
from trainprof.analysis.source_text import NotMechanical, SourceText, diff
from trainprof.probes.loader import LoaderProbe
from trainprof.record.schema import Topic

WORKERS = {"num_workers": 1, "persistent_workers": True}
PLACES_KNOWN = sys.version_info >= (3, 11)

HEAD = """\
import functools
import torch
import torch.utils.data
import torch.utils.data as tud
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
    "workers by position": "loader = DataLoader(DS, 2, True, None, None, 0)",
    "all by position": "loader = DataLoader(DS, 2, True, None, None, 0, None, False, False)",
    "by name": "loader = DataLoader(dataset=DS, num_workers=0)",
    "false by name": "loader = DataLoader(DS, persistent_workers=False)",
    "brackets": "loader = DataLoader(DS, (2))",
    "double brackets": "loader = DataLoader((DS), ((2) ) )",
    "bracket behind a comment": "loader = DataLoader(\n    DS,\n    (2  # ) two\n    ),\n)",
    "several lines": "loader = DataLoader(\n    DS,\n    batch_size=2,\n)",
    "no trailing comma": "loader = DataLoader(DS,\n                    batch_size=2)",
    "comments": (
        "loader = DataLoader(  # data (all)\n    DS,  # sixteen\n    2  # each )\n    # end\n)"
    ),
    "comment and comma": "loader = DataLoader(\n    DS,\n    2,  # each )\n)",
    "workers on a line": (
        "loader = DataLoader(\n    DS,\n    num_workers=0,  # none\n    shuffle=True,\n)"
    ),
    "backslash": "loader = \\\n    DataLoader(DS, \\\n        2)",
    "literal": 'loader = DataLoader(DS, **{"batch_size": 2, "num_workers": 0})',
    "literal dict": "loader = DataLoader(DS, **dict(batch_size=2))",
    "nested": "loader = wrap(DataLoader(DS, 2))",
    "nested in lines": "loader = wrap(\n    wrap(\n        DataLoader(DS, 2)\n    )\n)",
    "in a dict": 'loaders = {"a": DataLoader(DS, 2), }\nloader = loaders["a"]',
    "in a comprehension": "[loader] = [DataLoader(DS, size) for size in (2,)]",
    "in a lambda": "make = lambda size: DataLoader(DS, size)\nloader = make(2)",
    "in a factory": (
        "def make(size, **more):\n    return DataLoader(DS, size)\nloader = make(2, a=1)"
    ),
    "module": "loader = torch.utils.data.DataLoader(DS, 2)",
    "aliased module": "loader = tud.DataLoader(DS, 2)",
    "package": "loader = data.DataLoader(DS, 2)",
    "aliased class": "loader = DL(DS, 2)",
    "renamed class": "Loader = tud.DataLoader\nloader = Loader(DS, 2)",
    "with": "with torch.no_grad(): loader = DataLoader(DS, 2)",
    "semicolon": "x = 1; loader = DataLoader(DS, 2); y = 2",
    "walrus": "print(len(loader := DataLoader(DS, 2)))",
    "conditional": "loader = DataLoader(DS, 2) if DS else DataLoader(DS, 4)",
    "lambda last": "loader = DataLoader(DS, collate_fn=lambda x: (x, 2))",
    "string last": 'loader = DataLoader(DS, pin_memory_device="")',
    "accents": 'größe = "ü"; loader = DataLoader(DS, 2)  # ä',
    "heir": "class Own(DataLoader):\n    pass\nloader = Own(DS, 2, True, None, None, 0)",
    "heir that hands on": (
        "class Own(DataLoader):\n    def __init__(self, size, **more):\n"
        "        super().__init__(DS, size, **more)\nloader = Own(2)"
    ),
    "heir that takes none": (
        "class Own(DataLoader):\n    def __init__(self, size):\n"
        "        super().__init__(DS, batch_size=size)\nloader = Own(2)"
    ),
    "heir that takes none, by position": (
        "class Own(DataLoader):\n    def __init__(self, size):\n"
        "        DataLoader.__init__(self, DS, size, False, None, None, 0)\nloader = Own(2)"
    ),
    "heir that sets some": (
        "class Own(DataLoader):\n    def __init__(self, size, **more):\n"
        "        super().__init__(DS, size, num_workers=0, **more)\nloader = Own(2)"
    ),
    "heir that takes workers": (
        "class Own(DataLoader):\n    def __init__(self, size, num_workers=0):\n"
        "        super().__init__(DS, size, num_workers=num_workers)\n"
        "loader = Own(2)\nother = Own(2)"
    ),
    "local heir": (
        "def make():\n    class Own(DataLoader):\n        pass\n"
        "    return Own(DS, 2)\nloader = make()"
    ),
}
# Where Python does not tell the place in the line, that is not guessed.
ONE_OF_SEVERAL = {
    "two of a line": "loader, other = DataLoader(DS, 2), DataLoader(DS, 4)",
    "second of a line": "other, loader = DataLoader(DS, 2), DataLoader(DS, 4)",
    "within another": "loader = DataLoader(DataLoader(DS, 2).dataset, 4)",
    "accents ahead": 'other, ü, loader = DataLoader(DS, 2), "größe", DataLoader(DS, 4)',
}
UNPATCHED = {
    "star": "loader = DataLoader(*(DS, 2))",
    "mapping": "loader = DataLoader(DS, **CONFIG)",
    "literal of what is not known": "loader = DataLoader(DS, **{**CONFIG})",
    "expression": "n = 0\nloader = DataLoader(DS, num_workers=n)",
    "expression by position": "n = 0\nloader = DataLoader(DS, 2, True, None, None, n)",
    "partial": "make = functools.partial(DataLoader, DS)\nloader = make(batch_size=2)",
    "partial at once": "loader = functools.partial(DataLoader, DS)(batch_size=2)",
    "factory": "def make(*args, **more):\n    return DataLoader(*args, **more)\nloader = make(DS)",
    "by name of its own": 'loader = getattr(data, "DataLoader")(DS)',
    "generator": "loader = DataLoader(x for x in DS)",
    "heir of an heir": (
        "class One(DataLoader):\n    def __init__(self, size):\n"
        "        super().__init__(DS, size)\n"
        "class Own(One):\n    def __init__(self):\n        super().__init__(2)\nloader = Own()"
    ),
    "heir with two ways": (
        "class Own(DataLoader):\n    def __init__(self, size):\n        if size:\n"
        "            super().__init__(DS, size)\n        else:\n            super().__init__(DS)\n"
        "loader = Own(2)"
    ),
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
    [facts] = recording.notes(Topic.LOADER)
    return entry(recording, facts, path.parent), names


def entry(recording: Recording, facts: dict[str, Any], cwd: Path) -> Loader:
    places = {k: json.loads(x) for k, (topic, x) in recording.texts.items() if topic is Topic.SITE}
    sites = Sites(places, str(cwd))
    known = {"kind": facts["kind"], "call": call_of(facts, sites), "built_by": facts["built_by"]}
    return summaries.loader(sites[facts["site"]], **known)


def apply(how: str, found: bytes, folder: Path) -> None:
    command = {
        "git": ["git", "apply", "-p1", "-"],
        "patch": ["patch", "-p1", "--no-backup-if-mismatch"],
    }
    if shutil.which(how) is None:
        pytest.skip(f"there is no {how}")
    subprocess.run(command[how], input=found, cwd=folder, check=True, capture_output=True)


def patched(
    loader: Loader, folder: Path, how: str = "git", change: dict[str, Any] = WORKERS
) -> None:
    """Changes the script on the disk.

    Raises:
        NotMechanical: If there is no patch.
    """
    finding = summaries.finding(site=loader.site, change=change, evidence={LOADER_ID: loader.id})
    changes = changes_of(finding, loader, lambda path: (folder / path).read_text(encoding="utf-8"))
    for path, edits in changes.edits.items():
        source = SourceText.of((folder / path).read_bytes())
        apply(how, diff(path, source, edits), folder)


def settings(names: dict[str, Any]) -> dict[str, Any]:
    return {
        name: (one.num_workers, one.persistent_workers)
        for name, one in names.items()
        if isinstance(one, DataLoader)
    }


def script(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "train.py"
    path.write_text(f"{HEAD}{text}\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("how", ["git", "patch"])
@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in PATCHED.items()])
def test_a_patched_script_gives_its_loader_workers(
    text: str, how: str, recorder: Recorder, tmp_path: Path
) -> None:
    path = script(tmp_path, text)
    loader, before = recorded(recorder, path)
    patched(loader, tmp_path, how)
    after = ran(path)
    assert settings(after) == {**settings(before), "loader": (1, True)}
    assert after["loader"].batch_size == before["loader"].batch_size


@pytest.mark.parametrize("text", [*PATCHED.values(), *ONE_OF_SEVERAL.values()])
def test_a_recording_that_does_not_tell_the_place_harms_nothing(
    text: str, recorder: Recorder, tmp_path: Path
) -> None:
    path = script(tmp_path, text)
    loader, before = recorded(recorder, path)
    assert loader.call is not None
    nameless = replace(loader, call=replace(loader.call, ends_at=None))
    if text in ONE_OF_SEVERAL.values() or "if DS else" in text:
        with pytest.raises(NotMechanical, match="2 calls of DataLoader, and it is not known which"):
            patched(nameless, tmp_path)
        return
    patched(nameless, tmp_path)
    assert settings(ran(path)) == {**settings(before), "loader": (1, True)}


@pytest.mark.skipif(not PLACES_KNOWN, reason="Python does not tell the place in a line")
@pytest.mark.parametrize("text", ONE_OF_SEVERAL.values(), ids=ONE_OF_SEVERAL)
def test_of_several_loaders_of_a_line_the_right_one_is_changed(
    text: str, recorder: Recorder, tmp_path: Path
) -> None:
    path = script(tmp_path, text)
    loader, before = recorded(recorder, path)
    patched(loader, tmp_path)
    assert settings(ran(path)) == {**settings(before), "loader": (1, True)}


@pytest.mark.parametrize("text", UNPATCHED.values(), ids=UNPATCHED)
def test_what_takes_a_decision_is_left_alone(text: str, recorder: Recorder, tmp_path: Path) -> None:
    path = script(tmp_path, text)
    if "x for x in DS" in text:  # torch itself would refuse it
        loader = summaries.loader(f"train.py:{len(HEAD.splitlines()) + 1}")
    else:
        loader, _ = recorded(recorder, path)
    before = path.read_text()
    with pytest.raises(NotMechanical) as told:
        patched(loader, tmp_path)
    assert path.read_text() == before
    assert len(str(told.value)) > 20
    assert "<" not in str(told.value)


WITH_WORKERS = {
    "by name": "loader = DataLoader(DS, num_workers=1)",
    "by position": "loader = DataLoader(DS, 2, True, None, None, 1)",
    "all that is for workers": (
        "loader = DataLoader(\n    DS,\n    num_workers=1,\n    persistent_workers=True,\n"
        '    prefetch_factor=4,\n    timeout=5,\n    multiprocessing_context="fork",\n)'
    ),
    "context by position": (
        "loader = DataLoader(\n    DS, 2, True, None, None, 1, None, False, False, 5, None,\n"
        "    'fork',\n    prefetch_factor=4\n)"
    ),
    "literal": 'loader = DataLoader(DS, **{"num_workers": 1, "prefetch_factor": 4})',
}


@pytest.mark.parametrize("text", WITH_WORKERS.values(), ids=WITH_WORKERS)
def test_a_patched_script_has_its_loader_do_without_workers(
    text: str, recorder: Recorder, tmp_path: Path
) -> None:
    path = script(tmp_path, text)
    loader, _ = recorded(recorder, path)
    patched(loader, tmp_path, change={"num_workers": 0})
    assert settings(ran(path)) == {"loader": (0, False)}


def test_a_class_of_its_own_is_not_left_without_workers(recorder: Recorder, tmp_path: Path) -> None:
    text = (
        "class Own(DataLoader):\n    def __init__(self, num_workers):\n        super().__init__(\n"
        "            DS, num_workers=num_workers, prefetch_factor=4\n        )\nloader = Own(1)"
    )
    loader, _ = recorded(recorder, script(tmp_path, text))
    with pytest.raises(NotMechanical, match="Own has a constructor of its own"):
        patched(loader, tmp_path, change={"num_workers": 0})


def test_of_a_loader_that_the_standard_library_makes_no_place_is_told(
    recorder: Recorder, tmp_path: Path
) -> None:
    text = "make = functools.singledispatch(DataLoader)\nloader = make(DS)"
    loader, _ = recorded(recorder, script(tmp_path, text))
    assert loader.call is not None
    assert loader.call.ends_at is None
    with pytest.raises(NotMechanical, match="holds no call of DataLoader"):
        patched(loader, tmp_path)
