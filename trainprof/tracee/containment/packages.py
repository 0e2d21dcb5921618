"""Libraries that open files in native code: they are told where a file really is."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from trainprof.tracee.containment.changes import Changes
from trainprof.tracee.containment.functions import is_directory, path_text
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

    def torch(self, torch: Any) -> None:
        core = torch._C
        writer, reader = core.PyTorchFileWriter, core.PyTorchFileReader
        core.PyTorchFileWriter = _class_with_path(writer, self.written_path)
        core.PyTorchFileReader = _class_with_path(reader, self.read_path)
        core.import_ir_module = _with_path(core.import_ir_module, 1, self.read_path)
        for cls in (core.ScriptModule, core.ScriptFunction):
            cls.save = _with_path(cls.save, 1, self.written_path)
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
                setattr(safetensors, name, _stand_in(cls, self.read_path))

    def tokenizers(self, tokenizers: Any) -> None:
        tokenizer, model = tokenizers.Tokenizer, tokenizers.models.Model
        tokenizer.save = _with_path(tokenizer.save, 1, self.written_path)
        tokenizer.from_file = staticmethod(_with_path(tokenizer.from_file, 0, self.read_path))
        model.save = _with_path(model.save, 1, self.written_path)

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
    names = ("f", "filename", "path", "folder")

    @functools.wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        if len(args) > place:
            args = (*args[:place], find(args[place]), *args[place + 1 :])
        else:
            kwargs.update((name, find(kwargs[name])) for name in names if name in kwargs)
        return plain(*args, **kwargs)

    return call


def _class_with_path(cls: Any, find: Callable[[Any], Any]) -> Any:
    def __init__(self: Any, target: Any, *args: Any, **kwargs: Any) -> None:
        cls.__init__(self, find(target), *args, **kwargs)

    return type(cls.__name__, (cls,), {"__init__": __init__, "__module__": cls.__module__})


def _stand_in(cls: Any, find: Callable[[Any], Any]) -> Any:
    """Returns a class that makes instances of one that cannot be inherited from."""

    class Meta(type):
        def __instancecheck__(self, instance: object) -> bool:
            return isinstance(instance, cls)

        def __call__(self, filename: Any, *args: Any, **kwargs: Any) -> Any:
            return cls(find(filename), *args, **kwargs)

    return Meta(cls.__name__, (), {"__doc__": cls.__doc__, "__module__": cls.__module__})
