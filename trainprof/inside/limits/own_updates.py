"""Counts steps, for limits, in scripts that update their parameters without an optimizer."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final

from trainprof.inside.limits.limit import OWN_UPDATES, can_end
from trainprof.inside.patching.function_modes import asks_for_transforms
from trainprof.inside.patching.patcher import Patcher
from trainprof.inside.session import Session

# Index of create_graph among the engine's arguments after the roots.
_CREATE_GRAPH: Final = 2


class OwnUpdatesProbe:
    """Counts an outermost backward pass as a step until the script builds an optimizer.

    If a backward pass differentiates another one, only the outer one counts: the one of the lowest
    order seen.
    """

    name = "own_updates"

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        before_step = session.limit.before_step
        assert before_step is not None
        self._session, self._limit, self._before_step = session, session.limit, before_step
        self._is_transformed = asks_for_transforms(torch)
        functorch = getattr(torch._C, "_functorch", None)
        # Nesting depth inside torch.func transforms.
        self._level = getattr(functorch, "maybe_current_level", lambda: 0)
        self._depth = 0
        self._least_order: int | None = None
        self._counts = False
        self._begin, self._end = patcher.guarded(self._begins), patcher.guarded(self._has_ended)
        session.on_backward.subscribe(self._begin)
        session.on_backward_end.subscribe(self._end)
        stop = patcher.guarded(self._stop)
        session.on_parameters.subscribe(stop)
        session.on_first_step.subscribe(stop)

    def _begins(self, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not can_end():
            return
        if self._depth == 0:
            self._begin_outermost(self._order(args, kwargs))
        self._depth += 1

    def _begin_outermost(self, order: int) -> None:
        if self._least_order is None or order < self._least_order:
            self._least_order = order
            self._limit.forget()
        self._counts = order == self._least_order
        if self._counts:
            self._before_step(OWN_UPDATES)

    def _order(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """Returns 0 for a backward pass that is not differentiated, else 1 + its nesting depth."""
        is_given = len(args) > _CREATE_GRAPH
        create_graph = args[_CREATE_GRAPH] if is_given else kwargs.get("create_graph")
        if not isinstance(create_graph, int) or not create_graph:
            return 0
        return 1 + (self._level() if self._is_transformed() else 0)

    def _has_ended(self) -> None:
        if self._depth == 0 or not can_end():
            return
        self._depth -= 1
        if self._depth == 0 and self._counts:
            self._limit.stepped(OWN_UPDATES)

    def _stop(self, _: Any) -> None:
        if self._begin in self._session.on_backward.watchers:
            self._session.on_backward.unsubscribe(self._begin)
            self._session.on_backward_end.unsubscribe(self._end)
            self._limit.forget()
            self._counts = False
