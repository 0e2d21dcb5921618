"""What of the loop's own code is torch that computes: a loss, or an average of weights, by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from trainprof.analysis.stacks.lines_by_part import is_met_at
from trainprof.analysis.stacks.samples import MIN_LOOKS, LineNames, Looks, PartsOfLoop
from trainprof.analysis.summary.code import HotLine
from trainprof.analysis.timeline.events import Bool, Int64
from trainprof.analysis.timeline.ledger import KEY
from trainprof.analysis.timeline.untracked import gaps_at
from trainprof.record.schema import Kind, SyncFlag

# With these a tensor becomes an array or a list: what computes behind them need not be torch.
_HAND_OVER: Final = (SyncFlag.TOLIST, SyncFlag.NUMPY)
# Likewise where so many single values were read: that is a loop over numbers.
_MANY_READS: Final = 8
_NEVER_NS: Final = 1 << 62
# Of the looks at a line.
_MOSTLY: Final = 0.5


@dataclass(frozen=True, slots=True)
class TorchInLoop:
    """What looks tell of the time between the parts of a step.

    Attributes:
        lines: Of the parts, those of the loop's own code with what of it is torch's.
        loss_by_place: Torch that is the model's own work, as a loss by hand is: seconds by place,
            as a ledger's `other_by_place` has them; None of too few looks that tell.
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
    until_ns = min(counted_until.values(), default=_NEVER_NS)
    is_torch, is_known = _by_line(is_torch, here, names, until_ns)
    asked -= int(np.count_nonzero(~is_known))
    is_loss = is_torch & gaps.is_models
    found = []
    for line in lines:
        if line.part == "other":
            is_there = is_met_at(line, here, names) & is_known
            line = replace(
                line,
                torch_share=_share(is_torch[is_there]),
                loss_share=_share(is_loss[is_there]),
            )
        found.append(line)
    if asked < MIN_LOOKS:
        return TorchInLoop(found, None)
    each_s = seconds.get("other", 0.0) / max(asked, int(np.count_nonzero(is_loss)))
    places = Counter(gaps.place[is_loss].tolist())
    return TorchInLoop(found, {name: count * each_s for name, count in places.items()})


def _by_line(is_torch: Bool, looks: Looks, names: LineNames, until_ns: int) -> tuple[Bool, Bool]:
    """Returns which looks met a line at which most of them met torch, and where that is known.

    Of reads that were counted no longer a look tells nothing: the line's earlier ones do. Where it
    has none, only that it computes otherwise can be known.

    Args:
        is_torch: Which looks met torch as far as reads were counted, shape (n,).
        looks: Those.
        names: Of what was seen.
        until_ns: When reads of some kind were counted no longer.
    """
    numbers, which = np.unique(looks.stack, return_inverse=True)
    lines = [next(iter(names.stacks(np.array([number])))) for number in numbers.tolist()]
    sites = [frames[0][0] if frames else "" for frames in lines]
    place = np.unique(np.array(sites), return_inverse=True)[1][which]
    is_early = looks.taken_ns <= until_ns
    early, rest = (_is_mostly(is_torch, mask, place) for mask in (is_early, ~is_early))
    was_met = np.bincount(place, weights=is_early) > 0
    return (was_met & early)[place], (was_met | ~rest)[place]


def _is_mostly(is_torch: Bool, mask: Bool, place: Int64) -> Bool:
    """Returns at which places most looks of a mask met torch, shape (n_places,)."""
    met, torch = (np.bincount(place, weights=weights) for weights in (mask, is_torch & mask))
    mostly: Bool = torch > _MOSTLY * met
    return mostly


def _share(mask: Bool) -> float | None:
    return float(mask.mean()) if len(mask) else None


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
