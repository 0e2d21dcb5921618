"""The GPU computes in full float32 precision, without its tensor cores.

What it means: NVIDIA GPUs since Volta have tensor cores, which multiply matrices several times
faster than float32 units. torch uses them for float16 and bfloat16, and for float32 where TF32 is
allowed (since Ampere). By default matmuls stay in full float32, while convolutions may use TF32.

How it is measured: from settings, without a rerun. Parameters are float32, matmul precision is
"highest" at the first update, and compute capability is 7.0 or higher. One graph of backward has no
matmul or convolution in float16 or bfloat16, as autocast would produce them. The GPU is busy most
of the time, mostly in forward and backward. The gain is not measured. PyTorch documents one large
matmul 7x faster in TF32 (A100), and whole trainings 1.5x to 5.5x faster in float16 (V100). Layers
of width 4096 trained 5.3x faster with TF32 on an H200.

When it is wrong: where small or memory-bound operators take most of the time, tensor cores save
little. Keep float32 if your method needs 24 bits of precision (physics, ill-conditioned matrices).
Nothing is reported where parts are compiled or recomputed, as their operators are hidden, or where
most products are convolutions that may use TF32.

What to do: call torch.set_float32_matmul_precision("high") before training. Or put torch.autocast
around forward and loss, which also halves the memory of activations. TF32 keeps float32's range and
10 of its 23 mantissa bits. bfloat16 keeps 7, and float16 needs torch.amp.GradScaler. Compare the
final loss of a whole training. `trainprof tune --allow-numerics` measures TF32, and autocast if
your code uses it.
"""

from __future__ import annotations

from typing import Final

from trainprof.analysis.summary.code import TENSOR_CORES_FROM, TF32_FROM, Numerics
from trainprof.analysis.summary.finding import Finding, RuleTraits, Threshold
from trainprof.analysis.summary.levels import percent
from trainprof.analysis.summary.run import COMPUTE_KEYS
from trainprof.findings.gain import unmeasured_finding
from trainprof.findings.rule import Rule
from trainprof.findings.run_context import RunContext

_PASSES: Final = ("forward", "loss", "backward", "recompute")
_TF32: Final = 'torch.set_float32_matmul_precision("high")'
_BFLOAT16: Final = 'torch.autocast("cuda", dtype=torch.bfloat16) around forward and loss'
_FLOAT16: Final = 'torch.autocast("cuda", dtype=torch.float16), with torch.amp.GradScaler'
# PyTorch: "CUDA semantics" (one 10240 x 10240 matmul on an A100, 0.016 s of 0.11 s), and the blog
# "Accelerating Training on NVIDIA GPUs with PyTorch Automatic Mixed Precision" (V100, whole runs).
_TF32_GAINS: Final = "PyTorch measured a large matmul 7x faster in TF32 (A100)"
_AMP_GAINS: Final = "PyTorch measured whole trainings 1.5x to 5.5x faster with autocast (V100)"
_CAUTION: Final = "results change slightly: compare the final loss of a whole training"


def find(context: RunContext) -> Finding | None:
    numerics, busy = context.torch.numerics, context.summary.device_busy_share
    if numerics is None or busy is None or not _is_full(numerics):
        return None
    spent = context.summary.devices[0].seconds if context.summary.devices else {}
    passes = sum(spent.get(key, 0.0) for key in _PASSES) / (sum(spent.values()) or 1.0)
    if busy < RULE.threshold(context.settings, "busy_share"):
        return None
    if spent and passes < RULE.threshold(context.settings, "passes_share"):
        return None
    has_tf32 = numerics.major >= TF32_FROM
    settings = "TF32 off, no autocast" if has_tf32 else "no autocast"
    what = "matmuls in" if has_tf32 else "in"
    return unmeasured_finding(
        RULE.id,
        f"the GPU is busy at least {percent(busy)} of {context.summary.time_of_devices} and "
        f"computes {what} full float32 precision ({settings}), without tensor cores",
        advice=f"{_TF32}, or {_BFLOAT16}" if has_tf32 else _FLOAT16,
        cautions=[_CAUTION],
        also=[_TF32_GAINS, _AMP_GAINS] if has_tf32 else [_AMP_GAINS],
        evidence={"busy_share": busy, "passes_share": passes if spent else None},
    )


def _is_full(numerics: Numerics) -> bool:
    """Whether products that tensor cores could compute are in full float32 precision."""
    seen = numerics.operators
    if seen is None or seen.lower or seen.opaque or numerics.parameters != "float32":
        return False
    if numerics.major < TF32_FROM:
        return numerics.major >= TENSOR_CORES_FROM and seen.matmuls + seen.convolutions > 0
    # In a network of convolutions its few matmuls hardly matter.
    is_matmuls = seen.matmuls > seen.convolutions or numerics.convolutions_tf32 is False
    return numerics.may_use_tf32 and is_matmuls


RULE: Final = Rule(
    id="full_precision",
    thresholds={
        "busy_share": Threshold(0.5, "of training: the GPU is busy"),
        "passes_share": Threshold(0.5, "of the GPU's time, in forward and backward"),
    },
    find=find,
    explanation=__doc__,
    order=235,
    traits=RuleTraits(
        keys=[*COMPUTE_KEYS],
        changes_numbers=True,
        action="Allow TF32 or bfloat16 matmuls",
    ),
)
