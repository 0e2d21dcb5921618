"""What a run saved and loaded in its training phase."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from trainprof.analysis.events import Events, Int64, Nesting
from trainprof.analysis.ledger import loads_samples
from trainprof.analysis.names import Sites
from trainprof.record.schema import Kind, Writer

_CALLED: Final = {
    Writer.TORCH: "torch.save",
    Writer.SAFETENSORS: "safetensors' save_file",
    Writer.TRANSFORMERS: "Trainer._save_checkpoint",
    Writer.LIGHTNING: "Trainer.save_checkpoint",
    Writer.ACCELERATE: "Accelerator.save_state",
    Writer.DISTRIBUTED: "torch.distributed.checkpoint's save",
}


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Calls of torch.save and torch.load, and of what libraries write checkpoints with.

    Attributes:
        saves, loads: How many there were: one by a library is one, with all that it calls.
        save_s, load_s: What they took, all together.
        saved_bytes: Of a mean save; None where nobody knows.
        writers: What wrote them, whatever took longest first.
        site: The line whose calls took longest.
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
        """What wrote them, by the names of functions."""
        return " and ".join(_CALLED[one] for one in self.writers)


def checkpoints_of(
    events: Events, nesting: Nesting, sites: Sites, begun: int, ended: int
) -> Checkpoints:
    """Counts what was saved and loaded, but for what a dataset loads as samples.

    Args:
        events: Of the training thread.
        nesting: Of `events`.
        sites: Its lines.
        begun, ended: When training was, ns.
    """
    is_here = (events.start >= begun) & (events.start < ended)
    is_call = events.is_kind(Kind.CHECKPOINT_SAVE, Kind.CHECKPOINT_LOAD)
    is_counted = is_call & is_here & ~loads_samples(events, nesting)
    is_inner = nesting.inside(is_counted)
    here = events.where(is_counted & ~is_inner)
    if len(here) == 0:
        return Checkpoints()
    is_save, took = here.is_kind(Kind.CHECKPOINT_SAVE), here.end - here.start
    numbers, which = np.unique(here.site, return_inverse=True)
    longest = int(numbers[np.bincount(which, weights=took).argmax()])
    sizes = here.value.astype(np.float64)
    inner = events.where(is_counted & is_inner)
    np.add.at(sizes, np.searchsorted(here.start, inner.start, side="right") - 1, inner.value)
    sizes = sizes[is_save & (sizes > 0)]
    return Checkpoints(
        saves=int(is_save.sum()),
        loads=int((~is_save).sum()),
        save_s=float(took[is_save].sum() / 1e9),
        load_s=float(took[~is_save].sum() / 1e9),
        saved_bytes=float(sizes.mean()) if len(sizes) else None,
        site=sites.known(longest),
        writers=_writers(here.flags[is_save], took[is_save]),
    )


def _writers(flags: npt.NDArray[np.uint8], took_ns: Int64) -> tuple[Writer, ...]:
    spent_ns = np.bincount(flags, weights=took_ns, minlength=len(Writer))[: len(Writer)]
    known = [Writer(number) for number in np.argsort(-spent_ns, kind="stable") if spent_ns[number]]
    return tuple(known) or (Writer.TORCH,)
