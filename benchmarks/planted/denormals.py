"""Numbers that are too small for many CPUs, and those that are just large enough."""

from __future__ import annotations

import timeit
from functools import cache

import numpy as np

from planted.draw import Draw
from planted.script import EVERYWHERE, SAMPLERS, Case, Parts, script, whole_batches

# An operation on denormals takes CPUs that are slow with them some hundred times as long, and
# others as long as any.
_SLOW_TIMES = 8


@cache
def finding_of_denormals() -> str | None:
    """Returns what is to be found where they are computed with; on CPUs that are quick, nothing."""
    usual = np.full(4096, 0.5, dtype=np.float32)
    tiny = usual * np.float32(1e-40)
    usual_s = min(timeit.repeat(lambda: usual * usual, number=20, repeat=20))
    tiny_s = min(timeit.repeat(lambda: tiny * usual, number=20, repeat=20))
    return "tiny_numbers" if tiny_s > _SLOW_TIMES * usual_s else None


def decaying(scale: float, share: float, width: int, batch: int) -> Parts:
    """Returns sounds that have faded out towards their end.

    Args:
        scale: Of what is left there.
        share: Of each that is the end.
        width: Of the model's first layer.
        batch: Samples in one.
    """
    data = f"""\
{SAMPLERS}

def sounds(count):
    waves = torch.randn(count, 64)
    waves[:, {round(64 * (1 - share))}:] *= {scale}
    return TensorDataset(waves, torch.randn(count, 1))
"""
    return Parts(
        loader=whole_batches(90, batch).replace("samples(", "sounds("),
        data=data,
        model=f"nn.Sequential(nn.Linear(64, {width}), nn.Tanh(), nn.Linear({width}, 1))",
        compute_s=0.0,
        epochs=1,
        setup="torch.manual_seed(1)",
    )


def tiny_numbers(draw: Draw) -> Case:
    """What is left of sounds that have faded out is too small for the CPU."""
    share, width, batch = draw.between(0.2, 0.7), draw.one_of((512, 384, 768)), 256
    style = draw.one_of(EVERYWHERE)
    planted = f"{share:.0%} of the inputs are 1e-40, {width} numbers a layer".replace("%", " %")
    files = script(style, decaying(1e-40, share, width, batch))
    return Case("tiny_numbers", planted, style, files, finding_of_denormals(), no_line=True)
