"""Parts of a step that take longer and longer, from planted steps."""

from __future__ import annotations

import numpy as np
import pytest

from trainprof.analysis.diagnosis.trend import growth_of
from trainprof.analysis.steady import Steady
from trainprof.analysis.step_table import StepTable

MS = 1_000_000
EPOCHS, EACH = 3, 90


def steps(part_ms: np.ndarray, epochs: int = EPOCHS) -> tuple[np.ndarray, StepTable]:
    part = (part_ms * MS).astype(np.int64)
    wall = part + 20 * MS
    everything = np.ones(len(part), dtype=bool)
    epoch_of = np.repeat(np.arange(epochs), len(part) // epochs)
    return part, StepTable(
        wall,
        {"other": part},
        Steady(everything, 0),
        candidates=everything,
        paused=~everything,
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
