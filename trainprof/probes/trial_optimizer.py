"""Lets a trial's optimizers update all parameters in few kernels: `fused` or `foreach`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Final

from trainprof.probes.patcher import HookPointMissing, Patcher, hide_our_frame, let_dynamo_skip
from trainprof.probes.session import Session
from trainprof.probes.step_wrapper import StepHook
from trainprof.probes.trial_notes import TrialNotes

Wrapped = Callable[..., Any]

FUSED: Final = "fused"
FOREACH: Final = "foreach"
KNOWN: Final = (FUSED, FOREACH)
# With these the two are not to be had, or are not the same.
_NOT_WITH: Final = ("capturable", "differentiable")


class OptimizerSettingsProbe:
    """Hooks the constructor that all optimizers share, and the loading of a state.

    Where the script chose either of the two itself, that stands.
    """

    name = "trial_optimizer"

    def __init__(self, asked: str, notes: TrialNotes) -> None:
        """
        Args:
            asked: FUSED or FOREACH.
            notes: Of the trial.
        """
        self._asked, self._notes = asked, notes
        # Optimizers that we changed, by id; those whose gradients are still to be seen.
        self._changed: dict[int, None] = {}
        self._unproven: dict[int, None] = {}

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        self._torch, self._session = torch, session
        module: Any = sys.modules.get("torch.optim.optimizer")
        if module is None:
            raise HookPointMissing("torch.optim.optimizer is not loaded")
        self._base = module.Optimizer
        self._check = getattr(module, "_device_dtype_check_for_fused", None)
        after: list[tuple[str, Callable[..., None]]] = [
            ("__init__", self._built),
            ("add_param_group", self._extended),
        ]
        for name, callback in after:
            make = self._maker(patcher.guarded(callback))
            patcher.around(make, (module.Optimizer, name))
        patcher.around(self._make_load(patcher), (module.Optimizer, "load_state_dict"))
        prove = patcher.guarded(self._prove)
        unproven = self._unproven

        def before_step(optimizer: Any) -> None:
            if unproven:
                prove(optimizer)

        for function in (before_step, StepHook.__call__):
            let_dynamo_skip(function)
        handle = module.register_optimizer_step_pre_hook(StepHook(before_step))
        patcher.on_undo(handle.remove)

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
        for table in (self._changed, *([self._unproven] if self._asked == FUSED else [])):
            table[id(optimizer)] = None
            self._session.keep_track(optimizer, table, id(optimizer))
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
            if self._asked == FOREACH and self._has_tensor_settings(settings):
                return "a learning rate that is a tensor"
        return self._why_not_these(optimizer.param_groups)

    def _has_tensor_settings(self, settings: Mapping[str, Any]) -> bool:
        rates = (settings.get("lr"), *(settings.get("betas") or ()))
        return any(isinstance(rate, self._torch.Tensor) for rate in rates)

    def _why_not_these(self, groups: list[dict[str, Any]]) -> str | None:
        """Returns why parameters cannot be updated by a fused kernel, as torch would say it."""
        if self._asked != FUSED:
            return None
        if self._check is None:
            return "this torch does not tell for which parameters"
        for group in groups:
            for parameter in group["params"]:
                try:
                    self._check(parameter)
                except RuntimeError as error:
                    return str(error)
        return None

    def _extended(self, optimizer: Any) -> None:
        """Looks at a group that was added: it took over our setting."""
        if id(optimizer) in self._changed:
            why_not = self._why_not_these(optimizer.param_groups[-1:])
            if why_not is not None:
                self._give_up(optimizer, why_not)

    def _prove(self, optimizer: Any) -> None:
        """Looks at the first gradients: fused kernels know no sparse ones."""
        if id(optimizer) not in self._unproven:
            return
        del self._unproven[id(optimizer)]
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and parameter.grad.is_sparse:
                    self._give_up(optimizer, "a gradient is sparse")
                    return

    def _give_up(self, optimizer: Any, why: str) -> None:
        self._changed.pop(id(optimizer), None)
        self._set(optimizer, None)
        self._notes.take_back(self._asked, f"{type(optimizer).__name__}: {why}")

    def _set(self, optimizer: Any, value: bool | None) -> None:
        for settings in (optimizer.defaults, *optimizer.param_groups):
            settings[self._asked] = value
        if self._asked == FUSED:
            # As torch's constructors do: GradScaler then leaves the unscaling to the kernel.
            optimizer._step_supports_amp_scaling = value is True

    def _make_load(self, patcher: Patcher) -> Callable[[Wrapped], Wrapped]:
        """A state brings its own groups: they are told, before torch places what goes with them."""
        changed = self._changed

        def make(original: Wrapped) -> Wrapped:
            def load_state_dict(*args: Any, **kwargs: Any) -> Any:
                try:
                    if args and id(args[0]) in changed:
                        given = {**dict(zip(("", "state_dict"), args, strict=False)), **kwargs}
                        return original(args[0], self._with_ours(given["state_dict"], patcher))
                    return original(*args, **kwargs)
                except BaseException as error:
                    hide_our_frame(error)
                    raise

            return load_state_dict

        return make

    def _with_ours(self, state: Any, patcher: Patcher) -> Any:
        try:
            groups = [{**group, self._asked: True} for group in state["param_groups"]]
            return {**state, "param_groups": groups}
        except Exception as error:
            patcher.fail(error)
            return state
