"""Finds the user's line that a call came from."""

from __future__ import annotations

import itertools
import json
import os
import site
import sys
import weakref
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from types import CodeType, FrameType
from typing import Any, Final

from trainprof.inside.patching.patcher import UNCOUNTED_FILE
from trainprof.inside.patching.user_texts import line_of
from trainprof.inside.stacks.copied_frames import Place
from trainprof.record.event_log import EventLog
from trainprof.record.names import site_name
from trainprof.record.schema import FETCHED, KEPT_FRAMES, Topic

# Session.keep_track.
KeepTrack = Callable[[object, dict[Any, Any], object], bool]
_EXECUTED: Final = "<string>"
# How the `python -c` text of multiprocessing's children begins.
_STARTS_CHILD: Final = "from multiprocessing."
_IMPORTS: Final = "<frozen importlib"
# Libraries that generate code in the temporary directory, in files that begin with their name.
_WRITERS: Final = ("torch_geometric",)
# Limits the tables for scripts that keep calling exec() on new code.
_MOST_CODES: Final = 20_000
_OURS: Final = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep


class CallSites:
    """Finds and numbers the first frame of the user's code; a walk takes about 1 us."""

    def __init__(self, log: EventLog, cwd: str) -> None:
        self._log = log
        self._cwd = cwd
        self._libraries = _library_directories()
        # Torch may be installed outside of the library directories.
        torch: list[str] = list(getattr(sys.modules.get("torch"), "__path__", ()))
        self._torch = tuple(place.rstrip(os.sep) + os.sep for place in torch)
        self._generated = ("<", *self._torch)
        self._typed = {"<stdin>", *([_EXECUTED] if _runs_text() else [])}
        # By id: hashing code is slow, and equal code in two files is equal. `_judged` holds the
        # code, so that no id is reused.
        self._is_user: dict[int, bool] = {}
        self._known: dict[tuple[int, int], int] = {}
        self._call_ends: dict[tuple[int, int], tuple[int, int] | None] = {}
        self._library_of: dict[int, str] = {}
        self._judged: list[CodeType] = []

    def is_user_code(self, code: CodeType) -> bool:
        """Returns True for code outside of the standard library, site-packages and trainprof."""
        known = self._is_user.get(id(code))
        if known is None:
            # Functions created by exec are mostly a library's: proxies, dataclasses.
            is_generated = code.co_filename == _EXECUTED and code.co_name != "<module>"
            known = not is_generated and self.is_user_file(code.co_filename)
            self._is_user[id(code)] = known
            self._keep(code)
        return known

    def _keep(self, code: CodeType) -> None:
        """Holds code whose id a table has now; clears the tables once they are large."""
        if len(self._judged) >= _MOST_CODES:
            self.forget()
        self._judged.append(code)

    def forget(self) -> None:
        """Clears the tables: what is asked again is found again, with the same ids."""
        tables = self._is_user, self._known, self._call_ends, self._library_of
        for table in (*tables, self._judged, *tables):  # twice: another thread may add some
            table.clear()

    def find(self, frame: FrameType | None) -> int:
        """Returns the site id of the first user frame at or above `frame`, 0 without a frame.

        Without a user frame (an installed package trains) the first one outside of torch counts.
        """
        fallback: FrameType | None = None
        is_user_code = self.is_user_code
        while frame is not None:
            if is_user_code(frame.f_code):
                return self.name(frame)
            if fallback is None and not self.is_ours_or_torch(frame.f_code):
                fallback = frame
            frame = frame.f_back
        return self.name(fallback) if fallback is not None else 0

    def stack(self, frame: FrameType | None) -> int:
        """Returns the stack id of the user frames from `frame` up, innermost first; 0 without."""
        frames = self.frames(frame)
        return self._log.define(Topic.STACK, json.dumps(frames)) if frames else 0

    def frames(
        self, frame: Place | None, until: CodeType | None = None, fetching: str | None = None
    ) -> list[int]:
        """Returns the site ids of a stack's user frames, innermost first; both ends of a deep one.

        It ends before the frame of `until`. Frames of torch's file `fetching` become FETCHED.
        """
        sites = []
        while frame is not None and frame.f_code is not until:
            if self.is_user_code(frame.f_code):
                sites.append(self.name(frame))
            elif frame.f_code.co_filename == fetching:
                sites.append(FETCHED)
            frame = frame.f_back
        if len(sites) <= 2 * KEPT_FRAMES:
            return sites
        return [*sites[:KEPT_FRAMES], *sites[-KEPT_FRAMES:]]

    def library_calls(
        self, frame: Place | None, until: CodeType | None = None, fetching: str | None = None
    ) -> tuple[int, ...]:
        """Returns the entry function of each library that the innermost user frame has called.

        As site ids, outermost first, without torch. It ends before the frame of `until`, and in
        torch's file `fetching`.
        """
        entered: list[CodeType] = []
        inside = ""
        while frame is not None and frame.f_code is not until:
            code = frame.f_code
            if self.is_user_code(code) or code.co_filename == fetching:
                break
            library = self._library(code)
            if library and library == inside:
                entered[-1] = code
            elif library:
                entered.append(code)
                inside = library
            frame = frame.f_back
        return tuple(self.beginning_of(code) for code in reversed(entered))

    def _library(self, code: CodeType) -> str:
        """Returns the package or standard module of code; "" for torch and user code."""
        known = self._library_of.get(id(code))
        if known is None:
            known = "" if self.is_ours_or_torch(code) else self._installed(code)
            self._library_of[id(code)] = known
            self._keep(code)
        return known

    def libraries(self, frame: Place | None) -> tuple[str | None, str | None]:
        """Returns (package being imported, None) or (None, library function).

        The function is the one that called the innermost user frame, in torch only if no other
        package did; without a user frame the outermost one. The package is "" until its code runs.
        """
        codes: list[CodeType] = []
        while frame is not None and not self.is_user_code(frame.f_code):
            codes.insert(0, frame.f_code)
            frame = frame.f_back
        is_import = (code.co_filename.startswith(_IMPORTS) for code in codes)
        began = next((at for at, is_it in enumerate(is_import) if is_it), None)
        codes = [x for x in codes[began:] if not (x.co_filename[0] == "<" or self.is_ours(x))]
        packages = (self.package_of(code) or "standard library" for code in codes)
        if began is not None:
            return next(packages, ""), None
        if frame is not None:
            codes = self._callers(frame.f_back)
        return None, self._named(codes[0]) if codes else None

    def _callers(self, frame: Place | None) -> list[CodeType]:
        """Returns package code up to the next user frame, torch's last."""
        codes = []
        while frame is not None and not self.is_user_code(frame.f_code):
            if not self.is_ours(frame.f_code) and self.package_of(frame.f_code) is not None:
                codes.append(frame.f_code)
            frame = frame.f_back
        return sorted(codes, key=self.is_ours_or_torch)

    def _named(self, code: CodeType) -> str:
        module = os.path.basename(code.co_filename).removesuffix(".py")
        name: str = getattr(code, "co_qualname", code.co_name)  # from Python 3.11 on
        return f"{self.package_of(code) or module}.{name.partition('.<locals>')[0]}"

    def name(self, frame: Place) -> int:
        """Returns the site id of a frame's line."""
        code = frame.f_code
        key = (id(code), frame.f_lasti)
        number = self._known.get(key)
        return self._define(key, code, _line_of(frame), code.co_name) if number is None else number

    def shown(self, number: int, cwd: str | None) -> str:
        """Returns a site as in the report, `file.py:41`, relative to `cwd`."""
        text = self._log.text_of(number)
        return site_name(json.loads(text) if text is not None else None, cwd)

    def text_of(self, frame: FrameType) -> str:
        """Returns a frame's source line as it is in the file now, "" without one."""
        path = os.path.join(self._cwd, frame.f_code.co_filename)
        return line_of(path, _line_of(frame))

    def beginning_of(self, code: CodeType) -> int:
        """Returns the site id of a function's first line."""
        # Below -1, which `f_lasti` is before a frame's first instruction.
        key = (id(code), -1 - code.co_firstlineno)
        number = self._known.get(key)
        name: str = getattr(code, "co_qualname", code.co_name)  # from Python 3.11 on
        return self._define(key, code, code.co_firstlineno, name) if number is None else number

    def site_at(self, path: str, line: int) -> int:
        """Returns the site id of a file's line, without a function."""
        text = json.dumps([os.path.join(self._cwd, path), line, ""], ensure_ascii=True)
        return self._log.define(Topic.SITE, text)

    def _define(self, key: tuple[int, int], code: CodeType, line: int, name: str) -> int:
        text = json.dumps([self._path(code), line, name], ensure_ascii=True)
        number = self._known[key] = self._log.define(Topic.SITE, text)
        self._keep(code)
        return number

    def _path(self, code: CodeType) -> str:
        file = code.co_filename
        return file if file.startswith("<") else os.path.join(self._cwd, file)

    def birthplace(self, cls: type, frame: FrameType | None) -> Birthplace:
        """Returns where an instance is built, from a frame inside its constructor."""
        builders = _constructors(cls)
        while frame is not None and (
            id(frame.f_code) in builders
            or frame.f_code.co_filename.startswith(_OURS)
            or self.is_not_the_users(frame.f_code)
        ):
            frame = frame.f_back
        site = self.find(frame)
        if frame is None or self.is_user_code(frame.f_code):
            return Birthplace(site, call_ends_at=self._call_end(frame))
        return Birthplace(site, self.package_of(frame.f_code), self.name(frame))

    def _call_end(self, frame: FrameType | None) -> tuple[int, int] | None:
        """Returns (last line, end column) of a frame's current call, unique within a file.

        None before Python 3.11.
        """
        positions = None if frame is None else getattr(frame.f_code, "co_positions", None)
        if frame is None or positions is None or frame.f_lasti < 0:
            return None
        key = (id(frame.f_code), frame.f_lasti)
        if key not in self._call_ends:  # cached: it iterates over the code
            _, line, _, column = next(itertools.islice(positions(), frame.f_lasti // 2, None))
            self._call_ends[key] = None if line is None or column is None else (line, column)
            self._keep(frame.f_code)
        return self._call_ends.get(key)

    def is_user_file(self, file: str) -> bool:
        """Returns whether code in a file is the user's."""
        if file.startswith("<"):
            # Of exec()'s text, the line with exec() counts instead.
            return file.startswith("<ipython") or file in self._typed
        is_installed = os.path.join(self._cwd, file).startswith((*self._libraries, *self._torch))
        return not is_installed and _written_by(file) is None

    def package_of(self, code: CodeType) -> str | None:
        """Returns the installed package of code, None for user code and the standard library."""
        file = os.path.join(self._cwd, code.co_filename)
        if (writer := _written_by(file)) is not None:
            return writer
        name = self._installed(code)
        return name if name.isidentifier() and name not in sys.stdlib_module_names else None

    def _installed(self, code: CodeType) -> str:
        """Returns the first name of a file's path below a library directory, else ""."""
        file = os.path.join(self._cwd, code.co_filename)
        around = (path for path in self._libraries if file.startswith(path))
        inside = max(around, key=len, default="")
        return file[len(inside) :].partition(os.sep)[0].removesuffix(".py") if inside else ""

    def are_within(self, frame: FrameType | None, name: str, packages: Collection[str]) -> bool:
        """Returns whether a stack contains a function `name` of one of the packages."""
        while frame is not None:
            code = frame.f_code
            if code.co_name == name and self.package_of(code) in packages:
                return True
            frame = frame.f_back
        return False

    def is_ours_or_torch(self, code: CodeType) -> bool:
        """Returns True for code of torch and trainprof, and for generated code."""
        return code.co_filename.startswith(self._generated)

    def is_ours(self, code: CodeType) -> bool:
        return code.co_filename.startswith((_OURS, UNCOUNTED_FILE))

    def place(self, frame: Place) -> tuple[str, int, str]:
        """Returns file, line and function of a frame, without a site id."""
        code = frame.f_code
        name: str = getattr(code, "co_qualname", code.co_name)  # from Python 3.11 on
        return self._path(code), _line_of(frame), name

    def is_not_the_users(self, code: CodeType) -> bool:
        """Like `is_ours_or_torch`, but False for the user's `<stdin>` or `python -c` text."""
        return self.is_ours_or_torch(code) and not self.is_user_code(code)


def _runs_text() -> bool:
    """Returns whether `python -c` runs the user's text."""
    is_child = any(word.startswith(_STARTS_CHILD) for word in sys.orig_argv)
    return sys.argv[:1] == ["-c"] and not is_child


def _written_by(file: str) -> str | None:
    """Returns the library that generated a file, else None."""
    name = os.path.basename(file)
    return next((writer for writer in _WRITERS if name.startswith(f"{writer}.")), None)


def _line_of(frame: Place) -> int:
    """Returns a frame's line; for an instruction without one, the line before it.

    The jump back to a loop's start is such an instruction, and Python releases the GIL there.
    """
    if frame.f_lineno is not None:
        return frame.f_lineno
    before = frame.f_code.co_firstlineno
    for start, _, line in frame.f_code.co_lines():
        if start > frame.f_lasti:
            break
        before = before if line is None else line
    return before


class LoaderBirthplaces:
    """Remembers the line that built each DataLoader, by the object's id.

    A loader that a framework (Lightning, accelerate) rebuilds from the user's keeps its line. Only
    a frame's code is read: `f_locals` would keep the frame's variables alive, and change the dict
    that the script's `locals()` returned.
    """

    def __init__(self, sites: CallSites, keep_track: KeepTrack) -> None:
        self._sites = sites
        self._keep_track = keep_track
        self._of_loader: dict[int, _Birth] = {}

    def note(self, loader: object, frame: FrameType | None) -> None:
        """Records a loader being built, with the frame that sets its dataset."""
        birth = _Birth(weakref.ref(loader), self._sites.birthplace(type(loader), frame))
        if birth.place.built_at:
            datasets = _with_inner(vars(loader).get("dataset"), "dataset")
            birth.candidates = [
                (other.place, _traits(known))
                for other in list(self._of_loader.values())
                if (known := other.loader()) is not None
                and any(vars(known).get("dataset") is dataset for dataset in datasets)
            ]
        key = id(loader)
        self._of_loader[key] = birth
        self._keep_track(loader, self._of_loader, key)

    def of(self, loader: object) -> Birthplace | None:
        """Returns where a complete loader was built, None if unknown."""
        birth = self._of_loader.get(id(loader))
        if birth is None:
            return None
        if birth.candidates:
            source = _rebuilt_from(birth.candidates, loader)
            if source is not None:
                birth.place = replace(source, is_taken_over=True)
            birth.candidates = []
        return birth.place


@dataclass(frozen=True, slots=True)
class Birthplace:
    """Where a loader, or an optimizer, was built.

    Attributes:
        site: Id of the user's line.
        built_by: The installed package that calls the constructor, None if the user does.
        built_at: Id of that call's line, 0 if the user calls it.
        call_ends_at: The call's last line and end column, in UTF-8 bytes; None if unknown.
        is_taken_over: A package rebuilt it from one that this line built.
    """

    site: int
    built_by: str | None = None
    built_at: int = 0
    call_ends_at: tuple[int, int] | None = None
    is_taken_over: bool = False


@dataclass(slots=True)
class _Birth:
    """A loader and where it was built; if by a library, earlier loaders of its dataset."""

    loader: weakref.ref[Any]
    place: Birthplace
    candidates: list[tuple[Birthplace, _Traits]] = field(default_factory=list)


# What a rebuilt loader keeps: a sampler, or all the others. By id, so that none is kept alive.
_Traits = tuple[frozenset[int], tuple[object, ...]]


def _traits(loader: object) -> _Traits:
    held = vars(loader)
    functions = (id(held.get(name)) for name in ("collate_fn", "worker_init_fn"))
    numbers = (held.get(name) for name in ("num_workers", "batch_size"))
    samplers = (held.get(name) for name in ("batch_sampler", "sampler"))
    others = (*functions, *(number if type(number) is int else None for number in numbers))
    return frozenset(id(sampler) for sampler in samplers if sampler is not None), others


def _rebuilt_from(
    candidates: list[tuple[Birthplace, _Traits]], loader: object
) -> Birthplace | None:
    """Returns the place of the latest candidate that `loader` was rebuilt from, else None."""
    batches = _with_inner(vars(loader).get("batch_sampler"), "batch_sampler")
    # Lightning's predict wraps the old loader's sampler in a new batch sampler.
    samplers = [*batches, *(_with_inner(batch, "sampler")[-1] for batch in batches)]
    keys, (_, own) = {id(sampler) for sampler in samplers}, _traits(loader)
    by_sampler = [place for place, (known, _) in candidates if known & keys]
    by_others = [place for place, (_, others) in candidates if others == own]
    return next(reversed(by_sampler or by_others), None)


def _with_inner(thing: object, name: str) -> list[object]:
    """Returns an object and the one in its attribute, without None."""
    both = (thing, getattr(thing, "__dict__", {}).get(name))
    return [part for part in both if part is not None]


def _constructors(cls: type) -> set[int]:
    """Returns the ids of the code of constructors of `cls` and its bases."""
    codes = set()
    for base, name in itertools.product(cls.__mro__, ("__init__", "__setattr__")):
        method = vars(base).get(name)
        while method is not None:
            code = getattr(method, "__code__", None)
            if code is not None:
                codes.add(id(code))
            method = getattr(method, "__wrapped__", None)
    return codes


def standard_library() -> list[str]:
    """Returns the standard library's directories, the one of Python code first.

    `sysconfig` is not used: torch does not import it, so a `sysconfig.py` in the script's folder
    would be imported instead.
    """
    version = "python{}.{}".format(*sys.version_info[:2])
    platform_library = os.path.join(sys.base_exec_prefix, sys.platlibdir, version)
    return list(dict.fromkeys([os.path.dirname(os.__file__), platform_library]))


def _library_directories() -> tuple[str, ...]:
    paths = set(standard_library())
    paths.update(getattr(site, "getsitepackages", list)())
    paths.add(getattr(site, "USER_SITE", None) or "")
    paths.update(p for p in sys.path if p.endswith(("site-packages", "dist-packages")))
    places = {p for path in paths if path for p in (path, os.path.realpath(path))}
    return tuple(sorted(p.rstrip(os.sep) + os.sep for p in (*places, _OURS)))
