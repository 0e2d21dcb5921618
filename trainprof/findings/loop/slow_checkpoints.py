"""Saving and loading checkpoints holds training up.

What it means: torch.save and torch.load, and what libraries save with, run in the training thread,
which computes nothing meanwhile.

How it is measured: the time inside torch.save and torch.load in the training phase, by line, and
inside what writes whole checkpoints and gathers what is to be written: the Trainers of Hugging Face
and of Lightning, accelerate's save_state, torch.distributed.checkpoint's save; and inside the
function that safetensors' save_file and save_model write by. What is copied from a device meanwhile
is part of it. What a dataset loads while its loader makes a batch is loading of data, and not
counted here. Checkpoints of other writers are not seen, nor what a library saves that the script
imports after its first update, until it has saved by one of those.

When it is wrong: a page cache that takes the bytes at once may write them when the next save comes.

What to do: save less often, save less (weights without optimizer state where that will do), or
write a copy in the background: to a local disk first, or by
torch.distributed.checkpoint.async_save, which copies by itself. Where most of it is torch.load:
load once, ahead of the loop, or in a dataset that workers read for a DataLoader, beside training;
torch.load(..., mmap=True) reads only what is used.
"""

from __future__ import annotations

from typing import Final

from trainprof.analysis.summary.finding import Finding, RuleTraits, Threshold
from trainprof.analysis.summary.levels import percent, size
from trainprof.analysis.timeline.checkpoints import Checkpoints
from trainprof.findings.gain import outside_steps, plain_finding
from trainprof.findings.rule import Rule
from trainprof.findings.run_context import RunContext
from trainprof.findings.wording import span
from trainprof.record.schema import Writer

_OF_A_COPY: Final = (
    "state_dict() gives the tensors themselves, which the next steps change: in the background "
    "write copies ({k: v.detach().clone() for k, v in ...}, of the optimizer's too), or use "
    "torch.distributed.checkpoint.async_save"
)
# Where a library is told how often.
_SAYS_HOW_OFTEN: Final = {
    Writer.TRANSFORMERS: "how often is said by save_steps= and save_strategy= of TrainingArguments",
    Writer.LIGHTNING: "how often is said by every_n_train_steps= and every_n_epochs= of "
    "ModelCheckpoint",
}


def find(context: RunContext) -> Finding | None:
    least = RULE.threshold(context.settings, "share")
    spent_s, part = context.training.get("checkpoint", 0.0), context.share("checkpoint")
    if part < least:
        return None
    calls = context.checkpoints
    return plain_finding(
        RULE.id,
        f"{_calls(calls)} {span(spent_s)}, {percent(part)} of training{_each(calls)}",
        outside_steps(context, context.held_up_s("checkpoint", "checkpoint_s")),
        site=calls.site,
        advice=_advice(calls, spent_s),
        cautions=_cautions(calls),
        also=[_SAYS_HOW_OFTEN[writer] for writer in calls.writers if writer in _SAYS_HOW_OFTEN],
        evidence={
            "checkpoint_s": spent_s,
            "checkpoint_share": part,
            "saves": calls.saves,
            "saved_by": calls.called if calls.saves else None,
            "save_s": calls.save_s,
            "saved_bytes": calls.saved_bytes,
            "loads": calls.loads,
            "load_s": calls.load_s,
        },
    )


def _advice(calls: Checkpoints, spent_s: float) -> str:
    if _is_mostly_loading(calls):
        return (
            "load once, ahead of the loop, what fits into memory; or read it in a dataset with "
            "workers, beside training"
        )
    return (
        f"save less often or less: half as often saves {span(spent_s / 2)}; or write in the "
        "background"
    )


def _cautions(calls: Checkpoints) -> list[str]:
    is_by_trainers = bool(calls.writers) and all(
        writer in _SAYS_HOW_OFTEN for writer in calls.writers
    )
    return [] if _is_mostly_loading(calls) or is_by_trainers else [_OF_A_COPY]


def _is_mostly_loading(calls: Checkpoints) -> bool:
    return calls.load_s > calls.save_s


def _calls(calls: Checkpoints) -> str:
    """Returns what was called how often, with its verb."""
    in_all = " in all" if len(calls.writers) > 1 else ""
    saves = f"{calls.called}, {_times(calls.saves)}{in_all}," if calls.saves else ""
    loads = f"torch.load, {_times(calls.loads)}," if calls.loads else ""
    if saves and loads:
        return f"{saves} and {loads} take"
    take = "take" if saves and in_all else "takes"
    return f"{saves or loads or 'saving and loading'} {take}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _each(calls: Checkpoints) -> str:
    if not calls.saves:
        return ""
    of = "" if calls.saved_bytes is None else f" of {size(calls.saved_bytes)}"
    return f": a save{of} takes {span(calls.save_s / calls.saves)}"


RULE: Final = Rule(
    id="slow_checkpoints",
    thresholds={"share": Threshold(0.03, "of training")},
    find=find,
    explanation=__doc__,
    order=130,
    traits=RuleTraits(keys=["checkpoint"]),
    noise_matters=False,
    lines_behind=4,
)
