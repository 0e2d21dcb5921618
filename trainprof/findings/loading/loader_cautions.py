"""What a change of a loader's arguments alters, and what it needs first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from trainprof.analysis.timeline.iterations import OTHER

if TYPE_CHECKING:
    from trainprof.analysis.summary.loader import Loader
    from trainprof.findings.run_context import Feeder

_ONE_ITERATOR: Final = "one iterator, batches = iter(loader), and another only when that has ended"
# Where indices are to be worked out beforehand.
DRAWN_ANEW: Final = (
    "what is random in it (an order, negatives) has to be drawn anew in each pass: only what stays "
    "the same may be kept (lengths, a sorting)"
)
# Of an IterableDataset, whose workers each have a copy.
SHARE_THE_STREAM: Final = (
    "give each worker its share in __iter__: info = torch.utils.data.get_worker_info(), then "
    "itertools.islice(records, info.id, None, info.num_workers) of raw records (info is None "
    "without workers)"
)
# Ahead of workers, and of pinned memory, where preparing a batch uses a device.
OFF_DEVICE: Final = "move .to(device) out of the dataset or collate function into the loop"
# Workers that are new interpreters.
NEW_PYTHON: Final = ("spawn", "forkserver")


def cautions_of(feeder: Feeder, change: Mapping[str, Any]) -> list[str]:
    """Returns what a change of a loader's arguments alters."""
    loader, now = feeder.loader, feeder.loader.num_workers or 0
    workers, is_kept = change.get("num_workers", now), bool(change.get("persistent_workers"))
    cautions = []
    if workers > now:
        cautions += [*_of_stream(feeder, workers), *_of_open_files(loader)]
        cautions += [] if now else _of_new_python(loader)
    elif now and not workers:
        cautions.append(
            "remove persistent_workers, prefetch_factor and multiprocessing_context: torch "
            "refuses them without workers"
        )
    cautions += _of_random_numbers(loader, workers, is_kept=is_kept)
    if workers > now and not is_kept and loader.changed_between_passes:
        cautions.append(
            f"your loop changes {_changed(loader)} between epochs: persistent workers would keep "
            "the old copy, so leave out persistent_workers=True"
        )
    return cautions


def needed_first(loader: Loader, change: Mapping[str, Any]) -> list[str]:
    """Returns what a change of arguments needs first, or batches would be wrong or fail."""
    now = loader.num_workers or 0
    workers = change.get("num_workers", now)
    first = []
    if change.get("persistent_workers") and loader.overlaps:
        first.append("give each use of the loader its own loader (its iterations overlap)")
    if change.get("persistent_workers") and loader.changed_between_passes:
        first.append(
            f"keep {_changed(loader)}, which your loop changes between epochs, in a tensor in "
            "shared memory"
        )
    if now and not workers and loader.asks_for_worker:
        first.append("have the dataset work without workers, where get_worker_info() is None")
    if workers <= now:
        return first
    if not now and loader.is_each_step:
        first.append(_one_of_all(loader))
    if workers > 1 and not loader.shares_stream:
        first.append(SHARE_THE_STREAM)
    if loader.touches_device and not now:
        first.append(OFF_DEVICE)
    if _is_shared(loader):
        held = " and ".join(loader.open_files)
        first.append(f"read {held} into memory once, or open it in __getitem__ when first used")
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
    """Returns what to do where an iterator is made for each step."""
    kept = {"persistent_workers": True} if loader.num_workers else {}
    return ", then ".join([*needed_first(loader, kept), _one_of_all(loader)])


def _one_of_all(loader: Loader) -> str:
    if not loader.is_of_new_parts:
        return _ONE_ITERATOR
    return f"where all steps may have one dataset, not each another as now, {_ONE_ITERATOR}"


def others_of_line(loader: Loader) -> str:
    """Returns what else the user's line builds, in words."""
    return " and ".join(
        "another loader"
        if role == OTHER
        else f"{'another' if role == loader.role else 'the'} loader of {role}"
        for role in loader.also_builds
    )


def ranks_of(feeder: Feeder) -> int:
    """Returns how many ranks share the cores, and the memory, of a loader's host; 1 of no ranks."""
    return 1 if feeder.inputs is None else feeder.inputs.ranks


def shards_of(feeder: Feeder) -> int | None:
    """Returns how many workers get any of a loader's data; None where all of them do."""
    return None if feeder.inputs is None else feeder.inputs.shards


def _changed(loader: Loader) -> str:
    return f"the dataset's {' and '.join(loader.changed_between_passes)}"


def _of_stream(feeder: Feeder, workers: int) -> list[str]:
    loader = feeder.loader
    if workers < 2 or loader.shares_stream or shards_of(feeder) is not None:
        return []
    if loader.shares_stream is False:
        return [
            "the dataset is an IterableDataset, and your code never calls get_worker_info(): "
            f"{workers} workers would yield each sample {workers} times an epoch"
        ]
    return ["the dataset is an IterableDataset: unless it shares samples out, each worker has all"]


def _of_random_numbers(loader: Loader, workers: int, *, is_kept: bool) -> list[str]:
    """Returns which random numbers are others, or the same in all workers.

    torch seeds only the global generators of workers.
    """
    now, cautions = loader.num_workers or 0, []
    is_alone = workers == 1 and (is_kept or bool(loader.persistent_workers))
    if workers > now and now < 2 and loader.generators and not is_alone:
        held = " and ".join(f"self.{name}" for name in loader.generators)
        cautions.append(
            f"the dataset draws random numbers from {held}: each worker draws the same numbers "
            "from its copy; seed it in worker_init_fn with torch.initial_seed()"
        )
    elif bool(workers) != bool(now) and loader.may_augment:
        where = "in" if workers else "without"
        cautions.append(f"if you augment at random, other numbers are drawn {where} workers")
    if is_kept and loader.may_shuffle:
        cautions.append(
            "shuffling draws other numbers from the second epoch on (persistent workers)"
        )
    return cautions


def _is_shared(loader: Loader) -> bool:
    """Whether more workers would read from one open file; one alone has it to itself."""
    return bool(loader.open_files) and (loader.num_workers or 0) <= 1


def _of_open_files(loader: Loader) -> list[str]:
    if not _is_shared(loader):
        return []
    held = f"the dataset keeps {' and '.join(loader.open_files)} open"
    if loader.workers_started_by in NEW_PYTHON:
        return [f"{held}, which workers started by {loader.workers_started_by} cannot be given"]
    return [f"{held}: forked workers share its file offset, and silently read wrong samples"]


def _of_new_python(loader: Loader) -> list[str]:
    """Returns what workers need that do not begin with all that the script has."""
    how = loader.workers_started_by
    if how not in NEW_PYTHON:
        return []
    main = "" if loader.guards_main else ', and the script needs if __name__ == "__main__"'
    return [f"workers started by {how} get the dataset and functions pickled{main}"]
