"""Backward computes gradients of parameters that no optimizer updates.

What it means: whatever requires a gradient gets one. Backward goes through a teacher that was not
frozen, or a backbone of which the last layer alone is trained, and adds the results up in .grad.

How it is measured: once, over some 20 updates, the parameters of the modules that the script calls
are compared with those of its optimizers. A parameter counts that is in none, and whose gradient
backward keeps adding to. The time is that of backward, by the time of the modules' forwards: all
of a module's where nothing before it is trained, else about half. On a GPU the gain is the most
that can be.

When it is wrong: where a library reads these gradients without changing the parameters.

What to do: .requires_grad_(False) on these parameters, once, before training. Gradients still go
through them to what is trained. If they were meant to learn, give them to the optimizer.
"""

from __future__ import annotations

from typing import Final

from trainprof.analysis.diagnosis.backward_gain import needless_finding
from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.diagnosis.rule import Threshold
from trainprof.analysis.diagnosis.wording import number_of
from trainprof.analysis.finding import Finding

ID: Final = "unused_gradients"
KEYS: Final[tuple[str, ...]] = ("backward",)
THRESHOLDS: Final = {
    "share": Threshold(0.03, "of training: what backward does for them"),
}
# torch gives a reentrant checkpoint no gradient where none of its inputs needs one.
_CHECKPOINTED: Final = (
    "activations are checkpointed: with use_reentrant=True nothing inside a checkpoint learns once "
    "what goes into it needs no gradient: use_reentrant=False first, or x.requires_grad_() on that "
    "(PEFT: model.enable_input_require_grads())"
)


def find(case: Case) -> Finding | None:
    unused = case.torch.unused
    if unused is None:
        return None
    whose = number_of(unused.parameters, "parameter")
    if unused.model:
        called = ", called here" if unused.model_site else ""
        whose += f"{'' if unused.is_all_of_model else ' in a part'} of {unused.model}{called}"
    frozen = "that model" if unused.model and unused.is_all_of_model else "those parameters"
    return needless_finding(
        case,
        ID,
        case.threshold(ID, "share", THRESHOLDS["share"].value),
        [unused],
        f"backward computes the gradients of {whose}, which no optimizer updates",
        site=unused.model_site,
        advice=f".requires_grad_(False) on {frozen}, once, before training; or, if that was meant "
        "to learn, give it to the optimizer",
        cautions=[
            *([_CHECKPOINTED] if case.recomputes_forwards else []),
            "where these gradients are clipped together with others, or logged, that changes",
        ],
    )
