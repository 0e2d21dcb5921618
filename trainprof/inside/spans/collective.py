"""Records calls of torch.distributed: joining a process group, and waiting for other ranks.

DistributedDataParallel averages gradients in native code: that is the backward's.
"""

from __future__ import annotations

import sys
from _thread import get_ident
from collections.abc import Callable
from functools import partial
from types import FrameType, ModuleType
from typing import Any

from trainprof.inside.patching.patcher import (
    COMPILER,
    Patcher,
    Wrapped,
    hide_our_frame,
    let_dynamo_skip,
)
from trainprof.inside.session import Session
from trainprof.record.schema import COLLECTIVES, Kind, Topic

_COLLECTIVE = int(Kind.COLLECTIVE)
_WAIT = "wait"


class CollectiveProbe:
    """Wraps the functions under both their names, and the waiting for those begun beforehand."""

    name = "collective"

    def __init__(self) -> None:
        # Threads that are inside an outermost call.
        self._inside: set[int] = set()

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        distributed = torch.distributed
        if not distributed.is_available():  # a torch built without it
            return
        emit, find = session.emit, session.sites.find

        def record(start: int, end: int, caller: FrameType | None, number: int) -> None:
            emit(_COLLECTIVE, start, end, find(caller), 0, number)

        guarded = patcher.guarded(record)
        let_dynamo_skip(guarded, and_all_below=True)
        members = distributed.distributed_c10d
        for number, name in enumerate(COLLECTIVES):
            make = partial(self._make_wrapper, number, guarded, session)
            if name == _WAIT:
                patcher.around(make, (members.Work, name), inherited=True)
            elif callable(vars(members).get(name)):
                patcher.around(make, (members, name), (distributed, name))

    def _make_wrapper(
        self, number: int, record: Callable[..., None], session: Session, original: Wrapped
    ) -> Wrapped:
        inside, now, modules = self._inside, session.now, sys.modules
        is_compiling = session.is_compiling

        def collective(*args: Any, **kwargs: Any) -> Any:
            if COMPILER in modules and is_compiling():
                return original(*args, **kwargs)
            thread = get_ident()
            if thread in inside:
                try:
                    return original(*args, **kwargs)
                except BaseException as error:
                    hide_our_frame(error)
                    raise
            start = now()
            # A signal handler of the script's may raise wherever a clock is read.
            try:
                inside.add(thread)
                return original(*args, **kwargs)
            except BaseException as error:
                hide_our_frame(error)
                raise
            finally:
                inside.discard(thread)
                record(start, now(), sys._getframe().f_back, number)

        return collective


class ProcessGroupProbe:
    """Notes which rank this process is, once it has joined a group: ranks end together.

    torchrun puts it into the environment as well; `torch.multiprocessing.spawn` does not.
    """

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
