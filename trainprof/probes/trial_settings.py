"""Sets torch's own settings for a trial: threads, precision, cuDNN's search."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Final

from trainprof.probes.patcher import Patcher, hide_our_frame
from trainprof.probes.session import Session
from trainprof.probes.trial_notes import TrialNotes

Wrapped = Callable[..., Any]

THREADS: Final = "torch_threads"
PRECISION: Final = "float32_matmul_precision"
BENCHMARK: Final = "cudnn_benchmark"
KNOWN: Final = (THREADS, PRECISION, BENCHMARK)


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
            self._set_precision(torch, self._asked[PRECISION])
        if BENCHMARK in self._asked:
            self._set_benchmark(torch, bool(self._asked[BENCHMARK]))

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

    def _set_precision(self, torch: Any, precision: str) -> None:
        try:
            torch.set_float32_matmul_precision(precision)
        except (RuntimeError, TypeError, ValueError) as error:
            self._notes.refuse(PRECISION, str(error))
            return
        self._notes.apply(PRECISION, precision)

        def check() -> None:
            now = torch.get_float32_matmul_precision()
            if now != precision:
                self._notes.take_back(PRECISION, f"the script sets it to {now!r} itself")

        self._notes.at_end.append(check)

    def _set_benchmark(self, torch: Any, is_on: bool) -> None:
        cudnn = torch.backends.cudnn
        if not cudnn.is_available():
            self._notes.refuse(BENCHMARK, "this torch has no cuDNN")
            return
        cudnn.benchmark = is_on
        self._notes.apply(BENCHMARK, is_on)

        def check() -> None:
            if cudnn.benchmark is not is_on:
                self._notes.take_back(BENCHMARK, f"the script sets it to {cudnn.benchmark} itself")

        self._notes.at_end.append(check)


def _is_daemon() -> bool:
    """Whether this process is a helper of another, as workers of loaders are: it keeps its own.

    Ranks that torch.multiprocessing starts are none.
    """
    multiprocessing = sys.modules.get("multiprocessing.process")
    return multiprocessing is not None and bool(multiprocessing.current_process().daemon)
