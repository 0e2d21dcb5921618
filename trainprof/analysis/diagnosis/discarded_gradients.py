"""Backward computes gradients that are set back before their optimizer makes a step.

What it means: a script with several optimizers has passes of backward that are meant for one of
them, and go through what others train: the discriminator's pass that goes on into the generator, as
nobody called .detach(), or the actor's that computes the gradients of the critic it goes through.
zero_grad() throws them away before their optimizer steps.

How it is measured: of a few backward passes the graph is gone through and its parts are timed;
ahead of the passes that follow it is looked at what has become of their gradients. Those count that
are gone while their parameters stayed as they were, if nothing ever came of such ones of the same
line, and the pass served another optimizer. What only they need is saved whole, what they share
with others up to half.

When it is wrong: where a library reads these gradients without changing the parameters; where the
script does, nothing is told.

What to do: where a pass goes on into another model, .detach() what that one gave to its loss; where
it goes through one, which has to stay, .requires_grad_(False) on that one's parameters for as long.
Or loss.backward(inputs=[p for p in model.parameters() if p.requires_grad]) with what that pass is
to train: nothing else is then computed. What is trained stays the same to the bit, unless gradients
are clipped together with those: what is set back was in that norm, too. Of frozen parameters torch
takes none as inputs= (can't retain_grad on Tensor that has requires_grad=False), nor does it work
under DistributedDataParallel, and where activations are checkpointed (with use_reentrant=True torch
refuses it, or gives no gradient).
"""

from __future__ import annotations

from typing import Final

from trainprof.analysis.diagnosis.backward_gain import gain_of, saved_of_backward
from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.diagnosis.plain import plain_finding
from trainprof.analysis.diagnosis.rule import Threshold
from trainprof.analysis.diagnosis.wording import called_from, number_of, span
from trainprof.analysis.finding import Finding
from trainprof.analysis.unused_gradients import DiscardedGradients, PartOfModel
from trainprof.analysis.verdict_level import percent

ID: Final = "discarded_gradients"
KEYS: Final[tuple[str, ...]] = ("backward",)
THRESHOLDS: Final = {
    "share": Threshold(0.03, "of training: what backward does for them"),
}
_CLIPPED: Final = (
    "gradients are clipped: where these are in one norm with those that are used, updates change"
)


def find(case: Case) -> Finding | None:
    told = case.torch.discarded
    if not told:
        return None
    unused, mixed = (
        sum(getattr(one, name) for one in told) for name in ("unused_share", "mixed_share")
    )
    savings_s = saved_of_backward(case, unused, mixed)
    part = savings_s[1] / case.training_s if case.training_s > 0 else 0.0
    if part < case.threshold(ID, "share", THRESHOLDS["share"].value):
        return None
    gain = gain_of(case, savings_s, is_of_whole_run=all(one.is_of_whole_run for one in told))
    if gain is None:
        return None
    first = told[0]
    return plain_finding(
        ID,
        f"this backward{called_from(first.called_from)} also computes {_gradients(first)}, which "
        "are thrown away "
        f"unused (zero_grad()): about {span(savings_s[1])}{_in_all(told)}, {percent(part)} of "
        "training",
        gain,
        site=first.site,
        advice=_advice(case, first),
        cautions=[_CLIPPED] if case.clips_gradients else [],
        also=[_also(one, first) for one in told[1:]],
        evidence={
            "backward_s": case.training.get("backward", 0.0),
            "unused_share_of_backward": unused,
            "mixed_share_of_backward": mixed,
            "parameters": sum(one.parameters for one in told),
            "numbers": sum(one.numbers for one in told),
            "lines": len(told),
            "passes_looked_at": sum(one.looks for one in told),
        },
    )


def _gradients(told: DiscardedGradients) -> str:
    model = told.models[0] if told.models else None
    if model is None:
        return f"gradients of {number_of(told.parameters, 'parameter')} of another optimizer"
    return f"gradients of {_named(model)}"


def _in_all(told: list[DiscardedGradients]) -> str:
    return " with those below" if len(told) > 1 else ""


def _advice(case: Case, told: DiscardedGradients) -> str:
    if not _works_with_inputs(case):
        return _cut_off(told)
    return (
        f"{_cut_off(told)}; or .backward(inputs=[p for p in model.parameters() if p.requires_grad])"
        f" with those of {_kept(told)} alone"
    )


def _cut_off(told: DiscardedGradients) -> str:
    """Returns what keeps a pass from these gradients and leaves those that are used."""
    model = told.models[0].name if told.models else "the other model"
    if told.goes_through:
        return f".requires_grad_(False) on the parameters of {model} for this pass, True behind it"
    return f"give this loss what {model} gives with .detach()"


def _works_with_inputs(case: Case) -> bool:
    """Whether nothing is known of the run that backward does not do for chosen parameters alone."""
    return not (case.torch.is_data_parallel or case.recomputes_forwards)


def _also(told: DiscardedGradients, first: DiscardedGradients) -> str:
    at = (
        "of another line" if told.site is None else f"at {told.site}{called_from(told.called_from)}"
    )
    said = f"so it is {at} with {_gradients(told)}: that pass needs those of {_kept(told)} alone"
    if told.goes_through == first.goes_through:
        return said
    # What is right for the first would be wrong here: it may leave nothing to learn from.
    return f"{said}, so there {_cut_off(told)}"


def _named(model: PartOfModel) -> str:
    """Returns a model's class and the line that calls it: many are but a Sequential."""
    return model.name if model.site is None else f"{model.name} (called at {model.site})"


def _kept(told: DiscardedGradients) -> str:
    """Returns what the pass is for; named only where the names are all there is."""
    names = [
        _named(one) if one.told == one.parameters else f"{', '.join(one.parts)} in {_named(one)}"
        for one in told.kept
        if not one.more_parts
    ]
    if not names or len(names) < len(told.kept):
        return "all that it is to train"
    return " and ".join(names)
