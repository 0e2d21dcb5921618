"""What of the loop's own code is torch that computes: a loss, or an average of weights, by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from trainprof.analysis.code_figures import HotLine
from trainprof.analysis.events import Bool, Int64
from trainprof.analysis.gaps import gaps_at
from trainprof.analysis.hot_lines import is_met_at
from trainprof.analysis.ledger import KEY
from trainprof.analysis.looks import MIN_LOOKS, LineNames, Looks, PartsOfLoop
from trainprof.record.schema import Kind, SyncFlag

# With these a tensor becomes an array or a list: what computes behind them need not be torch.
_HAND_OVER: Final = (SyncFlag.TOLIST, SyncFlag.NUMPY)
# Likewise where so many single values were read: that is a loop over numbers.
_MANY_READS: Final = 8
# Of the looks at a line.
_MOSTLY: Final = 0.5


@dataclass(frozen=True, slots=True)
class TorchInLoop:
    """What looks tell of the time between the parts of a step.

    Attributes:
        lines: Of the parts, those of the loop's own code with what of it is torch's.
        loss_by_place: Torch that is the model's own work, as a loss by hand is: seconds by place,
            as a ledger's `other_by_place` has them; None of too few looks.
    """

    lines: list[HotLine]
    loss_by_place: dict[str, float] | None


def torch_in_loop(
    looks: Looks,
    parts: PartsOfLoop,
    seconds: Mapping[str, float],
    names: LineNames,
    lines: Sequence[HotLine],
    counted_until: Mapping[int, int],
) -> TorchInLoop:
    """Returns which of the loop's own code met at work is torch's operators.

    A look met one where the thread had a core while nobody held the interpreter, in code of the
    user's, torch's or a library's that uses torch, and where no array or list had been made of
    tensors in that gap. Between two operators others are met: a line that most looks met so is
    torch's as a whole.

    Args:
        looks: At the training thread.
        parts: Its.
        seconds: Of each part inside the loop, by ledger key.
        names: Of what was seen.
        lines: Of the parts, as `lines_of_training` has them.
        counted_until: When reads of a kind were counted no longer, ns.
    """
    taken, wanted = parts.at(looks.taken_ns), parts.at(looks.wanted_ns)
    asked = int(np.count_nonzero(wanted == KEY["other"]))
    here = looks.where(taken == KEY["other"])
    if asked < MIN_LOOKS or not len(here):
        return TorchInLoop(list(lines), None)
    gaps = gaps_at(parts, here.taken_ns)
    is_torch = here.is_operator & (here.held_ns == 0)
    is_torch &= ~_was_handed_over(parts, gaps.start_ns, here.taken_ns)
    is_torch &= here.taken_ns <= min(counted_until.values(), default=np.iinfo(np.int64).max)
    is_torch = _by_line(is_torch, here, names)
    is_loss = is_torch & gaps.is_models
    found = []
    for line in lines:
        if line.part == "other":
            is_there = is_met_at(line, here, names)
            line = replace(
                line,
                torch_share=_share(is_torch[is_there]),
                loss_share=_share(is_loss[is_there]),
            )
        found.append(line)
    each_s = seconds.get("other", 0.0) / max(asked, int(np.count_nonzero(is_loss)))
    places = Counter(gaps.place[is_loss].tolist())
    return TorchInLoop(found, {name: count * each_s for name, count in places.items()})


def _by_line(is_torch: Bool, looks: Looks, names: LineNames) -> Bool:
    """Returns which looks met a line at which most of them met torch, shape (n,)."""
    numbers, which = np.unique(looks.stack, return_inverse=True)
    lines = [next(iter(names.stacks(np.array([number])))) for number in numbers.tolist()]
    sites = [frames[0][0] if frames else "" for frames in lines]
    place = np.unique(np.array(sites), return_inverse=True)[1][which]
    met, torch = (np.bincount(place, weights=weights) for weights in (None, is_torch))
    mostly: Bool = (torch > _MOSTLY * met)[place]
    return mostly


def _share(mask: Bool) -> float:
    return float(mask.mean()) if len(mask) else 0.0


def _was_handed_over(parts: PartsOfLoop, since: Int64, until: Int64) -> Bool:
    """Returns within which spans of time tensors were read so that Python or NumPy has them."""
    events = parts.events
    is_read = events.is_kind(Kind.SYNC) & (events.flags & SyncFlag.ON_CPU > 0)
    kind = events.flags & ~np.uint8(SyncFlag.ON_CPU)
    is_array = is_read & np.isin(kind, _HAND_OVER)
    arrays, reads = (_count(events.start[mask], since, until) for mask in (is_array, is_read))
    handed_over: Bool = (arrays > 0) | (reads >= _MANY_READS)
    return handed_over


def _count(times: Int64, since: Int64, until: Int64) -> Int64:
    counted: Int64 = np.searchsorted(times, until) - np.searchsorted(times, since)
    return counted
