"""What two sides did not have in common: how far a comparison holds, and what was changed."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Final

from trainprof.analysis.comparable_facts import (
    BATCH_BYTES,
    CPU,
    FACTS,
    GROUND,
    REMARK,
    SCRIPT,
    SCRIPT_TEXT,
    SETTING,
    SHORT,
    SLOWED,
    STEPS,
    TORCH_THREADS,
    UNFINISHED,
    WORK,
    Fact,
    script_text,
    training_processes,
)
from trainprof.analysis.compared_arguments import compared_arguments
from trainprof.analysis.compared_run import ComparedRun
from trainprof.analysis.loader_figures import Loader
from trainprof.analysis.run_figures import COSTLY_RECORDING, Exit
from trainprof.analysis.shared_cpu import shared_cpu
from trainprof.analysis.steady import MIN_STEADY_STEPS
from trainprof.analysis.uncounted_samples import other_batches, other_epochs
from trainprof.analysis.unlike_lengths import SAME_SAMPLES, have_short_ends

_MANY_MORE: Final = 2.0
# Of a training set that lies in memory nothing like this is read.
_MUCH_READ_BYTES: Final = 16 << 20
_LITTLE_READ: Final = 0.25
# Of a step: with a processor of half the pace it takes so much longer.
_LITTLE_OF_HOST: Final = 0.1
_FILES_NAMED: Final = 3
# By the manifest's sections: settings that the command names, and what may have been imported.
_FILES: Final = (
    ("settings", SETTING, ""),
    ("sources", REMARK, " beside the script"),
    ("imported", REMARK, ", imported from elsewhere,"),
)
_OTHERS_TO_STAND_OUT: Final = 2
_STANDS_OUT: Final = 0.25
# From here on it is named where other programs explain it.
_IS_FELT: Final = 0.1


@dataclass(frozen=True, slots=True)
class Discrepancy:
    """One thing that the sides do not have in common.

    Attributes:
        what: Such as "batch size".
        kind: WORK, GROUND, SLOWED, SHORT, UNFINISHED, SETTING or REMARK.
        base, other: As they had it, in words; "" where `text` says all.
        text: One sentence without its full stop.
    """

    what: str
    kind: str
    base: str
    other: str
    text: str


def discrepancies(base: Sequence[ComparedRun], other: Sequence[ComparedRun]) -> list[Discrepancy]:
    """Returns what the runs of two sides do not have in common, what matters most first."""
    found = [
        told
        for what, kind, fact in FACTS
        if (told := _compared(what, kind, fact, base, other)) is not None
    ]
    found = _of_device_alone(_as_one_script(found, base, other), base, other)
    found = [*_arguments(base, other), *found]
    if not any(told.kind == WORK for told in found):
        found += _samples_per_step(base, other) or _uncounted_samples(base, other)
    found += [*_epochs(base, other), *_loader_settings(base, other)]
    for side, runs in (("BASE", base), ("OTHER", other)):
        found += [told for run in runs for told in _of_one(_called(side, run, runs), run)]
        found += _held_up(side, runs)
    found += [*_lengths(base, other), *_caches(base, other), *_order(base, other)]
    found += [*_checkpoints(base, other), *_recording(base, other)]
    found += [*_trained_apart(base, other), *_summaries_alone(base, other), *_edited(base, other)]
    order = (SLOWED, SHORT, WORK, GROUND, UNFINISHED, SETTING, REMARK)
    return sorted(found, key=lambda told: order.index(told.kind))


def _as_one_script(
    found: list[Discrepancy], base: Sequence[ComparedRun], other: Sequence[ComparedRun]
) -> list[Discrepancy]:
    """Tells of a script's name and of its text but once; a copy under another name is the same."""
    named = next((told for told in found if told.what == SCRIPT), None)
    if named is None:
        return found
    texts = [script_text(run) for run in (*base, *other)]
    others = [told for told in found if told.what not in (SCRIPT, SCRIPT_TEXT)]
    if named.base and None not in texts and len(set(texts)) == 1:
        text = f"the script has another name, its text is the same: {named.base} -> {named.other}"
        return [*others, replace(named, kind=REMARK, text=text)]
    return [*others, named]


def _of_device_alone(
    found: list[Discrepancy], base: Sequence[ComparedRun], other: Sequence[ComparedRun]
) -> list[Discrepancy]:
    """Makes little of the host's own where a device decides how long all runs' steps are."""
    if any(run.host_share() > _LITTLE_OF_HOST for run in (*base, *other)):
        return found
    return [
        replace(told, kind=REMARK) if told.what == CPU else told
        for told in found
        if told.what != TORCH_THREADS
    ]


def _arguments(base: Sequence[ComparedRun], other: Sequence[ComparedRun]) -> list[Discrepancy]:
    """A seed or a directory of its own is no other work; what a step is is asked apart."""
    known = [
        [run.summary.run.command[1:] for run in s if run.summary.run.command] for s in (base, other)
    ]
    if not all(known):
        return []
    found = compared_arguments(*known)
    told = [_said("arguments", REMARK, x) for x in (found.of_runs, found.hidden) if x is not None]
    if found.changed is None:
        return told
    changed = found.changed
    return [Discrepancy("arguments", SETTING, changed.base, changed.other, changed.text), *told]


def _called(side: str, run: ComparedRun, runs: Sequence[ComparedRun]) -> str:
    return side if len(runs) == 1 else f"run {run.name} of {side}"


def _compared(
    what: str, kind: str, fact: Fact, base: Sequence[ComparedRun], other: Sequence[ComparedRun]
) -> Discrepancy | None:
    sides = [_values(fact, runs) for runs in (base, other)]
    if any(len(values) == 0 for values in sides):
        return None
    for name, values in zip(("BASE", "OTHER"), sides, strict=True):
        if len(values) > 1:
            told = "differs" if fact is script_text else ", ".join(map(str, values))
            text = f"the runs of {name} are not alike: {what} {told}"
            return _said(what, GROUND if kind == SETTING else kind, text)
    (in_base,), (in_other,) = sides
    if in_base == in_other:
        return None
    changed = _changed(what, kind, str(in_base), str(in_other))
    if fact is script_text:
        return replace(changed, text=f"{what} differs")
    return changed


def _changed(what: str, kind: str, base: str, other: str) -> Discrepancy:
    return Discrepancy(what, kind, base, other, f"{what} {base} -> {other}")


def _values(fact: Fact, runs: Sequence[ComparedRun]) -> list[Hashable]:
    """The different values in order, without those that are not known."""
    return list(dict.fromkeys(value for run in runs if (value := fact(run)) is not None))


def _samples_per_step(
    base: Sequence[ComparedRun], other: Sequence[ComparedRun]
) -> list[Discrepancy]:
    """Gradients accumulated over more batches, or batches that a sampler makes larger."""
    known = [
        [told for run in runs if (told := run.samples_per_step()) is not None]
        for runs in (base, other)
    ]
    if not all(known):
        return []
    least, most = min(map(min, known)), max(map(max, known))
    if most <= least * (1 + SAME_SAMPLES):
        return []
    in_base, in_other = (f"{sum(side) / len(side):.4g}" for side in known)
    changed = _changed("samples a step", WORK, in_base, in_other)
    if have_short_ends([*base, *other]):
        text = f"{changed.text}: last steps of passes are not full, and left out"
        return [replace(changed, kind=REMARK, text=text)]
    return [changed]


def _uncounted_samples(
    base: Sequence[ComparedRun], other: Sequence[ComparedRun]
) -> list[Discrepancy]:
    """Streams that make batches of their own, or whose workers each have one that is not full."""
    sizes = other_batches(base, other)
    if sizes is None:
        return []
    in_base, in_other = (f"{size.mean / 1024:,.4g} KiB" for size in sizes)
    text = f"a batch is {in_base} -> {in_other} on average, and its samples are not counted"
    return [Discrepancy(BATCH_BYTES, WORK, in_base, in_other, text)]


def _epochs(base: Sequence[ComparedRun], other: Sequence[ComparedRun]) -> list[Discrepancy]:
    """Epochs of a stream that workers share otherwise: equal steps/s are no equal epochs."""
    batches = other_epochs(base, other)
    if batches is None:
        return []
    in_base, in_other = (f"{mean:,.4g}" for mean in batches)
    changed = _changed("batches an epoch", WORK, in_base, in_other)
    return [replace(changed, text=f"{changed.text}: workers share the stream differently")]


def _checkpoints(base: Sequence[ComparedRun], other: Sequence[ComparedRun]) -> list[Discrepancy]:
    """Checkpoints that are no part of steps, since runs of other lengths saved more or less."""
    added = [sum(run.checkpoints_s for run in side) / len(side) for side in (base, other)]
    if not any(added):
        return []
    in_base, in_other = (f"{one * 1e3:,.1f} ms" if one else "nothing" for one in added)
    text = (
        "the runs made unlike numbers of steps: those that save checkpoints are left out (saving "
        f"took {in_base} of a mean step in BASE, {in_other} in OTHER)"
    )
    return [_said("checkpoints", REMARK, text)]


_LOADER_FIELDS: Final = (
    "num_workers",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory",
    "start_method",
)


# What says nothing without workers: torch's defaults, None where it depends on Python.
_WITHOUT_WORKERS: Final[dict[str, Hashable]] = {
    "prefetch_factor": 2,
    "start_method": None,
}


def _loader_settings(
    base: Sequence[ComparedRun], other: Sequence[ComparedRun]
) -> list[Discrepancy]:
    found: list[Discrepancy] = []
    for role, loader_of in (("", ComparedRun.feeder), (" (evaluation)", ComparedRun.evaluator)):
        for name in _LOADER_FIELDS:

            def value(run: ComparedRun, name: str = name, loader_of: Any = loader_of) -> Hashable:
                loader: Loader | None = loader_of(run)
                return None if loader is None else _setting(loader, name)

            told = _compared(f"{name}{role}", SETTING, value, base, other)
            if told is not None and not any(_is_the_same(told, known) for known in found):
                found.append(told)
    return found


def _is_the_same(told: Discrepancy, known: Discrepancy) -> bool:
    """Changed for evaluation as it was for training: not worth a second line."""
    of_both = told.what.split(" ")[0] == known.what
    return of_both and (told.base, told.other) == (known.base, known.other)


def _setting(loader: Loader, name: str) -> Hashable:
    value: Hashable = getattr(loader, name)
    if name not in _WITHOUT_WORKERS or loader.num_workers:
        return value
    # A default comes and goes with the first worker and is no change; what was set besides is one.
    return None if loader.num_workers is None else _WITHOUT_WORKERS[name]


def _of_one(called: str, run: ComparedRun) -> list[Discrepancy]:
    """What is to be known of one run."""
    found = []
    slowed = run.slowed_by()
    if slowed is not None:
        found.append(_said("slowed", SLOWED, f"{called} was slowed: {slowed}"))
    steps = run.steady_steps()
    if steps < MIN_STEADY_STEPS:
        why = f"{called} has {steps} steady steps; a verdict takes {MIN_STEADY_STEPS}"
        found.append(_said("steady steps", SHORT, why))
    end = run.summary.run.exit
    ended = _ended_early(end)
    if ended is not None:
        is_judged = end.reason == "interrupted" or end.after_limit is not None
        kind, limit = REMARK if is_judged else UNFINISHED, end.after_limit
        once = f", once training had been ended at the limit ({limit})" if limit else ""
        found.append(_said("end", kind, f"{called} {ended}{once}"))
    return found


def _held_up(side: str, runs: Sequence[ComparedRun]) -> list[Discrepancy]:
    """Runs that something held up while it left others of their side alone."""
    found = []
    for run in runs:
        others = [mean for one in runs if one is not run and (mean := one.mean_step_s())]
        own = run.mean_step_s()
        if own is None or len(others) < _OTHERS_TO_STAND_OUT:
            continue
        longer, busy = own / median(others) - 1, _others_busy(run)
        if longer < (_STANDS_OUT if busy is None else _IS_FELT):
            continue
        told = f"{longer * 100:.0f} % longer a step than"
        if longer >= 1:
            told = f"{1 + longer:.2g} times as long a step as"
        text = f"run {run.name} of {side} took {told} its other runs"
        found.append(_said("held up", REMARK, f"{text}; {busy} meanwhile" if busy else text))
    return found


def _others_busy(run: ComparedRun) -> str | None:
    """Says how busy other programs kept the cores, None where a run hardly felt it."""
    system = run.summary.system
    cpu = None if system is None else shared_cpu(system.cpu)
    if cpu is None or not cpu.is_disturbed:
        return None
    return f"other programs kept {cpu.others_share * cpu.cores:.1f} of {cpu.cores} cores busy"


def _ended_early(end: Exit) -> str | None:
    """Says how a run ended that did not end as it should, None where it did."""
    detail = f" ({end.detail})" if end.detail else ""
    match end.reason:
        case "completed" if not end.status:
            return None
        case "limit":
            return None
        case "completed":
            return f"ended with exit status {end.status}"
        case "exception":
            return f"ended by an exception{detail}"
        case "interrupted":
            return "was stopped by Ctrl-C"
        case "signal" | "killed":
            number = "" if end.signal is None else f" by signal {end.signal}"
            return f"was {'killed' if end.reason == 'killed' else 'ended'}{number}{detail}"
        case "running":
            return "is still running"
        case _:
            return f"ended in a way that is not known{detail}"


def _said(what: str, kind: str, text: str) -> Discrepancy:
    return Discrepancy(what, kind, "", "", text)


def _summaries_alone(
    base: Sequence[ComparedRun], other: Sequence[ComparedRun]
) -> list[Discrepancy]:
    runs = [*base, *other]
    bare = [run.name for run in runs if run.series is None]
    if not bare:
        return []
    which = "all runs" if len(bare) == len(runs) else ", ".join(bare)
    return [_said("events", REMARK, f"of {which} only the summary is left")]


def _edited(base: Sequence[ComparedRun], other: Sequence[ComparedRun]) -> list[Discrepancy]:
    """Files that are not the same in all runs; those beside the script it may not have used."""
    found = []
    for section, kind, where in _FILES:
        edited = _edited_files([run.section(section) for run in (*base, *other)])
        if edited:
            more = f" and {len(edited) - _FILES_NAMED} more" if len(edited) > _FILES_NAMED else ""
            told = f"{', '.join(edited[:_FILES_NAMED])}{more}{where}"
            text = f"{told} {'was' if len(edited) == 1 else 'were'} edited"
            found.append(_said("files", kind, text))
    return found


def _edited_files(digests: Sequence[Mapping[str, Any]]) -> list[str]:
    texts: dict[str, set[str]] = {}
    for of_run in digests:
        for name, digest in of_run.items():
            if isinstance(digest, str):
                texts.setdefault(name, set()).add(digest)
    return sorted(name for name, known in texts.items() if len(known) > 1)


def _lengths(base: Sequence[ComparedRun], other: Sequence[ComparedRun]) -> list[Discrepancy]:
    steps = [run.summary.training.steps for run in (*base, *other)]
    least, most = min(steps), max(steps)
    if least < MIN_STEADY_STEPS or most < _MANY_MORE * least:
        return []
    in_base, in_other = (
        _range([run.summary.training.steps for run in side]) for side in (base, other)
    )
    return [_changed(STEPS, REMARK, in_base, in_other)]


def _range(numbers: Sequence[int]) -> str:
    least, most = min(numbers), max(numbers)
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def _trained_apart(base: Sequence[ComparedRun], other: Sequence[ComparedRun]) -> list[Discrepancy]:
    """Folds of a cross-validation, say: one of them stands for the run."""
    counts = {training_processes(run) for run in (*base, *other)}
    if len(counts) > 1 or counts == {1}:
        return []
    text = (
        f"of {counts.pop()} training processes the busiest is compared, of equal ones that which "
        "was begun first"
    )
    return [_said("training processes", REMARK, text)]


def _caches(base: Sequence[ComparedRun], other: Sequence[ComparedRun]) -> list[Discrepancy]:
    """One side read its data from disk, the other from memory: the first run after a copy does."""
    in_base, in_other = _read(base), _read(other)
    if in_base is None or in_other is None:
        return []
    # By the batch: a longer run reads more.
    least, most = sorted((in_base, in_other), key=lambda side: side.a_batch)
    if most.in_all < _MUCH_READ_BYTES or least.a_batch > _LITTLE_READ * most.a_batch:
        return []
    cold, warm = ("BASE", "OTHER") if most is in_base else ("OTHER", "BASE")
    mib = most.in_all / (1 << 20)
    text = f"{cold} read {mib:,.0f} MiB of its data from disk, {warm} had it in memory already"
    return [_said("page cache", REMARK, text)]


def _recording(base: Sequence[ComparedRun], other: Sequence[ComparedRun]) -> list[Discrepancy]:
    """Steps of very many events: what recording them took is in the figures."""
    sides = [[run.summary.overhead.share for run in side] for side in (base, other)]
    known = [[share for share in side if share is not None] for side in sides]
    if not all(known):
        return []
    in_base, in_other = (sum(side) / len(side) for side in known)
    if max(in_base, in_other) < COSTLY_RECORDING:
        return []
    text = f"recording took about {in_base:.0%} of a step of BASE, {in_other:.0%} of one of OTHER"
    return [_said("recording", REMARK, text.replace("%", " %"))]


@dataclass(frozen=True, slots=True)
class _Read:
    """What the making of batches read from disk, in bytes: means of a side's runs."""

    in_all: float
    a_batch: float


def _read(side: Sequence[ComparedRun]) -> _Read | None:
    in_all, a_batch = 0.0, 0.0
    for run in side:
        feeder = run.feeder()
        if feeder is None or feeder.fetch is None or feeder.fetch.read_bytes is None:
            return None
        in_all += feeder.fetch.read_bytes / len(side)
        a_batch += feeder.fetch.read_bytes / max(feeder.fetch.n, 1) / len(side)
    return _Read(in_all, a_batch)


def _order(base: Sequence[ComparedRun], other: Sequence[ComparedRun]) -> list[Discrepancy]:
    """Repeated runs made one side after the other: the machine may have changed in between."""
    if min(len(base), len(other)) < 2:
        return []
    started = [[run.summary.run.started_at for run in side] for side in (base, other)]
    known = [[moment for moment in side if moment is not None] for side in started]
    if any(len(side) < len(all_of) for side, all_of in zip(known, started, strict=True)):
        return []
    if max(known[0]) < min(known[1]) or max(known[1]) < min(known[0]):
        text = "one side's runs were all made before the other's: better take turns"
        return [_said("order", REMARK, text)]
    return []
