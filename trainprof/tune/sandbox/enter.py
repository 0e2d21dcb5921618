"""Enters the sandbox of a trial and executes a command in it: `python -I -S enter.py SPEC COMMAND`.

A separate program that imports only the standard library. It creates a mount namespace (without
root, inside a user namespace that keeps the user's ids), mounts an overlay on each writable
directory, and remounts the rest read-only. Linux only.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import stat
import sys
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from typing import Any

# From sched.h, mount.h, prctl.h and capability.h.
CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 32, 4096, 16384, 1 << 18
MS_NOATIME, MS_NODIRATIME, MS_RELATIME = 1 << 10, 1 << 11, 1 << 21
PR_SET_PDEATHSIG, PR_CAPBSET_DROP = 1, 24
CAPABILITY_VERSION_3 = 0x20080522
CAP_SYS_ADMIN, LAST_CAPABILITY = 21, 40
# Enough for root to train. Any other could leave the sandbox, or write to a device.
KEPT_CAPABILITIES = frozenset(
    (
        *(0, 1, 3, 4, 5, 6, 7, 8),  # ownership of files, kill, setuid, setgid, setpcap
        *(10, 12, 13, 14, 15, 23, 24),  # network, memory locks, nice, limits
    )
)
# Files of the kernel and of services, left alone.
KERNEL_PLACES = ("/dev", "/proc", "/sys", "/run")
# Large, and rarely writable without root: searched last.
SYSTEM_PLACES = ("/usr", "/etc", "/boot", "/lib", "/lib64", "/opt", "/snap", "/nix", "/var/lib")
# Source of our mounts in mountinfo.
SOURCE = "trainprof"
# As of GNU `env` and `timeout`; 125: the sandbox could not be made.
STATUS_NO_SANDBOX, STATUS_NOT_EXECUTABLE, STATUS_NOT_FOUND = 125, 126, 127
# An overlay takes 0.1 ms.
MOST_OVERLAYS = 300

_FLAGS = {
    "ro": MS_RDONLY,
    "nosuid": MS_NOSUID,
    "nodev": MS_NODEV,
    "noexec": MS_NOEXEC,
    "noatime": MS_NOATIME,
    "nodiratime": MS_NODIRATIME,
    "relatime": MS_RELATIME,
}
_LISTENING = 0x10000  # in the flags of /proc/net/unix


class Mount:
    """A line of mountinfo; `flags` as mount(2) takes them, `kind` of the file system."""

    def __init__(self, line: str) -> None:
        before, _, after = line.partition(" - ")
        fields, more = before.split(" "), after.split(" ")
        self.path = _unescaped(fields[4])
        self.flags = sum(_FLAGS.get(word, 0) for word in fields[5].split(","))
        self.kind = more[0]
        self.source = _unescaped(more[1]) if len(more) > 1 else ""

    @property
    def is_read_only(self) -> bool:
        return bool(self.flags & MS_RDONLY)


def mounts_now(path: str = "/proc/self/mountinfo") -> dict[str, Mount]:
    """Returns the mounts by path, in order; the topmost of several at one path."""
    mounts: dict[str, Mount] = {}
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            mount = Mount(line.rstrip("\n"))
            mounts.pop(mount.path, None)
            mounts[mount.path] = mount
    return mounts


def is_inside(path: str, place: str) -> bool:
    """Whether a path is `place` or inside it."""
    return path == place or path.startswith(place.rstrip("/") + "/")


def is_of_kernel(path: str) -> bool:
    return any(is_inside(path, place) for place in KERNEL_PLACES)


def may_mount() -> bool:
    """Whether this process may mount without a user namespace, in which other ids are unmapped."""
    with open("/proc/self/status", encoding="utf-8", errors="replace") as file:
        sets = [line for line in file if line.startswith("CapEff:")]
    return bool(sets) and bool(int(sets[0].split()[1], 16) >> CAP_SYS_ADMIN & 1)


def directories_to_overlay(
    mounts: Mapping[str, Mount],
    named: Collection[str] = (),
    *,
    knows_all_ids: bool,
    search_s: float = 1.0,
) -> list[str]:
    """Returns the directories to mount overlays on, which cover all writable ones, parents first.

    A directory with mounts inside is split: the kernel refuses an overlay on `/`, and in a user
    namespace on any directory with a mount below. It also refuses to copy up files of other users
    there, so each writable directory below such a one needs its own overlay.

    Args:
        mounts: From `mounts_now`.
        named: Absolute paths that a trial certainly uses, searched first.
        knows_all_ids: Whether copies may have any owner, as with `may_mount`.
        search_s: Time to search for writable directories of other users.
    """
    split = {above for path in mounts for above in _above(path)} | {"/"}
    leading = {above for path in named for above in (*_above(path), path)}
    roots = [
        mount.path for mount in mounts.values() if not mount.is_read_only and mount.kind != "autofs"
    ]
    waiting = deque((path, False) for path in roots if not is_of_kernel(path))
    last: deque[tuple[str, bool]] = deque()
    overlays: list[str] = []
    until = time.monotonic() + search_s
    while (waiting or last) and len(overlays) < MOST_OVERLAYS:
        queue = waiting or last
        place, is_covered = queue.popleft()
        is_late = time.monotonic() > until
        if is_late and place not in leading:
            continue
        try:
            status = os.lstat(place)
            if not stat.S_ISDIR(status.st_mode):
                continue
            can_write = place not in split and os.access(place, os.W_OK | os.X_OK)
            is_own = knows_all_ids or (status.st_uid, status.st_gid) == (os.geteuid(), os.getegid())
            if can_write and not (is_covered and is_own):
                overlays.append(place)
            if not can_write or not is_own:
                names = [
                    entry.name for entry in os.scandir(place) if entry.is_dir(follow_symlinks=False)
                ]
            else:
                names = [
                    os.path.basename(path) for path in leading if os.path.dirname(path) == place
                ]
        except OSError:
            continue
        for path in (os.path.join(place, name) for name in names):
            if path in mounts or is_of_kernel(path) or (knows_all_ids and can_write):
                continue
            if path in leading:
                waiting.appendleft((path, can_write))
            else:
                (last if path in SYSTEM_PLACES else queue).append((path, can_write))
    return overlays


def enter(spec: Mapping[str, Any]) -> None:
    """Moves this process into the sandbox; `spec` is from `sandbox.Sandbox.words`."""
    system = _System()
    system.unshare()
    system.mount(None, "/", None, MS_REC | MS_PRIVATE)
    mounts = mounts_now()
    # Paths later lead into overlays, so everything needed from outside is opened first.
    scratch: str = spec["scratch"]
    records = {path: _opened(path) for path in spec["records"]}
    sockets = {path: _opened(path) for path in _listening()}
    lowers = {path: _opened_directory(path) for path in spec["overlays"]}
    caches = {path: _opened_directory(path) for path in spec["caches"]}
    shared = _opened(spec["shared"])
    if spec["memory_bytes"] is not None:
        options = f"size={spec['memory_bytes']},mode=700"
        system.mount(SOURCE, scratch, "tmpfs", MS_NOSUID | MS_NODEV, options)
    uppers = _opened(scratch)
    if spec["memory_bytes"] is not None:
        shared = uppers
    empty = _upper(uppers, "empty", uppers)
    for number, (path, lower) in enumerate(lowers.items()):
        if lower is not None:
            upper = _upper(uppers, str(number), lower)
            _overlay(system, path, lower, upper, _flags_at(path, mounts))
    for number, (path, cache) in enumerate(caches.items()):
        if cache is None and not _made(path):
            continue
        lower = _opened(f"/proc/self/fd/{empty}/upper") if cache is None else cache
        upper = _upper(shared, f"cache{number}", lower)
        _overlay(system, path, lower, upper, _flags_at(path, mounts))
    # By descriptor: the path is the overlay's copy by now.
    for path, descriptor in records.items():
        system.mount(f"/proc/self/fd/{descriptor}", path, None, MS_BIND)
    for path, descriptor in sockets.items():
        with contextlib.suppress(OSError):  # its service has ended
            system.mount(f"/proc/self/fd/{descriptor}", path, None, MS_BIND)
    # Otherwise the sandbox would see every file a second time.
    system.mount(SOURCE, scratch, "tmpfs", MS_RDONLY, "size=4k,mode=500")
    _protect(system, (*records, *sockets))
    _close_directories()
    system.drop_capabilities()


def _overlay(system: _System, path: str, lower: int, upper: int, flags: int) -> None:
    """Mounts an overlay on a directory, or makes it read-only if its file system refuses."""
    options = (
        f"lowerdir=/proc/self/fd/{lower},upperdir=/proc/self/fd/{upper}/upper,"
        f"workdir=/proc/self/fd/{upper}/work,userxattr"
    )
    try:
        system.mount(SOURCE, path, "overlay", flags & ~MS_RDONLY, options)
    except OSError:
        system.mount(f"/proc/self/fd/{lower}", path, None, MS_BIND)
        system.mount(None, path, None, MS_REMOUNT | MS_BIND | MS_RDONLY | flags)


def _upper(uppers: int, name: str, lower: int) -> int:
    """Makes the upper directory of an overlay, with the mode and maybe the owner of `lower`."""
    place = f"/proc/self/fd/{uppers}/{name}"
    for path in (place, f"{place}/upper", f"{place}/work"):
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:  # shared by trials
            continue
    status = os.fstat(lower)
    with contextlib.suppress(OSError):  # another user's, owned by the trial instead
        os.chown(f"{place}/upper", status.st_uid, status.st_gid)
    os.chmod(f"{place}/upper", stat.S_IMODE(status.st_mode))
    return _opened(place)


def _made(path: str) -> bool:
    """Makes a directory inside the overlays; returns whether it exists."""
    try:
        os.makedirs(path, 0o700, exist_ok=True)
    except OSError:
        return False
    return True


def _flags_at(path: str, mounts: Mapping[str, Mount]) -> int:
    """Returns the flags of the mount of a path."""
    return mounts[max((place for place in mounts if is_inside(path, place)), key=len)].flags


def _protect(system: _System, kept: Collection[str]) -> None:
    """Remounts read-only all mounts but overlays, binds from outside and the kernel's."""
    for path, mount in mounts_now().items():
        is_ours = mount.source == SOURCE or path in kept
        if is_ours or mount.is_read_only or is_of_kernel(path) or mount.kind == "autofs":
            continue
        try:
            system.mount(None, path, None, MS_REMOUNT | MS_BIND | MS_RDONLY | mount.flags)
        except OSError:
            if os.path.ismount(path):  # not hidden by another mount
                raise


def _listening() -> list[str]:
    """Returns the paths of listening UNIX sockets: an overlay's copy does not connect."""
    paths = []
    with open("/proc/net/unix", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            fields = line.rstrip("\n").split(None, 7)
            if len(fields) == 8 and fields[7].startswith("/") and int(fields[3], 16) & _LISTENING:
                paths.append(fields[7])
    return [x for x in dict.fromkeys(paths) if os.path.exists(x) and not is_of_kernel(x)]


def _above(path: str) -> Iterator[str]:
    while path != (path := os.path.dirname(path)):
        yield path


def _opened(path: str) -> int:
    return os.open(path, os.O_PATH | os.O_CLOEXEC)


def _opened_directory(path: str) -> int | None:
    try:
        return os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_DIRECTORY)
    except OSError:
        return None


def _close_directories() -> None:
    """Closes directories opened before the overlays: paths relative to them lead outside."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if stat.S_ISDIR(os.fstat(int(name)).st_mode):
                os.close(int(name))
        except OSError:
            continue  # the descriptor of the listing


def _unescaped(text: str) -> str:
    """Returns a field of mountinfo with escapes such as \\040 decoded."""
    first, *others = text.split("\\")
    return first + "".join(chr(int(part[:3], 8)) + part[3:] for part in others)


class _System:
    """System calls without a Python function."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)

    def _checked(self, name: str, *arguments: object, about: str) -> None:
        if getattr(self._libc, name)(*arguments) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), about)

    def unshare(self) -> None:
        """Creates a mount namespace, if needed inside a user namespace."""
        if may_mount():
            self._checked("unshare", CLONE_NEWNS, about="mount namespace")
            return
        uid, gid = os.geteuid(), os.getegid()
        self._checked("unshare", CLONE_NEWUSER | CLONE_NEWNS, about="user namespace")
        for path, text in (("setgroups", "deny"), ("uid_map", uid), ("gid_map", gid)):
            with open(f"/proc/self/{path}", "w", encoding="ascii") as file:
                file.write(text if isinstance(text, str) else f"{text} {text} 1")

    def mount(
        self, source: str | None, target: str, kind: str | None, flags: int, options: str = ""
    ) -> None:
        texts = [None if x is None else os.fsencode(x) for x in (source, target, kind)]
        data = options.encode() or None
        self._checked("mount", *texts, ctypes.c_ulong(flags), data, about=f"mount on {target}")

    def end_with_parent(self, parent: int) -> None:
        """Makes the kernel send SIGTERM to the script when its parent ends."""
        self._libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != parent:  # it has already ended
            os.kill(os.getpid(), signal.SIGTERM)

    def drop_capabilities(self) -> None:
        """Drops capabilities that could undo the mounts; without root the exec drops all."""
        for number in range(LAST_CAPABILITY + 1):
            if number not in KEPT_CAPABILITIES:
                self._libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0)
        header, data = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
        self._checked("capget", header, data, about="capabilities")
        for number in set(range(64)) - KEPT_CAPABILITIES:
            for k in range(3):  # effective, permitted, inheritable
                data[3 * (number // 32) + k] &= ~(1 << number % 32) & 0xFFFFFFFF
        self._checked("capset", header, data, about="capabilities")


def _environment() -> dict[bytes, bytes]:
    """Returns the environment at exec, to which Python may have added LC_CTYPE."""
    with open("/proc/self/environ", "rb") as file:
        pairs = [entry.partition(b"=") for entry in file.read().split(b"\0") if b"=" in entry]
    return {name: value for name, _, value in pairs}


def main(arguments: list[str]) -> None:
    text, executable, *command = arguments
    environment = _environment()
    try:
        spec = json.loads(text)
        if spec["overlays"] is not None:
            enter(spec)
        os.chdir(spec["cwd"])
        if spec["parent"] is not None:
            _System().end_with_parent(spec["parent"])
    except (OSError, ValueError) as error:
        why = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
        os.write(2, f"trainprof: no sandbox: {why}\n".encode("utf-8", "backslashreplace"))
        os._exit(STATUS_NO_SANDBOX)
    # CPython ignores these signals, and an exec would keep that.
    for name in ("SIGPIPE", "SIGXFSZ", "SIGXFZ"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execve(executable, command, environment)
    except OSError as error:
        os.write(2, f"trainprof: {executable}: {error.strerror}\n".encode())
        is_missing = isinstance(error, FileNotFoundError)
        os._exit(STATUS_NOT_FOUND if is_missing else STATUS_NOT_EXECUTABLE)


if __name__ == "__main__":
    main(sys.argv[1:])
