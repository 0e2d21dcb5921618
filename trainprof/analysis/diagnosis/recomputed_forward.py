"""The forward is computed a second time in each backward, and most of memory is free.

What it means: with activation checkpointing (torch.utils.checkpoint, gradient_checkpointing of
Hugging Face) a forward keeps little of what it computes, and backward computes it again. That is
for models that do not fit into memory otherwise. A smaller one pays for it, and needs it not.

How it is measured: modules and losses called inside a backward pass, from their calls to their
ends; on a GPU by the device's own time for them, and as much again where that waits for the host,
for what torch does around each. Memory: on a GPU the most that torch's allocator had taken, of what
it may take; on a CPU the most that the run had in use, beside what was free at the least. It is
told where a fifth was in use at the most, and where torch.utils.checkpoint was at work or a line of
the script's files asks for it: other code that calls modules in a backward (adjoints, reversible
layers) means to. A setting that comes from an argument or a file has no line.

When it is wrong: what would be kept nobody has measured. If it is more than what is free, the
change ends in a lack of memory, and to checkpoint fewer layers may still gain some. Where a larger
batch is meant to come, or a larger model.

What to do: leave it out, or checkpoint fewer layers. What is left over of memory may also go into
larger batches.
"""

from __future__ import annotations

from typing import Final

from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.diagnosis.gains import of_python
from trainprof.analysis.diagnosis.plain import plain_finding
from trainprof.analysis.diagnosis.rule import Threshold
from trainprof.analysis.diagnosis.wording import size, span
from trainprof.analysis.facts import number_at
from trainprof.analysis.finding import Finding

ID: Final = "recomputed_forward"
KEYS: Final[tuple[str, ...]] = ("recompute",)
THRESHOLDS: Final = {
    "share": Threshold(0.05, "of training, computing forwards again"),
    "memory_used_share": Threshold(0.2, "of memory, at the peak", is_upper=True),
}
_HUGGING_FACE: Final = "transformers"
# What torch.utils.checkpoint does around a forward takes the host as long again (random states that
# are kept, set and set back; hooks on what is saved): 12 blocks of GPT-2, 16 x 256 tokens, on an
# H200 that waited for the host.
_WITH_ITS_ROUND: Final = 2.0
# Of backward passes: from here on the device is taken to keep up with the host.
_OFTEN_DRY: Final = 0.5


def find(case: Case) -> Finding | None:
    spent_s, memory = _spent_s(case), _free_memory(case)
    gain = of_python(case, _saved_s(case, spent_s), with_warmup=False)
    if not _is_much(case, spent_s) or memory is None or gain is None:
        return None
    used, whole = memory
    sites = case.torch.recomputes_at
    return plain_finding(
        ID,
        f"forwards are computed again in backward, to save memory: {span(spent_s)}, "
        f"{case.of_settled(spent_s)}, with {size(used)} of {size(whole)} in use at the most",
        gain,
        site=sites[0] if len(sites) == 1 else None,
        advice=_advice(case),
        cautions=[
            "what a forward gives is kept until backward then, and how much that is nobody has "
            "measured: if memory does not last, leave it on for some layers"
        ],
        also=[f"it is asked for at {' and '.join(sites)}"] if len(sites) > 1 else [],
        evidence={
            "recompute_s": spent_s,
            "recompute_share": spent_s / case.settled_s,
            "memory_used_bytes": used,
            "memory_bytes": whole,
        },
    )


def launched_again_s(case: Case) -> float:
    """Returns for how long a device that keeps up is given forwards again, where that is told."""
    spent_s = _spent_s(case)
    if not _keeps_up(case) or not _is_much(case, spent_s) or _free_memory(case) is None:
        return 0.0
    return _saved_s(case, spent_s)


def _is_much(case: Case, spent_s: float) -> bool:
    least_s = case.threshold(ID, "share", THRESHOLDS["share"].value) * case.settled_s
    is_asked_for = bool(case.torch.recomputes_at) or case.torch.is_checkpointing
    return is_asked_for and case.settled_s > 0 and spent_s > 0 and spent_s >= least_s


def _saved_s(case: Case, spent_s: float) -> float:
    """Returns what goes with it: where a device keeps up, what the host does around it, too."""
    if not _keeps_up(case):
        return spent_s
    backward_s = max(one.seconds.get("backward", 0.0) for one in case.summary.devices or ())
    return min(spent_s * _WITH_ITS_ROUND, spent_s + backward_s)


def _keeps_up(case: Case) -> bool:
    devices = case.summary.devices or ()
    return any(one.ran_dry.get("backward", 0.0) >= _OFTEN_DRY for one in devices)


def _spent_s(case: Case) -> float:
    if not case.is_on_device:
        return case.training.get("recompute", 0.0)
    told = [device.seconds.get("recompute", 0.0) for device in case.summary.devices or ()]
    return max(told, default=0.0)


def _free_memory(case: Case) -> tuple[float, float] | None:
    """Returns what is in use and all there is, None where more may be needed, or nobody knows."""
    memory = _memory(case)
    most = case.threshold(ID, "memory_used_share", THRESHOLDS["memory_used_share"].value)
    return None if memory is None or memory[0] > most * memory[1] else memory


def _memory(case: Case) -> tuple[float, float] | None:
    """Returns the most that was in use, and how much there is for the run; None: not known."""
    if case.is_on_device:
        known = [
            (float(memory.peak_reserved_bytes), float(memory.limit_bytes))
            for device in case.summary.devices or ()
            if (memory := device.memory) is not None
            and memory.peak_reserved_bytes
            and memory.limit_bytes
            and not memory.is_peak_sampled
        ]
        return max(known, key=lambda one: one[0] / one[1], default=None)
    told = case.summary.system.memory if case.summary.system else {}
    used = number_at(told, "tree_pss_bytes", "max") or number_at(told, "tree_rss_bytes", "max")
    free = number_at(told, "host_available_bytes", "min")
    if used is None or free is None:
        return None
    limits = (number_at(told, name) or used + free for name in ("host_total_bytes", "limit_bytes"))
    return used, min(used + free, *limits)


def _advice(case: Case) -> str:
    if case.has_loader_of(_HUGGING_FACE):
        return (
            "TrainingArguments(..., gradient_checkpointing=False), and no "
            "model.gradient_checkpointing_enable()"
        )
    return "leave activation checkpointing out (torch.utils.checkpoint), or to fewer layers"
