"""Steps counted while updates are made; that they are the report's: test_step_boundaries.py."""

from __future__ import annotations

from functools import partial

import pytest
from support.session import in_threads

from trainprof.record.step_count import LEAST_BLOCK, StepCount


def counted(turns):
    count = StepCount()
    for letter in turns:
        count.add(ord(letter))
    return count


@pytest.mark.parametrize("turns", ["ABCDEF", "AAB", "ABABAB"])
def test_the_first_round_is_not_taken_for_more_than_the_busiest_makes(turns):
    most = max(turns.count(letter) for letter in turns)
    steps = [counted(turns[:made]).steps for made in range(1, len(turns) + 1)]
    assert steps[0] == 1
    assert max(steps) == most


@pytest.mark.parametrize(
    ("turns", "optimizer", "begins"),
    [
        ("A", "B", False),  # the other half of the first step, perhaps
        ("AB", "A", True),
        ("ABA", "B", False),
        ("ABAB", "A", True),
        ("ABAB", "B", True),
        ("", "A", True),
        ("ABCABC", "A", True),
        ("ABCABCAB", "C", False),
        ("AAAAA", "B", False),
        ("AAAAAB", "A", True),
        ("AAAABB", "B", True),
        ("AAAABBBBCD", "A", True),
    ],
)
def test_what_ends_a_step_begins_none(turns, optimizer, begins):
    assert counted(turns).begins_step(ord(optimizer)) is begins


def test_a_thousand_optimizers_are_one_round_or_a_block_each():
    count = StepCount()
    for _ in range(3):
        for optimizer in range(1000):
            count.add(optimizer)
    assert count.steps == 3
    count = StepCount()
    for _ in range(3):
        for optimizer in range(1000):
            for _ in range(LEAST_BLOCK):
                count.add(optimizer)
    assert count.steps == 3 * 1000 * LEAST_BLOCK


def test_threads_that_step_at_once_meet_no_fault():
    count, faults = StepCount(), []

    def step(first):
        try:
            for number in range(3000):
                count.add(first + number % 7)
                count.add(number // 50)
                count.begins_step(number % 90)
                assert count.steps >= 1
        except BaseException as fault:
            faults.append(fault)

    in_threads([partial(step, 60 + 3 * number) for number in range(4)])
    assert faults == []
