"""Puts together what is known of a DataLoader, as it is first iterated.

Nothing of the script's is called: it might notice, or raise. Attributes are looked up where they
are stored.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

from trainprof.inside.loading.dataset_tracking import whole_of
from trainprof.inside.loading.loader_metadata import describe, is_iterable, look_closer
from trainprof.inside.patching.call_site import Birthplace, CallSites
from trainprof.inside.patching.static_lookup import own_function
from trainprof.inside.patching.user_texts import any_text

# So many loaders of a kind are looked at closer, each of which takes up to 0.4 ms (a dataset with
# some transforms, Python 3.12); then one each time that twice as many were met.
FIRST_LOOKS: Final = 8
# What loaders of a kind have in common, besides the class of what their dataset is of.
_OF_KIND: Final = (
    *("site", "built_at", "is_taken_over", "kind", "dataset", "sampler", "batch_sampler"),
    *("batch_size", "drop_last", "num_workers", "workers_started_by", "collate_site"),
)
# What tells them apart.
_OF_LOADER: Final = ("serial", "dataset_number", "dataset_length", "length")
_PLAIN_TYPES: Final = (bool, int, float, str)
_PLAIN: Final = frozenset(map(id, _PLAIN_TYPES))
# Of those that were told apart.
_MOST_REMEMBERED: Final = 4_096
# By which a worker_init_fn comes to the dataset of its worker.
_OF_WORKER: Final = frozenset(("get_worker_info", "dataset"))
_ASKS_FOR_NAME: Final = re.compile(r"__name__\s*==|==\s*__name__")

_Key = tuple[Any, ...]


@dataclass(slots=True)
class _Kind:
    """Loaders that are alike but for their data: what was found in the last that was looked at."""

    met: int = 0
    next_look: int = 0
    closer: dict[str, Any] = field(default_factory=dict)


class LoaderDescriptions:
    """Describes loaders. A script may build thousands by one line, for tasks of a few steps each.

    So what takes long to find is looked for in fewer and fewer of a kind; the others are said to
    have what the last one had. One that is recreated each epoch has what it had before.
    """

    def __init__(self, sites: CallSites) -> None:
        self._sites = sites
        self._kinds: dict[_Key, _Kind] = {}
        self._closer_of: dict[_Key, dict[str, Any]] = {}

    def of(
        self, loader: Any, place: Birthplace, serial: int, dataset_number: int | None
    ) -> dict[str, Any]:
        """Returns the metadata of a complete loader; numbers tell it from others of its line."""
        sites = self._sites
        own = filter(sites.is_user_code, _constructors(type(loader)))
        constructors = [sites.beginning_of(code) for code in own]  # the outermost first
        metadata = describe(loader)
        metadata |= {
            "serial": serial,
            "dataset_number": dataset_number,
            "site": place.site,
            "built_by": place.built_by,
            "built_at": place.built_at,
            "call_ends_at": place.call_ends_at,
            "is_taken_over": place.is_taken_over,
            "takes": _taken_by(type(loader)),
            "constructors": constructors,
        }
        if metadata["workers_started_by"] != "fork":
            metadata["guards_main"] = self._guards_main
        metadata["is_own_stream"] = self._is_own_stream(getattr(loader, "dataset", None))
        changed = self._is_dataset_changed_at_start(getattr(loader, "worker_init_fn", None))
        metadata["set_up_as_workers_start"] = changed
        collate = own_function(getattr(loader, "collate_fn", None), sites.is_user_code)
        metadata["collate_site"] = collate and sites.beginning_of(collate[0].__code__)
        metadata |= self._closer(loader, metadata)
        if changed is not False:
            metadata["generators"] = []
        return metadata

    def _closer(self, loader: Any, metadata: dict[str, Any]) -> dict[str, Any]:
        whole = type(whole_of(getattr(loader, "dataset", None))).__qualname__
        kind_key = (whole, *(_plain(metadata[name]) for name in _OF_KIND))
        key = (kind_key, *(_plain(metadata[name]) for name in _OF_LOADER))
        kind = self._kinds.setdefault(kind_key, _Kind())
        kind.met += 1
        if kind.met <= FIRST_LOOKS or kind.met >= kind.next_look:
            are_forked = metadata["workers_started_by"] == "fork"
            kind.closer = look_closer(loader, self.is_own_class, workers_are_forked=are_forked)
            kind.next_look = 2 * kind.met
            closer = kind.closer
        else:
            closer = self._closer_of.get(key, kind.closer)
        if len(self._closer_of) >= _MOST_REMEMBERED:
            self._closer_of.clear()
        self._closer_of[key] = closer
        return closer

    def _is_own_stream(self, dataset: Any) -> bool:
        """Whether code of the user's gives the samples of an iterable dataset."""
        begins = getattr(getattr(type(dataset), "__iter__", None), "__code__", None)
        is_own = isinstance(begins, CodeType) and self._sites.is_user_code(begins)
        return is_own and is_iterable(dataset)

    def _is_dataset_changed_at_start(self, worker_init: Any) -> bool | None:
        """Whether a function of the user's then changes each worker's dataset, by names in it.

        None where it has something else of the user's, through which it may.
        """
        own = own_function(worker_init, self._sites.is_user_code)
        # A library's, or one that only seeds generators, is there for reproducible numbers.
        if own is None:
            return False
        function, _ = own
        names = function.__code__.co_names
        if not _OF_WORKER.isdisjoint(names):
            return True
        if function.__code__.co_freevars:
            return None
        held = function.__globals__
        return None if any(self._is_own(held[name]) for name in names if name in held) else False

    def _is_own(self, thing: Any) -> bool:
        """Whether a global is more than a library's module or function, or a number or word."""
        kind = type(thing)
        if kind is ModuleType:
            file = thing.__dict__.get("__file__")
            return isinstance(file, str) and self._sites.is_user_file(file)
        if kind is FunctionType:
            return self._sites.is_user_code(thing.__code__)
        is_plain = kind in (*_PLAIN_TYPES, bytes, type(None))
        return not is_plain and kind.__module__ != "builtins"

    def is_own_class(self, kind: type) -> bool:
        """Tells a class of the user's by the first of its functions."""
        functions = (value for value in vars(kind).values() if type(value) is FunctionType)
        first = next(functions, None)
        return first is not None and self._sites.is_user_code(first.__code__)

    @cached_property
    def _guards_main(self) -> bool | None:
        """Whether a worker that is no fork can import the script, which compares its name.

        None where the script is not the user's.
        """
        script = getattr(sys.modules.get("__main__"), "__file__", None)
        if not isinstance(script, str) or not self._sites.is_user_file(script):
            return None
        return any_text(
            lambda path: path == script, lambda text: _ASKS_FOR_NAME.search(text) is not None
        )


def _plain(value: Any) -> Any:
    """Returns a number or word; of the script's own nothing, for it may have an `==` of its own."""
    return value if id(type(value)) in _PLAIN else None


def _taken_by(cls: type) -> list[str]:
    """Returns the names of a constructor's parameters, in order.

    Those behind "*" are taken by keyword alone; "**" stands last where it takes any others.
    """
    code = next(_constructors(cls), None)
    if code is None:
        return []
    by_place, names = code.co_argcount, code.co_varnames
    by_keyword = names[by_place : by_place + code.co_kwonlyargcount]
    others = ["**"] if code.co_flags & inspect.CO_VARKEYWORDS else []
    return [*names[1:by_place], "*", *by_keyword, *others]


def _constructors(cls: type) -> Iterator[CodeType]:
    """Yields the code of a class's constructors, its own first; of wrapped ones what they wrap."""
    for base in cls.__mro__:
        method: Any = vars(base).get("__init__")
        while hasattr(method, "__wrapped__"):
            method = method.__wrapped__
        code = getattr(method, "__code__", None)
        if isinstance(code, CodeType):
            yield code
