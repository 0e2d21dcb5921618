"""Notes with how many threads torch computes inside a loader's worker."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final

from trainprof.inside.session import Session

# Who sets another number for each batch does not fill the log.
_MOST_TOLD: Final = 8


class WorkerThreads:
    """Asks torch, whenever it is told to: a script may set its number at any time.

    A worker begins with one thread of torch, whatever the environment says.
    """

    def __init__(self, torch: ModuleType, session: Session) -> None:
        self._threads_of_torch = torch.get_num_threads
        self._session = session
        self._told: dict[str, Any] | None = None
        self._may_tell = _MOST_TOLD

    def look(self) -> None:
        """Notes the numbers where they are others than before; to be called behind a fetch.

        By then the numbers of a function called as the worker starts, and of the dataset, are set.
        """
        if not self._may_tell:
            return
        told = {
            "torch": self._threads_of_torch(),
            "set_at": self._session.threads_set_at,
        }
        if told != self._told:
            self._told = told
            self._may_tell -= 1
            self._session.note_state({"worker_threads": told})
