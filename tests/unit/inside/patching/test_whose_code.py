"""Which code counts as the user's, and which as a library's."""

from __future__ import annotations

import json
import sys
import sysconfig
from pathlib import Path
from types import CodeType

import pytest
import torch

from trainprof.inside.patching import call_site
from trainprof.inside.patching.call_site import CallSites
from trainprof.inside.stacks.copied_frames import CopiedFrame
from trainprof.record.event_log import EventLog

LIBRARY = sysconfig.get_path("purelib")


def code_in(file: str) -> CodeType:
    return compile("pass", file, "exec")


@pytest.mark.parametrize(
    ("file", "is_users", "package"),
    [
        ("/project/train.py", True, None),
        ("train.py", True, None),
        ("/home/me/torch/train.py", True, None),
        (f"{LIBRARY}/graphs/conv.py", False, "graphs"),
        (f"{LIBRARY}/alone.py", False, "alone"),
        (torch.__file__, False, "torch"),
        ("/tmp/torch_geometric.nn.conv.gcn_conv_GCNConv_propagate_a1.py", False, "torch_geometric"),
        ("/tmp/torch_geometric_mine.py", True, None),
        ("<stdin>", True, None),
        ("<frozen importlib>", False, None),
        ("<string>", False, None),
        ("<attrs generated init Sample>", False, None),
    ],
)
def test_whose_it_is_is_told_by_its_file(
    tmp_path: Path, file: str, is_users: bool, package: str | None
) -> None:
    sites = CallSites(EventLog(str(tmp_path), role="script"), "/project")
    assert sites.is_user_code(code_in(file)) is is_users
    assert sites.package_of(code_in(file)) == package


@pytest.mark.parametrize(
    ("files", "calls"),
    [
        (["PIL/a", "PIL/b", "vision/a", "vision/b"], ["vision/b", "PIL/b"]),  # each where entered
        (["PIL/a", "torch", "PIL/b"], ["PIL/b"]),
        (["torch"], []),
        ([], []),
    ],
)
def test_a_line_has_the_functions_by_which_it_gets_into_libraries(
    tmp_path: Path, files: list[str], calls: list[str]
) -> None:
    sites = CallSites(EventLog(str(tmp_path), role="script"), "/project")
    stack = [torch.__file__ if x == "torch" else f"{LIBRARY}/{x}.py" for x in files]
    frame = CopiedFrame(code_in(f"{LIBRARY}/loop/run.py"), 0, None)
    for file in ["train.py", *reversed(stack)]:
        frame = CopiedFrame(code_in(file), 0, frame)
    texts = [sites._log.text_of(number) or "" for number in sites.library_calls(frame)]
    assert [json.loads(text)[0] for text in texts] == [f"{LIBRARY}/{x}.py" for x in calls]


@pytest.mark.parametrize(
    ("words", "is_users"),
    [
        (["python", "train.py"], False),
        (["python", "-uc", "import train"], True),
        (["python", "-c", "from multiprocessing.spawn import spawn_main; spawn_main()"], False),
        (["python", "-c", "from multiprocessing.forkserver import main; main()"], False),
    ],
)
def test_executed_text_is_the_users_where_it_is_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], is_users: bool
) -> None:
    monkeypatch.setattr("sys.orig_argv", words)
    monkeypatch.setattr("sys.argv", ["-c" if len(words) > 2 else words[1]])
    sites = CallSites(EventLog(str(tmp_path), role="script"), "/project")
    assert sites.is_user_code(code_in("<string>")) is is_users


def test_the_line_that_executes_text_is_its_place(tmp_path: Path) -> None:
    log = EventLog(str(tmp_path), role="script")
    sites = CallSites(log, "/project")
    called = {"find": sites.find, "frame": sys._getframe}
    exec("number = find(frame())", called)
    assert json.loads(log.text_of(called["number"]))[0] == __file__


SCRIPT, IMPORT = "/project/train.py", "<frozen importlib._bootstrap>"
GROUPS = f"{LIBRARY}/groups/sampler.py"
PYTHONS_OWN = sysconfig.get_path("stdlib")


@pytest.mark.parametrize(
    ("files", "imported", "caller"),
    [
        ([SCRIPT], None, None),
        ([SCRIPT, IMPORT], "", None),
        ([SCRIPT, IMPORT, call_site.__file__, torch.__file__, IMPORT, GROUPS], "torch", None),
        ([SCRIPT, GROUPS, IMPORT, f"{LIBRARY}/lazy.py"], "lazy", None),
        ([SCRIPT, IMPORT, f"{PYTHONS_OWN}/asyncio/base.py"], "standard library", None),
        ([SCRIPT, IMPORT, "/project/data.py", IMPORT, GROUPS], "groups", None),
        ([SCRIPT, IMPORT, "/project/data.py"], None, None),
        ([SCRIPT, GROUPS, torch.__file__, call_site.__file__, SCRIPT], None, "groups.run"),
        ([SCRIPT, torch.__file__, SCRIPT, GROUPS], None, "torch.run"),
        (["<frozen runpy>", GROUPS, torch.__file__], None, "groups.run"),
        ([f"{PYTHONS_OWN}/threading.py"], None, "threading.run"),
        ([GROUPS, IMPORT, torch.__file__], "torch", None),
    ],
)
def test_what_libraries_do_around_the_users_innermost_frame(
    tmp_path: Path, files: list[str], imported: str | None, caller: str | None
) -> None:
    """Files of a stack from the outermost frame on."""
    sites = CallSites(EventLog(str(tmp_path), role="script"), "/project")
    frame = None
    for file in files:
        code = compile("def run(): pass", file, "exec").co_consts[0]
        frame = CopiedFrame(code, -1, frame)
    assert sites.libraries(frame) == (imported, caller)
