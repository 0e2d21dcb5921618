"""What counts as a step where several optimizers take turns: as the report has it, so limits do.

Each update is a step, but for optimizers that take turns within a batch (a discriminator's and a
generator's, one for each part of a model): those make a step together, as often as the busiest of
them makes an update. One that makes several updates on end (twenty batches for one model, then
twenty for the other; a client's turn in federated learning) makes a block of steps.
"""

from __future__ import annotations

from typing import Final

# Updates on end that are a block. Two may be of one round: CleanRL's SAC updates a policy twice for
# two updates of its critics (policy_frequency), TD3 a policy once.
LEAST_BLOCK: Final = 3


class _Turns:
    """Optimizers each of which stepped again after another of them began, or a single one.

    Attributes:
        updates, outside: Updates by optimizer, and those of them that are not in blocks.
        in_blocks: Updates in blocks, of all.
        busiest: The optimizer with most updates; of equal ones the one that made the last.
    """

    __slots__ = ("busiest", "in_blocks", "outside", "updates")

    def __init__(self, optimizer: int) -> None:
        self.updates: dict[int, int] = {optimizer: 0}
        self.outside: dict[int, int] = {optimizer: 0}
        self.in_blocks = 0
        self.busiest = optimizer

    def add(self, optimizer: int, on_end: int) -> None:
        """Counts an update, the last of so many on end."""
        self.updates[optimizer] += 1
        if self.is_busiest(optimizer):
            self.busiest = optimizer
        if on_end < LEAST_BLOCK:
            self.outside[optimizer] += 1
        elif on_end == LEAST_BLOCK:
            self.outside[optimizer] -= LEAST_BLOCK - 1
            self.in_blocks += LEAST_BLOCK
        else:
            self.in_blocks += 1

    def join(self, others: _Turns) -> None:
        self.updates.update(others.updates)
        self.outside.update(others.outside)
        self.in_blocks += others.in_blocks
        if others.updates[others.busiest] >= self.updates[self.busiest]:
            self.busiest = others.busiest

    def is_busiest(self, optimizer: int) -> bool:
        return self.updates[optimizer] >= self.updates[self.busiest]

    def steps(self) -> int:
        """Returns 0 after a single update: others may take turns with it that are yet to come."""
        if self.updates[self.busiest] == 1:
            return 0
        return self.in_blocks + self.outside[self.busiest]


class StepCount:
    """Counts steps while updates are made; the first ones of a block once it is one.

    Threads whose optimizers step at the same time may make it miscount, but not fail.
    """

    def __init__(self) -> None:
        self._turns: _Turns | None = None
        # Those before, of which none has stepped again, and the steps in them.
        self._earlier: list[_Turns] = []
        self._earlier_steps = 0
        self._known: set[int] = set()
        self._last: int | None = None
        self._on_end = 0

    @property
    def steps(self) -> int:
        turns = self._turns
        return 0 if turns is None else max(1, self._earlier_steps + turns.steps())

    def add(self, optimizer: int) -> None:
        """Counts an outermost update of one optimizer."""
        on_end = self._on_end + 1 if optimizer == self._last else 1
        self._last, self._on_end = optimizer, on_end
        turns = self._turns
        if turns is None or optimizer not in turns.updates:
            turns = self._turns = self._joined(turns, optimizer)
        turns.add(optimizer, on_end)

    def begins_step(self, optimizer: int) -> bool:
        """Whether an update of this optimizer would be one of the next step."""
        turns = self._turns
        if optimizer == self._last or turns is None:
            return True
        if optimizer in turns.updates:
            return turns.is_busiest(optimizer)
        return optimizer in self._known

    def _joined(self, turns: _Turns | None, optimizer: int) -> _Turns:
        """Returns the turns in which an optimizer steps that is not in the last ones."""
        if turns is None or optimizer not in self._known:
            if turns is not None:
                self._earlier.append(turns)
                self._earlier_steps += turns.steps()
            self._known.add(optimizer)
            return _Turns(optimizer)
        while optimizer not in turns.updates:
            try:
                earlier = self._earlier.pop()
            except IndexError:  # another thread has joined them
                return _Turns(optimizer)
            self._earlier_steps -= earlier.steps()
            earlier.join(turns)
            turns = earlier
        return turns
