"""Records each run of the autograd engine: backward, autograd.grad, nested ones included."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from trainprof.inside.patching.patcher import Patcher, Wrapped, hide_our_frame
from trainprof.inside.session import Session
from trainprof.record.schema import Kind


class BackwardProbe:
    """Hooks the engine's only Python entry; dynamo relies on the identity of `autograd.grad`."""

    name = "backward"

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        emit, now = session.emit, session.phase_now
        kind = int(Kind.BACKWARD)
        is_anomaly_enabled = getattr(torch, "is_anomaly_enabled", lambda: False)
        on_backward, on_backward_end = session.on_backward, session.on_backward_end
        on_anomaly = session.on_anomalous_backward

        def make(original: Wrapped) -> Wrapped:
            def _engine_run_backward(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
                for watcher in on_backward.watchers:
                    watcher(t_outputs, args, kwargs)
                start = now()
                try:
                    return original(t_outputs, *args, **kwargs)
                except BaseException as error:
                    hide_our_frame(error)
                    raise
                finally:
                    emit(kind, start, now())
                    for at_end in on_backward_end.watchers:
                        at_end()
                    if is_anomaly_enabled():
                        on_anomaly()

            return _engine_run_backward

        name = "_engine_run_backward"
        in_c = session.timed_in_c(
            kind,
            now,
            while_compiling=True,
            before=on_backward,
            after=on_backward_end,
            then=(is_anomaly_enabled, on_anomaly),
        )
        places = (torch.autograd, name), (torch.autograd.graph, name)
        patcher.around(make, *places, woven=True, in_c=in_c)
