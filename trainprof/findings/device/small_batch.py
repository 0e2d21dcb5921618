"""The batch is too small for the device: it waits for launches, and most of its memory is free.

What it means: a step launches the same number of kernels however many samples are in its batch. On
a GPU that finishes each before the host launches the next, a batch of twice as many samples takes
about as long, and an epoch half the steps.

How it is measured: the time in which the device waits for launches is that of launch_bound. torch's
allocator says how much of the device's memory it has reserved at most. The batch grows as far as
that allows: parameters and optimizer state don't grow with it, so more may fit than is named.

When it is wrong: where the batch size is part of the method, or where sizes of samples vary, so
that a later batch needs more memory. Other processes on the device need memory too. Nothing is
reported where the device already waits for the DataLoader: larger batches need samples faster.

What to do: double batch_size, and again while the step time hardly grows. Scale the learning rate
with it (linearly for SGD, by the square root for Adam) and warm it up: fewer and larger updates
learn differently. Compare samples/s, not steps/s. torch.compile and CUDA graphs (launch_bound) save
the same time, with the batch as it is.
"""

from __future__ import annotations

from typing import Final

from trainprof.analysis.summary.finding import Finding, RuleTraits, Threshold
from trainprof.analysis.summary.levels import percent
from trainprof.analysis.summary.run import COMPUTE_KEYS
from trainprof.findings.device.launch_bound import waiting_for_launches_s
from trainprof.findings.gain import outside_steps, plain_finding
from trainprof.findings.rule import Rule
from trainprof.findings.run_context import RunContext
from trainprof.findings.wording import factor, span

# Of the device's memory that a larger batch may fill (loadtune: to 80 %).
_FILLED: Final = 0.8
# Beyond it a device is full, whatever memory is left.
_MOST_TIMES: Final = 16.0
_LEARNS: Final = (
    "fewer and larger updates learn differently: scale the learning rate, and compare the final "
    "metric"
)
_FASTER: Final = "the DataLoader has to deliver samples as much faster: check that it keeps up"


def find(context: RunContext) -> Finding | None:
    waited_s, memory = waiting_for_launches_s(context), _memory(context)
    if waited_s is None or memory is None or context.settled_s <= 0:
        return None
    reserved, limit = memory
    share = waited_s / context.settled_s
    loading = (context.idle_s("loader_s") or 0.0) / context.settled_s
    if share < RULE.threshold(context.settings, "share"):
        return None
    if loading > RULE.threshold(context.settings, "loading_share"):
        return None
    if reserved / limit > RULE.threshold(context.settings, "reserved_share"):
        return None
    loader = context.feeding[0].loader if context.feeding else None
    times = _FILLED * limit / reserved
    # Per sample, the host's time shrinks with the size of the batch: it may not all go.
    saved_s = min(waited_s, (1 - 1 / times) * context.settled_s)
    size = loader.batch_size if loader is not None else None
    now = "" if size is None else f" (now {size})"
    room = f"at least {factor(times)}x" if times <= _MOST_TIMES else f"over {_MOST_TIMES:.0f}x"
    return plain_finding(
        RULE.id,
        f"the device waits for kernel launches for up to {span(waited_s)}, "
        f"{context.as_share(waited_s)}, with {percent(1 - reserved / limit)} of its memory free",
        outside_steps(context, saved_s),
        site=None if loader is None else loader.site,
        advice=f"a larger batch{now}: double it while the step time hardly grows; memory allows "
        f"{room}",
        cautions=[_LEARNS, *([_FASTER] if loader is not None else [])],
        evidence={
            "launching_s": waited_s,
            "launching_share": share,
            "loading_share": loading,
            "reserved_bytes": reserved,
            "limit_bytes": limit,
        },
    )


def _memory(context: RunContext) -> tuple[int, int] | None:
    """Returns what the allocator has reserved of the device at most, and the device's memory."""
    devices = context.summary.devices or []
    memory = devices[0].memory if devices else None
    if memory is None or not memory.peak_reserved_bytes or not memory.limit_bytes:
        return None
    return memory.peak_reserved_bytes, memory.limit_bytes


RULE: Final = Rule(
    id="small_batch",
    thresholds={
        "share": Threshold(0.15, "of training, as launch_bound has it"),
        "reserved_share": Threshold(0.5, "of the device's memory (loadtune: 60 %)", is_upper=True),
        "loading_share": Threshold(0.1, "of training, the device waits for batches", is_upper=True),
    },
    find=find,
    explanation=__doc__,
    order=112,
    traits=RuleTraits(keys=[*COMPUTE_KEYS], gain="estimate"),
    explained_by=("exposed_syncs",),
    idles_device=True,
    changes_steps=True,
)
