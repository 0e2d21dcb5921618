"""Overwrites WORK/kept.txt in a sandbox made by enter.py alone: `enter_alone.py ENTER PLACE`."""

from __future__ import annotations

import json
import os
import sys

helper, place = sys.argv[1:]
sys.path.insert(0, os.path.dirname(helper))
import enter  # type: ignore[import-not-found]  # noqa: E402

WRITE = """
import sys
with open("kept.txt", "w") as file: file.write("by a trial")
with open(sys.argv[1], "w") as file: file.write(open("kept.txt").read())
"""
work, record = f"{place}/work", f"{place}/record"
overlays = enter.directories_to_overlay(enter.mounts_now(), [work], knows_all_ids=enter.may_mount())
spec = {
    "overlays": overlays,
    "caches": [],
    "shared": f"{place}/shared",
    "memory_bytes": None,
    "scratch": f"{place}/scratch",
    "records": [record],
    "cwd": work,
    "parent": None,
}
python = [sys.executable, sys.executable, "-c", WRITE, f"{record}/record"]
os.execv(sys.executable, [sys.executable, "-I", "-S", helper, json.dumps(spec), *python])
