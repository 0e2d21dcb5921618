"""Keeps the losses of a trial's first backward passes: trials that train alike have the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from trainprof.inside.limits.limit import is_loader_worker
from trainprof.inside.patching.function_modes import FunctionModes
from trainprof.inside.patching.patcher import Patcher, hide_our_frame
from trainprof.inside.session import Session
from trainprof.record.schema import Topic

Wrapped = Callable[..., Any]

MOST_LOSSES: Final = 50


class LossesProbe:
    """Hooks the engine's door as BackwardProbe does, around it; devices are not waited for."""

    name = "trial_losses"

    def __init__(self) -> None:
        self._kept: list[Any] = []

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        self._session = session
        self._plain = torch.Tensor
        self._mode_depth = FunctionModes(torch).depth
        # Not as the script sees it: our own reading is no sync point of its.
        self._value = torch._C.TensorBase.item
        keep, kept = patcher.guarded(self._keep), self._kept

        def make(original: Wrapped) -> Wrapped:
            def _engine_run_backward(*args: Any, **kwargs: Any) -> Any:
                if len(kept) < MOST_LOSSES and args and kwargs.get("accumulate_grad"):
                    keep(args[0])
                try:
                    return original(*args, **kwargs)
                except BaseException as error:
                    hide_our_frame(error)
                    raise

            return _engine_run_backward

        name = "_engine_run_backward"
        patcher.around(make, (torch.autograd, name), (torch.autograd.graph, name))
        session.at_end.append(patcher.guarded(self._tell))

    def _keep(self, roots: Any) -> None:
        """Keeps what backward begins at, if that is one number; inner backwards begin at others."""
        loss = roots[0]
        if type(loss) is not self._plain or self._mode_depth():
            return
        if loss.numel() == 1 and loss.is_floating_point():
            self._kept.append(loss.detach().clone())

    def _tell(self) -> None:
        log = self._session.log
        if not self._kept or not log.is_open or is_loader_worker():
            return
        losses: list[float | None] = []
        for kept in self._kept:
            value = float(self._value(kept))
            losses.append(value if math.isfinite(value) else None)
        log.note(Topic.TRIAL, {"losses": losses})
