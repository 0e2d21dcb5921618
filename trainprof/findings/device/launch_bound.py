"""The GPU idles between small kernels: the host launches them more slowly than it runs them.

What it means: the host launches each operator of forward, backward and update separately. A launch
costs 5 to 50 us whatever the size of the operator. A GPU that finishes each kernel sooner runs at
the host's pace: a faster GPU gains nothing.

How it is measured: CUDA events show when the GPU had finished all launched kernels. It is
launch-bound if that is so at the end of nearly every forward, backward and update. NVIDIA's driver
reports the total kernel time. Compilation is not counted, nor is warm-up beyond the usual time of a
step.

When it is wrong: the host may run your Python code between launches instead of operators. Stack
samples show that time, and python_in_model reports it. Updates parameter by parameter are reported
by slow_optimizer. Neither is counted here. Without a driver's report, the GPU's busy time is
unknown, and the gain is an upper bound.

What to do: torch.compile(model) fuses small operators. mode="reduce-overhead" launches a step as
one CUDA graph, if shapes stay the same. Compiled operators differ in the last digits and don't
support create_graph=True: record CUDA graphs by hand there. With mode="reduce-overhead", clone()
what you keep beyond the step. If forward spends its time at one line in a loop, one batched call
gains more. Pass fused=True to the optimizer where updates take a fifth of the host's time. A larger
batch has the same number of launches but changes learning: see small_batch.
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

# Of the time in which the host computes: from here on the advice includes the optimizer.
_MUCH_UPDATE: Final = 0.2


def waiting_for_launches_s(context: RunContext) -> float | None:
    """Returns for how long a GPU waits for launches at most, without causes of other rules.

    None without a GPU, and where it is unknown.
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
    return plain_finding(
        RULE.id,
        f"launch-bound: the GPU idles up to {span(spent_s)}, {context.as_share(spent_s)}, between "
        "small kernels",
        outside_steps(context, spent_s),
        site=line.site if line is not None else None,
        advice=", and ".join([_compiled(context), *_fused(to_fuse)]),
        evidence={
            "launching_s": spent_s,
            "launching_share": share,
            "forward_s": parts_s.get("forward"),
            "backward_s": parts_s.get("backward"),
            "optimizer_s": parts_s.get("optimizer"),
        },
        cautions=[
            *(refusals_of_fused(context) if to_fuse else []),
            *policy_cautions(to_fuse),
        ],
    )


def _fused(calls: Sequence[OptimizerCall]) -> list[str]:
    """Returns how to fuse optimizers, in your code or a package's arguments."""
    own = {call.name for call in calls if call.built_by is None}
    names = [name for name in FUSED_ON_DEVICES if name in own]
    by_packages = with_argument([call for call in calls if call.built_by is not None], "fused")
    return [*([f"fused=True for {' and '.join(names)}"] if names else []), *by_packages]


def _compiled(context: RunContext) -> str:
    """Returns how to compile the model, by the argument of its trainer if that has one."""
    if context.summary.compilations:
        return 'compile the loss and the update as well, or use mode="reduce-overhead"'
    builder = context.builder()
    if builder is None or builder.compiles is None:
        return 'torch.compile(model), or torch.compile(model, mode="reduce-overhead")'
    argument = builder.compiles
    return f'{builder.call}(..., {argument}=True), or {argument}_mode="reduce-overhead"'


RULE: Final = Rule(
    id="launch_bound",
    thresholds={"share": Threshold(0.15, "of training (XProf: kernel launch, highly bound)")},
    find=find,
    explanation=__doc__,
    order=110,
    by_timing=True,
    traits=RuleTraits(keys=[*COMPUTE_KEYS], action="Launch fewer kernels: compile the model"),
    # After empty_cache() memory has to be allocated again, while kernels are launched.
    explained_by=("exposed_syncs",),
    idles_device=True,
)
