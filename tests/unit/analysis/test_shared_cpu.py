"""Who shared the CPU with a run."""

from __future__ import annotations

import pytest

from trainprof.analysis.shared_cpu import shared_cpu


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
    assert cpu is not None
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
    assert found is not None
    assert not found.is_disturbed


def test_full_cores_were_waited_for_where_the_kernel_does_not_tell() -> None:
    cpu = shared_cpu(told(98.0, 200.0, waited=None))
    assert cpu is not None
    assert cpu.is_disturbed


@pytest.mark.parametrize("cpu", [{}, told(75.0, 100.0) | {"per_core_percent": None}])
def test_nothing_is_known_without_figures(cpu: dict[str, object]) -> None:
    assert shared_cpu(cpu) is None
