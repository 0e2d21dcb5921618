"""Sets torch's own settings for a trial: threads, precision, cuDNN's search."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType
from typing import Any, Final

from trainprof.inside.patching.patcher import Patcher, hide_our_frame
from trainprof.inside.session import Session
from trainprof.inside.trial.notes import TrialNotes

Wrapped = Callable[..., Any]

THREADS: Final = "torch_threads"
PRECISION: Final = "float32_matmul_precision"
BENCHMARK: Final = "cudnn_benchmark"


class SettingsProbe:
    """Sets them as torch is imported.

    The number of threads stays as set, whatever the script asks for; in the others the script's
    own choice stands, and is noted as the reason.
    """

    name = "trial_settings"

    def __init__(self, asked: Mapping[str, Any], notes: TrialNotes) -> None:
        self._asked, self._notes = asked, notes

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        if THREADS in self._asked and not _is_daemon():
            self._set_threads(torch, patcher, self._asked[THREADS])
        if PRECISION in self._asked:
            get, put = torch.get_float32_matmul_precision, torch.set_float32_matmul_precision
            self._set(PRECISION, self._asked[PRECISION], get, put)
        cudnn: Any = torch.backends.cudnn
        if BENCHMARK in self._asked and not cudnn.is_available():
            self._notes.refuse(BENCHMARK, "this torch has no cuDNN")
        elif BENCHMARK in self._asked:
            is_on = bool(self._asked[BENCHMARK])
            self._set(
                BENCHMARK, is_on, lambda: cudnn.benchmark, partial(setattr, cudnn, "benchmark")
            )

    def _set_threads(self, torch: Any, patcher: Patcher, threads: int) -> None:
        try:
            torch.set_num_threads(threads)
        except (RuntimeError, TypeError) as error:
            self._notes.refuse(THREADS, str(error))
            return

        def make(original: Wrapped) -> Wrapped:
            def set_num_threads(*args: Any, **kwargs: Any) -> None:
                try:
                    original(*args, **kwargs)
                    if not _is_daemon():
                        original(threads)
                except BaseException as error:
                    hide_our_frame(error)
                    raise

            return set_num_threads

        patcher.around(make, (torch, "set_num_threads"))
        self._notes.apply(THREADS, threads)

    def _set(
        self, name: str, wanted: Any, get: Callable[[], Any], put: Callable[[Any], Any]
    ) -> None:
        """Sets what the script may set otherwise later on: then that stands."""
        try:
            put(wanted)
        except (RuntimeError, TypeError, ValueError) as error:
            self._notes.refuse(name, str(error))
            return
        self._notes.apply(name, wanted)

        def check() -> None:
            if (now := get()) != wanted:
                self._notes.take_back(name, f"the script sets it to {now!r} itself")

        self._notes.at_end.append(check)


def _is_daemon() -> bool:
    """Whether this process is a helper of another, as workers of loaders are: it keeps its own.

    Ranks that torch.multiprocessing starts are none.
    """
    multiprocessing = sys.modules.get("multiprocessing.process")
    return multiprocessing is not None and bool(multiprocessing.current_process().daemon)
