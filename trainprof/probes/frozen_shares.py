"""Tells how much of a model needs no gradient: two of one class may differ, and it may change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

from trainprof.probes.function_modes import FunctionModes
from trainprof.probes.module_parts import parameters_of
from trainprof.probes.session import Session
from trainprof.record.schema import Topic

# Of one class; a script may call each layer by itself.
_MOST_OF_A_CLASS: Final = 8
# A model is asked again after so many times what asking it took, then each time after twice that.
_PAUSE: Final = 1000
# In a script that freezes anew all the time.
_MOST_NOTES: Final = 200


@dataclass(slots=True)
class _Model:
    """A model that was asked.

    Attributes:
        serial: Tells it from others of its class.
        pause_ns: How long it is left alone when it is asked next.
        due_ns: When to ask it again, at the earliest.
        told: What of it needs no gradient, 0 to 1; whether it was called with gradients enabled.
    """

    serial: int
    pause_ns: int = 0
    due_ns: int = 0
    told: tuple[float, bool] | None = None

    def may_be_asked(self, now_ns: int, has_gradients: bool) -> bool:
        """Whether it is due; once a call has had gradients, those without do not matter."""
        if self.told is None or (has_gradients and not self.told[1]):
            return True
        return has_gradients and now_ns >= self.due_ns


class FrozenShares:
    """Is told of outermost calls that are looked at anyway: the first of a class, and some others.

    Nothing is noted of a class until one of it has something that needs no gradient.
    """

    def __init__(self, torch: ModuleType, session: Session) -> None:
        self._torch, self._session, self._modes = torch, session, FunctionModes(torch)
        self._is_traced: Callable[[], Any] = getattr(torch._C, "_get_tracing_state", lambda: None)
        # By id, of those that live.
        self._models: dict[int, _Model] = {}
        # By class: how many there have been, and what is to be noted of them yet; None where
        # something has been noted.
        self._counts: dict[int, int] = {}
        self._waiting: dict[int, list[dict[str, Any]] | None] = {}
        self._notes = 0

    def meet(self, module: Any, number: int, start_ns: int, *, has_gradients: bool) -> None:
        """Asks a model whose call began then; `number` is that of its class."""
        model, now = self._model(module, number), self._session.now()
        if model is None or not model.may_be_asked(now, has_gradients):
            return
        if self._modes.would_notice() or self._is_traced() is not None:
            return  # a trace would have what is asked for in it
        frozen, numbers = self._sizes(module)
        took_ns = self._session.looked_since(now)
        model.pause_ns = max(_PAUSE * took_ns, 2 * model.pause_ns)
        model.due_ns = now + model.pause_ns
        told = frozen / max(numbers, 1), has_gradients
        if numbers and told != model.told:
            model.told = told
            self._note(
                {
                    "frozen": frozen,
                    "numbers": numbers,
                    "class": number,
                    "model": model.serial,
                    "has_gradients": has_gradients,
                    "at": start_ns,
                }
            )

    def _model(self, module: Any, number: int) -> _Model | None:
        """Returns what is known of a model; None where there are too many of its class."""
        key = id(module)
        known = self._models.get(key)
        if known is None:
            count = self._counts.get(number, 0)
            if count >= _MOST_OF_A_CLASS:
                return None
            self._counts[number] = count + 1
            known = self._models[key] = _Model(count)
            if not self._session.keep_track(module, self._models, key):
                del self._models[key]
        return known

    def _sizes(self, module: Any) -> tuple[int, int]:
        """Returns how many numbers in it need no gradient, and how many it has."""
        sizes = {True: 0, False: 0}
        with self._modes.unseen():
            for parameter in parameters_of(module):
                if type(parameter) is self._torch.nn.Parameter:
                    sizes[parameter.requires_grad] += parameter.numel()
        return sizes[False], sum(sizes.values())

    def _note(self, told: dict[str, Any]) -> None:
        waiting = self._waiting.setdefault(told["class"], [])
        due = [told] if waiting is None else [*waiting, told]
        if waiting is not None and not told["frozen"]:
            self._waiting[told["class"]] = due
            return
        self._waiting[told["class"]] = None
        for one in due:
            self._notes += 1
            if self._notes <= _MOST_NOTES:
                self._session.log.note(Topic.ENVIRONMENT, one)
