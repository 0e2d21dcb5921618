"""Which line of the user's a call came from."""

from __future__ import annotations

import json
import os
import site
import sys
import sysconfig
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from trainprof.record.event_log import EventLog
from trainprof.record.schema import Topic


class CallSites:
    """Finds and names the first frame of the user's own code; a walk costs about a microsecond."""

    def __init__(self, log: EventLog, cwd: str) -> None:
        self._log = log
        self._cwd = cwd
        self._libraries = _library_directories()
        self._torch = _torch_directories()
        # By id: a code object's hash walks all of it, and equal code in two files is equal. Those
        # judged are kept, so that no id is used again.
        self._is_user: dict[int, bool] = {}
        self._is_torch: dict[int, bool] = {}
        self._known: dict[tuple[int, int], int] = {}
        self._judged: list[CodeType] = []

    def is_user_code(self, code: CodeType) -> bool:
        """True for code outside the standard library, site-packages and ourselves."""
        known = self._is_user.get(id(code))
        if known is None:
            known = self._is_user[id(code)] = self._judge(code.co_filename)
            self._judged.append(code)
        return known

    def find(self, frame: FrameType | None) -> int:
        """Returns the site id of the first user frame at or above `frame`; 0 without any frame.

        Where no frame is the user's (an installed package that trains), the first frame outside
        torch is taken.
        """
        fallback: FrameType | None = None
        is_user_code = self.is_user_code
        while frame is not None:
            if is_user_code(frame.f_code):
                return self.name(frame)
            if fallback is None and not self.is_ours_or_torch(frame):
                fallback = frame
            frame = frame.f_back
        return self.name(fallback) if fallback is not None else 0

    def name(self, frame: FrameType) -> int:
        """Returns the site id of the line that `frame` is at."""
        code = frame.f_code
        key = (id(code), frame.f_lasti)
        number = self._known.get(key)
        if number is None:
            self._judged.append(code)
            file = code.co_filename
            if not file.startswith("<"):
                file = os.path.join(self._cwd, file)
            text = json.dumps([file, frame.f_lineno, code.co_name], ensure_ascii=True)
            number = self._known[key] = self._log.define(Topic.SITE, text)
        return number

    def _judge(self, file: str) -> bool:
        if file.startswith("<"):
            return file.startswith("<ipython") or file in ("<stdin>", "<string>")
        return not os.path.join(self._cwd, file).startswith((*self._libraries, *self._torch))

    def is_ours_or_torch(self, frame: FrameType) -> bool:
        """True for torch's frames, ours and generated code."""
        code = frame.f_code
        known = self._is_torch.get(id(code))
        if known is None:
            file = code.co_filename
            known = file.startswith(("<", *self._torch))
            self._is_torch[id(code)] = known
            self._judged.append(code)
        return known


class LoaderBirthplaces:
    """Remembers which line built each DataLoader, by the object's identity.

    A framework that rebuilds the user's loader (Lightning, accelerate) holds the old one in a local
    variable at that moment: the new one then keeps the old one's line.
    """

    def __init__(
        self, sites: CallSites, keep_track: Callable[[object, Callable[[], None]], None]
    ) -> None:
        self._sites = sites
        self._keep_track = keep_track
        self._of_loader: dict[int, int] = {}

    def note(self, loader: object, frame: FrameType | None) -> None:
        """Called while `loader` is being built, with the frame that sets its attributes."""
        while frame is not None and (self._sites.is_ours_or_torch(frame) or _builds(frame, loader)):
            frame = frame.f_back
        site = self._rebuilt_from(frame) or self._sites.find(frame)
        key = id(loader)
        self._of_loader[key] = site
        self._keep_track(loader, lambda: forget(self._of_loader, key))

    def of(self, loader: object) -> int | None:
        return self._of_loader.get(id(loader))

    def _rebuilt_from(self, frame: FrameType | None) -> int | None:
        """Returns the line of the loader that the library code at `frame` works on, if any."""
        while frame is not None and not self._sites.is_user_code(frame.f_code):
            for value in list(frame.f_locals.values()):
                site = self._of_loader.get(id(value))
                if site is not None:
                    return site
            frame = frame.f_back
        return None


def forget(table: dict[int, Any], key: int) -> None:
    table.pop(key, None)


def _builds(frame: FrameType, instance: object) -> bool:
    code = frame.f_code
    if code.co_name != "__init__" or not code.co_varnames:
        return False
    return frame.f_locals.get(code.co_varnames[0]) is instance


def _torch_directories() -> tuple[str, ...]:
    """Where torch lies, which need not be among the libraries; none before it is imported."""
    places: list[str] = list(getattr(sys.modules.get("torch"), "__path__", ()))
    return tuple(place.rstrip(os.sep) + os.sep for place in places)


def _library_directories() -> tuple[str, ...]:
    paths = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    paths.update(getattr(site, "getsitepackages", list)())
    paths.add(getattr(site, "USER_SITE", None) or "")
    paths.update(p for p in sys.path if p.endswith(("site-packages", "dist-packages")))
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    found = {p for path in paths if path for p in (path, os.path.realpath(path))}
    return tuple(sorted(p.rstrip(os.sep) + os.sep for p in (*found, ours)))
