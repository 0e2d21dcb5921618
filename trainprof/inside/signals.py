"""Signals of probes that other probes subscribe to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec

P = ParamSpec("P")


class Signal(Generic[P]):
    """Calls its watchers in the order in which they subscribed.

    Attributes:
        watchers: Guarded by the subscriber. Hot paths iterate over them directly.
        on_switch: Called when the first one subscribes and when the last one unsubscribes.
    """

    __slots__ = ("on_switch", "watchers")

    def __init__(self) -> None:
        self.watchers: tuple[Callable[P, None], ...] = ()
        self.on_switch: Callable[[], None] | None = None

    def subscribe(self, watcher: Callable[P, None]) -> None:
        """Adds a watcher at the end, or moves it there."""
        self._set((*self._without(watcher), watcher))

    def unsubscribe(self, watcher: Callable[P, None]) -> None:
        self._set(self._without(watcher))

    def switch(self, watcher: Callable[P, None], *, is_on: bool) -> None:
        (self.subscribe if is_on else self.unsubscribe)(watcher)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Calls the watchers; guarded ones take no keywords."""
        for watcher in self.watchers:
            watcher(*args, **kwargs)

    def _without(self, watcher: Callable[P, None]) -> tuple[Callable[P, None], ...]:
        return tuple(other for other in self.watchers if other != watcher)

    def _set(self, watchers: tuple[Callable[P, None], ...]) -> None:
        is_switched = bool(watchers) != bool(self.watchers)
        self.watchers = watchers
        if is_switched and self.on_switch is not None:
            self.on_switch()


@dataclass(frozen=True, slots=True)
class ModuleCall:
    """A finished outermost call of a module.

    `inputs` are (args, kwargs); `site` is the user's line, `took_ns` the duration on the host.
    """

    module: Any
    inputs: tuple[tuple[Any, ...], dict[str, Any]]
    site: int
    took_ns: int
