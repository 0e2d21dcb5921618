"""Records outermost module calls: the model's forward, loss modules, and functional losses."""

from __future__ import annotations

import sys
from _thread import get_ident
from functools import partial
from sys import modules
from types import ModuleType
from typing import Any, Final

from trainprof.inside.model.parameters import is_training
from trainprof.inside.patching.patcher import (
    COMPILER,
    Arguments,
    Patcher,
    Wrapped,
    hide_our_frame,
    let_dynamo_skip,
)
from trainprof.inside.session import Session
from trainprof.inside.signals import ModuleCall
from trainprof.record.hot import new_state
from trainprof.record.schema import ForwardFlag, Kind, Topic

FUNCTIONAL_LOSSES: Final = (
    *("binary_cross_entropy", "binary_cross_entropy_with_logits", "cosine_embedding_loss"),
    *("cross_entropy", "ctc_loss", "gaussian_nll_loss", "hinge_embedding_loss", "huber_loss"),
    *("kl_div", "l1_loss", "margin_ranking_loss", "mse_loss", "multi_margin_loss"),
    *("multilabel_margin_loss", "multilabel_soft_margin_loss", "nll_loss", "poisson_nll_loss"),
    *("smooth_l1_loss", "soft_margin_loss", "triplet_margin_loss"),
    *("triplet_margin_with_distance_loss",),
)


# Plain ints: reading an enum's attribute is slow.
GRAD: Final = int(ForwardFlag.GRAD)
TRAINING: Final = int(ForwardFlag.TRAINING)
FORWARD: Final = int(Kind.FORWARD)
LOSS: Final = int(Kind.LOSS)


class ForwardProbe:
    """Hooks `Module.__call__` on the class; torch's global hooks would cause recompiles."""

    name = "forward"

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        self._torch = torch
        self._session = session
        # By class id, removed with the class. None while each call is reported to watchers.
        self._classes: dict[int, tuple[int, int] | None] = {}
        self._names: dict[int, tuple[int, int]] = {}
        session.on_module_call.on_switch = patcher.guarded(self._switch)
        let_dynamo_skip(is_training, and_all_below=True)
        self._loss_class = getattr(torch.nn.modules.loss, "_Loss", ())
        self._record = patcher.guarded(self._record_call)
        # Threads inside an outermost call: the first one, and others.
        self._first = new_state()
        self._others: set[int] = set()
        now, inside, asked = session.phase_now, (self._first, self._others), torch.is_grad_enabled
        in_c = None
        if session.limit.before_forward is None:
            given = *inside, self._classes, asked, is_training
            in_c = session.in_c("module", *given, clocks=(now, now), kind=FORWARD)
        # One function; it pickles by its second name.
        places = ((torch.nn.Module, name) for name in ("__call__", "_wrapped_call_impl"))
        patcher.around(self._make_call, *places, woven=True, in_c=in_c)
        functional = torch.nn.functional
        for name in FUNCTIONAL_LOSSES:
            if callable(vars(functional).get(name)):
                number = partial(session.log.define, Topic.CLASS, name)
                in_c = session.timed_in_c(
                    LOSS, now, outside=inside, is_grad_enabled=asked, site=number
                )
                patcher.around(partial(self._make_loss, name), (functional, name), in_c=in_c)

    def _make_call(self, original: Wrapped) -> Wrapped:
        emit, now, record = self._session.emit, self._session.phase_now, self._record
        first, others, classes = self._first, self._others, self._classes
        is_grad_enabled = self._torch.is_grad_enabled
        check_limit = self._session.limit.before_forward

        def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
            thread = get_ident()
            if thread == first.thread or (others and thread in others):
                try:
                    return original(self, *args, **kwargs)
                except BaseException as error:
                    hide_our_frame(error)
                    raise
            if check_limit is not None:
                check_limit()
            start = now()
            # The script's signal handlers may raise wherever a clock is read, so the thread counts
            # as inside only within the `try`.
            try:
                if first.thread:
                    others.add(thread)
                else:
                    first.thread = thread
                return original(self, *args, **kwargs)
            except BaseException as error:
                hide_our_frame(error)
                raise
            finally:
                if thread == first.thread:
                    first.thread = 0
                else:
                    others.discard(thread)
                end = now()
                known = classes.get(id(type(self)))
                if known is None:
                    record(self, start, end, (args, kwargs))
                else:
                    kind, number = known
                    flags = GRAD if is_grad_enabled() else 0
                    if kind == FORWARD:
                        mode = self.__dict__.get("training")
                        if mode is True or (mode is None and is_training(self)):
                            flags |= TRAINING
                    emit(kind, start, end, number, 0, flags)

        return __call__

    def _switch(self) -> None:
        """Routes all calls through `_record_call`, or again only those of new classes."""
        is_watched = bool(self._session.on_module_call.watchers)
        for key in list(self._classes):
            self._classes[key] = None if is_watched else self._names.get(key)

    def _record_call(self, module: Any, start: int, end: int, inputs: Arguments) -> None:
        """Records the first call of a class and numbers the class."""
        if not hasattr(module, "__dict__"):
            return  # `nn.Module.__call__(1)` has raised
        self._session.on_thread()
        if self._session.on_module_call.watchers:
            site = self._session.sites.find(sys._getframe(1))
            self._session.on_module_call(ModuleCall(module, inputs, site, end - start))
        kind, number = self._name(type(module))
        flags = GRAD if self._torch.is_grad_enabled() else 0
        if is_training(module):
            flags |= TRAINING
        self._session.emit(kind, start, end, number, 0, flags)

    def _name(self, cls: type) -> tuple[int, int]:
        key = id(cls)
        if key not in self._names:
            kind = Kind.LOSS if issubclass(cls, self._loss_class) else Kind.FORWARD
            number = self._session.log.define(Topic.CLASS, cls.__qualname__)
            self._names[key] = int(kind), number
            self._session.keep_track(cls, self._names, key)
            self._session.keep_track(cls, self._classes, key)
        is_watched = bool(self._session.on_module_call.watchers)
        self._classes[key] = None if is_watched else self._names[key]
        return self._names[key]

    def _make_loss(self, name: str, original: Wrapped) -> Wrapped:
        emit, now = self._session.emit, self._session.phase_now
        first, others = self._first, self._others
        is_compiling = self._session.is_compiling
        is_grad_enabled, define = self._torch.is_grad_enabled, self._session.log.define
        number = 0

        def loss(*args: Any, **kwargs: Any) -> Any:
            nonlocal number
            if COMPILER in modules and is_compiling():
                return original(*args, **kwargs)
            thread = get_ident()
            if thread == first.thread or thread in others:
                try:
                    return original(*args, **kwargs)
                except BaseException as error:
                    hide_our_frame(error)
                    raise
            if number == 0:
                number = define(Topic.CLASS, name)
            start = now()
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                hide_our_frame(error)
                raise
            finally:
                emit(LOSS, start, now(), number, 0, GRAD if is_grad_enabled() else 0)

        return loss
