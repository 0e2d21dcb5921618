"""Records each run of the autograd engine: backward, autograd.grad, and what they nest."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from trainprof.inside.patching.patcher import Patcher, Wrapped, hide_our_frame
from trainprof.inside.session import Session
from trainprof.record.schema import Kind

# Of the arguments of the engine's Python door that follow what it starts from.
_CREATE_GRAPH: Final = 2


class BackwardProbe:
    """Hooks the engine's one Python door; dynamo relies on the identity of `autograd.grad`."""

    name = "backward"

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        emit, now = session.emit, session.phase_now
        kind = int(Kind.BACKWARD)
        is_anomaly_enabled = getattr(torch, "is_anomaly_enabled", lambda: False)
        note_anomaly = session.at_anomalous_backward

        def make(original: Wrapped) -> Wrapped:
            def _engine_run_backward(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
                watches = session.backward_watches
                for watch in watches:
                    watch.begins(t_outputs, args, kwargs)
                given = None
                start = now()
                try:
                    return (given := original(t_outputs, *args, **kwargs))
                except BaseException as error:
                    hide_our_frame(error)
                    raise
                finally:
                    emit(kind, start, now())
                    for watch in watches:
                        watch.has_ended()
                        if given is not None and watch.gives is not None:
                            watch.gives(given)
                    if is_anomaly_enabled():
                        note_anomaly()

            return _engine_run_backward

        name = "_engine_run_backward"
        patcher.around(make, (torch.autograd, name), (torch.autograd.graph, name), woven=True)


def creates_graph(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a pass can be differentiated itself, by what the engine's door is given behind it.

    Args:
        args: What follows what the pass starts from.
        kwargs: By name.
    """
    is_given = len(args) > _CREATE_GRAPH
    value = args[_CREATE_GRAPH] if is_given else kwargs.get("create_graph")
    return isinstance(value, int) and bool(value)


def functional_level(torch: ModuleType) -> Callable[[], int | None]:
    """Returns what tells how deep inside torch.func's functions a call is; None outside of them."""
    functorch = getattr(torch._C, "_functorch", None)
    level: Callable[[], int | None] = getattr(functorch, "maybe_current_level", lambda: None)
    return level
