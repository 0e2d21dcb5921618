"""From which gain on a change is worth making."""

from __future__ import annotations

from typing import Final

# As a share of the pace. Less is not worth a change, nor can a run show it.
LEAST_GAIN: Final = 0.03
# By how much the halves of a run may differ by noise: beyond that the run changed in the midst.
MOST_NOISE: Final = 0.15
