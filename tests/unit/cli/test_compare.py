"""`trainprof compare`: which runs are meant, its gate, its exit statuses."""

from __future__ import annotations

import json
import os
import shutil

import pytest
from support.compared_runs import recorded, steps_of
from support.events import MS

from trainprof.cli.app import run_command
from trainprof.record.run_directory import RunDirectory


@pytest.fixture(autouse=True)
def runs(tmp_path, monkeypatch):
    """Recorded runs under trainprof-runs: a1 a2 a3 of 1 ms, b1 b2 b3 of 2 ms, 6 steps in cut."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    parent = tmp_path / "trainprof-runs"
    for number in (1, 2, 3):
        make(parent, f"a{number}", steps_of(number))
        make(parent, f"b{number}", steps_of(number + 3, 2 * MS))
    make(parent, "cut", [1 * MS] * 6)
    (parent / "latest").symlink_to("b3")
    return parent


def make(parent, name, forwards):
    made = recorded(parent / "made", name, forwards=forwards)
    os.rename(made.path, parent / name)
    shutil.rmtree(parent / "made")


def json_of(capsys, *words, status=0):
    """What `compare --format json` prints."""
    assert run_command(["compare", *words, "--format", "json"]) == status
    return json.loads(capsys.readouterr().out)


def test_runs_are_named_as_for_report_and_each_other_is_compared_with_base(capsys):
    for words in (
        ["a1", "b3"],
        ["trainprof-runs/a1", "latest"],
        [os.path.abspath("trainprof-runs/a1"), "b3"],
    ):
        assert json_of(capsys, *words)["verdict"] == "slower"
    assert run_command(["compare", "a1", "a2", "b1", "--format", "json"]) == 0
    comparison = json.loads(capsys.readouterr().out)
    assert [pair["verdict"] for pair in comparison] == ["no_visible_difference", "slower"]
    assert [pair["other"]["name"] for pair in comparison] == ["a2", "b1"]


def test_repeated_runs_are_given_by_options(capsys):
    sides = [word for name in ("a1", "a2", "a3") for word in ("--base", name)]
    sides += [word for name in ("b1", "b2", "b3") for word in ("--other", name)]
    comparison = json_of(capsys, *sides)
    assert comparison["verdict"] == "slower"
    assert len(comparison["notes"]) == 1


def test_the_gate_trips_by_the_near_bound_and_passes_nothing_that_it_cannot_judge(capsys):
    few = "cannot be judged: OTHER has 5 steady steps"
    # A step of 2.45 ms instead of 1.45 ms: 69 % longer, and 62 % for certain.
    for base, other, percent, status, said in (
        ("a1", "b1", "50", 1, "longer, more than --fail-if-slower 50"),
        ("a1", "b1", "50%", 1, "b1: a step takes at least 6"),
        ("a1", "b1", "0", 1, "b1: a step takes at least 6"),
        ("a1", "b1", "65", 0, ""),
        ("b1", "a1", "0", 0, ""),
        ("a1", "a2", "0", 0, ""),
        ("a1", "cut", "5", 2, few),
    ):
        assert run_command(["compare", base, other, "--fail-if-slower", percent]) == status
        shown = capsys.readouterr().err
        assert said in shown
        assert bool(shown) is bool(said)
    assert run_command(["compare", "a1", "cut"]) == 0


def ended(runs, name, **end):
    """Writes how a run ended into its manifest."""
    manifest = runs / name / "manifest.json"
    value = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(value | {"exit": value["exit"] | end}))


def test_a_gate_that_trips_for_one_of_several_ends_with_1(runs, capsys):
    ended(runs, "a2", status=None, signal=9, reason="killed")
    assert run_command(["compare", "a1", "a2", "b1", "a3", "--fail-if-slower", "5"]) == 1
    first, _, second = capsys.readouterr().err.splitlines()
    assert first.startswith("trainprof: a2: --fail-if-slower cannot be judged")
    assert second.startswith("trainprof: b1: a step takes")


def test_the_page_is_a_file_of_the_last_run_or_the_one_named(runs, capsys):
    assert run_command(["compare", "a1", "a2", "b1", "--html", "--fail-if-slower", "5"]) == 1
    assert capsys.readouterr().out == f"{runs / 'b1' / 'compare.html'}\n"
    page = (runs / "b1" / "compare.html").read_text()
    assert page.count("<header") == 2
    assert RunDirectory(runs / "b1").foreign_entries() == []
    # A link in somebody else's run is replaced, its target is left alone.
    (runs / "a1" / "compare.html").symlink_to(runs / "b1" / "compare.html")
    assert run_command(["compare", "b1", "a1", "--html"]) == 0
    assert not (runs / "a1" / "compare.html").is_symlink()
    assert (runs / "b1" / "compare.html").read_text() == page
    assert run_command(["compare", "b1", "a1", "--html", "--output", "x.html"]) == 0
    assert (runs.parent / "x.html").read_bytes() == (runs / "a1" / "compare.html").read_bytes()


def test_user_errors_are_one_line_and_a_hint(capsys):
    for words, part in {
        "": "needs two runs",
        "a1 nowhere": "no run 'nowhere'",
        "--base a1": "--base and --other",
        "a1 --base a2 --other b1": "--base and --other",
        "a1 a1": "a1 is named twice",
        "--base a1 --base a2 --other a1": "a1 is named twice",
        "a1 b1 --fail-if-slower much": "'much' is not a percentage",
        "a1 b1 --output x.html": "only together with --html",
        "a1 b1 --html --output nowhere/x.html": "nowhere/x.html cannot be written: No such file",
        "a1 b1 --html --output trainprof-runs": "trainprof-runs is not a file",
        "a1 b1 --format html": "'html' is not one of terminal, json, markdown",
    }.items():
        assert run_command(["compare", *words.split()]) == 2
        message, _ = capsys.readouterr().err.splitlines()
        assert part in message


def test_a_run_of_which_nothing_is_left_is_refused(runs, capsys):
    for log in (runs / "b1" / "events").iterdir():
        log.write_bytes(b"\0" * 100)
    assert run_command(["compare", "a1", "b1"]) == 2
    message, hint = capsys.readouterr().err.splitlines()
    assert message.startswith("trainprof: b1 has no training to compare: ")
    assert "trainprof report b1" in hint


def test_damaged_samples_and_manifests_are_no_hindrance(runs, capsys):
    (runs / "b1" / "manifest.json").write_text('{"versions": 5, "host": [], "script": {}, "opt')
    (runs / "b1" / "samples" / "host.jsonl").write_text("{\n\0")
    assert json_of(capsys, "a1", "b1")["verdict"] == "slower"
    (runs / "b1" / "manifest.json").write_text(
        '{"schema_version": 1, "versions": 5, "host": [], "script": {}, "script_sha256": []}'
    )
    assert json_of(capsys, "a1", "b1")["verdict"] == "slower"


def test_the_ranks_of_a_launcher_are_one_run(runs, capsys):
    for name in ("a1", "b1"):
        (runs / name / "ranks").mkdir(parents=True)
        for part in ("manifest.json", "events", "samples"):
            (runs / name / "ranks" / "0").mkdir(exist_ok=True)
            os.rename(runs / name / part, runs / name / "ranks" / "0" / part)
    comparison = json_of(capsys, "a1", "b1")
    assert comparison["verdict"] == "slower"
    assert comparison["comparable"] is True
