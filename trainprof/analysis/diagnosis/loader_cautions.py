"""What a change of a loader's arguments alters, and what it needs first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from trainprof.analysis.diagnosis.case import LoaderCase
from trainprof.analysis.diagnosis.waiting import ASLEEP_SHARE, asleep_share, reading_share
from trainprof.analysis.diagnosis.wording import size
from trainprof.analysis.loader_builder import settings_of
from trainprof.analysis.loader_figures import Loader
from trainprof.analysis.passes import OTHER
from trainprof.analysis.pipeline_model import USUAL_PREFETCH
from trainprof.analysis.verdict_level import percent

# Of the making of batches: a disk that gives so much of it may have no more to give.
_READING_MINDED: Final = 0.2
# While batches sleep: from here on it is likely for what they read.
_MUCH_READ_BYTES_PER_S: Final = 50e6
# What all workers that live on do.
KEEP_THE_DATASET: Final = (
    "workers keep their copy of the dataset from epoch to epoch, and of what collate_fn uses: what "
    "training changes in either meanwhile (a level, the epoch's number) does not reach them"
)
_COPY_THE_DATASET: Final = (
    "workers have their own copy of the dataset, and of what collate_fn uses: what training "
    "changes in either during a pass does not reach them, and what they change in theirs does not "
    "come back"
)
# What those do besides that take the place of none.
_NOT_BACK: Final = "what workers change in their copy of the dataset does not come back"
# Of a loader, besides the dataset: what training changes there has such a name in front.
_FUNCTIONS: Final = ("collate_fn", "worker_init_fn")
# Where one is made for each step: it would start workers, or draw an order, as often.
_ONE_ITERATOR: Final = "one iterator, batches = iter(loader), and another only when that has ended"
# What that alters, where samples come in order, and elsewhere.
_FIRST_AGAIN: Final = (
    "it alters which batches come: samples come in order, so that each step gets the first batch "
    "again now; one iterator gives all batches in turn"
)
_OTHER_BATCHES: Final = (
    "it alters which batches come: each step gets the first of a new pass now; one iterator gives "
    "all batches of a pass in turn"
)
# Where indices are to be worked out beforehand.
DRAWN_ANEW: Final = (
    "what is random in it (an order, negatives) has to be drawn anew in each pass: only what stays "
    "the same may be kept (lengths, a sorting)"
)
# Where a loader has two iterators at once: what torch does then is no error.
_ONE_FOR_EACH: Final = (
    "give each use of the loader a loader of its own (while one pass goes on, another begins: "
    "workers that live on have one iterator for both, and batches would be left out or repeated)"
)
# Of an IterableDataset, whose workers each have a copy.
SHARE_THE_STREAM: Final = (
    "give each worker its share in __iter__: info = torch.utils.data.get_worker_info(), then "
    "itertools.islice(records, info.id, None, info.num_workers) of raw records (info is None "
    "without workers)"
)
# Ahead of workers, and of pinned memory, where making a batch uses a device.
OFF_DEVICE: Final = "move .to(device) out of the dataset or collate function into the loop"
# Workers that are new interpreters.
NEW_PYTHON: Final = ("spawn", "forkserver")


def cautions_of(fed: LoaderCase, change: Mapping[str, Any]) -> list[str]:
    """Returns what a change of a loader's arguments alters, or needs.

    Args:
        fed: The loader.
        change: Its arguments, by name.
    """
    loader, now = fed.loader, fed.loader.num_workers or 0
    workers = change.get("num_workers", now)
    crowded = _of_shared_memory(fed, change)
    told = [*crowded]
    if workers > now:
        told += _of_more_workers(fed, workers, is_kept=bool(change.get("persistent_workers")))
    elif not workers and now:
        told += _of_no_workers(loader)
    if change.get("persistent_workers"):
        told += [*_of_many_kept(loader, workers), KEEP_THE_DATASET]
        told += [*([] if now else [_NOT_BACK]), *_another_order(loader)]
    elif loader.changed_between_passes and workers > now:
        told.append(
            f"training changes {_changed(loader)} between passes: workers see that as long as each "
            "pass starts them anew, so persistent_workers=True has to stay away"
        )
    elif loader.overlaps and workers > now:
        told.append(
            "passes of it overlap, each with workers of its own: persistent_workers=True, with one "
            "iterator for all, has to stay away"
        )
    if change.get("prefetch_factor"):
        told += _of_own_sampler(loader, workers, int(change["prefetch_factor"])) if now else []
        told += [] if crowded else _of_prefetch(fed, int(change["prefetch_factor"]))
    return [*told, *counts_for_all(loader, change)]


def needed_first(loader: Loader, change: Mapping[str, Any]) -> list[str]:
    """Returns what has to be done ahead of a change, without which batches would be wrong or fail.

    Args:
        loader: To be changed.
        change: Its arguments, by name.
    """
    now = loader.num_workers or 0
    workers = change.get("num_workers", now)
    first = []
    if change.get("persistent_workers") and loader.overlaps:
        first.append(_ONE_FOR_EACH)
    if change.get("persistent_workers") and loader.changed_between_passes:
        first.append(
            f"keep {_changed(loader)}, which training changes between passes, where workers that "
            "live on see it (a tensor in shared memory)"
        )
    if now and not workers and loader.asks_for_worker:
        first.append(f"have the dataset work without workers ({_given_in_workers(loader)})")
    if workers <= now:
        return first
    if _needs_one_iterator(loader, workers):
        first.append(_one_of_all(loader))
    if workers > 1 and not loader.shares_stream:
        first.append(SHARE_THE_STREAM)
    if loader.changed_in_sampler:
        first.append(_learns_ahead(loader, workers))
    if loader.touches_device and not now:
        first.append(OFF_DEVICE)
    if _is_shared(loader):
        first.append(
            f"open what the dataset holds open, {' and '.join(loader.open_files)}, in __getitem__, "
            "when it is first used"
        )
    if now or loader.workers_started_by not in NEW_PYTHON:
        return first
    if loader.unpicklable:
        first.append(
            f"make {' and '.join(loader.unpicklable)} picklable (a function or class at the top of "
            "a file)"
        )
    if loader.guards_main is False:
        first.append('put what the script runs under if __name__ == "__main__"')
    return first


def one_iterator(loader: Loader) -> str:
    """Returns what to do where an iterator is made for each step, of the same samples."""
    kept = {"persistent_workers": True} if loader.num_workers else {}
    first = [] if loader.is_of_new_parts else needed_first(loader, kept)
    return "".join(f"{one}, then " for one in first) + _one_of_all(loader)


def cautions_of_one_iterator(loader: Loader) -> list[str]:
    """Returns what one iterator alters where one is made for each step."""
    # Of several datasets the advice itself says that the samples become others.
    if loader.is_of_new_parts:
        return []
    return [_FIRST_AGAIN if loader.draws_in_order else _OTHER_BATCHES]


def cautions_of_needed(loader: Loader, change: Mapping[str, Any]) -> list[str]:
    """Returns what it alters that has to be done ahead of a change.

    Args:
        loader: To be changed.
        change: Its arguments, by name.
    """
    workers = change.get("num_workers", 0)
    return cautions_of_one_iterator(loader) if _needs_one_iterator(loader, workers) else []


def _needs_one_iterator(loader: Loader, workers: int) -> bool:
    """Whether workers, of which there are none, would be started anew for each step."""
    return workers > 0 and not loader.num_workers and loader.is_each_step


def _one_of_all(loader: Loader) -> str:
    if loader.has_new_datasets:
        return f"where all steps may have one dataset, not each another as now, {_ONE_ITERATOR}"
    if loader.is_of_new_parts:
        return f"where not each step has to have {another_part(loader)}, {_ONE_ITERATOR}"
    return _ONE_ITERATOR


def another_part(loader: Loader) -> str:
    """Returns what is another one each time that a loader is built, but for its dataset."""
    if not loader.has_new_samplers:
        return "another collate_fn"
    return "another sampler and collate_fn" if loader.has_new_collates else "another sampler"


def _given_in_workers(loader: Loader) -> str:
    """Returns what there is in workers alone that a loader's dataset may need."""
    if loader.set_up_as_workers_start:
        return "worker_init_fn, which comes to it, is called in workers alone"
    return "get_worker_info() is None there"


def shares_a_disk(fed: LoaderCase) -> bool:
    """Whether what batches wait for is a disk, or is likely to be one: much is read meanwhile."""
    fetch = fed.loader.fetch
    if fetch is None or fetch.wall_s is None:
        return False
    if reading_share(fetch) >= _READING_MINDED:
        return True
    much = _MUCH_READ_BYTES_PER_S * (fetch.asleep_s or 0.0)
    return asleep_share(fetch) >= ASLEEP_SHARE and (fetch.read_bytes or 0) >= much


def counts_for_all(loader: Loader, change: Mapping[str, Any] | None) -> list[str]:
    """Returns what is to be minded where other loaders get the same arguments."""
    settings = settings_of(loader.built_by)
    if change and loader.also_builds:
        return [f"it counts for {others_of_line(loader)}, built by the same line"]
    if not change or settings is None or not settings.counts_for_all:
        return []
    return ["it counts for the loaders of training and of evaluation"]


def _of_many_kept(loader: Loader, workers: int) -> list[str]:
    """Returns how many workers would live at once, of loaders that take turns."""
    loaders = loader.taking_turns
    if loaders == 1:
        return []
    return [
        f"each of {loaders} loaders would keep its own workers: {loaders * workers} processes at "
        "once, each with its memory"
    ]


def others_of_line(loader: Loader) -> str:
    """Returns what else the user's line builds, in words."""
    return " and ".join(
        "another loader"
        if role == OTHER
        else f"{'another' if role == loader.role else 'the'} loader of {role}"
        for role in loader.also_builds
    )


def _changed(loader: Loader) -> str:
    """Returns whose names have other values in each pass, the dataset's first."""
    names: dict[str, list[str]] = {}
    for name in loader.changed_between_passes:
        first, _, inner = name.partition(".")
        is_function = first in _FUNCTIONS
        names.setdefault(first if is_function else "the dataset", []).append(
            inner if is_function else name
        )
    whose = sorted(names.items(), key=lambda one: one[0] in _FUNCTIONS)
    return " and ".join(f"{owner}'s {' and '.join(held)}" for owner, held in whose)


def _of_more_workers(fed: LoaderCase, workers: int, *, is_kept: bool) -> list[str]:
    # What makes batches wrong goes first.
    told = _of_iterable(fed, workers)
    if _is_shared(fed.loader):
        told.append(_sharing_files(fed.loader))
    if fed.loader.touches_device and not fed.loader.num_workers:
        told.append(
            "making a batch uses the device, which a forked worker cannot (CUDA ends it with an "
            "error), and each started otherwise takes memory of the device"
        )
    alike = _of_generators(fed.loader, workers, is_kept=is_kept)
    told += [*alike, *_of_all_ranks(fed, workers), *_more_than_cores(fed, workers)]
    told += _shared_source(fed)
    if not fed.loader.num_workers:
        told += _of_own_sampler(fed.loader, workers)
        if fed.loader.may_augment and not alike:
            told.append("random augmentation, if there is any, draws other numbers in workers")
        if not is_kept:
            told.append(_COPY_THE_DATASET)
        told += _of_new_python(fed.loader)
    if fed.loader.is_rebuilt:
        told.append(_built_anew(fed.loader))
    return told


def _built_anew(loader: Loader) -> str:
    another = ""
    if loader.has_new_datasets:
        another = ", of another dataset"
    elif loader.is_of_new_parts:
        another = f", with {another_part(loader)}"
    told = f"it is built anew for each pass{another}, and its workers with it"
    if not _may_be_kept_once_built(loader):
        return f"{told}: more of them take longer to start, each time"
    return f"{told}: built once, with persistent_workers=True, they would be started once"


def _may_be_kept_once_built(loader: Loader) -> bool:
    alters = loader.overlaps or loader.is_of_new_parts
    return not alters and not loader.changed_between_passes


def ranks_of(fed: LoaderCase) -> int:
    """Returns how many ranks share the cores, and the memory, of a loader's host; 1 of no ranks."""
    return 1 if fed.inputs is None else fed.inputs.ranks


def _of_all_ranks(fed: LoaderCase, workers: int) -> list[str]:
    ranks = ranks_of(fed)
    if ranks < 2:
        return []
    return [f"each of the {ranks} ranks on this host has as many: {ranks * workers} workers in all"]


def _more_than_cores(fed: LoaderCase, workers: int) -> list[str]:
    if fed.inputs is None or workers * fed.inputs.ranks_per_core <= fed.inputs.cores:
        return []
    all_of_them = " in all ranks" if ranks_of(fed) > 1 else ""
    return [f"more workers{all_of_them} than cores: they mostly sleep, but each takes memory"]


def _shared_source(fed: LoaderCase) -> list[str]:
    """Returns what more workers share that batches are made of, where they wait for it."""
    fetch = fed.loader.fetch
    reading, asleep = reading_share(fetch), asleep_share(fetch)
    if reading >= _READING_MINDED:
        return [
            f"{percent(reading)} of making a batch is reading from disk, which more workers share"
        ]
    if shares_a_disk(fed):
        assert fetch is not None
        read = size(float(fetch.read_bytes or 0))
        return [f"{read} were read from disk meanwhile, which more workers share"]
    if asleep < ASLEEP_SHARE:
        return []
    return [
        f"making a batch is {percent(asleep)} sleep: what it waits for (a server, a lock, a rate "
        "limit) may give no more to more workers"
    ]


def shards_of(fed: LoaderCase) -> int | None:
    """Returns how many workers get any of a loader's data; None where all of them do."""
    return None if fed.inputs is None else fed.inputs.shards


def _of_iterable(fed: LoaderCase, workers: int) -> list[str]:
    loader, shards = fed.loader, shards_of(fed)
    if shards is not None:
        return [too_few_shards(shards)] if workers >= shards else []
    if workers < 2 or loader.shares_stream:
        return []
    if loader.shares_stream is False:
        return [
            "the dataset is an IterableDataset, and your code never calls get_worker_info(): "
            f"{workers} workers would yield each sample {workers} times an epoch"
        ]
    return ["the dataset is an IterableDataset: unless it shares samples out, each worker has all"]


def _of_generators(loader: Loader, workers: int, *, is_kept: bool) -> list[str]:
    """Returns that workers have equal copies of a generator: torch seeds only the global ones."""
    is_kept |= bool(loader.persistent_workers)
    if not loader.generators or (loader.num_workers or 0) > 1 or (workers == 1 and is_kept):
        return []
    held = " and ".join(f"self.{name}" for name in loader.generators)
    again = "" if is_kept else ", the same again in each pass"
    draw = "each worker would draw" if workers > 1 else "a worker would draw"
    same = "the same numbers from its copy" if workers > 1 else "from its copy"
    return [
        f"random numbers that the dataset draws from {held}: {draw} {same}{again}; seed it anew in "
        "worker_init_fn, with torch.initial_seed()"
    ]


def too_few_shards(shards: int) -> str:
    """Says that there is nothing to do for more workers."""
    if shards == 1:
        return "the stream is one shard: a second worker would get nothing of it"
    return f"the stream is {shards} shards: more workers than that would get nothing of it"


def _learns_ahead(loader: Loader, workers: int) -> str:
    changed = " and ".join(loader.changed_in_sampler)
    return (
        f"have the sampler's {changed}, which training changes within a pass, changed by indices "
        f"that come with the batch (workers have those of up to {_ahead(loader, workers)} batches "
        "drawn ahead, by older values)"
    )


def _of_own_sampler(loader: Loader, workers: int, prefetch: int | None = None) -> list[str]:
    """Returns that a sampler is ahead of the batch that trains, where it may go by training."""
    if not loader.has_own_sampler:
        return []
    return [
        f"indices of up to {_ahead(loader, workers, prefetch)} batches are drawn ahead: a sampler "
        "that training changes within a pass draws by older values, and one that remembers what "
        "it drew last is ahead of the batch"
    ]


def _ahead(loader: Loader, workers: int, prefetch: int | None = None) -> int:
    return workers * (prefetch or loader.prefetch_factor or USUAL_PREFETCH)


def _is_shared(loader: Loader) -> bool:
    """Whether more workers would read from one open file; one alone has it to itself."""
    return bool(loader.open_files) and (loader.num_workers or 0) <= 1


def _sharing_files(loader: Loader) -> str:
    held = " and ".join(loader.open_files)
    if loader.workers_started_by in NEW_PYTHON:
        return (
            f"the dataset holds {held} open, which cannot be given to workers that are started by "
            f"{loader.workers_started_by}: they would fail"
        )
    return (
        f"the dataset holds {held} open, and workers that are forked would share its place in the "
        "file, or its connection: each would read what another one moved it to, or asked for, "
        "wrong samples without any error"
    )


def _of_new_python(loader: Loader) -> list[str]:
    """Returns what workers need that do not begin with all that the script has."""
    how = loader.workers_started_by
    if how not in NEW_PYTHON:
        return []
    what = f" ({' and '.join(loader.unpicklable)} cannot)" if loader.unpicklable else ""
    runs = ', and what the script runs must stand under if __name__ == "__main__"'
    return [
        f"workers started by {how} import the script again and are sent the dataset and the "
        f"functions: all of it must be picklable{what}{'' if loader.guards_main else runs}"
    ]


def _of_no_workers(loader: Loader) -> list[str]:
    are_kept = loader.persistent_workers
    of_workers = ["prefetch_factor", "multiprocessing_context"]
    if are_kept:
        of_workers.insert(0, "persistent_workers")
    told = [
        f"{', '.join(of_workers[:-1])} and {of_workers[-1]} are for workers: without any, torch "
        "refuses them"
    ]
    if loader.may_augment:
        told.append("random augmentation, if there is any, draws other numbers without workers")
    if are_kept and loader.may_shuffle:
        told.append("shuffling draws other numbers from the second pass on")
    if loader.is_iterable and (loader.num_workers or 0) > 1:
        told.append("an IterableDataset that workers share puts other samples together")
    return told


def _another_order(loader: Loader) -> list[str]:
    """Returns what workers that live on alter: each iterator draws a seed for its workers."""
    if not loader.may_shuffle:
        return []
    return ["with persistent_workers=True shuffling draws other numbers from the second pass on"]


def _of_shared_memory(fed: LoaderCase, change: Mapping[str, Any]) -> list[str]:
    """Returns that shared memory may not hold the batches that wait, where there are to be more."""
    loader, free = fed.loader, fed.shared_memory_bytes
    each = fed.inputs.batch_bytes if fed.inputs is not None else None
    now = loader.num_workers or 0
    ahead = loader.prefetch_factor or USUAL_PREFETCH
    ranks = ranks_of(fed)
    waiting = ranks * change.get("num_workers", now) * (change.get("prefetch_factor") or ahead)
    if free is None or not each or waiting <= ranks * now * ahead or waiting * each <= free:
        return []
    of_all = f" of {ranks} ranks" if ranks > 1 else ""
    return [
        f"up to {waiting} batches{of_all}, {size(waiting * each)}, wait in shared memory "
        f"(/dev/shm), where {size(free)} are free: a worker that finds it full dies "
        '("Bus error"); give it more (docker run --shm-size), or have fewer batches ahead '
        "(prefetch_factor)"
    ]


def _of_prefetch(fed: LoaderCase, prefetch: int) -> list[str]:
    """Returns what the batches that wait may take."""
    waiting = prefetch * (fed.loader.num_workers or 0)
    each = fed.inputs.batch_bytes if fed.inputs is not None else None
    batches = f"up to {waiting} batches wait in memory"
    return [batches if not each else f"{batches}, {size(waiting * each)}"]
