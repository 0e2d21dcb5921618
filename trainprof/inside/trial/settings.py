"""Applies torch settings for a trial: threads, precision, formats, fused optimizers."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType
from typing import Any, Final

from trainprof.inside.patching.patcher import Patcher, Wrapped, hide_our_frame, loaded
from trainprof.inside.session import Session
from trainprof.inside.trial.notes import TrialNotes

THREADS: Final = "torch_threads"
PRECISION: Final = "float32_matmul_precision"
BENCHMARK: Final = "cudnn_benchmark"
AUTOCAST: Final = "autocast"
CHANNELS_LAST: Final = "channels_last"
FUSED: Final = "fused"
OPTIMIZER_SETTINGS: Final = (FUSED, "foreach")
_CONVOLUTION_DIMENSIONS: Final = 4
# With these torch refuses fused and foreach, or computes something else.
_NOT_WITH: Final = ("capturable", "differentiable")


class SettingsProbe:
    """Applies settings when torch is imported.

    The number of threads overrides the script's; for other settings the script's choice wins.
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
            put = partial(setattr, cudnn, "benchmark")
            self._set(BENCHMARK, bool(self._asked[BENCHMARK]), lambda: cudnn.benchmark, put)

    def _set_threads(self, torch: Any, patcher: Patcher, threads: int) -> None:
        try:
            torch.set_num_threads(threads)
        except (RuntimeError, TypeError) as error:
            self._notes.refuse(THREADS, str(error))
            return

        def set_again(_: object) -> None:
            if not _is_daemon():
                own(threads)

        own = torch.set_num_threads
        patcher.around(_called_after(set_again), (torch, "set_num_threads"))
        self._notes.apply(THREADS, threads)

    def _set(
        self, name: str, wanted: Any, get: Callable[[], Any], put: Callable[[Any], Any]
    ) -> None:
        """Applies a setting that the script may override later."""
        try:
            put(wanted)
        except (RuntimeError, TypeError, ValueError) as error:
            self._notes.refuse(name, str(error))
            return
        self._notes.apply(name, wanted)

        def check() -> None:
            if (now := get()) != wanted:
                self._notes.take_back(name, f"the script sets it to {now!r}")

        self._notes.at_end.append(check)


class OptimizerSettingsProbe:
    """Makes optimizers fused or foreach; `asked` is one of OPTIMIZER_SETTINGS."""

    name = "trial_optimizer"

    def __init__(self, asked: str, notes: TrialNotes) -> None:
        self._asked, self._notes = asked, notes
        # Changed optimizers, by id.
        self._changed: dict[int, None] = {}

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        self._session = session
        module = loaded("torch.optim.optimizer")
        self._base = module.Optimizer
        for name, after in (("__init__", self._built), ("load_state_dict", self._loaded)):
            make = _called_after(patcher.guarded(after))
            patcher.around(make, (module.Optimizer, name))

    def _built(self, optimizer: Any) -> None:
        """Changes an optimizer after the base constructor, which has set its parameters."""
        why_not = self._why_not(optimizer)
        if why_not is not None:
            self._notes.refuse(self._asked, f"{type(optimizer).__name__}: {why_not}")
            return
        self._set(optimizer)
        self._changed[id(optimizer)] = None
        self._session.keep_track(optimizer, self._changed, id(optimizer))
        self._notes.apply(self._asked, True)

    def _why_not(self, optimizer: Any) -> str | None:
        defaults = optimizer.defaults
        is_torchs = any(
            cls.__module__.startswith("torch.optim.") and cls is not self._base
            for cls in type(optimizer).__mro__
        )
        if not is_torchs or self._asked not in defaults:
            return f"it has no option {self._asked}"
        for settings in (defaults, *optimizer.param_groups):
            for name in OPTIMIZER_SETTINGS:
                if settings.get(name) is not None:
                    return f"the script sets {name}={settings[name]}"
            for name in _NOT_WITH:
                if settings.get(name):
                    return f"the script sets {name}"
        return None

    def _loaded(self, optimizer: Any) -> None:
        """Applies the setting again: load_state_dict replaces the groups."""
        if id(optimizer) in self._changed:
            self._set(optimizer)

    def _set(self, optimizer: Any) -> None:
        for settings in (optimizer.defaults, *optimizer.param_groups):
            settings[self._asked] = True
        if self._asked == FUSED:
            # As torch's constructors do: GradScaler leaves unscaling to the fused kernel.
            optimizer._step_supports_amp_scaling = True


class AutocastProbe:
    """Enables the autocast contexts in the script, with float16 its gradient scalers too."""

    name = "trial_autocast"

    def __init__(self, asked: str, notes: TrialNotes) -> None:
        self._asked, self._notes = asked, notes

    def attach(self, torch: Any, patcher: Patcher, session: Session) -> None:
        dtype, is_on = getattr(torch, self._asked), torch.is_autocast_enabled
        apply = self._notes.apply

        def change(arguments: dict[str, Any]) -> None:
            # A disabled inner context keeps its part in float32.
            kind = arguments.get("device_type")
            if kind != "cpu" and not is_on(kind):
                arguments |= {"dtype": dtype, "enabled": True}
                apply(AUTOCAST, self._asked)

        autocast = torch.amp.autocast_mode.autocast
        patcher.around(_with_arguments(patcher.guarded(change)), (autocast, "__init__"))
        if self._asked == "float16":
            enable = _with_arguments(lambda arguments: arguments.update(enabled=True))
            patcher.around(enable, (torch.amp.grad_scaler.GradScaler, "__init__"))


class ChannelsLastProbe:
    """Converts 4-D weights to channels_last when an optimizer is built with them.

    A convolution uses its weight's format for its input and output too.
    """

    name = "trial_channels_last"

    def __init__(self, notes: TrialNotes) -> None:
        self._notes = notes

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        self._format, self._plain = torch.channels_last, torch.nn.Parameter
        make = _called_after(patcher.guarded(self._built))
        patcher.around(make, (loaded("torch.optim.optimizer").Optimizer, "__init__"))

    def _built(self, optimizer: Any) -> None:
        weights = [x for group in optimizer.param_groups for x in group["params"]]
        weights = [
            x for x in weights if type(x) is self._plain and x.dim() == _CONVOLUTION_DIMENSIONS
        ]
        others = [x for x in weights if not x.is_contiguous(memory_format=self._format)]
        for weight in others:
            weight.data = weight.data.contiguous(memory_format=self._format)
        if others:
            self._notes.apply(CHANNELS_LAST, True)
        elif weights:
            self._notes.refuse(CHANNELS_LAST, "the weights already have that format")


def _with_arguments(change: Callable[[dict[str, Any]], None]) -> Callable[[Wrapped], Wrapped]:
    """Returns a wrapper that lets `change` modify a method's arguments by name."""

    def make(original: Wrapped) -> Wrapped:
        names = [*inspect.signature(original).parameters]

        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                arguments = {**dict(zip(names[1:], args[1:], strict=False)), **kwargs}
                change(arguments)
                return original(*args[:1], *args[len(names) :], **arguments)
            except BaseException as error:
                hide_our_frame(error)
                raise

        return call

    return make


def _called_after(callback: Callable[[Any], None]) -> Callable[[Wrapped], Wrapped]:
    """Returns a wrapper that calls `callback` with a function's first argument afterwards."""

    def make(original: Wrapped) -> Wrapped:
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                result = original(*args, **kwargs)
                if args:
                    callback(args[0])
            except BaseException as error:
                hide_our_frame(error)
                raise
            return result

        return call

    return make


def _is_daemon() -> bool:
    """Whether this is a daemon process such as a loader worker, which keeps its own threads."""
    multiprocessing = sys.modules.get("multiprocessing.process")
    return multiprocessing is not None and bool(multiprocessing.current_process().daemon)
