"""Makes the simulated accelerator a device of this process: `tensor.to("simgpu")`.

torch imports this at the end of its own import, by the entry point beside this file.

Attributes:
    device: The extension: `set_costs_ns`, `set_emptying_ns`, `done` (start, end, device, stream,
        name of all work so far, ns of time.monotonic_ns), `synchronizations`.
"""

import importlib.util
import os
from typing import Any

import torch

_spec = importlib.util.spec_from_file_location("_simgpu", os.environ["TEST_SIMGPU"])
assert _spec is not None
assert _spec.loader is not None
device: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(device)


class _Module:
    is_available = staticmethod(lambda: True)
    is_initialized = staticmethod(device.has_worked)
    device_count = staticmethod(lambda: device.device_count)
    current_device = staticmethod(device.current_device)

    def __init__(self) -> None:
        self.empty_cache = device.empty_cache  # its own, as a module's

    _is_in_bad_fork = staticmethod(lambda: False)
    manual_seed_all = staticmethod(lambda seed: None)
    get_amp_supported_dtype = staticmethod(lambda: [torch.bfloat16, torch.float16])
    get_rng_state = staticmethod(lambda which=None: torch.get_rng_state())
    set_rng_state = staticmethod(lambda state, which=None: None)


torch.utils.rename_privateuse1_backend("simgpu")
torch._register_device_module("simgpu", _Module())
torch.utils.generate_methods_for_privateuse1_backend()


def begin() -> None:
    """What torch calls; importing this has done it all."""
