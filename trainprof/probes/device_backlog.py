"""Decides when a device is to be held up for a moment, so that work piles up before it.

Where the host is slow, an event after a phase is reached late because the next kernel came late:
the time between two events holds the gaps, and nothing tells how long the device worked. Behind a
kernel that only waits, work piles up, and the device then does it without a gap. This happens a few
times in a run, and only where the device keeps up with the host: it has time to spare there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from trainprof.probes.middle import median

# All waiting together, of the time since torch was imported; and while it is little.
SHARE_OF_TIME: Final = 0.002
LITTLE_NS: Final = 150_000_000
SHARE_WHILE_LITTLE: Final = 0.005
LONGEST_NS: Final = 50_000_000
MOST_LOOKS: Final = 24
# The next look comes when the run is so much longer, that they spread over runs of any length: at
# first, and when the same stretch was looked at so often.
EARLY_GROWTH: Final = 1.25
EARLY_LOOKS: Final = 6
LATER_GROWTH: Final = 2.0
WARMUP_STEPS: Final = 20
# Before each look, to see in which parts of a step the device keeps up, and how long they are.
OBSERVED_STEPS: Final = 10
# How fast the waiting kernel counts is learned from a short one: 0.1 ms at 2 GHz.
TRIED_CYCLES: Final = 200_000
NEVER: Final = 1 << 62
_MOST_STRETCHES: Final = 32
# In a stretch: of at least one phase. The host may also do nothing but wait in it.
_PHASE_ENDS: Final = 2
# Of the observed steps in which the device had done all it had been given when a stretch ended.
_KEEPS_UP_SHARE: Final = 0.8
# Of a step: less could not make the device's time much more certain.
_LEAST_SHARE: Final = 0.1
# Longer than the host usually takes to give out a stretch, for it does not always take as long.
_MARGIN: Final = 1.25
_MARGIN_NS: Final = 100_000
# The host may wait where nobody sees it, or give out more at once than the stream takes.
_MOST_IN_VAIN: Final = 3
_PAUSE_NS: Final = 1_000_000_000
# Steps to wait for a stretch to come again before it is given up.
_PATIENCE: Final = 50


@dataclass(slots=True)
class _Stretch:
    """What was observed of one stretch of steps.

    Attributes:
        given_ns: How long the host took to give out its work, in each step.
        kept_up: In how many of them the device had done the work when the stretch ended.
    """

    given_ns: list[int] = field(default_factory=list)
    kept_up: int = 0


class Backlog:
    """Watches the steps of one thread, and says when its device is to wait.

    A step falls into stretches, numbered from its beginning, at each moment at which the host
    begins or ends to wait or to copy: the device may have run dry there, and what piled up before
    is gone. It is held up where a stretch begins, for about as long as the host needs to give out
    that stretch.

    Attributes:
        due_ns: Before this nothing need be told.
        of: The thread and the device that are watched, once a step was seen.
    """

    def __init__(self, began_ns: int) -> None:
        self.due_ns = began_ns
        self.of: tuple[int, int] | None = None
        self._began_ns = began_ns
        self._held_ns = 0
        # Per number of a stretch, looks at it; and those behind which no phase had piled up.
        self._looks: dict[int, int] = {}
        self._in_vain: dict[int, int] = {}
        # The stretch that goes on: its number, None before a step ended; when it began, and how
        # many phases had begun or ended.
        self._number: int | None = None
        self._opened_ns = self._opened_ends = 0
        self._stretches: list[_Stretch] = []
        self._step_ends: list[int] = []
        # The stretch that is to be looked at, and how long the device is to wait.
        self._aim: int | None = None
        self._wanted_ns = 0
        self._cycles = TRIED_CYCLES
        # The first wait of all also loads the kernel, and tells nothing of its length.
        self._is_loaded = False
        # The next wait is a short one; one is out, and its length not yet known.
        self._is_try, self._is_out = True, False
        self._observe(WARMUP_STEPS + OBSERVED_STEPS)

    def border(self, at: int, phase_ends: int, *, keeps_up: bool, ends_step: bool) -> int:
        """Takes note of the end of one stretch and the beginning of the next.

        Args:
            at: When.
            phase_ends: How many phases have begun or ended so far.
            keeps_up: The device has done what it was given.
            ends_step: It is the end of an update.

        Returns:
            For how many cycles the device is to wait, 0 for not at all.
        """
        if self._number is None and not ends_step:
            return 0
        if self._aim is None:
            self._close(at, phase_ends, keeps_up)
        if ends_step:
            self._end_step(at)
        elif self._number is not None:
            self._number += 1
        self._opened_ns, self._opened_ends = at, phase_ends
        is_aimed_at = self._aim is not None and self._aim == self._number
        return self._cycles if is_aimed_at and not self._is_out else 0

    def held(self) -> bool:
        """Takes note that the device was told to wait; returns whether only to try how long."""
        self._is_out = True
        return self._is_try

    def waited(self, ns: int, at: int, *, piled_up: int) -> None:
        """Takes note of how long the device waited, as is known by `at`.

        Args:
            ns: On the device's clock.
            at: By the host's.
            piled_up: Marks that the host had put by the time it was over.
        """
        self._held_ns += max(ns, 0)
        if not 0 < ns < 2 * LONGEST_NS:
            self.due_ns = NEVER  # no clock to count by
            return
        if self._aim is None:
            return
        if self._is_try and not self._is_loaded:
            self._is_out, self._is_loaded = False, True
            return
        if self._is_try:
            self._is_out = self._is_try = False
            self._cycles = int(self._cycles / ns * self._wanted_ns)
            return
        if piled_up < _PHASE_ENDS:
            self._in_vain[self._aim] = self._in_vain.get(self._aim, 0) + 1
        looks = self._looks[self._aim] = self._looks.get(self._aim, 0) + 1
        growth = EARLY_GROWTH if looks < EARLY_LOOKS else LATER_GROWTH
        is_enough = sum(self._looks.values()) >= MOST_LOOKS
        passed_ns = at - self._began_ns
        self._rest_until(NEVER if is_enough else self._began_ns + int(passed_ns * growth))

    def _observe(self, steps: int) -> None:
        self._left = steps
        self._number, self._aim = None, None
        self._stretches.clear()
        self._step_ends.clear()
        self._is_try, self._is_out, self._cycles = True, False, TRIED_CYCLES

    def _rest_until(self, at: int) -> None:
        self.due_ns = at
        self._observe(OBSERVED_STEPS)

    def _close(self, at: int, phase_ends: int, keeps_up: bool) -> None:
        number = self._number
        if number is None or number >= _MOST_STRETCHES or self._left > OBSERVED_STEPS:
            return
        while len(self._stretches) <= number:
            self._stretches.append(_Stretch())
        if phase_ends - self._opened_ends >= _PHASE_ENDS:
            stretch = self._stretches[number]
            stretch.given_ns.append(at - self._opened_ns)
            stretch.kept_up += keeps_up

    def _end_step(self, at: int) -> None:
        self._number = 0
        self._left -= 1
        if self._aim is None:
            self._step_ends.append(at)
            if self._left == 0:
                self._choose(at)
        elif self._left <= 0 and not self._is_out:
            self._rest_until(at + _PAUSE_NS)

    def _choose(self, at: int) -> None:
        """Aims at the stretch looked at least, the longest of them; rests where there is none."""
        ends = self._step_ends[-OBSERVED_STEPS:]
        step_ns = (ends[-1] - ends[0]) / (len(ends) - 1)
        usual_ns = {
            number: median(stretch.given_ns)
            for number, stretch in enumerate(self._stretches)
            if self._in_vain.get(number, 0) < _MOST_IN_VAIN
            and len(stretch.given_ns) >= _KEEPS_UP_SHARE * OBSERVED_STEPS
            and stretch.kept_up >= _KEEPS_UP_SHARE * len(stretch.given_ns)
        }
        usual_ns = {n: ns for n, ns in usual_ns.items() if ns >= _LEAST_SHARE * step_ns}
        if not usual_ns:
            self._rest_until(at + max(_PAUSE_NS, (at - self._began_ns) // 2))
            return
        aim = min(usual_ns, key=lambda number: (self._looks.get(number, 0), -usual_ns[number]))
        wanted_ns = min(int(_MARGIN * usual_ns[aim]) + _MARGIN_NS, LONGEST_NS)
        cost_ns = self._held_ns + wanted_ns + _MARGIN_NS
        share = SHARE_WHILE_LITTLE if cost_ns <= LITTLE_NS else SHARE_OF_TIME
        affordable_at = self._began_ns + int(cost_ns / share)
        if affordable_at > at:
            self._rest_until(affordable_at)
            return
        self._aim, self._wanted_ns, self._left = aim, wanted_ns, _PATIENCE
