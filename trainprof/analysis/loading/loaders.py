"""The loaders of a run: their figures in all of it and in training, and what bounds them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import numpy as np

from trainprof.analysis.loading.batch_preparation import (
    BatchPreparation,
    batch_preparation,
    fetch_of,
)
from trainprof.analysis.loading.delivery import delivery_of, sampler_starts_s, starts_of
from trainprof.analysis.loading.fetches import Details, FetchTable
from trainprof.analysis.loading.loader_builder import (
    TORCHS_SAMPLERS,
    builder_of,
    call_of,
    lacking_arguments,
    whole_batches,
)
from trainprof.analysis.loading.workers import (
    equal_workers,
    has_asked,
    lost_workers,
    threads_of,
)
from trainprof.analysis.pipeline.bounds import PipelineInputs, bound_of
from trainprof.analysis.pipeline.fit import LoaderModel, model_of, pipeline_inputs
from trainprof.analysis.run.analysed import Analysed
from trainprof.analysis.run.metadata import Metadata, integer, number, words
from trainprof.analysis.stacks.hot_lines import FetchSamples, fetch_lines, fetch_samples
from trainprof.analysis.stacks.samples import LineNames, Stack, function_of
from trainprof.analysis.summary.distribution import statistics_s
from trainprof.analysis.summary.loader import Loader, LoaderBound
from trainprof.analysis.timeline.evaluation import evaluation_ns
from trainprof.analysis.timeline.events import Bool, Events, Int64
from trainprof.analysis.timeline.iterations import (
    EVALUATION,
    TRAINING,
    LoaderIterations,
    feeding_iterations,
)
from trainprof.analysis.timeline.steady_state import MIN_STEADY_STEPS
from trainprof.analysis.timeline.timeline import Timeline
from trainprof.record.names import UNKNOWN_SITE
from trainprof.record.schema import Kind, Topic

_LOADERS_MODELLED: Final = 8
MAX_BOUNDS: Final = 4
_CALLS: Final = (Kind.LOADER_NEXT, Kind.SAMPLER, Kind.LOADER_CLOSE)
# Different numbers of batches in epochs that end: then each epoch is over a part of the data.
_UNLIKE: Final = 3
# Epochs that ended are listed up to this number: later ones are like them.
_ENDED_LISTED: Final = 32
# Of the epochs of an evaluation, from which on a line is the one that calls it.
_MOST: Final = 0.5


@dataclass(frozen=True, slots=True)
class LoaderPart:
    """The loaders of a run.

    Attributes:
        in_loop: As the training phase has them, without those that have no epoch in it.
        samples: How many were trained on.
        known_of: Returns the model of a loader, by its id.
        making_of: Stack samples of its workers' fetches, by id of a loader that feeds training.
    """

    loaders: list[Loader]
    in_loop: list[Loader]
    samples: int | None
    known_of: Callable[[int], LoaderModel | None]
    making_of: Mapping[int, FetchSamples]


def loader_part(run: Analysed) -> LoaderPart:
    timeline, preparation = run.timeline, batch_preparation(run)
    loaders = loaders_of(run, preparation)
    costliest = sorted(loaders, key=lambda loader: -loader.wait_total_s)[:_LOADERS_MODELLED]
    known = {loader.id: _pipeline_inputs(run, preparation, loader.id) for loader in costliest}
    samples = trained_samples(timeline, preparation.fetches, run.metadata)
    known_of = cache(lambda number: model_of(known.get(number)))
    loaders = with_bounds(loaders, known_of)
    in_loop = loaders_in_loop(run, preparation, loaders)
    making_of = {
        loader.id: fetch_samples(preparation.fetches, loader.id, preparation.stack_samples)
        for loader in in_loop
        if loader.num_workers and loader.role == TRAINING
    }
    return LoaderPart(loaders, in_loop, samples, known_of, making_of)


def with_bounds(
    loaders: list[Loader], known_of: Callable[[int], LoaderModel | None]
) -> list[Loader]:
    """Returns all loaders; those with the longest waits have their bounds."""
    eligible = [
        loader
        for loader in loaders
        if loader.role in (TRAINING, EVALUATION) and loader.iterations >= MIN_STEADY_STEPS
    ]
    ranked = sorted(eligible, key=lambda loader: (loader.role != TRAINING, -loader.wait_total_s))
    bounds = {loader.id: _bound_of(known_of(loader.id)) for loader in ranked[:MAX_BOUNDS]}
    return [replace(loader, bound=bounds.get(loader.id)) for loader in loaders]


def _bound_of(model: LoaderModel | None) -> LoaderBound | None:
    """The model is not exact: a limit above the measured step is reported as that step."""
    if model is None:
        return None
    now, measured_s = model.now, model.measured.step_s
    bound = bound_of(model.inputs, now.pipeline, now.parts_s)
    return LoaderBound(
        by=bound.name,
        wait_cause=bound.wait_cause,
        parts_s=now.parts_s,
        limits_s={name: min(s, measured_s) for name, s in bound.limits_s.items()},
        step_s=now.step_s.mid,
        measured_step_s=measured_s,
    )


def _pipeline_inputs(
    run: Analysed, preparation: BatchPreparation, loader: int
) -> PipelineInputs | None:
    """None where lines were timed or devices waited for: that slows parts unequally."""
    host = run.recording.section("host")
    cores = run.host.cores.usable or number(host.get("cores"), 0.0)
    if cores <= 0 or run.has_timed_lines() or run.synchronized() is not None:
        return None
    return pipeline_inputs(
        run.timeline,
        preparation.fetches,
        run.metadata,
        loader,
        cores=cores,
        ranks=run.host.ranks,
        details=preparation.details,
        samples=preparation.samples.get(run.process.pid or 0, []),
    )


def loaders_of(run: Analysed, preparation: BatchPreparation) -> list[Loader]:
    timeline, metadata = run.timeline, run.metadata
    events = timeline.all_events
    calls = events.where(events.is_kind(*_CALLS))
    loaders = [
        _loader_of(run, p, calls.where(calls.site == p.loader), preparation, is_here=is_here)
        for p, is_here in zip(timeline.loaders, timeline.on_thread.tolist(), strict=True)
    ]
    names = LineNames(metadata.texts, run.sites())
    loaders = _with_callers(loaders, timeline, preparation.details, names)
    loaders = with_others_of_line(loaders, [metadata.loader(x.id).get("serial") for x in loaders])
    return sorted(loaders, key=lambda x: (x.role != TRAINING, x.id))


def loaders_in_loop(
    run: Analysed, preparation: BatchPreparation, loaders: list[Loader]
) -> list[Loader]:
    """Returns the loaders with the figures of their epochs in the training phase alone.

    Loaders without an epoch in it are left out. Those that another thread reads stay unchanged. If
    an iterator was created before the phase, its epoch counts without that creation.
    """
    timeline = run.timeline
    events, loop = timeline.all_events, (timeline.window.loop_start, timeline.window.loop_end)
    iterations_of = {p.loader: p for p in timeline.loaders}
    inside = np.clip(timeline.segments, *loop)
    in_loop = []
    for loader in loaders:
        p = iterations_of[loader.id]
        begins_inside = (p.start >= loop[0]) & (p.start < loop[1])
        if begins_inside.all() or loader.thread != "training":
            in_loop.append(loader)
            continue
        own = events.where(events.is_kind(*_CALLS) & (events.site == p.loader))
        is_inside = begins_inside | _gives_batches(p, own, loop)
        if is_inside.any():
            figures = _figures(
                replace(p, init_ns=np.where(begins_inside, p.init_ns, 0)).where(is_inside),
                own.where(p.among(is_inside, own.start)),
                preparation.within(p, is_inside),
                is_pinned=bool(loader.pin_memory),
                evaluation=inside,
            )
            in_loop.append(replace(loader, begun_ahead=not is_inside[0], **figures))
    return in_loop


def _gives_batches(p: LoaderIterations, calls: Events, loop: tuple[int, int]) -> Bool:
    taken = calls.start[calls.is_kind(Kind.LOADER_NEXT)]
    number = p.number_at(taken[(taken >= loop[0]) & (taken < loop[1])])
    gives: Bool = np.bincount(number[number >= 0], minlength=len(p)) > 0
    return gives


def _with_callers(
    loaders: list[Loader], timeline: Timeline, details: Details, names: LineNames
) -> list[Loader]:
    """Returns the loaders with the line of the training code that calls each evaluation.

    That is the innermost line of a function that also runs during training, at another line.
    """
    begun = details[details["kind"] == Kind.LOADER_EPOCH]
    training, evaluating = Counter[Stack](), []
    for p in timeline.loaders:
        own = begun[begun["site"] == p.loader]
        # It is recorded just before the iterator is created.
        place = np.minimum(np.searchsorted(p.start, own["start"]), max(len(p) - 1, 0))
        stage = p.stage[place] if len(p) else np.array([""] * len(own))
        training += names.stacks(own["value"][stage == TRAINING].astype(np.int64))
        evaluating.append(names.stacks(own["value"][stage == EVALUATION].astype(np.int64)))
    lines = {site for stack in training for site, _ in stack.frames}
    functions = {function_of(*frame) for stack in training for frame in stack.frames}
    called = []
    for loader, stacks in zip(loaders, evaluating, strict=True):
        calls: Counter[str] = Counter()
        for stack, count in stacks.items():
            known = (f[0] for f in stack.frames if function_of(*f) in functions)
            site = next((site for site in known if site not in lines), None)
            if site is not None:
                calls[site] += count
        most = [site for site, count in calls.items() if count > _MOST * stacks.total()]
        called.append(replace(loader, called_at=most[0]) if most else loader)
    return called


def _loader_of(
    run: Analysed,
    p: LoaderIterations,
    calls: Events,
    preparation: BatchPreparation,
    *,
    is_here: bool,
) -> Loader:
    """Builds the entry of a loader that the training thread consumes, or another one."""
    metadata, sites = run.metadata.loader(p.loader), run.sites()
    is_pinned, segments = bool(metadata.get("pin_memory")), run.timeline.segments
    evaluation = segments if is_here else None
    figures = _figures(p, calls, preparation, is_pinned=is_pinned, evaluation=evaluation)
    fetch, asked = figures["fetch"], has_asked(preparation.streams, figures["fetch"])
    own_details = preparation.details[preparation.details["site"] == p.loader]
    built = own_details[own_details["kind"] == Kind.LOADER_BUILT]
    site, collate = metadata.get("site"), metadata.get("collate_site")
    settings: dict[str, Any] = {
        name: read(metadata.get(name)) for names, read in _SETTINGS for name in names
    }
    lines, library_call = fetch_lines(preparation.fetches, p.loader, preparation.stack_samples)
    return Loader(
        id=p.loader,
        site=sites[site if isinstance(site, int) else 0],
        role=p.role,
        kind=str(metadata.get("kind", "unknown")),
        **settings,
        **figures,
        shares_samples=_shares_samples(metadata, has_asked=asked),
        length=None if _has_parts(p) else integer(metadata.get("length")),
        lost_workers=lost_workers(own_details, preparation.origin_ns),
        thread="training" if is_here else "other",
        collate_site=sites[collate] if isinstance(collate, int) else None,
        built_by=builder_of(metadata),
        builder_lacks=lacking_arguments(metadata, run.metadata.texts[Topic.SITE]),
        built=max(len(built), 1),
        datasets=len(np.unique(built["value"])) if built["value"].any() else None,
        whole_batches=whole_batches(metadata),
        draws_all=None if _has_parts(p) else _draws_all(metadata),
        draws_in_order=_draws_in_order(metadata),
        call=call_of(metadata, sites),
        hot_lines=lines,
        library_call=library_call,
        worker_threads=threads_of(preparation.threads, fetch),
        equal_workers=equal_workers(preparation.streams, fetch),
        has_asked_for_worker=asked or metadata.get("shards") is not None,
        overlaps=bool(p.overlaps.any()),
        changed_between_passes=run.metadata.changed_attributes(p.loader),
        touches_device=p.loader in preparation.copying,
    )


def _figures(
    p: LoaderIterations,
    calls: Events,
    preparation: BatchPreparation,
    *,
    is_pinned: bool,
    evaluation: Int64 | None,
) -> dict[str, Any]:
    """Returns the figures of `Loader` that iterations and fetches give, by name."""
    fetches, details, length = preparation.fetches, preparation.details, calls.end - calls.start
    sampler_ns = int(length[calls.is_kind(Kind.SAMPLER)].sum())
    sampler_ns += int(fetches.waited_ns[fetches.loader == p.loader].sum())
    parts = details[(details["site"] == p.loader) & (details["kind"] == Kind.NEXT_PARTS)]
    pinned = details[details["kind"] == Kind.PIN]
    return {
        "passes": int(np.count_nonzero((p.batches > 0) | p.is_ended)) or len(p),
        "iterations": int(p.batches.sum()),
        "init_s": statistics_s(p.init_ns),
        "first_batch_s": statistics_s(p.first_ns[p.first_ns >= 0]),
        "wait_s": statistics_s(length[calls.is_kind(Kind.LOADER_NEXT) & (calls.value > 1)]),
        "wait_total_s": float(p.wait_ns.sum() / 1e9),
        "end_s": float(p.end_ns.sum() + length[calls.is_kind(Kind.LOADER_CLOSE)].sum()) / 1e9,
        "sampler_s": sampler_ns / 1e9 if sampler_ns else None,
        "ended": int(np.count_nonzero(p.is_ended)),
        "ended_batches": p.batches[p.is_ended & (p.batches > 0)][:_ENDED_LISTED].tolist(),
        **starts_of(p, fetches),
        "sampler_starts_s": sampler_starts_s(p, calls, fetches) if sampler_ns else None,
        **delivery_of(parts, calls),
        "pin_s": _seconds_within(pinned, p) if is_pinned and len(pinned) else None,
        "fetch": fetch_of(preparation, p),
        "evaluation_s": float(_evaluation_ns(p, calls, evaluation).sum() / 1e9),
        "evaluation_wait_s": float(p.wait_ns[p.of_stage(EVALUATION)].sum() / 1e9),
    }


def _evaluation_ns(p: LoaderIterations, calls: Events, evaluation: Int64 | None) -> Int64:
    if evaluation is None:
        return (p.end - p.start)[p.of_stage(EVALUATION)]
    return evaluation_ns(p, calls, evaluation)


def _seconds_within(details: Details, p: LoaderIterations) -> float:
    place = p.number_at(details["start"])
    is_inside = (place >= 0) & (details["start"] < p.end[place])
    return float((details["end"] - details["start"])[is_inside].sum() / 1e9)


def _has_parts(p: LoaderIterations) -> bool:
    """Whether epochs are over parts of the data: they end after different numbers of batches."""
    return len(np.unique(p.batches[p.is_ended])) >= _UNLIKE


def _draws_all(metadata: Mapping[str, Any]) -> int | None:
    """Returns the length of a dataset of which torch's own loader and sampler draw each sample."""
    # Packages that split batches across ranks have classes of their own, as accelerate does.
    is_torchs = metadata.get("kind") == "DataLoader" and _has_torchs_samplers(metadata)
    if not is_torchs or metadata.get("samples_plainly") is not True:
        return None
    return integer(metadata.get("dataset_length"))


def _draws_in_order(metadata: Mapping[str, Any]) -> bool | None:
    """Whether torch's sampler draws a dataset in order, from its first sample to its last."""
    if not _has_torchs_samplers(metadata):
        return None
    return bool(metadata["sampler"] == "SequentialSampler")


def _has_torchs_samplers(metadata: Mapping[str, Any]) -> bool:
    is_plain = metadata.get("batch_sampler") in ("BatchSampler", None)
    return is_plain and metadata.get("sampler") in TORCHS_SAMPLERS


def _shares_samples(metadata: Mapping[str, Any], *, has_asked: bool) -> bool | None:
    """Whether a stream of the user's asks for its worker, or is set up as one starts."""
    if metadata.get("is_own_stream") is not True:
        return None
    return has_asked or _flag(metadata.get("set_up_as_workers_start"))


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _word(value: Any) -> str | None:
    return value if isinstance(value, str) else None


# Of a loader's settings, by how they are read.
_SETTINGS: Final[tuple[tuple[tuple[str, ...], Callable[[Any], Any]], ...]] = (
    (("is_iterable", "set_up_as_workers_start", "persistent_workers", "pin_memory"), _flag),
    (("holds_tensors", "is_stackable", "sampler_takes_epoch", "guards_main"), _flag),
    (("runs_own_code",), _flag),
    (("dataset", "dataset_function", "start_method", "workers_started_by"), _word),
    (("num_workers", "prefetch_factor", "batch_size"), integer),
    (("open_files", "python_objects", "unpicklable", "generators"), words),
)


def samples_of(
    p: LoaderIterations, counted: Bool, events: Events, fetches: FetchTable, metadata: Metadata
) -> int | None:
    """Counts the samples of the batches taken in some epochs, from the sampler's index lists.

    Workers are sent indices ahead of time: of each epoch those of the batches taken count. None
    where sizes are unknown: an iterable dataset is asked for more than it has, and an index that
    is not a list has no length.
    """
    loader = metadata.loader(p.loader)
    drawn = events.where(events.is_kind(Kind.SAMPLER) & (events.site == p.loader))
    times, sizes = drawn.start, drawn.value.astype(np.int64)
    if len(drawn) == 0:
        own = (fetches.loader == p.loader) & (fetches.worker == 0)
        times, sizes = fetches.start_ns[own], fetches.samples[own]
    if len(sizes) == 0 or loader.get("is_iterable") or sizes.min() < 1:
        return None
    if loader.get("batch_sampler") != "BatchSampler" and sizes.max() == 1:
        return None
    number = p.number_at(times)
    known = np.flatnonzero(number >= 0)
    known = known[np.argsort(number[known], kind="stable")]
    number, sizes = number[known], sizes[known]
    first_of_epoch = np.searchsorted(number, np.arange(len(p)))
    position = np.arange(len(number)) - first_of_epoch[number]
    used = (position < p.batches[number]) & counted[number]
    return int(sizes[used].sum())


def trained_samples(timeline: Timeline, fetches: FetchTable, metadata: Metadata) -> int | None:
    """Returns the samples of all iterations; None where they are unknown of one loader."""
    total = 0
    for p, counted in feeding_iterations(
        timeline.loaders, timeline.learning(), timeline.steps.ends
    ):
        if not counted.any():
            continue
        samples = samples_of(p, counted, timeline.all_events, fetches, metadata)
        if samples is None:
            return None
        total += samples
    return total or None


def with_others_of_line(loaders: Sequence[Loader], serials: Sequence[object]) -> list[Loader]:
    """Returns each loader with the roles of others that its call builds, and what they forbid.

    Those of one line that exist at the same time have different serials.
    """
    numbered = list(zip(loaders, serials, strict=True))
    joined = []
    for loader, serial in numbered:
        others = [(x, number) for x, number in numbered if _is_of_one_call(loader, x)]
        # A loader recreated with other arguments is the same one.
        roles = {x.role for x, n in others if (x.role, n) != (loader.role, serial)}
        # The arguments of one call are those of all.
        all_of_call = [loader, *(other for other, _ in others)]
        changed = (name for x in all_of_call for name in x.changed_between_passes)
        joined.append(
            replace(
                loader,
                also_builds=sorted(roles),
                overlaps=any(x.overlaps for x in all_of_call),
                changed_between_passes=list(dict.fromkeys(changed)),
            )
        )
    return joined


def _is_of_one_call(loader: Loader, other: Loader) -> bool:
    if loader.built_by is not None or other.built_by is not None or loader.site == UNKNOWN_SITE:
        return False
    ends = [None if loader.call is None else loader.call.ends_at for loader in (loader, other)]
    return loader.site == other.site and (None in ends or ends[0] == ends[1])
