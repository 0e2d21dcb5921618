"""The device waits for copies between it and the host.

What it means: a batch is copied to the device while the device has nothing else to do. From memory
that is not pinned (pageable) each copy goes through a buffer and blocks the host: a pinned one is
faster, and non_blocking=True lets the host go on meanwhile. It still comes between the kernels of
two steps, for it waits in the same stream: only on a stream of its own it overlaps with them.

How it is measured: marks in the device's stream around each copy: time in which it did nothing but
copy, or had run dry while the host was in a copy. The line named is the one that cost most of that
in the training phase.

When it is wrong: where the bytes themselves are too many for the link. How much faster pinned
copies are is unknown before they are made: the gain is what cannot be exceeded. Copies of less than
64 KiB take their time for the way alone: the gain is what two in one would save.

What to do: what comes back to the host: bring less of it, and more rarely; several values at once
where each decides what comes next. Hugging Face's Trainer brings all logits of an evaluation,
unless preprocess_logits_for_metrics= makes less of them. What goes there: DataLoader(...,
pin_memory=True) and .to(device, non_blocking=True); copy a batch once, as one tensor; send bytes
(uint8) and convert them on the device; copy the next batch on another torch.cuda.Stream (with
wait_stream and record_stream). With non_blocking=True what is copied must stay as it is until the
device has it, and a copy back to the host must be waited for before it is read: a line that copies
both ways is not patched. Pinned batches take memory that cannot be swapped out, and a thread's time
for one more copy of each. Where the dataset or the collate function makes the copies, the loop is
to make them. Of a batch of a class of the script's own the loader pins what its pin_memory() method
returns.
"""

from __future__ import annotations

from typing import Any, Final

from trainprof.analysis.device.host_waits import dearest_in_training, idle_during_s
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
_BY_ITSELF: Final = ".pin_memory() on the tensor"
# CUDA's runtime (API synchronization behavior) takes up so much at once, pinned or not, and does
# not block for it: what such a copy takes is none of its bytes.
_SMALL_BYTES: Final = 64 << 10
# Of what small copies take: two in one.
_JOINED_SAVES: Final = 0.5
# A batch, or what has been made of one without growing: means may differ by the last of a pass.
_AS_LARGE_TIMES: Final = 1.05
_WRITTEN_AGAIN: Final = (
    "with non_blocking=True what is copied must not be written to before the device has it, as a "
    "buffer is that each step fills again"
)
_OWN_STREAM: Final = (
    "copy the next batch on a stream of its own (torch.cuda.Stream) while the device works on this "
    "one; or send fewer bytes: uint8 instead of float32, converted on the device"
)


def find(context: RunContext) -> Finding | None:
    least = RULE.threshold(context.settings, "share")
    spent_s = context.idle_s("copy_s") or 0.0
    if context.settled_s <= 0 or spent_s < least * context.settled_s:
        return None
    worst, are_several = dearest_in_training(context.summary.transfers)
    if worst is None:
        return None
    advice, gain_s, change = _advice(context, worst, spent_s)
    pageable, blocking = _is_pageable(worst), _is_blocking(worst)
    how = [word for word, holds in (("pageable", pageable), ("blocking", blocking)) if holds]
    count = worst.count if worst.in_training is None else worst.in_training
    copies = f"{count} {' '.join([*how, 'copies'])}"
    if are_several:
        copies = f"copies, most of it for the {copies} at {worst.site}"
    return plain_finding(
        RULE.id,
        f"the device waits {span(spent_s)}, {context.as_share(spent_s)}, for {copies}",
        outside_steps(context, gain_s),
        site=worst.site,
        advice=advice,
        change=change,
        cautions=[_WRITTEN_AGAIN] if "non_blocking" in advice else [],
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


def _advice(
    context: RunContext, worst: Transfer, spent_s: float
) -> tuple[str, float, dict[str, Any]]:
    """Returns what to do about copies, what that saves at most, s, and what to patch."""
    in_loader = any(feeder.loader.touches_device for feeder in context.feeding)
    if worst.direction == "d2h":
        advice = "bring fewer values back, and more rarely: add them up on the device meanwhile"
        return advice, spent_s, {}
    if worst.direction == "h2d" and in_loader and _is_pageable(worst):
        advice = f"{OFF_DEVICE}: what comes out of a loader on the CPU can be pinned"
        return advice, spent_s, {}
    if worst.direction == "h2d" and not in_loader and worst.is_made_there:
        advice = "make it on the device, by device= in the call of torch's that makes it"
        return advice, min(idle_during_s(worst), spent_s), {}
    if worst.direction == "h2d" and not in_loader and _each_bytes(worst) < _SMALL_BYTES:
        rows = [
            transfer
            for transfer in context.summary.transfers
            if transfer.direction == worst.direction
        ]
        small_s = sum(idle_during_s(row) for row in rows if _each_bytes(row) < _SMALL_BYTES)
        return (
            f"fewer and larger copies: with {size(_each_bytes(worst))} each it is not their bytes "
            "that take time. Several tensors, or those of several samples, in one",
            _JOINED_SAVES * min(small_s, spent_s),
            {},
        )
    return _of_batches(context, worst, spent_s, in_loader=in_loader)


def _of_batches(
    context: RunContext, worst: Transfer, spent_s: float, *, in_loader: bool
) -> tuple[str, float, dict[str, Any]]:
    """Returns what makes copies of batches, or of as large tensors, faster."""
    least = RULE.threshold(context.settings, "share")
    pageable, blocking, wait_s = _is_pageable(worst), _is_blocking(worst), _waited_s(context)
    is_waited_for = blocking and wait_s >= least * context.settled_s
    if not pageable and not is_waited_for:
        return _OWN_STREAM, spent_s, {}
    settings = context.builder()
    settings = settings if settings is not None and settings.copies else None
    to = ".to(device, non_blocking=True)"
    if settings is not None:
        to = settings.copies or ""
    elif worst.by_library_share > 0:
        to = "non_blocking=True for each tensor (a library makes the copies of this line)"
    elif _copies_back(context, worst):
        to = f"{to} for copies to the device alone"
    loaders = [loader for loader in context.summary.loaders if loader.role == TRAINING]
    may_be_batches = _may_be_batches(worst, loaders)
    change: dict[str, Any] = {}
    if pageable and may_be_batches and not all(loader.pin_memory for loader in loaders):
        change["pin_memory"] = True
    if blocking and not in_loader and to == ".to(device, non_blocking=True)":
        change["non_blocking"] = True
    if pageable:
        pinned = _pinned(context, loaders) if may_be_batches else _BY_ITSELF
        return f"{pinned} with {to}", spent_s, change
    return to if settings is None else f"{settings.call}(..., {to})", wait_s, change


def _is_pageable(copy: Transfer) -> bool:
    return copy.direction == "h2d" and copy.pinned_share < _MOSTLY


def _is_blocking(copy: Transfer) -> bool:
    # What comes back to the host is read there: it would be read too early.
    return copy.direction != "d2h" and copy.non_blocking_share < _MOSTLY


def _copies_back(context: RunContext, worst: Transfer) -> bool:
    """Whether a line copies the other way, too, or may in another part of the run."""
    rows = context.summary.transfers
    is_here = any(row.site == worst.site and row.direction == "d2h" for row in rows)
    return is_here or context.summary.run.part is not None


def _waited_s(context: RunContext) -> float:
    return sum(device.copy_wait_s for device in context.summary.devices or ())


def _each_bytes(copy: Transfer) -> float:
    return copy.bytes / max(copy.count, 1)


def _may_be_batches(worst: Transfer, loaders: list[Loader]) -> bool:
    """Whether what is copied is no larger than batches are, as far as that is known."""
    fetches = [loader.fetch for loader in loaders]
    known = [fetch.batch_bytes for fetch in fetches if fetch is not None and fetch.batch_bytes]
    if not known or len(known) < len(fetches):
        return True
    return _each_bytes(worst) <= _AS_LARGE_TIMES * max(known)


def _pinned(context: RunContext, loaders: list[Loader]) -> str:
    """Returns how batches come to be pinned, as far as it is known whose they are."""
    if not loaders:
        return _BY_ITSELF
    if all(loader.pin_memory for loader in loaders):
        return f"a pin_memory() method for the batch's own class, or {_BY_ITSELF},"
    builders = {feeder.loader.built_by for feeder in context.feeding}
    if len(builders) != 1 or None in builders:
        return "DataLoader(..., pin_memory=True)"
    return call_with(context.feeding[0].loader, {"pin_memory": True})


RULE: Final = Rule(
    id="blocking_copies",
    thresholds={"share": Threshold(0.1, "of training, the device idle for it (TraceML)")},
    find=find,
    explanation=__doc__,
    order=90,
    traits=RuleTraits(keys=["transfer"]),
)
