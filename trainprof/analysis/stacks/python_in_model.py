"""What of the model's time is Python code, by how long it kept those who looked at it waiting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

import numpy as np

from trainprof.analysis.stacks.lines_by_part import lines_met
from trainprof.analysis.stacks.samples import MIN_LOOKS, LineNames, Looks, PartsOfLoop
from trainprof.analysis.summary.code import HotLine, PythonInModel
from trainprof.analysis.timeline.events import Bool, Int64
from trainprof.analysis.timeline.ledger import KEY

PARTS: Final = ("forward", "loss", "backward", "recompute")
# Between two operators of torch's Python goes on for some 10 to 30 us (0.1 ms on a slow, full
# machine), and torch's own modules do no more than that.
HELD_NS: Final = 100_000
# Of the looks that waited: so many that waited for long enough to see the line itself.
_SURE_SHARE: Final = 0.25
# Of all looks at a line: where fewer waited, it computes with torch as well.
_OWN_LINE_SHARE: Final = 0.7
# That waited: fewer can be chance.
MIN_HELD: Final = 12
# Of the looks: with more that met another thread at work, it may have been that thread which others
# were kept waiting for, before it went to wait itself.
_CROWDED_SHARE: Final = 0.02
# Of training: less of it is not worth a word.
TOLD_FROM_SHARE: Final = 0.1


def python_in_model(
    looks: Looks,
    parts: PartsOfLoop,
    seconds: Mapping[str, float],
    names: LineNames,
    *,
    settled_ns: int,
) -> PythonInModel | None:
    """Returns what the looks tell; None where too few of them were kept waiting.

    And where another thread of the process runs Python code now and then.

    Args:
        looks: At the training thread.
        parts: Its.
        seconds: Of each part inside the loop, by ledger key.
        names: Of what was seen.
        settled_ns: When warm-up was over: a first forward imports and compiles.
    """
    told = looks.where(looks.wanted_ns >= settled_ns)
    told = told.where(np.argsort(told.wanted_ns, kind="stable"))
    part, is_held = parts.at(told.wanted_ns), _is_other_code(told)
    in_model = np.isin(part, [KEY[name] for name in PARTS])
    if np.count_nonzero(in_model & ~told.is_alone) > _CROWDED_SHARE * np.count_nonzero(in_model):
        return None
    told, part, is_held = told.where(told.is_alone), part[told.is_alone], is_held[told.is_alone]
    of_part: dict[str, float] = {}
    is_counted = np.zeros(len(told), dtype=bool)
    for name in PARTS:
        here = part == KEY[name]
        if np.count_nonzero(here) >= MIN_LOOKS:
            is_counted |= here
            of_part[name] = float(is_held[here].mean()) * seconds.get(name, 0.0)
    held = int(np.count_nonzero(is_counted & is_held))
    if held < MIN_HELD:
        return None
    most = max(of_part, key=lambda name: of_part[name])
    lines, behind = _lines(most, told.where(is_counted), names, sum(of_part.values()))
    return PythonInModel(int(np.count_nonzero(is_counted)), held, of_part, lines, behind)


def _lines(
    part: str, looks: Looks, names: LineNames, seconds: float
) -> tuple[list[HotLine], HotLine | None]:
    """Returns the lines where such code was, and otherwise what came behind it.

    A look that waited for less than the interpreter's switch interval saw where the code let go for
    long enough: in its own line, or in an operator behind it, which is seen without a wait as well.
    """
    is_held = _is_other_code(looks)
    is_sure = is_held & looks.is_known
    sure = int(np.count_nonzero(is_sure))
    if sure >= max(MIN_LOOKS, _SURE_SHARE * np.count_nonzero(is_held)):
        return lines_met(part, names.stacks(looks.stack[is_sure]), sure, seconds), None
    held = int(np.count_nonzero(is_held))
    met = lines_met(part, names.stacks(looks.stack[is_held]), held, seconds)
    waited, at_all = (_by_line(names, looks.stack[mask]) for mask in (is_held, slice(None)))
    lines = [line for line in met if waited[line.site] >= _OWN_LINE_SHARE * at_all[line.site]]
    behind = met[0] if met and met[0] not in lines else None
    return lines, behind


def _is_other_code(looks: Looks) -> Bool:
    """Whether looks met other code than torch's operators.

    Python that lets nobody else run, or arrays (SciPy's, say), which let others run meanwhile, in
    such a library's own code: in the user's they look like an operator of torch's.
    """
    found: Bool = (looks.held_ns >= HELD_NS) | looks.of_arrays
    return found


def _by_line(names: LineNames, stacks: Int64) -> Counter[str]:
    counted = Counter[str]()
    for frames, count in names.stacks(stacks).items():
        if frames:
            counted[frames[0][0]] += count
    return counted
