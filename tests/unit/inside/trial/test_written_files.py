"""Files that a trial without a sandbox changes; no audit hook is installed here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from trainprof.inside.trial.written_files import WrittenFiles

READ_ONLY, WRITE = os.O_RDONLY, os.O_WRONLY


class Watched:
    """What is recorded of events, in a directory whose `scratch` and `run` do not count."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.was_there: dict[str, bool] = {}
        places = [directory / name for name in ("scratch", "run")]
        for place in places:
            place.mkdir()
        self.files = WrittenFiles(self.record, list(map(str, places)))

    @property
    def recorded(self) -> list[str]:
        return [os.path.relpath(path, self.directory) for path in self.was_there]

    def record(self, path: str, was_there: bool) -> None:
        assert path not in self.was_there
        self.was_there[path] = was_there

    def opened(self, *paths: object, flags: Any = WRITE) -> list[str]:
        for path in paths:
            self.files._on_event("open", (path, None, flags))
        return self.recorded


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watched:
    monkeypatch.chdir(tmp_path)
    return Watched(Path(os.path.realpath(tmp_path)))


@pytest.mark.parametrize(
    ("event", "arguments", "names"),
    [
        ("open", ("a", None, WRITE), ["a"]),
        ("open", ("a", None, os.O_RDWR), ["a"]),
        ("open", ("a", None, READ_ONLY | os.O_CREAT), ["a"]),
        ("open", ("a", None, READ_ONLY | os.O_TRUNC), ["a"]),
        ("open", ("a", None, WRITE | os.O_APPEND | os.O_CLOEXEC), ["a"]),
        ("open", ("a", None, READ_ONLY | os.O_CLOEXEC), []),
        ("open", ("a", None, None), []),  # of a shelf or an archive, by its own words
        ("os.remove", ("a", -1), ["a"]),
        ("os.rename", ("a", "b", -1, -1), ["a", "b"]),
        ("os.rmdir", ("a", -1), ["a"]),
        ("os.mkdir", ("a", 0o777, -1), ["a"]),
        ("os.truncate", ("a", 0), ["a"]),
        ("os.link", ("source", "a", -1, -1), ["a"]),
        ("os.symlink", ("source", "a", -1), ["a"]),
        ("shutil.rmtree", ("a", None), ["a"]),
        ("sqlite3.connect", ("a",), ["a"]),
        ("sqlite3.connect", (":memory:",), []),
        ("shutil.copyfile", ("a", "b"), []),
        ("socket.connect", ("a", "b"), []),
        # Ours are never the script's.
        ("open", ("too few",), []),
        ("open", ("nul\0", None, WRITE), []),
        ("os.rename", (), []),
    ],
)
def test_events_that_change_files(
    watched: Watched, event: str, arguments: tuple[object, ...], names: list[str]
) -> None:
    watched.files._on_event(event, arguments)
    assert watched.recorded == names


def test_paths_are_of_any_kind_and_descriptors_are_none(watched: Watched) -> None:
    assert watched.opened(b"bytes", Path("path"), 7, None, ["list"]) == ["bytes", "path"]


def test_each_path_is_recorded_once_with_whether_it_was_there(watched: Watched) -> None:
    for name, target in (("link", "log"), ("dangling", "gone")):
        (watched.directory / name).symlink_to(target)
    (watched.directory / "log").touch()
    watched.opened("log", "./log", str(watched.directory / "log"), "link", "scratch/../log")
    assert watched.opened("new", "dangling") == ["log", "new", "gone"]
    assert list(watched.was_there.values()) == [True, False, False]


def test_the_trials_own_places_and_the_kernels_do_not_count(watched: Watched) -> None:
    (watched.directory / "outside").mkdir()
    (watched.directory / "scratch/data").symlink_to(watched.directory / "outside")
    ours = ("scratch/log", "run/events/1", "/dev/null", "/proc/self/comm", "/sys/x")
    assert watched.opened(*ours) == []
    # A link in the scratch directory leads out of it.
    assert watched.opened("scratch/data/x", "scratch2") == ["outside/x", "scratch2"]
