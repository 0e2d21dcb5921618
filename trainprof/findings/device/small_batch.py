"""The batch is too small for the GPU: it waits for launches, and most of its memory is free.

What it means: a step launches the same number of kernels for any batch size. If the GPU finishes
each kernel before the host launches the next, a batch twice as large takes about the same time. An
epoch then has half the steps.

How it is measured: the time in which the GPU waits for launches is that of launch_bound. torch's
allocator reports the peak of reserved memory. Parameters and optimizer state don't grow with the
batch, so more may fit than the advice says.

When it is wrong: the batch size may be part of your method. Where sample sizes vary, a later batch
may need more memory. Other processes on the GPU need memory too. Nothing is reported where the GPU
already waits for the DataLoader: larger batches need samples faster.

What to do: double batch_size while the step time hardly grows. Fewer and larger updates learn
differently: scale the learning rate (linearly for SGD, by the square root for Adam) and warm it up.
Compare samples/s, not steps/s. Check that the DataLoader keeps up. torch.compile and CUDA graphs
(launch_bound) save the same time at the present batch size.
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

# Of the GPU's memory that a larger batch may fill (loadtune: to 80 %).
_FILLED: Final = 0.8
# Beyond it a GPU is busy, however much memory is free.
_MOST_TIMES: Final = 16.0
_LEARNS: Final = "larger batches learn differently: scale the learning rate and compare the metric"


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
    # The host's time per sample shrinks with the batch size: some of it stays.
    saved_s = min(waited_s, (1 - 1 / times) * context.settled_s)
    size = loader.batch_size if loader is not None else None
    now = "" if size is None else f" (now {size})"
    room = f"at least {factor(times)}x" if times <= _MOST_TIMES else f"over {_MOST_TIMES:.0f}x"
    return plain_finding(
        RULE.id,
        f"the GPU waits up to {span(waited_s)}, {context.as_share(waited_s)}, for kernel launches, "
        f"with {percent(1 - reserved / limit)} of its memory free",
        outside_steps(context, saved_s),
        site=None if loader is None else loader.site,
        advice=f"double batch_size{now} while the step time hardly grows: memory allows {room}",
        cautions=[_LEARNS],
        evidence={
            "launching_s": waited_s,
            "launching_share": share,
            "loading_share": loading,
            "reserved_bytes": reserved,
            "limit_bytes": limit,
        },
    )


def _memory(context: RunContext) -> tuple[int, int] | None:
    """Returns the peak of the GPU's reserved memory, and its size."""
    devices = context.summary.devices or []
    memory = devices[0].memory if devices else None
    if memory is None or not memory.peak_reserved_bytes or not memory.limit_bytes:
        return None
    return memory.peak_reserved_bytes, memory.limit_bytes


RULE: Final = Rule(
    id="small_batch",
    thresholds={
        "share": Threshold(0.15, "of training, as launch_bound has it"),
        "reserved_share": Threshold(
            0.5, "of the GPU's memory, at most (loadtune: 60 %)", is_upper=True
        ),
        "loading_share": Threshold(
            0.1, "of training, the GPU waits for batches, at most", is_upper=True
        ),
    },
    find=find,
    explanation=__doc__,
    order=112,
    traits=RuleTraits(keys=[*COMPUTE_KEYS], action="Use a larger batch"),
    explained_by=("exposed_syncs",),
    idles_device=True,
    changes_steps=True,
)
