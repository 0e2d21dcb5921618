"""Every test here leaves torch and the process as they were."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.data
from support.session import Recorder
from support.torch_owners import OWNERS

import trainprof
from trainprof.inside.catalogue import default_probes
from trainprof.inside.session import Probe

PACKAGE = f"{Path(trainprof.__file__).parent}{os.sep}"
# `torch.optim` deletes the name of this submodule.
OPTIMIZER = sys.modules["torch.optim.optimizer"]
Names = dict[str, Any]
# torch's own bookkeeping, and what it imports or computes at first use.
VOLATILE = {
    "__warningregistry__",
    "__slotnames__",
    "__annotations__",
    "_xpu",
    "hooked",
    "manual_seed",
}


def held() -> list[Names]:
    """Returns what each of the owners has by which name."""
    return [dict(vars(owner)) for owner in OWNERS]


def changed_in(owner: Any, before: Names, after: Names) -> list[str]:
    """Returns the callables that are not those of before, and those of ours that came."""
    differ = [name for name in before | after if after.get(name) is not before.get(name)]
    return [
        f"{owner.__name__}.{name}"
        for name in differ
        if name not in VOLATILE
        and (
            # A submodule that torch imports at first use is no trace of ours.
            _is_ours(after[name]) if name not in before else callable(before[name])
        )
    ]


def state() -> dict[str, Any]:
    return {
        "sys.meta_path": list(sys.meta_path),
        "gc.callbacks": list(gc.callbacks),
        # A worker queue's own thread ends some time after its iterator.
        "threads": {t for t in threading.enumerate() if t.name != "QueueFeederThread"},
        "signals": [signal.getsignal(n) for n in signal.valid_signals()],
        "trace": (sys.gettrace(), sys.getprofile()),
        "hooks": (
            list(OPTIMIZER._global_optimizer_pre_hooks.values()),
            list(OPTIMIZER._global_optimizer_post_hooks.values()),
        ),
    }


@pytest.fixture(autouse=True)
def _no_long_waits() -> Iterator[None]:
    """Torch waits 5 s for a worker whose batch, or a traceback with it, is still held."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.2)
        yield


@pytest.fixture(autouse=True, scope="session")
def torch_has_had_workers() -> None:
    """torch keeps a SIGCHLD handler from its first loader with workers on."""
    list(torch.utils.data.DataLoader([0], num_workers=1))


@pytest.fixture(autouse=True, scope="session")
def untouched_at_first() -> None:
    """Nothing of ours is there that no test has installed."""
    assert [v for owner in held() for v in owner.values() if _is_ours(v)] == []


@pytest.fixture(autouse=True)
def untouched() -> Iterator[None]:
    """Nothing of ours is left installed, before and after each test."""
    names, before = held(), state()
    yield
    after = state()
    changed = [name for name in before if before[name] != after[name]]
    for owner, earlier, later in zip(OWNERS, names, held(), strict=True):
        changed += changed_in(owner, earlier, later)
    assert changed == []


def _is_ours(value: Any) -> bool:
    if not callable(value):  # such as torch.classes, which has no attributes to ask for
        return False
    code = getattr(value, "__code__", None)
    return getattr(code, "co_filename", "").startswith(PACKAGE)


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    directory = tmp_path / "events"
    directory.mkdir()
    made = Recorder(directory, torch)
    yield made
    made.close()


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """This process is a group of one rank."""
    store = f"file://{tmp_path}/store"
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


Outcome = tuple[str, Any]


def outcome(action: Callable[[], Any]) -> Outcome:
    """What `action` did: its result, or its exception with the traceback as Python prints it."""
    try:
        return "returned", action()
    except BaseException:
        return "raised", traceback.format_exc()


@pytest.fixture
def same_with_us(recorder: Recorder) -> Callable[..., Any]:
    """Runs an action bare and under probes; both do the same. Returns the action's outcome."""

    def compare(action: Callable[[], Any], *probes: Probe) -> Any:
        recorder.stop()
        torch.manual_seed(0)
        bare = outcome(action), torch.get_rng_state()
        recorder.start(*(probes or default_probes()))
        torch.manual_seed(0)
        ours = outcome(action), torch.get_rng_state()
        assert _plain(ours[0]) == _plain(bare[0])
        assert torch.equal(ours[1], bare[1])
        return ours[0]

    return compare


def _plain(value: Any) -> Any:
    """Tensors as lists, so that == compares them to the bit."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return value
