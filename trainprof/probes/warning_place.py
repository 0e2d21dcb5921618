"""Shows warnings of torch's C code at the script's line, though a wrapper of ours called it."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any

from trainprof.probes.patcher import UNCOUNTED_FILE, Patcher, hide_our_frame
from trainprof.probes.session import Session

Wrapped = Callable[..., Any]

# Where Python keeps, per module, which warnings it has shown.
REGISTRY = "__warningregistry__"


class WarningPlaceProbe:
    """Moves them. Python code can say who is not to count as the caller of `warn`; C code cannot.

    Attributes are set on the message that Python is about to show; which lines have been warned
    about is kept where it would be kept without us.
    """

    name = "warnings"

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        def make(original: Wrapped) -> Wrapped:
            def _showwarnmsg(msg: Any) -> None:
                if msg.filename == UNCOUNTED_FILE and not _moved(msg, sys._getframe(1)):
                    return
                try:
                    original(msg)
                except BaseException as error:
                    hide_our_frame(error)
                    raise

            return _showwarnmsg

        patcher.around(make, (warnings, "_showwarnmsg"))


def _moved(message: Any, wrapper: FrameType) -> bool:
    """Puts `message` at the line that called our wrapper; False if that line has had it."""
    caller: FrameType | None = wrapper
    while caller is not None and caller.f_code.co_filename == UNCOUNTED_FILE:
        caller = caller.f_back
    if caller is None:
        return True
    ours = wrapper.f_globals.get(REGISTRY, {})
    theirs = caller.f_globals.setdefault(REGISTRY, {})
    version = ours.get("version")
    # Keys are (text, category, line); without a line, or with 0, they stand for the whole module.
    seen = {
        (*key[:2], *(line and caller.f_lineno for line in key[2:]))
        for key in ours
        if isinstance(key, tuple)
    }
    ours.clear()
    if theirs.get("version") != version:  # the filters have changed since
        theirs.clear()
        theirs["version"] = version
    if not seen.isdisjoint(theirs):
        return False
    theirs.update(dict.fromkeys(seen, True))
    message.filename, message.lineno = caller.f_code.co_filename, caller.f_lineno
    return True
