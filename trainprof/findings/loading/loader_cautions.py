"""What a change of a loader's arguments alters, and what it needs first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from trainprof.analysis.timeline.iterations import OTHER

if TYPE_CHECKING:
    from trainprof.analysis.summary.loader import Loader
    from trainprof.findings.run_context import Feeder

# Of an IterableDataset, whose workers each have a copy.
SHARE_THE_STREAM: Final = (
    "split the stream in __iter__: itertools.islice(records, info.id, None, info.num_workers), "
    "with info = get_worker_info()"
)
# Before there are workers, or pinned memory, where preparing a batch uses a device.
OFF_DEVICE: Final = "move .to(device) from the dataset or collate_fn into the training loop"
# Where indices are to be computed in advance.
RANDOM_AGAIN: Final = "draw again each epoch what is random: keep only lengths or a sorted order"
_ONE_ITERATOR: Final = "call iter(loader) once, and again only after StopIteration"
# Workers that are new interpreters.
NEW_PYTHON: Final = ("spawn", "forkserver")


def cautions_of(feeder: Feeder, change: Mapping[str, Any]) -> list[str]:
    """Returns what a change of a loader's arguments alters, what matters most first."""
    loader, now = feeder.loader, feeder.loader.num_workers or 0
    workers, is_kept = change.get("num_workers", now), bool(change.get("persistent_workers"))
    if now and not workers:
        return [
            "remove persistent_workers and prefetch_factor: torch refuses them with num_workers=0"
        ]
    cautions = []
    if workers > now and _is_shared(loader):
        cautions.append(_of_open_files(loader))
    if workers > max(now, 1) and not loader.shares_stream and shards_of(feeder) is None:
        cautions.append(f"without that split, each sample may come {workers} times an epoch")
    if loader.changed_between_passes and (workers > now or is_kept):
        cautions.append(
            f"your loop changes {_changed(loader)} between epochs: persistent workers would keep "
            "the old copy"
        )
    if workers <= now:
        return cautions
    if not now and loader.workers_started_by in NEW_PYTHON and loader.guards_main is None:
        cautions.append(
            'spawned workers import your script again: guard it with if __name__ == "__main__":'
        )
    return [*cautions, *_of_random_numbers(loader, workers, is_kept=is_kept)]


def needed_first(loader: Loader, change: Mapping[str, Any]) -> list[str]:
    """Returns what a change of arguments needs first, or batches would be wrong or fail."""
    now = loader.num_workers or 0
    workers = change.get("num_workers", now)
    first = []
    if change.get("persistent_workers") and loader.overlaps:
        first.append("build a separate loader for each of the iterations that overlap")
    if change.get("persistent_workers") and loader.changed_between_passes:
        first.append(f"hold {_changed(loader)} in a tensor in shared memory")
    if now and not workers and loader.asks_for_worker:
        first.append("make the dataset work where get_worker_info() returns None")
    if workers <= now:
        return first
    if not now and loader.is_each_step:
        first.append(_one_of_all(loader))
    if workers > 1 and not loader.shares_stream:
        first.append(SHARE_THE_STREAM)
    if loader.touches_device and not now:
        first.append(OFF_DEVICE)
    if _is_shared(loader):
        first.append(f"open {' and '.join(loader.open_files)} in __getitem__ on first use")
    if now or loader.workers_started_by not in NEW_PYTHON:
        return first
    if loader.unpicklable:
        first.append(f"define {' and '.join(loader.unpicklable)} at module level, to be picklable")
    if loader.guards_main is False:
        first.append('put your script under if __name__ == "__main__":')
    return first


def one_iterator(loader: Loader) -> str:
    """Returns what to do where an iterator is created for each step."""
    kept = {"persistent_workers": True} if loader.num_workers else {}
    return ", then ".join([*needed_first(loader, kept), _one_of_all(loader)])


def _one_of_all(loader: Loader) -> str:
    condition = "if all steps can share one dataset, " if loader.is_of_new_parts else ""
    return f"{condition}{_ONE_ITERATOR}"


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


def _of_random_numbers(loader: Loader, workers: int, *, is_kept: bool) -> list[str]:
    """Returns which random numbers are others, or the same in all workers.

    torch seeds only the global generators of workers.
    """
    now = loader.num_workers or 0
    is_alone = workers == 1 and (is_kept or bool(loader.persistent_workers))
    if now < 2 and loader.generators and not is_alone:
        held = " and ".join(f"self.{name}" for name in loader.generators)
        return [
            f"each worker draws the same numbers from its copy of {held}: seed it in "
            "worker_init_fn with torch.initial_seed()"
        ]
    if now or not loader.may_augment:
        return []
    return ["workers get their own copy of the dataset and their own random seeds"]


def _is_shared(loader: Loader) -> bool:
    """Whether more workers would read from one open file; one alone has it to itself."""
    return bool(loader.open_files) and (loader.num_workers or 0) <= 1


def _of_open_files(loader: Loader) -> str:
    held = f"an open {' and '.join(loader.open_files)}"
    if loader.workers_started_by in NEW_PYTHON:
        return f"{held} cannot be passed to workers started by {loader.workers_started_by}"
    return f"forked workers share the file offset of {held} and can silently read wrong samples"
