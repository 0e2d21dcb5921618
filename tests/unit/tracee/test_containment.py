"""A trial's writes: seen by the script as if they were made, and never made to the user's files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import file_operations
from support.contained import escaped, faults, run_contained, snapshot
from support.session import read_recordings, run_plain

from trainprof.record.schema import Topic

SEEDS = range(24)


def plant(tree: Path) -> None:
    """Makes a training directory as an earlier run has left it."""
    (tree / "runs" / "old").mkdir(parents=True)
    (tree / "runs" / "old" / "w.bin").write_bytes(b"old weights")
    (tree / "data").mkdir()
    (tree / "data" / "x.txt").write_text("sample\n")
    (tree / "log.csv").write_text("step,loss\n")
    (tree / "latest").symlink_to("runs/old")


@pytest.fixture
def trees(tmp_path: Path) -> tuple[Path, Path]:
    """One to run plainly in, and its twin."""
    pair = (tmp_path / "plain" / "tree", tmp_path / "ours" / "tree")
    for tree in pair:
        plant(tree)
    return pair


def both(
    trees: tuple[Path, Path], script: str, *words: str, untouched: bool = True
) -> tuple[subprocess.CompletedProcess[str], subprocess.CompletedProcess[str]]:
    """Runs a script in both, as `s.py`; what it says of its tree is said alike."""
    for tree in trees:
        (tree / "s.py").write_text(script)
    plain_tree, tree = trees
    before = snapshot(tree)
    plain = run_plain(["s.py", *words], plain_tree)
    ours = run_contained(["s.py", *words], tree, tree.parent / "run")
    if untouched:
        assert snapshot(tree) == before
    for done, root in ((plain, plain_tree), (ours, tree)):
        done.stdout = done.stdout.replace(str(root), "TREE")
        done.stderr = done.stderr.replace(str(root), "TREE")
    return plain, ours


def assert_alike(
    pair: tuple[subprocess.CompletedProcess[str], subprocess.CompletedProcess[str]],
) -> None:
    plain, ours = pair
    assert ours.stdout == plain.stdout
    assert ours.stderr == plain.stderr
    assert ours.returncode == plain.returncode


def test_random_operations_give_the_same_and_leave_the_tree_alone(tmp_path: Path) -> None:
    tops = (tmp_path / "plain", tmp_path / "ours")
    for top in tops:
        for seed in SEEDS:
            file_operations.plant(top, seed)
    before = snapshot(tops[1])
    words = [file_operations.__file__, str(SEEDS.start), str(SEEDS.stop)]
    plain = run_plain(words, tops[0])
    ours = run_contained(words, tops[1], tmp_path / "run")
    assert plain.stderr == ours.stderr == ""
    assert len(plain.stdout.splitlines()) > file_operations.OPERATIONS * len(SEEDS) / 2
    for expected, seen in zip(plain.stdout.splitlines(), ours.stdout.splitlines(), strict=True):
        assert seen == expected
    assert snapshot(tops[1]) == before
    assert faults(tmp_path / "run") == escaped(tmp_path / "run") == []


OWN_FILES = """
import csv, json, logging, os, pathlib, shutil, sys, tempfile
os.makedirs("runs/new/deep")
with open("runs/new/state.json", "w") as file:
    json.dump({"step": 3}, file)
print(json.load(open("runs/new/state.json")), sorted(os.listdir("runs")))
with open("log.csv", "a", newline="") as file:
    csv.writer(file).writerow([1, 0.5])
print(open("log.csv").read(), os.path.getsize("log.csv"))
logging.basicConfig(filename="train.log", level="INFO", format="%(message)s")
logging.info("begun")
print(pathlib.Path("train.log").read_text())
os.remove("latest")
os.symlink("runs/new", "latest")
print(json.load(open("latest/state.json")), os.path.realpath("latest"))
shutil.rmtree("runs/old")
print(sorted(str(p) for p in pathlib.Path().rglob("*")), os.path.exists("runs/old/w.bin"))
try:
    open(os.path.abspath("runs/old/w.bin"))
except FileNotFoundError as error:
    print(error)
with tempfile.NamedTemporaryFile(dir=".", delete=True) as file:
    file.write(b"x")
    print(os.path.exists(file.name))
print(os.path.exists(file.name))
with open("data/x.txt", "r+") as file:
    print(file.name, file.read())
    file.write("changed")
os.replace("data/x.txt", "moved.txt")
print(open("moved.txt").read(), os.listdir("data"))
os.truncate("moved.txt", 2), os.chmod("moved.txt", 0o600)
print(os.stat("moved.txt").st_size, oct(os.stat("moved.txt").st_mode))
shutil.copytree("runs", "copy")
shutil.move("copy", "elsewhere")
print(sorted((top, sorted(folders), sorted(files)) for top, folders, files in os.walk(".")))
print(open("log.csv"), os.getcwd())
open("missing/file", "w")
"""


def test_a_script_that_manages_its_own_files(trees: tuple[Path, Path]) -> None:
    plain, ours = both(trees, OWN_FILES)
    assert_alike((plain, ours))
    assert "FileNotFoundError" in plain.stderr
    assert escaped(trees[1].parent / "run") == faults(trees[1].parent / "run") == []


CHILDREN = """
import multiprocessing, os, subprocess, sys

def work(name):
    with open("log.csv", "a") as file:
        file.write(name + "\\n")
    os.remove(f"data/{name}.txt") if name == "x" else os.mkdir(f"data/{name}")

if __name__ == "__main__":
    os.makedirs("out")
    os.chdir("out")
    print(os.getcwd())
    os.chdir("..")
    for method, name in (("fork", "x"), ("spawn", "y"), ("forkserver", "z")):
        process = multiprocessing.get_context(method).Process(target=work, args=(name,))
        process.start()
        process.join()
        print(process.exitcode, open("log.csv").read(), sorted(os.listdir("data")))
    code = "import os; print(os.getcwd(), os.listdir()); open('mine', 'w').close()"
    os.chdir("out")
    subprocess.run([sys.executable, "-c", code], check=True)
    print(os.listdir())
"""


def test_its_children_share_what_it_wrote(trees: tuple[Path, Path]) -> None:
    pair = both(trees, CHILDREN)
    assert_alike(pair)
    assert pair[0].returncode == 0
    assert escaped(trees[1].parent / "run") == []


LOOKS = """
import inspect, io, os, pickle, shutil
for function in (os.stat, os.open, os.rename, os.listdir, open):
    assert pickle.loads(pickle.dumps(function)) is function
    print(function.__name__, function.__doc__, callable(function), inspect.isroutine(function))
print(open is io.open, os.stat in os.supports_dir_fd, os.scandir in os.supports_fd)
print(shutil.rmtree.avoids_symlink_attacks)

class Holder:
    stat = os.stat
    open = open

print(Holder().stat("log.csv").st_size, Holder().open("log.csv").read())

def tried(function, *arguments, **options):
    try:
        result = function(*arguments, **options)
        return sorted(result) if isinstance(result, list) else result
    except BaseException as error:
        return type(error).__name__, str(error)

for arguments in ((), (None,), (1.5,), ("a\\0b",), ("\\ud800x",), ("",), (b"log.csv",), (-1,)):
    for function in (os.stat, os.open, os.listdir, os.mkdir, os.remove, os.rename, open):
        print(function.__name__, arguments, tried(function, *arguments))
print(tried(open, "log.csv", "rw"), tried(open, "new", "w", encoding="none"), sorted(os.listdir()))
print(tried(open, "log.csv", "wb", 1.5), tried(os.stat, "log.csv", nothing=1))
"""


def test_functions_look_and_fail_as_the_plain_ones(trees: tuple[Path, Path]) -> None:
    pair = both(trees, LOOKS)
    for done in pair:
        done.stdout = "\n".join(line for line in done.stdout.splitlines() if "st_mode" not in line)
    assert_alike(pair)
    assert pair[0].returncode == 0, pair[0].stderr
    assert faults(trees[1].parent / "run") == []


FREE = """
import os, tempfile
print(open("/dev/null", "w").write("x"))
for place in (tempfile.gettempdir(), os.environ["XDG_CACHE_HOME"], os.environ["TRAINPROF_DIR"]):
    with open(os.path.join(place, "free"), "w") as file:
        file.write("real")
os.rename(os.path.join(tempfile.gettempdir(), "free"), "into.txt")
print(open("into.txt").read(), os.path.exists(os.path.join(tempfile.gettempdir(), "free")))
"""


def test_caches_and_temporary_files_are_left_alone(trees: tuple[Path, Path]) -> None:
    """They lie in the working directory here: the place that is named more closely counts."""
    _, tree = trees
    for name in ("tmp", "cache"):
        (tree / name).mkdir()
    (tree / "s.py").write_text(FREE)
    run = tree.parent / "run"
    env = {"TMPDIR": str(tree / "tmp"), "XDG_CACHE_HOME": str(tree / "cache")}
    done = run_contained(["s.py"], tree, run, env=env)
    assert (done.stdout, done.stderr) == ("1\nreal False\n", "")
    assert (tree / "cache" / "free").read_text() == (run / "free").read_text() == "real"
    assert not (tree / "into.txt").exists()
    assert os.listdir(tree / "tmp") == []


WAYS_AROUND = """
import io, os, posix
def tried(function, *arguments):
    try:
        function(*arguments)
    except OSError as error:
        print(type(error).__name__, error.errno, error.filename)
tried(io.FileIO, "log.csv", "w")
tried(io.FileIO, "new", "w")
tried(posix.open, "data/x.txt", os.O_WRONLY)
tried(posix.unlink, "latest")
tried(posix.rename, "log.csv", "lost.csv")
tried(posix.mkdir, "made")
tried(posix.symlink, "a", "b")
tried(os.chmod, os.open("log.csv", os.O_RDONLY), 0o777)
print(io.FileIO("log.csv").read(), io.FileIO("/dev/null", "w").write(b"x"))
"""


def test_ways_around_are_refused_and_told(trees: tuple[Path, Path]) -> None:
    _, tree = trees
    (tree / "s.py").write_text(WAYS_AROUND)
    before = snapshot(tree)
    done = run_contained(["s.py"], tree, tree.parent / "run")
    assert snapshot(tree) == before
    assert done.returncode == 0, done.stderr
    *refused, last = done.stdout.splitlines()
    assert [line.split()[1] for line in refused] == ["30"] * 8  # a read-only file system
    assert last == "b'step,loss\\n' 1"
    told = escaped(tree.parent / "run")
    assert len(told) == 8
    assert told[0] == "open: log.csv (s.py:5)"


ESCAPES = """
import os, subprocess, sys
subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True)
subprocess.run([sys.executable, "-c", ""])
subprocess.run([sys.executable, "-u", "-c", ""], env=dict(os.environb))
subprocess.run(["true"])
os.system("exit 0")
subprocess.run([sys.executable, "-bI", "-c", ""])
subprocess.run([sys.executable, "-c", ""], env={**os.environ, "PYTHONPATH": "src"})
sys.audit("socket.connect", None, ("203.0.113.7", 443))
sys.audit("socket.connect", None, ("127.0.0.1", 29500))
sys.audit("socket.connect", None, "/run/some.sock")
for number in range(40):
    sys.audit("socket.connect", None, ("203.0.113.8", number))
"""


def test_what_leaves_is_told_with_its_line(trees: tuple[Path, Path]) -> None:
    _, tree = trees
    (tree / "s.py").write_text(ESCAPES)
    assert run_contained(["s.py"], tree, tree.parent / "run").returncode == 0
    told = escaped(tree.parent / "run")
    python = os.path.basename(sys.executable)
    assert told[:6] == [
        "subprocess: true (s.py:6)",
        "shell command: exit 0 (s.py:7)",
        f"subprocess: {python} (s.py:8)",
        f"subprocess: {python} (s.py:9)",
        "network: 203.0.113.7:443 (s.py:10)",
        "network: 203.0.113.8:0 (s.py:14)",
    ]
    assert len(told) == 20


PAST_PYTHON = """
import ctypes
libc = ctypes.CDLL(None)
libc.malloc_trim(0)
libc.getpid()
print(libc.rename(b"nowhere", b"nor here"), libc["unlink"](b"nowhere"))
print(ctypes.CDLL("libc.so.6").fopen(b"nowhere", b"r"))
"""


def test_functions_of_the_c_library_that_change_files_are_told(trees: tuple[Path, Path]) -> None:
    """Those that code of ours asks for are not (it opens what the kernel tells of threads)."""
    ours = "from trainprof.probes import own_thread\nown_thread.run_delay()"
    assert_alike(both(trees, f"{PAST_PYTHON}{ours}\n"))
    assert escaped(trees[1].parent / "run") == [
        "C library: rename (s.py:6)",
        "C library: unlink (s.py:6)",
        "C library: fopen (s.py:7)",
    ]


FAULTY = """
import os, sys
beside = sys.modules["trainprof.tracee.containment.tree"].__file__
exec(compile("def broken(*args): raise KeyError('planted')", beside, "exec"))
os.stat.__self__.changes.make = broken
os.stat.__self__.tree.child = broken
def tried(function, *arguments):
    try:
        print(function(*arguments))
    except OSError as error:
        print(type(error).__name__, error.errno)
tried(os.mkdir, "made")
tried(open, "log.csv", "w")
tried(os.listdir, "data")
"""


def test_after_a_fault_of_ours_reads_go_on_and_writes_fail(trees: tuple[Path, Path]) -> None:
    _, tree = trees
    (tree / "s.py").write_text("open('first', 'w').close()\n" + FAULTY)
    before = snapshot(tree)
    done = run_contained(["s.py"], tree, tree.parent / "run")
    assert snapshot(tree) == before
    assert done.stdout.splitlines() == ["OSError 30", "OSError 30", "['x.txt']"]
    assert faults(tree.parent / "run") == [{"probe": "containment", "error": "KeyError: 'planted'"}]


def test_a_trial_without_its_scratch_directory_does_not_start(trees: tuple[Path, Path]) -> None:
    _, tree = trees
    (tree / "s.py").write_text("open('log.csv', 'w')")
    run = tree.parent / "run"
    run.mkdir()
    (run / "scratch").write_text("a file")
    before = snapshot(tree)
    done = run_contained(["s.py"], tree, run)
    assert snapshot(tree) == before
    assert done.returncode == 125
    assert done.stderr.startswith("trainprof: this trial's writes cannot be kept")


def test_files_that_the_script_may_not_write_are_still_not_written(
    trees: tuple[Path, Path],
) -> None:
    """Copies in the scratch directory keep the mode, so the error is the system's own."""
    if os.geteuid() == 0:
        pytest.skip("root may write everything")
    for tree in trees:
        (tree / "log.csv").chmod(0o400)
        (tree / "data").chmod(0o500)
    script = "\n".join(
        f"try: {call}\nexcept OSError as error: print(repr(error))"
        for call in (
            "open('log.csv', 'a')",
            "open('data/new', 'w')",
            "__import__('os').remove('data/x.txt')",
        )
    )
    assert_alike(both(trees, script))


def test_a_run_that_is_no_trial_imports_nothing_of_it(tmp_path: Path) -> None:
    from support.session import run_hooked

    (tmp_path / "s.py").write_text("import sys; print([m for m in sys.modules if 'contain' in m])")
    done = run_hooked(["s.py"], tmp_path, tmp_path / "run", options={"trial": None})
    assert (done.stdout, done.stderr) == ("[]\n", "")
    assert sys.version_info >= (3, 10)


TENSORBOARD = {
    "tensorflow.py": "raise SystemExit('TensorFlow writes where it is told')\n",
    "tensorboard/__init__.py": "",
    "tensorboard/compat/tensorflow_stub.py": "",
    # As tensorboard 2.21 has it, and as older ones do.
    "tensorboard/compat/__init__.py": """
import importlib

def tf():
    try:
        importlib.import_module("tensorboard.compat.notf")
    except ImportError:
        import tensorflow
        return tensorflow
    return importlib.import_module("tensorboard.compat.tensorflow_stub")

def old_tf():
    try:
        from tensorboard.compat import notf
    except ImportError:
        import tensorflow
        return tensorflow
    return importlib.import_module("tensorboard.compat.tensorflow_stub")
""",
}


def test_tensorboard_does_without_tensorflow(trees: tuple[Path, Path]) -> None:
    script = """
import sys
print([name for name in sys.modules if name.startswith("tensor")])
from tensorboard import compat
print(compat.tf().__name__, compat.old_tf().__name__)
"""
    for tree in trees:
        for name, text in TENSORBOARD.items():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_text(text)
    plain, ours = both(trees, script, untouched=False)  # __pycache__
    stub = "tensorboard.compat.tensorflow_stub"
    assert plain.stderr == "TensorFlow writes where it is told\n"
    assert (ours.stdout, ours.stderr) == (f"[]\n{stub} {stub}\n", "")
    assert faults(trees[1].parent / "run") == []


def test_a_large_file_that_had_to_be_copied_is_told_once(trees: tuple[Path, Path]) -> None:
    script = """
import sys
changes = sys.modules.get("trainprof.tracee.containment.changes")
if changes is not None:
    changes.TOLD_FROM_BYTES = 9
    sys.modules["trainprof.tracee.containment.copies"].shares_blocks = lambda *files: SHARES
open("data/x.txt", "r+").close()  # smaller
open("runs/old/w.bin", "rb").close()
open("runs/old/w.bin", "wb").close()  # nothing of it is kept
for name in ("runs/old/w.bin", "big.bin", "big.bin"):
    with open(name, "r+b") as file:
        print(file.read())
"""
    for shares in (True, False):
        for tree in trees:
            (tree / "big.bin").write_bytes(b"0123456789")
        text = script.replace("SHARES", str(shares))
        if shares:  # as if it did
            text = text.replace("print(file.read())", "pass")
        assert_alike(both(trees, text))
        run = trees[1].parent / "run"
        told = [
            note["copied"]
            for recording in read_recordings(run / "events")
            for note in recording.notes(Topic.TRIAL)
            if "copied" in note
        ]
        assert told == ([] if shares else [{"big.bin": 10}])
        assert faults(run) == []
        shutil.rmtree(run)


def test_no_listing_has_the_scratch_that_lies_below_the_working_directory(tmp_path: Path) -> None:
    """A copy of the code would hold itself, and what was prepared would be there twice."""
    tree = tmp_path / "tree"
    plant(tree)
    run = tree / "trainprof-runs" / "tune" / "baseline"
    (tree / "s.py").write_text(f"""
import os, pathlib, shutil
run = {str(run)!r}
def listed():
    fd = os.open(run, os.O_RDONLY)
    for where in (run, os.fsencode(run), os.path.relpath(run), fd):
        with os.scandir(where) as entries:
            found = [os.fsdecode(entry.name) for entry in entries]
        print(sorted(found) == sorted(map(os.fsdecode, os.listdir(where))), "scratch" in found)
    os.close(fd)
listed()
shutil.copytree(".", "../exp/code")
pathlib.Path("data/new.npz").write_text("")
listed()
print(sorted(map(str, pathlib.Path().rglob("*.npz"))))
print(sorted(str(p) for p in pathlib.Path("../exp").rglob("w.bin")))
os.chdir(run)
print("scratch" in os.listdir(), "events" in os.listdir(-1))
""")
    done = run_contained(["s.py", tmp_path / "exp"], tree, run)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        *["True False"] * 8,
        "['data/new.npz']",
        "['../exp/code/latest/w.bin', '../exp/code/runs/old/w.bin']",
        "False True",
    ]
    assert faults(run) == []
    assert not (tmp_path / "exp").exists()


def test_what_a_link_in_the_working_directory_leads_to_is_contained(tmp_path: Path) -> None:
    """As checkpoints on a larger disk are: the temporary directory itself is left alone."""
    tree, big, other = tmp_path / "tree", tmp_path / "big", tmp_path / "other"
    plant(tree)
    for directory in (big, other):
        directory.mkdir()
        (directory / "1.pt").write_text("weights")
    (tree / "out").symlink_to(big)
    (tree / "s.py").write_text(f"""
import os
os.remove("out/1.pt")
open("out/2.pt", "w").close()
os.remove({str(other / "1.pt")!r})
print(os.listdir("out"))
""")
    done = run_contained(["s.py", "--output_dir", "out"], tree, tmp_path / "run")
    assert (done.stdout, done.stderr) == ("['2.pt']\n", "")
    assert [path.name for path in big.iterdir()] == ["1.pt"]
    assert list(other.iterdir()) == []


MOVES = """
import os, sys
changes = sys.modules.get("trainprof.tracee.containment.changes")
if changes is not None:
    changes.TOLD_FROM_BYTES = 9
    sys.modules["trainprof.tracee.containment.copies"].shares_blocks = lambda *files: SHARES
    changes.MOST_OF_ROOM = LEFT
os.symlink("w.bin", "runs/old/link")
os.mkdir("runs/old/deep")
open("runs/old/deep/new", "w").close()
os.rename("runs/old", "runs/archived")
print(sorted(os.listdir("runs")), open("runs/archived/link").read())
os.rename("data", "data2")  # little
"""


def moved(run: Path) -> list[object]:
    notes = [n for r in read_recordings(run / "events") for n in r.notes(Topic.TRIAL)]
    return [note[key] for note in notes for key in ("copied", "moved") if key in note]


@pytest.mark.parametrize(("room", "shares"), [("1.0", "False"), ("0", "True")])
def test_a_directory_that_is_moved_is_copied_and_that_is_told(
    trees: tuple[Path, Path], room: str, shares: str
) -> None:
    how = "lambda *files: False" if shares == "False" else "share"
    text = MOVES.replace("LEFT", room).replace("lambda *files: SHARES", how)
    text = text.replace("import os, sys", f"import os, sys\n{SHARE}")
    run = trees[1].parent / "run"
    plain, ours = both(trees, text)
    assert_alike((plain, ours))
    assert plain.returncode == 0
    assert moved(run) == ([{"runs/old": 11}] if shares == "False" else [])
    assert faults(run) == []


# As a file system that lets one file have another's blocks.
SHARE = """
def share(source, target):
    while part := os.read(source, 1 << 20):
        os.write(target, part)
    return True
"""


def test_a_directory_that_there_is_no_room_for_is_not_moved(trees: tuple[Path, Path]) -> None:
    text = MOVES.replace("LEFT", "0").replace("SHARES", "False")
    _, ours = both(trees, text)
    assert ours.returncode == 1
    assert "GiB to keep this move from the user's files, and has room for 0.0" in ours.stderr
    assert "'runs/old' -> 'runs/archived'" in ours.stderr
    assert moved(trees[1].parent / "run") == []


def test_it_is_named_as_seen_from_where_the_run_was_started(tmp_path: Path) -> None:
    work, run = tmp_path / "work", tmp_path / "run"
    (work / "src").mkdir(parents=True)
    (work / "src" / "big.bin").write_bytes(b"0123456789")
    (work / "src" / "script.py").write_text("""
import sys
changes = sys.modules["trainprof.tracee.containment.changes"]
changes.TOLD_FROM_BYTES = 9
sys.modules["trainprof.tracee.containment.copies"].shares_blocks = lambda *files: False
open("big.bin", "r+b").close()
""")
    done = run_contained(["script.py"], work / "src", run, options={"cwd": str(work)})
    assert (done.returncode, done.stderr) == (0, "")
    (note,) = read_recordings(run / "events")[0].notes(Topic.TRIAL)
    assert note["copied"] == {"src/big.bin": 10}
