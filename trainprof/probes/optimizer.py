"""Records parameter updates and what belongs to them: scaler, clipping, schedule, zero_grad."""

from __future__ import annotations

import sys
from _thread import get_ident
from collections.abc import Callable
from types import ModuleType
from typing import Any

from trainprof.probes.call_site import forget
from trainprof.probes.patcher import HookPointMissing, Patcher, hide_our_frame
from trainprof.probes.session import Session
from trainprof.record.schema import Kind, Topic

Wrapped = Callable[..., Any]


class OptimizerProbe:
    """Uses torch's own global step hooks; the rest has none and is wrapped."""

    name = "optimizer"

    def __init__(self) -> None:
        # Per thread, the starts of the steps that are running: `super().step()` fires twice.
        self._starts: dict[int, list[int]] = {}
        self._numbers: dict[int, int] = {}

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        self._session = session
        module = sys.modules.get("torch.optim.optimizer")
        if module is None:
            raise HookPointMissing("torch.optim.optimizer is not loaded")
        pre = module.register_optimizer_step_pre_hook
        post = module.register_optimizer_step_post_hook
        if session.limit.before_step is not None:
            self._register_limit(pre, patcher, session.limit.before_step)
        is_compiling = torch.compiler.is_compiling
        patcher.hook(pre, self._before, is_compiling)
        patcher.hook(post, self._after, is_compiling)
        self._record_scaler_step = patcher.guarded(self._scaler_stepped)
        clip = torch.nn.utils.clip_grad
        scaler = torch.amp.GradScaler
        self._optional(patcher, self._make_scaler_step, (scaler, "step"))
        for kind, *places in (
            (Kind.ZERO_GRAD, (module.Optimizer, "zero_grad")),
            (Kind.ZERO_GRAD, (torch.nn.Module, "zero_grad")),
            (Kind.SCHEDULER_STEP, (torch.optim.lr_scheduler.LRScheduler, "step")),
            (Kind.CLIP_GRADIENTS, (torch.nn.utils, "clip_grad_norm_"), (clip, "clip_grad_norm_")),
            (Kind.CLIP_GRADIENTS, (torch.nn.utils, "clip_grad_value_"), (clip, "clip_grad_value_")),
            (Kind.SCALER_UPDATE, (scaler, "unscale_")),
            (Kind.SCALER_UPDATE, (scaler, "update")),
        ):
            self._optional(patcher, self._maker(kind, is_compiling), *places)

    def _optional(self, patcher: Patcher, make: Wrapped, *places: tuple[Any, str]) -> None:
        try:
            patcher.around(make, *places)
        except HookPointMissing as missing:
            self._session.unavailable(self.name, str(missing))

    def _register_limit(
        self, register: Wrapped, patcher: Patcher, check: Callable[[int], None]
    ) -> None:
        def before(optimizer: Any, args: Any, kwargs: Any) -> None:
            if not self._starts.get(get_ident()):
                check(id(optimizer))

        patcher.on_undo(register(before).remove)

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        start = self._session.now()
        self._starts.setdefault(get_ident(), []).append(start)

    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        end = self._session.now()
        starts = self._starts.get(get_ident())
        if not starts:
            return
        start = starts.pop()
        self._session.emit(_STEP, start, end, self._number(optimizer))
        if not starts:
            self._session.limit.stepped(id(optimizer))

    def _number(self, optimizer: Any) -> int:
        key = id(optimizer)
        number = self._numbers.get(key)
        if number is None:
            name = f"{type(optimizer).__qualname__}#{len(self._numbers) + 1}"
            number = self._numbers[key] = self._session.log.define(Topic.OPTIMIZER, name)
            self._session.keep_track(optimizer, lambda: forget(self._numbers, key))
        return number

    def _make_scaler_step(self, original: Wrapped) -> Wrapped:
        now, record = self._session.now, self._record_scaler_step

        def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            start = now()
            try:
                return original(self, optimizer, *args, **kwargs)
            except BaseException as error:
                hide_our_frame(error)
                raise
            finally:
                record(optimizer, start)

        return step

    def _scaler_stepped(self, optimizer: Any, start: int) -> None:
        self._session.emit(_SCALER_STEP, start, self._session.now(), self._number(optimizer))

    def _maker(self, kind: Kind, is_compiling: Callable[[], bool]) -> Callable[[Wrapped], Wrapped]:
        emit, now, event = self._session.emit, self._session.now, int(kind)

        def make(original: Wrapped) -> Wrapped:
            def timed(*args: Any, **kwargs: Any) -> Any:
                if is_compiling():
                    return original(*args, **kwargs)
                start = now()
                try:
                    return original(*args, **kwargs)
                except BaseException as error:
                    hide_our_frame(error)
                    raise
                finally:
                    emit(event, start, now())

            timed.__prepare_scriptable__ = lambda: original  # type: ignore[attr-defined]
            return timed

        return make


_STEP, _SCALER_STEP = int(Kind.OPTIMIZER_STEP), int(Kind.SCALER_STEP)
