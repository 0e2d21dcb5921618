"""Parts of a step that take longer and longer, from planted steps."""

from __future__ import annotations

import numpy as np
import pytest

from trainprof.analysis.diagnosis.trend import growth_of
from trainprof.analysis.steady import Steady
from trainprof.analysis.step_table import StepTable

MS = 1_000_000
EPOCHS, EACH = 3, 90


def steps(
    part_ms: np.ndarray, epochs: int = EPOCHS, warmup: int = 0
) -> tuple[np.ndarray, StepTable]:
    part = (part_ms * MS).astype(np.int64)
    wall = part + 20 * MS
    everything = np.ones(len(part), dtype=bool)
    epoch_of = np.repeat(np.arange(epochs), len(part) // epochs)
    return part, StepTable(
        wall,
        {"other": part},
        Steady(everything, warmup),
        candidates=np.arange(len(part)) >= warmup,
        epoch_of=epoch_of,
        border=~everything,
        buffered=~everything,
        cycle=1,
    )


def test_what_begins_anew_with_each_epoch():
    grown = growth_of(*steps(np.tile(np.linspace(2, 14, EACH), EPOCHS)))
    assert grown is not None
    assert grown.is_of_epochs
    assert (grown.first_s, grown.last_s) == pytest.approx((0.0032, 0.0128), rel=0.03)


@pytest.mark.parametrize("epochs", [1, EPOCHS, 30])
@pytest.mark.parametrize("grows", [np.geomspace, np.linspace])
def test_what_goes_on_growing(epochs: int, grows):
    grown = growth_of(*steps(grows(1, 30, EPOCHS * EACH), epochs))
    assert grown is not None
    assert not grown.is_of_epochs
    assert grown.first_s < 0.005 < 0.012 < grown.last_s


def test_what_grows_is_no_warm_up():
    grown = growth_of(*steps(np.linspace(1, 55, 300), 1, warmup=150))
    assert grown is not None
    assert grown.first_s < 0.01
    # A start that is slow is one.
    slow = np.concatenate([np.full(60, 30.0), np.full(240, 8.0)])
    assert growth_of(*steps(slow, 1, warmup=60)) is None


@pytest.mark.parametrize(
    ("fifths", "is_told"),
    [
        ([8, 24, 37, 48, 47], True),  # the machine was quicker in the end
        ([8, 24, 22, 37, 48], True),
        ([8, 24, 12, 37, 48], False),
        ([8, 8, 30, 30, 29], False),  # of two phases
        ([8, 9, 9, 9, 30], False),
        ([8, 12, 14, 16, 15], False),
    ],
)
def test_what_grows_may_once_be_quicker(fifths: list[float], is_told: bool):
    part = np.repeat(np.array(fifths, dtype=float), 60)
    assert (growth_of(*steps(part, 1)) is not None) is is_told


@pytest.mark.parametrize(
    "part",
    [
        np.full(EPOCHS * EACH, 8.0),
        np.random.default_rng(1).exponential(8.0, EPOCHS * EACH),
        np.linspace(8, 9, EPOCHS * EACH),
        np.tile(np.linspace(0.1, 0.5, EACH), EPOCHS),  # of no matter
        np.tile(np.linspace(14, 2, EACH), EPOCHS),
        np.concatenate([np.linspace(2, 14, EACH), np.full(2 * EACH, 14.0)]),
        np.where(np.arange(EPOCHS * EACH) == 240, 5000.0, 8.0),  # one pause
    ],
)
def test_what_does_not(part: np.ndarray):
    assert growth_of(*steps(part)) is None


def test_few_steps_tell_nothing():
    assert growth_of(*steps(np.linspace(1, 30, 24), 1)) is None
