"""Lets a trial's optimizers update all parameters in few kernels: `fused` or `foreach`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from trainprof.inside.patching.patcher import HookPointMissing, Patcher, hide_our_frame
from trainprof.inside.session import Session
from trainprof.inside.trial.notes import TrialNotes

Wrapped = Callable[..., Any]

FUSED: Final = "fused"
FOREACH: Final = "foreach"
KNOWN: Final = (FUSED, FOREACH)
# With these the two are not to be had, or are not the same.
_NOT_WITH: Final = ("capturable", "differentiable")


class OptimizerSettingsProbe:
    """Hooks the constructor that all optimizers share, and the loading of a state.

    Where the script chose either of the two itself, that stands. What cannot be updated so (sparse
    gradients, say) has the trial fail, as it would have the script.
    """

    name = "trial_optimizer"

    def __init__(self, asked: str, notes: TrialNotes) -> None:
        """
        Args:
            asked: FUSED or FOREACH.
            notes: Of the trial.
        """
        self._asked, self._notes = asked, notes
        # Optimizers that we changed, by id.
        self._changed: dict[int, None] = {}

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        self._session = session
        module: Any = sys.modules.get("torch.optim.optimizer")
        if module is None:
            raise HookPointMissing("torch.optim.optimizer is not loaded")
        self._base = module.Optimizer
        after: list[tuple[str, Callable[..., None]]] = [
            ("__init__", self._built),
            ("load_state_dict", self._loaded),
        ]
        for name, callback in after:
            make = self._maker(patcher.guarded(callback))
            patcher.around(make, (module.Optimizer, name))

    def _maker(self, callback: Callable[..., None]) -> Callable[[Wrapped], Wrapped]:
        def make(original: Wrapped) -> Wrapped:
            def call(*args: Any, **kwargs: Any) -> Any:
                try:
                    result = original(*args, **kwargs)
                except BaseException as error:
                    hide_our_frame(error)
                    raise
                if args:
                    callback(args[0])
                return result

            return call

        return make

    def _built(self, optimizer: Any) -> None:
        """Changes an optimizer whose parameters it has by now; the rest of its making follows."""
        why_not = self._why_not(optimizer)
        if why_not is not None:
            self._notes.refuse(self._asked, f"{type(optimizer).__name__}: {why_not}")
            return
        self._set(optimizer, True)
        self._changed[id(optimizer)] = None
        self._session.keep_track(optimizer, self._changed, id(optimizer))
        self._notes.apply(self._asked, True)

    def _why_not(self, optimizer: Any) -> str | None:
        defaults = optimizer.defaults
        is_torchs = any(
            cls.__module__.startswith("torch.optim.") and cls is not self._base
            for cls in type(optimizer).__mro__
        )
        if not is_torchs or self._asked not in defaults:
            return f"it does not know {self._asked}"
        for settings in (defaults, *optimizer.param_groups):
            for name in KNOWN:
                if settings.get(name) is not None:
                    return f"the script chose {name}={settings[name]} itself"
            for name in _NOT_WITH:
                if settings.get(name):
                    return f"the script chose {name}"
        return None

    def _loaded(self, optimizer: Any) -> None:
        """Sets it again: a state brings its own groups."""
        if id(optimizer) in self._changed:
            self._set(optimizer, True)

    def _set(self, optimizer: Any, value: bool) -> None:
        for settings in (optimizer.defaults, *optimizer.param_groups):
            settings[self._asked] = value
        if self._asked == FUSED:
            # As torch's constructors do: GradScaler then leaves the unscaling to the kernel.
            optimizer._step_supports_amp_scaling = value
