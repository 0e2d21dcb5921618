"""Which code counts as the user's, and which as a library's."""

from __future__ import annotations

import json
import sysconfig
from pathlib import Path
from types import CodeType

import pytest
import torch

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
