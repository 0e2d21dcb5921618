"""Turns a recorded run into its summary."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from trainprof.analysis.analysed import Analysed
from trainprof.analysis.collectives import Collectives, collectives_of, python_ns
from trainprof.analysis.compilations import compilations_of
from trainprof.analysis.device_idle import Meanwhile
from trainprof.analysis.device_memory import out_of_memory_of, with_memory
from trainprof.analysis.device_verdict import DeviceEvidence
from trainprof.analysis.devices import device_of, meanwhile_of
from trainprof.analysis.diagnosis import python_in_loop, slow_rank
from trainprof.analysis.diagnosis.building import build_case
from trainprof.analysis.diagnosis.case import NAMED_FROM_SHARE, Case
from trainprof.analysis.diagnosis.diagnose import diagnose, least_gain, ranked
from trainprof.analysis.diagnosis.rule import rule_in
from trainprof.analysis.diagnosis.settings import rule_settings
from trainprof.analysis.diagnosis.together import together
from trainprof.analysis.epochs import epochs_of, evaluation_of
from trainprof.analysis.events import Events
from trainprof.analysis.facts import integer, number
from trainprof.analysis.faults import faults_of
from trainprof.analysis.feeding import epoch_starts
from trainprof.analysis.found_syncs import found_syncs_of
from trainprof.analysis.gpu_usage import phases_of
from trainprof.analysis.ledger import Attribution, attribute, ledger, loop_seconds
from trainprof.analysis.line_times import line_cost
from trainprof.analysis.loader_bounds import LoaderModel
from trainprof.analysis.loader_part import loader_part
from trainprof.analysis.looks import (
    LineNames,
    PartsOfLoop,
    hottest,
    lines_of_training,
    looks_of,
)
from trainprof.analysis.names import UNKNOWN_SITE, Sites
from trainprof.analysis.outliers import outliers
from trainprof.analysis.part import described, narrowed
from trainprof.analysis.passes import EVALUATION, TRAINING
from trainprof.analysis.python_in_model import python_in_model
from trainprof.analysis.ranks import across_ranks, common_evidence, rank_recordings, rank_row
from trainprof.analysis.recording import Recording, read_recording
from trainprof.analysis.run_part import overhead_part, run_part
from trainprof.analysis.step_table import StepTable, step_table
from trainprof.analysis.stragglers import COMMUNICATION, RankSteps, stragglers, to_jsonable
from trainprof.analysis.summary import (
    Device,
    Epoch,
    Ledger,
    Loader,
    Phases,
    RunSummary,
    SyncPoint,
    System,
    Training,
    Transfer,
)
from trainprof.analysis.system import samples_between, system_summary
from trainprof.analysis.system_gpus import GpuContext, energy_of
from trainprof.analysis.timeline import Timeline, build_timeline
from trainprof.analysis.torch_settings import torch_settings
from trainprof.analysis.traffic import placements, sync_points, transfers
from trainprof.analysis.training_part import training_of
from trainprof.analysis.training_process import (
    TrainingProcess,
    training_processes,
)
from trainprof.analysis.unobserved import not_found, not_observed
from trainprof.analysis.verdict import Evidence, verdict
from trainprof.record.run_directory import RunDirectory
from trainprof.record.schema import Kind

_OLDEST_GENERATION: Final = 2
DEFAULT_INTERVAL_S: Final = 0.5


def summarize(
    directory: RunDirectory,
    *,
    epoch: int | None = None,
    steps: tuple[int, int] | None = None,
    rules: Mapping[str, float] | None = None,
) -> RunSummary:
    """Returns what a run showed, or one training epoch or some steps of it.

    Args:
        directory: The run.
        epoch: 0-based index of a training epoch.
        steps: 0-based, the end excluded.
        rules: Thresholds of findings by name, in place of those of the run.

    Raises:
        NothingThere: If there is no such epoch, or no such steps.
    """
    of_ranks = [] if directory.manifest.exists() else rank_recordings(directory)
    if of_ranks:
        placed = [replace(_judged_by(x, rules), directory=directory) for x in of_ranks]
        pairs = [(one, training_processes(one)[0]) for one in placed]
        joined = _joined([(_analysed(*pair, epoch, steps), *pair) for pair in pairs])
        return replace(joined, lines=line_cost([log for one in of_ranks for log in one.logs]))
    recording = _judged_by(read_recording(directory), rules)
    first, *others = training_processes(recording)
    if others and first.rank is not None and others[0].rank is not None:
        ranks = [first, *others]
        return _joined([(_analysed(recording, x, epoch, steps), recording, x) for x in ranks])
    apart = [rank_row(_analysed(recording, x, None, None).summary, x, recording) for x in others]
    return replace(_analysed(recording, first, epoch, steps).summary, trained_apart=apart)


def case_of(directory: RunDirectory) -> Case | None:
    """Returns what the findings of a run rest on, of several ranks of the first.

    None where there is none: lines were timed, or devices waited for.
    """
    of_ranks = [] if directory.manifest.exists() else rank_recordings(directory)
    recording = of_ranks[0] if of_ranks else read_recording(directory)
    return _analysed(recording, training_processes(recording)[0], None, None).case


def _judged_by(recording: Recording, rules: Mapping[str, float] | None) -> Recording:
    if rules is None:
        return recording
    options = {**recording.section("options"), "rules": dict(rules)}
    return replace(recording, manifest={**recording.manifest, "options": options})


@dataclass(frozen=True, slots=True)
class _Shown:
    """A training process's summary, what its verdict rests on, and what its findings do.

    Attributes:
        steps: For comparing them with those of other ranks; None where a device computes.
    """

    summary: RunSummary
    evidence: Evidence
    case: Case | None
    steps: RankSteps | None = None


def _joined(ranks: list[tuple[_Shown, Recording, TrainingProcess]]) -> RunSummary:
    rows = [rank_row(shown.summary, process, recording) for shown, recording, process in ranks]
    told = verdict(common_evidence([shown.evidence for shown, _, _ in ranks]))
    joined = across_ranks([shown.summary for shown, _, _ in ranks], rows, told)
    joined = _with_stragglers(joined, [shown for shown, _, _ in ranks])
    first = ranks[0][1]
    if joined.system is None or any(recording is not first for _, recording, _ in ranks):
        return joined
    # One sampler saw the GPUs of all ranks: their samples are to be counted by it together.
    energy = energy_of(joined.system.gpus, joined.training.samples)
    return replace(joined, system=replace(joined.system, energy=energy))


def _with_stragglers(joined: RunSummary, ranks: list[_Shown]) -> RunSummary:
    """Adds which ranks the others waited for, and what is found of the worst."""
    steps = [one.steps for one in ranks if one.steps is not None]
    late = stragglers(steps) if len(steps) == len(ranks) else []
    if not late:
        return joined
    joined = replace(joined, stragglers=to_jsonable(late))
    worst = next(one for one in ranks if one.steps and one.steps.rank == late[0].rank)
    if worst.case is None:
        return joined
    own = replace(worst.summary, stragglers=joined.stragglers)
    found = diagnose(replace(worst.case, summary=own), [rule_in(slow_rank)])
    return replace(joined, findings=ranked([*joined.findings, *found]))


def _analysed(
    recording: Recording,
    process: TrainingProcess,
    epoch: int | None,
    steps: tuple[int, int] | None,
) -> _Shown:
    start, end = _span(recording, process.events)
    recorded = end if process.stopped_ns is None else min(end, max(start, process.stopped_ns))
    timeline = build_timeline(
        process.events,
        process.facts,
        main_thread=process.main_thread,
        start=start,
        end=recorded,
    )
    if epoch is None and steps is None:
        return _summary(Analysed(recording, process, timeline, start, end))
    part = narrowed(timeline, epoch, steps)
    whole = Analysed(recording, process, part, start, end, described(epoch, steps))
    shown = _summary(whole)
    return replace(shown, summary=_counted_as_in_the_run(shown.summary, timeline, part))


def _counted_as_in_the_run(summary: RunSummary, whole: Timeline, part: Timeline) -> RunSummary:
    """Gives the steps and epochs of a part the numbers that they have in the whole run."""
    first_step = int(np.searchsorted(whole.steps.ends, part.window.start, side="right"))
    begins = epoch_starts(whole.passes)
    first_epoch = max(int(np.searchsorted(begins, part.window.start, side="right")) - 1, 0)
    return replace(
        summary,
        outliers=[
            replace(
                outlier,
                step=outlier.step + first_step,
                epoch=None if outlier.epoch is None else outlier.epoch + first_epoch,
            )
            for outlier in summary.outliers
        ],
        epochs=[
            replace(epoch, index=epoch.index + (first_epoch if epoch.stage == TRAINING else 0))
            for epoch in summary.epochs
        ],
    )


def _summary(run: Analysed) -> _Shown:
    timeline, recording, facts = run.timeline, run.recording, run.facts
    window, sites = timeline.window, run.sites()
    # First of all: of long runs the fetches and the ledger's tables would not fit side by side.
    loaders, samples, known_of = loader_part(run)
    attribution = attribute(
        timeline.events,
        timeline.nesting,
        timeline.segments,
        has_device=facts.device() is not None,
        graph_classes=facts.graph_classes(),
    )
    meanwhile = _meanwhile(run)
    if meanwhile is not None:
        attribution = replace(attribution, device_waits=meanwhile.waits())
    account = ledger(timeline.events, attribution, window)
    paused = meanwhile.backlog.steps_of(timeline.steps.ends) if meanwhile is not None else None
    steps = step_table(timeline, attribution, facts, paused)
    collectives = collectives_of(run.process.details, timeline, attribution, sites)
    training = training_of(timeline, steps, samples)
    epochs = epochs_of(
        timeline.passes,
        timeline.all_events,
        origin_ns=run.origin_ns,
        threshold_ns=int(run.wait_threshold_s() * 1e9),
        learning=timeline.learning(),
        step_ends=timeline.steps.ends,
        on_thread=timeline.on_thread,
    )
    system = _system(run, epochs, training.samples)
    device = None
    if meanwhile is not None:
        device = device_of(meanwhile, attribution, steps.steady.mask, facts.device())
    devices = None if device is None else [device]
    copies = transfers(timeline.events, sites, meanwhile)
    syncs = sync_points(timeline.events, sites, meanwhile)
    evidence = _evidence(run, attribution, account, training, loaders, device, copies, syncs)
    evidence = replace(evidence, collectives=collectives.by_line)
    looks, names = looks_of(run.process.details, timeline.thread), LineNames(facts.texts, sites)
    parts = PartsOfLoop(timeline.events, timeline.nesting, attribution, window)
    hot_lines = lines_of_training(looks, parts, evidence.training, names, steps=len(steps))
    line = hottest(hot_lines, "other")
    if line is not None and line.share >= NAMED_FROM_SHARE and python_in_loop.is_waiting(line):
        evidence = replace(evidence, waits_at=line.site)
    found_syncs = found_syncs_of(run.process.details, sites)
    compilations = compilations_of(run.process.details, timeline, sites)
    in_model = None
    if facts.device() is None and not compilations:
        in_model = python_in_model(
            looks, parts, evidence.training, names, settled_ns=_settled_ns(timeline, steps)
        )
        evidence = replace(evidence, python_in_model=in_model)
    summary = RunSummary(
        run=run_part(run, account),
        phases=Phases(
            (window.loop_start - window.start) / 1e9,
            (window.loop_end - window.loop_start) / 1e9,
            (window.end - window.loop_end) / 1e9,
        ),
        ledger=account,
        training=training,
        evaluation=evaluation_of(timeline.passes_here(), timeline.segments),
        epochs=epochs,
        loaders=loaders,
        transfers=copies,
        sync_points=syncs,
        devices=with_memory(
            devices,
            run.process.details,
            timeline,
            attribution,
            kind=str(run.facts.device()).partition(":")[0],
            warmup=training.warmup_excluded,
            is_part=run.part is not None,
        ),
        system=system,
        ranks=[],
        stragglers=[],
        outliers=outliers(
            steps.wall_ns,
            timeline.step_starts,
            steps.per_step,
            candidates=steps.candidates,
            epoch_of=steps.epoch_of,
            origin_ns=run.origin_ns,
            samples_between=lambda start, end: samples_between(
                recording.host_lines, recording.process_lines, start, end
            ),
        ),
        findings=[],
        verdict=verdict(evidence),
        overhead=overhead_part(run, steps),
        wait_threshold_s=run.wait_threshold_s(),
        lines=line_cost(run.recording.logs),
        hot_lines=hot_lines,
        python_in_model=in_model,
        placements=placements(timeline.events, sites) if facts.device() is not None else [],
        not_observed=not_observed(run, system, training, devices) | not_found(run, found_syncs),
        out_of_memory=out_of_memory_of(facts, recording.manifest.get("cwd")),
        found_syncs=found_syncs,
        compilations=compilations,
        collectives=collectives.by_line,
        faults=faults_of(recording, run.origin_ns),
    )
    case = _case(summary, evidence, steps, known_of, run)
    shown = summary if case is None else _with_findings(summary, case)
    return _Shown(shown, evidence, case, _rank_steps(run, steps, collectives, shown.run.rank))


def _settled_ns(timeline: Timeline, steps: StepTable) -> int:
    """Returns when warm-up was over; the first step is always part of it."""
    last = min(max(steps.steady.warmup, 1), len(steps)) - 1
    return int(timeline.steps.ends[last]) if last >= 0 else timeline.window.start


def _rank_steps(
    run: Analysed, steps: StepTable, collectives: Collectives, rank: int | None
) -> RankSteps | None:
    if run.facts.device() is not None:
        return None
    evaluated = run.timeline.steps.ends - run.timeline.step_starts - steps.wall_ns
    return RankSteps(
        rank=rank or 0,
        spent={
            **steps.per_step,
            "evaluation": evaluated,
            "other": python_ns(steps.per_step, collectives),
            COMMUNICATION: collectives.per_step,
        },
    )


def _case(
    summary: RunSummary,
    evidence: Evidence,
    steps: StepTable,
    known_of: Callable[[int], LoaderModel | None],
    run: Analysed,
) -> Case | None:
    """None where lines were timed or devices waited for: that slows parts, and not alike."""
    if evidence.has_timed_lines or evidence.was_synchronized:
        return None
    return build_case(
        summary,
        training_s=evidence.training_s,
        training=evidence.training,
        known_of=known_of,
        checkpoint_site=evidence.checkpoint_site,
        steps=steps,
        settings=rule_settings(run.recording.section("options").get("rules")),
        full_collections=_full_collections(run.timeline),
        torch=torch_settings(run.facts, run.sites()),
    )


def _with_findings(summary: RunSummary, case: Case) -> RunSummary:
    findings = diagnose(case)
    return replace(
        summary,
        findings=findings,
        together=together(case, findings),
        findings_from=least_gain(case.noise),
    )


def _full_collections(timeline: Timeline) -> int:
    events, window = timeline.events, timeline.window
    is_full = events.is_kind(Kind.GC) & (events.value == _OLDEST_GENERATION)
    return int((is_full & (events.start >= window.loop_start)).sum())


def _meanwhile(run: Analysed) -> Meanwhile | None:
    """What the one device did; None where devices were waited for, or nothing tells."""
    if run.facts.device() is None or run.synchronized() is not None:
        return None
    return meanwhile_of(run.process.details, run.timeline)


def _system(run: Analysed, epochs: list[Epoch], samples: int | None) -> System | None:
    recording, window = run.recording, run.timeline.window
    starts_ns = [run.origin_ns + round(epoch.start_s * 1e9) for epoch in epochs]
    lengths_ns = [round(epoch.seconds * 1e9) for epoch in epochs]
    not_sampled = recording.section("not_sampled").get("gpus")
    host = recording.section("host")
    interval = recording.section("options").get("interval_s")
    return system_summary(
        recording.host_lines,
        recording.process_lines,
        recording.gpu_lines,
        start_ns=window.start,
        end_ns=window.end,
        main_pid=integer(recording.manifest.get("script_pid")),
        interval_s=number(interval, DEFAULT_INTERVAL_S),
        usable_cores=number(host.get("usable_cores"), 0.0) or None,
        memory_limit_bytes=integer(host.get("memory_limit_bytes")),
        gpu_context=GpuContext(
            phases=phases_of(
                (window.start, window.end),
                (window.loop_start, window.loop_end),
                run.timeline.segments,
            ),
            epochs_ns=np.stack((starts_ns, np.add(starts_ns, lengths_ns)), axis=1).astype(np.int64),
            samples=samples,
        ),
        gpus_not_observed=not_sampled if isinstance(not_sampled, str) else None,
    )


def _evidence(
    run: Analysed,
    attribution: Attribution,
    account: Ledger,
    training: Training,
    loaders: list[Loader],
    device: Device | None,
    copies: list[Transfer],
    syncs: list[SyncPoint],
) -> Evidence:
    timeline, window = run.timeline, run.timeline.window
    places = account.other_by_place
    training_s = (window.loop_end - window.loop_start) / 1e9
    evaluating = [x for x in loaders if x.role == EVALUATION]
    longest = max(evaluating, key=lambda x: x.wait_total_s, default=None)
    saves = timeline.events.is_kind(Kind.CHECKPOINT_SAVE, Kind.CHECKPOINT_LOAD)
    return Evidence(
        wall_s=account.wall_s,
        startup_s=account.seconds["startup"],
        training_s=training_s,
        training=loop_seconds(timeline.events, attribution, window),
        has_device=run.facts.device() is not None,
        steps=training,
        loaders=loaders,
        checkpoint_site=_longest_site(timeline.events.where(saves), run.sites()),
        evaluation_site=longest.site if longest is not None else None,
        other_place=max(places, key=lambda name: places[name]) if places else None,
        has_timed_lines=run.has_timed_lines(),
        was_synchronized=run.synchronized() is not None,
        device=DeviceEvidence.of(device, training_s) if device is not None else None,
        transfer_site=next((one.site for one in copies if one.exposed_s), None),
        sync_site=next((one.site for one in syncs if one.exposed_s), None),
    )


def _longest_site(events: Events, sites: Sites) -> str | None:
    if len(events) == 0:
        return None
    numbers, which = np.unique(events.site, return_inverse=True)
    totals = np.bincount(which, weights=events.end - events.start)
    name = sites[int(numbers[totals.argmax()])]
    return None if name == UNKNOWN_SITE else name


def _span(recording: Recording, events: Events) -> tuple[int, int]:
    """Start and end of the run: as its parent saw them, else as far as anything was recorded."""
    times = recording.section("times")
    start, end = integer(times.get("spawned_ns")), integer(times.get("ended_ns"))
    own = [int(events.start[0]), int(events.end.max())] if len(events) else []
    seen = list(own)
    for log in recording.logs:
        seen += [t for kind, _, *pair, _ in log.marks if kind != Kind.CLOCK for t in pair if t]
    for lines in (recording.host_lines, recording.process_lines):
        if lines:
            seen += [int(lines[0]["t_ns"]), int(lines[-1]["t_ns"])]
    if start is None:
        start = min(seen, default=0)
    if end is None:
        end = max(seen, default=start)
    # A process that outlives the one that was started (a daemon) belongs to the run all the same.
    return min([start, *own]), max([start, end, *own])
