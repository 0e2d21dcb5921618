"""A run as slices, counters and flows on tracks, for Perfetto. Times are ns since the run began."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Int64 = npt.NDArray[np.int64]
    Floats = npt.NDArray[np.float64]

# A browser opens about twice this number.
MAX_SLICES: Final = 2_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """A column of strings, shape (n,): `texts[index]`."""

    texts: list[str]
    index: Int64


@dataclass(frozen=True, slots=True, kw_only=True)
class Slices:
    """Slices of one kind on a thread's track, in order of start; arrays of shape (n,).

    Slices of a thread nest: none reaches out of the one around it, whatever its kind.

    Attributes:
        name: A ledger key, or words; `number`, if any, follows it.
        depth: Number of slices around each.
        args: By label; every slice has each of them.
    """

    name: str
    start_ns: Int64
    ns: Int64
    depth: Int64
    number: Int64 | None = None
    args: dict[str, Int64 | Texts] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Thread:
    """A track; `tid` is unique in the trace."""

    tid: int
    name: str
    slices: list[Slices]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """A figure of the machine: `values` hold from `start_ns` on, shape (n,)."""

    name: str
    unit: str
    start_ns: Int64
    values: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A group of tracks."""

    name: str
    threads: list[Thread] = field(default_factory=list)
    counters: list[Counter] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flows:
    """Batches, from the fetch in a worker to the `next()` that returned them, shape (n,).

    Attributes:
        from_tid, to_tid: Threads.
        from_ns, to_ns: Inside the fetch and inside the `next()`, later.
    """

    from_tid: Int64
    from_ns: Int64
    to_tid: Int64
    to_ns: Int64

    def __len__(self) -> int:
        return len(self.from_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A run, or a part of it, on tracks.

    Attributes:
        note: A sentence on what is left out, or None.
    """

    processes: list[Process]
    flows: Flows
    note: str | None = None
