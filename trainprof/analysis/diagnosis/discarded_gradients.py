"""Backward computes gradients that are set back before their optimizer makes a step.

What it means: a pass that is meant for one optimizer goes through what others train: the
discriminator's goes on into the generator, as nobody called .detach(), or the actor's computes the
gradients of the critic. zero_grad() throws them away before their optimizer steps.

How it is measured: over some 20 updates it is compared which optimizers' gradients a pass writes,
and whether they are gone before that optimizer steps. Told are lines whose passes always lose one
optimizer's gradients, while another uses its own. The time is that of these passes, by the time of
the modules' forwards: all of a module's where nothing before it is trained, else about half.
Gradients that zero_grad(set_to_none=False) sets to zero tell nothing.

When it is wrong: where a library reads these gradients without changing the parameters; where the
script does, nothing is told.

What to do: where a pass goes on into another model, .detach() what that one gave to its loss; where
it goes through one, which has to stay, .requires_grad_(False) on that one's parameters for as long.
Or loss.backward(inputs=[p for p in model.parameters() if p.requires_grad]) with what that pass is
to train, which does not work under DistributedDataParallel, nor where activations are checkpointed.
What is trained stays the same to the bit, unless gradients are clipped together with those.
"""

from __future__ import annotations

from typing import Final

from trainprof.analysis.diagnosis.backward_gain import needless_finding
from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.diagnosis.rule import Threshold
from trainprof.analysis.diagnosis.wording import called_from, number_of
from trainprof.analysis.finding import Finding
from trainprof.analysis.needless_gradients import NeedlessGradients

ID: Final = "discarded_gradients"
KEYS: Final[tuple[str, ...]] = ("backward",)
THRESHOLDS: Final = {
    "share": Threshold(0.03, "of training: what backward does for them"),
}
_CLIPPED: Final = (
    "gradients are clipped: where these are in one norm with those that are used, updates change"
)


def find(case: Case) -> Finding | None:
    discarded = case.torch.discarded
    if not discarded:
        return None
    first, *others = discarded
    return needless_finding(
        case,
        ID,
        case.threshold(ID, "share", THRESHOLDS["share"].value),
        discarded,
        f"this backward{called_from(first.called_from)} also computes gradients of {_whose(first)},"
        f" which are thrown away unused (zero_grad()){', with those below' if others else ''}",
        site=first.site,
        advice=_advice(case, first),
        cautions=[_CLIPPED] if case.clips_gradients else [],
        also=[
            f"so it is at {one.site or 'another line'}{called_from(one.called_from)} with "
            f"gradients of {_whose(one)}: {_cut_off(one)}"
            for one in others
        ],
    )


def _whose(gradients: NeedlessGradients) -> str:
    if not gradients.model:
        return f"{number_of(gradients.parameters, 'parameter')} of another optimizer"
    called = f" (called at {gradients.model_site})" if gradients.model_site else ""
    return gradients.model + called


def _advice(case: Case, first: NeedlessGradients) -> str:
    if case.torch.is_data_parallel or case.recomputes_forwards:
        return _cut_off(first)
    inputs = ".backward(inputs=[p for p in model.parameters() if p.requires_grad])"
    return f"{_cut_off(first)}; or {inputs} with those of all that it is to train"


def _cut_off(gradients: NeedlessGradients) -> str:
    """Returns what keeps a pass from these gradients and leaves those that are used."""
    model = gradients.model or "the other model"
    if gradients.mixed_share:
        return f".requires_grad_(False) on the parameters of {model} for this pass, True behind it"
    return f"give this loss what {model} gives with .detach()"
