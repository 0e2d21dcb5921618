"""`trainprof report RUN --loader ID`: which loader is meant, and what is shown of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support import summaries

from trainprof.analysis.summary.json_text import to_jsonable
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.cli.app import run_command
from trainprof.cli.report import LoaderNotFound, find_loader

SITES = {3: "src/train.py:84", 4: "src/val.py:9", 7: "other/train.py:84", 8: "src/val.py:9"}


def run(sites: dict[int, str] = SITES) -> RunSummary:
    loaders = [summaries.loader(site, id=number) for number, site in sites.items()]
    return replace(summaries.slow_loader(), loaders=loaders)


@pytest.mark.parametrize(
    ("name", "index"),
    [("3", 0), ("7", 2), ("8", 3), ("src/train.py:84", 0), ("other/train.py:84", 2)],
)
def test_a_loader_is_meant_by_its_id_or_its_place(name: str, index: int) -> None:
    assert find_loader(run(), name) == index


def test_the_end_of_a_place_will_do_where_only_one_has_it() -> None:
    assert find_loader(run({3: "src/train.py:84", 4: "src/pretrain.py:84"}), "train.py:84") == 0


@pytest.mark.parametrize(("name", "ids"), [("train.py:84", "3, 7"), ("src/val.py:9", "4, 8")])
def test_a_place_of_several_asks_for_an_id(name: str, ids: str) -> None:
    with pytest.raises(LoaderNotFound, match="several loaders") as caught:
        find_loader(run(), name)
    assert caught.value.hint == f"name one by id: {ids}"


@pytest.mark.parametrize("name", ["5", "train.py", "", "rain.py:84", "-1"])
def test_an_unknown_loader_names_those_there_are(name: str) -> None:
    with pytest.raises(LoaderNotFound) as caught:
        find_loader(run(), name)
    assert "3 (src/train.py:84), 4 (src/val.py:9)" in (caught.value.hint or "")


def test_a_run_without_loaders_says_so() -> None:
    with pytest.raises(LoaderNotFound) as caught:
        find_loader(run({}), "3")
    assert caught.value.hint == "no DataLoader was seen in it"


@pytest.fixture
def saved(tmp_path: Path) -> str:
    """A run's directory with its summary."""
    (tmp_path / "manifest.json").write_text('{"schema_version": 1}')
    (tmp_path / "summary.json").write_text(json.dumps(to_jsonable(summaries.starved())))
    return str(tmp_path)


def test_one_loader_is_shown_in_full(saved: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["report", saved, "--loader", "cache.py:52"]) == 0
    text = capsys.readouterr().out
    assert "Loader 0 at cache.py:52: 4 workers, 412 ms a batch each\n" in text
    assert "Where the time went" not in text


def test_one_loader_in_other_formats(saved: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["report", saved, "--loader", "0", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["site"] == "cache.py:52"
    assert run_command(["report", saved, "--loader", "0", "--format", "markdown"]) == 0
    assert "| dataset\\[307\\] | 830 ms |" in capsys.readouterr().out


def test_an_unknown_loader_is_one_line_and_a_hint(
    saved: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["report", saved, "--loader", "train.py:1\n\x1b[31m"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    message, hint = err.splitlines()
    assert message.startswith("trainprof: no loader 'train.py:1")
    assert hint == "hint: loaders: 0 (cache.py:52)"
    assert "\x1b" not in err


@pytest.mark.parametrize("count", ["-1", "1001", "ten", "1.5"])
def test_slow_samples_are_a_whole_number(count: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["run", "--slow-samples", count, "nowhere.py"]) == 125
    assert "is not a whole number from 0 to 1000" in capsys.readouterr().err


@pytest.mark.parametrize("beside", [["--why", "serial_loading"], ["--suggest-patch"]])
def test_what_is_not_told_of_one_loader_alone_is_refused(
    saved: str, beside: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["report", saved, "--loader", "3", *beside]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert f"'--loader': it does not go with {beside[0]}" in err
