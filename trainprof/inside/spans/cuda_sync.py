"""`--cuda-sync`: waits for the device at the begin and end of each phase."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType
from typing import Final

from trainprof.inside.device.accelerator import Accelerator
from trainprof.inside.patching.patcher import Patcher, let_dynamo_skip
from trainprof.inside.session import Session
from trainprof.record.schema import Kind, Topic

# Interval between records of the total time waited.
_RECORDED_EVERY_NS: Final = 50_000_000


class SynchronizeProbe:
    """Makes the phase clock wait for the device; attach it before probes that read the clock."""

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
                # An error of the script's kernels; its next call raises it too.
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
