"""Arrow's files: it opens them in native code, by its own file system or by their path."""

from __future__ import annotations

import atexit
import functools
import importlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Final

from trainprof.tracee.containment.paths import Paths, Wrapped, stand_in, with_path, wrap

READING: Final = ("r", "rb")
# How long the process's end waits for Arrow's threads at most, and between two looks at them.
_LONGEST_S: Final = 0.5
_PAUSE_S: Final = 0.01


class Arrow:
    """Wraps what Arrow opens files by, once the script has imported it."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self._read = _of_text(paths.read)
        self._written = _of_text(paths.written)

    def callbacks(self) -> dict[str, Callable[[ModuleType], None]]:
        """Returns what is to be called with a module right after its import, by its name."""
        return {
            "pyarrow": self.streams,
            "pyarrow.fs": self.file_systems,
            "pyarrow.ipc": self.ipc,
            "pyarrow.csv": self.csv,
            "pyarrow.json": self.json,
            "pyarrow.orc": self.orc,
            "pyarrow.parquet.core": self.parquet,
            "pyarrow.feather": self.feather,
        }

    def streams(self, pyarrow: Any) -> None:
        """Takes care of single files, such as those that `datasets` maps."""
        read, written = self._read, self._written
        mapped, file, mapping = pyarrow.memory_map, pyarrow.OSFile, pyarrow.MemoryMappedFile

        def find(path: Any, mode: str) -> Any:
            return (read if mode in READING else written)(path)

        @functools.wraps(mapped, updated=())
        def memory_map(path: Any, mode: str = "r") -> Any:
            return mapped(find(path, mode), mode)

        def opened(path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            return file(find(path, mode), mode, *args, **kwargs)

        pyarrow.memory_map = memory_map
        pyarrow.OSFile = stand_in(file, opened)
        pyarrow.create_memory_map = with_path(pyarrow.create_memory_map, 0, written)
        pyarrow.MemoryMappedFile = stand_in(
            mapping, mapping, create=staticmethod(with_path(mapping.create, 0, written))
        )
        wrap(pyarrow, "input_stream", read, place=0)
        wrap(pyarrow, "output_stream", written, place=0)
        for name, where in (("CompressedInputStream", read), ("CompressedOutputStream", written)):
            cls = getattr(pyarrow, name)
            setattr(pyarrow, name, stand_in(cls, with_path(cls, 0, where)))

    def file_systems(self, fs: Any) -> None:
        """Puts one of ours in place of the local file system, whoever is given it."""
        paths, native, every = self._paths, fs.LocalFileSystem, fs.FileSystem
        handler = type("LocalFiles", (LocalFiles, fs.FileSystemHandler), {})
        named = {"type_name": native().type_name, "__module__": native.__module__}
        ours = type(native.__name__, (fs.PyFileSystem,), named)

        let_end = functools.cache(lambda: atexit.register(_let_threads_end))

        def local(*, use_mmap: bool = False) -> Any:
            let_end()
            return ours(handler(paths, fs, native(use_mmap=use_mmap), use_mmap))

        def is_local(instance: object) -> bool:
            return isinstance(instance, fs.PyFileSystem) and isinstance(instance.handler, handler)

        @functools.wraps(every.from_uri, updated=())
        def from_uri(uri: Any) -> Any:
            found, path = every.from_uri(uri)
            if isinstance(found, native):
                found = local(use_mmap=found.equals(native(use_mmap=True)))
            return found, path

        read_from = staticmethod(from_uri)
        fs.LocalFileSystem = stand_in(native, local, is_ours=is_local, from_uri=read_from)
        fs.FileSystem = stand_in(every, every, from_uri=read_from)

    def ipc(self, ipc: Any) -> None:
        for what in ("Stream", "File"):
            wrap(getattr(ipc, f"RecordBatch{what}Reader"), "__init__", self._read)
            wrap(getattr(ipc, f"RecordBatch{what}Writer"), "__init__", self._written)

    def csv(self, csv: Any) -> None:
        for name in ("read_csv", "open_csv"):
            wrap(csv, name, self._read, place=0)
        wrap(csv, "write_csv", self._written)
        csv.CSVWriter = stand_in(csv.CSVWriter, with_path(csv.CSVWriter, 0, self._written))

    def json(self, json: Any) -> None:
        for name in ("read_json", "open_json"):
            wrap(json, name, self._read, place=0)

    def orc(self, orc: Any) -> None:
        wrap(orc.ORCFile, "__init__", self._read)
        wrap(orc.ORCWriter, "__init__", self._written)

    def parquet(self, parquet: Any) -> None:
        """Takes care of files by their path; in a file system they are that one's affair."""
        writer, file = parquet.ParquetWriter, parquet.ParquetFile
        writer.__init__ = _by_path(writer.__init__, self._written)
        file.__init__ = _by_path(file.__init__, self._read)

    def feather(self, feather: Any) -> None:
        wrap(feather, "write_feather", self._written)
        for name in ("read_feather", "read_table"):
            wrap(feather, name, self._read, place=0)


class LocalFiles:
    """The local file system as a contained script sees it; Arrow asks it from threads of its own.

    Each method is as pyarrow.fs.FileSystemHandler describes it.
    """

    def __init__(self, paths: Paths, fs: Any, native: Any, use_mmap: bool) -> None:
        """
        Args:
            paths: Where files are.
            fs: pyarrow.fs.
            native: Arrow's own local file system.
            use_mmap: As that was made with.
        """
        self._paths = paths
        self._fs = fs
        self._native = native
        self._use_mmap = use_mmap

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other._use_mmap == self._use_mmap

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return _handler_again, (self._use_mmap,)

    def get_type_name(self) -> str:
        return str(self._native.type_name)

    def normalize_path(self, path: str) -> Any:
        return self._native.normalize_path(path)

    def get_file_info(self, paths: list[str]) -> list[Any]:
        return [self._info(path) for path in paths]

    def get_file_info_selector(self, selector: Any) -> Any:
        if self._paths.is_plain():
            return self._native.get_file_info(selector)
        top = selector.base_dir
        if selector.allow_not_found and not os.path.exists(top):
            return []
        return list(self._infos_in(top, recursive=selector.recursive))

    def _infos_in(self, directory: str, *, recursive: bool) -> Iterator[Any]:
        for name in os.listdir(directory):
            path = os.path.join(directory, name)
            info = self._info(path)
            yield info
            if recursive and info.type == self._fs.FileType.Directory:
                yield from self._infos_in(path, recursive=True)

    def _info(self, path: str) -> Any:
        where = self._paths.read(path)
        found = self._native.get_file_info(where)
        if where == path:
            return found
        told = {"mtime_ns": found.mtime_ns, "size": found.size}
        return self._fs.FileInfo(path, found.type, **told)

    def create_dir(self, path: str, recursive: bool) -> None:
        if recursive:
            os.makedirs(path, exist_ok=True)
        elif not os.path.isdir(path):
            os.mkdir(path)

    def delete_dir(self, path: str) -> None:
        refuse_root(path)
        shutil.rmtree(path)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        refuse_root(path)
        if missing_dir_ok and not os.path.exists(path):
            return
        for name in os.listdir(path):
            one = os.path.join(path, name)
            if os.path.isdir(one) and not os.path.islink(one):
                shutil.rmtree(one)
            else:
                os.unlink(one)

    def delete_root_dir_contents(self) -> None:
        refuse_root(os.sep)

    def delete_file(self, path: str) -> None:
        os.unlink(path)

    def move(self, src: str, dest: str) -> None:
        os.replace(src, dest)

    def copy_file(self, src: str, dest: str) -> None:
        if src != dest:
            shutil.copyfile(src, dest)

    def open_input_stream(self, path: str) -> Any:
        return self._native.open_input_stream(self._paths.read(path), compression=None)

    def open_input_file(self, path: str) -> Any:
        return self._native.open_input_file(self._paths.read(path))

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        return self._opened(self._native.open_output_stream, path, metadata)

    def open_append_stream(self, path: str, metadata: Any) -> Any:
        return self._opened(self._native.open_append_stream, path, metadata)

    def _opened(self, plain: Wrapped, path: str, metadata: Any) -> Any:
        return plain(self._paths.written(path), compression=None, metadata=metadata)


def _let_threads_end() -> None:
    """Waits until Arrow's threads rest: what they still have of ours they let go of in Python.

    One that asks for Python's interpreter once that has begun to end makes the process abort.
    """
    own, until = str(threading.get_native_id()), time.monotonic() + _LONGEST_S
    rested = 0
    while rested < 2 and time.monotonic() < until:
        time.sleep(_PAUSE_S)  # meanwhile they get the interpreter
        rested = 0 if _any_runs(own) else rested + 1


def _any_runs(own: str) -> bool:
    """Whether another thread of the process is on a core, or waits for one."""
    for thread in os.listdir("/proc/self/task"):
        if thread != own:
            try:
                with open(f"/proc/self/task/{thread}/stat", "rb") as told:
                    state = told.read().rpartition(b")")[2].split()[0]
            except (OSError, IndexError):
                continue
            if state == b"R":
                return True
    return False


def refuse_root(path: str) -> None:
    """Raises for what would empty the whole machine, as Arrow's own does.

    Places that a trial leaves alone, such as the temporary directory, would really be emptied.
    """
    if os.path.realpath(path) == os.sep:
        raise ValueError(f"DeleteDirContents called on invalid path '{path}'")


def _handler_again(use_mmap: bool) -> Any:
    """Returns one that was pickled, in a process of the same trial."""
    fs: Any = importlib.import_module("pyarrow.fs")
    return fs.LocalFileSystem(use_mmap=use_mmap).handler


def _by_path(plain: Wrapped, find: Callable[[Any], Any]) -> Wrapped:
    found = with_path(plain, 1, find)

    @functools.wraps(plain, updated=())
    def __init__(self: Any, where: Any, *args: Any, **kwargs: Any) -> None:
        is_elsewhere = kwargs.get("filesystem") is not None
        (plain if is_elsewhere else found)(self, where, *args, **kwargs)

    return __init__


def _of_text(find: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns `find` for what takes content in its stead: bytes are no path to Arrow."""
    return lambda path: path if isinstance(path, bytes) else find(path)
