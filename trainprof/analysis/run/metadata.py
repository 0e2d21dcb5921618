"""A process's logs: loaders, lines, versions, device; and safe reading of values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from trainprof.analysis.summary.levels import number_at as number_at
from trainprof.record import notes
from trainprof.record.names import UNKNOWN_SITE, site_name
from trainprof.record.notes import MAX_NUMBER as MAX_NUMBER
from trainprof.record.notes import AnyNote
from trainprof.record.notes import integer as integer
from trainprof.record.notes import known as known
from trainprof.record.schema import Topic

# More than fits in memory; a damaged log may hold any number.
MAX_BATCHES_AHEAD: Final = 1 << 20
# In the class names of modules that torch.compile creates.
_GRAPH_CLASS = "GraphModule"
_DATA_PARALLEL: Final = "DistributedDataParallel"


@dataclass(frozen=True, slots=True)
class Metadata:
    """Decoded texts, id to value, per topic; nothing in them is trusted."""

    texts: Mapping[Topic, Mapping[int, Any]]

    def loader(self, number: int) -> Mapping[str, Any]:
        """Returns a loader's metadata (inside/loading/loader_metadata.py), {} where lost."""
        record = self.texts[Topic.LOADER].get(number)
        return record if isinstance(record, dict) else {}

    def loaders_with_workers(self) -> list[int]:
        return [n for n in self.texts[Topic.LOADER] if integer(self.loader(n).get("num_workers"))]

    def batches_ahead(self, number: int) -> int:
        """The number of batches that the loader's workers prefetch, 0 without workers."""
        metadata = self.loader(number)
        workers = integer(metadata.get("num_workers")) or 0
        ahead = workers * (integer(metadata.get("prefetch_factor")) or 2)
        return min(max(ahead, 0), MAX_BATCHES_AHEAD)

    def changed_attributes(self, loader: int) -> list[str]:
        """Returns the attributes of a loader's dataset that training changes between epochs."""
        changes = [x.get("changed_dataset") for x in self.environment()]
        own = [x for x in changes if isinstance(x, dict) and x.get("loader") == loader]
        return words([x.get("attribute") for x in own])

    def loaders_of_device_batches(self) -> set[int]:
        """Returns the loaders whose batches are on a device."""
        numbers = (integer(x.get("batch_on_device")) for x in self.environment())
        return {number for number in numbers if number is not None}

    def device(self) -> str | None:
        """Returns the first accelerator in use, with its number if known, or None."""
        names = [x["device"] for x in self.environment() if isinstance(x.get("device"), str)]
        numbered = [name for name in names if name.startswith(f"{names[0]}:")]
        return next(iter(numbered or names), None)

    def launch_blocking(self) -> bool:
        """Whether the script ran under CUDA_LAUNCH_BLOCKING=1."""
        return any(x.get("launch_blocking") is True for x in self.environment())

    def environment(self) -> list[dict[str, Any]]:
        return [x for x in self.texts[Topic.ENVIRONMENT].values() if isinstance(x, dict)]

    def environment_text(self, key: str) -> str | None:
        values = (x.get(key) for x in self.environment())
        return next((text for text in values if isinstance(text, str)), None)

    def looked_s(self) -> float | None:
        """Returns the time of probes' inspections of loaders and calls; None: unknown."""
        spent_ns = (integer(x.get("looked_ns")) for x in self.environment())
        return next((ns / 1e9 for ns in spent_ns if ns is not None), None)

    def reads_counted_until(self) -> dict[int, int]:
        """Returns when counting reads of host tensors stopped, ns by SyncFlag."""
        limits = ((x.get("flag"), x.get("reads_counted_until")) for x in self.environment())
        known = ((integer(flag), integer(until)) for flag, until in limits)
        return {flag: until for flag, until in known if flag is not None and until is not None}

    def versions(self) -> dict[str, str]:
        names = ("torch", "cuda", "hip")
        return {k: str(v) for x in self.environment() for k, v in x.items() if k in names and v}

    def graph_classes(self) -> list[int]:
        """Returns ids of module classes that torch.compile created."""
        return [n for n, name in self.texts[Topic.CLASS].items() if _GRAPH_CLASS in str(name)]

    def is_data_parallel(self) -> bool:
        """Whether a model is wrapped in DistributedDataParallel."""
        return any(str(name) == _DATA_PARALLEL for name in self.texts[Topic.CLASS].values())

    def sites(self, cwd: Any) -> Sites:
        return Sites(self.texts[Topic.SITE], cwd if isinstance(cwd, str) else None)


def words(value: Any) -> list[str]:
    return [word for word in value if isinstance(word, str)] if isinstance(value, list) else []


def integers(value: Any) -> list[int]:
    values = value if isinstance(value, list) else []
    return [number for item in values if (number := integer(item)) is not None]


def share_in(value: object) -> float:
    """Returns `value` as a share, 0 where it is not a number."""
    return min(max(float(value), 0.0), 1.0) if isinstance(value, (int, float)) else 0.0


def number(value: Any, default: float) -> float:
    """Returns `value` if it is a plausible number, else the default."""
    known_value = known(value)
    return default if known_value is None else float(known_value)


class Sites:
    """Turns site ids into `file.py:41`, relative to where the run was started."""

    def __init__(self, texts: Mapping[int, Any], cwd: str | None) -> None:
        """
        Args:
            texts: Id to [file, line, function], decoded from Topic.SITE texts.
            cwd: Absolute path, or None.
        """
        self._texts = texts
        self._cwd = cwd

    def __getitem__(self, number: int) -> str:
        return site_name(self._texts.get(number), self._cwd)

    def known(self, number: int | None) -> str | None:
        name = UNKNOWN_SITE if number is None else self[number]
        return None if name == UNKNOWN_SITE else name


@dataclass(frozen=True, slots=True)
class Notes:
    """Notes of probes, to be read by kind.

    Attributes:
        records: All notes of the process's environment, as in its log.
    """

    records: Sequence[Mapping[str, Any]] = ()
    sites: Sites = field(default_factory=lambda: Sites({}, None))

    def last(self, kind: type[AnyNote]) -> AnyNote | None:
        return notes.last_note(kind, self.records)

    def last_list(self, kind: type[AnyNote]) -> list[AnyNote]:
        """Returns the list of notes of a kind that was written last."""
        return notes.last_notes(kind, self.records)
