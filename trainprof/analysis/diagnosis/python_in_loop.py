"""Python code of the training loop, between loading, forward, backward and optimizer, takes long.

What it means: logging, metrics, drawing, converting, loops over elements: code that runs in each
step while nothing trains.

How it is measured: the training thread's time that none of the hooked parts of a step covers, and
looks at the line where the thread stands, 25 times a second. Where another thread runs Python code
too, code that lets go of the GIL again and again (NumPy, scikit-learn) is looked at late: a line
that most of those looks met well inside of it is named without a share ("seems to"), and Python of
a few milliseconds at a time is told where it ends. "At least" is the lower end of what the looks
leave open (two standard errors), counted as if those that came too late had met something else. A
line is told by itself where looks met it so much more often than its function's others that it is
no chance; otherwise its function is, "around" the line that was met most.

A loss that is made of torch's functions, between forward and backward (in an optimizer's closure as
well, Lightning's say), is the model's own work and taken off (the headline counts it as computing;
the ledger has it in python between), and so is what stands between two forwards with gradients:
that is where the thread was met on a core while nobody held the interpreter, in the script's own
code, torch's or a library's that uses torch (torchmetrics), before any tensor of that step became
an array or a list. Of a run too short to tell, all that stands between forward and backward counts
as a loss where no other was seen. Elsewhere (an average of weights, say) such a line is said to
compute by torch's functions, and so is what takes longer and longer while forward and backward do
not (a metric over all batches so far). Python that takes longer and longer, within each epoch or
the run, is said to, and so is what comes between epochs.

What comes but once is taken off: what the first steps have of it beyond as many later ones (code
that is compiled, or set up, as it is first called), and compiling by torch.compile. Where more than
ten steps lead up to steady ones and have about as much of it to their end, they are a phase of
training, and only the first ten may set something up.

Where modules take less than 1 % of training, the model may be made of functions instead. Then it is
told only if most steps call modules, backward takes next to nothing, and looks met Python at a line
of the script's own.

When it is wrong: where looks met torch's functions less plainly than that (many small operators,
values read in between), they are counted as Python, and NumPy on large arrays that were made
without any tensor looks like torch. Where the loop waits for something else (a queue, another
process), it is counted here too. With several ranks it is looked for where they wait for one
another in DistributedDataParallel or in calls of torch.distributed, which are not counted. On a
GPU, such code costs nothing while the device still has work queued.

Where looks met the line in Python's own code for queues, locks, pipes or sockets, it is said to
wait. What processes that the script started computed meanwhile, spread over the cores, has to stay.

What to do: look at the named line. Do it on tensors at once instead of element by element, on
another thread or, where training does not learn from it, every 100th step. What makes a loss (it
stands before backward, which takes long, or looks met torch there at work on it) can only be
cheaper. `trainprof lines` times each of its lines. Where the loop is a library's, that is called at
the named line, its settings say what it does in each step: a progress bar, logging, callbacks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from trainprof.analysis.code_figures import HotLine
from trainprof.analysis.diagnosis.case import NAMED_FROM_SHARE, Case
from trainprof.analysis.diagnosis.gains import Gain, of_python, outside_steps
from trainprof.analysis.diagnosis.library_loop import (
    LIBRARY_AT,
    advice_for,
    is_library,
    library_called_at,
)
from trainprof.analysis.diagnosis.loss_in_loop import (
    grows_with_model,
    growth_in_loop,
    is_in_steps,
    most_loss_s,
    places_of_rest,
)
from trainprof.analysis.diagnosis.plain import plain_finding
from trainprof.analysis.diagnosis.processes_beside import ProcessesBeside, processes_beside
from trainprof.analysis.diagnosis.rule import Threshold
from trainprof.analysis.diagnosis.trend import Growth
from trainprof.analysis.diagnosis.wording import caller, place, span, takes_of_it
from trainprof.analysis.finding import GROWN_TO_S, Finding
from trainprof.analysis.hot_lines import hottest
from trainprof.analysis.ledger import BEFORE_BACKWARD, ELSEWHERE
from trainprof.analysis.looks import CERTAIN, function_of
from trainprof.analysis.passes import TRAINING
from trainprof.analysis.summary import RunSummary

ID: Final = "python_in_loop"
KEYS: Final[tuple[str, ...]] = ("other",)
THRESHOLDS: Final = {
    "share": Threshold(0.1, "of training (TraceML, gpuprof); 0.05 that one line takes by itself"),
}
# Without a line there is little to do about it: only what is plain is told.
_UNNAMED_FROM_SHARE: Final = 0.15
# Of training: one statement of the loop's own is worth a look from here on.
_LINE_FROM_SHARE: Final = 0.05
# Of trainprof's own cost in a step, how much may stand in this part.
_OWN_TIMES: Final = 2.0
# Of the looks at a line.
_WAITS_FROM_SHARE: Final = 0.5
# Of the part: a line that may take less of it than this is told by itself.
_MUCH_OF_IT: Final = 0.95
_TOLD_TIMES: Final = 1.03
# Of the looks at a line: so many that met torch computing, and no code that holds the interpreter.
_TORCH_FROM_SHARE: Final = 0.7
# Likewise of those that met torch at work on what backward goes through: it makes a loss.
_LOSS_FROM_SHARE: Final = 0.3
# Of all of it, what stands before the first steps of epochs.
_AT_EPOCHS_SHARE: Final = 0.7
_AT_EPOCHS_TOO_SHARE: Final = 0.3
# Likewise of what stands in the first steps.
_IN_FIRST_SHARE: Final = 0.7
# A backward takes some 2 x its forward (profilers warn from 2.5 to 3.5).
_LONG_BACKWARD: Final = 3.0
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


def find(case: Case) -> Finding | None:
    least = case.threshold(ID, "share", THRESHOLDS["share"].value)
    spent_s = case.held_up_s("other", "host_s") - _own_cost_s(case)
    # Calls that other rules tell of.
    spent_s -= sum(one.seconds for one in case.summary.collectives)
    emptying_s = sum(one.between_s for one in case.summary.emptied_caches)
    spent_s -= emptying_s + _once_s(case)
    spent_s = max(spent_s, 0.0)
    # A loss of torch's functions is the model's own work.
    grown, told_s = _grown(case), _loss_s(case)
    most_s = most_loss_s(grown, case.steps, case.summary.training.steps)
    loss_s = min(told_s, spent_s, most_s)
    spent_s -= loss_s
    part = spent_s / case.settled_s if case.settled_s > 0 else 0.0
    line = _line_of_rest(case, spent_s, is_no_loss=most_s < told_s)
    is_set = least != THRESHOLDS["share"].value
    if not is_set and line is not None and _is_plainly_one_line(case, line, part):
        least = _LINE_FROM_SHARE
    if part < least or may_be_waiting(case) or not _is_beside_model(case, line, spent_s):
        return None
    # What other processes have to compute meanwhile takes its time on as many cores as there are.
    others = processes_beside(case) if line is not None and is_waiting(line) else None
    gain = _gain(case, max(spent_s - (others.least_s if others is not None else 0.0), 0.0))
    if gain is None:
        return None
    places = places_of_rest(case.summary.ledger.other_by_place, case.summary.loss_by_place, loss_s)
    most = _place_of_most(case, places)
    where = "" if most == ELSEWHERE else f", most of it {most}"
    is_own = line is not None and not is_library(case, line)
    named = line is not None and is_own and _is_named(line)
    if named and line is not None and _is_scattered(case, line, part):
        named = False  # no one line is to be looked at: loss and metrics, statement by statement
    if not named and part < (least if is_set else _UNNAMED_FROM_SHARE):
        return None
    is_torch = line is not None and (line.torch_share or 0.0) >= _TORCH_FROM_SHARE
    times = _backward_over_forward(case)
    is_long = most == BEFORE_BACKWARD and times >= _LONG_BACKWARD and not case.is_on_device
    advice = f"{_LESS_OFTEN}, or make it cheaper"
    if most == BEFORE_BACKWARD:
        advice = f"{_CHEAPER} or, if backward does not go through it, {_LESS_OFTEN}"
    if is_long or (line is not None and (line.loss_share or 0.0) >= _LOSS_FROM_SHARE):
        advice = _CHEAPER
    is_collecting = grown is not None and not grows_with_model(grown, case.steps)
    if is_torch and named and is_collecting:
        advice = (
            "what goes over all batches so far, as a metric does, once an epoch; or over the last "
            "ones alone"
        )
    elif is_torch and named:
        advice = (
            "what is only watched (a metric) less often; operators on whole batches or many "
            "tensors at once (torch._foreach_lerp_ and its like for averages of weights), copies "
            "of a model only when they are kept, anything once where its inputs stay the same"
        )
    also = []
    if line is not None and named:
        advice, also = f"{takes_of_it(line)}: {advice}", caller(line)
        also += [] if is_waiting(line) else _alone(case, line, spent_s)
    elif line is not None and is_own and line.is_end:
        also = [f"most of it ends at {place(line)}: what takes long stands there or before it"]
    library = None if named else library_called_at(case, line)
    is_librarys = library is not None and line is not None and _is_named(line)
    if library is not None:
        advice = advice_for(case, library, is_sure=is_librarys)
    if grown is not None and is_collecting:
        when = "within each epoch" if grown.is_of_epochs else "as training goes on"
        also.append(
            f"it grows {when}, from {span(grown.first_s)} to {span(grown.last_s)} a step: it may "
            "go over all that has been collected so far"
        )
    if is_long:
        also.append(
            f"backward takes {times:.1f} x as long as forward, as a rule twice: it may go through "
            "what this code computes as well, and gain with it"
        )
    between = "between the parts of a step" if _is_in_steps(case) else _when(case)
    takes = "leaves the device without work for" if case.is_on_device else "takes"
    does = f"Python code {between} {takes}"
    if is_librarys:
        does = f"{between} the loop of the library called at {library} {takes}"
    if is_torch and named:
        does = f"what the loop computes by torch's functions (or NumPy's) {between} takes"
    if line is not None and named and is_waiting(line):
        does = f"{between} the loop waits for another thread or process:"
        advice = (
            f"{takes_of_it(line)}: what it waits for has to get quicker, or more of it has to be "
            "done at once or beforehand"
        )
        also.append(_what_stays(others))
    is_sure = named and line is not None and not line.is_likely
    return plain_finding(
        ID,
        f"{does} {span(spent_s)}, {case.of_settled(spent_s)}{where}",
        gain,
        site=line.site if line is not None and named else library,
        advice=advice,
        cautions=[_LEARNED_FROM] if _LESS_OFTEN in advice else [],
        also=also,
        evidence={
            "python_s": spent_s,
            "python_share": part,
            "left_out_as_our_own_s": _own_cost_s(case),
            "by_place_s": places,
            LIBRARY_AT: library,
            "left_out_as_loss_s": loss_s,
            "left_out_as_emptied_caches_s": emptying_s,
            "left_out_as_once_s": _once_s(case),
            GROWN_TO_S: grown.last_s if grown is not None else None,
            "line_share": line.line_share if is_sure and line and line.is_line_known else None,
            "function_share": line.share if is_sure and line is not None else None,
        },
    )


def _is_named(line: HotLine) -> bool:
    """Whether a line is known to have much of it, and not only to be where that ends."""
    return line.share >= NAMED_FROM_SHARE and not line.is_end


def _loss_s(case: Case) -> float:
    """Returns what of it is a loss of torch's functions, or may be: where too few looks tell."""
    told = case.summary.loss_in_loop_s
    if told is not None:
        return told
    is_seen = case.training.get("loss", 0.0) > 0
    return 0.0 if is_seen else case.summary.ledger.other_by_place.get(BEFORE_BACKWARD, 0.0)


def _once_s(case: Case) -> float:
    """Returns what of it comes but once: no change in the loop's code saves that again."""
    return case.summary.once_in_loop_s or 0.0


def _lasting_s(case: Case) -> float:
    return max(case.training.get("other", 0.0) - _once_s(case), 0.0)


def _place_of_most(case: Case, places: Mapping[str, float]) -> str:
    """Returns where most of it is; of what comes but once nobody knows where it was."""
    first, second = [*sorted(places, key=lambda name: -places[name]), ELSEWHERE, ELSEWHERE][:2]
    is_sure = places.get(first, 0.0) - _once_s(case) >= places.get(second, 0.0)
    return first if is_sure else ELSEWHERE


def _gain(case: Case, spent_s: float) -> Gain | None:
    """Returns what training would gain without it."""
    if not _is_in_steps(case):
        return outside_steps(case, spent_s)
    return of_python(case, spent_s, with_warmup=False)


def _is_in_steps(case: Case) -> bool:
    """Whether a usual step has it: what comes behind an evaluation, say, is in none."""
    return is_in_steps(case.summary.training, _lasting_s(case))


def _when(case: Case) -> str:
    """Returns when it comes, if not in each step alike: in a first phase, between epochs, maybe."""
    in_first = _in_first_steps(case)
    if in_first is not None:
        return in_first
    part, epoch = case.steps.per_step.get("other"), case.steps.epoch_of
    first = np.flatnonzero(np.diff(epoch) > 0) + 1
    spent_s = 0.0 if part is None else float(part[first].sum()) / 1e9
    share = spent_s / max(_lasting_s(case), 1e-9)
    if share < _AT_EPOCHS_TOO_SHARE:
        return "between steps, now and then,"
    told = f"between epochs ({span(spent_s / len(first))} each time)"
    return told if share >= _AT_EPOCHS_SHARE else f"{told} and between the parts of a step"


def _in_first_steps(case: Case) -> str | None:
    """Says so where nearly all of it lies in the steps that lead up to steady ones."""
    part, first = case.steps.per_step.get("other"), case.steps.steady.warmup
    if part is None or first <= 1:
        return None
    spent_s = float(part[:first].sum()) / 1e9 - _once_s(case)
    if spent_s < _IN_FIRST_SHARE * _lasting_s(case):
        return None
    return f"between the parts of the first {first} steps"


def _alone(case: Case, line: HotLine, spent_s: float) -> list[str]:
    """Returns what a line alone would give, where that is far less than all of the part."""
    share = line.line_share
    if share is None or line.is_likely or line.is_at_least or not line.looks:
        return []
    if not line.is_line_known:
        return []
    looks = line.looks / line.share
    most = share + CERTAIN * math.sqrt(share * (1 - share) / looks)
    gain = _gain(case, most * spent_s)
    if most > _MUCH_OF_IT or gain is None or gain.training[1] < _TOLD_TIMES:
        return []
    times = f"{gain.training[1]:.2f} x"
    return [f"without that line alone, training would be up to about {times} as fast"]


def _grown(case: Case) -> Growth | None:
    """Returns how it takes longer and longer; None where it does not."""
    return growth_in_loop(case.steps, case.summary.training, _lasting_s(case))


def python_line(summary: RunSummary) -> HotLine | None:
    """Returns the line between the parts of a step that takes most.

    Calls to other ranks, and those that give a device's memory back, are apart.
    """
    return hottest(summary.part_lines, "other", _told_apart(summary))


def _told_apart(summary: RunSummary) -> set[str]:
    calls = [one.site for one in summary.collectives]
    return {*calls, *(one.site for one in summary.emptied_caches)}


def _line_of_rest(case: Case, spent_s: float, *, is_no_loss: bool) -> HotLine | None:
    """Returns the line that takes most of what is no loss, with its shares of that."""
    lines = case.summary.part_lines
    losses = {
        one.site
        for one in lines
        if one.part == "other" and (one.loss_share or 0.0) >= _TORCH_FROM_SHARE
    }
    if not losses or is_no_loss:
        return python_line(case.summary)
    line = hottest(lines, "other", losses | _told_apart(case.summary))
    if line is None or line.seconds is None or spent_s <= 0 or line.is_likely:
        return line
    times = max(min(line.seconds / spent_s, 1.0) / line.share, 1.0)
    of_line = None if line.line_share is None else min(times * line.line_share, 1.0)
    return replace(line, share=min(times * line.share, 1.0), line_share=of_line)


def _what_stays(others: ProcessesBeside | None) -> str:
    """Says what of a wait is somebody's work."""
    if others is None:
        return "what it waits for has work of its own to do: most of that may have to stay"
    who = "a process" if others.count == 1 else f"{others.count} processes"
    return (
        f"{who} that the script started computed for {span(others.cpu_s)} meanwhile: that takes "
        f"{span(others.least_s)} at least, with all of them at it at once"
    )


def _is_plainly_one_line(case: Case, line: HotLine, part: float) -> bool:
    """Whether one line, known for certain, takes that much of training by itself."""
    if line.line_share is None or line.is_likely or line.is_end:
        return False
    if not line.is_line_known:
        return False
    return line.line_share * part >= _LINE_FROM_SHARE and not is_library(case, line)


def _is_scattered(case: Case, line: HotLine, part: float) -> bool:
    """Whether it is the loop's own statements that take it, none of them much of training."""
    if line.line_share is None or part >= _UNNAMED_FROM_SHARE:
        return False
    loops = {
        function_of(one.site, one.function)
        for one in case.summary.part_lines
        if one.part in ("backward", "optimizer")
    }
    is_of_loop = function_of(line.site, line.function) in loops
    return is_of_loop and line.line_share * part < _LINE_FROM_SHARE


def is_waiting(line: HotLine) -> bool:
    """Whether a line mostly waits for another thread or process."""
    return (line.waits_share or 0.0) >= _WAITS_FROM_SHARE


def _own_cost_s(case: Case) -> float:
    """Returns what of the part may be trainprof's own: much of it, where steps take 0.2 ms."""
    each_us = case.summary.overhead.per_step_us or 0.0
    return _OWN_TIMES * each_us * 1e-6 * case.summary.training.steps


def _backward_over_forward(case: Case) -> float:
    forward_s = sum(case.training.get(key, 0.0) for key in ("forward", "loss"))
    return case.training.get("backward", 0.0) / forward_s if forward_s > 0 else 0.0


def _is_beside_model(case: Case, line: HotLine | None, spent_s: float) -> bool:
    """Whether modules compute the model: one made of functions alone would stand in this part."""
    if case.share("forward") >= _FORWARD_SHARE:
        return True
    called = case.steps.per_step.get("forward")
    if called is None or not len(called) or float((called > 0).mean()) < _CALLED_SHARE:
        return False
    # Some of its modules may be called, and functions compute the rest.
    is_python = line is not None and _is_named(line) and _is_known_as_python(line)
    return is_python and case.training.get("backward", 0.0) < _GRAPH_SHARE * spent_s


def _is_known_as_python(line: HotLine) -> bool:
    return line.torch_share is not None and line.torch_share < _TORCH_FROM_SHARE


def may_be_waiting(case: Case) -> bool:
    """Whether the loop may be waiting there: for a thread that reads ahead, or for other ranks."""
    loaders = case.summary.loaders
    is_read_ahead = any(one.role == TRAINING and one.thread != "training" for one in loaders)
    meets_elsewhere = case.torch.is_data_parallel or bool(case.summary.collectives)
    return is_read_ahead or ((case.summary.run.world_size or 1) > 1 and not meets_elsewhere)
