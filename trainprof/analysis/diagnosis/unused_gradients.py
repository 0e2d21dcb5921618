"""Backward computes gradients of parameters that no optimizer updates.

What it means: whatever requires a gradient gets one, whether somebody uses it or not. A teacher
that was not frozen, a network that a loss is computed with, a backbone of which the last layer
alone is trained: backward goes through all of them, keeps their activations until then, and adds
the results up in .grad.

How it is measured: of a few backward passes the graph is gone through and its parts are timed. A
parameter counts if it is in no optimizer and has a gradient that is never set back, or one that the
script sets back, but does not read, while its values stay. What only such parameters need is saved
whole, what they share with others (the weights of a layer that gradients go through) up to half.
Passes of autograd.grad, or under compiled autograd, tell nothing. On a GPU the gain is the most
that can be.

When it is wrong: where a library reads these gradients without changing the parameters.

What to do: .requires_grad_(False) on these parameters, once, before training. Gradients still go
through them to what is trained. torch.no_grad() around the call does the same where nothing that is
trained lies before it. If they were meant to learn, give them to the optimizer. Under activation
checkpointing with use_reentrant=True whatever goes into a checkpoint has to need a gradient, or
nothing inside learns: x.requires_grad_() there, or use_reentrant=False, ahead of freezing.
"""

from __future__ import annotations

from typing import Final

from trainprof.analysis.diagnosis.backward_gain import gain_of, saved_of_backward, spent_in
from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.diagnosis.plain import plain_finding
from trainprof.analysis.diagnosis.rule import Threshold
from trainprof.analysis.diagnosis.wording import number_of, span
from trainprof.analysis.finding import Finding
from trainprof.analysis.unused_gradients import PartOfModel, UnusedGradients
from trainprof.analysis.verdict_level import percent

ID: Final = "unused_gradients"
KEYS: Final[tuple[str, ...]] = ("backward",)
THRESHOLDS: Final = {
    "share": Threshold(0.03, "of training: what backward does for them"),
}
# Of the forward of what is no longer recorded: seen where activations are large (0.15 to 0.19).
_FORWARD_SAVES: Final = (0.0, 0.05, 0.2)
# torch gives a reentrant checkpoint no gradient where none of its inputs needs one.
_CHECKPOINTED: Final = (
    "activations are checkpointed: with use_reentrant=True nothing inside a checkpoint learns once "
    "what goes into it needs no gradient: use_reentrant=False first, or x.requires_grad_() on that "
    "(PEFT: model.enable_input_require_grads())"
)


def find(case: Case) -> Finding | None:
    told = case.torch.unused
    if told is None:
        return None
    savings_s = _savings_s(case, told)
    part = savings_s[1] / case.training_s if case.training_s > 0 else 0.0
    if part < case.threshold(ID, "share", THRESHOLDS["share"].value):
        return None
    gain = gain_of(case, savings_s, is_of_whole_run=told.is_of_whole_run)
    if gain is None:
        return None
    model = told.models[0] if told.models else None
    return plain_finding(
        ID,
        f"backward computes the gradients of {_whose(told, model)}, which no optimizer updates: "
        f"about {span(savings_s[1])}, {percent(part)} of training",
        gain,
        site=model.site if model is not None else None,
        advice=f".requires_grad_(False) on {_what(model)}, once, before training; or, if that was "
        "meant to learn, give it to the optimizer",
        cautions=[
            *([_CHECKPOINTED] if case.recomputes_forwards else []),
            "where these gradients are clipped together with others, or logged, that changes",
        ],
        also=_also(told),
        evidence={
            "backward_s": case.training.get("backward", 0.0),
            "unused_share_of_backward": told.unused_share,
            "mixed_share_of_backward": told.mixed_share,
            "parameters": told.parameters,
            "numbers": told.numbers,
            "passes_looked_at": told.looks,
        },
    )


def _savings_s(case: Case, told: UnusedGradients) -> list[float]:
    """Returns the seconds of training without them: at least, likely, at most."""
    forward_s = spent_in(case, "forward") * told.unused_share
    saved_s = saved_of_backward(case, told.unused_share, told.mixed_share)
    return [s + share * forward_s for s, share in zip(saved_s, _FORWARD_SAVES, strict=True)]


def _whose(told: UnusedGradients, model: PartOfModel | None) -> str:
    if model is None:
        return number_of(told.parameters, "parameter")
    if model.told == model.parameters:
        each = "the one parameter" if model.told == 1 else f"all {model.told} parameters"
        return f"{each} of {model.name}, called here"
    parts = ", ".join(model.parts) + (f" and {model.more_parts} more" if model.more_parts else "")
    whose = f"{parts} in {model.name}" if parts else model.name
    return f"{whose}, called here ({model.told} of its {model.parameters} parameters)"


def _what(model: PartOfModel | None) -> str:
    """Returns what is to be frozen, as far as names are known."""
    if model is None:
        return "those parameters"
    if model.told == model.parameters:
        return "that model"
    return f"its {model.parts[0]}" if len(model.parts) == 1 else "those parts of it"


def _also(told: UnusedGradients) -> list[str]:
    return [
        f"the same holds for {one.told} of the {one.parameters} parameters of {one.name}"
        + (f", called at {one.site}" if one.site is not None else "")
        for one in told.models[1:]
    ]
