"""What is digests of the files beside a script."""

from __future__ import annotations

import hashlib
import os

import pytest

from trainprof.launch import sources
from trainprof.launch.sources import (
    function_names,
    named_settings,
    needs_profile,
    own_sources,
    settings_next_to,
)


def plant(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"# {name}\n")


def test_modules_beside_the_script_and_below_it(tmp_path):
    plant(tmp_path, "train.py", "data.py", "lib/model.py", "notes.txt")
    digests = own_sources(tmp_path / "train.py")
    assert digests == {
        name: hashlib.sha256(f"# {name}\n".encode()).hexdigest()[:16]
        for name in ("data.py", "lib/model.py")
    }


def test_what_is_not_the_users_own_is_left_out(tmp_path):
    plant(
        tmp_path,
        "train.py",
        ".git/hook.py",
        "venv/pyvenv.cfg",
        "venv/lib.py",
        "node_modules/a.py",
        "a/b/c/too_deep.py",
    )
    os.symlink("/etc", tmp_path / "elsewhere")
    os.mkfifo(tmp_path / "pipe.py")
    assert own_sources(tmp_path / "train.py") == {}
    assert own_sources(tmp_path / "missing" / "train.py") == {}


def test_it_never_reads_much(tmp_path, monkeypatch):
    plant(tmp_path, *(f"m{number:03}.py" for number in range(150)))
    assert len(own_sources(tmp_path / "train.py")) == 100
    monkeypatch.setattr(sources, "_MOST_BYTES", 30)
    assert len(own_sources(tmp_path / "train.py")) == 3
    monkeypatch.setattr(sources, "_MOST_ENTRIES", 2)
    assert len(own_sources(tmp_path / "train.py")) == 2


def test_settings_that_the_command_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plant(tmp_path, "cfg.yaml", "conf/base.toml", "more.json", "words.txt", "model.py", "pic.png")
    plant(tmp_path, "metrics.json", "out.yaml")
    os.mkfifo("pipe.yaml")
    words = ["train.py", "--config", "cfg.yaml", "--base=conf/base.toml", "x.more=more.json"]
    words += [
        "@words.txt",
        "model.py",
        "pic.png",
        "gone.yaml",
        "pipe.yaml",
        "a\x00.yaml",
        "@",
        "conf",
    ]
    # What the script writes is another file after each run.
    words += ["--metrics-out", "metrics.json", "--save_to=out.yaml"]
    digests = named_settings(words)
    names = ["cfg.yaml", "conf/base.toml", "more.json", "words.txt", "model.py"]
    assert list(digests) == names
    assert digests["cfg.yaml"] == hashlib.sha256(b"# cfg.yaml\n").hexdigest()[:16]
    monkeypatch.setattr(sources, "LARGEST_SETTINGS_BYTES", 12)
    assert set(named_settings(words)) == {"cfg.yaml", "more.json", "model.py", "words.txt"}
    monkeypatch.setattr(sources, "_MOST_SETTINGS", 2)
    assert len(named_settings(words)) == 2


def test_settings_in_folders_that_are_called_so(tmp_path):
    plant(tmp_path, "train.py", "conf/config.yaml", "conf/model/big.yml", "configs/a.json")
    plant(tmp_path, "outputs/config.yaml", "config.yaml", "conf/.hydra/config.yaml")
    assert set(settings_next_to(tmp_path / "train.py")) == {
        "conf/config.yaml",
        "conf/model/big.yml",
    }
    assert settings_next_to(tmp_path / "missing" / "train.py") == {}


USE = "@profile\ndef f(): return 1\n"


def needs(tmp_path, text, beside=""):
    script = tmp_path / "train.py"
    script.write_text(text)
    (tmp_path / "model.py").write_text(beside)
    return needs_profile(str(script))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (USE, True),
        ("class A:\n    @ profile\n    def f(self): pass\n", True),
        ("import builtins\n@builtins.profile\ndef f(): pass\n", True),
        ("step = profile(lambda: 1)\n", True),
        ("import os  # profile\n" + USE, True),
        *(("# @profile\n", False), ("model.profile(1)\n", False), ("my_profile(1)\n", False)),
    ],
)
def test_who_would_end_without_it_is_given_one(tmp_path, text, expected):
    assert needs(tmp_path, text) is expected
    assert needs(tmp_path, "import model\n", beside=text) is expected
    assert not needs_profile(None)


@pytest.mark.parametrize(
    "asks",
    [
        "try:\n    profile\nexcept NameError:\n    profile = lambda f: f\n",
        "if 'profile' not in globals(): profile = lambda f: f\n",
        "import builtins\nif hasattr(builtins, 'profile'): print(1)\n",
        "import builtins\nbuiltins.profile = lambda f: f\n",
        "try:\n    from line_profiler import profile\nexcept ImportError:\n    pass\n",
        "from torch.profiler import ProfilerActivity, profile\n",
        "def profile(f): return f\n",
        "profile: object = print\n",
    ],
)
def test_who_has_one_or_asks_for_it_runs_as_without_us(tmp_path, asks):
    assert not needs(tmp_path, asks + USE)
    assert not needs(tmp_path, asks, beside=USE)
    assert needs(tmp_path, USE, beside=asks + USE)


COMPLETE = {"train.py": "import json, lib.model\ndef main(): ...\n", "lib/model.py": "def f(): ..."}


@pytest.mark.parametrize(
    ("more", "names"),
    [
        ({"trainprof-runs/a/b/c.py": "def copied(): ..."}, {"main", "f"}),
        (
            {"lib/model.py": "from . import x\nmatch 1:\n case 1:\n  def f(): ..."},
            {"main", "f"},
        ),
        ({"src/pkg/data/aug.py": "def augment(): ..."}, set()),
        ({"lib/model.py": "import installed_elsewhere"}, set()),
        ({"lib/model.py": "from ... import outside"}, set()),
        ({"lib/model.py": "importlib.import_module(name)"}, set()),
        ({"lib/model.py": "print 'Python 2'"}, set()),
        ({"large.py": "#" * (sources._MOST_BYTES + 1)}, set()),
    ],
)
def test_functions_are_named_where_all_files_were_read(tmp_path, monkeypatch, more, names):
    monkeypatch.chdir(tmp_path)
    for name, text in (COMPLETE | more).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert function_names(tmp_path / "train.py") == names


@pytest.mark.parametrize("link", ["pkg", "aug.py"])
def test_behind_a_link_there_may_be_functions(tmp_path, monkeypatch, link):
    monkeypatch.chdir(tmp_path)
    plant(tmp_path, "train.py")
    (tmp_path / "train.py").write_text("def main(): ...")
    assert function_names(tmp_path / "train.py") == {"main"}
    os.symlink("/elsewhere", tmp_path / link)
    assert function_names(tmp_path / "train.py") == set()
