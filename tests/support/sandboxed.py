"""Runs file_writers.py in the sandbox of a trial: `python sandboxed.py DIRECTORY PLACE ...`.

Prints as JSON what has changed outside, what was recorded, and what the writers printed.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

from support.file_writers import make_place

from trainprof.tune.sandbox.sandbox import CACHES, NoSandbox, make_sandbox, remove_tree

# As of prctl(2).
PR_SET_CHILD_SUBREAPER = 36
WRITERS = Path(__file__).with_name("file_writers.py")


def digests(places: list[Path]) -> dict[str, str]:
    """Returns what each path below some places is: its kind, mode, target and SHA-256."""
    return {str(path): _digest(path) for place in places for path in sorted(place.rglob("*"))}


def _digest(path: Path) -> str:
    mode = path.lstat().st_mode
    if path.is_symlink():
        return f"{mode:o} -> {os.readlink(path)}"
    text = path.read_bytes() if path.is_file() else b""
    return f"{mode:o} {path.lstat().st_mtime_ns} {hashlib.sha256(text).hexdigest()}"


def main(directory: Path, places: list[Path]) -> dict[str, object]:
    for place in places:
        make_place(place)
    before = digests(places)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    directory.mkdir(parents=True, exist_ok=True)
    os.chdir(places[0])
    scratch, record = directory / "scratch" / "trial", directory / "record"
    for path in (scratch, record, scratch.parent / CACHES):
        path.mkdir(parents=True)
    try:
        sandbox = make_sandbox(directory, [str(place) for place in places])
    except NoSandbox as error:
        return {"reason": str(error)}
    recording = f"import sys; open({str(record / 'record')!r}, 'w').write('by a trial'); "
    code = f"{recording} sys.argv = {[str(WRITERS), *map(str, places)]}; "
    code += f"exec(compile(open({str(WRITERS)!r}).read(), 'writers', 'exec'))"
    python = (sys.executable, sys.executable, "-c", code)
    ended = subprocess.run((*sandbox.words(scratch, record), *python), capture_output=True)
    with contextlib.suppress(ChildProcessError):
        while True:  # daemons, too
            os.wait()
    after = digests(places)
    remove_tree(scratch)
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    return {
        "changed": sorted(changed),
        "status": ended.returncode,
        "output": ended.stdout.decode(),
        "errors": ended.stderr.decode(),
        "record": (record / "record").read_text(),
        "is_in_memory": sandbox.memory_bytes is not None,
        "overlays": sandbox.overlays,
        "is_scratch_gone": not scratch.exists(),
    }


if __name__ == "__main__":
    directory, *places = (Path(word) for word in sys.argv[1:])
    print(json.dumps(main(directory, places)))
