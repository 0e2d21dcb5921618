"""The optimizer updates parameters one by one, which takes long.

What it means: on a CPU torch's optimizers run a dozen small operations per parameter, a fused
optimizer runs one. An optimizer class of your own also calls each of them from Python. On a GPU
torch updates all parameters of a group together, unless foreach=False was given. Parameters of
different groups are never updated together.

How it is measured: the cost is the time inside the optimizer's step, without gradient clipping, the
scaler and the scheduler. A class of your own is reported if it is the only one, has ten parameters
or more and takes under 0.2 ms each. On a GPU only the time counts in which it waits for these
kernels.

When it is wrong: hooks of the optimizer are in its time, and fusing does not change them; the gain
is then an upper bound. Optimizers with sparse gradients cannot be fused and are not reported.

What to do: pass fused=True, which torch's SGD, Adam, AdamW and Adagrad accept. If a package builds
the optimizer, use its setting. Replace your own class by torch's equivalent, or use torch._foreach_
functions, which update all tensors at once. Put all parameters with the same settings into one
group; only those whose learning rate changes separately need their own. Results differ in the last
digits. load_state_dict() of a state saved without fused=True turns it off again. With a GradScaler
the step then fails until each group's 'fused' is True. Lightning's Trainer refuses fused optimizers
if precision is mixed and gradients are clipped.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from trainprof.analysis.model.optimizer_builder import OptimizerCall, policy_cautions, with_argument
from trainprof.analysis.model.torch_settings import LoopedOptimizer
from trainprof.analysis.summary.finding import (
    OPTIMIZER_BUILDERS,
    OTHER_OPTIMIZERS,
    Finding,
    RuleTraits,
    Threshold,
)
from trainprof.findings.gain import outside_steps, plain_finding, python_gain
from trainprof.findings.rule import Rule
from trainprof.findings.run_context import RunContext
from trainprof.findings.wording import number_of

# Of the step's time, what fusing saves at least, likely, at most: 200 parameters of 64 numbers, 60
# of 16,000, 4 of a million, 2 to 80 of 32 to 260,000 (torch 2.13, one core), and two scripts of
# some ten parameters, embeddings among them.
_FUSED_SAVES: Final = {
    "Adam": (0.4, 0.7, 0.9),
    "AdamW": (0.4, 0.7, 0.9),
    "Adagrad": (0.3, 0.6, 0.85),
    "SGD": (0.2, 0.5, 0.75),
}
# SGD without momentum runs one operation per parameter; with few of them fusing costs time.
_PLAIN_SGD_SAVES: Final = (0.0, 0.25, 0.5)
_FEW: Final = 10
# Of a class of the user's, against ten operations for each of 52 parameters of 64 to 4,096 numbers:
# torch's fused ones took a fifth of the time, torch._foreach_ functions half.
_OWN_SAVES: Final = 0.9
_MOST_EACH_S: Final = 200e-6
# Only late versions of torch fuse Adagrad on devices.
FUSED_ON_DEVICES: Final = ("SGD", "Adam", "AdamW")
# Of updates during which a device waits for kernels: 384 parameters of up to 33,000 numbers (AdamW,
# H100).
_SAVED_ON_DEVICE: Final = 0.95
# Of updates in groups of few parameters, what one fused group saves: for 242 parameters of up to
# 1,024 numbers, each in its own group (AdamW), 0.91 of torch's plain updates, 0.90 of fused ones,
# 0.80 with foreach=True.
_GROUPED_SAVES: Final = (0.4, 0.8, 0.9)
_MANY_GROUPS: Final = 10
_FEW_EACH: Final = 4
_REFUSED_BY_LIGHTNING: Final = (
    "Lightning refuses fused optimizers with 16-mixed precision and gradient_clip_val together"
)
_OWN_CLASS: Final = "use torch.optim's equivalent with fused=True, or torch._foreach_ functions"


def find(context: RunContext) -> Finding | None:
    grouped = _in_many_groups(context)
    if grouped is not None:
        return grouped
    if context.is_on_device:
        return _on_device(context)
    return _of_torchs(context) if context.torch.looped else _of_own_class(context)


def _in_many_groups(context: RunContext) -> Finding | None:
    """Returns the finding of an optimizer that could have fewer groups, or of many optimizers.

    torch updates only parameters of one group together.
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
    updates, change = f"{use.name} updates", "Put all parameters into one group"
    if calls > 1:
        updates, change = f"{calls} {use.name} optimizers update", "Use one optimizer"
    elif use.settings > 1:
        change = f"Use {use.settings} groups, one per setting"
    fused = call.with_argument("fused") if use.name in _FUSED_SAVES else f"{use.name}(...)"
    return plain_finding(
        RULE.id,
        f"{updates} {number_of(tensors, 'parameter')} in {groups} groups, one after the other: "
        f"{context.of_step(use.spent_s, 'optimizer')}",
        replace(likely, training=(low.likely, high.likely), run=(low.run[1], high.run[1])),
        site=use.site,
        action=change,
        advice=f"{fused}: torch updates the parameters of a group together",
        cautions=refusals_of_fused(context),
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
    """Returns how long a device waited for updates that the host launches one by one, at most.

    0 if that is too little to be reported.
    """
    spent_s = sum(x.spent_s for x in _without_foreach(context))
    waited_s = min(_SAVED_ON_DEVICE * spent_s, context.launching_s() or 0.0)
    least = RULE.threshold(context.settings, "share")
    return waited_s if waited_s >= least * context.settled_s else 0.0


def _without_foreach(context: RunContext) -> list[LoopedOptimizer]:
    """Returns those that torch would update together without foreach=False: on CUDA only."""
    is_cuda = str(context.summary.run.device).startswith("cuda")
    return [x for x in context.torch.looped if x.without_foreach and is_cuda]


def _on_device(context: RunContext) -> Finding | None:
    """Returns the finding of optimizers with foreach=False."""
    waited_s = waiting_for_updates_s(context)
    looped = _without_foreach(context)
    if not looped or waited_s <= 0:
        return None
    costliest = max(looped, key=lambda x: x.spent_s)
    tensors = sum(x.tensors for x in looped)
    spent_s = sum(x.spent_s for x in looped)
    names = list(dict.fromkeys(x.name for x in looped))
    others = [f"{x.name} {x.site}" for x in looped if x.site != costliest.site]
    calls = [x.call for x in looped if x.name in FUSED_ON_DEVICES]
    change = " and ".join(with_argument(calls, "fused"))
    return plain_finding(
        RULE.id,
        f"{' and '.join(names)} with foreach=False launches kernels for {tensors} parameters one "
        f"by one: {context.of_step(spent_s, 'optimizer')}",
        outside_steps(context, waited_s),
        site=costliest.site,
        advice=f"{change} in place of foreach=False" if change else "remove foreach=False",
        cautions=[*(refusals_of_fused(context) if change else []), *policy_cautions(calls)],
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


def _of_own_class(context: RunContext) -> Finding | None:
    steps = max(len(context.steps), 1)
    owns = context.torch.own
    # A script may build the same one repeatedly.
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
        f"{own.name}, your own class, updates {own.tensors} parameters one by one: "
        f"{context.of_step(spent_s, 'optimizer')}",
        gain,
        site=own.site,
        advice=_OWN_CLASS,
        evidence={
            "optimizer_s": spent_s,
            "optimizer_share": spent_s / context.training_s,
            "tensors": own.tensors,
            "optimizer": own.name,
        },
    )


def _of_torchs(context: RunContext) -> Finding | None:
    """Returns the finding of torch's optimizers that can be fused."""
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
    tensors: dict[tuple[str, str | None], int] = {}  # of one optimizer of each line
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
        f"{number_of(sum(tensors.values()), 'parameter')} one by one: "
        f"{context.of_step(spent_s, 'optimizer')}",
        gain,
        site=fusable[0][0].site,
        advice=f"{change}, also for {' and '.join(others)}" if others else change,
        change={"fused": True} if _may_be_patched(context, calls) else {},
        cautions=[*refusals_of_fused(context), *policy_cautions(calls)],
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
    """Whether one of the calls is the user's, and Lightning's Trainer cannot refuse it."""
    is_refused = context.torch.trains_by_lightning and context.clips_gradients
    return not is_refused and any(call.built_by is None for call in calls)


def refusals_of_fused(context: RunContext) -> list[str]:
    """Returns a caution about what may refuse fused optimizers."""
    return [_REFUSED_BY_LIGHTNING] if context.torch.trains_by_lightning else []


def _saved_s(looped: LoopedOptimizer, saves: tuple[float, float, float], bound: int) -> float:
    """Returns what fusing saves of its time: with hooks in it, nothing for sure."""
    return 0.0 if looped.has_hooks and bound == 0 else saves[bound] * looped.spent_s


def _saves(looped: LoopedOptimizer) -> tuple[float, float, float] | None:
    """Returns the shares of its time that fusing saves; None if unknown or nothing."""
    is_plain = looped.name == "SGD" and looped.is_plain
    if looped.spent_s <= 0 or (is_plain and looped.tensors < _FEW):
        return None
    saves = _PLAIN_SGD_SAVES if is_plain else _FUSED_SAVES.get(looped.name)
    if saves is None or looped.groups <= 1:
        return saves
    # A fused group costs about what a single parameter costs.
    low, likely, high = saves
    together = max(1 - looped.groups / max(looped.tensors, 1), 0.0)
    return together * low, together * likely, together * high


RULE: Final = Rule(
    id="slow_optimizer",
    thresholds={"share": Threshold(0.1, "of training: half of it is worth a change")},
    find=find,
    explanation=__doc__,
    order=220,
    traits=RuleTraits(keys=["optimizer"], action="Use a fused optimizer"),
    idles_device=True,
)
