from __future__ import annotations

from pathlib import Path

import pytest

from trainprof.cli.report import RunDamaged, RunNotFound, find_run


@pytest.fixture(autouse=True)
def in_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def make_run(path: str, manifest: str = '{"schema_version": 1}') -> Path:
    directory = Path(path)
    directory.mkdir(parents=True)
    (directory / "manifest.json").write_text(manifest)
    return directory.resolve()


def test_a_run_is_a_directory_a_name_or_latest() -> None:
    run = make_run("trainprof-runs/train-1")
    Path("trainprof-runs/latest").symlink_to("train-1")
    for name in ("trainprof-runs/train-1", "trainprof-runs/train-1/", "train-1", "latest"):
        assert find_run(name).path == run
    assert find_run(str(run)).path == run


def test_a_directory_that_is_no_run_does_not_hide_a_runs_name() -> None:
    run = make_run("trainprof-runs/train")
    Path("train").mkdir()
    assert find_run("train").path == run


def test_an_unknown_run_names_those_there_are() -> None:
    make_run("trainprof-runs/train-1")
    with pytest.raises(RunNotFound) as caught:
        find_run("train-2")
    assert "train-1" in (caught.value.hint or "")


def test_what_is_no_run_directory_is_refused() -> None:
    Path("empty").mkdir()
    with pytest.raises(RunDamaged, match="not a run directory"):
        find_run("empty")
    Path("file").write_text("")
    with pytest.raises(RunNotFound):
        find_run("file")


def test_a_run_without_manifest_is_taken_by_its_events() -> None:
    Path("cut/events").mkdir(parents=True)
    assert find_run("cut").path == Path("cut").resolve()


def test_a_damaged_manifest_is_left_to_the_analysis_a_newer_one_refused() -> None:
    for number, text in enumerate(("", "{", "[]", "[" * 100_000, '{"schema_version": "x"}')):
        find_run(str(make_run(f"damaged{number}", text)))
    with pytest.raises(RunDamaged, match="format 99"):
        find_run(str(make_run("newer", '{"schema_version": 99}')))


def test_the_ranks_of_a_run_are_a_run() -> None:
    make_run("trainprof-runs/many/ranks/0")
    assert find_run("many").path == Path("trainprof-runs/many").resolve()
    with pytest.raises(RunNotFound) as caught:
        find_run("other")
    assert "many" in (caught.value.hint or "")
