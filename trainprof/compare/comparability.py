"""Finds what differs between two sides of runs: what changed, and what makes them incomparable."""

from __future__ import annotations

import itertools
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final

from trainprof.analysis.run.metadata import MAX_NUMBER, number_at
from trainprof.analysis.summary.run import Exit
from trainprof.compare.compared_run import ComparedRun

# Kinds of differences.
WORK: Final = "work"  # a step does a different amount of work
GROUND: Final = "ground"  # different script, machine or library
UNUSABLE: Final = "unusable"  # a run was slowed by its recording, or has too few steps
UNFINISHED: Final = "unfinished"  # a run failed, was killed or is still running
SETTING: Final = "setting"  # probably the change under test
REMARK: Final = "remark"  # affects how to read the numbers
UNLIKE: Final = frozenset({WORK, GROUND, UNUSABLE})

SCRIPT: Final = "script"
SCRIPT_TEXT: Final = "script source"
BATCH_BYTES: Final = "a batch's size"
DEVICE: Final = "device"
GPU: Final = "GPU"
TRAINERS: Final = "training processes"
CPU_CORES: Final = "CPU cores"
TORCH: Final = "torch"
# Largest difference that a partial last batch causes.
_SAME_SAMPLES: Final = 0.02
# A training set in the page cache stays below this.
_MUCH_READ_BYTES: Final = 16 << 20
_LITTLE_READ: Final = 0.25
# Mean batch sizes differ if by more than this share,
_OTHER_SIZE: Final = 0.1
# and by this number of standard errors (p = 0.01).
_CERTAIN: Final = 2.6
# Largest difference that partial last batches cause.
_SAME_EPOCH: Final = 0.02
# Uneven sharding changes the length of an epoch by less, apart from one partial batch a worker.
# Unsharded workers, which all yield everything, at least double it.
_OTHER_EPOCH: Final = 0.1
_FILES_NAMED: Final = 3
# Sections of the manifest: config files named by the command, and modules next to the script.
_FILES: Final = (("settings", SETTING, ""), ("sources", REMARK, " (next to the script)"))
_LOADER_FIELDS: Final = ("num_workers", "pin_memory")
# Meaningless without workers.
_WORKER_FIELDS: Final = ("prefetch_factor", "persistent_workers", "start_method")
_OPTION: Final = re.compile(r"--?[A-Za-z]")
# Names of options and settings: `--lr 0.1`, `--lr=0.1`, `optimizer.lr=0.1`.
_NAMED: Final = re.compile(r"(--?[A-Za-z][^= ]*)|([+~]{0,2}[A-Za-z_][\w.@/-]*)=")

Runs = Sequence[ComparedRun]
_Property = Callable[[ComparedRun], Hashable]


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference, such as "batch size", and its text on the page.

    `is_between`: between the sides. Otherwise within one side, or a fault of one run.
    """

    what: str
    kind: str
    text: str
    is_between: bool = False


def _script(run: ComparedRun) -> str | None:
    """Returns the name of the script, also when torchrun, python or accelerate started it."""
    name = run.manifest.get("entry") or run.manifest.get("script")
    return os.path.basename(name.rstrip("/")) if isinstance(name, str) else None


def _script_text(run: ComparedRun) -> str | None:
    return _word(run.manifest.get("script_sha256"))


def _word(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _device(run: ComparedRun) -> str | None:
    """Returns "cpu" or "cuda", without the index."""
    device = run.summary.run.device
    return None if device is None else device.split(":")[0]


def _gpu(run: ComparedRun) -> str | None:
    """Returns "NVIDIA H100", or None if it is unknown which of several models was used."""
    system = run.summary.system
    gpus = [] if system is None or _device(run) in (None, "cpu") else system.gpus
    used = [gpu for gpu in gpus if gpu.is_used]
    names = sorted({gpu.name for gpu in used or gpus if gpu.name and (used or gpu.is_visible)})
    return ", ".join(names) or None if used or len(names) == 1 else None


def _cores(host: Mapping[str, Any]) -> str | None:
    for name in ("usable_cores", "cores"):
        value = host.get(name)
        if isinstance(value, (int, float)) and 0 < value < MAX_NUMBER:
            return f"{value:.3g}"
    return None


def _platform(host: Mapping[str, Any]) -> str | None:
    """Returns "linux x86_64", without the kernel version."""
    value = host.get("platform")
    words = value.split() if isinstance(value, str) else []
    return f"{words[0]} {words[-1]}" if len(words) > 1 else None


def ground_of_host(host: Mapping[str, Any]) -> dict[str, str]:
    """Returns the known properties of a manifest's host, by name."""
    ground = {"platform": _platform(host), "CPU": _word(host.get("cpu")), CPU_CORES: _cores(host)}
    return {what: value for what, value in ground.items() if value is not None}


def ground_of(run: ComparedRun) -> dict[str, str]:
    """Returns the known properties of a run's machine and libraries, by name.

    Cores are those of the machine: a script may bind itself to fewer.
    """
    ground = {what: read(run) for what, kind, read in _PROPERTIES if kind == GROUND}
    ground[CPU_CORES] = _cores(run.section("host"))
    script_keys = (SCRIPT, SCRIPT_TEXT, TRAINERS)
    return {what: str(x) for what, x in ground.items() if x is not None and what not in script_keys}


def _cores_of_run(run: ComparedRun) -> str | None:
    """Returns the cores that training could use, after taskset or os.sched_setaffinity."""
    host = run.section("host")
    system = run.summary.system
    bound = None if system is None else number_at(system.cpu, "cores_usable")
    known = number_at(host, "usable_cores")
    return _cores(host if bound is None or known is None or bound >= known else {"cores": bound})


def _version(package: str) -> _Property:
    return lambda run: run.summary.run.versions.get(package)


_PROPERTIES: Final[tuple[tuple[str, str, _Property], ...]] = (
    (SCRIPT, GROUND, _script),
    (SCRIPT_TEXT, GROUND, _script_text),
    ("batch size", WORK, lambda run: feeder.batch_size if (feeder := run.feeder()) else None),
    ("world size", WORK, lambda run: run.summary.run.world_size or 1),
    ("step definition", WORK, lambda run: run.summary.training.step_source),
    # Independent ones; all ranks of a job count as one.
    (TRAINERS, GROUND, lambda run: 1 + len(run.summary.trained_apart)),
    (DEVICE, GROUND, _device),
    (GPU, GROUND, _gpu),
    ("platform", GROUND, lambda run: _platform(run.section("host"))),
    ("CPU", GROUND, lambda run: _word(run.section("host").get("cpu"))),
    (CPU_CORES, GROUND, _cores_of_run),
    (TORCH, GROUND, _version("torch")),
    ("CUDA", GROUND, _version("cuda")),
    # Trials that replay copies of their first batches.
    ("cached batches", SETTING, lambda run: run.summary.training.free_from_step is not None),
    ("torch threads", SETTING, lambda run: run.summary.torch_threads),
    ("Python", SETTING, _version("python")),
)


def differences(base: Runs, other: Runs) -> list[Difference]:
    """Returns all differences, the most important first."""
    compared = [_compared(*named, base, other) for named in _PROPERTIES]
    listed = [*_arguments(base, other), *_same_script(compared, [*base, *other])]
    if not any(difference.kind == WORK for difference in listed):
        listed += _samples_per_step(base, other) or _uncounted_samples(base, other)
    listed += [*_epochs(base, other), *_loader_settings(base, other)]
    for side, runs in (("BASE", base), ("OTHER", other)):
        for run in runs:
            listed += _of_a_run(side if len(runs) == 1 else f"run {run.name} of {side}", run)
    listed += [*_caches(base, other), *_edited([*base, *other])]
    order = (UNUSABLE, WORK, GROUND, UNFINISHED, SETTING, REMARK)
    return sorted(listed, key=lambda difference: order.index(difference.kind))


def _same_script(compared: Sequence[Difference | None], runs: Runs) -> list[Difference]:
    """Keeps one of name and source: a copy under another name is the same script."""
    listed = {difference.what: difference for difference in compared if difference is not None}
    if SCRIPT in listed:
        texts = {_script_text(run) for run in runs}
        listed.pop(SCRIPT_TEXT if len(texts) > 1 or None in texts else SCRIPT, None)
    return list(listed.values())


def _compared(what: str, kind: str, read: _Property, base: Runs, other: Runs) -> Difference | None:
    """Returns the difference in one property, None if equal or unknown on a side."""
    sides = [
        list(dict.fromkeys(value for run in runs if (value := read(run)) is not None))
        for runs in (base, other)
    ]
    for name, values in zip(("BASE", "OTHER"), sides, strict=True):
        if len(values) > 1 and all(sides):
            shown = "" if what == SCRIPT_TEXT else f" ({', '.join(map(str, values))})"
            text = f"runs of {name} differ in {what}{shown}"
            return Difference(what, GROUND if kind == SETTING else kind, text)
    if not all(sides) or sides[0] == sides[1]:
        return None
    if what == SCRIPT_TEXT:
        return Difference(what, kind, f"{what} differs", is_between=True)
    return _changed(what, kind, str(sides[0][0]), str(sides[1][0]))


def _changed(what: str, kind: str, base: str, other: str) -> Difference:
    return Difference(what, kind, f"{what} {base} -> {other}", is_between=True)


def _arguments(base: Runs, other: Runs) -> list[Difference]:
    """Compares the arguments that all runs of a side share, so not the seed of each run."""
    commands = [
        [_named(run.summary.run.command[1:]) for run in side if run.summary.run.command]
        for side in (base, other)
    ]
    if not all(commands):
        return []
    own = {name for side in commands for name in _varied(side)}
    texts = [Counter(text for name, text in side[0] if name not in own) for side in commands]
    left, added = (" ".join(dict.fromkeys(mine - theirs)) for mine, theirs in (texts, texts[::-1]))
    if not left and not added:
        return []
    text = f" added: {added}" if added else f" removed: {left}"
    text = f" {left} -> {added}" if left and added else text
    return [Difference("arguments", SETTING, f"arguments{text}", is_between=True)]


def _named(words: Sequence[str]) -> list[tuple[str, str]]:
    """Returns (name, text) of each option with its value; positional words have a number."""
    texts: list[str] = []
    for word in words:
        takes_value = texts and _OPTION.match(texts[-1]) and not re.search("[ =]", texts[-1])
        if takes_value and not _OPTION.match(word):
            texts[-1] += f" {word}"
        else:
            texts.append(word)
    places = itertools.count(1)
    return [
        (match[1] or match[2] if (match := _NAMED.match(text)) else str(next(places)), text)
        for text in texts
    ]


def _varied(side: Sequence[Sequence[tuple[str, str]]]) -> set[str]:
    """Returns the names of arguments that differ within a side."""
    names = {name for run in side for name, _ in run}
    return {
        name
        for name in names
        if len({tuple(text for known, text in run if known == name) for run in side}) > 1
    }


def _samples_per_step(base: Runs, other: Runs) -> list[Difference]:
    """Detects gradient accumulation and samplers with other batch sizes."""
    known = [
        [samples for run in runs if (samples := run.samples_per_step()) is not None]
        for runs in (base, other)
    ]
    if not all(known):
        return []
    least, most = min(map(min, known)), max(map(max, known))
    if most <= least * (1 + _SAME_SAMPLES) or _have_short_ends([*base, *other]):
        return []
    return [_changed("samples per step", WORK, *(f"{fmean(side):.4g}" for side in known))]


def _have_short_ends(runs: Runs) -> bool:
    """Returns whether partial last batches explain it: runs of other lengths end fewer epochs."""
    bounds = []
    for run in runs:
        training = run.summary.training
        seen, epochs = (run.samples_per_step() or 0.0) * training.steps, max(training.epochs, 1)
        full_steps = max(training.steps - epochs, 1)
        bounds.append((seen / (training.steps + epochs), max(seen - epochs, 0.0) / full_steps))
    steps = {run.summary.training.steps for run in runs}
    return len(steps) > 1 and max(low for low, _ in bounds) <= min(high for _, high in bounds)


def _uncounted_samples(base: Runs, other: Runs) -> list[Difference]:
    """Compares batch bytes where samples are not counted, as in streams that batch themselves.

    Empty if samples are counted, if epochs have the same number of batches, or if the batch size
    is the same and no epoch ended.
    """
    runs = [*base, *other]
    sizes = [_batch_bytes(base), _batch_bytes(other)]
    if any(run.summary.training.samples for run in runs) or None in sizes:
        return []
    means, errors = zip(*filter(None, sizes), strict=True)
    if not _are_other_sizes(means, errors):
        return []
    epochs = [[_ended(run) for run in side] for side in (base, other)]
    if all(ended for side in epochs for ended in side):
        is_alike = _have_equal_epochs(*epochs)
    else:
        is_alike = any(feeder.batch_size for run in runs if (feeder := run.feeder()))
    changed = " -> ".join(f"{mean / 1024:,.4g} KiB" for mean in means)
    text = f"mean batch {changed}; samples per batch are unknown"
    return [] if is_alike else [Difference(BATCH_BYTES, WORK, text, is_between=True)]


def _epochs(base: Runs, other: Runs) -> list[Difference]:
    """Compares the length of an IterableDataset's epoch, which depends on how workers shard it.

    Empty if the sides have the same number of workers, or no epoch ended.
    """
    loaders = [[run.feeder() for run in side] for side in (base, other)]
    streams = [[x for x in side if x is not None and x.is_iterable] for side in loaders]
    ended = [[x.ended_batches for x in side if x.ended_batches] for side in streams]
    workers = [{x.num_workers or 0 for x in side} for side in streams]
    if not all(ended) or workers[0] == workers[1]:
        return []
    most = max(workers[0] | workers[1])
    if not _exceed(ended[0], ended[1], most) and not _exceed(ended[1], ended[0], most):
        return []
    changed = " -> ".join(f"{fmean(map(fmean, side)):,.4g}" for side in ended)
    text = f"batches per epoch {changed}: workers shard the stream differently"
    return [Difference("batches per epoch", WORK, text, is_between=True)]


def _are_other_sizes(means: tuple[float, float], errors: tuple[float, float]) -> bool:
    """Returns whether the mean sizes differ by more than chance."""
    apart = abs(means[0] - means[1])
    is_chance = apart <= _CERTAIN * math.hypot(*errors)
    return not is_chance and apart > _OTHER_SIZE * max(means)


def _have_equal_epochs(base: Sequence[Sequence[int]], other: Sequence[Sequence[int]]) -> bool:
    """Returns whether the epochs that all runs ended have the same number of batches."""
    common = min(map(len, (*base, *other)))
    means = [fmean(fmean(batches[:common]) for batches in side) for side in (base, other)]
    return max(means) <= (1 + _SAME_EPOCH) * min(means)


def _exceed(long: Sequence[Sequence[int]], usual: Sequence[Sequence[int]], workers: int) -> bool:
    """Returns whether all epochs are longer than usual, beyond a partial batch per worker."""
    long = [epochs for epochs in long if epochs]
    if not long or not usual:
        return False
    return all(
        min(epochs[k] for epochs in long)
        > (1 + _OTHER_EPOCH) * max(epochs[k] for epochs in usual) + workers
        for k in range(min(map(len, (*long, *usual))))
    )


def _ended(run: ComparedRun) -> list[int]:
    feeder = run.feeder()
    return [] if feeder is None else feeder.ended_batches


def _batch_bytes(side: Sequence[ComparedRun]) -> tuple[float, float] | None:
    """Returns the mean and its standard error, None if unknown for a run."""
    sizes = [
        (fetch.batch_bytes, fetch.batch_bytes_error)
        for run in side
        if (feeder := run.feeder()) is not None and (fetch := feeder.fetch) is not None
        if fetch.batch_bytes and fetch.batch_bytes_error is not None
    ]
    if not sizes or len(sizes) < len(side):
        return None
    error = math.hypot(*(error for _, error in sizes)) / len(sizes)
    return fmean(size for size, _ in sizes), error


def _loader_settings(base: Runs, other: Runs) -> list[Difference]:
    names = (*_LOADER_FIELDS, *_WORKER_FIELDS)
    changes = (_compared(name, SETTING, _setting(name), base, other) for name in names)
    return [change for change in changes if change is not None]


def _setting(name: str) -> _Property:
    def value(run: ComparedRun) -> Hashable:
        feeder = run.feeder()
        if feeder is None or (name in _WORKER_FIELDS and not feeder.num_workers):
            return None
        setting: Hashable = getattr(feeder, name)
        return setting

    return value


def _of_a_run(label: str, run: ComparedRun) -> list[Difference]:
    listed = []
    why = run.why_unusable()
    if why is not None:
        listed.append(Difference("steady steps", UNUSABLE, f"{label} {why}"))
    end = run.summary.run.exit
    ended = _ended_early(end)
    if ended is not None:
        is_wanted = end.reason == "interrupted" or end.after_limit is not None
        listed.append(Difference("end", REMARK if is_wanted else UNFINISHED, f"{label} {ended}"))
    return listed


def _ended_early(end: Exit) -> str | None:
    """Returns how a run failed, None if it completed."""
    if end.reason == "limit" or (end.reason == "completed" and not end.status):
        return None
    ended = {
        "completed": f"ended with exit status {end.status}",
        "exception": "raised an exception",
        "interrupted": "was stopped by Ctrl-C",
        "signal": f"was ended by signal {end.signal}",
        "killed": f"was killed by signal {end.signal}" if end.signal else "was killed",
        "running": "is still running",
    }.get(end.reason, "ended for an unknown reason")
    after = f" after reaching {end.after_limit}" if end.after_limit else ""
    return f"{ended}{f' ({end.detail})' if end.detail else ''}{after}"


def _caches(base: Runs, other: Runs) -> list[Difference]:
    """Detects that one side read its data from disk, the other from the page cache."""
    reads = []
    for side in (base, other):
        fetches = [feeder.fetch for run in side if (feeder := run.feeder()) is not None]
        known = [(f.read_bytes, f.n) for f in fetches if f is not None and f.read_bytes is not None]
        if not known:
            return []
        # Per batch: a longer run reads more.
        a_batch = fmean(read_bytes / max(n, 1) for read_bytes, n in known)
        reads.append((a_batch, fmean(read_bytes for read_bytes, _ in known)))
    (least, _), (most, read_bytes) = sorted(reads)
    if read_bytes < _MUCH_READ_BYTES or least > _LITTLE_READ * most:
        return []
    cold, warm = ("BASE", "OTHER") if reads[0][0] == most else ("OTHER", "BASE")
    mib = read_bytes / (1 << 20)
    text = f"{cold} read {mib:,.0f} MiB from disk; {warm} had its data in the page cache"
    return [Difference("page cache", REMARK, text)]


def _edited(runs: Runs) -> list[Difference]:
    """Detects edited files; the script may not use all modules next to it."""
    listed = []
    for section, kind, where in _FILES:
        digests: dict[str, set[str]] = {}
        for run in runs:
            for name, digest in run.section(section).items():
                if isinstance(digest, str):
                    digests.setdefault(name, set()).add(digest)
        edited = sorted(name for name, known in digests.items() if len(known) > 1)
        if edited:
            more = f" and {len(edited) - _FILES_NAMED} more" if len(edited) > _FILES_NAMED else ""
            names = f"{', '.join(edited[:_FILES_NAMED])}{more}{where}"
            text = f"{names} {'was' if len(edited) == 1 else 'were'} edited"
            listed.append(Difference("files", kind, text))
    return listed
