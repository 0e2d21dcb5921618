"""Which lines call the same module, and whether they give it the very same tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from trainprof.probes.repeated_forwards import Given
from trainprof.probes.session import ModuleCall

_MOST_MODULES: Final = 64
_MOST_LINES: Final = 16
# Of a call: its line's number, its class's name, and whether it has parameters: model(change(x))
# may be of two of one class.
Key: TypeAlias = tuple[int, str, bool]


class LinesOfModules:
    """Is told of calls with gradients."""

    def __init__(self, given: Callable[[ModuleCall], Given | None]) -> None:
        """Begins with none.

        Args:
            given: Returns what a call was given; None where that is not known.
        """
        self._given = given
        # By id of the module: what each line gave it last, once a second line had called it.
        self._lines: dict[int, dict[Key, Given | None]] = {}
        self._alike: set[tuple[Key, Key]] = set()

    def meet(self, call: ModuleCall, key: Key) -> None:
        """Takes note of a call from a line."""
        if id(call.module) not in self._lines and len(self._lines) >= _MOST_MODULES:
            return
        lines = self._lines.setdefault(id(call.module), {})
        if key not in lines and len(lines) >= _MOST_LINES:
            return
        given = self._given(call) if lines.keys() - {key} else None
        if given is not None:
            for other, theirs in lines.items():
                if other != key and theirs is not None and given.is_same_as(theirs):
                    self._alike |= {(key, other), (other, key)}
        lines[key] = given

    def may_be_target_of(self, key: Key, is_used: Callable[[Key], bool]) -> bool:
        """Whether what a line's calls give may be what another's are held against, changed first.

        It is of a module that learns from what another line calls it for, with other tensors: as a
        critic does whose target is made of what it says of the next state.

        Args:
            key: Of the line.
            is_used: Whether a backward pass goes through what a line's calls give.
        """
        others = {
            other
            for lines in self._lines.values()
            if key in lines
            for other in lines.keys() - {key}
        }
        learning = [other for other in others if is_used(other)]
        return bool(learning) and not any((key, other) in self._alike for other in learning)
