"""Files that a trial without a sandbox changes; no audit hook is installed here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from trainprof.inside.trial.written_files import WrittenFiles


class Watched:
    """What is recorded of events, in a directory whose `scratch` and `run` do not count."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.there: dict[str, bool] = {}
        for name in ("scratch", "run"):
            (directory / name).mkdir()
        places = [str(directory / name) for name in ("scratch", "run")]
        self.files = WrittenFiles(self.record, places)

    @property
    def recorded(self) -> list[str]:
        return list(self.there)

    def record(self, path: str, was_there: bool) -> None:
        assert path not in self.there
        self.there[path] = was_there

    def event(self, name: str, *arguments: object) -> None:
        self.files._on_event(name, arguments)

    def opened(self, path: object, flags: Any) -> None:
        self.event("open", path, None, flags)


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watched:
    monkeypatch.chdir(tmp_path)
    return Watched(Path(os.path.realpath(tmp_path)))


@pytest.mark.parametrize(
    "flags",
    [
        os.O_WRONLY,
        os.O_RDWR,
        os.O_RDONLY | os.O_CREAT,
        os.O_RDONLY | os.O_TRUNC,
        os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC,
    ],
)
def test_files_that_are_opened_to_be_written_are_recorded(watched: Watched, flags: int) -> None:
    watched.opened("log", flags)
    assert watched.recorded == [str(watched.directory / "log")]


def test_files_that_are_read_are_not(watched: Watched) -> None:
    watched.opened("data", os.O_RDONLY | os.O_CLOEXEC)
    watched.opened("data", None)  # of a shelf or an archive, by its own words
    assert watched.recorded == []


@pytest.mark.parametrize(
    ("event", "arguments", "names"),
    [
        ("os.remove", ("a", -1), ["a"]),
        ("os.rename", ("a", "b", -1, -1), ["a", "b"]),
        ("os.rmdir", ("a", -1), ["a"]),
        ("os.mkdir", ("a", 0o777, -1), ["a"]),
        ("os.truncate", ("a", 0), ["a"]),
        ("os.link", ("source", "a", -1, -1), ["a"]),
        ("os.symlink", ("source", "a", -1), ["a"]),
        ("shutil.rmtree", ("a", None), ["a"]),
        ("sqlite3.connect", ("a",), ["a"]),
    ],
)
def test_what_else_changes_files_is_recorded(
    watched: Watched, event: str, arguments: tuple[object, ...], names: list[str]
) -> None:
    watched.event(event, *arguments)
    assert watched.recorded == [str(watched.directory / name) for name in names]


def test_events_that_change_nothing_are_passed_by(watched: Watched) -> None:
    for event in ("import", "os.listdir", "os.scandir", "shutil.copyfile", "socket.connect"):
        watched.event(event, "a", "b")
    assert watched.recorded == []


def test_paths_are_of_any_kind_and_descriptors_are_none(watched: Watched) -> None:
    for path in (b"bytes", Path("path"), 7, None, ["list"]):
        watched.opened(path, os.O_WRONLY)
    assert watched.recorded == [str(watched.directory / name) for name in ("bytes", "path")]


def test_each_path_is_recorded_once_however_it_is_written(watched: Watched) -> None:
    (watched.directory / "link").symlink_to("log")
    for path in ("log", "./log", str(watched.directory / "log"), "link", "scratch/../log"):
        watched.opened(path, os.O_WRONLY)
    assert watched.recorded == [str(watched.directory / "log")]


def test_in_the_trials_own_places_and_the_kernels_nothing_counts(watched: Watched) -> None:
    (watched.directory / "outside").mkdir()
    (watched.directory / "scratch/data").symlink_to(watched.directory / "outside")
    for path in ("scratch/log", "run/events/1", "/dev/null", "/proc/self/comm", "/sys/x"):
        watched.opened(path, os.O_WRONLY)
    assert watched.recorded == []
    # A link in the scratch directory leads out of it.
    watched.opened("scratch/data/x", os.O_WRONLY)
    watched.opened("scratch2", os.O_WRONLY)
    assert watched.recorded == [str(watched.directory / n) for n in ("outside/x", "scratch2")]


def test_whether_something_was_there_before_is_recorded(watched: Watched) -> None:
    (watched.directory / "log").touch()
    (watched.directory / "link").symlink_to(watched.directory / "gone")
    for path in ("log", "new", "link"):
        watched.opened(path, os.O_WRONLY | os.O_CREAT)
    there = {os.path.relpath(path, watched.directory): was for path, was in watched.there.items()}
    assert there == {"log": True, "new": False, "gone": False}


def test_so_many_and_no_more(watched: Watched) -> None:
    for number in range(300):
        watched.opened(f"{number}.png", os.O_WRONLY)
    assert len(watched.recorded) == 200


def test_files_that_recording_writes_are_not_the_scripts(watched: Watched) -> None:
    def record(path: str, was_there: bool) -> None:
        watched.record(path, was_there)
        files._on_event("open", (f"{path}.lock", None, os.O_WRONLY))

    files = WrittenFiles(record, [])
    files._on_event("open", ("log", None, os.O_WRONLY))
    files._on_event("open", ("other", None, os.O_WRONLY))
    assert watched.recorded == [str(watched.directory / name) for name in ("log", "other")]


def test_nothing_of_ours_reaches_the_script(watched: Watched) -> None:
    def record(path: str, was_there: bool) -> None:
        raise RuntimeError(path)

    files = WrittenFiles(record, [])
    for event, arguments in (
        ("open", ("log", None, os.O_WRONLY)),
        ("open", ("too few",)),
        ("open", ("nul\0", None, os.O_WRONLY)),
        ("os.rename", ()),
    ):
        files._on_event(event, arguments)
    assert watched.recorded == []
