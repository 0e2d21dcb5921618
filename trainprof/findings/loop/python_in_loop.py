"""Python in the training loop, outside of loading, forward, backward and optimizer, takes long.

What it means: logging, metrics, drawing, conversions, loops over elements. Such code runs in each
step, and the model does not train during that time.

How it is measured: it is the training thread's time outside all timed parts of a step, and 25 stack
samples a second show its lines. A line is named if samples separate it from the function's other
lines, otherwise the function is. "At least" is the lower end of the interval. A loss built from
torch functions counts as model time: samples between forward and backward that met torch computing.
First calls and waits for other ranks are left out.

When it is wrong: many small operators with values read in between count as Python. NumPy on large
arrays, created without a tensor, counts as torch. If the loop waits for a thread or process that
works for it, that work has to stay. On a GPU such code is free while kernels are queued.

What to do: change the named line. Work on whole tensors in place of single elements, use another
process, or run it every 100th step. If training uses the result (labels, rewards, averaged
weights), running it less often changes what the model learns. torch._foreach_ functions average
weights at once. `trainprof lines` times each line. In a library's loop its settings decide what
each step does: progress bar, logging, callbacks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import numpy as np

from trainprof.analysis.run.evidence import NAMED_FROM_SHARE, is_waiting
from trainprof.analysis.stacks.samples import function_of
from trainprof.analysis.summary.code import HotLine, hottest
from trainprof.analysis.summary.finding import SHARE_OF, Finding, RuleTraits, Threshold
from trainprof.analysis.summary.levels import percent
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

# Without a line there is little to do about it: a smaller share is not reported.
_UNNAMED_FROM_SHARE: Final = 0.15
# Of a step: a single line of the user's is reported from here on.
_LINE_FROM_SHARE: Final = 0.05
# Times trainprof's own cost of a step: what of it may be in this part.
_OWN_TIMES: Final = 2.0
# Of the samples at a line that met torch computing, with the GIL free.
_TORCH_FROM_SHARE: Final = 0.7
# Of all of it: what comes before the first steps of epochs.
_AT_EPOCHS_SHARE: Final = 0.7
# Of training: with less of it in modules the model may compute outside of them.
_FORWARD_SHARE: Final = 0.01
# Of steps: a model that calls modules in more of them does not.
_CALLED_SHARE: Final = 0.5
# Of the part: what functions compute has a backward, which for small operators called one by one
# took 1.7 times their own time.
_GRAPH_SHARE: Final = 0.1
_CHEAPER: Final = "speed it up, or run it less often"
_LEARNED_FROM: Final = "running it less often changes the model if training uses its result"
_WITH_TORCH: Final = "compute it less often, or on whole batches"
_OF_LIBRARY: Final = "Let the library do less in each step"
_WAITS: Final = "speed up what it waits for, or start that earlier"


def find(context: RunContext) -> Finding | None:
    least = RULE.threshold(context.settings, "share")
    spent_s = context.held_up_s("other", "host_s") - _own_cost_s(context)
    # Calls that other rules report.
    spent_s -= sum(call.seconds for call in context.summary.collectives)
    emptying_s = sum(call.between_s for call in context.summary.emptied_caches)
    maybe_loss_s = _maybe_loss_s(context)
    spent_s = max(spent_s - emptying_s - _once_s(context) - maybe_loss_s, 0.0)
    in_step = context.step_part(spent_s, "other", once_s=_once_s(context))
    part_s, whole_s = in_step or (spent_s, context.settled_s)
    part = part_s / whole_s if whole_s > 0 else 0.0
    line = python_line(context.summary)
    is_set = least != RULE.thresholds["share"].value
    if not is_set and line is not None and _is_plainly_one_line(context, line, part):
        least = _LINE_FROM_SHARE
    if part < least or may_be_waiting(context) or not _is_outside_model(context, line, spent_s):
        return None
    gain: Gain | None = outside_steps(context, spent_s)
    if in_step is not None:
        gain = python_gain(context, spent_s, with_warmup=False)
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
    action, advice = _change(line)
    if library is not None:
        action, advice = _OF_LIBRARY, advice_for(context, library, is_sure=is_librarys)
    sure = None if named is None or named.is_likely else named
    time = context.of_step(spent_s, "other", once_s=_once_s(context))
    return plain_finding(
        RULE.id,
        f"{_what(context, named, of_library=is_librarys, in_steps=in_step is not None)} {time}"
        f"{'' if most == ELSEWHERE else f', mostly {most}'}",
        gain,
        site=library if named is None else named.site,
        action=action,
        advice=advice if named is None else f"{takes_of_it(named)}: {advice}",
        costliest=_most_sampled(context) if named is None and library is None else "",
        also=[
            *([] if named is None else caller(named)),
            *([_LEARNED_FROM] if advice == _CHEAPER else []),
        ],
        evidence={
            "python_s": spent_s,
            "python_share": part,
            SHARE_OF: context.summary.time_of_devices if in_step is None else "a steady step",
            "left_out_as_our_own_s": _own_cost_s(context),
            "by_place_s": places,
            LIBRARY_AT: library,
            "left_out_as_loss_s": maybe_loss_s,
            "left_out_as_emptied_caches_s": emptying_s,
            "left_out_as_once_s": _once_s(context),
            "line_share": sure.line_share if sure is not None and sure.is_line_known else None,
            "function_share": sure.share if sure is not None else None,
        },
    )


def _what(context: RunContext, named: HotLine | None, *, of_library: bool, in_steps: bool) -> str:
    """Returns what takes the time, with its verb."""
    when = "" if in_steps else _when(context)
    if named is not None and is_waiting(named):
        return f"the loop waits for another thread or process{when} for"
    takes = "leaves the GPU idle for" if context.is_on_device else "takes"
    if named is not None and (named.torch_share or 0.0) >= _TORCH_FROM_SHARE:
        return f"Python in the loop{when}, mostly torch or NumPy calls, {takes}"
    loop = "a library's loop" if of_library else "the loop"
    return f"Python in {loop}{when} {takes}"


def python_line(summary: RunSummary) -> HotLine | None:
    """Returns the slowest line between the parts of a step.

    Without calls to other ranks and those that release a device's memory.
    """
    return hottest(summary.part_lines, "other", _reported_apart(summary))


def _most_sampled(context: RunContext) -> str:
    """Returns the line that most samples met, with its interval; "" where no line has most.

    Code that holds the GIL delays its samples, so that the interval may be too wide to advise.
    """
    lines = [x for x in context.summary.hot_lines if (x.part, x.thread) == ("other", "training")]
    most = max(lines, key=lambda x: x.samples, default=None)
    if most is None or 2 * most.samples <= sum(x.samples for x in lines):
        return ""
    low, high = (percent(share) for share in most.share)
    share = f"{low.removesuffix(' %')} to {high} of a step"
    return f"Most samples: {most.site} {most.function}(), {share}"


def may_be_waiting(context: RunContext) -> bool:
    """Whether the loop may wait there for a thread that reads ahead, or for other ranks."""
    loaders = context.summary.loaders
    is_read_ahead = any(
        loader.role == TRAINING and loader.thread != "training" for loader in loaders
    )
    meets_elsewhere = context.torch.is_data_parallel or bool(context.summary.collectives)
    return is_read_ahead or ((context.summary.run.world_size or 1) > 1 and not meets_elsewhere)


def _change(line: HotLine | None) -> tuple[str, str]:
    """Returns what to do in short, "" for the rule's own action, and how."""
    if line is not None and is_waiting(line):
        return "Speed up what the loop waits for", _WAITS
    if line is not None and _is_known(line) and (line.torch_share or 0.0) >= _TORCH_FROM_SHARE:
        return "Compute less between the parts of a step", _WITH_TORCH
    return "", _CHEAPER


def _is_known(line: HotLine) -> bool:
    """Whether a line surely has much of it, and is not only where that ends."""
    return line.share >= NAMED_FROM_SHARE and not line.is_end


def _is_to_be_named(context: RunContext, line: HotLine, part: float) -> bool:
    """Whether to name the line: not a library's, nor one of many of the loop."""
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
    """Whether a single line surely takes enough of a step."""
    if line.line_share is None or line.is_likely or line.is_end:
        return False
    if not line.is_line_known:
        return False
    return line.line_share * part >= _LINE_FROM_SHARE and not is_library(context, line)


def _maybe_loss_s(context: RunContext) -> float:
    """Returns what of it may be a loss of torch functions: where samples are too few to know."""
    is_known = context.summary.loss_in_loop_s is not None
    if is_known or context.training.get("loss", 0.0) > 0:
        return 0.0
    return context.summary.ledger.other_by_place.get(BEFORE_BACKWARD, 0.0)


def _once_s(context: RunContext) -> float:
    """Returns what of it happens once: no change in the loop saves that."""
    return context.summary.once_in_loop_s or 0.0


def _lasting_s(context: RunContext) -> float:
    return max(context.training.get("other", 0.0) - _once_s(context), 0.0)


def _place_of_most(context: RunContext, places: Mapping[str, float]) -> str:
    """Returns where most of it is; the place of what happens once is unknown."""
    first, second = [*sorted(places, key=lambda name: -places[name]), ELSEWHERE, ELSEWHERE][:2]
    is_sure = places.get(first, 0.0) - _once_s(context) >= places.get(second, 0.0)
    return first if is_sure else ELSEWHERE


def _when(context: RunContext) -> str:
    """Returns when it happens, if not in each step."""
    part, epoch = context.steps.per_step.get("other"), context.steps.epoch_of
    first = np.flatnonzero(np.diff(epoch) > 0) + 1
    spent_s = 0.0 if part is None else float(part[first].sum()) / 1e9
    if spent_s < _AT_EPOCHS_SHARE * max(_lasting_s(context), 1e-9):
        return ", in some steps only,"
    return f" between epochs ({span(spent_s / len(first))} each)"


def _reported_apart(summary: RunSummary) -> set[str]:
    calls = {call.site for call in summary.collectives}
    return calls | {call.site for call in summary.emptied_caches}


def _own_cost_s(context: RunContext) -> float:
    """Returns what of the part may be trainprof's own: much of it in steps of 0.2 ms."""
    each_us = context.summary.overhead.per_step_us or 0.0
    return _OWN_TIMES * each_us * 1e-6 * context.summary.training.steps


def _is_outside_model(context: RunContext, line: HotLine | None, spent_s: float) -> bool:
    """Whether modules compute the model: one built from functions alone would be in this part."""
    if context.share("forward") >= _FORWARD_SHARE:
        return True
    called = context.steps.per_step.get("forward")
    if called is None or not len(called) or float((called > 0).mean()) < _CALLED_SHARE:
        return False
    # It may call some modules, and functions for the rest.
    if line is None or not _is_known(line) or line.torch_share is None:
        return False
    is_python = line.torch_share < _TORCH_FROM_SHARE
    return is_python and context.training.get("backward", 0.0) < _GRAPH_SHARE * spent_s


RULE: Final = Rule(
    id="python_in_loop",
    thresholds={
        "share": Threshold(0.1, "of a step (TraceML, gpuprof); 0.05 if a single line takes it"),
    },
    find=find,
    explanation=__doc__,
    order=140,
    traits=RuleTraits(keys=["other"], lines="always", action="Do less Python work in the loop"),
    # What starts an epoch frees objects after its first batch; the lines behind a save rename its
    # file or flush it to disk.
    comes_of=("worker_restart", "slow_checkpoints"),
    saves_in_steps=True,
)
