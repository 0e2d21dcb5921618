"""Makes a trial's loaders replay copies of their first batches: the ceiling of loading.

Such data is free: datasets, collate_fn and workers are idle. Iterators stay, and samplers are still
drawn from, so that random numbers and the length of each epoch stay the same.
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
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

from trainprof.inside.loading.known_length import known_length
from trainprof.inside.patching.patcher import Patcher, Wrapped, hide_our_frame, loaded, subclasses
from trainprof.inside.session import Session
from trainprof.inside.spans.loader import LoaderProbe
from trainprof.inside.trial.notes import TrialNotes, TrialSites
from trainprof.record.files import contents_of
from trainprof.record.schema import Kind

# Enough for a variety of shapes.
FEWEST_KEPT: Final = 8
MOST_KEPT: Final = 64
# Copies come from memory, as real batches do, not from CPU caches.
_CACHES: Final = 2
_SHARE_OF_MEMORY: Final = 4
# A process is limited to 65,530 mappings, and smaller tensors hardly affect the heap.
_LEAST_MOVED_BYTES: Final = 1 << 16

CACHES: Final = "/sys/devices/system/cpu/cpu0/cache"
MEMORY: Final = "/proc/meminfo"
# Memory limit and use of a container.
CGROUP: Final = "/sys/fs/cgroup"
_OF_CGROUP: Final = (
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)
# If unknown; larger than most caches.
DEFAULT_CACHE_BYTES: Final = 64 << 20
DEFAULT_AVAILABLE_BYTES: Final = 2 << 30
_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_MOST_TEXT_BYTES: Final = 1 << 20
_FREE_DATA: Final = int(Kind.FREE_DATA)


class FreeDataProbe:
    """Hooks iterators inside LoaderProbe's hooks, so it is attached before that probe."""

    name = "trial_data"

    def __init__(
        self, loader: LoaderProbe, sites: TrialSites, notes: TrialNotes, epoch_batches: int | None
    ) -> None:
        self._loader, self._sites, self._notes = loader, sites, notes
        self._epoch_batches = epoch_batches
        # By the loader's number in the log; by the id of an iterator.
        self._sources: dict[int, _Source] = {}
        self._epochs: dict[int, _Epoch] = {}

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        dataloader = loaded("torch.utils.data.dataloader")
        self._base: Any = dataloader._BaseDataLoaderIter
        self._multi: Any = dataloader._MultiProcessingDataLoaderIter
        self._torch, self._patcher, self._session = torch, patcher, session
        self._iterable = dataloader._DatasetKind.Iterable
        self._loader.on_new_iterator.append(patcher.guarded(self._entered))
        self._keep = patcher.guarded(self._kept)
        self._end = patcher.guarded(self._epoch_ended)

        make_init = self._maker(self._needs_no_workers, self._create_without_workers)
        make_reset = self._maker(self._is_free_now, self._prime)

        def wrap(cls: type) -> None:
            for name, make in (
                ("__init__", make_init),
                ("_reset", make_reset),
                ("_next_data", self._make_next),
            ):
                if callable(vars(cls).get(name)):
                    patcher.around_if_there(make, (cls, name))

        for cls in subclasses(self._base):
            wrap(cls)
        self._loader.watch_later_classes(patcher.guarded(wrap))

    def _entered(self, iterator: Any, loader: Any) -> None:
        site = self._sites.site_of(self._session, loader, sys._getframe(4))
        if site is None:
            return
        number = self._loader.number_of(iterator)
        source = self._sources.get(number)
        if source is None:
            is_iterable = loader._dataset_kind == self._iterable
            source = _Source(number, site, is_iterable, self._epoch_batches)
            self._sources[number] = source
            if not is_iterable:
                source.length = known_length(loader._index_sampler)
        key = id(iterator)
        self._epochs[key] = epoch = _Epoch(source)
        epoch.begin(is_learning=self._torch.is_grad_enabled())
        self._session.keep_track(iterator, self._epochs, key)

    def _maker(
        self, is_free: Callable[[_Epoch, Any], bool], begin_free: Callable[..., None]
    ) -> Callable[[Wrapped], Wrapped]:
        """Returns a wrapper of a method that begins an epoch; free epochs call `begin_free`."""
        epochs = self._epochs

        def make(original: Wrapped) -> Wrapped:
            def begin(iterator: Any, *args: Any, **kwargs: Any) -> None:
                epoch = epochs.get(id(iterator))
                try:
                    if epoch is not None and is_free(epoch, iterator):
                        begin_free(iterator, *args, **kwargs)
                    else:
                        original(iterator, *args, **kwargs)
                except BaseException as error:
                    hide_our_frame(error)
                    raise
                if epoch is not None:
                    epoch.expected = _tasks(iterator)

            return begin

        return make

    def _needs_no_workers(self, epoch: _Epoch, iterator: Any) -> bool:
        return epoch.is_free and type(iterator) is self._multi

    def _create_without_workers(self, iterator: Any, loader: Any) -> None:
        self._base.__init__(iterator, loader)
        iterator._prefetch_factor = loader.prefetch_factor
        iterator._in_order = getattr(loader, "in_order", True)
        iterator._worker_init_fn = loader.worker_init_fn
        iterator._worker_pids_set = False
        iterator._shutdown = True
        iterator._index_queues, iterator._workers = [], []
        iterator._reset(loader, first_iter=True)

    def _is_free_now(self, epoch: _Epoch, iterator: Any) -> bool:
        """Decides whether the epoch that begins is free and does not involve workers."""
        epoch.begin(is_learning=self._torch.is_grad_enabled())
        if type(iterator) is not self._multi:
            return False
        if not iterator._workers:  # created free, without workers for real batches
            epoch.is_for_training = epoch.is_free = True
        return epoch.is_free

    def _prime(self, iterator: Any, loader: Any, first_iter: bool = False) -> None:
        """Begins an epoch like torch: draws the indices that it would send to workers."""
        self._base._reset(iterator, loader, first_iter)
        iterator._send_idx = iterator._rcvd_idx = iterator._tasks_outstanding = 0
        iterator._task_info = {}
        for number in range(iterator._prefetch_factor * iterator._num_workers):
            if _draw(iterator):
                iterator._task_info[number] = (0,)

    def _make_next(self, original: Wrapped) -> Wrapped:
        epochs = self._epochs

        def _next_data(iterator: Any) -> Any:
            epoch = epochs.get(id(iterator))
            if epoch is None or epoch.is_inside or not epoch.is_for_training:
                return original(iterator)
            if epoch.is_free:
                return self._free_batch(epoch, iterator)
            epoch.is_inside = True
            try:
                batch = original(iterator)
            except BaseException as error:
                if type(error) is StopIteration:
                    self._end(epoch, iterator)
                hide_our_frame(error)
                raise
            finally:
                epoch.is_inside = False
            self._keep(epoch, iterator, batch)
            return batch

        return _next_data

    def _kept(self, epoch: _Epoch, iterator: Any, batch: Any) -> None:
        source = epoch.source
        if not source.is_ready:
            try:
                source.batches.append(KeptBatch(batch, self._torch))
            except Exception as error:
                why = f"its batches cannot be copied ({type(error).__name__}: {error})"
                self._notes.refuse("data", f"{source.site}: {why}")
                epoch.is_for_training = False
                return
            # A loop that knows the length stops before StopIteration.
            if iterator._num_yielded + 1 == source.length:
                self._epoch_ended(epoch, iterator)
            elif source.has_enough():
                self._make_free(source)
        if source.is_ready:
            self._go_on_free(epoch, iterator)

    def _epoch_ended(self, epoch: _Epoch, iterator: Any) -> None:
        """Ends an epoch of real batches: there are no further batches to keep."""
        source = epoch.source
        if source.whole_epoch is None:
            source.whole_epoch = iterator._num_yielded
        if source.batches and not source.is_ready:
            self._make_free(source)

    def _make_free(self, source: _Source) -> None:
        source.is_ready = True
        now = self._session.now()
        self._session.emit(_FREE_DATA, now, now, source.loader, len(source.batches))
        self._notes.apply("data", "free")

    def _go_on_free(self, epoch: _Epoch, iterator: Any) -> None:
        """Continues a running epoch with copies; its workers end, or idle if persistent."""
        epoch.is_free, epoch.expected = True, _tasks(iterator)
        if type(iterator) is self._multi and not iterator._persistent_workers:
            iterator._shutdown_workers()
            iterator._task_info.clear()

    def _free_batch(self, epoch: _Epoch, iterator: Any) -> Any:
        source = epoch.source
        if source.is_iterable:
            length = source.whole_epoch if source.whole_epoch is not None else source.epoch_batches
            is_over = length is not None and iterator._num_yielded >= length
        elif epoch.expected is None:
            iterator._next_index()  # ends the epoch by its StopIteration
            is_over = False
        else:
            is_over = epoch.expected == 0
            if not is_over:
                epoch.expected += _draw(iterator) - 1
        if is_over:
            if hasattr(iterator, "_shutdown_workers") and not iterator._persistent_workers:
                iterator._shutdown_workers()
            raise StopIteration
        kept = source.next_kept()
        try:
            return kept.copy()
        except Exception as error:
            self._patcher.fail(error)
            return kept.batch


class _Source:
    """The kept batches of a loader.

    Attributes:
        loader: Its id in the log.
        site: The line that built it.
        is_iterable: An IterableDataset ends the epoch, not the sampler.
        batches: Kept, in order; `is_ready` once there are enough.
        length, whole_epoch, epoch_batches: Batches per epoch by the sampler, by the first real
            epoch, and by the trial's options.
    """

    def __init__(
        self, loader: int, site: str, is_iterable: bool, epoch_batches: int | None
    ) -> None:
        self.loader, self.site = loader, site
        self.is_iterable, self.epoch_batches = is_iterable, epoch_batches
        self.batches: list[KeptBatch] = []
        self.is_ready = False
        self.length: int | None = None
        self.whole_epoch: int | None = None
        self._enough_bytes = _CACHES * last_cache_bytes()
        self._most_bytes = available_bytes() // _SHARE_OF_MEMORY
        self._turn = itertools.count()

    def has_enough(self) -> bool:
        """Whether batches exceed the CPU caches with varied shapes, or reach the memory limit."""
        count = len(self.batches)
        size = sum(batch.size_bytes for batch in self.batches)
        if count >= MOST_KEPT or size + size // count > self._most_bytes:
            return True
        return count >= FEWEST_KEPT and size > self._enough_bytes

    def next_kept(self) -> KeptBatch:
        return self.batches[next(self._turn) % len(self.batches)]


@dataclass(slots=True)
class _Epoch:
    """The current epoch of an iterator.

    Attributes:
        is_for_training: Gradients were on when it began, and its batches can be kept.
        is_free: It yields copies.
        is_inside: A `_next_data` of its class calls another class's.
        expected: Batches drawn from the sampler and not delivered yet; None without workers.
    """

    source: _Source
    is_for_training: bool = True
    is_free: bool = False
    is_inside: bool = False
    expected: int | None = None

    def begin(self, *, is_learning: bool) -> None:
        self.is_for_training = is_learning
        self.is_free = is_learning and self.source.is_ready


def _tasks(iterator: Any) -> int | None:
    """Returns the number of batches requested and not delivered; None without workers."""
    tasks = getattr(iterator, "_task_info", None)
    return None if tasks is None else len(tasks)


def _draw(iterator: Any) -> bool:
    """Draws the indices of a batch from the sampler; False at its end."""
    try:
        iterator._next_index()
    except StopIteration:
        return False
    return True


class KeptBatch:
    """A batch as its loader delivered it, to copy from."""

    __slots__ = ("_clones", "_torch", "batch", "size_bytes")

    def __init__(self, batch: Any, torch: ModuleType) -> None:
        self._torch = torch
        memo: dict[int, Any] = {}
        self.batch = copy.deepcopy(batch, memo)
        # deepcopy keeps the originals there.
        originals = memo.get(id(memo), [])
        self.size_bytes = sum(_size_bytes(thing, torch) for thing in originals)
        self._clones = self._find_clones(originals, memo)
        for tensor, _ in self._clones:
            self._move_off_the_heap(tensor)

    def copy(self) -> Any:
        """Returns a copy that shares nothing with this batch or an earlier copy."""
        memo: dict[int, Any] = {}
        for tensor, is_pinned in self._clones:
            # Five times faster than a tensor's deepcopy.
            memo[id(tensor)] = self._pinned(tensor) if is_pinned else tensor.clone()
        return copy.deepcopy(self.batch, memo)

    def _find_clones(self, originals: list[Any], memo: dict[int, Any]) -> list[tuple[Any, bool]]:
        """Returns the kept tensors other than views and leaves, and whether they were pinned."""
        pairs = [(t, memo[id(t)]) for t in originals if type(t) is self._torch.Tensor]
        storages = [_storage(kept) for _, kept in pairs]
        return [
            (kept, _is_pinned(original))
            for (original, kept), storage in zip(pairs, storages, strict=True)
            if storage is not None
            and storages.count(storage) == 1
            and storage[1] == kept.numel() * kept.element_size()
            and kept.is_contiguous()
            and not kept.requires_grad
        ]

    def _move_off_the_heap(self, tensor: Any) -> None:
        """Moves a tensor's values away from the script's allocations.

        On malloc's heap the same steps took twice the time.
        """
        count = tensor.numel()
        size = count * tensor.element_size()
        if not tensor.is_cpu or size < _LEAST_MOVED_BYTES:
            return
        with contextlib.suppress(Exception):  # an unusual dtype, or out of memory
            mapped = self._torch.frombuffer(mmap.mmap(-1, size), dtype=tensor.dtype, count=count)
            tensor.data = mapped.view(tensor.shape).copy_(tensor)

    def _pinned(self, tensor: Any) -> Any:
        return self._torch.empty_like(tensor, pin_memory=True).copy_(tensor)


def _storage(tensor: Any) -> tuple[int, int] | None:
    """Returns a tensor's address and bytes; None without storage, as if sparse."""
    with contextlib.suppress(Exception):
        storage = tensor.untyped_storage()
        return storage.data_ptr(), storage.nbytes()
    return None


def _is_pinned(tensor: Any) -> bool:
    with contextlib.suppress(RuntimeError, NotImplementedError):
        return bool(tensor.is_cpu and tensor.is_pinned())
    return False


def _size_bytes(thing: Any, torch: ModuleType) -> int:
    if isinstance(thing, torch.Tensor):
        return int(thing.numel() * thing.element_size())
    size = getattr(thing, "nbytes", None) if type(thing).__module__ == "numpy" else None
    return size if isinstance(size, int) else 0


def last_cache_bytes(directory: str = CACHES) -> int:
    """Returns the size of the last-level CPU cache."""
    sizes = {0: DEFAULT_CACHE_BYTES}
    with contextlib.suppress(OSError, ValueError):
        for name in sorted(os.listdir(directory)):
            if name.startswith("index"):
                level = int(_text(os.path.join(directory, name, "level")))
                text = _text(os.path.join(directory, name, "size")).strip()
                match = re.fullmatch(r"(\d+)([KMG]?)", text)
                if match is not None:
                    sizes[level] = int(match[1]) * _UNITS[match[2]]
    return sizes[max(sizes)]


def available_bytes(path: str = MEMORY, cgroup: str = CGROUP) -> int:
    """Returns the memory available without swapping, on this machine or in this container."""
    match = re.search(r"^MemAvailable:\s+(\d+) kB", _text(path), re.MULTILINE)
    limits = [DEFAULT_AVAILABLE_BYTES if match is None else int(match[1]) << 10]
    for limit, used in _OF_CGROUP:
        with contextlib.suppress(ValueError):  # "max", or another version of cgroups
            most, held = (int(_text(os.path.join(cgroup, name))) for name in (limit, used))
            limits.append(max(most - held, 0))
    return min(limits)


def _text(path: str) -> str:
    return (contents_of(path, _MOST_TEXT_BYTES) or b"").decode("ascii", "replace")
