"""How long planted scripts train, and what their parts take besides what is planted."""

from __future__ import annotations

from planted.draw import Draw

# What a step takes beside what is planted, and what a worker's batch takes to be handed over.
STEPPING_S, HANDING_OVER_S = 0.001, 0.003
# Of 60 to 120 steps, in so many passes.
PASSES = (2, 3, 4)


def pass_batches(draw: Draw, step_s: float, passes: int, least: int = 60) -> int:
    """Returns the batches of a pass: two seconds of training, and enough to judge it."""
    return max(round(2.0 / step_s), least) // passes + draw.whole(1, 8)


def enough_steps(planted_s: float) -> int:
    """Returns so many steps that the fault's line is looked at some 20 times, 25 times a second."""
    return max(round(0.8 / planted_s), 90)


def percent(share: float) -> str:
    return f"{share * 100:.0f} %"
