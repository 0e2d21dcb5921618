"""Who shared the CPU with a run."""

from __future__ import annotations

import pytest

from trainprof.analysis.machine.free_cores import shared_cpu


def told(
    host: float, own: float, waited: float | None = 0.5, cores: int = 4, usable: float = 4
) -> dict[str, object]:
    """The host is busy to `host` percent, the run uses `own` percent of one core."""
    return {
        "host_percent": {"mean": host},
        "tree_percent": {"mean": own},
        "per_core_percent": [host] * cores,
        "cores_usable": usable,
        "pressure_some_share": waited,
    }


def test_what_is_not_the_runs_own_is_that_of_others() -> None:
    cpu = shared_cpu(told(75.0, 100.0))
    assert (cpu.cores, cpu.others_share) == (4, pytest.approx(0.5))
    assert cpu.is_disturbed


@pytest.mark.parametrize(
    "cpu",
    [
        told(100.0, 400.0, waited=0.9),  # all its own
        told(100.0, 360.0, waited=0.9),
        told(75.0, 100.0, waited=0.02),  # they took what nobody wanted
        told(75.0, 100.0, waited=None),
        told(75.0, 100.0, usable=1),  # they have cores of their own
    ],
)
def test_what_disturbs_nobody(cpu: dict[str, object]) -> None:
    found = shared_cpu(cpu)
    assert not found.is_disturbed


def test_full_cores_were_waited_for_where_the_kernel_does_not_tell() -> None:
    cpu = shared_cpu(told(98.0, 200.0, waited=None))
    assert cpu.is_disturbed


@pytest.mark.parametrize("cpu", [{}, told(75.0, 100.0) | {"per_core_percent": None}])
def test_nothing_is_known_without_figures(cpu: dict[str, object]) -> None:
    assert shared_cpu(cpu) is None


def test_other_ranks_of_the_run_are_no_others() -> None:
    alone = told(100.0, 100.0, waited=0.9)
    for of_ranks, share in ((300.0, 0.0), (200.0, 0.25), (400.0, 0.0)):
        cpu = shared_cpu(alone | {"other_ranks_percent": of_ranks})
        assert cpu.others_share == pytest.approx(share)
    assert shared_cpu(alone | {"other_ranks_percent": None}) is None


# Of the host's cores those from 4 on are kept busy by others, whoever has the first ones.
BESIDE_A_BUSY_NODE = {
    "host_percent": {"mean": 75.0},
    "tree_percent": {"mean": 100.0},
    "per_core_percent": [50.0, 50.0, 0.0, 0.0, *[100.0] * 12],
    "pressure_some_share": 0.9,
}


def test_ranks_bound_to_cores_of_their_own_have_all_of_theirs() -> None:
    """One trainprof saw two of them on the first half, and others are busy on the second."""
    cpu = shared_cpu(
        BESIDE_A_BUSY_NODE
        | {"cores_usable": 2.0, "core_numbers": [0, 1], "recorded_on": [0, 1, 2, 3]}
    )
    assert (cpu.cores, cpu.is_whole) == (4, True)
    of_quota = {"cores_usable": 1.0, "core_numbers": [0, 1], "recorded_on": [0, 1, 2, 3]}
    limited = shared_cpu(BESIDE_A_BUSY_NODE | of_quota)
    assert not limited.is_whole


def test_others_on_cores_that_the_run_may_not_be_on_take_nothing_from_it() -> None:
    cpu = shared_cpu(BESIDE_A_BUSY_NODE | {"cores_usable": 4.0, "core_numbers": [0, 1, 2, 3]})
    assert (cpu.cores, cpu.others_share, cpu.waited_share) == (4, 0.0, 0.0)
    assert not cpu.is_disturbed


def test_others_on_the_runs_own_cores_disturb_it() -> None:
    cpu = shared_cpu(BESIDE_A_BUSY_NODE | {"cores_usable": 2.0, "core_numbers": [4, 5]})
    assert (cpu.cores, cpu.others_share, cpu.waited_share) == (2, pytest.approx(0.5), 1.0)
    assert cpu.is_disturbed


def test_a_quota_of_a_part_of_the_cores_leaves_them_no_cores_of_their_own() -> None:
    cpu = shared_cpu(BESIDE_A_BUSY_NODE | {"cores_usable": 1.0, "core_numbers": [4, 5]})
    assert not cpu.is_whole


@pytest.mark.parametrize("numbers", [None, [], list(range(16)), [3, 16], [0, None], "0-3"])
def test_where_its_cores_are_not_known_those_of_the_host_are_looked_at(numbers: object) -> None:
    cpu = shared_cpu(BESIDE_A_BUSY_NODE | {"cores_usable": 4.0, "core_numbers": numbers})
    assert cpu.cores == 16


def test_a_core_that_was_off_tells_nothing() -> None:
    off = {"per_core_percent": [50.0, None, *[100.0] * 6]}
    cpu = shared_cpu(BESIDE_A_BUSY_NODE | off | {"cores_usable": 2.0, "core_numbers": [0, 1]})
    assert cpu.cores == 8
