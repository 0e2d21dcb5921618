"""The model computes in float64.

What it means: its parameters are double precision (64 bits), so that torch computes everything in
it. On a CPU that is twice the memory to move and half as many numbers in each vector instruction,
and convolutions take torch's slow way, as the library that it has for them (oneDNN) knows no
float64; on a GPU from a half to a sixty-fourth of the speed of float32. It happens where data comes
from NumPy, whose floats are double, and the model was made to fit it: .double(), torch.float64,
torch.set_default_dtype.

How it is measured: by the type of most of what the optimizer updates, at its first step. What
float32 would give is not measured: half of computing on a CPU is the most that it can be where
memory and vector units are what computing waits for. Where parameters have three dimensions and
more, as those of convolutions do, it may be nine tenths: single ones took 2 to 27 times as long in
float64 (in three dimensions, the longest), small networks 3 to 9 times.

Nothing is said where the script's files name a decomposition (Cholesky, eigenvalues, a linear
system, a determinant, lgamma) or GPyTorch: double precision is meant there.

When it is wrong: where it is meant for another reason (physics, ill-conditioned problems), and
where tensors are so small that calls take longer than computing.

What to do: float32 data (array.astype(numpy.float32), tensor.float()) and a model that was not made
double. The losses change in the seventh digit.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from trainprof.analysis.summary.finding import Finding, RuleTraits, Threshold
from trainprof.analysis.summary.levels import percent
from trainprof.analysis.summary.run import COMPUTE_KEYS
from trainprof.findings.gain import Gain, plain_finding, python_gain, unmeasured_finding
from trainprof.findings.rule import Rule
from trainprof.findings.run_context import RunContext

# Of computing on a CPU, likely and at most: half the bytes, and twice the numbers in a vector.
_SAVED: Final = (0.5, 0.5)
# With convolutions. torch 2.13, one core of a Xeon, forward and backward: networks of some layers
# took 3.2 to 9.3 times as long as in float32; single layers of two dimensions (32 to 32 channels,
# 3 x 3, 48 x 48, batches of 16, and the like) 2.3 to 14, of three dimensions up to 27 times.
_SAVED_WITH_CONVOLUTIONS: Final = (0.75, 0.9)
_ADVICE: Final = (
    "float32 data and model: array.astype(numpy.float32) or tensor.float(), without .double(), "
    "torch.float64 or torch.set_default_dtype"
)
_CAUTION: Final = "the numbers change from the seventh digit on: not where double is meant"


def find(context: RunContext) -> Finding | None:
    numerics = context.torch.numerics
    if numerics is None or numerics.parameters != "float64":
        return None
    if context.torch.decomposes_in_float64:
        return None
    part = _computing(context)
    if part is None or part < RULE.threshold(context.settings, "share"):
        return None
    title = f"the model computes in float64: {percent(part)} of {context.summary.time_of_devices}"
    evidence = {"computing_share": part}
    site = numerics.sites[0] if len(numerics.sites) == 1 else None
    also = [f"it may be made so by {' or '.join(numerics.sites)}"] if numerics.sites[1:] else []
    if context.is_on_device:
        return unmeasured_finding(
            RULE.id,
            title,
            site=site,
            advice=_ADVICE,
            cautions=[_CAUTION],
            also=also,
            evidence=evidence,
        )
    gain = _gain(context, part)
    if gain is None:
        return None
    return plain_finding(
        RULE.id,
        title,
        gain,
        site=site,
        advice=_ADVICE,
        cautions=[_CAUTION],
        also=also,
        evidence=evidence,
    )


def _gain(context: RunContext, part: float) -> Gain | None:
    """Returns what float32 gives at most of computing's part of training, and what is likely."""
    saved = _SAVED_WITH_CONVOLUTIONS if context.torch.convolves_in_float64 else _SAVED
    likely, most = (python_gain(context, x * part * context.training_s) for x in saved)
    if likely is None or most is None:
        return None
    return replace(most, likely=likely.likely, saved_s=likely.saved_s)


def _computing(context: RunContext) -> float | None:
    """Returns the share of training in which the model computes; None where it is not known."""
    return (
        context.summary.device_busy_share if context.is_on_device else context.share(*COMPUTE_KEYS)
    )


RULE: Final = Rule(
    id="double_precision",
    thresholds={"share": Threshold(0.1, "of training, computing: on a GPU, at work")},
    find=find,
    explanation=__doc__,
    order=230,
    traits=RuleTraits(keys=[*COMPUTE_KEYS], gain="estimate"),
    saves_in_steps=True,
)
