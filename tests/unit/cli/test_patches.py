"""`report --suggest-patch` on files of all kinds, and what `git apply` and `patch` make of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import replace

import pytest
from support import summaries

from trainprof.analysis.summary.finding import LOADER_ID, OTHER_OPTIMIZERS
from trainprof.analysis.summary.json_text import to_jsonable
from trainprof.cli.app import run_command

CHANGE = {"num_workers": 4}
ROLES = ("training", "evaluation")
TOOLS = {"git": ["git", "apply", "-p1", "-"], "patch": ["patch", "-p1", "--no-backup-if-mismatch"]}


def suggested(root, capture, *, site="train.py:1", loaders=None, findings=None, **of_finding):
    """Returns what stdout and stderr say of a run that began in `root`."""
    run = root / "run"
    run.mkdir()
    changes = {"site": site, "change": CHANGE, "evidence": {LOADER_ID: 0}, **of_finding}
    summary = replace(
        summaries.slow_loader(),
        findings=findings or [summaries.finding(**changes)],
        loaders=loaders or [summaries.loader(site)],
    )
    (run / "manifest.json").write_text(json.dumps({"schema_version": 1, "cwd": str(root)}))
    (run / "summary.json").write_text(json.dumps(to_jsonable(summary)))
    assert run_command(["report", str(run), "--suggest-patch"]) == 0
    out, err = capture.readouterr()
    return out, err.decode()


def apply(how, diff, folder):
    if shutil.which(how) is None:
        pytest.skip(f"there is no {how}")
    subprocess.run(TOOLS[how], input=diff, cwd=folder, check=True, capture_output=True)


KINDS = {
    "LF": b"a = DataLoader(d, 64)\nb = 2\n",
    "no end": b"x = 1\nb = 2\na = DataLoader(d, 64)",
    "CRLF": b"x = 1\r\na = DataLoader(d, 64)\r\nb = 2\r\n",
    "CRLF, lines": b"x = 1\r\na = DataLoader(\r\n    d,\r\n    64,\r\n)\r\nb = 2\r\n",
    "mixed": b"x = 1\r\na = DataLoader(\n    d,\r\n    64,\n)\r\nb = 2\n",
    "CR within": b"x = 1\ry = 2\na = DataLoader(d, 64)\n",
    "form feed": b"x = 1\n\x0c\na = DataLoader(d, 64)\n\x0c\nb = 2\n",
    "form feed ahead": b"x = 1\n\x0ca = DataLoader(d, 64)\nb = 2\n",
    "separators": b'x = "\x0b\x1c\x1d\x1e"  # \x0b \x0c\na = DataLoader(d, 64)  # \x1c\nb = 2\n',
    "wide separators": 'x = "\x85\u2028\u2029"\na = DataLoader(d, 64)  # \u2028\n'.encode(),
}


@pytest.mark.parametrize("how", TOOLS)
@pytest.mark.parametrize("before", KINDS.values(), ids=KINDS)
def test_a_file_keeps_all_but_what_is_changed(before, how, tmp_path, capsysbinary):
    (tmp_path / "train.py").write_bytes(before)
    # Python counts lines as a stream with universal newlines does.
    ahead = before[: before.index(b"DataLoader")].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    site = f"train.py:{ahead.count(chr(10).encode()) + 1}"
    out, _ = suggested(tmp_path, capsysbinary, site=site)
    apply(how, out, tmp_path)
    after = before.replace(b" 64", b" 64, num_workers=4")
    assert (tmp_path / "train.py").read_bytes() == after


@pytest.mark.parametrize("how", TOOLS)
@pytest.mark.parametrize("name", ["my train.py", "größe.py", "sub dir/x.py", "linked/it's.py"])
def test_a_file_of_any_name_and_what_a_link_leads_to(name, how, tmp_path, capsysbinary):
    (tmp_path / "real").mkdir()
    (tmp_path / "linked").symlink_to("real")
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("a = DataLoader(d, 8)\n")
    out, _ = suggested(tmp_path, capsysbinary, site=f"{name}:1")
    apply(how, out, tmp_path)
    assert (tmp_path / name).read_text() == "a = DataLoader(d, 8, num_workers=4)\n"
    assert (tmp_path / "linked").is_symlink()


@pytest.mark.parametrize("name", ["train.py", "../other.py"])
def test_what_lies_elsewhere_is_left_alone(name, tmp_path, capsysbinary):
    root, other = tmp_path / "root", tmp_path / "other.py"
    root.mkdir()
    other.write_text("a = DataLoader(d, 8)\n")
    (root / "train.py").symlink_to(other)
    out, _ = suggested(root, capsysbinary, site=f"{name}:1")
    assert b"where the run began\n" in out
    assert b"---" not in out


COPY = {"non_blocking": True}


@pytest.mark.parametrize(
    ("source", "change", "why"),
    [
        (b"# coding: none-such\na = DataLoader(d, 8)\n", CHANGE, "parse: unknown encoding"),
        (b"# coding: latin-1\na = DataLoader(d, 8)\n", CHANGE, "its encoding is not UTF-8"),
        (b"\xef\xbb\xbfa = DataLoader(d, 8)\n", CHANGE, "its encoding is not UTF-8"),
        (b"x = '\xff'; a = DataLoader(d, 8)\n", CHANGE, "does not parse"),
        (b"a = DataLoader(d, 8", CHANGE, "does not parse"),
        (b"a = DataLoader(d, 8)\0", CHANGE, "does not parse"),
        (None, CHANGE, "cannot be read: No such file"),
        (b"train(d)\n", CHANGE, "line 1 has no calls of DataLoader"),
        (b"x = x.to(d, torch.half)\n", COPY, "line 1 may pass it by position"),
        (b"x = x.to(*where)\n", COPY, "passes arguments by"),
        (b"x = x.to(**where)\n", COPY, "passes arguments by"),
        (b"x = x.to((d))\n", COPY, "written in a way"),
        (b"x, y = x.to(d), loss.to('cpu')\n", COPY, "line 1 has several copies"),
        (b"x = x.to(d, non_blocking=True)\n", COPY, "the call has this value already"),
        (b"x = x.to(d); a = make(d)\n", {**COPY, "pin_memory": True}, "no calls of DataLoader"),
        (
            b"a = DataLoader(d, num_workers=args.workers)\n",
            CHANGE,
            "num_workers=args.workers already",
        ),
        (b"a = DataLoader(d)\n", {"persistent_workers": True}, "num_workers is not a plain number"),
        (b"a = DataLoader(d)\n", {"x=1), exit(), f(y": 4}, "written in a way"),
    ],
)
def test_what_takes_a_decision_or_cannot_be_read_is_left_to_the_user(
    source, change, why, tmp_path, capsysbinary
):
    if source is not None:
        (tmp_path / "train.py").write_bytes(source)
    out, err = suggested(tmp_path, capsysbinary, change=change)
    remark = next(line for line in out.decode().splitlines() if "by hand: " in line)
    assert why in remark
    assert remark.removeprefix("# ") in err
    assert b"---" not in out


def test_what_is_to_be_minded_stands_by_the_diff_and_on_stderr(tmp_path, capsysbinary):
    (tmp_path / "train.py").write_text("a = DataLoader(d, 8)\n")
    minded = ["workers keep their copy", "one\n--- a/other.py\n+++ b/other.py\nline"]
    out, err = suggested(tmp_path, capsysbinary, cautions=minded)
    lines = out.decode().splitlines()
    head = lines[: lines.index("--- a/train.py")]
    assert all(line.startswith("# ") for line in head)
    assert "# Note: workers keep their copy" in head
    # Workers may as well lose: who applies it without the page has to know.
    assert head[1].startswith("# Expected: ")
    assert "estimate" in head[1]
    assert "trainprof: Note: workers keep their copy\n" in err
    assert len(err.splitlines()) == len(head)
    apply("git", out, tmp_path)


def test_a_terminal_shows_it_once_and_that_a_line_builds_several_loaders(
    tmp_path, capsysbinary, monkeypatch
):
    (tmp_path / "train.py").write_text("a = DataLoader(d, 8)\n")
    monkeypatch.setattr("trainprof.cli.report.is_terminal", lambda stream: True)
    loaders = [summaries.loader("train.py:1", id=i, role=r) for i, r in enumerate(ROLES)]
    out, err = suggested(tmp_path, capsysbinary, loaders=loaders)
    assert b"# Note: its line builds 2 loaders (training, evaluation)" in out
    assert err == ""


def test_ranks_that_each_had_a_trainprof_tell_where_the_run_began_and_when(tmp_path, capsysbinary):
    script = tmp_path / "train.py"
    script.write_text("a = DataLoader(d, 8)\n")
    suggested(tmp_path, capsysbinary)
    run = tmp_path / "run"
    (run / "ranks" / "0").mkdir(parents=True)
    manifest = run / "ranks" / "0" / "manifest.json"
    (run / "manifest.json").rename(manifest)

    def again(began_ns):
        remark = {"schema_version": 1, "cwd": str(tmp_path), "times": {"spawned_time_ns": began_ns}}
        manifest.write_text(json.dumps(remark))
        assert run_command(["report", str(run), "--suggest-patch"]) == 0
        return capsysbinary.readouterr().out

    changed_ns = script.stat().st_mtime_ns
    assert b"+a = DataLoader(d, 8, num_workers=4)\n" in again(changed_ns + 1)
    out = again(changed_ns - 1)
    assert b"Edit by hand: train.py was edited after the run began" in out
    assert b"+a =" not in out


def test_all_optimizers_of_a_finding_are_changed(tmp_path, capsysbinary):
    (tmp_path / "gan.py").write_text("d = Adam(p)\ng = Adam(q, lr=0.1)\n")
    (tmp_path / "more.py").write_text("s = SGD(p)\nbuilt = make(q)\n")
    others = ["Adam gan.py:1", "SGD more.py:1", "Adam more.py:2"]
    known = {"evidence": {"optimizer": "Adam", OTHER_OPTIMIZERS: others}, "change": {"fused": True}}
    out, _ = suggested(tmp_path, capsysbinary, site="gan.py:2", **known)
    assert b"# Edit by hand: Adam at more.py:2: line 2 has no calls of Adam" in out
    apply("git", out, tmp_path)
    changed = "d = Adam(p, fused=True)\ng = Adam(q, lr=0.1, fused=True)\n"
    assert (tmp_path / "gan.py").read_text() == changed
    assert (tmp_path / "more.py").read_text() == "s = SGD(p, fused=True)\nbuilt = make(q)\n"


@pytest.mark.parametrize("copies_in", ["train.py", "engine.py"])
def test_batches_are_pinned_where_they_are_made_and_copied_where_they_are_used(
    copies_in, tmp_path, capsysbinary
):
    (tmp_path / "train.py").write_text("loader = DataLoader(data)\nx = x.to(device)\n")
    (tmp_path / "engine.py").write_text("\nx = x.to(device)\n")
    change = {"pin_memory": True, "non_blocking": True}
    loaders = [summaries.loader("train.py:1")]
    site = f"{copies_in}:2"
    out, _ = suggested(tmp_path, capsysbinary, site=site, loaders=loaders, change=change)
    assert "pin_memory" not in (tmp_path / "train.py").read_text()  # it writes nothing
    apply("git", out, tmp_path)
    assert "DataLoader(data, pin_memory=True)" in (tmp_path / "train.py").read_text()
    assert "x.to(device, non_blocking=True)" in (tmp_path / copies_in).read_text()


def test_several_changes_of_one_file_apply_together(tmp_path, capsysbinary):
    lines = ["a = DataLoader(data, 8,", "    num_workers=4)", "b = DataLoader(other,", "    8)", ""]
    (tmp_path / "train.py").write_text("\n".join(lines))
    loaders = [summaries.loader(f"train.py:{line}", id=line) for line in (1, 3)]
    changes = [(1, {"num_workers": 0}), (3, {"num_workers": 2}), (3, {"prefetch_factor": 4})]
    findings = [
        summaries.finding(site=f"train.py:{line}", change=change, evidence={LOADER_ID: line})
        for line, change in changes
    ]
    out, _ = suggested(tmp_path, capsysbinary, loaders=loaders, findings=findings)
    assert out.count(b"--- a/train.py") == 1
    assert b"# Edit by hand: a change above is for the same call" in out
    apply("git", out, tmp_path)
    lines[1], lines[3] = "    num_workers=0)", "    8, num_workers=2)"
    assert (tmp_path / "train.py").read_text() == "\n".join(lines)


@pytest.mark.parametrize(
    ("source", "change", "expected"),
    [
        ("x = x.cuda( )\n", COPY, "x = x.cuda( non_blocking=True)\n"),
        ("x = x.to(d, non_blocking=False)\n", COPY, "x = x.to(d, non_blocking=True)\n"),
        (
            "x, y = x.to(d), y.to(d)\n",
            COPY,
            "x, y = x.to(d, non_blocking=True), y.to(d, non_blocking=True)\n",
        ),
        (
            "a = DataLoader(\n    d,\n    num_workers=2,  # two\n)\n",
            {"persistent_workers": True, "prefetch_factor": 4},
            "a = DataLoader(\n    d,\n    num_workers=2, persistent_workers=True, "
            "prefetch_factor=4,  # two\n)\n",
        ),
    ],
)
def test_arguments_are_set(source, change, expected, tmp_path, capsysbinary):
    (tmp_path / "train.py").write_text(source)
    out, _ = suggested(tmp_path, capsysbinary, change=change)
    apply("git", out, tmp_path)
    assert (tmp_path / "train.py").read_text() == expected


@pytest.mark.parametrize("name", ['a"b.py', "a\\b.py", "a\tb.py", "a\n--- a/b.py", "fifo"])
def test_a_name_that_not_every_diff_can_hold_and_a_pipe(name, tmp_path, capsysbinary):
    if name == "fifo":
        os.mkfifo(tmp_path / name)
    else:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("a = DataLoader(d, 8)\n")
    out, _ = suggested(tmp_path, capsysbinary, site=f"{name}:1")
    assert (b"not a plain file" if name == "fifo" else b"by hand: its name has characters") in out
    assert b"\n---" not in out
