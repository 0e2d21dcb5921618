"""`--find-syncs`: turns torch's sync debug mode on for some steps and catches its warnings."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any, Final

from trainprof.inside.patching.patcher import (
    HookPointMissing,
    Patcher,
    Wrapped,
    called_around,
    hide_our_frame,
    let_dynamo_skip,
)
from trainprof.inside.patching.static_lookup import stored
from trainprof.inside.patching.step_wrapper import StepHook
from trainprof.inside.patching.warning_place import REGISTRY
from trainprof.inside.session import Session
from trainprof.record.schema import FoundSyncFlag, Kind, Topic
from trainprof.record.step_count import StepCount

# Steps before the mode is on, and with it.
SKIPPED_STEPS: Final = 20
WINDOW_STEPS: Final = 20
# Starts of its warnings: a sync, and a notice that the mode is a prototype.
_SYNC: Final = "called a synchronizing "
_NOTICE: Final = "Synchronization debug mode is "
_OFF, _WARN = 0, 1
# Calls from their wrappers are recorded anyway.
_KNOWING: Final = ("trainprof.inside.spans.sync", "trainprof.inside.spans.transfer")
# Functions of a device module.
_SET, _GET = "set_sync_debug_mode", "get_sync_debug_mode"
# Python's function, with another name in 3.14, that announces changed filters.
_MUTATED: Final = ("_filters_mutated", "_filters_mutated_lock_held")


class FindSyncsProbe:
    """Counts calls that wait for a device in native code, by the line that makes them.

    While the mode is on, our filter of `warnings` is the first: Python applies filters before it
    shows, raises or captures a warning. A mode that the script sets is left alone.
    """

    name = "find_syncs"

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        self._torch, self._patcher, self._session = torch, patcher, session
        if session.accelerator is None:
            self._report_unavailable("this torch supports no device but the CPU")
            return
        if getattr(sys.flags, "context_aware_warnings", 0):
            self._report_unavailable("this Python has warning filters per context")
            return
        self._accelerator, self._count = session.accelerator, StepCount()
        self._window: _Window | None = None
        self._filter: _Filter | None = None
        self._has_begun = False
        name = next((name for name in _MUTATED if name in vars(warnings)), None)
        if name is None:
            raise HookPointMissing("warnings has no hook for changed filters")
        changed = called_around(after=patcher.guarded(self._filters_changed))
        patcher.around(changed, (warnings, name))
        # `torch.optim` deletes the name of this submodule.
        optimizers = sys.modules.get("torch.optim.optimizer")
        register = getattr(optimizers, "register_optimizer_step_post_hook", None)
        if register is None:
            raise HookPointMissing("torch.optim.optimizer has no global hook after a step")
        # It stays to the end: torch iterates over its hooks while they run.
        hook = register(self._hook_of_steps(patcher.guarded(self._stepped)))
        patcher.on_undo(self._stop)
        patcher.on_undo(hook.remove)
        session.on_end.subscribe(self._stop_unguarded)
        os.register_at_fork(after_in_child=self._reset_child)

    def _report_unavailable(self, reason: str) -> None:
        self._session.log.note(Topic.ENVIRONMENT, {"no_found_syncs": reason})

    def _hook_of_steps(self, stepped: Callable[..., None]) -> Callable[..., None]:
        def after_step(optimizer: Any) -> None:
            stepped(id(optimizer))
            if self._patcher.is_silent:
                self._stop_unguarded()

        for function in (after_step, StepHook.__call__):
            let_dynamo_skip(function, and_all_below=True)
        return StepHook(after_step)

    def _stepped(self, optimizer: int) -> None:
        self._count.add(optimizer)
        window = self._window
        if window is not None:
            if self._count.steps >= window.first_step + WINDOW_STEPS:
                self._stop()
            elif self._filter is not None:
                self._filter.put_first()
        elif not self._has_begun and self._count.steps >= SKIPPED_STEPS:
            self._has_begun = True
            self._begin()

    def _begin(self) -> None:
        module = self._module()
        if module is None:
            return
        if getattr(module, _GET)() != _OFF:
            self._report_unavailable("the script sets torch's sync debug mode itself")
            return
        self._filter = _Filter(self._patcher.guarded(self._caught))
        self._window = _Window(self._count.steps, module, self._session.now())
        self._filter.put_first()
        self._window.set_mode(self._torch, _WARN)
        stop_if_on = self._patcher.guarded(lambda: self._stop(by_script=True))
        self._patcher.around(called_around(lambda *_, **__: stop_if_on()), (module, _SET))
        self._patcher.around(self._make_get, (module, _GET))
        self._record(self._window, self._window.start)

    def _module(self) -> Any:
        """Returns the module of the device in use, None without a sync debug mode."""
        kinds = self._accelerator.kinds_in_use()
        for kind in kinds:
            module = getattr(self._torch, kind, None)
            if hasattr(module, _SET) and hasattr(module, _GET):
                return module
        missing = f"torch has no sync debug mode for devices of type {kinds[0]}" if kinds else ""
        self._report_unavailable(missing or f"no device was in use after {SKIPPED_STEPS} steps")
        return None

    def _caught(self, frame: FrameType) -> None:
        is_known = frame.f_globals.get("__name__") in _KNOWING
        at, site = self._session.now(), self._session.sites.find(frame)
        self._session.emit(_FOUND, at, at, site, 0, _KNOWN if is_known else 0)

    def _stop(self, *, by_script: bool = False) -> None:
        """Turns the mode off and removes the filter."""
        window, self._window = self._window, None
        if window is None:
            return
        if window.mode() == _WARN:
            window.set_mode(self._torch, _OFF)
        if self._filter is not None:
            self._filter.remove()
        self._record(window, self._session.now())
        if by_script:
            self._report_unavailable("the script then set torch's sync debug mode itself")

    def _stop_unguarded(self) -> None:
        """Stops even if an error of ours has silenced the probe."""
        try:
            self._stop()
        except Exception as error:
            self._patcher.fail(error)

    def _reset_child(self) -> None:
        """Resets a forked child, which cannot use the device."""
        self._has_begun, self._window = True, None
        if self._filter is not None:
            self._filter.remove()

    def _record(self, window: _Window, end: int) -> None:
        # The count drops when optimizers turn out to alternate.
        steps = max(self._count.steps - window.first_step, 0)
        self._session.emit(_WINDOW, window.start, end, window.first_step, steps)

    def _filters_changed(self) -> None:
        if self._window is not None and self._filter is not None:
            self._filter.put_first()

    def _make_get(self, original: Wrapped) -> Wrapped:
        def get_sync_debug_mode(*args: Any, **kwargs: Any) -> Any:
            try:
                mode = original(*args, **kwargs)
            except BaseException as error:
                hide_our_frame(error)
                raise
            return _OFF if self._window is not None and mode == _WARN else mode

        return get_sync_debug_mode


class _Window:
    """The steps in which the mode is on; it was off before."""

    def __init__(self, first_step: int, module: Any, start: int) -> None:
        self.first_step, self.start = first_step, start
        self.mode: Callable[[], int] = getattr(module, _GET)
        self._set_mode: Wrapped = getattr(module, _SET)

    def set_mode(self, torch: ModuleType, mode: int) -> None:
        """Sets the mode without using up torch's one-time notice, which is for the script."""
        always, is_always = torch.set_warn_always, torch.is_warn_always_enabled()
        always(True)
        try:
            self._set_mode(mode)
        finally:
            always(is_always)


class _Filter:
    """An entry of `warnings.filters` that ignores the mode's warnings and finds their callers.

    It acts as a compiled pattern: Python's C code calls `match` with the text of each warning, and
    the frame above is the warning's. The registry that Python just added to that frame's module is
    removed.
    """

    def __init__(self, caught: Callable[[FrameType], None]) -> None:
        self._caught = caught
        self._entry = ("ignore", self, Warning, None, 0)
        # Lists that contain the entry; the script may restore any of them.
        self._lists: list[list[Any]] = []
        self._is_on = True
        modules = [stored(module) for module in list(sys.modules.values())]
        self._had = {id(names) for names in modules if REGISTRY in names}

    def put_first(self) -> None:
        """Puts the entry before the script's filters, which might show or raise the warnings."""
        filters = warnings.filters
        if not (isinstance(filters, list) and filters and filters[0] is self._entry):
            filters.insert(0, self._entry)  # type: ignore[attr-defined]
        if not any(known is filters for known in self._lists):
            self._lists.append(filters)  # type: ignore[arg-type]

    def remove(self) -> None:
        self._is_on = False
        for filters in self._lists:
            filters[:] = [entry for entry in filters if entry is not self._entry]
        self._lists.clear()

    def match(self, text: str) -> bool:
        frame = sys._getframe(1)
        module = frame.f_globals
        if not self._is_on or not text.startswith((_SYNC, _NOTICE)):
            return False
        if id(module) not in self._had and set(module.get(REGISTRY, ())) <= {"version"}:
            module.pop(REGISTRY, None)
        if text.startswith(_SYNC):
            self._caught(frame)
        return True

    def __reduce__(self) -> Any:
        """Pickles as a pattern that never matches: some libraries send filters to processes."""
        return re.compile, ("(?!)",)


_FOUND, _WINDOW = int(Kind.FOUND_SYNC), int(Kind.SYNC_WINDOW)
_KNOWN = int(FoundSyncFlag.KNOWN)
