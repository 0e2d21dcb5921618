"""Checkpoints saved and loaded in the training phase."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from trainprof.analysis.run.metadata import Sites
from trainprof.analysis.timeline.events import Events, Int64, Nesting
from trainprof.analysis.timeline.ledger import loads_samples, within
from trainprof.record.schema import Kind, Writer

_CALLED: Final = {
    Writer.TORCH: "torch.save",
    Writer.SAFETENSORS: "safetensors' serialize_file",
    Writer.TRANSFORMERS: "Trainer._save_checkpoint",
    Writer.LIGHTNING: "Trainer.save_checkpoint",
    Writer.ACCELERATE: "Accelerator.save_state",
    Writer.DISTRIBUTED: "torch.distributed.checkpoint's save",
}


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Calls of torch.save and torch.load, and of libraries that write checkpoints.

    Attributes:
        saves, loads: A call of a library counts once, with all that it calls.
        saved_bytes: Mean of the saves whose files are known.
        site: The line with most time.
        writers: Functions that wrote them, slowest first; empty where unknown.
    """

    saves: int = 0
    loads: int = 0
    save_s: float = 0.0
    load_s: float = 0.0
    saved_bytes: float | None = None
    site: str | None = None
    writers: tuple[Writer, ...] = (Writer.TORCH,)

    @property
    def called(self) -> str:
        return " and ".join(_CALLED[writer] for writer in self.writers) or "saving checkpoints"


def checkpoints_of(
    events: Events, nesting: Nesting, sites: Sites, segments: Int64, loop: tuple[int, int]
) -> Checkpoints:
    """Counts saves and loads in training, without samples that a dataset loads."""
    is_here = (events.start >= loop[0]) & (events.start < loop[1])
    is_here &= ~within(segments, events.start)
    is_call = events.is_kind(Kind.CHECKPOINT_SAVE, Kind.CHECKPOINT_LOAD)
    is_counted = is_call & is_here & ~loads_samples(events, nesting)
    is_inner = nesting.inside(is_counted)
    here = events.where(is_counted & ~is_inner)
    if len(here) == 0:
        return Checkpoints()
    is_save, took = here.is_kind(Kind.CHECKPOINT_SAVE), here.end - here.start
    numbers, which = np.unique(here.site, return_inverse=True)
    longest = int(numbers[np.bincount(which, weights=took).argmax()])
    sizes = _sizes(here, events.where(is_counted & is_inner))[is_save]
    sizes = sizes[sizes > 0]
    return Checkpoints(
        saves=int(is_save.sum()),
        loads=int((~is_save).sum()),
        save_s=float(took[is_save].sum() / 1e9),
        load_s=float(took[~is_save].sum() / 1e9),
        saved_bytes=float(sizes.mean()) if len(sizes) else None,
        site=sites.known(longest),
        writers=_writers(here.flags[is_save], took[is_save]),
    )


def _sizes(outer: Events, inner: Events) -> npt.NDArray[np.float64]:
    """Returns the bytes of each, with those of the files inside; 0 where unknown."""
    sizes = outer.value.astype(np.float64)
    within_which = np.searchsorted(outer.start, inner.start, side="right") - 1
    np.add.at(sizes, within_which, inner.value)
    is_file = np.isin(inner.flags, (Writer.TORCH, Writer.SAFETENSORS, Writer.DISTRIBUTED))
    is_unknown = inner.is_kind(Kind.CHECKPOINT_SAVE) & is_file & (inner.value == 0)
    sizes[within_which[is_unknown]] = 0
    return sizes


def _writers(flags: npt.NDArray[np.uint8], took_ns: Int64) -> tuple[Writer, ...]:
    spent_ns = np.bincount(flags, weights=took_ns, minlength=len(Writer))[: len(Writer)]
    numbers = np.argsort(-spent_ns, kind="stable").tolist()
    return tuple(Writer(number) for number in numbers if spent_ns[number])
