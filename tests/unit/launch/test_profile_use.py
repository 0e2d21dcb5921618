"""Which scripts are given a `profile` that they have not got themselves."""

from __future__ import annotations

import os

import pytest

from trainprof.launch.sources import needs_profile

USE = "@profile\ndef f(): return 1\n"


def needs(tmp_path, text, beside=""):
    script = tmp_path / "train.py"
    script.write_text(text)
    (tmp_path / "model.py").write_text(beside)
    return needs_profile(str(script))


@pytest.mark.parametrize(
    "text",
    [
        USE,
        "class A:\n    @ profile\n    def f(self): pass\n",
        "import builtins\n@builtins.profile\ndef f(): pass\n",
        "step = profile(lambda: 1)\n",
        "import os  # profile\n" + USE,
    ],
)
def test_who_would_end_without_it_is_given_one(tmp_path, text):
    assert needs(tmp_path, text)
    assert needs(tmp_path, "import model\n", beside=text)


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


@pytest.mark.parametrize(
    "text",
    ["", "# @profile\n", "model.profile(1)\n", "@profiled\ndef f(): pass\n", "my_profile(1)\n"],
)
def test_other_names_are_not_it(tmp_path, text):
    assert not needs(tmp_path, text)


def test_a_text_that_is_not_known_needs_none(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert not needs_profile(None)
    assert not needs_profile(str(tmp_path / "nowhere.py"))
    assert not needs_profile(str(tmp_path / "pipe"))
