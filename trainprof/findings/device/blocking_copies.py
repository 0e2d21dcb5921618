"""The GPU waits for copies between CPU and GPU memory.

What it means: batches are copied from pageable memory. Each copy goes through a staging buffer and
blocks the host. A pinned source is faster, and with non_blocking=True the host goes on. The copy
still runs between the kernels of two steps: only a stream of its own overlaps it with them.

How it is measured: CUDA events around each copy show when the GPU only copied, or was idle while
the host was in a copy. The finding names the line that cost most of that in training.

When it is wrong: where the link is saturated, pinning saves little. How much faster pinned copies
are is unknown until you try: the gain is an upper bound. Copies under 64 KiB cost mostly latency:
their gain is that of merging two into one.

What to do: pass DataLoader(..., pin_memory=True) and .to(device, non_blocking=True). Copy a batch
once, as one tensor. Send uint8 and convert on the GPU. Prefetch the next batch on another
torch.cuda.Stream, with wait_stream and record_stream. To the host, copy fewer values and less
often: Hugging Face's Trainer copies all logits of an evaluation unless
preprocess_logits_for_metrics= reduces them. With non_blocking=True, do not refill a pinned buffer
before its copy has finished, and synchronize before you read a copy on the host. If the dataset or
collate_fn copies to the GPU, move the copy into the training loop. For a batch of your own class,
the loader calls its pin_memory() method. Pinned memory cannot be swapped out.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from trainprof.analysis.device.host_waits import costliest_in_training, idle_during_s
from trainprof.analysis.summary.device import Transfer
from trainprof.analysis.summary.finding import LOADER_ID, Finding, RuleTraits, Threshold
from trainprof.analysis.summary.levels import size
from trainprof.analysis.summary.loader import Loader
from trainprof.analysis.timeline.iterations import TRAINING
from trainprof.findings.gain import outside_steps, plain_finding
from trainprof.findings.loading.loader_cautions import OFF_DEVICE
from trainprof.findings.loading.loader_change import call_with
from trainprof.findings.rule import Rule
from trainprof.findings.run_context import RunContext
from trainprof.findings.wording import span

_MOSTLY: Final = 0.5
_BY_ITSELF: Final = "tensor.pin_memory()"
# CUDA's runtime (API synchronization behavior) stages copies up to this size, pinned or not, and
# does not block for them: such a copy costs latency, not bandwidth.
_SMALL_BYTES: Final = 64 << 10
# Of the time of small copies: merging two into one.
_JOINED_SAVES: Final = 0.5
# A batch, or what was computed from it at the same size: the last batch of an epoch may be smaller.
_AS_LARGE_TIMES: Final = 1.05
_REFILLED: Final = "do not refill a buffer before its copy has finished"


class _Change(NamedTuple):
    """What to do about copies.

    Attributes:
        gain_s: What it saves at most, s.
        arguments: What `tune` patches.
    """

    action: str
    advice: str
    gain_s: float
    arguments: dict[str, Any] | None = None


def find(context: RunContext) -> Finding | None:
    least = RULE.threshold(context.settings, "share")
    spent_s = context.idle_s("copy_s") or 0.0
    if context.settled_s <= 0 or spent_s < least * context.settled_s:
        return None
    worst, are_several = costliest_in_training(context.summary.transfers)
    if worst is None:
        return None
    change = _change(context, worst, spent_s)
    count = worst.count if worst.in_training is None else worst.in_training
    pageable = "pageable " if _is_pageable(worst) else ""
    copies = f"{count} {pageable}{'blocking ' if _is_blocking(worst) else ''}copies"
    if are_several:
        copies = f"copies, mostly {copies}"
    refills = "non_blocking" in change.advice and not context.feeding
    return plain_finding(
        RULE.id,
        f"the GPU idles {span(spent_s)}, {context.as_share(spent_s)}, in {copies}",
        outside_steps(context, change.gain_s),
        site=worst.site,
        action=change.action,
        advice=change.advice,
        change=change.arguments or {},
        cautions=[_REFILLED] if refills else [],
        evidence={
            "copy_idle_s": spent_s,
            "copy_idle_share": spent_s / context.settled_s,
            "copy_wait_s": _waited_s(context),
            "bytes": worst.bytes,
            "pinned_share": worst.pinned_share,
            "non_blocking_share": worst.non_blocking_share,
            **({LOADER_ID: context.feeding[0].loader.id} if len(context.feeding) == 1 else {}),
        },
    )


def _change(context: RunContext, worst: Transfer, spent_s: float) -> _Change:
    in_loader = any(feeder.loader.touches_device for feeder in context.feeding)
    if worst.direction == "d2h":
        advice = "sum values on the GPU and copy the sum every 100th step"
        return _Change("Copy fewer values back to the CPU", advice, spent_s)
    if worst.direction == "h2d" and in_loader and _is_pageable(worst):
        return _Change("Return CPU tensors from the loader", OFF_DEVICE, spent_s)
    if worst.direction == "h2d" and not in_loader:
        if worst.is_made_there:
            advice = "pass device= to the torch call that creates the tensor"
            gain_s = min(idle_during_s(worst), spent_s)
            return _Change("Create tensors on the GPU", advice, gain_s)
        if _each_bytes(worst) < _SMALL_BYTES:
            rows = [x for x in context.summary.transfers if x.direction == worst.direction]
            small_s = sum(idle_during_s(row) for row in rows if _each_bytes(row) < _SMALL_BYTES)
            advice = f"copy several as one: a copy of {size(_each_bytes(worst))} is mostly latency"
            return _Change("Merge small copies", advice, _JOINED_SAVES * min(small_s, spent_s))
    return _of_batches(context, worst, spent_s, in_loader=in_loader)


def _of_batches(
    context: RunContext, worst: Transfer, spent_s: float, *, in_loader: bool
) -> _Change:
    """Returns what makes copies of batches, or of tensors as large, faster."""
    least = RULE.threshold(context.settings, "share")
    pageable, blocking, wait_s = _is_pageable(worst), _is_blocking(worst), _waited_s(context)
    is_waited_for = blocking and wait_s >= least * context.settled_s
    if not pageable and not is_waited_for:
        advice = "copy the next batch in torch.cuda.stream(copy_stream), or send it as uint8"
        return _Change("Overlap copies with computing", advice, spent_s)
    settings = context.builder()
    settings = settings if settings is not None and settings.copies else None
    to = ".to(device, non_blocking=True)"
    if settings is not None:
        to = settings.copies or ""
    elif worst.by_library_share > 0:
        to = "non_blocking=True in the library's settings"
    elif _copies_back(context, worst):
        to = f"{to} only for copies to the GPU"
    loaders = [loader for loader in context.summary.loaders if loader.role == TRAINING]
    may_be_batches = _may_be_batches(worst, loaders)
    arguments: dict[str, Any] = {}
    if pageable and may_be_batches and not all(loader.pin_memory for loader in loaders):
        arguments["pin_memory"] = True
    if blocking and not in_loader and to == ".to(device, non_blocking=True)":
        arguments["non_blocking"] = True
    if pageable:
        pinned = _pinned(context, loaders) if may_be_batches else _BY_ITSELF
        joined = f"{pinned}{'' if pinned == _BY_ITSELF and to[0] == '.' else ' and '}{to}"
        return _Change("Copy from pinned memory", joined, spent_s, arguments)
    advice = to if settings is None else f"{settings.call}(..., {to})"
    return _Change("Copy batches asynchronously", advice, wait_s, arguments)


def _is_pageable(copy: Transfer) -> bool:
    return copy.direction == "h2d" and copy.pinned_share < _MOSTLY


def _is_blocking(copy: Transfer) -> bool:
    # The host reads a copy that comes back to it: asynchronously it would read too early.
    return copy.direction != "d2h" and copy.non_blocking_share < _MOSTLY


def _copies_back(context: RunContext, worst: Transfer) -> bool:
    """Whether a line also copies to the host, or may in another part of the run."""
    rows = context.summary.transfers
    is_here = any(row.site == worst.site and row.direction == "d2h" for row in rows)
    return is_here or context.summary.run.part is not None


def _waited_s(context: RunContext) -> float:
    return sum(device.copy_wait_s for device in context.summary.devices or ())


def _each_bytes(copy: Transfer) -> float:
    return copy.bytes / max(copy.count, 1)


def _may_be_batches(worst: Transfer, loaders: list[Loader]) -> bool:
    """Whether a copy is at most as large as a batch, as far as that is known."""
    fetches = [loader.fetch for loader in loaders]
    known = [fetch.batch_bytes for fetch in fetches if fetch is not None and fetch.batch_bytes]
    if not known or len(known) < len(fetches):
        return True
    return _each_bytes(worst) <= _AS_LARGE_TIMES * max(known)


def _pinned(context: RunContext, loaders: list[Loader]) -> str:
    """Returns how to pin batches, by what is known of their loaders."""
    if not loaders:
        return _BY_ITSELF
    if all(loader.pin_memory for loader in loaders):
        return "add a pin_memory() method to the batch's class"
    builders = {feeder.loader.built_by for feeder in context.feeding}
    if len(builders) != 1 or None in builders:
        return "DataLoader(..., pin_memory=True)"
    return call_with(context.feeding[0].loader, {"pin_memory": True})


RULE: Final = Rule(
    id="blocking_copies",
    thresholds={"share": Threshold(0.1, "of training, the GPU idle during copies (TraceML)")},
    find=find,
    explanation=__doc__,
    order=90,
    traits=RuleTraits(keys=["transfer"], action="Make copies faster or fewer"),
)
