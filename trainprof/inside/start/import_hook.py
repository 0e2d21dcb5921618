"""Calls back right after the script has imported a module; imports nothing itself."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.machinery import ModuleSpec, SourceFileLoader
from time import perf_counter_ns
from types import ModuleType
from typing import Any


class AfterImport:
    """A `sys.meta_path` finder that only delegates to the finders after it.

    It temporarily sets an `exec_module` on the loader that calls back after the module's execution.
    Loader, spec and module are otherwise unchanged.

    Args:
        callbacks: By module name; get the module and the begin and end of its execution in ns.
        around: Returns, for each module of Python source, a context to execute it in, or None.
    """

    def __init__(
        self,
        callbacks: Mapping[str, Callable[[ModuleType, int, int], None]],
        around: Callable[[ModuleSpec], AbstractContextManager[None] | None] | None = None,
    ) -> None:
        self._callbacks = dict(callbacks)
        self._around = around

    def install(self) -> None:
        """Starts waiting; calls back at once for modules already imported."""
        for name in [name for name in self._callbacks if name in sys.modules]:
            now = perf_counter_ns()
            self._callbacks.pop(name)(sys.modules[name], now, now)
        if self._is_waiting():
            sys.meta_path.insert(0, self)

    def remove(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self._callbacks and self._around is None:
            return None
        spec = self._ask_others(name, path, target)
        loader: Any = getattr(spec, "loader", None)
        if spec is None or loader is None or not hasattr(loader, "exec_module"):
            return spec
        surroundings = None
        if self._around is not None and type(loader) is SourceFileLoader:
            surroundings = self._around(spec)
        if surroundings is None and name not in self._callbacks:
            return spec
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module  # the class's again
            start = perf_counter_ns()
            try:
                with surroundings or nullcontext():
                    execute(module)
            except BaseException as error:
                from trainprof.inside.patching.patcher import hide_our_frame

                hide_our_frame(error)
                raise
            callback = self._callbacks.pop(name, None)
            if not self._is_waiting():
                self.remove()
            if callback is not None:
                callback(module, start, perf_counter_ns())

        try:
            loader.exec_module = exec_module
        except AttributeError:  # a loader with slots
            return spec
        return spec

    def _is_waiting(self) -> bool:
        return bool(self._callbacks) or self._around is not None

    def _ask_others(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        finders = list(sys.meta_path)
        if self in finders:  # the finders before us found nothing
            del finders[: finders.index(self) + 1]
        for finder in finders:
            find_spec = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find_spec(name, path, target) if find_spec else None
            if spec is not None:
                return spec
        return None
