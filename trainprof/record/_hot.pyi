from collections.abc import Callable
from typing import Any, Final

SOURCE: Final[int]

class Recorder:
    """The cursor of an event log; called, it emits a record (twin: event_log.PythonRecorder)."""

    def __init__(self, threads: dict[int, int], slowly: Callable[..., None], /) -> None: ...
    def __call__(
        self, kind: int, start: int, end: int, site: int = ..., value: int = ..., flags: int = ...
    ) -> None: ...
    def write(
        self, kind: int, flags: int, thread: int, site: int, start: int, end: int, value: int, /
    ) -> bool: ...
    def take(self) -> tuple[Any, int]: ...
    def use(self, buffer: Any, first: int, /) -> int: ...
    def enter_first(self, thread: int, number: int, /) -> None: ...

class Wrapper:
    """A wrapper of a function that claims its class and attributes."""

    def __init__(
        self,
        hook: str,
        original: Callable[..., Any],
        twin: Callable[..., Any],
        recorder: Recorder,
        begin: Callable[[], int],
        end: Callable[[], int],
        given: tuple[Any, ...],
        kind: int = ...,
        flags: int = ...,
        limit: int = ...,
    ) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    _trainprof_twin: Callable[..., Any]

class State:
    """Twin: hot.State."""

    thread: int
    worker: int
    loader: int
    may_be_stamped: bool
    is_stamped: bool
    collate_began_ns: int
    samples: int
    samples_ns: int
    short_sample_ns: int
    to_pass: int
    least_ns: int

class StampedIndices(list[Any]):
    """A batch's indices, which note in ns when each is read (twin: fetch.StampedIndices)."""

    def __init__(self, indices: list[Any], clock: Callable[[], int], /) -> None: ...
    def stamps(self, end: int, /) -> list[int]: ...
    def longest(self, end: int, /) -> int: ...
