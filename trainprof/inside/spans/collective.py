"""Records calls of torch.distributed in which a rank waits for others.

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
from trainprof.record.schema import COLLECTIVES, Kind

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
        inside, now, compiler, modules = self._inside, session.now, session.compiler, sys.modules

        def collective(*args: Any, **kwargs: Any) -> Any:
            if COMPILER in modules and compiler.is_compiling():
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
