"""Records outermost module calls: the model's forward, loss modules, and functional losses."""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from trainprof.probes.patcher import Patcher, hide_our_frame
from trainprof.probes.session import Session
from trainprof.record.schema import ForwardFlag, Kind, Topic

Wrapped = Callable[..., Any]

FUNCTIONAL_LOSSES: Final = (
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cosine_embedding_loss",
    "cross_entropy",
    "ctc_loss",
    "gaussian_nll_loss",
    "hinge_embedding_loss",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "margin_ranking_loss",
    "mse_loss",
    "multi_margin_loss",
    "multilabel_margin_loss",
    "multilabel_soft_margin_loss",
    "nll_loss",
    "poisson_nll_loss",
    "smooth_l1_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
    "triplet_margin_with_distance_loss",
)


class ForwardProbe:
    """Hooks `Module.__call__` on the class; torch's global hooks would cause recompiles."""

    name = "forward"

    def __init__(self) -> None:
        # The thread that is inside an outermost call. Two threads at once record a few inner calls
        # too, which the analysis takes as parts of the outer one.
        self._inside = 0

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        self._torch = torch
        self._session = session
        self._classes: dict[type, tuple[int, int]] = {}
        loss = getattr(torch.nn.modules.loss, "_Loss", ())
        self._loss_class = loss
        check_limit = session.limit.before_forward
        self._record = patcher.guarded(self._record_call)
        patcher.around(
            self._make_call if check_limit is None else self._make_limited_call(check_limit),
            (torch.nn.Module, "__call__"),
        )
        functional = torch.nn.functional
        is_compiling = torch.compiler.is_compiling
        for name in FUNCTIONAL_LOSSES:
            if callable(vars(functional).get(name)):
                patcher.around(self._make_loss_maker(name, is_compiling), (functional, name))

    def _make_call(self, original: Wrapped) -> Wrapped:
        now, record, probe = self._session.now, self._record, self

        def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
            thread = get_ident()
            outer = probe._inside
            if outer == thread:
                try:
                    return original(self, *args, **kwargs)
                except BaseException as error:
                    hide_our_frame(error)
                    raise
            probe._inside = thread
            start = now()
            try:
                return original(self, *args, **kwargs)
            except BaseException as error:
                hide_our_frame(error)
                raise
            finally:
                probe._inside = outer
                record(self, start)

        return __call__

    def _make_limited_call(self, check_limit: Callable[[], None]) -> Callable[[Wrapped], Wrapped]:
        def make(original: Wrapped) -> Wrapped:
            call, probe = self._make_call(original), self

            def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
                if probe._inside == 0:
                    check_limit()
                try:
                    return call(self, *args, **kwargs)
                except BaseException as error:
                    hide_our_frame(error)
                    raise

            return __call__

        return make

    def _record_call(self, module: Any, start: int) -> None:
        end = self._session.now()
        known = self._classes.get(type(module))
        if known is None:
            known = self._classes[type(module)] = self._name(type(module))
        kind, number = known
        flags = ForwardFlag.GRAD if self._torch.is_grad_enabled() else 0
        if module.__dict__.get("training"):
            flags |= ForwardFlag.TRAINING
        self._session.emit(kind, start, end, number, 0, flags)

    def _name(self, cls: type) -> tuple[int, int]:
        kind = Kind.LOSS if issubclass(cls, self._loss_class) else Kind.FORWARD
        return int(kind), self._session.log.define(Topic.CLASS, cls.__qualname__)

    def _make_loss_maker(
        self, name: str, is_compiling: Callable[[], bool]
    ) -> Callable[[Wrapped], Wrapped]:
        emit, now, probe = self._session.emit, self._session.now, self
        is_grad_enabled, define = self._torch.is_grad_enabled, self._session.log.define
        number = 0
        kind, grad = int(Kind.LOSS), int(ForwardFlag.GRAD)

        def make(original: Wrapped) -> Wrapped:
            def loss(*args: Any, **kwargs: Any) -> Any:
                nonlocal number
                if is_compiling() or probe._inside == get_ident():
                    return original(*args, **kwargs)
                if number == 0:
                    number = define(Topic.CLASS, name)
                start = now()
                try:
                    return original(*args, **kwargs)
                except BaseException as error:
                    hide_our_frame(error)
                    raise
                finally:
                    emit(kind, start, now(), number, 0, grad if is_grad_enabled() else 0)

            # torch.jit.script compiles what this returns: the function without us.
            loss.__prepare_scriptable__ = lambda: original  # type: ignore[attr-defined]
            return loss

        return make
