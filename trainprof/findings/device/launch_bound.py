"""The device waits for the host, which gives out work in pieces that are too small.

What it means: the host calls each operator of forward, backward and update by itself, which takes
it some 5 to 50 us, whatever the operator has to do. A device that is done with each sooner than the
next one comes goes at the host's pace: a faster device gains nothing then.

How it is measured: marks in the device's stream tell when it had done all it was given; where it
had at the end of nearly every forward, backward and update, the host's pace is its pace. For how
long a kernel ran in all, NVIDIA's driver tells. What torch compiles meanwhile, and what warm-up
takes beyond as many usual steps, is not counted.

When it is wrong: where the time in which the host gives out work is Python of the script's own,
rather than operators: what looks at the host tell of that is python_in_model's, and not counted
here; nor are updates parameter by parameter, which are slow_optimizer's. How much of the rest the
device works is not known where no driver tells: the gain is what cannot be exceeded.

What to do: torch.compile(model), which joins small operators into few; with mode="reduce-overhead"
a step is given out as one (CUDA graphs), where shapes stay the same. Gradients of gradients
(create_graph=True) cannot go through what is compiled: then CUDA graphs by hand. Where forward
mostly stands at one line in a loop, one call for all gains more than compiling. fused=True for the
optimizer, where updates take a fifth of the host's time. More samples in a batch take the same
number of operators, but change what is learned: small_batch says where memory allows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trainprof.analysis.model.optimizer_builder import OptimizerCall, policy_cautions, with_argument
from trainprof.analysis.summary.finding import Finding, RuleTraits, Threshold
from trainprof.analysis.summary.run import COMPUTE_KEYS
from trainprof.findings.gain import outside_steps, plain_finding
from trainprof.findings.model.slow_optimizer import (
    FUSED_ON_DEVICES,
    refusals_of_fused,
    waiting_for_updates_s,
)
from trainprof.findings.rule import Rule
from trainprof.findings.run_context import RunContext
from trainprof.findings.wording import span

# Of the time in which the host computes: from here on its optimizer is worth a word.
_MUCH_UPDATE: Final = 0.2
_JOINED_BY: Final = (
    "{call}(..., {argument}=True), and if that is not enough {argument}_mode="
    '"reduce-overhead", where shapes stay the same'
)
_JOINED_FURTHER: Final = (
    'compile what lies around it too (the loss, the optimizer\'s step), or mode="reduce-overhead" '
    "where shapes stay the same"
)
_JOINED: Final = (
    'torch.compile(model), and if that is not enough mode="reduce-overhead", where shapes stay the '
    "same"
)
_CAUTION: Final = (
    "compiled operators differ in the last digits, and create_graph=True ends with an error in "
    'them; with mode="reduce-overhead" clone() what is kept beyond the step'
)


def waiting_for_launches_s(context: RunContext) -> float | None:
    """Returns for how long a device waits for launches at most, by no cause that has its own rule.

    None without a device, and where it is not known.
    """
    waited_s, known = context.launching_s(), context.summary.python_in_model
    if waited_s is None:
        return None
    apart_s = known.total_s if known is not None else 0.0
    return max(waited_s - apart_s - waiting_for_updates_s(context), 0.0)


def find(context: RunContext) -> Finding | None:
    spent_s = waiting_for_launches_s(context)
    if spent_s is None or context.settled_s <= 0:
        return None
    share = spent_s / context.settled_s
    if share < RULE.threshold(context.settings, "share"):
        return None
    parts_s = {name: context.training.get(name, 0.0) for name in COMPUTE_KEYS}
    host_s = sum(parts_s.values())
    is_updating = parts_s.get("optimizer", 0.0) >= _MUCH_UPDATE * host_s
    line = context.hot_line("forward")
    unfused = [x for x in context.torch.unfused if x.name in FUSED_ON_DEVICES]
    to_fuse = unfused if is_updating else []
    joined = ", ".join([_joined(context), *_fused(to_fuse)])
    return plain_finding(
        RULE.id,
        f"the device is given small pieces of work, and waits for the next one for up to "
        f"{span(spent_s)}, {context.as_share(spent_s)}, while the host calls operator after "
        "operator",
        outside_steps(context, spent_s),
        site=line.site if line is not None else None,
        advice=joined,
        evidence={
            "launching_s": spent_s,
            "launching_share": share,
            "forward_s": parts_s.get("forward"),
            "backward_s": parts_s.get("backward"),
            "optimizer_s": parts_s.get("optimizer"),
        },
        cautions=[
            _CAUTION,
            *(refusals_of_fused(context) if to_fuse else []),
            *policy_cautions(to_fuse),
        ],
    )


def _fused(calls: Sequence[OptimizerCall]) -> list[str]:
    """Returns how optimizers are fused: those that the user builds by their classes alone."""
    own = {call.name for call in calls if call.built_by is None}
    names = [name for name in FUSED_ON_DEVICES if name in own]
    by_packages = with_argument([call for call in calls if call.built_by is not None], "fused")
    return [*([f"fused=True for {' and '.join(names)}"] if names else []), *by_packages]


def _joined(context: RunContext) -> str:
    """Returns how operators are joined: by who trains the model for the script, if it is set so."""
    if context.summary.compilations:
        return _JOINED_FURTHER
    builder = context.builder()
    if builder is None or builder.compiles is None:
        return _JOINED
    return _JOINED_BY.format(call=builder.call, argument=builder.compiles)


RULE: Final = Rule(
    id="launch_bound",
    thresholds={"share": Threshold(0.15, "of training (XProf: kernel launch, highly bound)")},
    find=find,
    explanation=__doc__,
    order=110,
    by_timing=True,
    traits=RuleTraits(keys=[*COMPUTE_KEYS], gain="estimate"),
    # Memory that was given back has to be asked for again, while kernels are launched.
    explained_by=("exposed_syncs",),
    idles_device=True,
)
