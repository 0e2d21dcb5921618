"""Lets a trial's loaders give copies of their first batches at no cost: the ceiling of loading.

The iterators stay what they are. Their samplers are drawn from when they would be, so that random
numbers and the length of each pass are the script's; datasets, collating and workers rest. What
the copies and the sampler take lies inside the loader's `next`, where it is recorded.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import mmap
import os
import re
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from trainprof.inside.limits.limit import is_loader_worker
from trainprof.inside.loading.known_length import known_length
from trainprof.inside.patching.patcher import (
    HookPointMissing,
    Patcher,
    heirs,
    hide_our_frame,
)
from trainprof.inside.session import Session
from trainprof.inside.spans.loader import LoaderProbe
from trainprof.inside.trial.notes import TrialNotes, TrialSites
from trainprof.record.schema import Kind

Wrapped = Callable[..., Any]

# Fewer batches would show too few shapes, more would tell no more.
FEWEST_KEPT: Final = 8
MOST_KEPT: Final = 64
# So that copies come from memory, as real batches do.
_CACHES: Final = 2
_SHARE_OF_MEMORY: Final = 4


class FreeDataProbe:
    """Hooks the iterators inside LoaderProbe's hooks: to be attached before that one.

    Passes that begin with gradients off, as of evaluation, stay real.
    """

    name = "trial_data"

    def __init__(
        self,
        loader: LoaderProbe,
        sites: TrialSites,
        notes: TrialNotes,
        *,
        pass_batches: int | None = None,
    ) -> None:
        self._loader, self._sites, self._notes = loader, sites, notes
        self._pass_batches = pass_batches
        self._feeds: dict[int, _Feed] = {}
        # By the id of an iterator.
        self._passes: dict[int, _Pass] = {}

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        dataloader: Any = sys.modules.get("torch.utils.data.dataloader")
        self._base: Any = getattr(dataloader, "_BaseDataLoaderIter", None)
        self._multi: Any = getattr(dataloader, "_MultiProcessingDataLoaderIter", None)
        if self._base is None or self._multi is None:
            raise HookPointMissing("torch.utils.data.dataloader has not the iterators we know")
        self._torch, self._patcher, self._session = torch, patcher, session
        self._iterable = dataloader._DatasetKind.Iterable
        self._loader.on_new_iterator.append(patcher.guarded(self._entered))
        self._keep = patcher.guarded(self._kept)
        self._end = patcher.guarded(self._pass_ended)

        def wrap(cls: type) -> None:
            for name, make in (
                ("__init__", self._make_init),
                ("_reset", self._make_reset),
                ("_next_data", self._make_next),
            ):
                if callable(vars(cls).get(name)):
                    patcher.around_if_there(make, (cls, name))

        for cls in heirs(self._base):
            wrap(cls)
        self._loader.watch_later_classes(patcher.guarded(wrap))

    def _entered(self, iterator: Any, loader: Any) -> None:
        if is_loader_worker():
            return
        site = self._sites.site_of(self._session, loader, sys._getframe(4))
        if site is None:
            return
        number = self._loader.number_of(iterator)
        feed = self._feeds.get(number)
        if feed is None:
            is_iterable = loader._dataset_kind == self._iterable
            feed = self._feeds[number] = _Feed(number, site, is_iterable, self._pass_batches)
            if not is_iterable:
                feed.length = known_length(loader._index_sampler)
        key = id(iterator)
        self._passes[key] = run = _Pass(feed)
        run.begin(is_learning=self._torch.is_grad_enabled())
        self._session.keep_track(iterator, self._passes, key)

    def _make_init(self, original: Wrapped) -> Wrapped:
        passes = self._passes

        def __init__(iterator: Any, *args: Any, **kwargs: Any) -> None:
            run = passes.get(id(iterator))
            try:
                if run is not None and run.is_free and type(iterator) is self._multi:
                    self._create_without_workers(iterator, *args, **kwargs)
                else:
                    original(iterator, *args, **kwargs)
            except BaseException as error:
                hide_our_frame(error)
                raise
            if run is not None:
                run.expected = _tasks(iterator)

        return __init__

    def _create_without_workers(self, iterator: Any, loader: Any) -> None:
        """Does what torch's own `__init__` does, but for starting workers."""
        self._base.__init__(iterator, loader)
        iterator._prefetch_factor = loader.prefetch_factor
        iterator._in_order = getattr(loader, "in_order", True)
        iterator._worker_init_fn = loader.worker_init_fn
        iterator._worker_pids_set = False
        iterator._shutdown = True
        iterator._index_queues, iterator._workers = [], []
        iterator._reset(loader, first_iter=True)

    def _make_reset(self, original: Wrapped) -> Wrapped:
        passes = self._passes

        def _reset(iterator: Any, *args: Any, **kwargs: Any) -> None:
            run = passes.get(id(iterator))
            try:
                if run is not None and self._rests(run, iterator):
                    self._prime(iterator, *args, **kwargs)
                else:
                    original(iterator, *args, **kwargs)
            except BaseException as error:
                hide_our_frame(error)
                raise
            if run is not None:
                run.expected = _tasks(iterator)

        return _reset

    def _rests(self, run: _Pass, iterator: Any) -> bool:
        """Decides whether the pass that now begins is free, and no worker is to hear of it."""
        run.begin(is_learning=self._torch.is_grad_enabled())
        if type(iterator) is not self._multi:
            return False
        if not iterator._workers:  # it was created free: nobody can make real batches
            run.is_for_training = run.is_free = True
        return run.is_free

    def _prime(self, iterator: Any, loader: Any, first_iter: bool = False) -> None:
        """Begins a pass as torch does: it draws from the sampler what it would send to workers."""
        self._base._reset(iterator, loader, first_iter)
        iterator._send_idx = iterator._rcvd_idx = iterator._tasks_outstanding = 0
        iterator._task_info = {}
        for number in range(iterator._prefetch_factor * iterator._num_workers):
            if _draw(iterator):
                iterator._task_info[number] = (0,)

    def _make_next(self, original: Wrapped) -> Wrapped:
        passes = self._passes

        def _next_data(iterator: Any) -> Any:
            run = passes.get(id(iterator))
            if run is None or run.is_inside or not run.is_for_training:
                return original(iterator)
            if run.is_free:
                return self._free_batch(run, iterator)
            run.is_inside = True
            try:
                batch = original(iterator)
            except BaseException as error:
                if type(error) is StopIteration:
                    self._end(run, iterator)
                hide_our_frame(error)
                raise
            finally:
                run.is_inside = False
            self._keep(run, iterator, batch)
            return batch

        return _next_data

    def _kept(self, run: _Pass, iterator: Any, batch: Any) -> None:
        feed = run.feed
        if not feed.is_ready:
            try:
                feed.batches.append(KeptBatch(batch, self._torch))
            except Exception as error:
                why = f"its batches cannot be copied ({type(error).__name__}: {error})"
                self._notes.refuse("data", f"{feed.site}: {why}")
                run.is_for_training = False
                return
            # A loop that knows the length does not ask for more, and sees no end.
            if iterator._num_yielded + 1 == feed.length:
                self._pass_ended(run, iterator)
            elif feed.has_enough():
                self._make_free(feed)
        if feed.is_ready:
            self._go_on_free(run, iterator)

    def _pass_ended(self, run: _Pass, iterator: Any) -> None:
        """A whole pass was real: there are no other batches to keep."""
        feed = run.feed
        if feed.whole_pass is None:
            feed.whole_pass = iterator._num_yielded
        if feed.batches and not feed.is_ready:
            self._make_free(feed)

    def _make_free(self, feed: _Feed) -> None:
        feed.is_ready = True
        now = self._session.now()
        self._session.emit(_FREE_DATA, now, now, feed.loader, len(feed.batches))
        self._notes.apply("data", "free")

    def _go_on_free(self, run: _Pass, iterator: Any) -> None:
        """Lets a running pass go on with copies; its workers end, or rest where they live on."""
        run.is_free, run.expected = True, _tasks(iterator)
        if type(iterator) is self._multi and not iterator._persistent_workers:
            iterator._shutdown_workers()
            iterator._task_info.clear()

    def _free_batch(self, run: _Pass, iterator: Any) -> Any:
        feed = run.feed
        if feed.is_iterable:
            length = feed.whole_pass if feed.whole_pass is not None else feed.pass_batches
            is_over = length is not None and iterator._num_yielded >= length
        elif run.expected is None:
            iterator._next_index()  # ends the pass by its StopIteration
            is_over = False
        else:
            is_over = run.expected == 0
            if not is_over:
                run.expected += _draw(iterator) - 1
        if is_over:
            if hasattr(iterator, "_shutdown_workers") and not iterator._persistent_workers:
                iterator._shutdown_workers()
            raise StopIteration
        kept = feed.next_kept()
        try:
            return kept.copy()
        except Exception as error:
            self._patcher.fail(error)
            return kept.batch


class _Feed:
    """What a loader's batches are copied from.

    Attributes:
        loader: Its id in the log.
        site: The line that built it.
        is_iterable: Its dataset tells the end of a pass, not its sampler.
        batches: Kept, in order.
        is_ready: They are enough.
        length: Batches of a pass as the sampler tells it, None where that is not to be asked.
        whole_pass: Batches of the first pass, where all of it was real; else None.
        pass_batches: As the trial tells it.
    """

    def __init__(self, loader: int, site: str, is_iterable: bool, pass_batches: int | None) -> None:
        self.loader, self.site = loader, site
        self.is_iterable, self.pass_batches = is_iterable, pass_batches
        self.batches: list[KeptBatch] = []
        self.is_ready = False
        self.length: int | None = None
        self.whole_pass: int | None = None
        self._enough_bytes = _CACHES * last_cache_bytes()
        self._most_bytes = available_bytes() // _SHARE_OF_MEMORY
        self._turn = itertools.count()

    def has_enough(self) -> bool:
        """More bytes than caches hold and a spread of shapes, but no more than memory allows."""
        count = len(self.batches)
        size = sum(batch.size_bytes for batch in self.batches)
        if count >= MOST_KEPT or size + size // count > self._most_bytes:
            return True
        return count >= FEWEST_KEPT and size > self._enough_bytes

    def next_kept(self) -> KeptBatch:
        return self.batches[next(self._turn) % len(self.batches)]


class _Pass:
    """An iterator's present pass.

    Attributes:
        is_for_training: Gradients were on when it began, and its batches can be kept.
        is_free: It gives copies.
        is_inside: A `_next_data` of its class runs another class's.
        expected: Batches drawn from the sampler and not delivered yet; None without workers.
    """

    __slots__ = ("expected", "feed", "is_for_training", "is_free", "is_inside")

    def __init__(self, feed: _Feed) -> None:
        self.feed = feed
        self.is_for_training = True
        self.is_free = self.is_inside = False
        self.expected: int | None = None

    def begin(self, *, is_learning: bool) -> None:
        """Begins with gradients on or off."""
        self.is_for_training = is_learning
        self.is_free = is_learning and self.feed.is_ready


def _tasks(iterator: Any) -> int | None:
    """Returns how many batches were ordered and not delivered; None where none are ordered."""
    tasks = getattr(iterator, "_task_info", None)
    return len(tasks) if tasks is not None else None


def _draw(iterator: Any) -> bool:
    """Draws from the sampler, as before a batch is ordered; False where it has no more."""
    try:
        iterator._next_index()
    except StopIteration:
        return False
    return True


_FREE_DATA: Final = int(Kind.FREE_DATA)


CACHES: Final = "/sys/devices/system/cpu/cpu0/cache"
MEMORY: Final = "/proc/meminfo"
# A container sees its own there.
CGROUP: Final = "/sys/fs/cgroup"
# The limit, and what is used of it.
_OF_CGROUP: Final = (
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)
# Where the kernel tells nothing; more than most have.
DEFAULT_CACHE_BYTES: Final = 64 << 20
DEFAULT_AVAILABLE_BYTES: Final = 2 << 30
_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
# A process has room for 65,530 mappings, and what is smaller hardly matters to the heap.
_LEAST_MOVED_BYTES: Final = 1 << 16


class KeptBatch:
    """A batch as its loader delivered it.

    Attributes:
        batch: A copy of it; not to be handed out, but for a fault.
        size_bytes: Of its tensors and arrays.
    """

    __slots__ = ("_clones", "_torch", "batch", "size_bytes")

    def __init__(self, batch: Any, torch: ModuleType) -> None:
        self._torch = torch
        memo: dict[int, Any] = {}
        self.batch = copy.deepcopy(batch, memo)
        # Of what was copied, deepcopy keeps the originals there.
        originals = memo.get(id(memo), [])
        self.size_bytes = sum(_size_bytes(thing, torch) for thing in originals)
        self._clones = self._find_clones(originals, memo)
        for tensor, _ in self._clones:
            self._move_off_the_heap(tensor)

    def copy(self) -> Any:
        """Returns a batch that shares nothing with this one or an earlier copy."""
        memo: dict[int, Any] = {}
        for tensor, is_pinned in self._clones:
            # At a fifth of what a tensor's own deepcopy takes.
            memo[id(tensor)] = self._pinned(tensor) if is_pinned else tensor.clone()
        return copy.deepcopy(self.batch, memo)

    def _find_clones(self, originals: list[Any], memo: dict[int, Any]) -> list[tuple[Any, bool]]:
        """Returns the tensors of the kept batch that are no more than their values.

        With whether they were pinned. Others (views of one storage, leaves with gradients) are left
        to their own deepcopy.
        """
        pairs = [(t, memo[id(t)]) for t in originals if type(t) is self._torch.Tensor]
        storages = [_storage(kept) for _, kept in pairs]
        found = []
        for (original, kept), storage in zip(pairs, storages, strict=True):
            is_whole = (
                storage is not None
                and storages.count(storage) == 1
                and storage[1] == kept.numel() * kept.element_size()
                and kept.is_contiguous()
                and not kept.requires_grad
            )
            is_pinned = is_whole and _is_pinned(original)
            if is_whole:
                found.append((kept, is_pinned))
        return found

    def _move_off_the_heap(self, tensor: Any) -> None:
        """Puts a tensor's values where no allocation of the script's lies.

        What stays on malloc's heap changes how much of it is free at its end, and so given back and
        faulted in again: steps of the same work were seen to take twice as long by that.
        """
        count = tensor.numel()
        size = count * tensor.element_size()
        if not tensor.is_cpu or size < _LEAST_MOVED_BYTES:
            return
        with contextlib.suppress(Exception):  # a dtype that is no plain number, or no room
            mapped = self._torch.frombuffer(mmap.mmap(-1, size), dtype=tensor.dtype, count=count)
            tensor.data = mapped.view(tensor.shape).copy_(tensor)

    def _pinned(self, tensor: Any) -> Any:
        return self._torch.empty_like(tensor, pin_memory=True).copy_(tensor)


def _storage(tensor: Any) -> tuple[int, int] | None:
    """Returns where a tensor's values lie and how many bytes there are; None where it has none."""
    with contextlib.suppress(Exception):  # sparse, say
        storage = tensor.untyped_storage()
        return storage.data_ptr(), storage.nbytes()
    return None


def _is_pinned(tensor: Any) -> bool:
    try:
        return bool(tensor.is_cpu and tensor.is_pinned())
    except (RuntimeError, NotImplementedError):
        return False


def _size_bytes(thing: Any, torch: ModuleType) -> int:
    if isinstance(thing, torch.Tensor):
        return int(thing.numel() * thing.element_size())
    size = getattr(thing, "nbytes", None) if type(thing).__module__ == "numpy" else None
    return size if isinstance(size, int) else 0


def last_cache_bytes(directory: str = CACHES) -> int:
    """Returns the size of the last level of this machine's caches."""
    found = {0: DEFAULT_CACHE_BYTES}
    with contextlib.suppress(OSError, ValueError):
        for name in sorted(os.listdir(directory)):
            if name.startswith("index"):
                level = int(_text(os.path.join(directory, name, "level")))
                size = _text(os.path.join(directory, name, "size")).strip()
                told = re.fullmatch(r"(\d+)([KMG]?)", size)
                if told is not None:
                    found[level] = int(told[1]) * _UNITS[told[2]]
    return found[max(found)]


def available_bytes(path: str = MEMORY, cgroup: str = CGROUP) -> int:
    """Returns how much memory new work can have without swapping, on this machine or container."""
    found = [DEFAULT_AVAILABLE_BYTES]
    with contextlib.suppress(OSError):
        told = re.search(r"^MemAvailable:\s+(\d+) kB", _text(path), re.MULTILINE)
        if told is not None:
            found = [int(told[1]) << 10]
    for limit, used in _OF_CGROUP:
        with contextlib.suppress(OSError, ValueError):  # "max", or another version of cgroups
            most, held = (int(_text(os.path.join(cgroup, name))) for name in (limit, used))
            found.append(max(most - held, 0))
    return min(found)


def _text(path: str) -> str:
    with open(path, encoding="ascii", errors="replace") as file:
        return file.read()
