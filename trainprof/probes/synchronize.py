"""`--cuda-sync`: phases begin and end when the device has done all it was given."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from trainprof.probes.accelerator import Accelerator
from trainprof.probes.patcher import Patcher, hide_our_frame, let_dynamo_skip
from trainprof.probes.session import Session
from trainprof.record.schema import Kind, Topic

Wrapped = Callable[..., Any]

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
        session.phase_now = self._waiting_clock(accelerator, patcher, session)
        graph = getattr(getattr(torch, "cuda", None), "CUDAGraph", None)
        if graph is not None:
            patcher.around_if_there(self._counter(accelerator, 1), (graph, "capture_begin"))
            patcher.around_if_there(self._counter(accelerator, -1), (graph, "capture_end"))

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

    def _counter(self, accelerator: Accelerator, change: int) -> Callable[[Wrapped], Wrapped]:
        def make(original: Wrapped) -> Wrapped:
            def capture(*args: Any, **kwargs: Any) -> Any:
                accelerator.capturing += max(change, 0)
                try:
                    return original(*args, **kwargs)
                except BaseException as error:
                    accelerator.capturing -= max(change, 0)
                    hide_our_frame(error)
                    raise
                finally:
                    accelerator.capturing += min(change, 0)

            return capture

        return make


_SYNCHRONIZED = int(Kind.SYNCHRONIZED)
