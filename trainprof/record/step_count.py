"""Counts steps where several optimizers alternate, for limits as for the report.

Each update is a step. Optimizers that alternate within a batch (a generator's and a
discriminator's, one for each part of a model) make a step together: the busiest one's updates
count. Consecutive updates of one optimizer (twenty batches for one model, then twenty for the
other, or a client in federated learning) are a block of steps.
"""

from __future__ import annotations

from typing import Final

# Consecutive updates that make a block. Two may belong to one round: CleanRL's SAC updates its
# policy twice for two critic updates (policy_frequency), TD3 once.
LEAST_BLOCK: Final = 3


class _Turns:
    """Optimizers that alternate, or a single one.

    Attributes:
        updates, outside: Updates by optimizer, all and those outside of blocks.
        in_blocks: Updates in blocks, all optimizers.
        busiest: The optimizer with most updates; among equals the last to update.
    """

    __slots__ = ("busiest", "in_blocks", "outside", "updates")

    def __init__(self, optimizer: int) -> None:
        self.updates: dict[int, int] = {optimizer: 0}
        self.outside: dict[int, int] = {optimizer: 0}
        self.in_blocks = 0
        self.busiest = optimizer

    def add(self, optimizer: int, consecutive: int) -> None:
        """Counts an update, the last of `consecutive` ones."""
        self.updates[optimizer] += 1
        if self.is_busiest(optimizer):
            self.busiest = optimizer
        if consecutive < LEAST_BLOCK:
            self.outside[optimizer] += 1
        elif consecutive == LEAST_BLOCK:
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
        """Returns 0 after a single update: other optimizers may follow in the same step."""
        if self.updates[self.busiest] == 1:
            return 0
        return self.in_blocks + self.outside[self.busiest]


class StepCount:
    """Counts steps as updates happen.

    Threads whose optimizers step concurrently may make it miscount, but not fail.
    """

    def __init__(self) -> None:
        self._turns: _Turns | None = None
        # Earlier turns, whose optimizers have not stepped again, and their steps.
        self._earlier: list[_Turns] = []
        self._earlier_steps = 0
        self._known: set[int] = set()
        self._last: int | None = None
        self._consecutive = 0

    @property
    def steps(self) -> int:
        turns = self._turns
        return 0 if turns is None else max(1, self._earlier_steps + turns.steps())

    def add(self, optimizer: int) -> None:
        """Counts an outermost update of one optimizer."""
        self._consecutive = self._consecutive + 1 if optimizer == self._last else 1
        self._last = optimizer
        turns = self._turns
        if turns is None or optimizer not in turns.updates:
            turns = self._turns = self._joined(turns, optimizer)
        turns.add(optimizer, self._consecutive)

    def begins_step(self, optimizer: int) -> bool:
        """Returns whether an update of this optimizer would belong to the next step."""
        turns = self._turns
        if optimizer == self._last or turns is None:
            return True
        if optimizer in turns.updates:
            return turns.is_busiest(optimizer)
        return optimizer in self._known

    def _joined(self, turns: _Turns | None, optimizer: int) -> _Turns:
        """Returns the turns of an optimizer that is not in the last ones, merging those between."""
        if turns is None or optimizer not in self._known:
            if turns is not None:
                self._earlier.append(turns)
                self._earlier_steps += turns.steps()
            self._known.add(optimizer)
            return _Turns(optimizer)
        while optimizer not in turns.updates:
            try:
                earlier = self._earlier.pop()
            except IndexError:  # another thread merged them
                return _Turns(optimizer)
            self._earlier_steps -= earlier.steps()
            earlier.join(turns)
            turns = earlier
        return turns
