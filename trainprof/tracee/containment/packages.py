"""Libraries that open files in native code: they are told where a file really is."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from trainprof.tracee.containment.arrow import Arrow
from trainprof.tracee.containment.guard import path_text
from trainprof.tracee.containment.paths import (
    Paths,
    Wrapped,
    class_with_path,
    stand_in,
    with_path,
    wrap,
)
from trainprof.tracee.containment.tree import NotAPath

SQLITE_URI: Final = "file:"
# Kept beside a database that was not closed.
SQLITE_COMPANIONS: Final = ("-journal", "-wal")
# Where it can be imported, TensorBoard takes its own Python code instead of TensorFlow.
NO_TENSORFLOW: Final = "tensorboard.compat.notf"


class Packages:
    """Wraps what a library opens files by, once the script has imported it."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths

    def callbacks(self) -> dict[str, Callable[[ModuleType], None]]:
        """Returns what is to be called with a library right after its import, by its name."""
        return {
            "torch": self.torch,
            "torch.profiler.profiler": self.profiler,
            "torch.distributed.rendezvous": self.rendezvous,
            "safetensors": self.safetensors,
            "tokenizers": self.tokenizers,
            "sqlite3": self.sqlite3,
            "tensorboard.compat": self.tensorboard,
            **Arrow(self._paths).callbacks(),
        }

    def torch(self, torch: Any) -> None:
        core = torch._C
        for name, find in (
            ("PyTorchFileWriter", self._paths.written),
            ("PyTorchFileReader", self._paths.read),
        ):
            setattr(core, name, class_with_path(getattr(core, name), find))
        wrap(core, "import_ir_module", self._paths.read)
        writers = (core.ScriptModule, core.ScriptFunction, core._autograd._ProfilerResult)
        for cls in writers:
            wrap(cls, "save", self._paths.written)
        wrap(core.ScriptModule, "_save_for_mobile", self._paths.written)
        # A name that is not ASCII is opened by a class of io.
        torch.save = torch.serialization.save = with_path(torch.save, 1, self._paths.written)
        torch.from_file = self._mapping(torch.from_file)
        storage = torch.UntypedStorage
        storage.from_file = staticmethod(self._mapping(storage.from_file))

    def profiler(self, profiler: Any) -> None:
        wrap(profiler, "_add_execution_trace_observer", self._paths.written, place=0)

    def rendezvous(self, rendezvous: Any) -> None:
        """Ranks may meet in a file."""
        plain = getattr(rendezvous, "FileStore", None)
        if plain is not None:
            store = class_with_path(plain, self._paths.written)
            rendezvous.FileStore = sys.modules["torch.distributed"].FileStore = store  # type: ignore[attr-defined]

    def safetensors(self, safetensors: Any) -> None:
        safetensors.serialize_file = with_path(safetensors.serialize_file, 1, self._paths.written)
        for name in ("safe_open", "_safe_open_handle"):
            cls = getattr(safetensors, name, None)
            if cls is not None:
                setattr(safetensors, name, stand_in(cls, _opening(cls, self._paths.read)))

    def tokenizers(self, tokenizers: Any) -> None:
        tokenizer, model = tokenizers.Tokenizer, tokenizers.models.Model
        tokenizer.save = with_path(tokenizer.save, 1, self._paths.written)
        tokenizer.from_file = staticmethod(with_path(tokenizer.from_file, 0, self._paths.read))
        model.save = with_path(model.save, 1, self._paths.written)

    def sqlite3(self, sqlite3: Any) -> None:
        plain = sqlite3.connect

        @functools.wraps(plain)
        def connect(database: Any, *args: Any, **kwargs: Any) -> Any:
            return plain(self._database(database), *args, **kwargs)

        sqlite3.connect = sqlite3.dbapi2.connect = connect

    def tensorboard(self, compat: Any) -> None:
        """Lets it write by Python: TensorFlow, if that is installed, writes by C++ of its own.

        It asks for TensorFlow no sooner than it needs it.
        """
        module = sys.modules.setdefault(NO_TENSORFLOW, ModuleType(NO_TENSORFLOW))
        compat.notf = module

    def _mapping(self, plain: Wrapped) -> Wrapped:
        @functools.wraps(plain)
        def from_file(filename: Any, shared: Any = None, *args: Any, **kwargs: Any) -> Any:
            path = (self._paths.written if shared else self._paths.read)(filename)
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
            self._paths.own(path + companion)
        try:
            return str(self._paths.written(path))
        except PermissionError:
            return str(self._paths.read(path))


def _opening(cls: Any, find: Callable[[Any], Any]) -> Wrapped:
    def opened(filename: Any, *args: Any, **kwargs: Any) -> Any:
        return cls(find(filename), *args, **kwargs)

    return opened
