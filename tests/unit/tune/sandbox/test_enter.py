"""What a sandbox is made of: the mounts there are, and the directories that get an overlay."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Collection
from pathlib import Path
from types import SimpleNamespace

import pytest

from trainprof.tune.sandbox import enter
from trainprof.tune.sandbox.enter import (
    MS_BIND,
    MS_NOATIME,
    MS_NODEV,
    MS_NOSUID,
    MS_RDONLY,
    MS_RELATIME,
    MS_REMOUNT,
    SOURCE,
    Mount,
    directories_to_overlay,
    is_inside,
    is_of_kernel,
    may_mount,
    mounts_now,
)

SOMEBODY = 4711


def mount_at(path, flags="rw", kind="ext4", source="/dev/sda"):
    return Mount(f"25 1 8:1 / {path} {flags} shared:1 - {kind} {source} rw")


def mounted(*mounts: Mount) -> dict[str, Mount]:
    return {mount.path: mount for mount in mounts}


MOUNTINFO = r"""22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
23 22 8:2 / /data rw - ext4 /dev/sdb1 rw
24 22 0:5 / /my\040runs\011and\134more rw,nosuid,nodev shared:2 master:1 - fuse.ssh a\040b:/c rw
25 22 0:6 / /usr ro,noatime shared:3 - squashfs /dev/loop0 ro
26 22 0:7 / /net rw - autofs systemd-1 rw
27 23 0:8 / /data ro - tmpfs
"""


def test_mounts_are_in_order_and_of_several_at_a_path_the_topmost_counts(tmp_path):
    path = tmp_path / "mountinfo"
    path.write_text(MOUNTINFO)
    mounts = [(m.path, m.flags, m.kind, m.source) for m in mounts_now(str(path)).values()]
    assert mounts == [
        ("/", MS_RELATIME, "ext4", "/dev/sda1"),
        ("/my runs\tand\\more", MS_NOSUID | MS_NODEV, "fuse.ssh", "a b:/c"),
        ("/usr", MS_RDONLY | MS_NOATIME, "squashfs", "/dev/loop0"),
        ("/net", 0, "autofs", "systemd-1"),
        ("/data", MS_RDONLY, "tmpfs", ""),
    ]


@pytest.mark.parametrize(
    ("path", "place", "expected"),
    [
        ("/data", "/data", True),
        ("/data/a", "/data/", True),
        ("/data", "/", True),
        ("/database", "/data", False),
    ],
)
def test_what_lies_in_a_place(path, place, expected):
    assert is_inside(path, place) is expected
    assert is_of_kernel("/dev/shm")
    assert not is_of_kernel("/device")


@pytest.fixture
def planted_text(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What files of /proc hold, by their paths."""
    texts: dict[str, str] = {}
    monkeypatch.setattr(enter, "open", lambda path, **_: io.StringIO(texts[path]), raising=False)
    return texts


@pytest.mark.parametrize(
    ("sets", "expected"),
    [
        ("CapPrm:\t000001ffffffffff\nCapEff:\t0000000000000000\n", False),
        ("CapPrm:\t0000000000000000\nCapEff:\t0000000000200000\n", True),
        ("CapEff:\t000001ffffdfffff\n", False),  # a container's root
    ],
)
def test_who_may_mount_has_the_capability_in_effect(planted_text, sets, expected):
    planted_text["/proc/self/status"] = sets
    assert may_mount() is expected


def test_sockets_at_which_a_service_listens_are_found_by_their_paths(planted_text, tmp_path):
    listening, spaced, connected = (tmp_path / name for name in ("a", "b c", "connected"))
    for path in (listening, spaced, connected):
        path.touch()
    number = "0000000000000000: 00000002 00000000"
    planted_text["/proc/net/unix"] = (
        "Num       RefCount Protocol Flags    Type St Inode Path\n"
        f"{number} 00010000 0001 01 1 {listening}\n"
        f"{number} 00010000 0001 01 3 {spaced}\n"
        f"{number} 00000000 0001 03 4 {connected}\n"
        f"{number} 00010000 0001 01 5 {tmp_path / 'gone'}\n"
        f"{number} 00010000 0001 01 6 @abstract\n"
        f"{number} 00010000 0001 01 7\n"
    )
    assert enter._listening() == [str(listening), str(spaced)]


def tree(tmp_path: Path, *names: str) -> Path:
    """Makes directories, and returns the one that they are in."""
    top = tmp_path / "top"
    for name in ("", *names):
        (top / name).mkdir(parents=True, exist_ok=True)
    return top


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Plants which paths can be written, and which belong to somebody else."""

    def plant(closed: Collection[Path] = (), foreign: Collection[Path] = ()) -> None:
        access, lstat = os.access, os.lstat
        no, others = set(map(str, closed)), set(map(str, foreign))

        def planted_access(path: str, mode: int, **how: bool) -> bool:
            return str(path) not in no and access(path, mode, **how)

        def planted_lstat(path: str, **how: int) -> object:
            status = lstat(path, **how)
            if str(path) not in others:
                return status
            return SimpleNamespace(st_mode=status.st_mode, st_uid=SOMEBODY, st_gid=SOMEBODY)

        monkeypatch.setattr(os, "access", planted_access)
        monkeypatch.setattr(os, "lstat", planted_lstat)

    return plant


def overlays_in(top, mounts, *named: Path, knows_all_ids=True, search_s):
    """Returns the overlays by their paths in a directory."""
    paths = directories_to_overlay(
        mounts, [str(path) for path in named], knows_all_ids=knows_all_ids, search_s=search_s
    )
    return [os.path.relpath(path, top) for path in paths]


NO_END = 1e9
BOTH = (True, False)


@pytest.mark.parametrize(
    ("names", "planted", "overlays", "knows_all_ids"),
    [
        # One covers what can be written and has no mount inside.
        (["a/b", "c"], {}, ["."], [True]),
        # A mount inside splits the directories above it.
        (
            ["a/mounted/x", "a/other", "other"],
            {"mounts": {"a/mounted": ("rw", "ext4")}},
            ["a/mounted", "a/other", "other"],
            BOTH,
        ),
        # Read-only ones and those that mount when looked at are left alone.
        (["a/mounted/x"], {"mounts": {"a/mounted": ("ro", "ext4")}}, [], [True]),
        (["a/mounted/x"], {"mounts": {"a/mounted": ("rw", "autofs")}}, [], [True]),
        (["a"], {"mounts": {"gone": ("rw", "ext4")}}, ["a"], [True]),
        # Below a directory that cannot be written are some that can.
        (
            ["closed/open/x", "closed/closed_too/open", "open/x"],
            {"closed": ["", "closed", "closed/closed_too"]},
            ["closed/closed_too/open", "closed/open", "open"],
            [True],
        ),
        # As /tmp: it can be written, belongs to root, and others have directories in it. Copies of
        # it are refused to a user; `mine` is covered by the overlay above it.
        (
            ["mine/x", "theirs/mine", "shut/mine/x", "shut/theirs"],
            {"closed": ["shut", "shut/theirs"], "foreign": ["", "theirs", "shut", "shut/theirs"]},
            [".", "shut/mine", "theirs"],
            [False],
        ),
        # In a directory of one's own only named paths are looked at.
        (
            ["a/theirs", "b/theirs"],
            {"foreign": ["a/theirs", "b/theirs"], "named": ["b/theirs/x"]},
            [".", "b/theirs"],
            [False],
        ),
    ],
)
def test_what_can_be_written_is_covered_by_overlays(
    tmp_path, own, names, planted, overlays, knows_all_ids
):
    top = tree(tmp_path, *names)
    own(*([top / name for name in planted.get(kind, ())] for kind in ("closed", "foreign")))
    inside = planted.get("mounts", {})
    mounts = mounted(mount_at(top), *(mount_at(top / name, *how) for name, how in inside.items()))
    named = [top / name for name in planted.get("named", ())]
    for knows in knows_all_ids:
        covered = overlays_in(top, mounts, *named, knows_all_ids=knows, search_s=NO_END)
        assert sorted(covered) == overlays
        assert "." not in covered or covered[0] == "."


def test_named_paths_come_first_and_are_looked_at_however_late_it_is(tmp_path, own, monkeypatch):
    names = [f"{number}/open" for number in range(20)]
    top = tree(tmp_path, *names)
    own(closed=[top, *(top / name.partition("/")[0] for name in names)])
    mounts, named = mounted(mount_at(top)), top / "13/open/runs"
    assert overlays_in(top, mounts, named, search_s=-1.0) == ["13/open"]
    monkeypatch.setattr(enter, "MOST_OVERLAYS", 3)
    few = overlays_in(top, mounts, named, search_s=NO_END)
    assert (len(few), few[0]) == (3, "13/open")


class FakeSystem:
    """Records the mounts that are asked for, and refuses overlays, or some paths, if told to."""

    def __init__(self, *refused: Path, takes_overlays: bool = True) -> None:
        self._refused = set(map(str, refused))
        self.asked: list[tuple[str | None, str, str | None, int]] = []
        self.options: list[str] = []
        self._takes_overlays = takes_overlays

    def mount(self, source, target, kind, flags, options=""):
        if target in self._refused or (kind == "overlay" and not self._takes_overlays):
            raise OSError(target)
        self.asked.append((source, target, kind, flags))
        self.options.append(options)


def test_what_is_no_overlay_of_ours_becomes_read_only(tmp_path, monkeypatch):
    top = tree(tmp_path, "overlaid", "record", "data", "shut", "remote")
    mounts = mounted(
        mount_at("/run"),
        mount_at("/dev/shm"),
        mount_at(top / "overlaid", kind="overlay", source=SOURCE),
        mount_at(top / "record"),
        mount_at(top / "data", "rw,nosuid,relatime"),
        mount_at(top / "shut", "ro"),
        mount_at(top / "remote", kind="autofs"),
        mount_at(top / "hidden"),
    )
    monkeypatch.setattr(enter, "mounts_now", lambda: mounts)
    system = FakeSystem(top / "hidden")  # by another mount
    enter._protect(system, [str(top / "record")])  # type: ignore[arg-type]
    flags = MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_RELATIME
    assert system.asked == [(None, str(top / "data"), None, flags)]
    # One that cannot become so prevents the sandbox.
    monkeypatch.setattr(os.path, "ismount", lambda path: True)
    with pytest.raises(OSError, match="data"):
        enter._protect(FakeSystem(top / "data"), [])  # type: ignore[arg-type]


def test_an_overlay_has_the_flags_of_the_mount_below_but_can_be_written():
    system = FakeSystem()
    enter._overlay(system, "/data", 7, 8, MS_NOSUID | MS_RDONLY)  # type: ignore[arg-type]
    assert system.asked == [(SOURCE, "/data", "overlay", MS_NOSUID)]
    assert system.options == [
        "lowerdir=/proc/self/fd/7,upperdir=/proc/self/fd/8/upper,"
        "workdir=/proc/self/fd/8/work,userxattr"
    ]


def test_where_no_overlay_is_possible_a_directory_is_read_only():
    system = FakeSystem(takes_overlays=False)
    enter._overlay(system, "/data", 7, 8, MS_NOSUID)  # type: ignore[arg-type]
    assert system.asked == [
        ("/proc/self/fd/7", "/data", None, MS_BIND),
        (None, "/data", None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID),
    ]


def test_the_flags_are_those_of_the_mount_that_holds_a_path():
    mounts = mounted(mount_at("/"), mount_at("/home", "rw,nosuid"), mount_at("/home/u", "rw,nodev"))
    flags = [enter._flags_at(path, mounts) for path in ("/data", "/home", "/home/v", "/home/u/x")]
    assert flags == [0, MS_NOSUID, MS_NOSUID, MS_NODEV]
