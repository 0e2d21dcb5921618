"""Records calls of torch.distributed: joining a process group, and collectives.

DistributedDataParallel all-reduces gradients in native code, as a part of backward.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType, ModuleType

from trainprof.inside.patching.patcher import (
    Arguments,
    Patcher,
    Wrapped,
    called_around,
    recorded_outermost,
)
from trainprof.inside.session import Session
from trainprof.record.schema import COLLECTIVES, Kind, Topic

_COLLECTIVE = int(Kind.COLLECTIVE)
_WAIT = "wait"


class CollectiveProbe:
    """Wraps the collectives under both their names, and `wait` for asynchronous ones."""

    name = "collective"

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        distributed = torch.distributed
        if not distributed.is_available():  # a torch built without it
            return
        members, inside = distributed.distributed_c10d, set[int]()
        for number, name in enumerate(COLLECTIVES):
            make = self._maker(patcher, session, number, inside)
            if name == _WAIT:
                patcher.around(make, (members.Work, name), inherited=True)
            elif callable(vars(members).get(name)):
                patcher.around(make, (members, name), (distributed, name))

    def _maker(
        self, patcher: Patcher, session: Session, number: int, inside: set[int]
    ) -> Callable[[Wrapped], Wrapped]:
        def record(start: int, caller: FrameType | None, _: Arguments) -> None:
            end = session.now()
            session.emit(_COLLECTIVE, start, end, session.sites.find(caller), 0, number)

        guarded = patcher.guarded(record)
        return recorded_outermost(session.now, guarded, inside, session.is_compiling)


class ProcessGroupProbe:
    """Records this process's rank once it joins a group; limits end all ranks together.

    torchrun also sets it in the environment, `torch.multiprocessing.spawn` does not.
    """

    name = "process_group"

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        distributed = torch.distributed
        if not distributed.is_available():  # a torch built without it
            return
        members = distributed.distributed_c10d

        def note() -> None:
            if not members.is_initialized():  # joining failed
                return
            rank, world_size = members.get_rank(), members.get_world_size()
            group = {"rank": rank, "world_size": world_size, "backend": members.get_backend()}
            session.log.note(Topic.ENVIRONMENT, group)
            session.limit.join(world_size)

        # Device meshes import the function by name, with torch.
        meshes = sys.modules.get("torch.distributed.device_mesh")
        patcher.around(
            called_around(after=patcher.guarded(note)),
            *((owner, "init_process_group") for owner in (members, distributed, meshes) if owner),
        )
