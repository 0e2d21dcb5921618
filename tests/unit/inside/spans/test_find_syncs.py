"""--find-syncs: what waits in native code is found by its line, and nobody notices the mode."""

from __future__ import annotations

import ctypes
import functools
import os
import types
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support import fake_device
from support.session import Recorder, Recording

from trainprof.inside.catalogue import default_probes
from trainprof.inside.session import Session
from trainprof.inside.spans.find_syncs import SKIPPED_STEPS, WINDOW_STEPS
from trainprof.record.schema import FoundSyncFlag, Kind, Topic

END = SKIPPED_STEPS + WINDOW_STEPS
SYNC = b"called a synchronizing CUDA operation (Triggered internally at CUDAFunctions.cpp:150.)"
NOTICE = b"Synchronization debug mode is a prototype feature and does not yet detect all"
FILE = "/work/train.py"

# The way in which torch's C++ code warns: on behalf of the Python frame that called it.
_warn_ex = ctypes.pythonapi.PyErr_WarnEx
_warn_ex.restype = ctypes.c_int
_warn_ex.argtypes = [ctypes.py_object, ctypes.c_char_p, ctypes.c_ssize_t]
WAITS = functools.partial(_warn_ex, UserWarning, SYNC, 1)


class SyncMode:
    """A device module with torch's sync debug mode, which warns where it is on."""

    def __init__(self) -> None:
        self.mode = 0
        self.history: list[int] = []
        self.notices = 0

    def set_sync_debug_mode(self, mode: int) -> None:
        self.notices += not torch.is_warn_always_enabled()
        _warn_ex(UserWarning, NOTICE, 1)
        self.mode = mode
        self.history.append(mode)

    def get_sync_debug_mode(self) -> int:
        return self.mode


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> SyncMode:
    fake_device.register()
    made = SyncMode()
    module = torch.fakegpu  # type: ignore[attr-defined]
    monkeypatch.setattr(module, "is_initialized", lambda: True, raising=False)
    for name in ("set_sync_debug_mode", "get_sync_debug_mode"):
        monkeypatch.setattr(module, name, getattr(made, name), raising=False)
    return made


def start(recorder: Recorder, **options: Any) -> Session:
    options = options or {"find_syncs": True}
    probes = (x for x in default_probes() if x.name in ("device_marks", "find_syncs"))
    return recorder.start(*probes, options=options)


@pytest.fixture
def session(device: SyncMode, recorder: Recorder) -> Session:
    return start(recorder)


class Script:
    """A module of the script's, whose only line waits for the device in C++ when it is on."""

    def __init__(self, device: SyncMode, name: str = "__main__") -> None:
        self.module = types.ModuleType(name)
        self.globals: dict[str, Any] = vars(self.module)
        self.globals.update(device=device, wait=WAITS)
        code = compile("def step():\n    device.mode and wait()\n", FILE, "exec")
        exec(code, self.globals)
        self.step: Callable[[], Any] = self.globals["step"]


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.0)


def train(steps: int, *in_each: Callable[[], Any]) -> None:
    own = optimizer()
    for _ in range(steps):
        for call in in_each:
            call()
        own.step()


def found_syncs(recording: Recording) -> list[tuple[str, int, int]]:
    return [(sync.text[0], sync.text[1], sync.flags) for sync in recording.of(Kind.FOUND_SYNC)]


def reasons(recorder: Recorder) -> int:
    """Returns how many reasons are noted why none were found."""
    return sum("no_found_syncs" in note for note in recorder.read().notes(Topic.ENVIRONMENT))


def test_calls_that_wait_are_found(recorder: Recorder, device: SyncMode, session: Session) -> None:
    script = Script(device)
    train(END + 5, script.step, script.step)
    recording = recorder.read()
    assert (device.history, device.notices) == ([1, 0], 0)
    assert not torch.is_warn_always_enabled()
    assert found_syncs(recording) == [(FILE, 2, 0)] * 2 * WINDOW_STEPS
    opened, closed = recording.of(Kind.SYNC_WINDOW)
    assert (opened.start, opened.end) == (closed.start, opened.start)
    assert (closed.site, closed.value) == (SKIPPED_STEPS, WINDOW_STEPS)
    assert opened.end < closed.end
    assert recording.notes(Topic.PROBE_FAILED) == []
    assert reasons(recorder) == 0


@pytest.mark.parametrize("block", [1, 10])
def test_its_steps_are_those_of_the_report(device: SyncMode, session: Session, block: int) -> None:
    """Of optimizers that take turns in blocks each update is one, else they make one together."""
    optimizers = [optimizer() for _ in range(2)]
    modes: list[int] = []
    for own in optimizers * (END + 5):
        for _ in range(block):
            own.step()
            modes.append(device.mode)
    per_step = 2 if block == 1 else 1
    begins = (SKIPPED_STEPS - 1) * per_step
    window = [0] * begins + [1] * WINDOW_STEPS * per_step
    assert modes[: len(window) + 5] == [*window, *[0] * 5]


def test_calls_recorded_anyway_have_a_flag(
    recorder: Recorder, device: SyncMode, session: Session
) -> None:
    wrapper = Script(device, "trainprof.inside.spans.sync")
    code = compile("def call():\n    item()\n", FILE, "exec").co_consts[0]
    train(END, types.FunctionType(code, {"item": wrapper.step}))
    flags = [flag for *_, flag in found_syncs(recorder.read())]
    assert flags == [FoundSyncFlag.KNOWN] * WINDOW_STEPS


# What the script may notice of it.


def test_the_script_sees_nothing_of_it(
    recorder: Recorder, device: SyncMode, session: Session
) -> None:
    script, module = Script(device), torch.fakegpu  # type: ignore[attr-defined]
    names = set(script.globals)
    filters, entries = warnings.filters, list(warnings.filters)
    seen: list[tuple[list[str], set[str], int]] = []

    def captures() -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            script.step()
            warnings.warn("the script's own", stacklevel=1)
        messages = [str(warning.message) for warning in caught]
        seen.append((messages, set(script.globals), module.get_sync_debug_mode()))

    train(END + 5, captures)
    assert seen == [(["the script's own"], names, 0)] * (END + 5)
    assert warnings.filters is filters
    assert list(warnings.filters) == entries
    assert len(found_syncs(recorder.read())) == WINDOW_STEPS


@pytest.mark.parametrize("action", ["error", "always", "ignore", "default"])
def test_our_filter_is_first(
    recorder: Recorder, device: SyncMode, session: Session, action: Any
) -> None:
    script = Script(device)

    def filtered() -> None:
        with warnings.catch_warnings():
            warnings.resetwarnings()
            warnings.simplefilter(action)
            script.step()

    train(END, filtered)
    assert len(found_syncs(recorder.read())) == WINDOW_STEPS


# Where it is left alone.


def test_without_the_option_nothing_is_hooked(recorder: Recorder, device: SyncMode) -> None:
    before = (warnings._filters_mutated, list(warnings.filters))  # type: ignore[attr-defined]
    start(recorder, find_syncs=False)
    assert (warnings._filters_mutated, list(warnings.filters)) == before  # type: ignore[attr-defined]
    train(END, Script(device).step)
    assert device.history == []


def test_the_script_may_set_the_mode(
    recorder: Recorder, device: SyncMode, session: Session
) -> None:
    script, module = Script(device), torch.fakegpu  # type: ignore[attr-defined]
    train(SKIPPED_STEPS)
    assert device.mode == 1
    with pytest.warns(UserWarning, match="prototype"):
        module.set_sync_debug_mode(1)
    assert device.history == [1, 0, 1]
    assert module.get_sync_debug_mode() == 1
    with pytest.warns(UserWarning, match="called a synchronizing"):
        script.step()
    train(END)
    assert device.mode == 1
    assert reasons(recorder) == 1


def test_a_run_may_end_in_the_window(
    recorder: Recorder, device: SyncMode, session: Session
) -> None:
    train(SKIPPED_STEPS + 7, Script(device).step)
    session.on_end()
    recording = recorder.read()
    assert len(found_syncs(recording)) == recording.of(Kind.SYNC_WINDOW)[-1].value == 7
    assert device.history == [1, 0]


def test_a_fault_of_ours_puts_the_mode_back(
    recorder: Recorder, device: SyncMode, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(frame: object) -> int:
        raise LookupError("ours")

    monkeypatch.setattr(session.sites, "find", fails)
    entries = list(warnings.filters)
    train(END, Script(device).step)
    assert device.history == [1, 0]
    assert list(warnings.filters) == entries
    (fault,) = recorder.read().notes(Topic.PROBE_FAILED)
    assert fault["probe"] == "find_syncs"


def test_a_forked_child_leaves_it_alone(device: SyncMode, session: Session) -> None:
    entries = list(warnings.filters)
    train(SKIPPED_STEPS)
    pid = os.fork()
    if pid == 0:
        is_clean = list(warnings.filters) == entries
        train(END)
        os._exit(0 if is_clean and device.history == [1] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.parametrize("lacks", ["mode", "device", "choice"])
def test_where_the_mode_cannot_be_had_a_reason_is_noted(
    recorder: Recorder, device: SyncMode, monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    if lacks == "mode":
        monkeypatch.delattr(torch.fakegpu, "set_sync_debug_mode")  # type: ignore[attr-defined]
    elif lacks == "choice":
        device.mode = 2  # the script has set it
    else:
        monkeypatch.setattr(torch, "version", SimpleNamespace(cuda=None, hip=None))
        monkeypatch.setattr(torch._C, "_get_privateuse1_backend_name", lambda: "privateuseone")
    start(recorder)
    train(0 if lacks == "device" else END)
    assert reasons(recorder) == 1
    assert (device.mode, device.history) == (2 if lacks == "choice" else 0, [])
