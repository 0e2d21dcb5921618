"""Records `torch.save`, `torch.load`, and checkpoints that libraries write."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import PosixPath, WindowsPath
from types import BuiltinFunctionType, FrameType, FunctionType, ModuleType
from typing import Any, Final

from trainprof.inside.patching.patcher import Arguments, Patcher, Wrapped, recorded_after
from trainprof.inside.session import Session
from trainprof.record.schema import Kind, Writer

# Path types that run no user code.
_PATHS: Final = (str, PosixPath, WindowsPath)
# A function or method by module. A library's checkpoint takes longer than its files: it gathers
# states and synchronizes ranks. If scripts import a function by name, a function that it calls is
# wrapped instead.
_OF_LIBRARIES: Final = {
    "safetensors.torch": ("serialize_file", Writer.SAFETENSORS),
    "transformers.trainer": ("Trainer._save_checkpoint", Writer.TRANSFORMERS),
    "lightning.pytorch.trainer.trainer": ("Trainer.save_checkpoint", Writer.LIGHTNING),
    "pytorch_lightning.trainer.trainer": ("Trainer.save_checkpoint", Writer.LIGHTNING),
    "accelerate.accelerator": ("Accelerator.save_state", Writer.ACCELERATE),
    "torch.distributed.checkpoint.state_dict_saver": ("_save_state_dict", Writer.DISTRIBUTED),
}
# Other objects there (a mock, a partial) are the script's and are not wrapped.
_WRAPPED_TYPES: Final = (FunctionType, BuiltinFunctionType)


class CheckpointProbe:
    """Wraps torch's functions, and those of libraries once they are imported.

    It checks for libraries at an optimizer's first step and after each checkpoint.
    """

    name = "checkpoint"

    def __init__(self) -> None:
        self._awaited = dict(_OF_LIBRARIES)

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        self._patcher, self._session = patcher, session
        self._meets = patcher.guarded(self._wrap_libraries)
        session.on_first_step.subscribe(self._meets)
        for name, kind in (("save", Kind.CHECKPOINT_SAVE), ("load", Kind.CHECKPOINT_LOAD)):
            make = self._maker(kind, Writer.TORCH)
            patcher.around(make, (torch, name), (torch.serialization, name))

    def _maker(self, kind: Kind, writer: Writer) -> Callable[[Wrapped], Wrapped]:
        record = self._patcher.guarded(partial(self._record, kind, writer))
        return recorded_after(self._session.phase_now, record)

    def _record(
        self,
        kind: Kind,
        writer: Writer,
        start: int,
        end: int,
        caller: FrameType | None,
        given: Arguments,
    ) -> None:
        is_file = kind == Kind.CHECKPOINT_SAVE and writer in (Writer.TORCH, Writer.SAFETENSORS)
        size = _written(*given) if is_file else 0
        site = self._session.sites.find(caller)
        self._session.emit(int(kind), start, end, site, size, int(writer))
        self._meets()

    def _wrap_libraries(self, _: Any = None) -> None:
        """Wraps the writers of libraries that the script has imported by now."""
        for name in tuple(self._awaited):  # other threads may save concurrently
            module = sys.modules.get(name)
            if module is None or _is_being_imported(module):
                continue
            awaited = self._awaited.pop(name, None)
            if type(module) is ModuleType and awaited is not None:
                self._wrap(module, *awaited)

    def _wrap(self, module: ModuleType, function: str, writer: Writer) -> None:
        owner: Any = module
        *classes, name = function.split(".")
        for cls in classes:
            owner = getattr(owner, "__dict__", {}).get(cls)
        writes = getattr(owner, "__dict__", {}).get(name)
        if writes is None:
            missing = f"{module.__name__} has no {function}: its checkpoints are not recorded"
            self._session.unavailable(self.name, missing)
        elif type(writes) in _WRAPPED_TYPES:
            self._patcher.around_if_there(self._maker(Kind.CHECKPOINT_SAVE, writer), (owner, name))


def _is_being_imported(module: Any) -> bool:
    """Returns whether another thread is importing it; a script may put any object there."""
    spec = getattr(module, "__dict__", {}).get("__spec__")
    return type(spec) is ModuleSpec and bool(getattr(spec, "_initializing", False))


def _written(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Returns the size of the saved file in bytes, 0 if its path is unknown."""
    file: Any = args[1] if len(args) > 1 else kwargs.get("f", kwargs.get("filename"))
    if type(file) not in _PATHS:  # os.stat would run the user's __fspath__
        return 0
    try:
        return os.stat(file).st_size
    except (OSError, ValueError):
        return 0
