"""Records each DataLoader's iterators in the training thread: creation, `next`, sampler, end."""

from __future__ import annotations

import json
import sys
from _thread import get_ident
from collections.abc import Callable
from functools import partial
from types import FrameType, ModuleType
from typing import Any, Final

from trainprof.inside.loading.dataset_tracking import ChangedDatasets, DatasetNumbers, LowestFree
from trainprof.inside.loading.loader_metadata import LoaderDescriptions
from trainprof.inside.loading.worker_requirements import is_on_device
from trainprof.inside.patching.call_site import Birthplace, LoaderBirthplaces
from trainprof.inside.patching.function_modes import FunctionModes
from trainprof.inside.patching.patcher import (
    HookPointMissing,
    Patcher,
    Wrapped,
    hide_our_frame,
    loaded,
    subclasses,
)
from trainprof.inside.session import Session
from trainprof.record.schema import Kind, Topic


class LoaderProbe:
    """Hooks the iterators, not DataLoader: every loop calls `__next__`.

    It changes neither `type(iter(loader))` nor the script's objects.
    """

    name = "loader"

    def __init__(self) -> None:
        # By thread; a forked worker keeps the thread's ident.
        self._creating: dict[int, int] = {}
        self._watchers: list[Callable[[type], None]] = []
        # Called with each new iterator and its loader, before the iterator is built.
        self.on_new_iterator: list[Callable[[Any, Any], None]] = []
        self._loader_of: dict[int, int] = {}
        self._numbers: dict[int, int] = {}
        self._site_of: dict[int, int] = {}
        self._serials: dict[int, dict[int, None]] = {}
        self._lowest = LowestFree()
        self._inspected: set[int] = set()  # loaders whose first batch was inspected
        self._is_reloading = False

    @property
    def creating(self) -> int:
        """Id of the loader whose iterator this or the parent's thread is creating, else 0."""
        return self._creating.get(get_ident(), 0)

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        dataloader, base = loaded("torch.utils.data.dataloader"), _iterator_base()
        self._session = session
        self._tensor = getattr(torch, "Tensor", None)
        self._modes = FunctionModes(torch)
        self._datasets = DatasetNumbers(session.keep_track)
        self._descriptions = LoaderDescriptions(session.sites)
        self._datasets_between = ChangedDatasets(
            session.log, session.keep_track, self._descriptions.is_own_class
        )
        self._births = LoaderBirthplaces(session.sites, session.keep_track)
        self._loader_class: type = dataloader.DataLoader
        in_c = None
        if session.limit.before_batch is None:
            given = (self._loader_of, session.log.unwritten)
            ends = patcher.guarded(self._ended), patcher.guarded(self._began)
            clocks = session.wait_now, session.wait_now
            in_c = session.in_c("next", *given, *ends, clocks=clocks, kind=_NEXT)
        patcher.around(partial(self._make_next, patcher), (base, "__next__"), in_c=in_c)
        patcher.around_if_there(
            partial(self._make_setattr, patcher), (dataloader.DataLoader, "__setattr__")
        )
        self._watch_iterators(patcher, base)

    def number_of(self, iterator: Any) -> int:
        """Returns the id of an iterator's loader, 0 if unknown."""
        return self._loader_of.get(id(iterator), 0)

    def site_of(self, loader: Any, frame: FrameType | None) -> int:
        """Returns the site id of the line that built a loader, of `frame` if unknown."""
        number = self._numbers.get(id(loader))
        return self._place_of(loader, frame).site if number is None else self._site_of[number]

    def _place_of(self, loader: Any, frame: FrameType | None) -> Birthplace:
        return self._births.of(loader) or Birthplace(self._session.sites.find(frame))

    def watch_classes(self, patcher: Patcher, wrap: Callable[[type], None]) -> None:
        """Calls `wrap` with each iterator class with workers, existing and later ones."""

        def wrap_if_it_sends(cls: type) -> None:
            if "_try_put_index" in vars(cls):
                wrap(cls)

        for cls in subclasses(_iterator_base()):
            wrap_if_it_sends(cls)
        self._watchers.append(patcher.guarded(wrap_if_it_sends))

    def watch_later_classes(self, wrap: Callable[[type], None]) -> None:
        """Calls `wrap`, which must not fail, with each iterator class defined later."""
        self._watchers.append(wrap)

    def _make_next(self, patcher: Patcher, original: Wrapped) -> Wrapped:
        emit, now = self._session.emit, self._session.wait_now
        loader_of, log = self._loader_of, self._session.log
        check_limit = self._session.limit.before_batch
        ended, began = patcher.guarded(self._ended), patcher.guarded(self._began)

        def __next__(self: Any) -> Any:
            if check_limit is not None:
                check_limit()
            loader = loader_of.get(id(self), 0)
            if loader in log.unwritten:  # the parent's iterator
                log.refer(loader)
            start = now()
            try:
                batch = original(self)
            except BaseException as error:
                kind = Kind.LOADER_END if type(error) is StopIteration else Kind.LOADER_ERROR
                emit(kind, start, now(), loader)
                if kind is Kind.LOADER_END:
                    ended(self)
                hide_our_frame(error)
                raise
            number = getattr(self, "_num_yielded", 0)
            emit(_NEXT, start, now(), loader, number)
            if number == 1:
                began(self, batch)
            return batch

        return __next__

    def _make_next_index(self, original: Wrapped) -> Wrapped:
        emit, now = self._session.emit, self._session.now
        loader_of = self._loader_of

        def _next_index(self: Any) -> Any:
            start = now()
            try:
                index = original(self)
            except BaseException as error:
                hide_our_frame(error)
                raise
            count = len(index) if type(index) is list else 1
            emit(_SAMPLER, start, now(), loader_of.get(id(self), 0), count)
            return index

        return _next_index

    def _make_shutdown(self, original: Wrapped) -> Wrapped:
        """Wraps worker shutdown; the one in an epoch's last `next` is part of that `next`."""
        emit, now, loader_of = self._session.emit, self._session.now, self._loader_of
        this_frame = sys._getframe

        def _shutdown_workers(self: Any) -> None:
            loader = loader_of.get(id(self))
            is_over = self.__dict__.get("_shutdown") is not False
            caller = this_frame().f_back  # None if Python itself calls, as at exit
            in_next = caller is not None and caller.f_code.co_name == "_next_data"
            start = now()
            try:
                original(self)
            except BaseException as error:
                hide_our_frame(error)
                raise
            finally:
                if loader is not None and not is_over and not in_next:
                    emit(_CLOSE, start, now(), loader)

        return _shutdown_workers

    def _make_setattr(self, patcher: Patcher, original: Wrapped) -> Wrapped:
        note = patcher.guarded(self._births.note)
        this_frame = sys._getframe

        def __setattr__(self: Any, attr: str, val: Any) -> None:
            try:
                original(self, attr, val)
            except BaseException as error:
                hide_our_frame(error)
                raise
            if attr == "dataset":
                note(self, this_frame().f_back)

        return __setattr__

    def _watch_iterators(self, patcher: Patcher, base: Any) -> None:
        """Wraps creation and reset of each iterator class, also of packages imported later."""
        watchers = self._watchers

        def wrap(cls: type) -> None:
            for method, kind in (("__init__", Kind.LOADER_INIT), ("_reset", Kind.LOADER_RESET)):
                if callable(vars(cls).get(method)):
                    patcher.around(partial(self._make_create, patcher, kind), (cls, method))
            if "_shutdown_workers" in vars(cls):
                patcher.around_if_there(self._make_shutdown, (cls, "_shutdown_workers"))
            # Without workers the fetch that follows records the end and the size.
            if "_try_put_index" in vars(cls):
                patcher.around_if_there(self._make_next_index, (cls, "_next_index"), inherited=True)

        self._watchers.append(patcher.guarded(wrap))
        for cls in subclasses(base):
            wrap(cls)

        def __init_subclass__(cls: type, /, **keywords: Any) -> None:
            super(base, cls).__init_subclass__(**keywords)  # type: ignore[misc]
            for watch in watchers:
                watch(cls)

        patcher.add(base, "__init_subclass__", classmethod(__init_subclass__))

    def _make_create(self, patcher: Patcher, kind: Kind, original: Wrapped) -> Wrapped:
        emit, now = self._session.emit, self._session.now
        loader_of, this_frame = self._loader_of, sys._getframe
        creating, loader_class = self._creating, self._loader_class
        enter, begins = patcher.guarded(self._enter), patcher.guarded(self._begins)

        def create(iterator: Any, *args: Any, **kwargs: Any) -> Any:
            loader = args[0] if args else kwargs.get("loader")
            if not issubclass(type(loader), loader_class):  # a subclass may have other parameters
                given = (*args, *kwargs.values())
                are = (value for value in given if issubclass(type(value), loader_class))
                loader = next(are, loader)
            enter(iterator, loader)
            thread, number = get_ident(), loader_of.get(id(iterator), 0)
            before = creating.get(thread, 0)
            start = now()
            # The script's signal handlers may raise in our code: undo it in `finally`.
            try:
                creating[thread] = number
                if before != number:  # else a reset inside the creation
                    begins(this_frame().f_back, loader, number)
                start = now()
                return original(iterator, *args, **kwargs)
            except BaseException as error:
                hide_our_frame(error)
                raise
            finally:
                if before:
                    creating[thread] = before
                else:
                    creating.pop(thread, None)
                emit(kind, start, now(), number)

        return create

    def _ended(self, iterator: Any) -> None:
        number = self.number_of(iterator)
        if number:
            self._datasets_between.epoch_ended(number, getattr(iterator, "_dataset", None))

    def _began(self, iterator: Any, batch: Any) -> None:
        """Records, once for each loader, whether its batches are on a device."""
        number = self.number_of(iterator)
        # A mode of the script would see the reads.
        if not number or number in self._inspected or self._modes.would_notice():
            return
        self._inspected.add(number)
        with self._modes.unseen():
            is_there = is_on_device(batch, self._tensor)
        if is_there:
            self._session.log.note(Topic.ENVIRONMENT, {"batch_on_device": number})

    def _begins(self, frame: FrameType | None, loader: Any, number: int) -> None:
        """Records that an iteration over a loader begins, and its consumer's stack."""
        dataset, workers = getattr(loader, "dataset", None), getattr(loader, "num_workers", 0)
        self._datasets_between.epoch_begins(number, dataset, has_workers=bool(workers))
        now, stack = self._session.now(), self._session.sites.stack(frame)
        self._session.emit(_EPOCH, now, now, number, stack)

    def _enter(self, iterator: Any, loader: Any) -> None:
        key = id(iterator)
        if key in self._loader_of:
            return
        number = self._numbers.get(id(loader))
        if number is None:
            number = self._describe_new(loader, sys._getframe(2))
        self._session.log.refer(number)
        self._loader_of[key] = number
        self._session.keep_track(iterator, self._loader_of, key)
        for watcher in self.on_new_iterator:
            watcher(iterator, loader)

    def _describe_new(self, loader: Any, frame: FrameType) -> int:
        """Records a loader's metadata at its first iteration; returns its number."""
        session, key = self._session, id(loader)
        began = session.now()
        place = self._place_of(loader, frame)
        site, dataset = place.site, getattr(loader, "dataset", None)
        serial, dataset_number = self._take_serial(site), self._datasets.line_number(site, dataset)
        metadata = self._descriptions.of(loader, place, serial, dataset_number)
        number = session.log.define(Topic.LOADER, json.dumps(metadata, default=str))
        if not self._is_reloading and session.sites.are_within(frame, *_RELOADS):
            self._is_reloading = True
            session.log.note(Topic.ENVIRONMENT, {"reloads_loaders": True})
        self._site_of[number] = site
        self._numbers[key] = number
        session.keep_track(loader, self._numbers, key)
        session.keep_track(loader, self._serials[site], serial)
        now = session.now()
        session.inspection_ns += now - began
        session.emit(_BUILT, now, now, number, self._datasets.run_number(number, dataset))
        return number

    def _take_serial(self, site: int) -> int:
        """Returns a number among a line's living loaders; one rebuilt each epoch keeps it."""
        taken = self._serials.setdefault(site, {})
        serial = self._lowest.take(site, taken)
        taken[serial] = None
        return serial


def _iterator_base() -> Any:
    base = getattr(loaded("torch.utils.data.dataloader"), "_BaseDataLoaderIter", None)
    if base is None:
        raise HookPointMissing("torch.utils.data.dataloader has no _BaseDataLoaderIter")
    return base


_NEXT, _SAMPLER = int(Kind.LOADER_NEXT), int(Kind.SAMPLER)
_CLOSE, _BUILT = int(Kind.LOADER_CLOSE), int(Kind.LOADER_BUILT)
_EPOCH: Final = int(Kind.LOADER_EPOCH)
# Lightning's, which rebuilds loaders before a later epoch.
_RELOADS: Final = ("on_advance_start", ("lightning", "pytorch_lightning"))
