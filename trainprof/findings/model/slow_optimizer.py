"""The optimizer goes through the parameters one by one, and that takes long.

What it means: on the CPU torch's optimizers make a dozen small operations for each parameter, each
a pass over its memory. Fused, they are one. An optimizer that the script's author wrote does the
same, and Python calls each of them.

How it is measured: the time inside the optimizer's own steps, and its settings at the first one.
What other optimizers, the clipping of gradients, the scaler and the schedule take is not counted.
A class of the script's own is reported where it is the only one, has ten parameters or more, and
takes less than 0.2 ms for each: then it is the calls that take the time, and not the numbers. On a
GPU torch takes all parameters together by itself, unless the optimizer was built with
foreach=False: then what the device waits for these kernels counts.

When it is wrong: functions that were registered with an optimizer's steps are in their time, and
fusing saves nothing of them: then the gain is "up to". Sparse gradients cannot be fused: nothing is
said of them. Results differ in the last digits. Lightning's Trainer refuses fused optimizers where
precision is mixed and gradients are clipped. load_state_dict() of a state that was saved without
fused=True takes it back; with a GradScaler the step then fails until each group's 'fused' is True.

Only parameters of one group are taken together, or fused. Where groups are as many as parameters,
or a step calls many optimizers, fusing saves little: a group has to hold all parameters with the
same settings (learning rate, weight decay, ...).

What to do: fused=True, which torch has for SGD, Adam, AdamW and Adagrad; where a package builds the
optimizer, by its settings. For a class of the script's own, the one of torch's that does the same,
fused; else torch._foreach_ functions, which take all tensors at once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from trainprof.analysis.model.optimizer_builder import OptimizerCall, minded_of, with_argument
from trainprof.analysis.model.torch_settings import LoopedOptimizer
from trainprof.analysis.summary.finding import (
    OPTIMIZER_BUILDERS,
    OTHER_OPTIMIZERS,
    Finding,
    RuleTraits,
    Threshold,
)
from trainprof.analysis.summary.levels import percent
from trainprof.findings.gain import outside_steps, plain_finding, python_gain
from trainprof.findings.rule import Rule
from trainprof.findings.run_context import RunContext
from trainprof.findings.wording import number_of, span

# What of the step's time went once it was fused, at least, likely, at most: 200 parameters of 64
# numbers, 60 of 16,000, 4 of a million, and 2 to 80 of 32 to 260,000, torch 2.13 on one core, and
# two scripts of some ten parameters, embeddings among them.
_FUSED_SAVES: Final = {
    "Adam": (0.4, 0.7, 0.9),
    "AdamW": (0.4, 0.7, 0.9),
    "Adagrad": (0.3, 0.6, 0.85),
    "SGD": (0.2, 0.5, 0.75),
}
# SGD without momentum has one operation for each parameter; with few of them fused takes longer.
_PLAIN_SGD_SAVES: Final = (0.0, 0.25, 0.5)
_FEW: Final = 10
# Of an optimizer of the script's own: fused ones of torch's took a fifth of the time of ten
# operations for each of 52 parameters of 64 to 4,096 numbers, torch._foreach_ functions half.
_OWN_SAVES: Final = 0.9
_MOST_EACH_S: Final = 200e-6
# Adagrad can be fused on devices by late versions of torch alone.
FUSED_ON_DEVICES: Final = ("SGD", "Adam", "AdamW")
# Of updates whose kernels a device is done with before the next one comes: 384 parameters of up to
# 33,000 numbers, AdamW, H100.
_SAVED_ON_DEVICE: Final = 0.95
# Of updates in groups of few parameters, that go where all are in one group, fused: 242 parameters
# of up to 1,024 numbers, AdamW, each in a group of its own: 0.91 of torch's plain updates, 0.90 of
# fused ones, 0.80 with foreach=True.
_GROUPED_SAVES: Final = (0.4, 0.8, 0.9)
_MANY_GROUPS: Final = 10
_FEW_EACH: Final = 4
_OF_GROUPS: Final = (
    "parameters whose learning rate or weight decay changes by itself later need a group of their "
    "own"
)
_REFUSED_BY_LIGHTNING: Final = (
    "Lightning's Trainer ends with an error where a fused optimizer meets mixed precision "
    "(16-mixed, bf16-mixed) and gradient_clip_val together"
)


def find(context: RunContext) -> Finding | None:
    grouped = _in_many_groups(context)
    if grouped is not None:
        return grouped
    if context.is_on_device:
        return _on_device(context)
    return _of_torchs(context) if context.torch.looped else _of_the_scripts_own(context)


def _in_many_groups(context: RunContext) -> Finding | None:
    """Returns the finding of one whose groups, or whose like, could be one.

    torch takes together, or fuses, no parameters but those of one group.
    """
    steps = max(len(context.steps), 1)
    use = next(iter(context.torch.used), None)
    if use is None or not use.is_torchs or not use.groups:
        return None
    calls = max(round(use.calls / steps), 1)
    groups, tensors = calls * use.groups, calls * use.tensors
    if groups < _MANY_GROUPS or tensors > _FEW_EACH * groups or 2 * use.settings > groups:
        return None
    apart = [(1 - use.settings / groups) * saves for saves in _GROUPED_SAVES]
    if context.is_on_device:
        waited_s = min(use.spent_s, context.launching_s() or 0.0)
        gains = [outside_steps(context, saves * waited_s) for saves in apart]
    else:
        waited_s = use.spent_s
        gains = [gain for saves in apart if (gain := python_gain(context, saves * waited_s))]
    least = RULE.threshold(context.settings, "share")
    if len(gains) < len(apart) or waited_s < least * context.settled_s:
        return None
    low, likely, high = gains
    call = OptimizerCall(use.name, use.site)
    updates = f"{use.name} updates"
    if calls > 1:
        updates = f"{calls} calls of {use.name}.step() update"
    change = "put all parameters into one group"
    if calls > 1:
        change = "one optimizer for all parameters"
    elif use.settings > 1:
        change = f"put the parameters of each of the {use.settings} settings into one group"
    fused = "" if use.name not in _FUSED_SAVES else f", and {call.with_argument('fused')}"
    return plain_finding(
        RULE.id,
        f"{updates} {number_of(tensors, 'parameter')} in {groups} groups, one after the other, in "
        f"each training step: {span(use.spent_s)}, {context.as_share(use.spent_s)}",
        replace(likely, training=(low.likely, high.likely), run=(low.run[1], high.run[1])),
        site=use.site,
        advice=f"{change}{fused}: torch updates the parameters of a group together",
        cautions=[*minded_when_fused(context), _OF_GROUPS],
        evidence={
            "optimizer_s": use.spent_s,
            "optimizer_share": use.spent_s / context.settled_s,
            "tensors": tensors,
            "groups": groups,
            "settings": use.settings,
            "calls_each_step": use.calls / steps,
            "optimizer": use.name,
        },
    )


def waiting_for_updates_s(context: RunContext) -> float:
    """Returns for how long a device waited for updates that the host makes one by one, at most.

    0 where that is too little to be told.
    """
    spent_s = sum(x.spent_s for x in _told_to_loop(context))
    waited_s = min(_SAVED_ON_DEVICE * spent_s, context.launching_s() or 0.0)
    least = RULE.threshold(context.settings, "share")
    return waited_s if waited_s >= least * context.settled_s else 0.0


def _told_to_loop(context: RunContext) -> list[LoopedOptimizer]:
    """Returns those that torch would take together by itself: not so on other devices."""
    is_cuda = str(context.summary.run.device).startswith("cuda")
    return [x for x in context.torch.looped if x.is_told_to and is_cuda]


def _on_device(context: RunContext) -> Finding | None:
    """Returns the finding of optimizers that were told to take parameter by parameter."""
    waited_s = waiting_for_updates_s(context)
    looped = _told_to_loop(context)
    if not looped or waited_s <= 0:
        return None
    costliest = max(looped, key=lambda x: x.spent_s)
    tensors = sum(x.tensors for x in looped)
    spent_s = sum(x.spent_s for x in looped)
    names = list(dict.fromkeys(x.name for x in looped))
    others = [f"{x.name} {x.site}" for x in looped if x.site != costliest.site]
    calls = [x.call for x in looped if x.name in FUSED_ON_DEVICES]
    change = " and ".join(with_argument(calls, "fused"))
    instead = f"{change} in place of foreach=False, or leave both out" if change else ""
    return plain_finding(
        RULE.id,
        f"{' and '.join(names)} with foreach=False: the host gives out the changes of {tensors} "
        f"parameters one by one, in {span(spent_s)}, {context.as_share(spent_s)}, and the device "
        "waits",
        outside_steps(context, waited_s),
        site=costliest.site,
        advice=f"{instead or 'leave foreach=False out'}: torch takes all of them at once then",
        cautions=[
            *(minded_when_fused(context) if change else []),
            *minded_of(calls),
        ],
        evidence={
            "optimizer_s": spent_s,
            "optimizer_share": spent_s / context.settled_s,
            "waited_s": waited_s,
            "tensors": tensors,
            "optimizer": costliest.name,
            OTHER_OPTIMIZERS: others or None,
        },
    )


def _is_enough(context: RunContext, spent_s: float) -> bool:
    least = RULE.threshold(context.settings, "share")
    return spent_s > 0 and spent_s >= least * context.training_s


def _of_the_scripts_own(context: RunContext) -> Finding | None:
    steps = max(len(context.steps), 1)
    owns = context.torch.own
    # A script may build its one again and again.
    if len(owns) != context.torch.optimizers or len({x.site for x in owns}) != 1:
        return None
    own, spent_s = max(owns, key=lambda x: x.tensors), sum(x.spent_s for x in owns)
    if own.tensors < _FEW or spent_s > _MOST_EACH_S * own.tensors * steps:
        return None
    gain = python_gain(context, _OWN_SAVES * spent_s)
    if gain is None or not _is_enough(context, spent_s):
        return None
    return plain_finding(
        RULE.id,
        f"{own.name}, written in the script, changes {own.tensors} parameters one by one: "
        f"{span(spent_s)}, {percent(spent_s / context.training_s)} of training",
        gain,
        site=own.site,
        advice="the class of torch.optim that does the same, with fused=True; else torch._foreach_ "
        "functions on the tensors of all parameters at once (torch._foreach_mul_, "
        "torch._foreach_add_)",
        evidence={
            "optimizer_s": spent_s,
            "optimizer_share": spent_s / context.training_s,
            "tensors": own.tensors,
            "optimizer": own.name,
        },
    )


def _of_torchs(context: RunContext) -> Finding | None:
    """Returns the finding of those that can be fused, each with its own part of the time."""
    fusable = [(x, saves) for x in context.torch.looped if (saves := _saves(x)) is not None]
    fusable.sort(key=lambda each: -each[0].spent_s)
    spent_s = sum(x.spent_s for x, _ in fusable)
    if not _is_enough(context, spent_s):
        return None
    has_hooks = any(x.has_hooks for x, _ in fusable)
    low, likely, high = (
        python_gain(context, sum(_saved_s(x, saves, bound) for x, saves in fusable))
        for bound in range(3)
    )
    if low is None or likely is None or high is None:
        return None
    gain = replace(
        high if has_hooks else likely,
        training=(low.likely, high.likely),
        run=(low.run[1], high.run[1]),
        is_at_most=has_hooks,
    )
    tensors: dict[tuple[str, str | None], int] = {}  # of one of those that a line builds
    for x, _ in fusable:
        call = (x.name, x.site)
        tensors[call] = max(tensors.get(call, 0), x.tensors)
    others = [f"{name} {site}" for name, site in [*tensors][1:] if site is not None]
    calls = list(dict.fromkeys(x.call for x, _ in fusable))
    names = list(dict.fromkeys(name for name, _ in tensors))
    change = " and ".join(with_argument(calls, "fused"))
    return plain_finding(
        RULE.id,
        f"{' and '.join(names)} update{'s' if len(names) == 1 else ''} "
        f"{number_of(sum(tensors.values()), 'parameter')} one by one: {span(spent_s)}, "
        f"{percent(spent_s / context.training_s)} of training",
        gain,
        site=fusable[0][0].site,
        advice=f"{change}, and so for {' and '.join(others)}" if others else change,
        change={"fused": True} if _may_be_patched(context, calls) else {},
        cautions=[*minded_when_fused(context), *minded_of(calls)],
        evidence={
            "optimizer_s": spent_s,
            "optimizer_share": spent_s / context.training_s,
            "tensors": sum(tensors.values()),
            "optimizer": fusable[0][0].name,
            OTHER_OPTIMIZERS: others or None,
            OPTIMIZER_BUILDERS: {x.site: x.built_by for x in calls if x.site and x.built_by}
            or None,
        },
    )


def _may_be_patched(context: RunContext, calls: list[OptimizerCall]) -> bool:
    """Whether one of the calls is the user's.

    Nothing tells how Lightning's Trainer was set: with clipping it may end with an error.
    """
    is_refused = context.torch.trains_by_lightning and context.clips_gradients
    return not is_refused and any(call.built_by is None for call in calls)


def minded_when_fused(context: RunContext) -> list[str]:
    """Returns what may refuse optimizers that are fused."""
    return [_REFUSED_BY_LIGHTNING] if context.torch.trains_by_lightning else []


def _saved_s(looped: LoopedOptimizer, saves: tuple[float, float, float], bound: int) -> float:
    """Returns what of its time goes: nothing is sure to, where that of others is in it."""
    return 0.0 if looped.has_hooks and bound == 0 else saves[bound] * looped.spent_s


def _saves(looped: LoopedOptimizer) -> tuple[float, float, float] | None:
    """Returns what of its time goes once it is fused, None where that is not known, or nothing."""
    is_plain = looped.name == "SGD" and looped.is_plain
    if looped.spent_s <= 0 or (is_plain and looped.tensors < _FEW):
        return None
    saves = _PLAIN_SGD_SAVES if is_plain else _FUSED_SAVES.get(looped.name)
    if saves is None or looped.groups <= 1:
        return saves
    # A group costs as much as a parameter does that is updated by itself.
    low, likely, high = saves
    together = max(1 - looped.groups / max(looped.tensors, 1), 0.0)
    return together * low, together * likely, together * high


RULE: Final = Rule(
    id="slow_optimizer",
    thresholds={"share": Threshold(0.1, "of training: half of it gone would be worth a change")},
    find=find,
    explanation=__doc__,
    order=220,
    traits=RuleTraits(keys=["optimizer"], gain="estimate"),
    idles_device=True,
)
