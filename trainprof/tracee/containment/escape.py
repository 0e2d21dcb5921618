"""Sees what a trial does that its scratch directory cannot hold, and refuses writes to files.

An audit hook: Python tells it of files opened and changed by whatever way, of programs started and
of connections made. It cannot be taken back, and lives as long as the process.
"""

from __future__ import annotations

import errno
import os
import posix
import stat
import sys
from _thread import get_ident
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, Final

from trainprof.record.c_functions import CHANGING_FILES, is_c_library
from trainprof.record.names import ENV_DIRECTORY
from trainprof.record.python_options import is_apart
from trainprof.tracee.containment.functions import FileFunctions
from trainprof.tracee.containment.guard import path_text
from trainprof.tracee.containment.tree import MergedTree, NotAPath
from trainprof.tracee.containment.zones import is_free

ENV_PYTHONPATH: Final = "PYTHONPATH"
# Where on it our sitecustomize lies.
OUR_SITE: Final = os.path.join("trainprof", "tracee", "site")
MAX_ENTRIES: Final = 20
MAX_TEXT: Final = 120
WRITING: Final = posix.O_WRONLY | posix.O_RDWR | posix.O_CREAT | posix.O_TRUNC | posix.O_APPEND
# As of open(2): neither reads nor writes; Python 3.10 has no name for it.
O_PATH: Final = 0o10000000
# The import system's own: it caches what it compiles.
BYTECODE: Final = "__pycache__"
# Look at the machine, or compile into a cache.
HARMLESS: Final = frozenset(
    (
        *("arch", "as", "c++", "cc", "clang", "clang++", "df", "file", "free", "g++", "gcc"),
        *("getconf", "hostname", "ld", "ldconfig", "ldd", "lscpu", "lspci", "nproc", "numactl"),
        *(
            "nvcc",
            "nvidia-smi",
            "objdump",
            "openssl",
            "ps",
            "ptxas",
            "rocm-smi",
            "rocminfo",
            "uname",
            "which",
        ),
    )
)
READING_GIT: Final = frozenset(
    (
        *("branch", "cat-file", "config", "describe", "diff", "log", "ls-files", "remote"),
        *("rev-list", "rev-parse", "show", "status", "symbolic-ref", "version"),
    )
)
LOCAL_HOSTS: Final = ("127.", "::1", "localhost", "0.0.0.0", "::ffff:127.")
# Event: how many of its first arguments are paths that it changes; and which of them are
# directories' descriptors that those start from.
CHANGING: Final = {
    "os.remove": ((0, 1),),
    "os.rmdir": ((0, 1),),
    "os.mkdir": ((0, 2),),
    "os.rename": ((0, 2), (1, 3)),
    "os.link": ((1, 3),),
    "os.symlink": ((1, 2),),
    "os.truncate": ((0, None),),
    "os.chmod": ((0, 2),),
    "os.chown": ((0, 3),),
    "os.utime": ((0, 3),),
    "os.setxattr": ((0, None),),
    "os.removexattr": ((0, None),),
}

Handler = Callable[[Sequence[Any]], None]


class Escapes:
    """What was seen to leave the scratch; each is told once, as soon as it is seen.

    Attributes:
        seen: What was told.
    """

    def __init__(
        self,
        tree: MergedTree,
        files: FileFunctions,
        scratch: str,
        *,
        tell: Callable[[str], None],
        is_user_file: Callable[[str], bool],
        report: Callable[[BaseException], None],
    ) -> None:
        """
        Args:
            tree: Which files are contained.
            files: Whose opening is contained, though its event names the script's path.
            scratch: The scratch directory.
            tell: Takes what was seen, in a few words.
            is_user_file: Whether code in a file is the user's.
            report: Takes a fault of ours.
        """
        self._tree = tree
        self._files = files
        self._scratch = scratch + os.sep
        self._tell = tell
        self._is_user_file = is_user_file
        self._report = report
        self._busy: set[int] = set()
        self.seen: set[str] = set()
        self._handlers: dict[str, Handler] = {
            "open": self._opened,
            "subprocess.Popen": self._started,
            "os.posix_spawn": self._started,
            "os.exec": self._started,
            "os.system": self._shell,
            "socket.connect": self._connected,
            "socket.sendto": self._connected,
            "socket.bind": self._bound,
            "sqlite3.connect": self._database,
            "ctypes.dlsym": self._looked_up,
        }
        for event, paths in CHANGING.items():
            self._handlers[event] = self._changing(event, paths)

    def watch(self) -> None:
        handlers, busy = self._handlers, self._busy

        def hook(event: str, args: Sequence[Any]) -> None:
            handler = handlers.get(event)
            if handler is None or get_ident() in busy:
                return
            self._judge(event, handler, args)

        sys.addaudithook(hook)

    def _judge(self, event: str, handler: Handler, args: Sequence[Any]) -> None:
        """Raises only what refuses a write."""
        thread = get_ident()
        self._busy.add(thread)
        try:
            handler(args)
        except OSError:
            raise
        except Exception as error:
            self._report(error)
            if event in CHANGING or (event == "open" and _writes(args)):
                raise self._refusal(args[0]) from None
        finally:
            self._busy.discard(thread)

    def _opened(self, args: Sequence[Any]) -> None:
        path = args[0]
        announced = self._files.announced.pop(get_ident(), None)
        if not _writes(args) or (announced is not None and announced == path):
            return
        self._check("open", path, None, opens=True)

    def _changing(self, event: str, places: tuple[tuple[int, int | None], ...]) -> Handler:
        def check(args: Sequence[Any]) -> None:
            for place, descriptor in places:
                dir_fd = args[descriptor] if descriptor is not None else None
                self._check(event, args[place], dir_fd, opens=False)

        return check

    def _check(self, event: str, path: Any, dir_fd: Any, *, opens: bool) -> None:
        """Refuses what would change a real file that is the user's."""
        if isinstance(path, int):
            if opens:
                return
            path = posix.readlink(f"/proc/self/fd/{path}")
            if not path.startswith(os.sep):
                return  # a pipe or a socket
        try:
            text = path_text(path)
        except NotAPath:
            return  # the system refuses it
        if text.startswith(self._scratch) or BYTECODE in text:
            return
        if dir_fd is not None and dir_fd >= 0 and not text.startswith(os.sep):
            text = f"{posix.readlink(f'/proc/self/fd/{dir_fd}')}/{text}"
        real = _real_path(text, follow=opens)
        if real is None or real.startswith(self._scratch) or BYTECODE in real:
            return
        if is_free(real, self._tree.index.roots):
            return
        if opens and _is_special(real):
            return
        self._note(f"{event}: {text}")
        raise self._refusal(path)

    def _refusal(self, path: Any) -> OSError:
        shown = path if isinstance(path, (str, bytes, int)) else str(path)
        return OSError(errno.EROFS, "trainprof keeps a trial from writing there", shown)

    def _started(self, args: Sequence[Any]) -> None:
        executable, words = args[0], args[1]
        environment = args[3] if len(args) > 3 else args[2] if len(args) > 2 else None
        words = [os.fsdecode(word) for word in _words(words)]
        program = os.path.basename(os.fsdecode(executable) if executable else words[0])
        if _is_harmless(program, words) or _is_contained_python(program, words, environment):
            return
        if program in ("sh", "bash", "dash", "zsh") and words[1:2] == ["-c"]:
            self._shell(words[2:3])
            return
        self._note(f"subprocess: {program}")

    def _shell(self, args: Sequence[Any]) -> None:
        words = os.fsdecode(args[0]).split() if args else []
        if not words or _is_harmless(os.path.basename(words[0]), words):
            return
        self._note(f"shell command: {' '.join(words)[:MAX_TEXT]}")

    def _connected(self, args: Sequence[Any]) -> None:
        address = args[1]
        if not isinstance(address, tuple) or len(address) < 2:
            return  # a local socket
        host = str(address[0])
        known = (os.environ.get("MASTER_ADDR"), posix.uname().nodename)
        if host in known or host.startswith(LOCAL_HOSTS):
            return
        self._note(f"network: {host}:{address[1]}")

    def _bound(self, args: Sequence[Any]) -> None:
        address = args[1]
        if isinstance(address, (str, bytes)) and address[:1] not in ("\0", b"\0", "", b""):
            path = _real_path(os.fsdecode(address), follow=False)
            if path is not None and not is_free(path, self._tree.index.roots):
                self._note(f"socket: {path}")

    def _database(self, args: Sequence[Any]) -> None:
        try:
            text = path_text(args[0])
        except NotAPath:
            return
        if text in (":memory:", "") or text.startswith("file:"):
            return
        self._check("sqlite3.connect", text, None, opens=True)

    def _looked_up(self, args: Sequence[Any]) -> None:
        """Tells of a function that ctypes was asked for: what it is called with nobody hears."""
        library, name = args[0], args[1]
        if isinstance(name, bytes):
            name = os.fsdecode(name)
        if name not in CHANGING_FILES or not is_c_library(getattr(library, "_name", "")):
            return
        if not _is_asked_by_us():
            self._note(f"C library: {name}")

    def _note(self, what: str) -> None:
        text = f"{what[:MAX_TEXT]}{self._place()}"
        if text not in self.seen and len(self.seen) < MAX_ENTRIES:
            self.seen.add(text)
            self._tell(text)

    def _place(self) -> str:
        """Returns the innermost line of the user's that led here, or nothing."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            file = frame.f_code.co_filename
            if self._is_user_file(file):
                return f" ({os.path.basename(file)}:{frame.f_lineno})"
            frame = frame.f_back
        return ""


def _is_asked_by_us() -> bool:
    """Whether code of ours asks ctypes: our threads read what the kernel tells of others."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        if module not in (__name__, "ctypes"):
            return module.partition(".")[0] == __name__.partition(".")[0]
        frame = frame.f_back
    return False


def _writes(args: Sequence[Any]) -> bool:
    flags = args[2]
    return isinstance(flags, int) and bool(flags & WRITING)


def _words(words: Any) -> list[Any]:
    return [words] if isinstance(words, (str, bytes, os.PathLike)) else list(words)


def _is_harmless(program: str, words: Sequence[str]) -> bool:
    if program == "git":
        return next((word for word in words[1:] if word[:1] != "-"), "version") in READING_GIT
    return program in HARMLESS


def _is_contained_python(program: str, words: Sequence[str], environment: Any) -> bool:
    """Whether it is a Python that keeps what it writes in the scratch as well."""
    if not program.startswith("python") or is_apart(words[1:]):
        return False
    environment = os.environ if environment is None else environment
    path = _value_of(ENV_PYTHONPATH, environment) or ""
    is_led_to_us = any(entry.endswith(OUR_SITE) for entry in path.split(os.pathsep))
    return is_led_to_us and _value_of(ENV_DIRECTORY, environment) is not None


def _value_of(name: str, environment: Any) -> str | None:
    """Returns a variable of an environment by text or by bytes."""
    for key in (name, os.fsencode(name)):
        try:
            value = environment.get(key)
        except TypeError:  # os.environ takes but one of them
            continue
        if value is not None:
            return os.fsdecode(value)
    return None


def _real_path(path: str, *, follow: bool) -> str | None:
    """Returns what the system makes of a path, None where it has no such directory.

    Args:
        path: Absolute, or relative to the process's own working directory.
        follow: A link that is its last name is followed.
    """
    bare = path.rstrip(os.sep) or os.sep
    head, slash, name = bare.rpartition(os.sep)
    if follow or name in ("", ".", ".."):
        found = _place_of(bare)
        if found is not None:
            return found
    directory = _place_of(head or slash or ".")
    return f"{directory.rstrip(os.sep)}{os.sep}{name}" if directory is not None else None


def _place_of(path: str) -> str | None:
    try:
        descriptor = posix.open(path, O_PATH | posix.O_CLOEXEC)
    except OSError:
        return None
    try:
        return posix.readlink(f"/proc/self/fd/{descriptor}")
    finally:
        posix.close(descriptor)


def _is_special(path: str) -> bool:
    """Whether it is there, and neither a file nor a directory."""
    try:
        mode = posix.stat(path).st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
