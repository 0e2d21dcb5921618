"""A script that does random things to a tree of files, and prints what it got and sees.

`python file_operations.py FIRST LAST`: in the directory of each seed, some way beneath the working
one, as links lead upwards. It is run plainly in one copy of the trees and contained over another:
both are to print the same.
"""

from __future__ import annotations

import glob
import os
import random
import shutil
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

OPERATIONS = 120
NAMES = ("a", "b", "c", "d.txt", "e\u00e9")
LONG_AGO_NS = 10**18
BENEATH = Path("1", "2", "3", "4")
OPEN_FLAGS = (
    os.O_RDONLY,
    os.O_WRONLY,
    os.O_RDWR,
    os.O_WRONLY | os.O_CREAT,
    os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
    os.O_RDWR | os.O_CREAT | os.O_EXCL,
    os.O_WRONLY | os.O_APPEND,
    os.O_RDONLY | os.O_CREAT,
    os.O_RDWR | os.O_NOFOLLOW,
    os.O_RDONLY | os.O_TRUNC,
    os.O_RDONLY | os.O_DIRECTORY,
)


def plant(top: Path, seed: int) -> None:
    """Makes the tree of a seed: files, directories, links to what is there and what is not."""
    draw = random.Random(seed)
    root = top / BENEATH / str(seed)
    root.mkdir(parents=True)
    places = [root]
    for number in range(draw.randrange(4, 14)):
        path = draw.choice(places) / draw.choice(NAMES)
        if path.exists() or path.is_symlink():
            continue
        kind = draw.randrange(5)
        if kind < 2:
            path.mkdir(draw.choice((0o755, 0o700)))
            places.append(path)
        elif kind < 4:
            path.write_text(f"planted {number}\n" * draw.randrange(4))
            path.chmod(draw.choice((0o644, 0o600, 0o755)))
        else:
            path.symlink_to(_link_text(draw, root))
    for path in sorted(root.rglob("*"), reverse=True):
        os.utime(path, ns=(LONG_AGO_NS, LONG_AGO_NS), follow_symlinks=False)


def _link_text(draw: random.Random, root: Path) -> str:
    name = draw.choice(NAMES)
    return draw.choice((name, f"../{name}", ".", "..", str(root / name), f"{name}/{name}"))


class Actor:
    """Does what its seed says."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.top = os.getcwd()
        self.root = os.path.join(self.top, BENEATH, str(seed))
        os.chdir(self.root)

    def path(self) -> Any:
        """Returns some path in some form."""
        draw = self.draw
        words = [draw.choice(NAMES) for _ in range(draw.choice((1, 1, 2, 2, 3)))]
        if draw.random() < 0.08:
            words.insert(draw.randrange(len(words)), draw.choice((".", "..", "")))
        path = "/".join(words).lstrip("/")
        if ".." in words or draw.random() < 0.3:
            path = f"{self.root}/a/{path}" if ".." in words else f"{self.root}/{path}"
        form = draw.random()
        if form < 0.06:
            return path + "/"
        if form < 0.2:
            return Path(path)
        if form < 0.26:
            return os.fsencode(path)
        return path

    def text(self) -> str:
        return os.fsdecode(self.path())

    def act(self) -> tuple[str, Any]:
        names = sorted(name for name in dir(self) if name.startswith("do_"))
        name = self.draw.choice(names)
        action: Callable[[], Any] = getattr(self, name)
        try:
            return name, action()
        except OSError as error:
            names_told = [self.shown(error.filename), self.shown(error.filename2)]
            return name, (type(error).__name__, error.errno, names_told)
        except ValueError as error:
            return name, (type(error).__name__, self.shown(str(error)))
        except shutil.Error as error:
            return name, self.shown(str(error))

    def shown(self, value: Any) -> Any:
        if isinstance(value, bytes):
            return ("bytes", self.shown(os.fsdecode(value)))
        if isinstance(value, (str, Path)):
            return (
                type(value).__name__,
                str(value).replace(self.root, "ROOT").replace(self.top, "TOP"),
            )
        return value

    def do_write(self) -> Any:
        path, mode = self.path(), self.draw.choice(("w", "a", "x", "r+", "w+", "a+", "wb", "ab"))
        with open(path, mode) as file:
            text = f"written {self.draw.randrange(100)}\n"
            file.write(text.encode() if "b" in mode else text)
            file.seek(0)
            return mode, self.shown(file.name), file.read() if "+" in mode else None, file.tell()

    def do_read(self) -> Any:
        path = self.path()
        with open(path, self.draw.choice(("r", "rb"))) as file:
            return self.shown(path), self.shown(file.name), file.read()

    def do_open(self) -> Any:
        path, flags = self.path(), self.draw.choice(OPEN_FLAGS)
        descriptor = os.open(path, flags, 0o640)
        try:
            if flags & (os.O_WRONLY | os.O_RDWR):
                os.write(descriptor, b"12345")
            status = os.fstat(descriptor)
            return flags, stat.S_IFMT(status.st_mode), _size(status)
        finally:
            os.close(descriptor)

    def do_path_open(self) -> Any:
        path = Path(self.text())
        path.write_text("by pathlib")
        return path.read_text()

    def do_mkdir(self) -> Any:
        return os.mkdir(self.path(), 0o750)

    def do_makedirs(self) -> Any:
        return os.makedirs(self.path(), exist_ok=self.draw.random() < 0.5)

    def do_path_mkdir(self) -> Any:
        return Path(self.text()).mkdir(parents=True, exist_ok=True)

    def do_remove(self) -> Any:
        return self.draw.choice((os.remove, os.unlink))(self.path())

    def do_path_unlink(self) -> Any:
        return Path(self.text()).unlink(missing_ok=True)

    def do_rmdir(self) -> Any:
        return os.rmdir(self.path())

    def do_removedirs(self) -> Any:
        return os.removedirs(os.path.join(self.root, "a", "b", "c"))

    def do_rename(self) -> Any:
        return self.draw.choice((os.rename, os.replace))(self.path(), self.path())

    def do_rename_back(self) -> Any:
        one, other = self.text(), self.text()
        os.rename(one, other)
        return os.rename(other, one)

    def do_path_replace(self) -> Any:
        return self.shown(Path(self.text()).replace(self.text()))

    def do_move(self) -> Any:
        return self.shown(shutil.move(self.text(), self.text()))

    def do_atomic_save(self) -> Any:
        path = self.text().rstrip("/")
        with open(path + ".tmp", "w") as file:
            file.write("saved")
        os.replace(path + ".tmp", path)
        return sorted(os.listdir(os.path.dirname(path) or "."))

    def do_symlink(self) -> Any:
        target = self.draw.choice((self.text(), self.draw.choice(NAMES), "..", "."))
        return os.symlink(target, self.path())

    def do_latest_link(self) -> Any:
        if os.path.islink("latest"):
            os.remove("latest")
        return os.symlink(self.draw.choice(NAMES), "latest")

    def do_hard_link(self) -> Any:
        return os.link(self.path(), self.path())

    def do_readlink(self) -> Any:
        return self.shown(os.readlink(self.path()))

    def do_truncate(self) -> Any:
        return os.truncate(self.path(), self.draw.randrange(20))

    def do_chmod(self) -> Any:
        return os.chmod(self.path(), self.draw.choice((0o600, 0o711, 0o644)))

    def do_utime(self) -> Any:
        return os.utime(self.path(), (1, self.draw.randrange(10**6)))

    def do_touch(self) -> Any:
        return Path(self.text()).touch(exist_ok=self.draw.random() < 0.5)

    def do_stat(self) -> Any:
        path = self.path()
        follow = self.draw.random() < 0.6
        return self.shown(path), _facts(os.stat(path, follow_symlinks=follow))

    def do_lstat(self) -> Any:
        return _facts(os.lstat(self.path()))

    def do_questions(self) -> Any:
        path = self.path()
        questions = (
            os.path.exists,
            os.path.lexists,
            os.path.isdir,
            os.path.isfile,
            os.path.islink,
            lambda path: os.access(path, os.R_OK),
            lambda path: os.access(path, os.W_OK),
            lambda path: Path(os.fsdecode(path)).exists(),
            lambda path: Path(os.fsdecode(path)).is_dir(),
        )
        return self.shown(path), [question(path) for question in questions]

    def do_resolve(self) -> Any:
        path = self.text()
        return self.shown(os.path.realpath(path)), self.shown(Path(path).absolute())

    def do_samefile(self) -> Any:
        return os.path.samefile(self.path(), self.path())

    def do_listdir(self) -> Any:
        return sorted(map(repr, os.listdir(self.path())))

    def do_scandir(self) -> Any:
        with os.scandir(self.path()) as entries:
            return sorted(
                (
                    repr(entry.name),
                    repr(self.shown(entry.path)),
                    entry.is_dir(),
                    entry.is_file(),
                    entry.is_symlink(),
                    entry.is_dir(follow_symlinks=False),
                    _facts(entry.stat(follow_symlinks=False)),
                    entry.inode() == entry.stat(follow_symlinks=False).st_ino,
                )
                for entry in entries
            )

    def do_listdir_by_descriptor(self) -> Any:
        descriptor = os.open(self.path(), os.O_RDONLY)
        try:
            with os.scandir(descriptor) as entries:
                return sorted(os.listdir(descriptor)), sorted(entry.path for entry in entries)
        finally:
            os.close(descriptor)

    def do_relative_to_descriptor(self) -> Any:
        descriptor = os.open(self.path(), os.O_RDONLY)
        try:
            name = self.draw.choice(NAMES)
            made = os.open(name, os.O_WRONLY | os.O_CREAT, 0o600, dir_fd=descriptor)
            os.write(made, b"made beside")
            os.close(made)
            os.rename(name, "renamed", src_dir_fd=descriptor, dst_dir_fd=descriptor)
            return _facts(os.stat("renamed", dir_fd=descriptor))
        finally:
            os.close(descriptor)

    def do_walk(self) -> Any:
        return sorted(
            (self.shown(top), sorted(folders), sorted(files))
            for top, folders, files in os.walk(self.root, followlinks=False)
        )

    def do_fwalk(self) -> Any:
        return sorted(
            (self.shown(top), sorted(folders), sorted(files))
            for top, folders, files, _ in os.fwalk(self.root)
        )

    def do_glob(self) -> Any:
        patterns = ("*", "**", "a/*", "*/*.txt", "[ab]/**")
        pattern = self.draw.choice(patterns)
        found = sorted(glob.glob(pattern))  # a recursive one follows links, in circles
        return pattern, found, sorted(map(str, Path().glob(pattern)))

    def do_iterdir(self) -> Any:
        return sorted(map(repr, map(self.shown, Path(self.text()).iterdir())))

    def do_rmtree(self) -> Any:
        return shutil.rmtree(self.path(), ignore_errors=self.draw.random() < 0.5)

    def do_copy(self) -> Any:
        copy = self.draw.choice((shutil.copyfile, shutil.copy, shutil.copy2))
        return self.shown(copy(self.text(), self.text()))

    def do_copytree(self) -> Any:
        existing = self.draw.random() < 0.5
        source = self.draw.choice(("a", "b"))
        target = os.path.join(self.root, f"copy{self.draw.randrange(3)}")
        if os.path.realpath(target).startswith(os.path.realpath(source)):
            return None  # it would not end
        return self.shown(shutil.copytree(source, target, symlinks=True, dirs_exist_ok=existing))

    def do_chdir(self) -> Any:
        os.chdir(self.draw.choice((self.path(), self.root)))
        here = self.shown(os.getcwd())
        if not os.path.isdir("."):
            os.chdir(self.root)
        return here, self.shown(os.getcwdb()), sorted(os.listdir())

    def do_go_home(self) -> Any:
        return os.chdir(self.root)

    def see(self) -> list[Any]:
        """Returns all there is to be seen."""
        os.chdir(self.root)
        seen = []
        for top, folders, files in os.walk("."):
            for name in sorted((*folders, *files)):
                path = os.path.join(top, name)
                status = os.lstat(path)
                facts: Any = _facts(status)
                if stat.S_ISLNK(status.st_mode):
                    facts = self.shown(os.readlink(path))
                elif stat.S_ISREG(status.st_mode):
                    with open(path, "rb") as file:
                        facts = facts, file.read()
                seen.append((path, facts))
        return sorted(seen, key=lambda one: str(one[0]))


def _size(status: os.stat_result) -> int | None:
    """Directories have sizes of their own on every file system."""
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _facts(status: os.stat_result) -> Any:
    time = status.st_mtime_ns if status.st_mtime_ns <= LONG_AGO_NS else "now"
    is_directory = stat.S_ISDIR(status.st_mode)
    links = None if is_directory else status.st_nlink
    return stat.filemode(status.st_mode), _size(status), links, None if is_directory else time


def main() -> None:
    top = os.getcwd()
    for seed in range(int(sys.argv[1]), int(sys.argv[2])):
        os.chdir(top)
        if not os.path.isdir(BENEATH / str(seed)):
            print(seed, "is gone")  # an earlier one came there by a link
            continue
        actor = Actor(seed)
        print("seed", seed, actor.see())
        for number in range(OPERATIONS):
            print(seed, number, *actor.act())
        print("seen", seed, actor.see())


if __name__ == "__main__":
    main()
