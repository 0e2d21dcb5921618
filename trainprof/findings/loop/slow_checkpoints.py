"""Saving and loading checkpoints interrupts training.

What it means: torch.save, torch.load and the save functions of libraries run in the training
thread. Training waits until they return.

How it is measured: trainprof times torch.save, torch.load, safetensors' save functions and
torch.distributed.checkpoint's save, by line. Whole checkpoints of Hugging Face's and Lightning's
Trainer and of accelerate's save_state are timed too, with the copies from a GPU. A torch.load
inside a dataset counts as data loading. Other writers are not seen, nor a library imported after
the first update until it saves by one of these functions.

When it is wrong: a page cache can take the bytes at once and write them during the next save.

What to do: save less often, or less: weights without optimizer state, where these are enough. Or
save in the background with torch.distributed.checkpoint.async_save, which copies first. A thread of
your own needs copies too ({k: v.detach().clone() for k, v in ...}), as the next steps change the
tensors of a state_dict(). Load once before the loop, or in a dataset that workers read.
torch.load(..., mmap=True) reads only what is used.
"""

from __future__ import annotations

from typing import Final

from trainprof.analysis.summary.finding import Finding, RuleTraits, Threshold
from trainprof.analysis.summary.levels import pair, percent, size
from trainprof.findings.gain import outside_steps, plain_finding
from trainprof.findings.rule import Rule
from trainprof.findings.run_context import RunContext
from trainprof.findings.wording import number_of, span
from trainprof.record.schema import Writer

_LOADS_ONCE: Final = "load before the loop, or in a dataset that DataLoader workers read"
_IN_BACKGROUND: Final = "save less often, or with torch.distributed.checkpoint.async_save"
# The arguments that set how often a library saves.
_SETTINGS: Final = {
    Writer.TRANSFORMERS: "TrainingArguments(..., save_steps=...) with a larger number",
    Writer.LIGHTNING: "ModelCheckpoint(..., every_n_train_steps=...) with a larger number",
}


def find(context: RunContext) -> Finding | None:
    least = RULE.threshold(context.settings, "share")
    spent_s, part = context.training.get("checkpoint", 0.0), context.share("checkpoint")
    if part < least:
        return None
    calls = context.checkpoints
    is_loading = calls.load_s > calls.save_s
    called = [calls.called] if calls.saves or not calls.loads else []
    called += ["torch.load"] if calls.loads else []
    times = number_of(calls.saves + calls.loads, "call")
    of = "" if calls.saved_bytes is None else f" of {size(calls.saved_bytes)}"
    each = f", {span(calls.save_s / calls.saves)} for each save{of}" if calls.saves else ""
    by_library = next((_SETTINGS[x] for x in calls.writers if x in _SETTINGS), _IN_BACKGROUND)
    return plain_finding(
        RULE.id,
        f"{times} of {' and '.join(called)} {'takes' if times == '1 call' else 'take'} "
        f"{pair(spent_s, context.training_s)} of training ({percent(part)}){each}",
        outside_steps(context, context.held_up_s("checkpoint", "checkpoint_s")),
        site=calls.site,
        action="Load each file once, before the loop" if is_loading else "",
        advice=_LOADS_ONCE if is_loading else by_library,
        also=[] if is_loading else [f"saving half as often saves {span(spent_s / 2)}"],
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


RULE: Final = Rule(
    id="slow_checkpoints",
    thresholds={"share": Threshold(0.03, "of training")},
    find=find,
    explanation=__doc__,
    order=130,
    traits=RuleTraits(keys=["checkpoint"], action="Save checkpoints less often"),
    noise_matters=False,
    lines_behind=4,
)
