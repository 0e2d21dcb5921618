"""How large the logits are that a model gives by that name, as Hugging Face's do."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from trainprof.probes.function_modes import FunctionModes
from trainprof.probes.session import Session
from trainprof.record.schema import Topic

_LOGITS: Final = "logits"
# A script may make classes of models all the time.
_MOST_NOTES: Final = 8


class LogitsSize:
    """Is told what the first call of a class of models gave, and notes the bytes of a sample."""

    def __init__(self, torch: ModuleType, session: Session) -> None:
        self._tensor, self._session = getattr(torch, "Tensor", None), session
        self._modes = FunctionModes(torch)
        self._is_traced: Callable[[], Any] = getattr(torch._C, "_get_tracing_state", lambda: None)
        self._notes = 0

    def meet(self, output: Any) -> None:
        # Not by a method of the output's: it may be of a class of the script's own.
        logits: Any = dict.get(output, _LOGITS) if issubclass(type(output), dict) else None
        if type(logits) is not self._tensor or self._notes >= _MOST_NOTES:
            return
        if self._modes.would_notice() or self._is_traced() is not None:
            return  # a trace would have what is asked for in it
        with self._modes.unseen():
            samples = logits.shape[0] if logits.dim() > 1 else 0
            if samples:
                self._notes += 1
                each = logits.numel() * logits.element_size() // samples
                self._session.log.note(Topic.ENVIRONMENT, {"logits_bytes": each})
