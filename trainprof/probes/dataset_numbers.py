"""Numbers that tell the datasets of DataLoaders apart."""

from __future__ import annotations

import itertools
import weakref
from typing import Any

from trainprof.probes.call_site import KeepTrack
from trainprof.probes.worker_needs import attributes_of


class DatasetNumbers:
    """Gives out two: one is free again once its dataset is gone, the other never.

    Hugging Face's datasets give out copies of themselves, which have the same fingerprint: they
    are one.
    """

    def __init__(self, keep_track: KeepTrack) -> None:
        self._keep_track = keep_track
        self._by_line: dict[int, dict[int | str, int]] = {}
        self._counter = itertools.count(1)
        self._of_run: dict[int | str, int] = {}
        # By loader, with the dataset's id, where nothing tells when it is gone.
        self._unwatched: dict[int, tuple[int, int]] = {}

    def of_line(self, site: int, dataset: Any) -> int | None:
        """Tells datasets apart that are loaded by one line; None where it cannot be known."""
        key = _key(dataset)
        numbers = self._by_line.setdefault(site, {})
        if key not in numbers:
            try:
                weakref.ref(dataset)
            except TypeError:  # a list, say: nothing tells when another takes its id
                return None
            taken = numbers.values()
            numbers[key] = next(number for number in itertools.count(1) if number not in taken)
            if type(key) is int:
                self._keep_track(dataset, numbers, key)
        return numbers[key]

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
