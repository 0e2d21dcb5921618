"""Python code of the training loop, between loading, forward, backward and optimizer, takes long.

What it means: logging, metrics, drawing, converting, loops over elements: code that runs in each
step while nothing trains.

How it is measured: the training thread's time that none of the hooked parts of a step covers, and
stack samples of where the thread stands, 25 a second. A line is named where samples met it so much
more often than its function's others that it is no chance; else its function is ("around" the line
that was met most). "At least" is the lower end of what the samples leave open.

A loss made of torch's functions is the model's own work, and part of the ledger's "loss": what
samples met on a core, with the GIL free, between forward and backward or between two forwards with
gradients. Of a run too short to tell, all between forward and backward counts as a loss where no
other was seen. What comes once (first calls) and calls that wait for other ranks are left out as
well.

When it is wrong: many small operators with values read in between are counted as Python, and NumPy
on large arrays that were made without any tensor looks like torch. Where the loop waits for another
thread or process that works for it, that work has to stay. On a GPU such code costs nothing while
the device still has work queued.

What to do: look at the named line. Do it on tensors at once instead of element by element, in
another process or, where training does not learn from it, every 100th step. `trainprof lines` times
each of its lines. Where the loop is a library's, that is called at the named line, its settings say
what it does in each step: a progress bar, logging, callbacks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import numpy as np

from trainprof.analysis.run.evidence import NAMED_FROM_SHARE, is_waiting
from trainprof.analysis.stacks.samples import function_of
from trainprof.analysis.summary.code import HotLine, hottest
from trainprof.analysis.summary.finding import Finding, RuleTraits, Threshold
from trainprof.analysis.timeline.iterations import TRAINING
from trainprof.analysis.timeline.ledger import BEFORE_BACKWARD, ELSEWHERE
from trainprof.findings.gain import Gain, outside_steps, plain_finding, python_gain
from trainprof.findings.library_loop import (
    LIBRARY_AT,
    advice_for,
    is_library,
    library_called_at,
)
from trainprof.findings.rule import Rule
from trainprof.findings.wording import caller, span, takes_of_it

if TYPE_CHECKING:
    from trainprof.analysis.summary.run_summary import RunSummary
    from trainprof.findings.run_context import RunContext

# Without a line there is little to do about it: only what is plain is told.
_UNNAMED_FROM_SHARE: Final = 0.15
# Of training: one statement of the loop's own is worth a look from here on.
_LINE_FROM_SHARE: Final = 0.05
# Of trainprof's own cost in a step, how much may stand in this part.
_OWN_TIMES: Final = 2.0
# Of the samples at a line that met torch computing, with the GIL free.
_TORCH_FROM_SHARE: Final = 0.7
# Of all of it, what usual steps have, and what stands before the first steps of epochs.
_IN_STEPS_SHARE: Final = 0.5
_AT_EPOCHS_SHARE: Final = 0.7
# Of training: with less of it in modules the model may compute outside of them.
_FORWARD_SHARE: Final = 0.01
# Of steps: from here on it calls modules all the same.
_CALLED_SHARE: Final = 0.5
# Of the part: what functions compute has a backward, which for small operators one by one in Python
# took 1.7 times as long as they did.
_GRAPH_SHARE: Final = 0.1
_LESS_OFTEN: Final = "do it less often"
_CHEAPER: Final = "make it cheaper"
_LEARNED_FROM: Final = (
    "if training uses its result (labels, rewards, negatives, averaged weights), doing it less "
    "often changes what is learned: make it cheaper instead"
)


def find(context: RunContext) -> Finding | None:
    least = RULE.threshold(context.settings, "share")
    spent_s = context.held_up_s("other", "host_s") - _own_cost_s(context)
    # Calls that other rules report.
    spent_s -= sum(call.seconds for call in context.summary.collectives)
    emptying_s = sum(call.between_s for call in context.summary.emptied_caches)
    maybe_loss_s = _maybe_loss_s(context)
    spent_s = max(spent_s - emptying_s - _once_s(context) - maybe_loss_s, 0.0)
    part = spent_s / context.settled_s if context.settled_s > 0 else 0.0
    line = python_line(context.summary)
    is_set = least != RULE.thresholds["share"].value
    if not is_set and line is not None and _is_plainly_one_line(context, line, part):
        least = _LINE_FROM_SHARE
    if part < least or may_be_waiting(context) or not _is_beside_model(context, line, spent_s):
        return None
    gain = _gain(context, spent_s)
    if gain is None:
        return None
    named = line if line is not None and _is_to_be_named(context, line, part) else None
    if named is None and part < (least if is_set else _UNNAMED_FROM_SHARE):
        return None
    places = dict(context.summary.ledger.other_by_place)
    if BEFORE_BACKWARD in places:
        places[BEFORE_BACKWARD] -= min(maybe_loss_s, places[BEFORE_BACKWARD])
    most = _place_of_most(context, places)
    library = None if named is not None else library_called_at(context, line)
    is_librarys = library is not None and line is not None and _is_known(line)
    does = _does(context, named, library if is_librarys else None)
    advice = _advice(line, most)
    if library is not None:
        advice = advice_for(context, library, is_sure=is_librarys)
    is_sure = named is not None and not named.is_likely
    return plain_finding(
        RULE.id,
        f"{does} {span(spent_s)}, {context.as_share(spent_s)}"
        f"{'' if most == ELSEWHERE else f', most of it {most}'}",
        gain,
        site=library if named is None else named.site,
        advice=advice if named is None else f"{takes_of_it(named)}: {advice}",
        cautions=[_LEARNED_FROM] if _LESS_OFTEN in advice else [],
        also=[] if named is None else caller(named),
        evidence={
            "python_s": spent_s,
            "python_share": part,
            "left_out_as_our_own_s": _own_cost_s(context),
            "by_place_s": places,
            LIBRARY_AT: library,
            "left_out_as_loss_s": maybe_loss_s,
            "left_out_as_emptied_caches_s": emptying_s,
            "left_out_as_once_s": _once_s(context),
            "line_share": named.line_share if named and is_sure and named.is_line_known else None,
            "function_share": named.share if named and is_sure else None,
        },
    )


def _does(context: RunContext, named: HotLine | None, library: str | None) -> str:
    """Returns what takes the time, with its verb."""
    between = "between the parts of a step" if _is_in_steps(context) else _when(context)
    takes = "leaves the device without work for" if context.is_on_device else "takes"
    if named is not None and is_waiting(named):
        return f"{between} the loop waits for another thread or process:"
    if named is not None and (named.torch_share or 0.0) >= _TORCH_FROM_SHARE:
        return f"what the loop computes by torch's functions (or NumPy's) {between} takes"
    if library is not None:
        return f"{between} the loop of the library called at {library} {takes}"
    return f"Python code {between} {takes}"


def python_line(summary: RunSummary) -> HotLine | None:
    """Returns the line between the parts of a step that takes most.

    Calls to other ranks, and those that give a device's memory back, are apart.
    """
    return hottest(summary.part_lines, "other", _reported_apart(summary))


def may_be_waiting(context: RunContext) -> bool:
    """Whether the loop may be waiting there: for a thread that reads ahead, or for other ranks."""
    loaders = context.summary.loaders
    is_read_ahead = any(
        loader.role == TRAINING and loader.thread != "training" for loader in loaders
    )
    meets_elsewhere = context.torch.is_data_parallel or bool(context.summary.collectives)
    return is_read_ahead or ((context.summary.run.world_size or 1) > 1 and not meets_elsewhere)


def _advice(line: HotLine | None, most: str) -> str:
    if line is not None and is_waiting(line):
        return "what it waits for has to get faster, or more of it has to be done beforehand"
    if line is not None and _is_known(line) and (line.torch_share or 0.0) >= _TORCH_FROM_SHARE:
        return (
            "what is only watched (a metric) less often; operators on whole batches or many "
            "tensors at once (torch._foreach_lerp_ and its like for averages of weights)"
        )
    if most == BEFORE_BACKWARD:
        return f"{_CHEAPER} or, if backward does not go through it, {_LESS_OFTEN}"
    return f"{_LESS_OFTEN}, or {_CHEAPER}"


def _is_known(line: HotLine) -> bool:
    """Whether a line is known to have much of it, and not only to be where that ends."""
    return line.share >= NAMED_FROM_SHARE and not line.is_end


def _is_to_be_named(context: RunContext, line: HotLine, part: float) -> bool:
    """Whether there is a line to look at: neither a library's, nor one of many of the loop's."""
    if not _is_known(line) or is_library(context, line):
        return False
    if line.line_share is None or part >= _UNNAMED_FROM_SHARE:
        return True
    loops = {
        function_of(other.site, other.function)
        for other in context.summary.part_lines
        if other.part in ("backward", "optimizer")
    }
    is_of_loop = function_of(line.site, line.function) in loops
    return not is_of_loop or line.line_share * part >= _LINE_FROM_SHARE


def _is_plainly_one_line(context: RunContext, line: HotLine, part: float) -> bool:
    """Whether one line, known for certain, takes that much of training by itself."""
    if line.line_share is None or line.is_likely or line.is_end:
        return False
    if not line.is_line_known:
        return False
    return line.line_share * part >= _LINE_FROM_SHARE and not is_library(context, line)


def _maybe_loss_s(context: RunContext) -> float:
    """Returns what of it may be a loss of torch's functions: where samples are too few to tell."""
    is_known = context.summary.loss_in_loop_s is not None
    if is_known or context.training.get("loss", 0.0) > 0:
        return 0.0
    return context.summary.ledger.other_by_place.get(BEFORE_BACKWARD, 0.0)


def _once_s(context: RunContext) -> float:
    """Returns what of it comes but once: no change in the loop's code saves that again."""
    return context.summary.once_in_loop_s or 0.0


def _lasting_s(context: RunContext) -> float:
    return max(context.training.get("other", 0.0) - _once_s(context), 0.0)


def _place_of_most(context: RunContext, places: Mapping[str, float]) -> str:
    """Returns where most of it is; where what comes but once was is unknown."""
    first, second = [*sorted(places, key=lambda name: -places[name]), ELSEWHERE, ELSEWHERE][:2]
    is_sure = places.get(first, 0.0) - _once_s(context) >= places.get(second, 0.0)
    return first if is_sure else ELSEWHERE


def _gain(context: RunContext, spent_s: float) -> Gain | None:
    """Returns what training would gain without it."""
    if not _is_in_steps(context):
        return outside_steps(context, spent_s)
    return python_gain(context, spent_s, with_warmup=False)


def _is_in_steps(context: RunContext) -> bool:
    """Whether a usual step has it: what comes behind an evaluation, say, is in none."""
    training = context.summary.training
    other_s = (training.per_step_s or {}).get("other", 0.0)
    return other_s * training.steps >= _IN_STEPS_SHARE * _lasting_s(context)


def _when(context: RunContext) -> str:
    """Returns when it comes, if not in each step alike."""
    part, epoch = context.steps.per_step.get("other"), context.steps.epoch_of
    first = np.flatnonzero(np.diff(epoch) > 0) + 1
    spent_s = 0.0 if part is None else float(part[first].sum()) / 1e9
    if spent_s < _AT_EPOCHS_SHARE * max(_lasting_s(context), 1e-9):
        return "between steps, now and then,"
    return f"between epochs ({span(spent_s / len(first))} each time)"


def _reported_apart(summary: RunSummary) -> set[str]:
    calls = {call.site for call in summary.collectives}
    return calls | {call.site for call in summary.emptied_caches}


def _own_cost_s(context: RunContext) -> float:
    """Returns what of the part may be trainprof's own: much of it, where steps take 0.2 ms."""
    each_us = context.summary.overhead.per_step_us or 0.0
    return _OWN_TIMES * each_us * 1e-6 * context.summary.training.steps


def _is_beside_model(context: RunContext, line: HotLine | None, spent_s: float) -> bool:
    """Whether modules compute the model: one made of functions alone would stand in this part."""
    if context.share("forward") >= _FORWARD_SHARE:
        return True
    called = context.steps.per_step.get("forward")
    if called is None or not len(called) or float((called > 0).mean()) < _CALLED_SHARE:
        return False
    # Some of its modules may be called, and functions compute the rest.
    if line is None or not _is_known(line) or line.torch_share is None:
        return False
    is_python = line.torch_share < _TORCH_FROM_SHARE
    return is_python and context.training.get("backward", 0.0) < _GRAPH_SHARE * spent_s


RULE: Final = Rule(
    id="python_in_loop",
    thresholds={
        "share": Threshold(
            0.1, "of training (TraceML, gpuprof); 0.05 that one line takes by itself"
        ),
    },
    find=find,
    explanation=__doc__,
    order=140,
    traits=RuleTraits(keys=["other"], lines="always"),
    # What an epoch begins with goes on, as objects that are given up, when its first batch is
    # there; a checkpoint that is written is renamed, or brought to disk, by the next lines.
    comes_of=("worker_restart", "slow_checkpoints"),
    saves_in_steps=True,
)
