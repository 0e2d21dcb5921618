"""Notes which rank this process is, once it has joined a process group: ranks end together.

torchrun tells it in the environment as well; `torch.multiprocessing.spawn` and others do not.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from trainprof.inside.patching.patcher import Patcher, Wrapped, hide_our_frame
from trainprof.inside.session import Session
from trainprof.record.schema import Topic


class ProcessGroupProbe:
    """Wraps `init_process_group` under all its names."""

    name = "process_group"

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        distributed = torch.distributed
        if not distributed.is_available():  # a torch built without it
            return
        members = distributed.distributed_c10d

        def note() -> None:
            rank, world_size = members.get_rank(), members.get_world_size()
            group = {"rank": rank, "world_size": world_size, "backend": members.get_backend()}
            session.log.note(Topic.ENVIRONMENT, group)
            session.limit.join(world_size)

        guarded = patcher.guarded(note)

        def make(original: Wrapped) -> Wrapped:
            def init_process_group(*args: Any, **kwargs: Any) -> Any:
                try:
                    result = original(*args, **kwargs)
                except BaseException as error:
                    hide_our_frame(error)
                    raise
                guarded()
                return result

            return init_process_group

        # The name that device meshes use was bound when they were imported, with torch.
        meshes = sys.modules.get("torch.distributed.device_mesh")
        patcher.around(
            make,
            *((owner, "init_process_group") for owner in (members, distributed, meshes) if owner),
        )
