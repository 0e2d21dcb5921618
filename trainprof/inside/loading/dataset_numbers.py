"""Numbers that tell the datasets of DataLoaders apart."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Collection
from typing import Any, Final

from trainprof.inside.loading.worker_requirements import attributes_of
from trainprof.inside.patching.call_site import KeepTrack

# Of one line so many fingerprints keep their numbers, though no dataset has them any more: one may
# be made anew, as each epoch does. A script that selects other rows for each task makes new ones
# for ever.
MOST_FINGERPRINTS: Final = 64


class LowestFree:
    """Gives out the lowest number that nothing has, in hardly any time while none was given back.

    What has a number is kept by others, who are not to be bound to tell when it goes.
    """

    def __init__(self) -> None:
        self._highest: dict[int, int] = {}

    def take(self, line: int, taken: Collection[int]) -> int:
        """Returns a number for something of one line.

        Args:
            line: Its id.
            taken: The numbers of what else of that line lives.
        """
        highest = self._highest.get(line, 0)
        if len(taken) < highest:
            all_taken = set(taken)
            return next(number for number in itertools.count(1) if number not in all_taken)
        self._highest[line] = highest + 1
        return highest + 1


class DatasetNumbers:
    """Gives out two: one is free again once its dataset is gone, the other never.

    Hugging Face's datasets give out copies of themselves, which have the same fingerprint: they
    are one. Of a line, its last ones keep their numbers once they are gone.
    """

    def __init__(self, keep_track: KeepTrack) -> None:
        self._keep_track = keep_track
        self._by_line: dict[int, dict[int | str, int]] = {}
        self._lowest = LowestFree()
        # By id of one that lives; and by line, at how many the dead are forgotten.
        self._fingerprints: dict[int, int | str] = {}
        self._most: dict[int, int] = {}
        self._counter = itertools.count(1)
        self._of_run: dict[int | str, int] = {}
        # By loader, with the dataset's id, where nothing tells when it is gone.
        self._unwatched: dict[int, tuple[int, int]] = {}

    def of_line(self, site: int, dataset: Any) -> int | None:
        """Tells datasets apart that are loaded by one line; None where it cannot be known."""
        key = _key(dataset)
        numbers = self._by_line.setdefault(site, {})
        if type(key) is str and self._fingerprints.get(id(dataset)) != key:
            self._fingerprints[id(dataset)] = key
            self._keep_track(dataset, self._fingerprints, id(dataset))
        if key not in numbers:
            try:
                weakref.ref(dataset)
            except TypeError:  # a list, say: nothing tells when another takes its id
                return None
            if type(key) is str and len(numbers) >= self._most.get(site, MOST_FINGERPRINTS):
                self._forget_dead(site, numbers)
            numbers[key] = self._lowest.take(site, numbers.values())
            if type(key) is int:
                self._keep_track(dataset, numbers, key)
        return numbers[key]

    def _forget_dead(self, site: int, numbers: dict[int | str, int]) -> None:
        living = {*self._fingerprints.values()}
        for key in list(numbers):
            if type(key) is str and key not in living:
                del numbers[key]
        self._most[site] = max(MOST_FINGERPRINTS, 2 * len(numbers))

    def of_run(self, loader: int, dataset: Any) -> int:
        """Returns a number that no dataset has had before, or this one's.

        Args:
            loader: Its id: those that are built anew by one line, alike, have the same.
            dataset: One that cannot be watched is another than the loader's last if its id is.
        """
        key = _key(dataset)
        number = self._of_run.get(key)
        if number is None:
            number = self._of_run[key] = next(self._counter)
            if type(key) is int and not self._keep_track(dataset, self._of_run, key):
                del self._of_run[key]
                return self._of_unwatched(loader, key, number)
        return number

    def _of_unwatched(self, loader: int, key: int, number: int) -> int:
        last_key, last = self._unwatched.get(loader, (None, 0))
        if last_key == key:
            return last
        self._unwatched[loader] = key, number
        return number


def _key(dataset: Any) -> int | str:
    fingerprint = dict(attributes_of(dataset)).get("_fingerprint")
    return fingerprint if type(fingerprint) is str else id(dataset)
