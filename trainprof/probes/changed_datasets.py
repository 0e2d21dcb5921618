"""What training changes in datasets between passes, which workers that live on would not see."""

from __future__ import annotations

import itertools
import sys
from typing import Any, Final

from trainprof.probes.kept_value import kept
from trainprof.record.event_log import EventLog
from trainprof.record.schema import Topic

_PLAIN: Final = (bool, int, float, str)
_MAX_ATTRIBUTES: Final = 64
# Of each other.
_MAX_SUBSETS: Final = 8


class ChangedDatasets:
    """Compares a dataset's numbers and words at the end of a pass with those as the next begins.

    What it changes itself, as samples are made, is not seen. Nothing of the script's is kept alive
    but those numbers and words, and of a long text some pieces.
    """

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._at_end: dict[int, dict[str, Any]] = {}
        self._told: set[tuple[int, str]] = set()

    def pass_ended(self, loader: int, dataset: Any) -> None:
        self._at_end[loader] = _plain_attributes(dataset)

    def pass_begins(self, loader: int, dataset: Any) -> None:
        before = self._at_end.pop(loader, None)
        if not before:
            return
        for name, value in _plain_attributes(dataset).items():
            was = before.get(name, value)
            if was is not value and was != value and (loader, name) not in self._told:
                self._told.add((loader, name))
                changed = {"loader": loader, "attribute": name}
                self._log.note(Topic.ENVIRONMENT, {"changed_dataset": changed})


def whole_of(dataset: Any) -> Any:
    """Returns what torch's Subset is of; another dataset as it is."""
    subset = getattr(sys.modules.get("torch.utils.data"), "Subset", None)
    for _ in range(_MAX_SUBSETS):
        if type(dataset) is not subset:
            break
        dataset = getattr(dataset, "dataset", None)
    return dataset


def _plain_attributes(dataset: Any) -> dict[str, Any]:
    held = getattr(whole_of(dataset), "__dict__", None)
    if type(held) is not dict:
        return {}
    first = itertools.islice(held.items(), _MAX_ATTRIBUTES)
    return {name: kept(value) for name, value in first if type(value) in _PLAIN}
