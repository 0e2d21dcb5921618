"""Changes the loaders of a trial: other arguments, non-blocking copies, or the loader alone.

Lightning replaces `DataLoader.__init__`, so attributes are set on the complete object, and torch's
checks of their combinations are repeated here.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from types import FrameType, ModuleType
from typing import Any, Final

from trainprof.inside.patching.function_modes import FunctionModes
from trainprof.inside.patching.patcher import Patcher, Wrapped, hide_our_frame, loaded, subclasses
from trainprof.inside.session import Session
from trainprof.inside.spans.loader import LoaderProbe
from trainprof.inside.trial.notes import TrialNotes, TrialSites

WORKERS: Final = "num_workers"
# Meaningless without workers.
_OF_WORKERS: Final = ("prefetch_factor", "persistent_workers", "multiprocessing_context")
_DEFAULT_PREFETCH: Final = 2  # torch's, with workers


class LoaderOverridesProbe:
    """Sets arguments of loaders when their first iterator is created.

    `asked`: arguments by name, with one value or a mapping from site to value.
    """

    name = "trial_loaders"

    def __init__(self, sites: TrialSites, asked: Mapping[str, Any], notes: TrialNotes) -> None:
        self._sites, self._asked, self._notes = sites, asked, notes
        self._done: dict[int, None] = {}
        self._made_persistent: dict[int, None] = {}

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        self._torch, self._session = torch, session
        base: Any = loaded("torch.utils.data.dataloader").DataLoader
        override, done = patcher.guarded(self._override), self._done
        keep_drawing = patcher.guarded(self._keep_drawing)
        this_frame = sys._getframe

        def make(original: Wrapped) -> Wrapped:
            def iterate(*args: Any, **kwargs: Any) -> Any:
                if args and id(args[0]) not in done:
                    override(args[0], this_frame().f_back)
                try:
                    iterator = original(*args, **kwargs)
                except BaseException as error:
                    hide_our_frame(error)
                    raise
                if args and id(args[0]) in self._made_persistent:
                    keep_drawing(args[0])
                return iterator

            return iterate

        def wrap(cls: type) -> None:
            for name in ("__iter__", "_get_iterator"):
                if callable(vars(cls).get(name)):
                    patcher.around_if_there(make, (cls, name))

        for cls in (base, *subclasses(base)):
            wrap(cls)
        wrap_later = patcher.guarded(wrap)

        def __init_subclass__(cls: type, /, **keywords: Any) -> None:
            super(base, cls).__init_subclass__(**keywords)  # type: ignore[misc]
            wrap_later(cls)

        patcher.add(base, "__init_subclass__", classmethod(__init_subclass__))

    def _override(self, loader: Any, frame: FrameType | None) -> None:
        key = id(loader)
        self._done[key] = None
        self._session.keep_track(loader, self._done, key)
        site = self._sites.site_of(self._session, loader, frame)
        if site is None:
            return
        asked = arguments_at(site, self._asked)
        was_persistent = bool(loader.persistent_workers)
        values, refused = together(asked, loader)
        if values.get("pin_memory") and not _has_accelerator(self._torch):
            del values["pin_memory"]
            refused["pin_memory"] = "no accelerator to pin memory for"
        why_not = _why_not_now(loader)
        if why_not is None:
            why_not = _set_all(loader, values)
        if why_not is not None:
            refused = dict.fromkeys(asked, why_not)
        elif values.get("persistent_workers") and not was_persistent:
            self._made_persistent[key] = None
            self._session.keep_track(loader, self._made_persistent, key)
        for name, why in refused.items():
            self._notes.refuse(name, f"{site}: {why}")
        for name in asked:
            if name not in refused:
                self._notes.apply(name, self._asked[name])

    def _keep_drawing(self, loader: Any) -> None:
        """Makes an iterator draw a seed at each reset if the trial made its workers persistent.

        torch draws none for persistent workers in later epochs, and shuffling would differ.
        """
        iterator = vars(loader).get("_iterator")
        if iterator is None:
            return
        self._made_persistent.pop(id(loader), None)
        torch, own, original = self._torch, weakref.ref(iterator), type(iterator)._reset

        def reset(loader: Any, *args: Any, **kwargs: Any) -> Any:
            seed = torch.empty((), dtype=torch.int64)
            seed.random_(generator=loader.generator)
            return original(own(), loader, *args, **kwargs)

        iterator._reset = reset


def arguments_at(site: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value[site] if isinstance(value, Mapping) else value
        for name, value in asked.items()
        if not isinstance(value, Mapping) or site in value
    }


def together(asked: Mapping[str, Any], loader: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the attributes to set on a loader, in order, and reasons why others cannot be set."""
    values: dict[str, Any] = {}
    refused: dict[str, str] = {}
    workers = loader.num_workers
    if WORKERS in asked:
        values[WORKERS] = workers = asked[WORKERS]
    if "pin_memory" in asked:
        values["pin_memory"] = bool(asked["pin_memory"])
    if not workers:
        refused |= {name: "the loader has no workers" for name in _OF_WORKERS if asked.get(name)}
        if WORKERS in values:
            values |= dict.fromkeys(_OF_WORKERS) | {"persistent_workers": False}
            values["timeout"] = 0  # required without workers
        return values, refused
    prefetch = asked.get("prefetch_factor")
    values["prefetch_factor"] = prefetch or loader.prefetch_factor or _DEFAULT_PREFETCH
    for name in ("persistent_workers", "multiprocessing_context"):
        if name in asked:
            values[name] = asked[name]
    return values, refused


def _why_not_now(loader: Any) -> str | None:
    held = vars(loader)
    if held.get("_iterator") is not None and held.get("persistent_workers"):
        return "its persistent workers were already started"
    if held.get("next_iter_state") is not None:  # torchdata's StatefulDataLoader
        return "it resumes from a saved state of its own workers"
    return None


def _set_all(loader: Any, values: Mapping[str, Any]) -> str | None:
    """Sets all attributes, or none and returns the reason."""
    set_ = object.__setattr__  # DataLoader's refuses
    before = {name: getattr(loader, name) for name in values}
    try:
        for name, value in values.items():
            set_(loader, name, value)
    except Exception as error:
        for name in reversed(before):
            set_(loader, name, before[name])
        return f"{type(error).__name__}: {error}"
    return None


def _has_accelerator(torch: ModuleType) -> bool:
    """Whether there is an accelerator, by the check of torch's iterators."""
    accelerator: Any = getattr(torch, "accelerator", None)
    if hasattr(accelerator, "is_available"):
        return bool(accelerator.is_available())
    return bool(torch.cuda.is_available())


class NonBlockingProbe:
    """Makes copies of pinned tensors to a device non-blocking, where a trial pins memory."""

    name = "trial_copies"

    def __init__(self) -> None:
        self.plain_types: set[type] = set()

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        self._modes = FunctionModes(torch)
        self._device_type = torch.device
        self.plain_types.update({torch.Tensor, torch.nn.Parameter})
        for name in ("to", "cuda"):
            make = self._maker(patcher, always_leads_across=name == "cuda")
            patcher.around_if_there(make, (torch.Tensor, name), inherited=True)

    def _maker(
        self, patcher: Patcher, *, always_leads_across: bool
    ) -> Callable[[Wrapped], Wrapped]:
        plain = self.plain_types

        def does_wait(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
            """Whether a call copies from pinned memory to a device, and blocks."""
            if patcher.is_silent or self._modes.depth() or not args[0].is_cpu:
                return False
            if not (always_leads_across or self._leads_to_device(args, kwargs)):
                return False
            # A dispatch mode of the script would see the call.
            return not self._modes.dispatch_depth() and bool(args[0].is_pinned())

        def make(original: Wrapped) -> Wrapped:
            def copy(*args: Any, **kwargs: Any) -> Any:
                if args and type(args[0]) in plain:
                    try:
                        if does_wait(args, kwargs):
                            args, kwargs = without_waiting(args, kwargs)
                    except Exception as error:
                        patcher.fail(error)
                try:
                    return original(*args, **kwargs)
                except BaseException as error:
                    hide_our_frame(error)
                    raise

            return copy

        return make

    def _leads_to_device(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        where: Any = args[1] if len(args) > 1 else kwargs.get("device", kwargs.get("other"))
        if type(where) in self.plain_types:
            where = where.device
        if type(where) is self._device_type:
            where = where.type
        is_named = type(where) is str and where.partition(":")[0] not in ("cpu", "meta")
        return is_named or type(where) is int


def without_waiting(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the arguments with `non_blocking=True`: the first positional bool."""
    place = next((n for n, value in enumerate(args) if type(value) is bool), None)
    if place is None:
        return args, {**kwargs, "non_blocking": True}
    return (*args[:place], True, *args[place + 1 :]), kwargs


class LoaderAloneProbe:
    """Iterates a loader without training, to measure its throughput, and ends the run.

    Ignores a `next` with gradients off, which is evaluation. `batches`: number to draw, over
    several epochs if needed; None for one epoch.
    """

    name = "trial_alone"

    def __init__(
        self, loader: LoaderProbe, sites: TrialSites, notes: TrialNotes, batches: int | None
    ) -> None:
        self._loader, self._sites, self._notes = loader, sites, notes
        self._batches = batches
        # By the id of an iterator; keeps loaders alive that the script releases.
        self._loaders: dict[int, Any] = {}
        self._is_waiting = True

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        dataloader = loaded("torch.utils.data.dataloader")
        self._base = dataloader._BaseDataLoaderIter
        self._session, self._iterate = session, dataloader.DataLoader.__iter__
        self._loader.on_new_iterator.append(patcher.guarded(self._entered))
        is_learning, loaders = torch.is_grad_enabled, self._loaders

        def make(original: Wrapped) -> Wrapped:
            def __next__(iterator: Any) -> Any:
                try:
                    if self._is_waiting and id(iterator) in loaders and is_learning():
                        self._is_waiting = False
                        if self._may_end_the_run():
                            self._draw(original, iterator)
                        loaders.clear()
                    return original(iterator)
                except BaseException as error:
                    hide_our_frame(error)
                    raise

            return __next__

        patcher.around(make, (self._base, "__next__"))

    def _entered(self, iterator: Any, loader: Any) -> None:
        if not self._is_waiting:
            return
        if self._sites.site_of(self._session, loader, sys._getframe(4)) is not None:
            key = id(iterator)
            self._loaders[key] = loader
            self._session.keep_track(iterator, self._loaders, key)

    def _may_end_the_run(self) -> bool:
        if threading.current_thread() is threading.main_thread():
            return True
        self._notes.refuse("data", "the loader is not iterated on the main thread")
        # The rest would repeat the baseline.
        self._session.limit.end_trial_soon()
        return False

    def _draw(self, take: Wrapped, iterator: Any) -> None:
        loader = self._loaders[id(iterator)]
        self._notes.apply("data", "alone")
        drawn = in_epoch = 0
        while self._batches is None or drawn < self._batches:
            try:
                take(iterator)
            except StopIteration:
                if self._batches is None or in_epoch == 0:
                    break
                iterator, in_epoch = self._next_epoch(loader), 0
                continue
            drawn, in_epoch = drawn + 1, in_epoch + 1
        self._session.limit.end_trial()

    def _next_epoch(self, loader: Any) -> Any:
        fresh = iter(loader)
        # A subclass may return a generator, whose work is not the loader's.
        return fresh if isinstance(fresh, self._base) else self._iterate(loader)
