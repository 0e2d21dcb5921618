"""What the tests on a real device share.

One after the other, for some of them measure, with `-s` for their figures, and without a plugin
that warns of parallel runs (`pytest -s -rA -p no:benchmark tests/gpu`): some six minutes.

They are skipped where there is none. What they share with it can be tried on the simulated one:

    export TEST_DEVICE=simgpu TEST_SIMGPU=<its library> PYTHONPATH=$PWD/tests/support/simgpu
    pytest tests/gpu
"""

from __future__ import annotations

import os

import pytest
import torch
from support.on_device import VARIABLE


@pytest.fixture(scope="session")
def device() -> str:
    """The type of the device to test on; asking for it starts nothing there."""
    if VARIABLE in os.environ:
        return os.environ[VARIABLE]
    if not torch.cuda.is_available():
        pytest.skip("no GPU that torch can use")
    return "cuda"


@pytest.fixture(scope="session")
def cuda(device: str) -> str:
    """For what only CUDA has."""
    if device != "cuda":
        pytest.skip("only CUDA has it")
    return device
