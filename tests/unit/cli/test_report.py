"""`trainprof report` on findings: --why, --explain, --rule and --suggest-patch."""

from __future__ import annotations

import json
import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
from support import summaries

from trainprof.analysis.summary.finding import LOADER_ID
from trainprof.analysis.summary.json_text import to_jsonable
from trainprof.cli.app import run_command
from trainprof.cli.report import LoaderNotFound, RunDamaged, RunNotFound, find_loader, find_run
from trainprof.findings.catalogue import GONE, RULES

LOADER = "loader = DataLoader(data, shuffle=True)\n"


@pytest.fixture
def saved(tmp_path):
    """A run of a script that stands beside it, with a finding about its loader."""
    (tmp_path / "train.py").write_text(LOADER)
    os.utime(tmp_path / "train.py", (1, 1))
    summary = replace(
        summaries.slow_loader(),
        findings=[summaries.finding(site="train.py:1")],
        loaders=[summaries.loader("train.py:1")],
    )
    return save(summary, tmp_path, times={"spawned_time_ns": time.time_ns()})


def save(summary, beside, **more):
    """Returns a run's directory beside the script that it is of."""
    run = beside / "run"
    run.mkdir()
    manifest = {"schema_version": 1, "cwd": str(beside), **more}
    (run / "manifest.json").write_text(json.dumps(manifest))
    (run / "summary.json").write_text(json.dumps(to_jsonable(summary)))
    return run


def report(*words):
    return run_command(["report", *words])


@pytest.mark.parametrize(
    ("was", "now"), [(name, rule.id) for rule in RULES for name in rule.old_names]
)
def test_a_merged_finding_is_explained_by_the_one_it_went_into(was, now, saved, capsys):
    assert report("--explain", was) == 0
    assert capsys.readouterr().out.startswith(f"{was} went into {now}.\n\n{now}\n")
    path = saved / "summary.json"
    summary = json.loads(path.read_text())
    summary["findings"][0]["id"] = was
    path.write_text(json.dumps(summary))
    for words in ([], ["--why", was], ["--why", now]):
        assert report(str(saved), *words) == 0
        out = capsys.readouterr().out
        assert now in out
        assert was not in out


@pytest.mark.parametrize(
    "options", [[], ["--verbose"], ["--format", "markdown"], ["--format", "json"]]
)
def test_a_saved_run_may_have_findings_and_figures_that_are_gone(saved, capsys, options):
    path = saved / "summary.json"
    summary = json.loads(path.read_text())
    summary["findings"][0]["id"] = "constant_in_forward"
    summary["evaluation"]["logits_bytes"] = 2400
    summary["loaders"][0]["late_selection"] = {"site": "train.py:1", "share": 0.5}
    path.write_text(json.dumps(summary))
    assert report(str(saved), *options) == 0
    assert "train.py:1" in capsys.readouterr().out


def test_why_counts_the_thresholds_that_the_run_was_started_with(tmp_path, capsys):
    run = save(summaries.healthy(), tmp_path, options={"rules": {"gc_pauses.share": 0.25}})
    assert report(str(run), "--why", "gc_pauses") == 0
    assert "share from 25 % on" in capsys.readouterr().out


@pytest.mark.parametrize(("gone", "where"), sorted(GONE.items()))
def test_what_was_a_finding_once_says_where_it_is_seen_now(gone, where, capsys):
    assert report("--explain", gone) == 2
    assert f"{gone} is no finding any more" in (text := capsys.readouterr().err)
    assert where in text


@pytest.mark.parametrize("option", ["--why", "--explain"])
def test_an_unknown_finding_names_those_there_are(saved, option, capsys):
    assert report(str(saved), option, "nonsense") == 2
    text = capsys.readouterr().err
    assert "there is no finding 'nonsense'" in text
    assert "python_in_loop" in text
    assert report(str(saved), option, "discarded-gradient") == 2
    assert "did you mean discarded_gradients?" in capsys.readouterr().err


@pytest.mark.parametrize("rule", ["nonsense=1", "gc_pauses.share=much", "gc_pauses.share=-1"])
def test_a_threshold_that_means_nothing(saved, rule, capsys):
    assert report(str(saved), "--rule", rule) == 2
    assert "'--rule'" in capsys.readouterr().err


def test_a_patch_of_the_users_file_writes_nothing(saved, capsys):
    assert report(str(saved), "--suggest-patch") == 0
    text = capsys.readouterr().out
    assert "--- a/train.py\n+++ b/train.py\n" in text
    assert (
        "+loader = DataLoader(data, shuffle=True, num_workers=5, persistent_workers=True)" in text
    )
    assert (saved.parent / "train.py").read_text() == LOADER


@pytest.mark.parametrize("copies_in", ["train.py", "engine.py"])
def test_batches_are_pinned_where_they_are_made_and_copied_where_they_are_used(
    tmp_path, copies_in, capsys
):
    (tmp_path / "train.py").write_text(f"{LOADER}x = x.to(device)\n")
    (tmp_path / "engine.py").write_text("\nx = x.to(device)\n")
    change = {"pin_memory": True, "non_blocking": True}
    loader = summaries.loader("train.py:1")
    finding = summaries.finding(
        site=f"{copies_in}:2", change=change, evidence={LOADER_ID: loader.id}
    )
    summary = replace(summaries.slow_loader(), findings=[finding], loaders=[loader])
    assert report(str(save(summary, tmp_path)), "--suggest-patch") == 0
    diff = capsys.readouterr().out
    subprocess.run(["git", "apply", "-p1", "-"], input=diff, text=True, cwd=tmp_path, check=True)
    assert "shuffle=True, pin_memory=True)" in (tmp_path / "train.py").read_text()
    assert "x.to(device, non_blocking=True)" in (tmp_path / copies_in).read_text()


def test_several_changes_of_one_file_apply_together(tmp_path, capsys):
    lines = ["a = DataLoader(data, 8,", "    num_workers=4)", "b = DataLoader(other,", "    8)", ""]
    (tmp_path / "train.py").write_text("\n".join(lines))
    loaders = [summaries.loader(f"train.py:{line}", id=line) for line in (1, 3)]
    changes = [(1, {"num_workers": 0}), (3, {"num_workers": 2}), (3, {"prefetch_factor": 4})]
    findings = [
        summaries.finding(site=f"train.py:{line}", change=change, evidence={LOADER_ID: line})
        for line, change in changes
    ]
    summary = replace(summaries.slow_loader(), findings=findings, loaders=loaders)
    assert report(str(save(summary, tmp_path)), "--suggest-patch") == 0
    diff = capsys.readouterr().out
    assert diff.count("--- a/train.py") == 1
    assert "# edit by hand: one above changes the same call" in diff
    subprocess.run(["git", "apply", "-p1", "-"], input=diff, text=True, cwd=tmp_path, check=True)
    lines[1], lines[3] = "    num_workers=0)", "    8, num_workers=2)"
    assert (tmp_path / "train.py").read_text() == "\n".join(lines)


@pytest.fixture(autouse=True)
def in_empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def make_run(path, manifest='{"schema_version": 1}'):
    directory = Path(path)
    directory.mkdir(parents=True)
    (directory / "manifest.json").write_text(manifest)
    return directory.resolve()


def test_a_run_is_a_directory_a_name_or_latest():
    run = make_run("trainprof-runs/train-1")
    Path("trainprof-runs/latest").symlink_to("train-1")
    Path("train-1").mkdir()  # no run, and hides none
    for name in ("trainprof-runs/train-1", "trainprof-runs/train-1/", "train-1", "latest"):
        assert find_run(name).path == run
    assert find_run(str(run)).path == run
    Path("cut/events").mkdir(parents=True)
    make_run("trainprof-runs/many/ranks/0")
    assert find_run("cut").path == Path("cut").resolve()
    assert find_run("many").path == Path("trainprof-runs/many").resolve()
    with pytest.raises(RunNotFound) as caught:
        find_run("train-2")
    assert "many, train-1" in (caught.value.hint or "")


def test_what_is_no_run_directory_is_refused():
    Path("empty").mkdir()
    with pytest.raises(RunDamaged, match="not a run directory"):
        find_run("empty")
    Path("file").write_text("")
    with pytest.raises(RunNotFound):
        find_run("file")
    with pytest.raises(RunDamaged, match="format 99"):
        find_run(str(make_run("newer", '{"schema_version": 99}')))
    for number, text in enumerate(("", "{", "[]", "[" * 100_000, '{"schema_version": "x"}')):
        find_run(str(make_run(f"damaged{number}", text)))  # left to the analysis


SITES = {3: "src/train.py:84", 4: "src/val.py:9", 7: "other/train.py:84", 8: "src/val.py:9"}


def with_loaders(sites=SITES):
    loaders = [summaries.loader(site, id=number) for number, site in sites.items()]
    return replace(summaries.slow_loader(), loaders=loaders)


@pytest.mark.parametrize(
    ("name", "index"),
    [("3", 0), ("7", 2), ("8", 3), ("src/train.py:84", 0), ("other/train.py:84", 2)],
)
def test_a_loader_is_meant_by_its_id_or_its_place(name, index):
    assert find_loader(with_loaders(), name) == index
    alone = with_loaders({3: "src/train.py:84", 4: "src/pretrain.py:84"})
    assert find_loader(alone, "train.py:84") == 0


ALL = "loaders: 3 (src/train.py:84), 4 (src/val.py:9), 7 (other/train.py:84), 8 (src/val.py:9)"


@pytest.mark.parametrize(
    ("name", "sites", "hint"),
    [
        ("train.py:84", SITES, "name one by id: 3, 7"),
        ("src/val.py:9", SITES, "name one by id: 4, 8"),
        *((name, SITES, ALL) for name in ("5", "train.py", "", "rain.py:84", "-1")),
        ("3", {}, "no DataLoader was seen in it"),
    ],
)
def test_what_is_no_loader_or_several_names_those_there_are(name, sites, hint):
    with pytest.raises(LoaderNotFound) as caught:
        find_loader(with_loaders(sites), name)
    assert caught.value.hint == hint


@pytest.fixture
def starved(tmp_path):
    """A run's directory with its summary."""
    (tmp_path / "manifest.json").write_text('{"schema_version": 1}')
    (tmp_path / "summary.json").write_text(json.dumps(to_jsonable(summaries.starved())))
    return str(tmp_path)


def test_one_loader_is_shown_in_full_in_each_format(starved, capsys):
    shown = {
        "terminal": "Loader 0 at cache.py:52: 4 workers, 412 ms a batch each\n",
        "json": '"site": "cache.py:52"',
        "markdown": "| dataset\\[307\\] | 830 ms |",
    }
    for format, part in shown.items():
        assert run_command(["report", starved, "--loader", "cache.py:52", "--format", format]) == 0
        text = capsys.readouterr().out
        assert part in text
        assert "here the time went" not in text


@pytest.mark.parametrize("beside", [["--why", "serial_loading"], ["--suggest-patch"]])
def test_what_is_not_told_of_one_loader_alone_is_refused(starved, beside, capsys):
    assert run_command(["report", starved, "--loader", "3", *beside]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert f"'--loader': it does not go with {beside[0]}" in err
