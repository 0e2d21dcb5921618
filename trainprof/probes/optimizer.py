"""Records parameter updates and what belongs to them: scaler, clipping, schedule, zero_grad."""

from __future__ import annotations

import itertools
import sys
from _thread import get_ident
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any

from trainprof.probes.call_site import forget
from trainprof.probes.patcher import (
    CompilerState,
    HookPointMissing,
    Patcher,
    hide_our_frame,
    let_dynamo_skip,
)
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
        self._serial = itertools.count(1)

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        self._session = session
        module = sys.modules.get("torch.optim.optimizer")
        if module is None:
            raise HookPointMissing("torch.optim.optimizer is not loaded")
        pre = module.register_optimizer_step_pre_hook
        post = module.register_optimizer_step_post_hook
        compiler = session.compiler
        if session.limit.before_step is not None:
            self._register_limit(pre, patcher, session.limit.before_step, compiler)
        self._hook_steps(pre, post, patcher)
        self._record_scaler_step = patcher.guarded(self._scaler_stepped)
        clip = getattr(torch.nn.utils, "clip_grad", None)
        scaler = getattr(getattr(torch, "amp", None), "GradScaler", None)
        self._optional(patcher, self._make_scaler_step, (scaler, "step"))
        places: list[tuple[Kind, tuple[tuple[Any, str], ...]]] = [
            (Kind.ZERO_GRAD, ((module.Optimizer, "zero_grad"),)),
            (Kind.ZERO_GRAD, ((torch.nn.Module, "zero_grad"),)),
            (Kind.SCALER_UPDATE, ((scaler, "unscale_"),)),
            (Kind.SCALER_UPDATE, ((scaler, "update"),)),
            *(
                (Kind.CLIP_GRADIENTS, ((torch.nn.utils, name), (clip, name)))
                for name in ("clip_grad_norm_", "clip_grad_value_")
            ),
            *((Kind.SCHEDULER_STEP, ((cls, "step"),)) for cls in _schedulers(torch)),
        ]
        for kind, where in places:
            self._optional(patcher, self._maker(kind, compiler), *where)

    def _optional(self, patcher: Patcher, make: Wrapped, *places: tuple[Any, str]) -> None:
        try:
            patcher.around(make, *places)
        except HookPointMissing as missing:
            self._session.unavailable(self.name, str(missing))

    def _register_limit(
        self,
        register: Wrapped,
        patcher: Patcher,
        check: Callable[[int], None],
        compiler: CompilerState,
    ) -> None:
        def before(optimizer: Any, args: Any, kwargs: Any) -> None:
            is_tracing = compiler.is_tracing
            if is_tracing is not None and is_tracing():
                return
            if not self._running(sys._getframe(1)):
                check(id(optimizer))

        let_dynamo_skip(before)
        patcher.on_undo(register(before).remove)

    def _hook_steps(self, pre: Wrapped, post: Wrapped, patcher: Patcher) -> None:
        emit, now, compiler = self._session.emit, self._session.now, self._session.compiler
        stacks, numbers, limit = self._starts, self._numbers, self._session.limit
        is_limited = limit.before_step is not None

        def before(optimizer: Any, args: Any, kwargs: Any) -> None:
            is_tracing = compiler.is_tracing
            if (is_tracing is not None and is_tracing()) or patcher.is_silent:
                return
            try:
                starts = stacks.get(get_ident())
                if starts != []:
                    starts = self._running(sys._getframe(1))
                starts.append(now())
            except Exception as error:
                patcher.fail(error)

        def after(optimizer: Any, args: Any, kwargs: Any) -> None:
            is_tracing = compiler.is_tracing
            if (is_tracing is not None and is_tracing()) or patcher.is_silent:
                return
            try:
                end = now()
                starts = stacks.get(get_ident())
                if not starts:
                    return
                start = starts.pop()
                number = numbers.get(id(optimizer)) or self._number(optimizer)
                emit(_STEP, start, end, number)
                if is_limited and not starts:
                    limit.stepped(id(optimizer))
            except Exception as error:
                patcher.fail(error)

        patcher.hook(pre, before)
        patcher.hook(post, after)

    def _running(self, caller: FrameType | None) -> list[int]:
        """Returns the starts of the steps around `caller`, torch's wrapper of `step`.

        A step that raised has left its start behind: as many are running as there are wrappers.
        """
        starts = self._starts.setdefault(get_ident(), [])
        if starts and caller is not None:
            wrapper, around = caller.f_code, 0
            frame = caller.f_back
            while frame is not None:
                around += frame.f_code is wrapper
                frame = frame.f_back
            del starts[around:]
        return starts

    def _number(self, optimizer: Any) -> int:
        key = id(optimizer)
        number = self._numbers.get(key)
        if number is None:
            name = f"{type(optimizer).__qualname__}#{next(self._serial)}"
            number = self._numbers[key] = self._session.log.define(Topic.OPTIMIZER, name)
            self._session.keep_track(optimizer, lambda: forget(self._numbers, key))
        return number

    def _make_scaler_step(self, original: Wrapped) -> Wrapped:
        now, record = self._session.now, self._record_scaler_step

        def step(*args: Any, **kwargs: Any) -> Any:
            start = now()
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                hide_our_frame(error)
                raise
            finally:
                record(args[1] if len(args) > 1 else kwargs.get("optimizer"), start, now())

        return step

    def _scaler_stepped(self, optimizer: Any, start: int, end: int) -> None:
        self._session.emit(_SCALER_STEP, start, end, self._number(optimizer))

    def _maker(self, kind: Kind, compiler: CompilerState) -> Callable[[Wrapped], Wrapped]:
        emit, now, event = self._session.emit, self._session.now, int(kind)

        def make(original: Wrapped) -> Wrapped:
            def timed(*args: Any, **kwargs: Any) -> Any:
                is_tracing = compiler.is_tracing
                if is_tracing is not None and is_tracing():
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


def _schedulers(torch: ModuleType) -> list[Any]:
    """Returns torch's scheduler classes that have a `step` of their own, the base first."""
    module = getattr(torch.optim, "lr_scheduler", None)
    base = getattr(module, "LRScheduler", None)
    if not isinstance(base, type):
        return [base]
    heirs = [thing for thing in vars(module).values() if isinstance(thing, type)]
    heirs = [heir for heir in heirs if issubclass(heir, base) and "step" in vars(heir)]
    return [base, *dict.fromkeys(heir for heir in heirs if heir is not base)]


_STEP, _SCALER_STEP = int(Kind.OPTIMIZER_STEP), int(Kind.SCALER_STEP)
