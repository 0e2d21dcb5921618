"""`--cuda-sync`: phases begin and end when the device has done all it was given."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType
from typing import Final

from trainprof.inside.device.accelerator import Accelerator
from trainprof.inside.patching.patcher import Patcher, let_dynamo_skip
from trainprof.inside.session import Session
from trainprof.record.schema import Kind, Topic

# What was waited is recorded so often: it is the sum so far that counts.
_RECORDED_EVERY_NS: Final = 50_000_000


class SynchronizeProbe:
    """Makes the clock of phases wait for the device; to be attached before those who read it."""

    name = "cuda_sync"

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        if os.environ.get("CUDA_LAUNCH_BLOCKING") == "1":
            session.log.note(Topic.ENVIRONMENT, {"launch_blocking": True})
        if not session.options.get("cuda_sync"):
            return
        accelerator = Accelerator(torch)
        session.accelerator = accelerator
        session.phase_now = session.copy_now = self._waiting_clock(accelerator, patcher, session)
        accelerator.watch_captures(patcher)

    def _waiting_clock(
        self, accelerator: Accelerator, patcher: Patcher, session: Session
    ) -> Callable[[], int]:
        now, emit, note = session.now, session.emit, session.log.note
        waited_ns = waits = recorded_ns = 0

        def phase_now() -> int:
            nonlocal waited_ns, waits, recorded_ns
            if patcher.is_silent:
                return now()
            start = now()
            try:
                if not accelerator.synchronize():
                    return start
            except RuntimeError:
                # What the script's own work came to on the device; its next call hears of it too.
                return now()
            except Exception as error:
                patcher.fail(error)
                return now()
            end = now()
            waited_ns += end - start
            waits += 1
            if waits == 1:
                for kind in accelerator.kinds_in_use():
                    note(Topic.ENVIRONMENT, {"device": kind})
            if end - recorded_ns >= _RECORDED_EVERY_NS:
                recorded_ns = end
                emit(_SYNCHRONIZED, end, end + waited_ns, 0, waits)
            return end

        let_dynamo_skip(phase_now, and_all_below=True)
        return phase_now


_SYNCHRONIZED = int(Kind.SYNCHRONIZED)
