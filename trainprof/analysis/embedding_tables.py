"""Tables of embeddings that get whole gradients, as probes/embedding_tables.py told of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from trainprof.analysis.facts import dicts_in, integer, last_note, share_in
from trainprof.analysis.names import Sites

_TABLES: Final = "embedding_tables"


@dataclass(frozen=True, slots=True)
class EmbeddingTable:
    """A parameter of which a batch looks up rows.

    Attributes:
        site: The user's line that builds its nn.Embedding, else that which calls its model; None
            where neither is known.
        rows: It has.
        numbers: In all of them.
        indices: That a pass of backward had for it, at most.
        optimizer: Name of the class that changes it.
        is_plain: That leaves rows alone whose gradient is zero.
    """

    site: str | None
    rows: int
    numbers: int
    indices: int
    optimizer: str
    is_plain: bool

    @property
    def looked_up(self) -> float:
        """The share of its rows that a batch looks up, at most."""
        return min(self.indices / max(self.rows, 1), 1.0)


@dataclass(frozen=True, slots=True)
class EmbeddingTables:
    """Those of a run, by a few passes of backward.

    Attributes:
        looks: How many passes were looked at.
        backward_share: Of their time, what went to the gradients of tables.
        numbers: That all optimizers change in a step.
        tables: Largest first.
        reads_gradients: The user's code seems to, itself.
    """

    looks: int
    backward_share: float
    numbers: int
    tables: list[EmbeddingTable]
    reads_gradients: bool = False


def embedding_tables(told: Iterable[Mapping[str, Any]], sites: Sites) -> EmbeddingTables | None:
    """Reads what was told last; nothing in it is trusted. None where nothing was met."""
    found = last_note(told, _TABLES).get(_TABLES)
    if not isinstance(found, dict):
        return None
    tables = [_table(one, sites) for one in dicts_in(found.get("tables"))]
    return EmbeddingTables(
        looks=integer(found.get("looks")) or 0,
        backward_share=share_in(found.get("backward_share")),
        numbers=integer(found.get("numbers")) or 0,
        tables=sorted(tables, key=lambda one: -one.numbers),
        reads_gradients=found.get("reads_gradients") is True,
    )


def _table(told: Mapping[str, Any], sites: Sites) -> EmbeddingTable:
    return EmbeddingTable(
        site=sites.known(integer(told.get("site"))),
        rows=integer(told.get("rows")) or 0,
        numbers=integer(told.get("numbers")) or 0,
        indices=integer(told.get("indices")) or 0,
        optimizer=str(told.get("optimizer", "unknown")),
        is_plain=told.get("is_plain") is True,
    )
