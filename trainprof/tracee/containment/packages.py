"""Libraries that open files in native code: they are told where a file really is."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from trainprof.tracee.containment.changes import Changes
from trainprof.tracee.containment.functions import is_directory
from trainprof.tracee.containment.guard import path_text
from trainprof.tracee.containment.tree import MergedTree, NotAPath

SQLITE_URI: Final = "file:"
# Kept beside a database that was not closed.
SQLITE_COMPANIONS: Final = ("-journal", "-wal")

Wrapped = Callable[..., Any]


class Packages:
    """Wraps what a library opens files by, once the script has imported it."""

    def __init__(self, tree: MergedTree, changes: Changes) -> None:
        self._tree = tree
        self._changes = changes

    def callbacks(self) -> dict[str, Callable[[ModuleType], None]]:
        """Returns what is to be called with a library right after its import, by its name."""
        return {
            "torch": self.torch,
            "safetensors": self.safetensors,
            "tokenizers": self.tokenizers,
            "pyarrow": self.pyarrow,
            "pyarrow.parquet.core": self.parquet,
            "pyarrow.dataset": self.arrow_dataset,
            "pyarrow.feather": self.feather,
            "sqlite3": self.sqlite3,
        }

    def read_path(self, path: Any) -> Any:
        """Returns where a file is that is to be read; what is no path is returned as it is."""
        if self._tree.is_plain():
            return path
        try:
            return self._tree.node(path_text(path)).path
        except (NotAPath, OSError):
            return path  # it finds out

    def written_path(self, path: Any) -> Any:
        """Returns where a file is to be written; what is no path is returned as it is.

        Raises:
            OSError: If it may not be written.
        """
        try:
            text = path_text(path)
        except NotAPath:
            return path
        try:
            node = self._tree.node(text)
        except (FileNotFoundError, NotADirectoryError):
            # The library finds out, but not in a directory that is only gone for the script.
            if not is_directory(os.path.dirname(text) or os.curdir):
                return path
            return self._tree.changed_path(os.path.abspath(text))
        return self._changes.for_writer(node)

    def written_directory(self, path: Any) -> Any:
        """Returns where a directory of files is to be written, which is made."""
        try:
            os.makedirs(path_text(path), exist_ok=True)
        except (NotAPath, FileExistsError):
            return path
        return self._changes.own(self._tree.node(path_text(path)))

    def torch(self, torch: Any) -> None:
        core = torch._C
        for name, find in (
            ("PyTorchFileWriter", self.written_path),
            ("PyTorchFileReader", self.read_path),
        ):
            setattr(core, name, _class_with_path(getattr(core, name), find))
        _wrap(core, "import_ir_module", self.read_path)
        writers = (core.ScriptModule, core.ScriptFunction, core._autograd._ProfilerResult)
        for cls in writers:
            _wrap(cls, "save", self.written_path)
        # A name that is not ASCII is opened by a class of io.
        torch.save = torch.serialization.save = _with_path(torch.save, 1, self.written_path)
        torch.from_file = self._mapping(torch.from_file)
        storage = torch.UntypedStorage
        storage.from_file = staticmethod(self._mapping(storage.from_file))

    def safetensors(self, safetensors: Any) -> None:
        safetensors.serialize_file = _with_path(safetensors.serialize_file, 1, self.written_path)
        for name in ("safe_open", "_safe_open_handle"):
            cls = getattr(safetensors, name, None)
            if cls is not None:
                setattr(safetensors, name, _stand_in(cls, _opening(cls, self.read_path)))

    def tokenizers(self, tokenizers: Any) -> None:
        tokenizer, model = tokenizers.Tokenizer, tokenizers.models.Model
        tokenizer.save = _with_path(tokenizer.save, 1, self.written_path)
        tokenizer.from_file = staticmethod(_with_path(tokenizer.from_file, 0, self.read_path))
        model.save = _with_path(model.save, 1, self.written_path)

    def pyarrow(self, pyarrow: Any) -> None:
        """Takes care of single files, such as those that `datasets` maps."""
        mapped, file = pyarrow.memory_map, pyarrow.OSFile

        def find(path: Any, mode: str) -> Any:
            return (self.read_path if mode in ("r", "rb") else self.written_path)(path)

        @functools.wraps(mapped, updated=())
        def memory_map(path: Any, mode: str = "r") -> Any:
            return mapped(find(path, mode), mode)

        def opened(path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            return file(find(path, mode), mode, *args, **kwargs)

        pyarrow.memory_map = memory_map
        pyarrow.OSFile = _stand_in(file, opened)

    def parquet(self, parquet: Any) -> None:
        _wrap(parquet.ParquetWriter, "__init__", self.written_path)
        _wrap(parquet.ParquetFile, "__init__", self.read_path)
        _wrap(parquet.ParquetDataset, "__init__", self.read_path)

    def arrow_dataset(self, dataset: Any) -> None:
        _wrap(dataset, "write_dataset", self.written_directory)
        dataset.dataset = _with_path(dataset.dataset, 0, self.read_path)

    def feather(self, feather: Any) -> None:
        _wrap(feather, "write_feather", self.written_path)
        for name in ("read_feather", "read_table"):
            setattr(feather, name, _with_path(getattr(feather, name), 0, self.read_path))

    def sqlite3(self, sqlite3: Any) -> None:
        plain = sqlite3.connect

        @functools.wraps(plain)
        def connect(database: Any, *args: Any, **kwargs: Any) -> Any:
            return plain(self._database(database), *args, **kwargs)

        sqlite3.connect = sqlite3.dbapi2.connect = connect

    def _mapping(self, plain: Wrapped) -> Wrapped:
        @functools.wraps(plain)
        def from_file(filename: Any, shared: Any = None, *args: Any, **kwargs: Any) -> Any:
            path = (self.written_path if shared else self.read_path)(filename)
            return plain(path, bool(shared), *args, **kwargs)

        return from_file

    def _database(self, database: Any) -> Any:
        """Returns where a database is; it is copied, as reading writes beside it too."""
        try:
            text = path_text(database)
        except NotAPath:
            return database
        if text == ":memory:":
            return database
        if text.startswith(SQLITE_URI):
            from urllib.parse import quote, unquote

            path, mark, query = text[len(SQLITE_URI) :].partition("?")
            if not path or path == ":memory:" or "mode=memory" in query:
                return database
            path = path[2:] if path.startswith("//") else path
            return SQLITE_URI + quote(self._own_database(unquote(path))) + mark + query
        return self._own_database(text)

    def _own_database(self, path: str) -> str:
        for companion in SQLITE_COMPANIONS:
            try:
                self._changes.own_content(self._tree.node(path + companion))
            except OSError:
                continue  # there is none
        try:
            return str(self.written_path(path))
        except PermissionError:
            return str(self.read_path(path))


def _with_path(plain: Wrapped, place: int, find: Callable[[Any], Any]) -> Wrapped:
    """Returns `plain` with one of its arguments, a path, replaced by what `find` tells."""
    names = ("f", "filename", "path", "folder", "where", "source", "dest", "base_dir")

    @functools.wraps(plain, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        if len(args) > place:
            args = (*args[:place], find(args[place]), *args[place + 1 :])
        else:
            kwargs.update((name, find(kwargs[name])) for name in names if name in kwargs)
        return plain(*args, **kwargs)

    return call


def _wrap(owner: Any, name: str, find: Callable[[Any], Any]) -> None:
    """Wraps what has the path behind its first argument, where there is such a thing."""
    plain = getattr(owner, name, None)
    if plain is not None:
        setattr(owner, name, _with_path(plain, 1, find))


def _class_with_path(cls: Any, find: Callable[[Any], Any]) -> Any:
    def __init__(self: Any, target: Any, *args: Any, **kwargs: Any) -> None:
        cls.__init__(self, find(target), *args, **kwargs)

    return type(cls.__name__, (cls,), {"__init__": __init__, "__module__": cls.__module__})


def _opening(cls: Any, find: Callable[[Any], Any]) -> Wrapped:
    def opened(filename: Any, *args: Any, **kwargs: Any) -> Any:
        return cls(find(filename), *args, **kwargs)

    return opened


def _stand_in(cls: Any, make: Wrapped) -> Any:
    """Returns a class that gives instances of one that cannot be inherited from.

    Args:
        cls: That one.
        make: Makes the instance, of the arguments that the script gives.
    """

    class Meta(type):
        def __instancecheck__(self, instance: object) -> bool:
            return isinstance(instance, cls)

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return make(*args, **kwargs)

    return Meta(cls.__name__, (), {"__doc__": cls.__doc__, "__module__": cls.__module__})
