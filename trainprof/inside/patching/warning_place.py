"""Shows warnings of torch's C code at the script's line, though a wrapper of ours called it."""

from __future__ import annotations

import sys
import warnings
from types import FrameType, ModuleType
from typing import Any

from trainprof.inside.patching.patcher import UNCOUNTED_FILE, Patcher, Wrapped, hide_our_frame
from trainprof.inside.session import Session

# Where Python keeps, per module, which warnings it has shown.
REGISTRY = "__warningregistry__"


class WarningPlaceProbe:
    """Issues them again there, by the name of the script's module: its filters are asked again."""

    name = "warnings"

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        def make(original: Wrapped) -> Wrapped:
            def _showwarnmsg(msg: Any) -> None:
                caller = None
                if msg.filename == UNCOUNTED_FILE:
                    caller = _caller_of(sys._getframe(1))
                try:
                    if caller is None:
                        original(msg)
                    else:
                        warnings.warn_explicit(
                            msg.message,
                            msg.category,
                            caller.f_code.co_filename,
                            caller.f_lineno,
                            module=caller.f_globals.get("__name__", "<string>"),
                            registry=caller.f_globals.setdefault(REGISTRY, {}),
                            source=msg.source,
                        )
                except BaseException as error:
                    hide_our_frame(error)
                    raise

            return _showwarnmsg

        patcher.around(make, (warnings, "_showwarnmsg"))


def _caller_of(wrapper: FrameType) -> FrameType | None:
    """Returns who called our wrapper, which forgets that it has been warned about."""
    caller: FrameType | None = wrapper
    while caller is not None and caller.f_code.co_filename == UNCOUNTED_FILE:
        caller = caller.f_back
    if caller is not None:
        wrapper.f_globals.get(REGISTRY, {}).clear()
    return caller
