"""When a run of a trial has enough, however long it took to begin: what tells is its training."""

from __future__ import annotations


class EnoughTime:
    """The time until which a run may go on; it is known better when training has begun.

    Args:
        started_ns: When the run was started.
        latest_ns: The end in any case.
        enough_s: Seconds in all, and since the first step, after both of which it has enough.
            Where no step is made, the former since the first batch or forward.
        enough_steps: It makes this many steps in any case, unless `latest_ns` comes first.

    Attributes:
        deadline_ns: Until when, as far as it is known.
    """

    def __init__(
        self, started_ns: int, latest_ns: int, enough_s: tuple[float, float], enough_steps: int = 1
    ) -> None:
        self._started_ns, self._latest_ns = started_ns, latest_ns
        self._in_all_ns, self._trained_ns = (int(seconds * 1e9) for seconds in enough_s)
        self._looked_ns: int | None = None
        self._enough_steps, self._steps = enough_steps, 0
        self._enough_ns = latest_ns
        self.deadline_ns = latest_ns

    def looked(self, now_ns: int) -> None:
        """Is told of each batch, forward or step that is about to be made."""
        if self._looked_ns is None:
            self._looked_ns = now_ns
            self._set(now_ns + self._in_all_ns)

    def stepped(self, now_ns: int) -> None:
        """Is told of each step that was made."""
        self._steps += 1
        if self._steps == 1:
            self._enough_ns = max(self._started_ns + self._in_all_ns, now_ns + self._trained_ns)
            self.deadline_ns = self._latest_ns
        if self._steps == self._enough_steps:
            self._set(self._enough_ns)

    def forget(self) -> None:
        """Takes back the steps so far: those were none."""
        self._steps = 0
        if self._looked_ns is not None:
            self._set(self._looked_ns + self._in_all_ns)

    def _set(self, deadline_ns: int) -> None:
        self.deadline_ns = min(deadline_ns, self._latest_ns)
