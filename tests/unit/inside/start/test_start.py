"""How a process comes under trainprof, and what it then holds."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
from support.session import ROOT, hooked_environment, read_recordings, run_hooked, run_plain

from trainprof.inside.start import site_directory
from trainprof.inside.start.import_hook import AfterImport
from trainprof.record.log_chunk import FIRST_CHUNK_BYTES
from trainprof.record.schema import Kind, Topic

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
OURS = ("trainprof.inside", "trainprof.record", "trainprof.findings")


def script(directory: Path, text: str, name: str = "script.py") -> str:
    (directory / name).write_text(text)
    return name


MODULES = "import sys\n{}\nprint(*sorted(sys.modules), sep='\\n')\n"


@pytest.mark.parametrize("imports", ["", pytest.param("import torch", marks=needs_torch)])
def test_only_the_standard_library_is_imported(tmp_path: Path, imports: str) -> None:
    name = script(tmp_path, MODULES.format(imports))
    plain = set(run_plain([name], tmp_path).stdout.split())
    added = set(run_hooked([name], tmp_path, tmp_path / "run").stdout.split()) - plain
    assert "trainprof.inside.start.bootstrap" in added
    foreign = {
        module
        for module in added - {"trainprof", "sitecustomize"}
        if not module.startswith(OURS)
        and module.split(".")[0] not in sys.stdlib_module_names
        and not module.startswith("_sysconfigdata")
    }
    assert foreign == set()
    assert not {module for module in added if module.startswith("torch")}
    if not imports:
        rooms = {module for module in added if module.startswith("trainprof.inside.")}
        early = {"early", "copied_frames", "own_thread", "stacks", "process"}
        assert {x for x in rooms if ".start" not in x and x.split(".")[-1] not in early} == set()


@needs_torch
def test_modules_beside_us_do_not_shadow_the_standard_library(tmp_path: Path) -> None:
    """As in a site-packages that holds an old backport of one."""
    site = tmp_path / "site-packages"
    site.mkdir()
    (site / "trainprof").symlink_to(ROOT / "trainprof")
    for name in ("typing", "mmap", "atexit", "json", "weakref"):
        (site / f"{name}.py").write_text("raise SystemExit('shadowed')")
    name = script(tmp_path, "import sys, torch; print([p for p in sys.path if 'site-p' in p])")
    env = hooked_environment(tmp_path / "run")
    env["PYTHONPATH"] = str(site / "trainprof" / "inside" / "start" / "site")
    done = subprocess.run(
        [sys.executable, name], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "shadowed" not in done.stdout


@pytest.mark.parametrize("text", ["import nothing_like_this\n", "value = 7\n"])
def test_an_odd_torch_leaves_the_script_alone(tmp_path: Path, text: str) -> None:
    """A stand-in for torch, the first of which cannot be imported."""
    script(tmp_path, text, "torch.py")
    name = script(tmp_path, "import torch; print(torch.value)\n")
    plain, ours = run_plain([name], tmp_path), run_hooked([name], tmp_path, tmp_path / "run")
    assert (ours.stdout, ours.stderr) == (plain.stdout, plain.stderr)
    assert ours.returncode == plain.returncode == (1 if "import" in text else 0)
    [recording] = read_recordings(tmp_path / "run" / "events")
    unavailable = {note["probe"] for note in recording.notes(Topic.PROBE_UNAVAILABLE)}
    wanted = {"loader", "fetch", "transfer", "forward", "backward", "optimizer"}
    assert unavailable >= wanted or ours.returncode
    assert recording.notes(Topic.PROBE_FAILED) == []


USER_SITE = "import sys\nprint('user site', 'trainprof' in sys.modules, __name__)\n{}\n"


@pytest.mark.parametrize(
    "more", ["", "import not_there_at_all", "1 / 0", "raise ImportError(name='sitecustomize')"]
)
def test_a_shadowed_sitecustomize_runs_as_before(tmp_path: Path, more: str) -> None:
    place = tmp_path / "place"
    place.mkdir()
    script(place, USER_SITE.format(more), "sitecustomize.py")
    name = script(tmp_path, "import sys; print(sys.path[1:]); print('script')\n")
    plain = run_plain([name], tmp_path, env={"PYTHONPATH": str(place)})
    environment = hooked_environment(tmp_path / "run")
    ours_first = environment["PYTHONPATH"].split(os.pathsep)[0]
    ours = run_plain(
        [name],
        tmp_path,
        env={**environment, "PYTHONPATH": os.pathsep.join([ours_first, str(place)])},
    )
    assert (ours.stdout, ours.stderr, ours.returncode) == (plain.stdout, plain.stderr, 0)
    assert "user site False sitecustomize" in ours.stdout
    [recording] = read_recordings(tmp_path / "run" / "events")
    assert len(recording.of(Kind.PROCESS_END)) == 1


MODULES_OF_OURS = "import sys; print([m for m in sys.modules if 'trainprof' in m])"


def test_without_a_run_directory_it_does_nothing_and_a_bad_environment_never_raises(
    tmp_path: Path,
) -> None:
    name = script(tmp_path, MODULES_OF_OURS)
    place = hooked_environment(tmp_path / "run")["PYTHONPATH"]
    done = run_plain([name], tmp_path, env={"PYTHONPATH": place})
    assert (done.stdout, done.stderr) == ("[]\n", "")
    env = {"TRAINPROF_OPTIONS": "{not json", "TRAINPROF_DEBUG": ""}
    done = run_hooked([script(tmp_path, "print(1)")], tmp_path, tmp_path / "run", env=env)
    assert (done.stdout, done.stderr, done.returncode) == ("1\n", "", 0)


@needs_torch
def test_the_torch_import_is_timed(tmp_path: Path) -> None:
    text = "import torch\ntorch.nn.Linear(1, 1)(torch.ones(1))\n"
    done = run_hooked([script(tmp_path, text)], tmp_path, tmp_path / "run")
    assert (done.stderr, done.returncode) == ("", 0)
    [recording] = read_recordings(tmp_path / "run" / "events")
    [mark] = recording.of(Kind.TORCH_IMPORT)
    assert mark.start < mark.end <= recording.of(Kind.FORWARD)[0].start
    assert json.loads(json.dumps(recording.notes(Topic.ENVIRONMENT)))[0]["torch"]
    assert recording.notes(Topic.PROBE_UNAVAILABLE) == recording.notes(Topic.PROBE_FAILED) == []


WORKERS = """
import torch
from torch.utils.data import DataLoader
for _ in range(3):
    for batch in DataLoader(list(range(8)), num_workers=2):
        torch.ones(1).sum()
    next(iter(DataLoader(list(range(8)), num_workers=2)))
"""


@needs_torch
def test_processes_that_end_in_order_leave_small_logs(tmp_path: Path) -> None:
    done = run_hooked([script(tmp_path, WORKERS)], tmp_path, tmp_path / "run")
    assert (done.stderr, done.returncode) == ("", 0)
    events = tmp_path / "run" / "events"
    recordings = read_recordings(events)
    assert 1 + 3 * 2 < len(recordings) <= 1 + 6 * 2  # some are ended before their first batch
    assert all(len(recording.of(Kind.PROCESS_END)) == 1 for recording in recordings)
    script_log, *others = (recording.file.path.stat().st_size for recording in recordings)
    assert max(others) < FIRST_CHUNK_BYTES
    assert script_log < 4 * FIRST_CHUNK_BYTES


PROFILE = """
@profile
def f(): return 1
print(f())
try:
    profile
except NameError:
    profile = lambda f: 0
print(profile(lambda: 1)())
print(profile.runcall(lambda x, y: x - y, 2, y=1))
profile.print_stats(stripzeros=True)
profile.enable()
profile.run("one = 1")
profile.disable()
print(one)
names = {}
profile.runctx("one = 1", names, names).dump_stats("x")
print(names["one"])
with profile as p: p.enable_by_count()
print(1 + len(p.get_stats().timings))
import builtins
print(builtins.profile(lambda: 1)())
with profile: pass
import other
print(other.f())
"""


def test_profile_is_a_decorator_that_does_nothing(tmp_path: Path) -> None:
    script(tmp_path, "@profile\ndef f(): return 1\n", "other.py")
    name = script(tmp_path, PROFILE)
    done = run_hooked([name], tmp_path, tmp_path / "run", options={"profile": True})
    assert (done.stdout, done.stderr, done.returncode) == ("1\n" * 8, "", 0)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("imports", "scratch", "status"), [("torch", "s", 125), ("json", "s", 0), ("torch", None, 0)]
)
def test_a_trial_ends_where_a_python_too_old_to_be_kept_apart_is_to_train(
    tmp_path: Path, imports: str, scratch: str | None, status: int
) -> None:
    """A launcher's own may be that old, and a run that is no trial is left alone."""
    text = (Path(site_directory()) / "sitecustomize.py").read_text(encoding="utf-8")
    ours = tmp_path / "site"
    ours.mkdir()
    script(ours, text.replace("OLDEST = (3, 10)", "OLDEST = (9, 9)"), "sitecustomize.py")
    script(tmp_path, "", "torch.py")
    name = script(tmp_path, f"open('before', 'w')\nimport {imports}\nopen('after', 'w')\n")
    path = {"PYTHONPATH": str(ours)}
    trial = {"trial": {"scratch": scratch}}
    done = run_hooked([name], tmp_path, tmp_path / "run", env=path, options=trial)
    assert done.returncode == status
    assert (tmp_path / "after").exists() is (status == 0)
    version = f"Python {sys.version_info[0]}.{sys.version_info[1]}"
    assert (version in done.stderr) is (status != 0)


# The import hook


Calls = list[tuple[str, int, int]]


@pytest.fixture
def calls() -> Calls:
    return []


@pytest.fixture
def hook(calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AfterImport]:
    def called(module: ModuleType, start: int, end: int) -> None:
        calls.append((module.__name__, start, end))

    monkeypatch.syspath_prepend(str(tmp_path))
    before = list(sys.meta_path)
    made = AfterImport({"waited": called})
    made.install()
    yield made
    made.remove()
    sys.modules.pop("waited", None)
    assert sys.meta_path == before


def test_the_module_is_what_it_would_have_been(
    hook: AfterImport, calls: Calls, tmp_path: Path
) -> None:
    (tmp_path / "waited.py").write_text("spec = __spec__\nvalue = 1\n")
    assert importlib.util.find_spec("waited") is not None  # looking for it is no import
    assert (calls, hook in sys.meta_path) == ([], True)
    import waited  # type: ignore[import-not-found]

    [(name, start, end)] = calls
    assert (name, waited.value) == ("waited", 1)
    assert start < end
    plain = importlib.util.spec_from_file_location("waited", waited.__file__)
    assert plain is not None
    for ours, other in ((waited.__loader__, plain.loader), (waited.__spec__, plain)):
        assert type(ours) is type(other)
        assert vars(ours).keys() - {"_initializing"} == vars(other).keys()
    assert type(waited) is ModuleType
    assert hook not in sys.meta_path


def test_a_failing_import_looks_the_same_and_may_be_repeated(
    hook: AfterImport, calls: Calls, tmp_path: Path
) -> None:
    def tried() -> str:
        importlib.invalidate_caches()
        try:
            import waited  # noqa: F401
        except (ModuleNotFoundError, ZeroDivisionError):
            return traceback.format_exc()
        return ""

    for text in (None, "import json\n1 / 0\n"):
        if text is not None:
            (tmp_path / "waited.py").write_text(text)
        with_us = tried()
        hook.remove()
        assert tried() == with_us != ""
        hook.install()
        assert calls == []
    (tmp_path / "waited.py").write_text("value = 22222222\n")
    assert tried() == ""
    assert [name for name, _, _ in calls] == ["waited"]


def test_what_was_imported_before_is_called_at_once() -> None:
    before, names = list(sys.meta_path), []
    AfterImport({"sys": lambda module, *_: names.append(module.__name__)}).install()
    assert (names, sys.meta_path) == (["sys"], before)
