"""Every way to start a script: it does what it does under plain python, and is measured right."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import zipapp
from dataclasses import replace
from pathlib import Path

import pytest
from support.processes import PYTHON, TRAINPROF, Ended, OnTerminal, run, write_script
from support.side_by_side import (
    LOOP,
    TRAINING,
    Project,
    check_same,
    environment,
    prove_both,
    run_both,
    run_ours,
    run_plain,
)
from support.styles import PREAMBLE, without_compiler

UNDER = (*TRAINPROF, "-o", "run")

SHOWS_ITS_START = """
import os, sys
arguments = [word.replace(os.getcwd(), "here") for word in sys.argv]
print(arguments, sys.orig_argv[-2:], __name__, __package__, __spec__ and __spec__.name)
print(os.path.basename(os.getcwd()), os.path.basename(sys.path[0]), os.path.basename(__file__))
"""

ARGPARSE = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("-o", "--output"); parser.add_argument("--epochs", type=int, default=9)
parser.add_argument("rest", nargs="*")
arguments = parser.parse_args()
print(arguments)
"""

HYDRA = f"""
import hydra

@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(configuration):
    print(configuration.lr, configuration.model.size)
    exec(compile({LOOP!r}, "loop", "exec"), globals())

if __name__ == "__main__":
    main()
    tell()
"""

ABSL = f"""
from absl import app, flags
flags.DEFINE_float("lr", 0.1, "step size")

def main(arguments):
    print(flags.FLAGS.lr, arguments[1:])
    exec(compile({LOOP!r}, "loop", "exec"), globals())
    tell()

if __name__ == "__main__":
    app.run(main)
"""

NANOGPT = """
import os, sys
learning_rate, batch_size = 1e-3, 4
exec(open("configurator.py").read())
print(learning_rate, batch_size, __file__ == os.path.abspath(__file__))
"""
CONFIGURATOR = """
for argument in sys.argv[1:]:
    if "=" in argument:
        name, value = argument[2:].split("=")
        globals()[name] = eval(value)
    else:
        exec(open(argument).read())
"""

# What was timed before goes on in the process that takes its place.
RE_EXECUTES = f"""
import os, sys
if len(sys.argv) == 1:
    print("first", flush=True)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        with timed("forward"):
            p = model(torch.ones(1, 8))
        optimizer.zero_grad(); p.sum().backward(); optimizer.step()
    environment = {{**os.environ, "MODE": "new", "TIMED": json.dumps([truth, counts])}}
    os.execve(sys.executable, [sys.executable, __file__, "again"], environment)
print(sys.argv[1:], os.environ["MODE"])
truth, counts = map(Counter, json.loads(os.environ["TIMED"]))
{LOOP}
tell()
"""

CHANGES_DIRECTORY = """
import os
os.makedirs("elsewhere", exist_ok=True)
os.chdir("elsewhere")
print(open(__file__).readline() == "\\n", os.listdir("."))
"""

ASKS = """
name = input("name? ")
print("hello", name, input())
"""

# By what they prove: one run can prove several ways that do not touch each other.
PROJECTS = {
    ("SCRIPT without a main guard, with arguments",): Project(
        ("train.py", "-o", "x", "--help", "--", "-m"),
        {"train.py": SHOWS_ITS_START + TRAINING},
    ),
    ("-m package.module with relative imports",): Project(
        ("-m", "package.train", "-q", "a"),
        {
            "package/__init__.py": "",
            "package/sibling.py": "value = 3",
            "package/train.py": "from . import sibling\n" + SHOWS_ITS_START + TRAINING,
        },
    ),
    ("sibling imports, from another directory by a relative path",): Project(
        ("../project/train.py",),
        {
            "project/sibling.py": "value = 3",
            "project/train.py": "from sibling import value\n" + SHOWS_ITS_START + TRAINING,
        },
        cwd="elsewhere",
    ),
    ("a directory with a __main__.py",): Project(
        ("project",),
        {
            "project/other.py": "value = 3",
            "project/__main__.py": "from other import value\n" + SHOWS_ITS_START + TRAINING,
        },
    ),
    ("a script on stdin",): Project(("-", "a"), {}, stdin=TRAINING),
    (
        "names with blanks and letters of any kind",
        "argparse",
        "input() from a pipe",
        "os.chdir in the script",
    ): Project(
        ("a directory/träin it.py", "-o", "x y", "--epochs", "2", "--", "-v"),
        {"a directory/träin it.py": CHANGES_DIRECTORY + ARGPARSE + ASKS + TRAINING},
        stdin="Ada\nLovelace\n",
    ),
    ("names that are not UTF-8", "exec(open(...).read()) configuration"): Project(
        (os.fsdecode(b"\xff\xfe.py"), "configuration.py", "--batch_size=8"),
        {
            os.fsdecode(b"\xff\xfe.py"): NANOGPT + TRAINING,
            "configurator.py": CONFIGURATOR,
            "configuration.py": "learning_rate = 0.5",
        },
    ),
    ("hydra",): Project(
        ("train.py", "lr=0.2", "+extra=1"),
        {
            "train.py": PREAMBLE + HYDRA,
            "conf/config.yaml": "defaults:\n  - model: small\nlr: 0.1\n",
            "conf/model/small.yaml": "size: 8\n",
        },
    ),
    ("absl flags", "PYTHONSAFEPATH"): Project(
        ("train.py", "--lr=0.3", "more"),
        {"sibling.py": "", "train.py": "import sys; print(sys.path)\n" + PREAMBLE + ABSL},
        env={"PYTHONSAFEPATH": "1"},
    ),
    ("python as the command, with options of its own",): Project(
        (sys.executable, "-B", "-X", "utf8", "-c", TRAINING, "a"), {}, command=()
    ),
}


@functools.cache
def plain_training() -> Ended:
    """What TRAINING comes to under plain python, however it is started."""
    return run((*PYTHON, "-c"), TRAINING, cwd=Path.cwd(), env=environment())


def plain_of(project: Project, tmp_path: Path) -> Ended | None:
    """What the project comes to under plain python: its start, and the training as above.

    None where the project trains in its own way.
    """
    words = [word.replace(TRAINING, "") for word in project.words]
    files = {name: text.replace(TRAINING, "") for name, text in project.files.items()}
    start = replace(project, words=words, files=files, stdin=project.stdin.replace(TRAINING, ""))
    if start == replace(project, words=words):
        return None
    started, trained = run_plain(start, tmp_path), plain_training()
    assert started.status == 0, started.stderr
    return Ended(started.stdout + trained.stdout, started.stderr + trained.stderr, trained.status)


@pytest.mark.parametrize(
    "project",
    [
        pytest.param(
            project,
            id=", ".join(names),
            marks=[pytest.mark.proves("Entry", name) for name in names],
        )
        for names, project in PROJECTS.items()
    ],
)
def test_it_runs_the_same_and_is_measured_right(project: Project, tmp_path: Path) -> None:
    prove_both(project, tmp_path, plain_of(project, tmp_path))


@pytest.mark.proves("Entry", "a zipapp")
def test_a_zipapp(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    write_script(source, TRAINING, "__main__.py")
    zipapp.create_archive(source, tmp_path / "train.pyz", interpreter="/usr/bin/env python3")
    prove_both(Project((str(tmp_path / "train.pyz"),), {}), tmp_path, plain_training())


@pytest.mark.proves("Entry", "training before and after os.execv, counted together")
@pytest.mark.proves("Entry", "os.execve of itself with a changed environment")
def test_training_before_and_after_exec_is_one_process(tmp_path: Path) -> None:
    files = {"train.py": PREAMBLE + RE_EXECUTES}
    project = Project(("train.py",), files, steps=4 + 12)
    summary = prove_both(project, tmp_path)
    assert summary["trained_apart"] == []
    assert len(list((tmp_path / "ours" / "all" / "run" / "events").iterdir())) == 2


CLEARED = """
import os, sys
if len(sys.argv) == 1:
    os.execve(sys.executable, [sys.executable, __file__, "again"], {"OMP_NUM_THREADS": "1"})
"""


def test_without_our_environment_the_report_says_what_it_may_be(tmp_path: Path) -> None:
    project = Project(("train.py",), {"train.py": CLEARED + TRAINING})
    pair = run_ours(project, tmp_path, plain_training())
    check_same(pair)
    summary = pair.summary()
    assert summary["training"]["steps"] == 0
    assert "cannot reach" in summary["not_observed"]["training"]


DEBUGGED = """
import torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    loss = model(torch.ones(1, 2)).sum()
    if step == 1:
        breakpoint()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
print("done", input("more? "))
"""


@pytest.mark.proves("Entry", "breakpoint() and input() on a terminal")
def test_the_debugger_and_questions_on_a_terminal(tmp_path: Path) -> None:
    script = write_script(tmp_path, without_compiler(DEBUGGED))
    shown = []
    for launcher in (PYTHON, UNDER):
        with OnTerminal(launcher, script, cwd=tmp_path) as terminal:
            terminal.await_text(b"(Pdb) ")
            # What is typed before a prompt is there is echoed before it.
            terminal.type(b"p step, type(loss).__name__\n")
            terminal.await_text(b"(1, 'Tensor')\r\n(Pdb) ")
            terminal.type(b"where;; p 'where' + 'abouts'\n")
            terminal.await_text(b"'whereabouts'\r\n(Pdb) ")
            terminal.type(b"continue\n")
            terminal.await_text(b"more? ")
            terminal.type(b"yes\n")
            assert terminal.end() == 0
            shown.append(terminal.shown)
    assert shown[0] == shown[1]
    summary = (tmp_path / "run" / "summary.json").read_text()
    assert '"steps": 3' in summary


OTHER_PYTHONS = """
import subprocess, sys
# What a child of any Python makes of our directory on its PYTHONPATH.
for python in sys.argv[1:]:
    for flags in ([], ["-I"], ["-E"], ["-S"], ["-s"]):
        child = subprocess.run([python, *flags, "-c", "import sys; print(sys.version_info[:2])"],
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        print(python, flags, child.returncode, child.stdout)
    child = subprocess.run([python, "-c", "import sitecustomize"], capture_output=True)
    print(python, child.stderr.splitlines()[-1:])
    child = subprocess.run([python, "-c", "import os; print('TRAINPROF_DIR' in os.environ)"],
                           env={}, capture_output=True)
    print(child)
"""


def other_pythons() -> list[str]:
    """Pythons of any version on this machine, each once."""
    places = [Path(place) for place in os.environ.get("PATH", "").split(os.pathsep) if place]
    places += sorted(Path.home().glob(".pyenv/versions/*/bin"))
    pythons: dict[Path, str] = {}
    for place in places:
        for name in ("python", "python2", "python3"):
            path = place / name
            if path.exists() and "shims" not in path.parts:
                pythons.setdefault(path.resolve(), str(path))
    return sorted(pythons.values())


@pytest.mark.proves("Children", "of other Python versions, with -I, -E, -S, -s or an empty env")
def test_children_of_other_pythons_do_as_they_would(tmp_path: Path) -> None:
    pythons = other_pythons()
    project = Project(("train.py", *pythons), {"train.py": OTHER_PYTHONS})
    pair = run_both(project, tmp_path)
    assert pair.ours.stdout.splitlines() == pair.plain.stdout.splitlines()
    assert pair.ours.stderr == pair.plain.stderr == b""
    for python in pythons:
        assert f"{python} [] 0 ".encode() in pair.plain.stdout
    assert pair.summary()["faults"] == []


def test_nothing_is_left_beside_the_run_directory(tmp_path: Path) -> None:
    """Neither in the project nor in the site-packages of a virtual environment."""
    text = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import json'])\n"
    cwd = Project(("train.py",), {"train.py": text}).write(tmp_path / "project")
    site = Path(sys.prefix) / "lib"
    before = sorted(site.glob("python*/site-packages/*"))
    assert run(UNDER, "train.py", cwd=cwd).status == 0
    assert sorted(path.name for path in cwd.iterdir()) == ["run", "train.py"]
    assert sorted(site.glob("python*/site-packages/*")) == before


@pytest.mark.proves("Children", "trainprof run inside trainprof run: each records its own")
def test_a_run_inside_a_run_is_its_own(tmp_path: Path) -> None:
    command = [*TRAINPROF, "-o", "inner", "train.py"]
    sweep = f"import subprocess\nsubprocess.run({command}, check=True)\n"
    project = Project(("sweep.py",), {"sweep.py": sweep, "train.py": TRAINING})
    pair = run_ours(project, tmp_path, plain_training())
    check_same(pair)
    summary = pair.summary()
    assert summary["training"]["steps"] == 0
    assert "inner" in summary["not_observed"]["training"]
    within = replace(pair, run=pair.run.parent / "inner").summary()
    assert within["training"]["steps"] == 12
    assert within["faults"] == summary["faults"] == []


@pytest.mark.proves("Entry", "two trainprofs with the same -o at once: one runs, one is refused")
def test_two_at_once_with_one_directory(tmp_path: Path) -> None:
    """However they interleave; the one that was refused has not run the script."""
    write_script(tmp_path, "print('ran')")
    command = [*UNDER, "script.py"]
    both = [
        subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    ends = sorted((process.communicate(timeout=60), process.returncode) for process in both)
    assert sorted(status for _, status in ends) == [0, 125]
    assert sorted(stdout for (stdout, _), _ in ends) == [b"", b"ran\n"]


def test_files_that_are_asked_for_are_written_at_the_end(tmp_path):
    write_script(tmp_path, "print('of the script')\nraise SystemExit(3)\n")
    for again in ((), ("--force",)):
        loud = (*TRAINPROF[:-1], "-o", "run", *again)
        ended = run(loud, "--html", "--trace", "script.py", cwd=tmp_path)
        assert (ended.stdout, ended.status) == (b"of the script\n", 3)
        *_, page, trace = ended.stderr.decode().splitlines()
        assert page == "trainprof: wrote run/report.html"
        assert trace == "trainprof: wrote run/trace.json.gz"
        assert (tmp_path / "run" / "report.html").read_bytes().startswith(b"<!doctype html>")
        assert (tmp_path / "run" / "trace.json.gz").stat().st_size
    ended = run(UNDER, "--force", "-q", "--html", "script.py", cwd=tmp_path)
    assert not ended.stderr
    assert (tmp_path / "run" / "report.html").exists()
