"""What a trial could not keep from the world outside, told from the script's text alone.

A trial's writes go to a scratch directory (tracee/containment). What a script sends away, what
programs it starts and what libraries write by native code of their own does not; nor does what a
command does that is no Python at all.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trainprof.experiments.own_modules import own_of, shown
from trainprof.experiments.own_settings import Settings
from trainprof.experiments.programs import is_out_of_reach, runs_only_python
from trainprof.experiments.syntax import constant as _constant
from trainprof.experiments.syntax import last_name as _last_name
from trainprof.experiments.trackers import REPORT_TO, SENDS, TRACKERS, logged_to, told
from trainprof.launch.target import Target
from trainprof.record.c_functions import CHANGING_FILES, is_c_library

UPLOADS: Final = "sends data to another machine, in every trial again"
STORES: Final = "writes to a database, in every trial again"
STARTS: Final = "starts a program; what that writes is not kept from your files"
WRITES: Final = "writes by native code; that is not kept from your files"
NO_PYTHON: Final = "is no Python; what it writes or removes itself is not kept from your files"
OUT_OF_REACH: Final = (
    "starts a Python that trainprof cannot get into (-I, -E, -S, a PYTHONPATH or an environment of "
    "its own, or older than 3.10): nothing that it writes or removes is kept from your files"
)
OPENS: Final = "opens or changes files past Python; that is not kept from your files"
FILMS: Final = "has ffmpeg write a video; that is not kept from your files"

# Where it is the command, and not a line of a file, that does something.
COMMAND: Final = "the command"

_GYMS: Final = ("gymnasium", "gym")

# Calls by the end of their name, wherever it comes from.
LOGGERS: Final = {
    "WandbLogger": "wandb",
    "MLFlowLogger": "mlflow",
    "CometLogger": "comet_ml",
    "NeptuneLogger": "neptune",
    "ClearMLLogger": "clearml",
    "DVCLiveLogger": "dvclive",
    "AimLogger": "aim",
}
# What ends a tracker's run, if another call has begun one.
ENDING: Final = frozenset(("end_run", "finish"))
# Dotted name, or its beginning up to a dot: what it does.
CALLS: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        (
            *("boto3.client", "boto3.resource", "boto3.Session", "google.cloud.", "azure.storage."),
            *("huggingface_hub.upload_file", "huggingface_hub.upload_folder"),
            *("huggingface_hub.create_repo", "huggingface_hub.HfApi", "huggingface_hub.Repository"),
            *(f"requests.{verb}" for verb in ("post", "put", "patch", "delete", "Session")),
            *(f"httpx.{verb}" for verb in ("post", "put", "patch", "delete", "Client")),
            *("smtplib.SMTP", "smtplib.SMTP_SSL", "paramiko.", "ftplib.FTP"),
        ),
        UPLOADS,
    ),
    **dict.fromkeys(
        (
            *("psycopg.connect", "psycopg2.connect", "pymysql.connect", "mysql.connector.connect"),
            *("pymongo.MongoClient", "redis.Redis", "redis.from_url", "sqlalchemy.create_engine"),
            *("duckdb.connect", "pyodbc.connect", "cx_Oracle.connect", "influxdb_client."),
        ),
        STORES,
    ),
    **dict.fromkeys(
        (
            *("subprocess.run", "subprocess.call", "subprocess.check_call", "subprocess.Popen"),
            *("subprocess.check_output", "subprocess.getoutput", "subprocess.getstatusoutput"),
            *("os.system", "os.popen", "os.posix_spawn", "os.posix_spawnp", "os.startfile"),
            *(f"os.exec{how}" for how in ("l", "le", "lp", "lpe", "v", "ve", "vp", "vpe")),
            *(f"os.spawn{how}" for how in ("l", "le", "lp", "lpe", "v", "ve", "vp", "vpe")),
            *("pty.spawn", "asyncio.create_subprocess_exec", "asyncio.create_subprocess_shell"),
        ),
        STARTS,
    ),
    **dict.fromkeys(
        (
            *("cv2.imwrite", "cv2.imwritemulti", "cv2.VideoWriter", "faiss.write_index"),
            *("SimpleITK.WriteImage", "tensorstore.open", "readline.write_history_file"),
            *("soundfile.write", "torchaudio.save", "torchvision.io.write_video"),
            *("torchvision.io.write_png", "torchvision.io.write_jpeg", "torchvision.io.write_file"),
            *("sentencepiece.SentencePieceTrainer", "rocksdb.DB", "plyvel.DB"),
            *("tensorflow.summary.create_file_writer", "tensorflow.io.TFRecordWriter"),
        ),
        WRITES,
    ),
    # These libraries start ffmpeg themselves, with the path that the script gave.
    **dict.fromkeys(
        (
            *(f"{gym}.wrappers.{what}" for gym in _GYMS for what in ("RecordVideo", "Monitor")),
            *(f"{gym}.wrappers.monitoring." for gym in _GYMS),
            *("gymnasium.experimental.wrappers.RecordVideoV0", "gymnasium.utils.save_video."),
            "gymnasium.wrappers.vector.RecordVideo",
            "stable_baselines3.common.vec_env.VecVideoRecorder",
            "stable_baselines3.common.vec_env.vec_video_recorder.VecVideoRecorder",
            *("moviepy.video.io.ffmpeg_writer.", "moviepy.video.io.ffmpeg_tools."),
            *(
                f"{package}.{name}"
                for package in ("imageio", "imageio.v2")
                for name in ("get_writer", "mimsave", "mimwrite")
            ),
            "imageio_ffmpeg.write_frames",
        ),
        FILMS,
    ),
}
# By these endings imageio chooses a writer of Python's, which is contained.
NO_VIDEOS: Final = (".gif", ".png", ".jpg", ".jpeg", ".tif", ".tiff", ".webp", ".bmp")
# These write unless they are told to read: the argument that tells (its place, its name), what it
# is without one, and what it then reads by.
MODES: Final[Mapping[str, tuple[int, str, object, frozenset[object]]]] = {
    "h5py.File": (1, "mode", "r", frozenset(("r",))),
    "netCDF4.Dataset": (1, "mode", "r", frozenset(("r",))),
    "tables.open_file": (1, "mode", "r", frozenset(("r",))),
    "lmdb.open": (-1, "readonly", False, frozenset((True,))),
    "lmdb.Environment": (-1, "readonly", False, frozenset((True,))),
    "av.open": (1, "mode", "r", frozenset(("r",))),
    "soundfile.SoundFile": (1, "mode", "r", frozenset(("r", None))),
}
METHODS: Final[Mapping[str, str]] = {
    "push_to_hub": UPLOADS,
    "upload_file": UPLOADS,
    "upload_folder": UPLOADS,
    "upload_fileobj": UPLOADS,
    "put_object": UPLOADS,
    "to_hdf": WRITES,
    "to_netcdf": WRITES,
    "to_sql": STORES,
    "write_parquet": WRITES,
    "sink_parquet": WRITES,
    "write_ipc": WRITES,
    "write_metadata_file": WRITES,
    "write_videofile": WRITES,
}
# Statements by which a database opens a file besides its own.
EXECUTING: Final = frozenset(("execute", "executescript"))
OPENING_DATABASES: Final = re.compile(
    r"\s*(?:(attach)\b(?!.*:memory:)|(?=vacuum\b.*\binto\b)(vacuum)\b)", re.IGNORECASE | re.DOTALL
)
# Programs that only look, and what is contained itself.
LOOKING: Final = frozenset(
    (
        *("nvidia-smi", "rocm-smi", "uname", "lscpu", "hostname", "nproc", "which", "df", "free"),
        *("ps", "lspci", "numactl", "file", "ls", "cat", "head", "tail", "wc", "du", "date", "id"),
        *("echo", "true", "whoami", "python", "python3"),
    )
)
LOOKING_GIT: Final = frozenset(
    (
        *("rev-parse", "log", "diff", "status", "describe", "show", "ls-files", "rev-list"),
        *("branch", "config", "remote", "symbolic-ref", "--version"),
    )
)


# What opens a library for ctypes; cffi's `dlopen` is a method.
OPENING_LIBRARIES: Final = frozenset(
    ("ctypes.CDLL", "ctypes.PyDLL", "ctypes.cdll.LoadLibrary", "ctypes.pydll.LoadLibrary")
)


@dataclass(frozen=True, slots=True)
class Uncontained:
    """One thing in a script that a trial cannot contain.

    Attributes:
        name: The package or function, as people know it.
        site: `file.py:84`, the file as seen from the working directory; or COMMAND.
        sentence: What it does, without a subject.
    """

    name: str
    site: str
    sentence: str


def find_uncontained(target: Target, cwd: Path) -> list[Uncontained]:
    """Reads a command, its script, and the user's modules that it imports; runs nothing.

    Args:
        target: What is to be run.
        cwd: Where.

    Returns:
        What was found, each name once a file, in the order of reading; what cannot be read or
        parsed tells nothing.
    """
    own = own_of(target, cwd)
    are_set = any(one.key == REPORT_TO for file in own.settings for one in file.trackers)
    found = list(_of_command(target, cwd))
    for path, tree in own.modules:
        calls = _Calls(tree).found()
        found += _once(path, cwd, [*calls, *logged_to(tree, target.words, are_set=are_set)])
    for settings in own.settings:
        found += _once(settings.path, cwd, list(_of_settings(settings)))
    return found


def _of_command(target: Target, cwd: Path) -> Iterator[Uncontained]:
    if not runs_only_python(target, cwd):
        yield Uncontained(target.name, COMMAND, NO_PYTHON)
    elif is_out_of_reach(target, cwd):
        yield Uncontained(target.name, COMMAND, OUT_OF_REACH)
    values = (word.rpartition("=")[2].rpartition(".")[2] for word in target.words)
    for tracker in dict.fromkeys(LOGGERS[value] for value in values if value in LOGGERS):
        yield Uncontained(tracker, COMMAND, SENDS)


def _of_settings(settings: Settings) -> Iterator[tuple[str, int, str]]:
    for entry in settings.classes:
        yield from ((name, entry.line, does) for name, does in _by_name(entry.value))
    for entry in settings.trackers:
        yield from ((name, entry.line, does) for name, does in told(entry.key, entry.value))


def _once(path: Path, cwd: Path, told_of: list[tuple[str, int, str]]) -> Iterator[Uncontained]:
    """Yields what was found in a file by its lines, each name once."""
    known: set[str] = set()
    for name, line, sentence in sorted(told_of, key=lambda one: one[1]):
        if name not in known:
            known.add(name)
            yield Uncontained(name, f"{shown(path, cwd)}:{line}", sentence)


def _by_name(dotted: str) -> Iterator[tuple[str, str]]:
    """Yields what calling something does, wherever it is called, told by its full name."""
    package, name = dotted.partition(".")[0], dotted.rpartition(".")[2]
    if package in TRACKERS:
        if name not in ENDING:
            yield package, SENDS
    elif name in LOGGERS:
        yield LOGGERS[name], SENDS
    else:
        does = CALLS.get(dotted)
        if does is None:
            begin = next((key for key in CALLS if key[-1] == "." and dotted.startswith(key)), "")
            does = CALLS.get(begin)
        if does is not None:
            yield dotted, does


class _Calls:
    """The calls of a module, by the dotted names that its imports give them."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._names: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    first = alias.name.partition(".")[0]
                    self._names[alias.asname or first] = alias.name if alias.asname else first
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    self._names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        self._libraries = {
            name
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and self._opens_c_library(node.value)
            for name in map(_last_name, node.targets)
            if name is not None
        }

    def found(self) -> Iterator[tuple[str, int, str]]:
        """Yields what cannot be contained: its name, its line, what it does."""
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Call):
                yield from ((name, node.lineno, does) for name, does in self._judged(node))
            function = self._of_c_library(node)
            if function in CHANGING_FILES:
                yield f"the C library's {function}", node.lineno, OPENS  # type: ignore[attr-defined]

    def _opens_c_library(self, node: ast.expr) -> bool:
        """Whether it opens a library that may be the C library."""
        if not isinstance(node, ast.Call):
            return False
        is_cffi = _last_name(node.func) == "dlopen" and "cffi" in self._packages()
        if not is_cffi and self._dotted(node.func) not in OPENING_LIBRARIES:
            return False
        name = node.args[0] if node.args else None
        if isinstance(name, ast.Call) and self._dotted(name.func) == "ctypes.util.find_library":
            wanted = _constant(name.args[0]) if name.args else None
            return wanted is None or is_c_library(f"lib{wanted}.")
        return not isinstance(name, ast.Constant) or is_c_library(name.value)

    def _of_c_library(self, node: ast.AST) -> object:
        """Returns which function of the C library is asked for there, None: none."""
        name: object
        if isinstance(node, ast.Attribute):
            library, name = node.value, node.attr
        elif isinstance(node, ast.Subscript):
            library, name = node.value, _constant(node.slice)
        elif isinstance(node, ast.Call) and _last_name(node.func) == "getattr":
            if len(node.args) < 2:
                return None
            library, name = node.args[0], _constant(node.args[1])
        else:
            return None
        is_one = _last_name(library) in self._libraries or self._opens_c_library(library)
        return name if is_one else None

    def _packages(self) -> set[str]:
        return {name.partition(".")[0] for name in self._names.values()}

    def _judged(self, call: ast.Call) -> Iterator[tuple[str, str]]:
        yield from self._told_by_arguments(call)
        dotted = self._dotted(call.func)
        last = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        if dotted is None:
            if last in METHODS:
                yield last, METHODS[last]
            return
        if dotted in MODES:
            if not _reads(call, *MODES[dotted]):
                yield dotted, WRITES
            return
        if dotted == "urllib.request.urlopen":
            if len(call.args) > 1 or any(word.arg == "data" for word in call.keywords):
                yield dotted, UPLOADS
            return
        known = list(_by_name(dotted))
        if any(does is STARTS for _, does in known) and self._only_looks(call):
            return
        if any(does is FILMS for _, does in known) and _writes_no_video(call):
            return
        yield from known
        if not known and last in METHODS:
            yield last, METHODS[last]

    def _told_by_arguments(self, call: ast.Call) -> Iterator[tuple[str, str]]:
        """Yields what is told to do by arguments, as a push to the Hub is, or SQLite."""
        command = _constant(call.args[0]) if call.args else None
        if _last_name(call.func) in EXECUTING and isinstance(command, str):
            opened = OPENING_DATABASES.match(command)
            if opened is not None:
                yield f"SQLite's {opened[opened.lastindex or 0].upper()}", WRITES
        for word in call.keywords:
            if word.arg == "push_to_hub" and _constant(word.value) is True:
                yield "push_to_hub", UPLOADS

    def _dotted(self, node: ast.expr) -> str | None:
        """Returns the full name of what is called, None where it is not an imported one's."""
        words: list[str] = []
        while isinstance(node, ast.Attribute):
            words.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self._names:
            return None
        return ".".join((self._names[node.id], *reversed(words)))

    def _only_looks(self, call: ast.Call) -> bool:
        """Whether a program is started that writes nothing, or Python, which is contained."""
        if not call.args:
            return False
        command = call.args[0]
        first: ast.expr | None = command
        if isinstance(command, (ast.List, ast.Tuple)):
            first = command.elts[0] if command.elts else None
            words = [str(_constant(word)) for word in command.elts]
        else:
            words = str(_constant(command)).split()
        if first is not None and self._dotted(first) == "sys.executable":
            return True
        if not words or any(sign in " ".join(words) for sign in (">", "|", ";", "&", "`", "$(")):
            return False
        program = os.path.basename(words[0])
        if program == "git":
            return len(words) > 1 and words[1] in LOOKING_GIT
        return program in LOOKING


def _reads(
    call: ast.Call, place: int, name: str, default: object, reading: frozenset[object]
) -> bool:
    values = [word.value for word in call.keywords if word.arg == name]
    if not values and 0 <= place < len(call.args):
        values = [call.args[place]]
    return (_constant(values[0]) if values else default) in reading


def _writes_no_video(call: ast.Call) -> bool:
    """Whether the name of the file that is written says so."""
    return bool(call.args) and _end_of_path(call.args[0]).lower().endswith(NO_VIDEOS)


def _end_of_path(node: ast.expr) -> str:
    """Returns the end of a path that code makes, such as `os.path.join(place, "x.gif")`, or ""."""
    last: ast.expr | None = None
    if isinstance(node, ast.JoinedStr):
        last = node.values[-1] if node.values else None
    elif isinstance(node, ast.BinOp):
        last = node.right
    elif isinstance(node, ast.Call):
        last = node.args[-1] if node.args else None
    if last is not None:
        return _end_of_path(last)
    told = _constant(node)
    return told if isinstance(told, str) else ""
