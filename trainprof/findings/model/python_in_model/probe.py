"""Records the user's functions that autograd calls in backward: hooks, custom Functions."""

from __future__ import annotations

import functools
import inspect
import itertools
from dataclasses import dataclass
from types import FunctionType, MethodType, ModuleType
from typing import Any, ClassVar, Final

from trainprof.inside.patching.patcher import Patcher, called_around, let_dynamo_skip, subclasses
from trainprof.inside.session import Session
from trainprof.record.notes import Note

_MOST_PLACES: Final = 8
# A forward may register hooks for each tensor: this number of calls shows all of them.
_MOST_CALLS: Final = 2_000
_OF_TENSORS: Final = ("register_hook", "register_post_accumulate_grad_hook")
_OF_MODULES: Final = ("register_full_backward_hook", "register_full_backward_pre_hook")


@dataclass(frozen=True, slots=True)
class BackwardCodeNote(Note):
    """Site ids of the first lines of functions that backward calls."""

    KEY: ClassVar[str] = "backward_code"

    sites: tuple[int, ...] = ()


class BackwardCodeProbe:
    """Records hooks as they are registered, and classes of Functions at the first step."""

    name = "backward_code"

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        self._session, self._sites = session, dict[int, None]()
        self._function_class = torch.autograd.Function
        self._calls = itertools.count()
        registered = patcher.guarded(self._registered)

        def register(*args: Any, **kwargs: Any) -> None:
            registered(args[1] if len(args) > 1 else kwargs.get("hook"))

        let_dynamo_skip(register, and_all_below=True)
        for owner, names in ((torch.Tensor, _OF_TENSORS), (torch.nn.Module, _OF_MODULES)):
            for name in names:
                patcher.around_if_there(called_around(register), (owner, name))
        session.on_first_step.subscribe(patcher.guarded(self._first_step))

    def _registered(self, hook: Any) -> None:
        if next(self._calls) < _MOST_CALLS:
            self._add(hook)

    def _first_step(self, _: Any) -> None:
        for cls in subclasses(self._function_class):
            self._add(vars(cls).get("backward"))

    def _add(self, function: Any) -> None:
        """Adds a user function, or the one that a callable object calls."""
        if isinstance(function, functools.partial):
            function = function.func
        if type(function) in (staticmethod, MethodType):
            function = function.__func__
        if type(function) is not FunctionType:
            function = inspect.getattr_static(type(function), "__call__", None)
        function = inspect.unwrap(function) if type(function) is FunctionType else None
        if type(function) is not FunctionType:
            return
        sites = self._session.sites
        if len(self._sites) < _MOST_PLACES and sites.is_user_code(function.__code__):
            number = sites.beginning_of(function.__code__)
            if number not in self._sites:
                self._sites[number] = None
                self._session.note(BackwardCodeNote(tuple(self._sites)))
