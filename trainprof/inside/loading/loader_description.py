"""Puts together what is known of a DataLoader, as it is first iterated.

Nothing of the script's is called: it might notice, or raise.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any, Final

from trainprof.inside.loading.changed_datasets import whole_of
from trainprof.inside.loading.collate_code import own_function
from trainprof.inside.loading.loader_call import constructor_sites, taken_by
from trainprof.inside.loading.loader_metadata import describe, is_iterable, look_closer
from trainprof.inside.loading.worker_init import reaches_dataset
from trainprof.inside.patching.call_site import Birthplace, CallSites
from trainprof.inside.patching.user_texts import any_text

# So many loaders of a kind are looked at closer, each of which takes up to 0.4 ms (a dataset with
# some transforms, Python 3.12); then one each time that twice as many were met.
FIRST_LOOKS: Final = 8
# What loaders of a kind have in common, besides the class of what their dataset is of.
_OF_KIND: Final = (
    "site",
    "built_at",
    "is_taken_over",
    "kind",
    "dataset",
    "sampler",
    "batch_sampler",
    "batch_size",
    "drop_last",
    "num_workers",
    "workers_started_by",
    "collate_site",
)
# By which they are told apart.
_OF_ONE: Final = ("serial", "dataset_number", "dataset_length", "length")
_PLAIN: Final = frozenset(map(id, (bool, int, float, str)))
# Of those that were told apart.
_MOST_REMEMBERED: Final = 4_096
_ASKS_FOR_NAME: Final = re.compile(r"__name__\s*==|==\s*__name__")

_Key = tuple[Any, ...]


@dataclass(slots=True)
class _Kind:
    """Loaders that are alike but for their data.

    Attributes:
        met: How many there were.
        next_look: When so many were met, one is looked at closer.
        found: In the last that was.
    """

    met: int = 0
    next_look: int = 0
    found: dict[str, Any] = field(default_factory=dict)


class LoaderDescriptions:
    """Describes loaders. A script may build thousands by one line, for tasks of a few steps each.

    So what takes long to find is looked for in fewer and fewer of a kind; the others are said to
    have what the last one had. One that is built anew, as each epoch does, has what it had before.
    """

    def __init__(self, sites: CallSites) -> None:
        self._sites = sites
        self._kinds: dict[_Key, _Kind] = {}
        self._found: dict[_Key, dict[str, Any]] = {}
        self._guards: list[bool | None] = []

    def of(
        self, loader: Any, place: Birthplace, serial: int, dataset_number: int | None
    ) -> dict[str, Any]:
        """Returns a loader's facts.

        Args:
            loader: Complete.
            place: Where it was built.
            serial: Tells loaders of a line apart.
            dataset_number: Tells datasets of a line apart; None where it is not known.
        """
        sites = self._sites
        metadata = describe(loader)
        metadata["serial"], metadata["dataset_number"] = serial, dataset_number
        metadata["site"] = place.site
        metadata["built_by"], metadata["built_at"] = place.built_by, place.built_at
        metadata["call_ends_at"] = place.call_ends_at
        metadata["is_taken_over"] = place.is_taken_over
        metadata["takes"] = taken_by(type(loader))
        metadata["constructors"] = constructor_sites(type(loader), sites)
        if metadata["workers_started_by"] != "fork":
            metadata["guards_main"] = self._guards_main()
        metadata["is_own_stream"] = self._is_own_stream(getattr(loader, "dataset", None))
        reached = self._reached_as_workers_start(loader)
        metadata["set_up_as_workers_start"] = reached
        metadata["collate_site"] = self._collate_site(getattr(loader, "collate_fn", None))
        metadata.update(self._closer(loader, metadata))
        if reached is not False:
            metadata["generators"] = []
        return metadata

    def _closer(self, loader: Any, metadata: dict[str, Any]) -> dict[str, Any]:
        whole = type(whole_of(getattr(loader, "dataset", None))).__qualname__
        key = (whole, *(_plain(metadata[name]) for name in _OF_KIND))
        one = (key, *(_plain(metadata[name]) for name in _OF_ONE))
        kind = self._kinds.setdefault(key, _Kind())
        kind.met += 1
        if kind.met <= FIRST_LOOKS or kind.met >= kind.next_look:
            are_forked = metadata["workers_started_by"] == "fork"
            kind.found = look_closer(loader, self.is_own_class, workers_are_forked=are_forked)
            kind.next_look = 2 * kind.met
            found = kind.found
        else:
            found = self._found.get(one, kind.found)
        if len(self._found) >= _MOST_REMEMBERED:
            self._found.clear()
        self._found[one] = found
        return found

    def _collate_site(self, function: Any) -> int | None:
        """Returns where a collate function that the script's author wrote begins, else None."""
        sites = self._sites
        own = own_function(function, sites.is_user_code)
        return None if own is None else sites.beginning_of(own[0].__code__)

    def _is_own_stream(self, dataset: Any) -> bool:
        """Whether code of the user's gives the samples of an iterable dataset."""
        begins = getattr(getattr(type(dataset), "__iter__", None), "__code__", None)
        is_own = isinstance(begins, CodeType) and self._sites.is_user_code(begins)
        return is_own and is_iterable(dataset)

    def _reached_as_workers_start(self, loader: Any) -> bool | None:
        """Whether a function of the user's then changes each worker's dataset; None: it may."""
        sites = self._sites
        called = own_function(getattr(loader, "worker_init_fn", None), sites.is_user_code)
        # A library's, or one that only seeds generators, is there for reproducible numbers.
        return False if called is None else reaches_dataset(called[0], sites)

    def is_own_class(self, kind: type) -> bool:
        """Tells a class of the user's by the first of its functions."""
        methods = (one for one in vars(kind).values() if type(one) is FunctionType)
        first = next(methods, None)
        return first is not None and self._sites.is_user_code(first.__code__)

    def _guards_main(self) -> bool | None:
        """Whether a worker that is no fork can import the script: it compares its name.

        None where the script is not the user's.
        """
        if not self._guards:
            self._guards.append(self._has_guard())
        return self._guards[0]

    def _has_guard(self) -> bool | None:
        script = getattr(sys.modules.get("__main__"), "__file__", None)
        if not isinstance(script, str) or not self._sites.is_user_file(script):
            return None
        return any_text(
            lambda path: path == script, lambda text: _ASKS_FOR_NAME.search(text) is not None
        )


def _plain(fact: Any) -> Any:
    """Returns a number or word; of the script's own nothing, for it may have an `==` of its own."""
    return fact if id(type(fact)) in _PLAIN else None
