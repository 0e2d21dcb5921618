"""The machine and libraries that trials stand on: others make trials that are not alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from trainprof.analysis.comparable_facts import GPU, TORCH, ground_of_host
from trainprof.launch.installed_torch import installed_torch
from trainprof.launch.manifest import host_now
from trainprof.launch.target import Target
from trainprof.record.errors import TrainprofError


class CannotResume(TrainprofError):
    slug: ClassVar[str] = "cannot-resume"
    exit_code: ClassVar[int] = 2


def ground_now(target: Target) -> dict[str, str]:
    """Returns what a run would stand on, as far as that is known before one was made."""
    found, torch = ground_of_host(host_now()), installed_torch(target)
    return found if torch is None else {**found, TORCH: torch}


def check_ground(before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Refuses where trials would stand on other ground; of what is not known of both, nothing.

    Raises:
        CannotResume: With what is another.
    """
    changed = [
        f"{what} was {before[what]} and is {told}"
        for what, told in now.items()
        if what in before and _is_another(what, before[what], told)
    ]
    if changed:
        raise CannotResume(
            f"{', '.join(changed)}: its trials would not be alike",
            hint="go on where it was begun, or start anew: trainprof tune SCRIPT",
        )


def _is_another(what: str, before: str, now: str) -> bool:
    # Not every run is long enough for it to be seen on which of several GPUs it was.
    return not set(before.split(", ")) & set(now.split(", ")) if what == GPU else before != now
