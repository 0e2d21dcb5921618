"""Who shared the CPU with a run."""

from __future__ import annotations

from typing import Any

import pytest

from trainprof.analysis.summary.free_cores import shared_cpu


def recorded(
    host: float, own: float, waited: float | None = 0.5, cores: int = 4, usable: float = 4
) -> dict[str, Any]:
    """The host is busy to `host` percent, the run uses `own` percent of one core."""
    return {
        "host_percent": {"mean": host},
        "tree_percent": {"mean": own},
        "per_core_percent": [host] * cores,
        "cores_usable": usable,
        "pressure_some_share": waited,
    }


# Of the host's cores those from 4 on are kept busy by others, whoever has the first ones.
BUSY_NODE = {
    "host_percent": {"mean": 75.0},
    "tree_percent": {"mean": 100.0},
    "per_core_percent": [50.0, 50.0, 0.0, 0.0, *[100.0] * 12],
    "pressure_some_share": 0.9,
}
OFF = {"per_core_percent": [50.0, None, *[100.0] * 6]}
FIRST_TWO = {"cores_usable": 2.0, "core_numbers": [0, 1]}


FULL = recorded(100.0, 100.0, waited=0.9)


@pytest.mark.parametrize(
    ("cpu", "others_share", "is_disturbed"),
    [
        (recorded(75.0, 100.0), 0.5, True),
        (recorded(100.0, 400.0, waited=0.9), 0.0, False),  # all its own
        (recorded(75.0, 100.0, waited=0.02), 0.5, False),  # they took what nobody wanted
        (recorded(75.0, 100.0, waited=None), 0.5, False),
        (recorded(75.0, 100.0, usable=1), 0.5, False),  # they have cores of their own
        # Full cores were waited for where the kernel does not tell.
        (recorded(98.0, 200.0, waited=None), 0.48, True),
        # Other ranks of the run are no others.
        (FULL | {"other_ranks_percent": 300.0}, 0.0, False),
        (FULL | {"other_ranks_percent": 200.0}, 0.25, True),
        # On cores that the run may not be on they take nothing from it, on its own they do.
        (BUSY_NODE | {"cores_usable": 4.0, "core_numbers": [0, 1, 2, 3]}, 0.0, False),
        (BUSY_NODE | {"cores_usable": 2.0, "core_numbers": [4, 5]}, 0.5, True),
    ],
)
def test_others_are_those_that_are_not_the_runs_own(
    cpu: dict[str, Any], others_share: float, is_disturbed: bool
) -> None:
    shared = shared_cpu(cpu)
    assert shared.others_share == pytest.approx(others_share)
    assert shared.is_disturbed is is_disturbed


@pytest.mark.parametrize("cpu", [{}, FULL | {"other_ranks_percent": None}])
def test_nothing_is_known_without_figures(cpu: dict[str, Any]) -> None:
    assert shared_cpu(cpu) is None


@pytest.mark.parametrize(
    ("cpu", "cores", "is_whole"),
    [
        # One trainprof recorded two ranks on the first four cores, others are busy on the rest.
        (BUSY_NODE | FIRST_TWO | {"recorded_on": [0, 1, 2, 3]}, 4, True),
        (BUSY_NODE | FIRST_TWO | {"cores_usable": 1.0, "recorded_on": [0, 1, 2, 3]}, 4, False),
        (BUSY_NODE | {"cores_usable": 1.0, "core_numbers": [4, 5]}, 2, False),  # a quota
        (BUSY_NODE | OFF | FIRST_TWO, 8, False),  # one of them was off
        (BUSY_NODE | {"cores_usable": 4.0, "core_numbers": [0, None]}, 16, False),
    ],
)
def test_where_its_cores_are_not_known_those_of_the_host_count(
    cpu: dict[str, Any], cores: int, is_whole: bool
) -> None:
    shared = shared_cpu(cpu)
    assert (shared.cores, shared.is_whole) == (cores, is_whole)
