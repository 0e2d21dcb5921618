"""What the scripts here have in common: which way they train, and how long a step takes."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import torch

Batch = TypeVar("Batch")
# Steps before the clock starts: libraries are loaded, and memory is taken.
WARM_UP = 20


class Pace:
    """Times the steps of a loop as a whole, once they have warmed up."""

    step_s = 0.0

    def over(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        began, number = 0.0, 0
        for number, batch in enumerate(batches, 1):
            if number == WARM_UP + 1:
                torch.cuda.synchronize()
                began = time.perf_counter()
            yield batch
        torch.cuda.synchronize()
        self.step_s = (time.perf_counter() - began) / (number - WARM_UP)


def main(train: Callable[[bool, Pace], object]) -> None:
    """Trains as it is (`slow`), mended (`fast`), or both ways in turn (`both`); tells the paces."""
    asked = sys.argv[1] if len(sys.argv) > 1 else "slow"
    paces = {}
    for way in ("slow", "fast") if asked == "both" else (asked,):
        torch.manual_seed(0)
        pace = Pace()
        train(way == "fast", pace)
        paces[way] = pace.step_s
    print(json.dumps(paces))
