"""The fake device with a clock: what it was given takes time, and its events tell when."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import fake_device
from support.session import FakeClock


class Device:
    """What the fake device has been given, on the clock of the test.

    Attributes:
        idle_from: When it has done all of it.
        events: How many were made.
        error: Raised in place of making one.
    """

    def __init__(self, clock: FakeClock) -> None:
        self.clock, self.idle_from = clock, 0
        self.events = 0
        self.error: Exception | None = None

    def gets(self, ns: int) -> None:
        self.idle_from = max(self.clock.now_ns, self.idle_from) + ns

    def make_event(self, *, enable_timing: bool) -> Any:
        assert enable_timing
        if self.error is not None:
            raise self.error
        self.events += 1
        return Event(self)

    def synchronize(self, device: object = None) -> None:
        pytest.fail("waited for")


class Event:
    def __init__(self, device: Device) -> None:
        self.device, self.reached = device, 0

    def record(self) -> None:
        self.reached = max(self.device.clock.now_ns, self.device.idle_from)

    def query(self) -> bool:
        return self.device.clock.now_ns >= self.reached

    def elapsed_time(self, other: Event) -> float:
        assert other.query(), "asked too early"
        return (other.reached - self.reached) / 1e6


def timed_device(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> Device:
    """Gives the fake device's module the events of a new device."""
    fake_device.register()
    made = Device(clock)
    module = torch.fakegpu  # type: ignore[attr-defined]
    monkeypatch.setattr(module, "synchronize", made.synchronize)
    monkeypatch.setattr(type(module), "Event", staticmethod(made.make_event), raising=False)
    return made
