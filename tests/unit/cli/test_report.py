"""`trainprof report`: which run and loader are meant; --why, --explain and --rule."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import replace
from types import SimpleNamespace

import pytest
from support import charts, summaries

from trainprof.analysis.summary.json_text import to_jsonable
from trainprof.cli.app import run_command
from trainprof.cli.report import LoaderNotFound, find_loader
from trainprof.findings.catalogue import GONE, RULES
from trainprof.record.run_directory import RunDirectory


@pytest.fixture
def saved(tmp_path):
    """A run with a finding about its loader."""
    finding = summaries.finding(site="train.py:1")
    loaders = [summaries.loader("train.py:1")]
    return save(replace(summaries.slow_loader(), findings=[finding], loaders=loaders), tmp_path)


def save(summary, parent, **manifest):
    run = parent / "run"
    run.mkdir()
    (run / "manifest.json").write_text(json.dumps({"schema_version": 1, **manifest}))
    (run / "summary.json").write_text(json.dumps(to_jsonable(summary)))
    return run


def report(*words):
    return run_command(["report", *words])


@pytest.mark.parametrize(
    ("was", "now"), [(name, rule.id) for rule in RULES for name in rule.old_names]
)
def test_a_merged_finding_is_explained_by_the_one_it_went_into(was, now, saved, capsys):
    assert report("--explain", was) == 0
    assert capsys.readouterr().out.startswith(f"{was} is now part of {now}.\n\n{now}\n")
    path = saved / "summary.json"
    summary = json.loads(path.read_text())
    del summary["rules"]  # runs of those versions know no rules
    summary["findings"][0]["id"] = was
    path.write_text(json.dumps(summary))
    assert report(str(saved), "--format", "json") == 0
    assert json.loads(capsys.readouterr().out)["findings"][0]["id"] == now
    for name in (was, now):
        assert report(str(saved), "--why", name) == 0
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
    assert "share from 25 %" in capsys.readouterr().out


@pytest.mark.parametrize(("gone", "where"), sorted(GONE.items()))
def test_what_was_a_finding_once_says_where_it_is_seen_now(gone, where, capsys):
    assert report("--explain", gone) == 2
    assert f"{gone} is not a finding any more" in (text := capsys.readouterr().err)
    assert where in text


@pytest.mark.parametrize("option", ["--why", "--explain"])
def test_an_unknown_finding_names_the_nearest(saved, option, capsys):
    assert report(str(saved), option, "nonsense") == 2
    message, hint = capsys.readouterr().err.splitlines()
    assert "unknown finding 'nonsense'" in message
    assert len(hint) < 100
    assert report(str(saved), option, "discarded-gradient") == 2
    assert "did you mean discarded_gradients?" in capsys.readouterr().err


def test_why_takes_a_number_of_the_page_and_any_spelling(saved, capsys):
    shown = []
    for name in ("1", "serial_loading", "SERIAL-LOADING"):
        assert report(str(saved), "--why", name) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1] == shown[2]
    assert report(str(saved), "--why", "2") == 2
    assert "its findings: 1 serial_loading" in capsys.readouterr().err
    assert report("--explain", "Serial_Loading") == 0
    assert capsys.readouterr().out.startswith("serial_loading\n")


def test_a_run_without_a_summary_gets_one(tmp_path, capsys, monkeypatch):
    run = save(summaries.slow_loader(), tmp_path)
    (run / "summary.json").unlink()
    monkeypatch.setattr(
        "trainprof.findings.summarize.summarize", lambda *_, **__: summaries.slow_loader()
    )
    assert report(str(run), "--format", "md") == 0
    assert capsys.readouterr().out == report_of(run, capsys)
    assert (run / "summary.json").exists()


def report_of(run, capsys):
    assert report(str(run), "--format", "markdown") == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("rule", ["nonsense=1", "gc_pauses.share=much", "gc_pauses.share=-1"])
def test_a_threshold_that_means_nothing(saved, rule, capsys):
    assert report(str(saved), "--rule", rule) == 2
    assert "'--rule'" in capsys.readouterr().err


@pytest.fixture(autouse=True)
def in_empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


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


ALL = "its loaders: 3 (src/train.py:84), 4 (src/val.py:9), 7 (other/train.py:84), 8 (src/val.py:9)"


@pytest.mark.parametrize(
    ("name", "sites", "hint"),
    [
        ("train.py:84", SITES, "use an id: 3, 7"),
        ("src/val.py:9", SITES, "use an id: 4, 8"),
        *((name, SITES, ALL) for name in ("5", "train.py", "", "rain.py:84", "-1")),
        ("3", {}, "trainprof saw no DataLoader in it"),
    ],
)
def test_what_is_no_loader_or_several_names_those_there_are(name, sites, hint):
    with pytest.raises(LoaderNotFound) as caught:
        find_loader(with_loaders(sites), name)
    assert caught.value.hint == hint


@pytest.fixture
def starved(tmp_path):
    return str(save(summaries.starved(), tmp_path))


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


@pytest.mark.parametrize("other", [["--why", "serial_loading"], ["--suggest-patch"]])
def test_options_for_the_whole_run_are_refused_with_loader(starved, other, capsys):
    assert run_command(["report", starved, "--loader", "3", *other]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert f"'--loader': not together with {other[0]}" in err


def files_of(run):
    return sorted(path.name for path in run.iterdir())


@pytest.mark.parametrize("words", [["--html"], ["--format", "HTML"], ["--html", "--format=html"]])
def test_a_page_is_written_into_the_run_and_its_path_printed(words, saved, capsys):
    before = files_of(saved)
    for _ in range(2):
        assert report(str(saved), *words) == 0
        out, err = capsys.readouterr()
        assert (out, err) == (f"{saved}/report.html\n", "")
        assert files_of(saved) == sorted([*before, "report.html"])
    assert (saved / "report.html").read_text().startswith("<!doctype html>")
    assert (saved / "report.html").stat().st_mode & 0o777 == 0o600
    assert RunDirectory(saved).foreign_entries() == []


def test_a_page_stays_whole_where_the_next_one_fails(saved, capsys, monkeypatch):
    page = saved / "report.html"
    page.write_text("before")
    monkeypatch.setattr("trainprof.report.html.page.render", lambda *_: None)
    assert report(str(saved), "--html") != 0
    assert page.read_text() == "before"
    assert "report.html.tmp" not in files_of(saved)


def test_a_link_in_a_run_is_replaced_and_one_of_yours_is_followed(saved, tmp_path, capsys):
    theirs, mine = tmp_path / "theirs", tmp_path / "mine.html"
    for link, target in ((saved / "report.html", theirs), (tmp_path / "link.html", mine)):
        target.write_text("before")
        link.symlink_to(target)
    assert report(str(saved), "--html") == 0
    assert theirs.read_text() == "before"
    assert not (saved / "report.html").is_symlink()
    assert report(str(saved), "--html", "--output", str(tmp_path / "link.html")) == 0
    assert mine.read_text() == (saved / "report.html").read_text()
    assert (tmp_path / "link.html").is_symlink()


@pytest.mark.parametrize("output", ["", "/dev/null", "nowhere/page.html"])
def test_a_place_that_takes_no_file_is_left_alone(output, saved, tmp_path, capsys):
    assert report(str(saved), "--html", "-o", output or str(tmp_path)) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2
    assert os.path.islink("/dev/stdout")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["--output", "x"], "--output"),
        (["--html", "--trace", "-o", "x"], "--output"),
        (["--html", "--why", "1"], "--why"),
        (["--trace", "--loader", "0"], "--loader"),
        (["--format", "speedscope", "--suggest-patch"], "--suggest-patch"),
    ],
)
def test_options_that_files_do_not_take(words, option, saved, capsys):
    before = files_of(saved)
    assert report(str(saved), *words) == 2
    assert option in capsys.readouterr().err
    assert files_of(saved) == before


def test_a_run_without_stack_samples_has_none_for_speedscope(saved, capsys):
    assert report(str(saved), "--format", "speedscope") == 2
    assert "no stack samples" in capsys.readouterr().err
    assert "speedscope.json" not in files_of(saved)


def test_files_show_the_part_of_the_run_that_is_asked_for(saved, capsys, monkeypatch):
    asked = []
    made = {
        "trainprof.findings.summarize.summarize": summaries.slow_loader(),
        "trainprof.analysis.charts.charts.charts_of": charts.charts(),
        "trainprof.analysis.trace.trace.trace_of": SimpleNamespace(note="Steps 5 to 7."),
    }
    for function, result in made.items():
        monkeypatch.setattr(
            function, lambda *_, result=result, **part: asked.append(part) or result
        )
    monkeypatch.setattr("trainprof.report.trace.write", lambda _, file: file.write(b"trace"))
    words = ["--html", "--trace", "--format", "speedscope", "--epoch", "2", "--steps", "5:9"]
    assert report(str(saved), *words) == 0
    names = ("report.html", "trace.json.gz", "speedscope.json")
    said = capsys.readouterr()
    assert said.out.splitlines() == [f"{saved}/{name}" for name in names]
    assert said.err == "trainprof: Steps 5 to 7.\n"
    assert [(part["epoch"], part["steps"]) for part in asked] == [(1, (4, 9))] * 4
