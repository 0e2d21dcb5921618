"""Records optimizer steps, and calls of scalers, clipping, schedulers and zero_grad."""

from __future__ import annotations

import itertools
from _thread import get_ident
from functools import partial
from types import FrameType, ModuleType
from typing import Any, Final

from trainprof.inside.patching.patcher import (
    Arguments,
    Patcher,
    Wrapped,
    called_around,
    hide_our_frame,
    let_dynamo_skip,
    loaded,
    recorded_after,
    subclasses,
    uncounted,
)
from trainprof.inside.patching.step_wrapper import (
    Run,
    StepAround,
    hooked_elsewhere,
    hooked_in,
    step_around,
)
from trainprof.inside.session import Session
from trainprof.record.schema import Kind, Topic

# Optimizers of a class with a text.
MOST_NAMED: Final = 300


class OptimizerProbe:
    """Wraps every optimizer's `step`, and calls around it."""

    name = "optimizer"

    def __init__(self) -> None:
        # Threads inside an outermost step, if there is a limit.
        self._running: set[int] = set()
        # Threads in a step with a closure, until its update; ids of living classes whose update was
        # hooked if possible.
        self._calling: set[int] = set()
        self._asked: dict[int, None] = {}
        self._serial = itertools.count(1)
        # Optimizers by class name.
        self._named: dict[str, int] = {}

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        self._session, self._patcher = session, patcher
        self._numbers = session.optimizer_numbers
        # Numbers of optimizers whose first steps a gradient scaler skipped.
        self._skipped: dict[int, int] = {}
        module = loaded("torch.optim.optimizer")
        self._record_step = patcher.guarded(self._stepped)
        self._calls_closure = patcher.guarded(self._with_closure)
        for function in (self._update_begins, self._timed):
            let_dynamo_skip(function, and_all_below=True)
        in_c, now = None, session.phase_now
        if session.limit.before_step is None:
            given = self._numbers, self._calling, session.on_step, session.compiler_names
            in_c = session.in_c("step", *given, clocks=(now, now), kind=_STEP)
        self._around = StepAround(session.is_compiling, self._make_run(), in_c)
        self._wrap_steps(module.Optimizer, patcher)
        session.on_parameters.subscribe(patcher.guarded(self._rewrap))
        adding = called_around(self._signal_parameters)
        patcher.around_if_there(adding, (module.Optimizer, "add_param_group"))
        clip = getattr(torch.nn.utils, "clip_grad", None)
        scaler = getattr(getattr(torch, "amp", None), "GradScaler", None)
        scaler_stepped = patcher.guarded(self._scaler_stepped)
        patcher.around_if_there(recorded_after(session.phase_now, scaler_stepped), (scaler, "step"))
        clips = ("clip_grad_norm_", "clip_grad_value_")
        places: list[tuple[Kind, tuple[tuple[Any, str], ...]]] = [
            (Kind.ZERO_GRAD, ((module.Optimizer, "zero_grad"),)),
            (Kind.ZERO_GRAD, ((torch.nn.Module, "zero_grad"),)),
            (Kind.SCALER_UPDATE, ((scaler, "unscale_"),)),
            (Kind.SCALER_UPDATE, ((scaler, "update"),)),
            *((Kind.CLIP_GRADIENTS, ((torch.nn.utils, x), (clip, x))) for x in clips),
            *((Kind.SCHEDULER_STEP, ((cls, "step"),)) for cls in _schedulers(torch)),
        ]
        # torch.compile traces the others, methods of classes.
        untraced = module.Optimizer, torch.nn.utils
        for kind, where in places:
            timed = patcher.guarded(partial(self._timed, int(kind)))
            make = recorded_after(now, timed, session.is_compiling)
            in_c = session.timed_in_c(int(kind), now) if where[0][0] in untraced else None
            patcher.around_if_there(make, *where, in_c=in_c)

    def _timed(self, kind: int, start: int, end: int, *_: Any) -> None:
        self._session.emit(kind, start, end)

    def _wrap_steps(self, optimizer_class: Any, patcher: Patcher) -> None:
        """Wraps torch's wrapper of each optimizer class's `step`.

        torch's step hooks run inside that wrapper and would miss 30 us and more of each step.
        """

        def make(decorate: Wrapped) -> Wrapped:
            def profile_hook_step(function: Wrapped) -> Wrapped:
                return step_around(decorate(function), self._around)

            return profile_hook_step

        patcher.around(make, (optimizer_class, "profile_hook_step"))
        for cls in subclasses(optimizer_class):  # classes with an instance already
            step = vars(cls).get("step")
            if getattr(step, "hooked", False):
                type.__setattr__(cls, "step", step_around(step, self._around))
        patcher.on_undo(lambda: self._unwrap_steps(optimizer_class))

    def _signal_parameters(self, *args: Any, **_: Any) -> None:
        if args:
            self._session.on_parameters(args[0])

    def _make_run(self) -> Run:
        """Returns the function that runs and records a step."""
        session, limit, running = self._session, self._session.limit, self._running
        emit, now, numbers = session.emit, session.phase_now, self._numbers
        calling, calls_closure, record = self._calling, self._calls_closure, self._record_step
        on_step, before_step = session.on_step, limit.before_step

        def run(hooked: Wrapped, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            is_limited = False
            if before_step is not None and get_ident() not in running:
                is_limited = True
                before_step(id(args[0]))
            if len(args) > 1 or kwargs:
                calls_closure(args, kwargs)
            start = now()
            try:
                if is_limited:
                    running.add(get_ident())
                result = hooked(*args, **kwargs)
            except BaseException as error:
                hide_our_frame(error)
                raise
            finally:
                if is_limited:
                    running.discard(get_ident())
            end = now()
            if calling:
                calling.discard(get_ident())
            number = numbers.get(id(args[0]))
            if number is None:
                record(args[0], start, end)
            else:
                emit(_STEP, start, end, number)
            for watcher in on_step.watchers:
                watcher(args[0])
            if is_limited:
                limit.stepped(id(args[0]))
            return result

        let_dynamo_skip(uncounted(run))
        return run

    def _rewrap(self, optimizer: Any) -> None:
        """Wraps the steps of a class unpickled from another profiled process."""
        for cls in type(optimizer).__mro__:
            step = vars(cls).get("step")
            hooked = hooked_elsewhere(step)
            if hooked is not None:
                wrapper = step_around(hooked, self._around)
                vars(wrapper).update(vars(step))
                type.__setattr__(cls, "step", wrapper)

    def _with_closure(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Hooks the begin of the update in a step with a closure.

        After the closure torch's optimizers collect each group's tensors in a method, which is
        hooked. A wrapped closure would be visible to the script.
        """
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            return
        cls = type(args[0])
        if id(cls) not in self._asked:
            self._asked[id(cls)] = None
            self._session.keep_track(cls, self._asked, id(cls))
            owner = next((base for base in cls.__mro__ if _COLLECT in vars(base)), None)
            if owner is not None and owner.__module__.startswith("torch.optim."):
                collecting = called_around(self._update_begins)
                self._patcher.around_if_there(collecting, (owner, _COLLECT))
        self._calling.add(get_ident())

    def _update_begins(self, *_: Any, **__: Any) -> None:
        if self._calling and get_ident() in self._calling:
            self._calling.discard(get_ident())
            at = self._session.now()
            self._session.emit(_UPDATE_BEGINS, at, at)

    def _stepped(self, optimizer: Any, start: int, end: int) -> None:
        """Records an optimizer's first step and numbers the optimizer."""
        self._session.emit(_STEP, start, end, self._number(optimizer, self._numbers))
        self._session.on_first_step(optimizer)

    def _unwrap_steps(self, optimizer_class: Any) -> None:
        for cls in subclasses(optimizer_class):
            step = vars(cls).get("step")
            hooked = hooked_in(step, self._around)
            if hooked is not None:
                hooked.hooked = getattr(step, "hooked", False)  # torch marked our wrapper
                type.__setattr__(cls, "step", hooked)

    def _number(self, optimizer: Any, numbers: dict[int, int]) -> int:
        """Returns an optimizer's number, new if it has none, and stores it in `numbers`."""
        key = id(optimizer)
        number = self._skipped.pop(key, None)
        if number is None:
            number = self._new_number(type(optimizer).__qualname__)
        numbers[key] = number
        self._session.keep_track(optimizer, numbers, key)
        return number

    def _new_number(self, name: str) -> int:
        """Returns a new id for an optimizer, with a text only for the first ones of a class."""
        log, serial = self._session.log, next(self._serial)
        self._named[name] = named = self._named.get(name, 0) + 1
        if named <= MOST_NAMED:
            return log.define(Topic.OPTIMIZER, f"{name}#{serial}")
        if named == MOST_NAMED + 1:
            log.define(Topic.OPTIMIZER, f"{name}#")  # there are more
        return log.new_id()

    def _scaler_stepped(self, start: int, end: int, _: FrameType | None, given: Arguments) -> None:
        args, kwargs = given
        optimizer: Any = args[1] if len(args) > 1 else kwargs.get("optimizer")
        key = id(optimizer)
        number = self._numbers.get(key, self._skipped.get(key))
        if number is None:
            number = self._number(optimizer, self._skipped)
        self._session.emit(_SCALER_STEP, start, end, number)


def _schedulers(torch: ModuleType) -> list[Any]:
    """Returns torch's scheduler classes that define `step`, the base first."""
    module = getattr(torch.optim, "lr_scheduler", None)
    base = getattr(module, "LRScheduler", None)
    if not isinstance(base, type):
        return [base]
    classes = [cls for cls in vars(module).values() if isinstance(cls, type)]
    own = [cls for cls in classes if issubclass(cls, base) and "step" in vars(cls)]
    return [*dict.fromkeys([base, *own])]


_COLLECT: Final = "_init_group"
_UPDATE_BEGINS: Final = int(Kind.UPDATE_BEGINS)
_STEP, _SCALER_STEP = int(Kind.OPTIMIZER_STEP), int(Kind.SCALER_STEP)
