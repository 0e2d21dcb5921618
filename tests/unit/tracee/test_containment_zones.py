"""Which places a trial leaves alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainprof.tracee.containment.index import SharedIndex
from trainprof.tracee.containment.tree import MergedTree
from trainprof.tracee.containment.zones import (
    is_free,
    links_among,
    paths_among,
    roots,
    scripts_among,
)

HOME = "/home/somebody"
HERE = f"{HOME}/project"
RUN = f"{HERE}/trainprof-runs/tune/trials/baseline"


def zones(cwd: str = HERE, scripts: tuple[str, ...] = (), **environ: str) -> dict[str, bool]:
    environ = {"HOME": HOME, **environ}
    return roots(environ, cwd=cwd, scripts=scripts, own=(RUN,))


@pytest.mark.parametrize(
    ("path", "free"),
    [
        (f"{HERE}/model.pt", False),
        ("/data/x", False),
        (f"{HOME}/.bashrc", False),
        ("/", False),
        ("/tmp", True),
        ("/tmp/anything/at/all", True),
        ("/tmpx/y", False),
        (f"{HOME}/.cache/huggingface/x", True),
        (f"{HOME}/.cachex/y", False),
        ("/dev/shm/x", True),
        (f"{RUN}/events/1", True),
        (f"{HERE}/trainprof-runs/latest", False),
    ],
)
def test_the_longest_root_tells(path: str, free: bool) -> None:
    assert is_free(path, zones()) is free


def test_where_the_script_lies_is_contained_wherever_that_is() -> None:
    told = zones(cwd="/tmp/work", scripts=("/var/tmp/other/train.py",))
    assert not is_free("/tmp/work/out/model.pt", told)
    assert not is_free("/var/tmp/other/model.pt", told)
    assert is_free("/tmp/elsewhere", told)
    assert is_free("/var/tmp/x", told)


def test_in_the_temporary_directory_itself_only_names_that_nobody_chose_are_free() -> None:
    told = zones(cwd="/tmp")
    for name in ("model.pt", "out/model.pt", "tensors"):
        assert not is_free(f"/tmp/{name}", told)
    for name in ("tmpab12", "pymp-x/listener", "torchinductor_me/a/b.py"):
        assert is_free(f"/tmp/{name}", told)


def test_what_the_command_line_names_in_the_temporary_directory_is_somebodys_work() -> None:
    words = ["train.py", "--out=/tmp/runs/a", "/var/tmp/models/best.pt", "lr=0.1", "--data", "/d/x"]
    words += ["dir=/tmp/mine/logs.d/", f"cache={HOME}/.cache/hub", "/dev/shm/x"]
    told = roots({"HOME": HOME}, cwd=HERE, scripts=(), own=(RUN,), named=paths_among(words, HERE))
    for path in (
        "/tmp/runs/a",
        "/tmp/runs/a/1.pt",
        "/var/tmp/models/best.pt",
        "/tmp/mine/logs.d/x",
    ):
        assert not is_free(path, told), path
    for path in ("/tmp/runs/b", "/tmp/x", f"{HOME}/.cache/hub/x", "/dev/shm/x", f"{RUN}/x"):
        assert is_free(path, told), path


def test_a_file_right_in_the_temporary_directory_leaves_only_names_that_nobody_chose() -> None:
    told = roots({}, cwd=HERE, scripts=(), own=("/tmp/us",), named=["/tmp/model.pt"])
    assert not is_free("/tmp/model.pt", told)
    assert is_free("/tmp/tmpab12/x", told)
    assert is_free("/tmp/us/x", told)


def test_paths_are_found_in_words_and_behind_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", HOME)
    words = ["train.py", "--out=runs/a", "~/x", "a/b=c/d", "--lr", "0.1", "-c", ""]
    told = ["runs/a", "--out=runs/a", "a/b=c/d", "c/d"]
    assert set(paths_among(words, HERE)) == {*(f"{HERE}/{path}" for path in told), f"{HOME}/x"}


def test_a_link_out_of_the_working_directory_leads_to_somebodys_work(tmp_path: Path) -> None:
    here, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    (elsewhere / "runs").mkdir(parents=True)
    (elsewhere / "best.pt").write_text("")
    here.mkdir()
    (here / "data").mkdir()
    for name in ("runs", "best.pt", "other.log"):
        (here / name).symlink_to(elsewhere / name)
    words = ["train.py", "--output_dir", "runs", "--lr=0.1", "--resume=best.pt", "data"]
    told = links_among(words, str(here))
    assert sorted(told) == [f"{here}/best.pt", f"{here}/runs"]
    # A directory's is found whoever names it, a file's where the command line does.
    assert links_among([], str(here)) == [f"{here}/runs"]
    assert links_among(words, str(tmp_path / "missing")) == []
    environ = {"TMPDIR": str(elsewhere)}
    now = roots(environ, cwd=str(here), scripts=(), own=(RUN,), named=links_among([], str(here)))
    assert not is_free(f"{elsewhere}/runs/checkpoint-1/model.pt", now)
    assert is_free(f"{elsewhere}/x", now)


def test_the_tree_tells_the_same(tmp_path: Path) -> None:
    index = SharedIndex(str(tmp_path / "index"))
    told = zones(cwd="/tmp", TMPDIR=str(tmp_path / "mine"))
    for path, free in told.items():
        index.add_root(path, is_free=free)
    tree = MergedTree(str(tmp_path), SharedIndex(str(tmp_path / "index")))
    for path in (
        "/tmp/model.pt",
        "/tmp/tmpxy",
        "/tmp",
        "/dev/null",
        "/etc",
        str(tmp_path / "mine"),
    ):
        assert tree.node(path, follow=False).is_free is is_free(path, told), path


def test_caches_that_the_environment_names_are_free() -> None:
    told = zones(HF_HOME="/big/hf", TORCHINDUCTOR_CACHE_DIR="inductor", XDG_CACHE_HOME="/")
    assert is_free("/big/hf/hub/x", told)
    assert is_free(f"{HERE}/inductor/x", told)
    assert not is_free("/big/x", told)


def test_scripts_are_found_among_the_words_of_a_launcher(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    words = ["python", "-m", "torchrun", "train.py", "missing.py", "--name=train.py"]
    assert scripts_among(words, str(tmp_path)) == ["train.py"]


def test_an_index_tells_all_that_share_it(tmp_path: Path) -> None:
    one, other = (SharedIndex(str(tmp_path / "index")) for _ in range(2))
    assert (one.is_new, other.is_new) == (True, False)
    assert not other.has_news()
    one.touch("/a")
    one.remove("/a/\udcff b\nc")
    assert other.has_news()
    assert not other.has_news()
    assert (other.touched, other.removed) == ({"/a"}, {"/a/\udcff b\nc"})
    other.changed()
    assert one.has_news()
    late = SharedIndex(str(tmp_path / "index"))
    assert (late.touched, late.removed) == (one.touched, one.removed)
