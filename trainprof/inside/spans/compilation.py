"""Records the time torch.compile spends compiling, by the line that triggered it."""

from __future__ import annotations

import re
import sys
from types import ModuleType
from typing import Any, Final

from trainprof.inside.patching.patcher import Patcher, called_around
from trainprof.inside.session import Session
from trainprof.record.schema import CompileFlag, Kind

_CALLBACKS: Final = "torch._dynamo.callback"
# "3/1": the second compilation of the fourth frame.
_FRAME_ID: Final = re.compile(r"(?:!\d+/)?\d+/(\d+)")
# Failed guards, in torch._dynamo's words.
_REASONS: Final = (
    (CompileFlag.OTHER_MODE, re.compile(r"GLOBAL_STATE|\.training\b|requires_grad")),
    (CompileFlag.OTHER_SHAPE, re.compile(r"(?:size|stride|rank) mismatch|\.size\(|\.shape\b")),
    (CompileFlag.OTHER_NUMBER, re.compile(r"== -?(?:\d|\.\d|inf|nan)")),
)
_MOST_TIMES: Final = 1 << 31


class CompilationProbe:
    """Registers callbacks with dynamo, which is loaded by the first `torch.compile`."""

    name = "compilation"

    def __init__(self) -> None:
        self._began = 0

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        self._session = session
        begin, end = patcher.guarded(self._begin), patcher.guarded(self._end)

        def listen() -> None:
            handler = _handler()
            # torch._dynamo.reset() drops all callbacks.
            if handler is not None and begin not in handler.start_callbacks:
                handler.start_callbacks.append(begin)
                handler.end_callbacks.append(end)

        def stop_listening() -> None:
            handler = _handler()
            if handler is not None and begin in handler.start_callbacks:
                handler.start_callbacks.remove(begin)
                handler.end_callbacks.remove(end)

        patcher.around(called_around(after=patcher.guarded(listen)), (torch, "compile"))
        patcher.on_undo(stop_listening)
        listen()

    def _begin(self, *_: Any) -> None:
        self._began = self._session.now()

    def _end(self, *arguments: Any) -> None:
        if not self._began:
            return
        start, self._began = self._began, 0
        times, flags = _what(arguments[0]) if arguments else (0, 0)
        site = self._session.sites.find(sys._getframe(1))
        self._session.emit(_COMPILE, start, self._session.now(), site, times, flags)


def _what(arguments: Any) -> tuple[int, int]:
    """Returns the number of earlier compilations of this code, and flags, from CallbackArgs."""
    frame_id = _FRAME_ID.match(str(getattr(arguments, "compile_id", "")))
    trigger = getattr(getattr(arguments, "callback_trigger", None), "name", "")
    flags = CompileFlag.LATER_PART if trigger not in ("", "DYNAMO") else 0
    if frame_id is None:
        return 0, int(flags)
    return min(int(frame_id[1]), _MOST_TIMES), int(flags | _reason() | CompileFlag.COUNT_KNOWN)


def _reason() -> int:
    """Returns the flag of torch's reason for a recompilation, 0 if unknown."""
    utils = sys.modules.get("torch._dynamo.utils")
    context = getattr(utils, "get_metrics_context", lambda: None)()
    reason = str(getattr(context, "_metrics", {}).get("recompile_reason"))
    return int(next((flag for flag, pattern in _REASONS if pattern.search(reason)), 0))


def _handler() -> Any:
    return getattr(sys.modules.get(_CALLBACKS), "callback_handler", None)


_COMPILE: Final = int(Kind.COMPILE)
