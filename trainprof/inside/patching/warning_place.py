"""Shows warnings of torch's C code at the script's line instead of our wrapper's."""

from __future__ import annotations

import sys
import warnings
from types import FrameType, ModuleType
from typing import Any

from trainprof.inside.patching.patcher import UNCOUNTED_FILE, Patcher, Wrapped, hide_our_frame
from trainprof.inside.session import Session

# Python's per-module registry of warnings that were shown.
REGISTRY = "__warningregistry__"


class WarningPlaceProbe:
    """Issues such warnings again at the script's line, so that its filters apply."""

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
    """Returns our wrapper's caller, and clears the wrapper's registry of shown warnings."""
    caller: FrameType | None = wrapper
    while caller is not None and caller.f_code.co_filename == UNCOUNTED_FILE:
        caller = caller.f_back
    if caller is not None:
        wrapper.f_globals.get(REGISTRY, {}).clear()
    return caller
