"""The optimizer goes through the parameters one by one, and that takes long.

What it means: on the CPU torch's optimizers make a dozen small operations for each parameter, each
a pass over its memory. Fused, they are one. An optimizer that the script's author wrote does the
same, and Python calls each of them.

How it is measured: the time inside the optimizer's own steps, and its settings at the first one.
What other optimizers, the clipping of gradients, the scaler and the schedule take is not counted;
several optimizers that could be fused are told together, the costliest first. Of a class of the
script's own that is told where it is the only one, has ten parameters or more, and takes less than
0.2 ms over each: it is then the calls that take the time, and not the numbers.

On a GPU torch takes all parameters together by itself, and nothing is said, unless the optimizer
was built with foreach=False: then the host gives out a dozen kernels for each parameter, and what
the device waits for them (see launch_bound) is counted.

When it is wrong: where parameters are few and the update is plain (SGD without momentum), there is
little to fuse. Functions that were registered with an optimizer's steps (register_step_post_hook:
an average of weights, say) are in their time, and fusing saves nothing of them: where there are any
the gain is told as "up to". Sparse gradients cannot be fused: where the first step has one, nothing
is said. Results differ in the last digits. Lightning's Trainer refuses fused optimizers where
precision is mixed and gradients are clipped (gradient_clip_val): where they are clipped there is no
patch. Nor is there one where an installed package builds the optimizer: that is told arguments by
settings of its own, which are named of those that are known (Hugging Face's, Stable-Baselines3).
load_state_dict() of a state that was saved without fused=True takes it back: where the script's
files resume an optimizer that is said.

What to do: fused=True, which torch has for SGD, Adam, AdamW and Adagrad. foreach=True, meant for
GPUs, was seen to be slower than the loop on a CPU. For a class of the script's own, the one of
torch's that does the same, fused; else torch._foreach_ functions, which take all tensors at once
and halved the time of a loop of ten operations in Python.
"""

from __future__ import annotations

from typing import Final

from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.diagnosis.gains import Gain, of_python, outside_steps
from trainprof.analysis.diagnosis.plain import plain_finding
from trainprof.analysis.diagnosis.rule import Threshold
from trainprof.analysis.diagnosis.wording import number_of, place, span
from trainprof.analysis.finding import OPTIMIZER_BUILDERS, OTHER_OPTIMIZERS, Finding
from trainprof.analysis.optimizer_builder import OptimizerCall, minded_of, with_argument
from trainprof.analysis.torch_settings import LoopedOptimizer
from trainprof.analysis.verdict_level import percent

ID: Final = "slow_optimizer"
KEYS: Final[tuple[str, ...]] = ("optimizer",)
THRESHOLDS: Final = {
    "share": Threshold(0.1, "of training: half of it gone would be worth a change"),
}
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
_REFUSED_BY_LIGHTNING: Final = (
    "Lightning's Trainer ends with an error where a fused optimizer meets mixed precision "
    "(16-mixed, bf16-mixed) and gradient_clip_val together"
)
# load_state_dict takes all settings of groups from the state. A GradScaler asks the optimizer, and
# not its groups, whether it is fused: these then refuse what they are given.
_TAKEN_BACK: Final = (
    "load_state_dict() of a state that was saved without fused=True takes it back, and with a "
    "GradScaler the step then fails: after it, for g in optimizer.param_groups: g['fused'] = True"
)
_HOOKED: Final = (
    "functions that were registered with its steps (register_step_pre_hook, "
    "register_step_post_hook) are in that time, and fusing saves nothing of them"
)


def find(case: Case) -> Finding | None:
    if case.is_on_device:
        return _on_device(case)
    return _of_torchs(case) if case.torch.looped else _of_the_scripts_own(case)


def waiting_for_updates_s(case: Case) -> float:
    """Returns for how long a device waited for updates that the host makes one by one, at most.

    0 where that is too little to be told.
    """
    spent_s = sum(one.spent_s for one in _told_to_loop(case))
    waited_s = min(_SAVED_ON_DEVICE * spent_s, case.launching_s() or 0.0)
    least = case.threshold(ID, "share", THRESHOLDS["share"].value)
    return waited_s if waited_s >= least * case.settled_s else 0.0


def _told_to_loop(case: Case) -> list[LoopedOptimizer]:
    """Returns those that torch would take together by itself: not so on other devices."""
    is_cuda = str(case.summary.run.device).startswith("cuda")
    return [one for one in case.torch.looped if one.is_told_to and is_cuda]


def _on_device(case: Case) -> Finding | None:
    """Returns the finding of optimizers that were told to take parameter by parameter."""
    waited_s = waiting_for_updates_s(case)
    looped = _told_to_loop(case)
    if not looped or waited_s <= 0:
        return None
    costliest = max(looped, key=lambda one: one.spent_s)
    tensors = sum(one.tensors for one in looped)
    spent_s = sum(one.spent_s for one in looped)
    names = list(dict.fromkeys(one.name for one in looped))
    others = [f"{one.name} {one.site}" for one in looped if one.site != costliest.site]
    calls = [one.call for one in looped if one.name in FUSED_ON_DEVICES]
    change = " and ".join(with_argument(calls, "fused"))
    instead = f"{change} in place of foreach=False, or leave both out" if change else ""
    return plain_finding(
        ID,
        f"{' and '.join(names)} with foreach=False: the host gives out the changes of {tensors} "
        f"parameters one by one, in {span(spent_s)}, {case.of_settled(spent_s)}, and the device "
        "waits",
        outside_steps(case, waited_s),
        site=costliest.site,
        advice=f"{instead or 'leave foreach=False out'}: torch takes all of them at once then",
        cautions=[
            *(minded_when_fused(case) if change else []),
            *minded_of(calls),
            "updates that are put together differ in the last digits",
        ],
        evidence={
            "optimizer_s": spent_s,
            "optimizer_share": spent_s / case.settled_s,
            "waited_s": waited_s,
            "tensors": tensors,
            "optimizer": costliest.name,
            OTHER_OPTIMIZERS: others or None,
        },
    )


def _is_enough(case: Case, spent_s: float) -> bool:
    least = case.threshold(ID, "share", THRESHOLDS["share"].value)
    return spent_s > 0 and spent_s >= least * case.training_s


def _of_the_scripts_own(case: Case) -> Finding | None:
    steps = max(len(case.steps), 1)
    owns = case.torch.own
    # A script may build its one again and again.
    if len(owns) != case.torch.optimizers or len({one.site for one in owns}) != 1:
        return None
    own, spent_s = max(owns, key=lambda one: one.tensors), sum(one.spent_s for one in owns)
    if own.tensors < _FEW or spent_s > _MOST_EACH_S * own.tensors * steps:
        return None
    gain = of_python(case, _OWN_SAVES * spent_s)
    if gain is None or not _is_enough(case, spent_s):
        return None
    line = case.hot_line("optimizer")
    also = []
    if line is not None and _file(line.site) == _file(own.site):
        also = [f"its line that was met most is {place(line)}"]
    return plain_finding(
        ID,
        f"{own.name}, written in the script, changes {own.tensors} parameters one by one: "
        f"{span(spent_s)}, {percent(spent_s / case.training_s)} of training",
        gain,
        site=own.site,
        advice="the class of torch.optim that does the same, with fused=True; else torch._foreach_ "
        "functions on the tensors of all parameters at once (torch._foreach_mul_, "
        "torch._foreach_add_)",
        cautions=["updates that are put together differ in the last digits"],
        also=also,
        evidence={
            "optimizer_s": spent_s,
            "optimizer_share": spent_s / case.training_s,
            "tensors": own.tensors,
            "optimizer": own.name,
        },
    )


def _file(site: str) -> str:
    return site.rpartition(":")[0]


def _of_torchs(case: Case) -> Finding | None:
    """Returns the finding of those that can be fused, each with its own part of the time."""
    fusable = [(one, saves) for one in case.torch.looped if (saves := _saves(one)) is not None]
    fusable = sorted(fusable, key=lambda each: -each[0].spent_s)
    spent_s = sum(one.spent_s for one, _ in fusable)
    if not _is_enough(case, spent_s):
        return None
    has_hooks = any(one.has_hooks for one, _ in fusable)
    gains = [
        of_python(case, sum(_saved_s(one, saves, bound) for one, saves in fusable))
        for bound in range(3)
    ]
    low, likely, high = gains
    if low is None or likely is None or high is None:
        return None
    told = high if has_hooks else likely
    gain = Gain(
        training=(low.likely, high.likely),
        run=(low.run[1], high.run[1]),
        likely=told.likely,
        saved_s=told.saved_s,
        is_at_most=has_hooks,
        of_steps=told.of_steps,
    )
    costliest = fusable[0][0]
    tensors: dict[tuple[str, str | None], int] = {}  # of one of those that a line builds
    for one, _ in fusable:
        call = (one.name, one.site)
        tensors[call] = max(tensors.get(call, 0), one.tensors)
    names = list(dict.fromkeys(name for name, _ in tensors))
    others = [(name, site) for name, site in [*tensors][1:] if site is not None]
    who = " and ".join(names)
    if len(tensors) > len(names):
        who = f"{len(tensors)} optimizers ({who})"
    part = spent_s / case.training_s
    calls = list(dict.fromkeys(one.call for one, _ in fusable))
    change = " and ".join(with_argument(calls, "fused"))
    changed = number_of(sum(tensors.values()), "parameter")
    also_at = " and ".join(f"{site} ({name})" for name, site in others)
    return plain_finding(
        ID,
        f"{who} change{'s' if len(tensors) == 1 else ''} {changed} one by one: {span(spent_s)}, "
        f"{percent(part)} of training",
        gain,
        site=costliest.site,
        advice=f"{change}, and so at {also_at}" if others else change,
        change={"fused": True} if _may_be_patched(case, calls) else {},
        cautions=[
            *([_HOOKED] if has_hooks else []),
            *minded_when_fused(case),
            *minded_of(calls),
            "fused updates differ in the last digits, and so do later losses by more and more",
        ],
        evidence={
            "optimizer_s": spent_s,
            "optimizer_share": part,
            "tensors": sum(tensors.values()),
            "optimizer": costliest.name,
            OTHER_OPTIMIZERS: [f"{name} {site}" for name, site in others] or None,
            OPTIMIZER_BUILDERS: {
                one.site: one.built_by for one in calls if one.site and one.built_by
            }
            or None,
        },
    )


def _may_be_patched(case: Case, calls: list[OptimizerCall]) -> bool:
    """Whether one of the calls is the user's.

    Nothing tells how Lightning's Trainer was set: with clipping it may end with an error.
    """
    is_refused = case.torch.trains_by_lightning and case.clips_gradients
    return not is_refused and any(one.built_by is None for one in calls)


def minded_when_fused(case: Case) -> list[str]:
    """Returns what may refuse optimizers that are fused, or take that back."""
    refused = [_REFUSED_BY_LIGHTNING] if case.torch.trains_by_lightning else []
    return [*refused, *([_TAKEN_BACK] if case.torch.may_resume else [])]


def _saved_s(looped: LoopedOptimizer, saves: tuple[float, float, float], bound: int) -> float:
    """Returns what of its time goes: nothing is sure to, where that of others is in it."""
    return 0.0 if looped.has_hooks and bound == 0 else saves[bound] * looped.spent_s


def _saves(looped: LoopedOptimizer) -> tuple[float, float, float] | None:
    """Returns what of its time goes once it is fused, None where that is not known, or nothing."""
    is_plain = looped.name == "SGD" and looped.is_plain
    if looped.spent_s <= 0 or (is_plain and looped.tensors < _FEW):
        return None
    return _PLAIN_SGD_SAVES if is_plain else _FUSED_SAVES.get(looped.name)
