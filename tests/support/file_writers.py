"""Changes files in many ways: `python file_writers.py PLACE ...` in each of the places.

Each place holds `kept.txt`, `removed.txt`, `renamed.txt`, `link` (to kept.txt), `tree/leaf.txt` and
`base.sqlite`. Prints a line for each way:
`done WAY`, `failed WAY: error` or `absent WAY` where a package or program is missing.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import mmap
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

WRITE = "open({!r}, 'a').write('by a trial')"


def _write(path: str) -> None:
    with open(path, "a") as file:
        file.write("by a trial")


def _plain(place: Path) -> None:
    (place / "kept.txt").write_text("by a trial")
    (place / "removed.txt").unlink()
    (place / "renamed.txt").rename(place / "new_name.txt")
    (place / "created.txt").write_text("by a trial")
    (place / "link").write_text("by a trial")
    (place / "tree" / "leaf.txt").chmod(0o600)
    os.utime(place / "tree" / "leaf.txt", (0, 0))
    shutil.rmtree(place / "tree")
    with open(place / "base.sqlite", "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[-1:] = b"x"


def _child(place: Path, *, environment: dict[str, str] | None, options: tuple[str, ...]) -> None:
    code = WRITE.format(str(place / "kept.txt"))
    subprocess.run([sys.executable, *options, "-c", code], env=environment, check=True)


def _shell(place: Path) -> None:
    os.system(f"echo by a trial >> '{place}/kept.txt'")
    os.popen(f"rm -f '{place}/link'").read()


def _daemon(place: Path) -> None:
    command = f"(setsid sh -c 'echo late >> \"{place}/kept.txt\"' &) "
    subprocess.run(["sh", "-c", command], check=True)


def _threads(place: Path) -> None:
    run = functools.partial(subprocess.run, check=True)
    command = ["sh", "-c", f"echo by a thread >> '{place}/kept.txt'"]
    thread = threading.Thread(target=run, args=(command,))
    thread.start()
    thread.join()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(getattr(os, "sys" + "tem"), command[2]).result()
    with ProcessPoolExecutor(1) as pool:
        pool.submit(_write, str(place / "kept.txt")).result()
    atexit.register(os.system, command[2])


def _c_library(place: Path) -> None:
    libc = ctypes.CDLL(None)
    descriptor = libc.open(os.fsencode(place / "kept.txt"), os.O_WRONLY | os.O_TRUNC)
    libc.write(descriptor, b"by C", 4)
    libc.close(descriptor)
    libc.unlink(os.fsencode(place / "link"))


def _sqlite(place: Path) -> None:
    base = sqlite3.connect(":memory:")
    names = (str(place / "attached.sqlite"), str(place / "vacuumed.sqlite"))
    base.execute(f"ATTACH DATABASE '{names[0]}' AS other")
    base.execute("CREATE TABLE other.numbers (x)")
    base.commit()
    base.execute(f"VACUUM INTO '{names[1]}'")
    base.close()


def _descriptors(place: Path) -> None:
    directory = os.open(place, os.O_RDONLY)
    file = os.open("kept.txt", os.O_WRONLY | os.O_APPEND, dir_fd=directory)
    os.write(file, b"by a trial")
    os.link("kept.txt", "hard_link", src_dir_fd=directory, dst_dir_fd=directory)
    os.symlink("kept.txt", "soft_link", dir_fd=directory)
    os.setxattr(place / "kept.txt", b"user.trial", b"1")
    with tempfile.NamedTemporaryFile(dir=place, delete=False) as made:
        made.write(b"by a trial")
    os.truncate(place / "kept.txt", 1)


WAYS: dict[str, Callable[[Path], None]] = {
    "child": functools.partial(_child, environment=None, options=()),
    "child without environment": functools.partial(_child, environment={}, options=()),
    "isolated child": functools.partial(_child, environment=None, options=("-I", "-S")),
    "shell": _shell,
    "daemon": _daemon,
    "threads": _threads,
    "C library": _c_library,
    "sqlite": _sqlite,
    "descriptors": _descriptors,
    "plain": _plain,
}


def change_all(places: list[Path]) -> None:
    os.environ.pop("PYTHONPATH", None)
    for place in places:
        for name, way in WAYS.items():
            try:
                way(place)
            except (ImportError, FileNotFoundError) as error:
                print(f"absent {name}: {error}", flush=True)
            except Exception as error:
                print(f"failed {name} in {place}: {error!r}", flush=True)
            else:
                print(f"done {name}", flush=True)


def make_place(place: Path) -> None:
    """Makes a place as it is before."""
    place.mkdir(parents=True, exist_ok=True)
    for name in ("kept", "removed", "renamed"):
        (place / f"{name}.txt").write_text("before")
    (place / "link").symlink_to("kept.txt")
    (place / "tree").mkdir()
    (place / "tree" / "leaf.txt").write_text("before")
    with contextlib.closing(sqlite3.connect(place / "base.sqlite")) as base:
        base.execute("CREATE TABLE numbers (x)")


if __name__ == "__main__":
    change_all([Path(word) for word in sys.argv[1:]])
