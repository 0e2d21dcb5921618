from collections.abc import Callable, Iterable, Iterator
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
    """Of outermost calls the thread inside one, or 0; of a fetcher the rest."""

    thread: int
    worker: int
    may_be_stamped: bool
    is_stamped: bool
    loader: int
    collate_began_ns: int

class Stamping:
    """Iterates over a batch's indices and notes, as uint64 in ns, when each is read."""

    def __init__(
        self, indices: Iterable[Any], times: bytearray, clock: Callable[[], int], /
    ) -> None: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __next__(self) -> Any: ...

def longest(times: bytearray, end: int, /) -> int: ...
