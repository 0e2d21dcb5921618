"""Records `torch.save` and `torch.load`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import PosixPath, WindowsPath
from types import FrameType, ModuleType
from typing import Any, Final

from trainprof.probes.patcher import Patcher, hide_our_frame
from trainprof.probes.session import Session
from trainprof.record.schema import Kind

Wrapped = Callable[..., Any]
# Whose path is asked for without a call of the script's.
_PATHS: Final = (str, PosixPath, WindowsPath)
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class CheckpointProbe:
    """Wraps both under both their names."""

    name = "checkpoint"

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        now = session.phase_now

        def record(
            kind: int, start: int, end: int, caller: FrameType | None, given: Arguments
        ) -> None:
            size = _written(*given) if kind == Kind.CHECKPOINT_SAVE else 0
            session.emit(kind, start, end, session.sites.find(caller), size)

        guarded = patcher.guarded(record)

        def maker(kind: int) -> Callable[[Wrapped], Wrapped]:
            def make(original: Wrapped) -> Wrapped:
                def checkpoint(*args: Any, **kwargs: Any) -> Any:
                    start = now()
                    try:
                        return original(*args, **kwargs)
                    except BaseException as error:
                        hide_our_frame(error)
                        raise
                    finally:
                        guarded(kind, start, now(), sys._getframe().f_back, (args, kwargs))

                return checkpoint

            return make

        for name, kind in (("save", Kind.CHECKPOINT_SAVE), ("load", Kind.CHECKPOINT_LOAD)):
            patcher.around(maker(int(kind)), (torch, name), (torch.serialization, name))


def _written(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Returns how large the file is that a save wrote; 0 where its path is not known."""
    file: Any = kwargs["f"] if "f" in kwargs else args[1] if len(args) > 1 else None
    if type(file) not in _PATHS:  # one of the script's own would notice
        return 0
    try:
        return os.stat(file).st_size
    except (OSError, ValueError):
        return 0
