"""The model computes in float64.

What it means: the parameters are double precision, so torch computes everything in it. On a CPU
that doubles the memory traffic and halves each vector instruction; convolutions take a slow path,
as oneDNN has no float64. On a GPU the speed is a half to a sixty-fourth of float32. It often comes
from NumPy, whose floats are double, and a model converted to match: .double(), torch.float64,
torch.set_default_dtype.

How it is measured: trainprof reads the type of the parameters at the optimizer's first step. The
gain is an estimate: half of computing on a CPU, up to nine tenths with convolutions. Single
convolutions took 2 to 27 times longer in float64, small networks 3 to 9 times longer. Nothing is
reported if your files name a decomposition (Cholesky, eigenvalues, a linear system, a determinant,
lgamma) or GPyTorch.

When it is wrong: the problem may need double precision (physics, ill-conditioned systems). With
small tensors calls take longer than computing, and float32 gains little.

What to do: convert the data (array.astype(numpy.float32), tensor.float()) and remove what makes the
model double. Results change from the seventh digit on.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from trainprof.analysis.summary.finding import Finding, RuleTraits, Threshold
from trainprof.analysis.summary.levels import percent
from trainprof.analysis.summary.run import COMPUTE_KEYS
from trainprof.findings.gain import Gain, plain_finding, python_gain, unmeasured_finding
from trainprof.findings.rule import Rule
from trainprof.findings.run_context import RunContext

# Of computing on a CPU, likely and at most: half the bytes, twice the numbers in a vector.
_SAVED: Final = (0.5, 0.5)
# With convolutions, in times of float32 (torch 2.13, one core of a Xeon, forward and backward):
# networks of some layers 3.2 to 9.3; single layers of two dimensions (32 to 32 channels, 3 x 3,
# 48 x 48, batches of 16, and similar) 2.3 to 14, of three dimensions up to 27.
_SAVED_WITH_CONVOLUTIONS: Final = (0.75, 0.9)
_ADVICE: Final = (
    "convert data by .astype(numpy.float32) or .float(); remove .double(), torch.float64"
)


def find(context: RunContext) -> Finding | None:
    numerics = context.torch.numerics
    if numerics is None or numerics.parameters != "float64":
        return None
    if context.torch.decomposes_in_float64:
        return None
    part = _computing(context)
    if part is None or part < RULE.threshold(context.settings, "share"):
        return None
    takes = f"for which the GPU is busy {percent(part)} of {context.summary.time_of_devices}"
    if not context.is_on_device:
        takes = f"which takes {context.of_step(part * context.training_s, *COMPUTE_KEYS)}"
    title = f"the model computes in float64, {takes}"
    evidence = {"computing_share": part}
    site = numerics.sites[0] if len(numerics.sites) == 1 else None
    also = [f"float64 may be set at {' or '.join(numerics.sites)}"] if numerics.sites[1:] else []
    said: dict[str, Any] = {"site": site, "advice": _ADVICE, "also": also, "evidence": evidence}
    if context.is_on_device:
        return unmeasured_finding(RULE.id, title, **said)
    gain = _gain(context, part)
    return None if gain is None else plain_finding(RULE.id, title, gain, **said)


def _gain(context: RunContext, part: float) -> Gain | None:
    """Returns the gain of float32, likely and at most."""
    saved = _SAVED_WITH_CONVOLUTIONS if context.torch.convolves_in_float64 else _SAVED
    likely, most = (python_gain(context, x * part * context.training_s) for x in saved)
    if likely is None or most is None:
        return None
    return replace(most, likely=likely.likely, saved_s=likely.saved_s)


def _computing(context: RunContext) -> float | None:
    """Returns the share of training in which the model computes; None if unknown."""
    return (
        context.summary.device_busy_share if context.is_on_device else context.share(*COMPUTE_KEYS)
    )


RULE: Final = Rule(
    id="double_precision",
    thresholds={"share": Threshold(0.1, "of training, computing; on a GPU, busy")},
    find=find,
    explanation=__doc__,
    order=230,
    traits=RuleTraits(keys=[*COMPUTE_KEYS], action="Train in float32"),
    saves_in_steps=True,
)
