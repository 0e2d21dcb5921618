"""Turns a recorded run into its summary."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from trainprof.analysis.ending import ending
from trainprof.analysis.events import Bool, Events, Int64, ProcessLog, nest, no_events
from trainprof.analysis.ledger import (
    Attribution,
    Window,
    attribute,
    ledger,
    per_step_ns,
    step_wall_ns,
    within,
)
from trainprof.analysis.loaders import (
    FetchTable,
    epochs_of,
    evaluation_of,
    fetch_table,
    loader_of,
    samples_of,
)
from trainprof.analysis.names import UNKNOWN_SITE, Sites
from trainprof.analysis.outliers import outliers
from trainprof.analysis.passes import EVALUATION, TRAINING, Passes
from trainprof.analysis.recording import Recording, read_recording, training_process
from trainprof.analysis.statistics import statistics_s
from trainprof.analysis.steady import Steady, steady_steps
from trainprof.analysis.summary import (
    Exit,
    Ledger,
    Loader,
    Overhead,
    Phases,
    Run,
    RunSummary,
    System,
    Training,
)
from trainprof.analysis.system import samples_between, system_summary
from trainprof.analysis.timeline import Timeline, build_timeline, joined
from trainprof.analysis.traffic import sync_points, transfers
from trainprof.analysis.verdict import Evidence, verdict
from trainprof.record.errors import TrainprofError
from trainprof.record.run_directory import RunDirectory
from trainprof.record.schema import RECORD_BYTES, Kind, Topic

DEFAULT_WAIT_THRESHOLD_S: Final = 0.5
DEFAULT_INTERVAL_S: Final = 0.5
# Wrapper, two clock reads and the record, averaged over the hooks of a step
# (benchmarks/overhead.py prints what it is on a machine).
EVENT_COST_US: Final = 1.3
_DEFAULT_PREFETCH: Final = 2


class NothingThere(TrainprofError):
    """The part of the run that was asked for does not exist."""

    slug, exit_code = "nothing-there", 2


def summarize(
    directory: RunDirectory, *, epoch: int | None = None, steps: tuple[int, int] | None = None
) -> RunSummary:
    """Returns what a run showed, or one training epoch or some steps of it.

    Args:
        directory: The run.
        epoch: 0-based index of a training epoch.
        steps: 0-based, the end excluded.

    Raises:
        NothingThere: If there is no such epoch, or no such steps.
    """
    recording = read_recording(directory)
    analysis = Analysis.of(recording)
    if epoch is not None or steps is not None:
        analysis = analysis.narrowed(epoch, steps)
    return analysis.summary()


@dataclass(frozen=True, slots=True)
class Analysis:
    """A recording with the timeline of its training process."""

    recording: Recording
    logs: list[ProcessLog]
    texts: Mapping[Topic, Mapping[int, Any]]
    timeline: Timeline
    attribution: Attribution
    is_part: bool = False

    @staticmethod
    def of(recording: Recording) -> Analysis:
        logs = training_process(recording)
        events = joined(logs) if logs else no_events()
        main_thread = next((x.main_thread for x in logs if x.main_thread is not None), None)
        start, end = _span(recording, events)
        timeline = build_timeline(events, main_thread=main_thread, start=start, end=end)
        texts = {
            topic: {k: v for log in logs for k, v in log.texts_of(topic).items()} for topic in Topic
        }
        return Analysis(recording, logs, texts, timeline, _attribute(timeline, texts))

    def narrowed(self, epoch: int | None, steps: tuple[int, int] | None) -> Analysis:
        """Returns the analysis of a part of the loop; roles stay those of the whole run."""
        first, last = self._bounds(epoch, steps)
        whole = self.timeline

        def inside(times: Int64) -> Bool:
            return (times >= first) & (times < last)

        own = whole.events.where(inside(whole.events.start))
        segments = whole.segments[inside(whole.segments[:, 0])]
        chosen = inside(whole.steps.ends - 1)
        passes = [_cut(p, inside(p.last_next) | inside(p.start)) for p in whole.passes]
        kept = np.array([len(p) > 0 for p in passes], dtype=bool)
        timeline = replace(
            whole,
            events=own,
            nesting=nest(own),
            all_events=whole.all_events.where(inside(whole.all_events.start)),
            passes=[p for p in passes if len(p)],
            on_thread=whole.on_thread[kept],
            segments=segments,
            steps=replace(whole.steps, ends=whole.steps.ends[chosen]),
            step_starts=whole.step_starts[chosen],
            window=Window(first, first, last, last),
        )
        attribution = _attribute(timeline, self.texts)
        return replace(self, timeline=timeline, attribution=attribution, is_part=True)

    def _bounds(self, epoch: int | None, steps: tuple[int, int] | None) -> tuple[int, int]:
        ends, starts = self.timeline.steps.ends, self.timeline.step_starts
        if steps is not None:
            first, last = steps[0], min(steps[1], len(ends))
            if first >= last:
                raise NothingThere(
                    f"There are no steps {steps[0] + 1} to {steps[1]}",
                    hint=f"The run has {len(ends)} steps.",
                )
            return int(starts[first]), int(ends[last - 1])
        assert epoch is not None
        feeder = self.timeline.feeder()
        p = next((p for p in self.timeline.passes if p.loader == feeder), None)
        trained = p.of_stage(TRAINING) & (p.batches > 0) if p is not None else np.empty(0, bool)
        which = np.flatnonzero(trained)
        if p is None or epoch >= len(which):
            raise NothingThere(
                f"There is no epoch {epoch + 1}", hint=f"The run has {len(which)} epochs."
            )
        first = int(p.start[which[epoch]])
        following = which[epoch + 1] if epoch + 1 < len(which) else None
        last = self.timeline.window.loop_end if following is None else int(p.start[following])
        return first, last

    def summary(self) -> RunSummary:
        """Assembles the summary."""
        timeline, window = self.timeline, self.timeline.window
        account = ledger(timeline.events, self.attribution, window)
        fetches = self._fetches()
        loaders = self._loaders(fetches)
        system = self._system()
        step_part = self._steps()
        run = self._run(account)
        training = self._training(step_part)
        sync = sync_points(timeline.events, self._sites())
        origin = self._origin()
        return RunSummary(
            run=run,
            phases=Phases(
                (window.loop_start - window.start) / 1e9,
                (window.loop_end - window.loop_start) / 1e9,
                (window.end - window.loop_end) / 1e9,
            ),
            ledger=account,
            training=training,
            evaluation=evaluation_of(timeline.passes, timeline.segments, timeline.on_thread),
            epochs=epochs_of(
                timeline.passes,
                timeline.all_events,
                origin_ns=origin,
                threshold_ns=int(self._threshold_s() * 1e9),
                step_ends=timeline.steps.ends,
                feeder=timeline.feeder(),
                training_thread=timeline.on_thread,
            ),
            loaders=loaders,
            transfers=transfers(timeline.events, self._sites()),
            sync_points=sync,
            devices=None,
            system=system,
            ranks=[],
            stragglers=[],
            outliers=outliers(
                step_part.wall_ns,
                timeline.step_starts,
                step_part.per_step,
                candidates=step_part.candidates,
                epoch_of=step_part.epoch_of,
                origin_ns=origin,
                samples_between=self._samples_between,
            ),
            findings=[],
            verdict=verdict(self._evidence(account, training, loaders, run)),
            overhead=self._overhead(step_part),
            wait_threshold_s=self._threshold_s(),
            not_observed=self._not_observed(system, training),
            faults=self._faults(),
        )

    def _origin(self) -> int:
        return _span(self.recording, self.timeline.all_events)[0]

    def _sites(self) -> Sites:
        cwd = self.recording.manifest.get("cwd")
        return Sites(self.texts[Topic.SITE], cwd if isinstance(cwd, str) else None)

    def _threshold_s(self) -> float:
        return _number(self.recording.section("options").get("wait_threshold_s"), 0.5)

    def _device(self) -> str | None:
        for facts in self.texts[Topic.ENVIRONMENT].values():
            if isinstance(facts, dict) and isinstance(facts.get("device"), str):
                return str(facts["device"])
        return None

    def _run(self, account: Ledger) -> Run:
        recording = self.recording
        versions = {str(k): str(v) for k, v in recording.section("versions").items()}
        for facts in self.texts[Topic.ENVIRONMENT].values():
            if isinstance(facts, dict):
                told = {k: v for k, v in facts.items() if k in ("torch", "cuda", "hip") and v}
                versions.update({k: str(v) for k, v in told.items()})
        command = recording.manifest.get("command")
        started = recording.section("times").get("started_at")
        return Run(
            name=str(recording.manifest.get("name") or recording.directory.path.name),
            command=[str(word) for word in command] if isinstance(command, list) else [],
            wall_s=account.wall_s,
            exit=self._exit(),
            versions=versions,
            device_timing="cpu" if self._device() is None else "async",
            rank=_int(recording.manifest.get("rank")),
            world_size=_int(recording.manifest.get("world_size")),
            started_at=started if isinstance(started, str) else None,
            directory=str(recording.directory.path),
            device=self._device() or "cpu",
        )

    def _exit(self) -> Exit:
        pid = self.recording.manifest.get("script_pid")
        own = [x for x in self.recording.logs if x.pid == pid or x.role == "script"]
        return ending(self.recording, own)

    def _fetches(self) -> FetchTable:
        with_workers = [
            number
            for number, facts in self.texts[Topic.LOADER].items()
            if isinstance(facts, dict) and facts.get("num_workers")
        ]
        only = with_workers[0] if len(with_workers) == 1 else 0
        own = {id(log) for log in self.logs}
        tables = [fetch_table(self.timeline.all_events, self.logs[0].pid or 0, 0)] if own else []
        window = self.timeline.window
        for log in self.recording.logs:
            if id(log) in own:
                continue
            events = log.events
            if self.is_part:
                inside = (events.start >= window.start) & (events.start < window.end)
                events = events.where(inside)
            tables.append(fetch_table(events, log.pid or 0, only))
        return FetchTable.joined(tables)

    def _loaders(self, fetches: FetchTable) -> list[Loader]:
        timeline = self.timeline
        result = []
        for p, on_thread in zip(timeline.passes, timeline.on_thread.tolist(), strict=True):
            facts = self.texts[Topic.LOADER].get(p.loader)
            calls = _calls_of(timeline.all_events, p.loader)
            result.append(
                loader_of(
                    p,
                    facts if isinstance(facts, dict) else {},
                    calls,
                    fetches,
                    self._sites(),
                    on_training_thread=on_thread,
                )
            )
        return sorted(result, key=lambda x: (x.role != TRAINING, x.id))

    def _steps(self) -> StepPart:
        timeline = self.timeline
        starts, ends = timeline.step_starts, timeline.steps.ends
        wall = step_wall_ns(starts, ends, timeline.segments)
        border = self._borders(starts, ends)
        steady = steady_steps(wall, border=border, buffered=self._buffered(starts, ends))
        settled = np.arange(len(ends)) >= steady.warmup
        feeder = timeline.feeder()
        epoch_of = np.full(len(ends), -1, dtype=np.int64)
        for p in timeline.passes:
            if p.loader == feeder:
                begins = p.start[p.of_stage(TRAINING) & (p.batches > 0)]
                epoch_of = np.searchsorted(begins, ends, side="right") - 1
        return StepPart(
            wall_ns=wall,
            per_step=per_step_ns(timeline.events, self.attribution, starts, ends),
            steady=steady,
            candidates=settled & ~border,
            epoch_of=epoch_of,
        )

    def _borders(self, starts: Int64, ends: Int64) -> Bool:
        """Steps in which a pass begins or ends on the training thread, or evaluation ran."""
        border = np.zeros(len(ends), dtype=bool)
        times = [self.timeline.segments[:, 0]]
        for p, on_thread in zip(
            self.timeline.passes, self.timeline.on_thread.tolist(), strict=True
        ):
            # A loop that makes a new iterator for each step has no borders to speak of.
            if on_thread and len(p) * 2 <= len(ends):
                times.append(p.start)
        step = np.searchsorted(ends, np.concatenate(times))
        border[step[step < len(ends)]] = True
        return border

    def _buffered(self, starts: Int64, ends: Int64) -> Bool:
        """Steps that may use batches which workers had ready from before a start or evaluation."""
        buffered = np.zeros(len(ends), dtype=bool)
        for p, on_thread in zip(
            self.timeline.passes, self.timeline.on_thread.tolist(), strict=True
        ):
            facts = self.texts[Topic.LOADER].get(p.loader)
            workers = _int(facts.get("num_workers")) if isinstance(facts, dict) else None
            if not on_thread or p.role != TRAINING or not workers or len(p) * 2 > len(ends):
                continue
            assert isinstance(facts, dict)
            ahead = workers * (_int(facts.get("prefetch_factor")) or _DEFAULT_PREFETCH)
            refills = np.concatenate([p.start, self.timeline.segments[:, 1]])
            for step in np.unique(np.searchsorted(ends, refills)).tolist():
                buffered[step : step + ahead] = True
        return buffered

    def _training(self, part: StepPart) -> Training:
        timeline = self.timeline
        steady = part.steady.mask
        wall = part.wall_ns[steady]
        per_step = None
        if len(wall):
            per_step = {key: float(ns[steady].mean() / 1e9) for key, ns in part.per_step.items()}
            per_step.update(evaluation=0.0, startup=0.0, shutdown=0.0)
        samples = self._samples()
        loop_s = (timeline.window.loop_end - timeline.window.loop_start) / 1e9
        loop_s -= float((timeline.segments[:, 1] - timeline.segments[:, 0]).sum() / 1e9)
        return Training(
            steps=len(part.wall_ns),
            iterations=self._iterations(len(part.wall_ns)),
            epochs=self._epoch_count(),
            samples=samples,
            samples_per_s=samples / loop_s if samples and loop_s > 0 else None,
            step_source=timeline.steps.source,
            step_s=statistics_s(wall),
            per_step_s=per_step,
            warmup_excluded=part.steady.warmup,
            steady_steps=len(wall),
            steady_s=float(wall.sum() / 1e9),
        )

    def _epoch_count(self) -> int:
        feeder = self.timeline.feeder()
        return sum(
            int((p.of_stage(TRAINING) & (p.batches > 0)).sum())
            for p in self.timeline.passes
            if p.loader == feeder
        )

    def _iterations(self, steps: int) -> int:
        """Batches of the feeding loader; without one, backwards of a single optimizer, or steps."""
        timeline = self.timeline
        feeder = timeline.feeder()
        for p in timeline.passes:
            if p.loader == feeder:
                return int(p.batches[p.of_stage(TRAINING)].sum())
        events = timeline.events
        optimizers = np.unique(events.site[events.is_kind(Kind.OPTIMIZER_STEP)])
        backward = events.is_kind(Kind.BACKWARD)
        outermost = backward & ~timeline.nesting.inside(backward)
        outermost &= ~within(timeline.segments, events.start)
        return int(outermost.sum()) if len(optimizers) <= 1 else steps

    def _samples(self) -> int | None:
        feeder = self.timeline.feeder()
        for p in self.timeline.passes:
            if p.loader == feeder:
                return samples_of(p, _calls_of(self.timeline.all_events, p.loader))
        return None

    def _system(self) -> System | None:
        recording, window = self.recording, self.timeline.window
        host, pid = recording.section("host"), recording.manifest.get("script_pid")
        limit = _int(host.get("memory_limit_bytes"))
        cores = host.get("usable_cores")
        return system_summary(
            recording.host_lines,
            recording.process_lines,
            recording.gpu_lines,
            start_ns=window.start,
            end_ns=window.end,
            main_pid=_int(pid),
            interval_s=_number(recording.section("options").get("interval_s"), DEFAULT_INTERVAL_S),
            usable_cores=_number(cores, 0.0) or None,
            memory_limit_bytes=limit,
        )

    def _samples_between(self, start: int, end: int) -> dict[str, float] | None:
        return samples_between(self.recording.host_lines, self.recording.process_lines, start, end)

    def _evidence(
        self, account: Ledger, training: Training, loaders: list[Loader], run: Run
    ) -> Evidence:
        timeline, window = self.timeline, self.timeline.window
        in_loop = (timeline.events.start >= window.loop_start) & (
            timeline.events.start < window.loop_end
        )
        inside = replace(
            self.attribution,
            key=self.attribution.key[in_loop],
            own_ns=self.attribution.own_ns[in_loop],
            top=np.flatnonzero(np.isin(np.flatnonzero(in_loop), self.attribution.top)),
            segments=_within_loop(timeline.segments, window),
        )
        loop = Window(window.loop_start, window.loop_start, window.loop_end, window.loop_end)
        seconds = ledger(timeline.events.where(in_loop), inside, loop).seconds
        places = account.other_by_place
        evaluating = max(
            (x for x in loaders if x.role == EVALUATION),
            key=lambda x: x.wait_total_s,
            default=None,
        )
        return Evidence(
            wall_s=account.wall_s,
            startup_s=account.seconds["startup"],
            training_s=(window.loop_end - window.loop_start) / 1e9,
            training=seconds,
            has_device=self._device() is not None,
            steps=training,
            loaders=loaders,
            checkpoint_site=self._busiest_site(Kind.CHECKPOINT_SAVE),
            evaluation_site=evaluating.site if evaluating else None,
            other_place=max(places, key=lambda name: places[name]) if places else None,
        )

    def _busiest_site(self, kind: Kind) -> str | None:
        events = self.timeline.events
        mine = events.where(events.is_kind(kind))
        if len(mine) == 0:
            return None
        sites, which = np.unique(mine.site, return_inverse=True)
        totals = np.bincount(which, weights=mine.end - mine.start)
        name = self._sites()[int(sites[totals.argmax()])]
        return None if name == UNKNOWN_SITE else name

    def _overhead(self, part: StepPart) -> Overhead:
        records = sum(log.records for log in self.recording.logs)
        per_step = share = None
        steps = len(part.wall_ns)
        if steps:
            window = self.timeline.window
            starts = self.timeline.events.start
            in_loop = (starts >= window.loop_start) & (starts < window.loop_end)
            per_step = float(in_loop.sum()) / steps * EVENT_COST_US
            mean_us = float(part.wall_ns.mean()) / 1e3
            share = per_step / mean_us if mean_us > 0 else None
        return Overhead(records, records * RECORD_BYTES, per_step, share)

    def _not_observed(self, system: System | None, training: Training) -> dict[str, str]:
        reasons: dict[str, str] = {}
        if not self.logs:
            reasons["training"] = "no event was recorded: the script did not get as far as torch"
        elif training.steps == 0:
            reasons["training.step_s"] = "no parameter update and no backward was seen"
        if system is None:
            reasons["system"] = "no sample was taken"
        if self._device() is not None:
            reasons["devices"] = "device time is not measured: host time alone"
        return reasons

    def _faults(self) -> list[str]:
        faults = [str(fault) for fault in self.recording.manifest.get("faults") or []]
        faults += self.recording.damage
        for topic, say in ((Topic.PROBE_FAILED, "failed"), (Topic.PROBE_UNAVAILABLE, "is missing")):
            for log in self.recording.logs:
                for told in log.texts_of(topic).values():
                    if isinstance(told, dict):
                        why = told.get("error") or told.get("reason")
                        faults.append(f"probe {told.get('probe')} {say}: {why}")
        origin = self._origin()
        for log in self.recording.logs:
            if log.stopped_ns is not None:
                after = (log.stopped_ns - origin) / 1e9
                faults.append(
                    f"recording of process {log.pid} stopped after {after:.1f} s: "
                    f"{_error_name(log.stopped_errno)}"
                )
        return list(dict.fromkeys(faults))


@dataclass(frozen=True, slots=True)
class StepPart:
    """Per-step columns, shape (n_steps,), ns."""

    wall_ns: Int64
    per_step: dict[str, Int64]
    steady: Steady
    candidates: Bool
    epoch_of: Int64


def _attribute(timeline: Timeline, texts: Mapping[Topic, Mapping[int, Any]]) -> Attribution:
    has_device = any(
        isinstance(facts, dict) and facts.get("device")
        for facts in texts[Topic.ENVIRONMENT].values()
    )
    return attribute(timeline.events, timeline.nesting, timeline.segments, has_device=has_device)


def _span(recording: Recording, events: Events) -> tuple[int, int]:
    """Start and end of the run: as its parent saw them, else as far as anything was recorded."""
    times = recording.section("times")
    start, end = _int(times.get("spawned_ns")), _int(times.get("ended_ns"))
    seen = [int(events.start[0]), int(events.end.max())] if len(events) else []
    for log in recording.logs:
        marks = [(first, last) for kind, _, first, last, _ in log.marks if kind != Kind.CLOCK]
        seen += [t for pair in marks for t in pair if t]
    for lines in (recording.host_lines, recording.process_lines):
        if lines:
            seen += [int(lines[0]["t_ns"]), int(lines[-1]["t_ns"])]
    if start is None:
        start = min(seen, default=0)
    if end is None:
        end = max(seen, default=start)
    return start, max(start, end)


def _cut(passes: Passes, keep: Bool) -> Passes:
    columns = {
        name: getattr(passes, name)[keep]
        for name in Passes.__slots__
        if isinstance(getattr(passes, name), np.ndarray)
    }
    return replace(passes, **columns)


def _calls_of(events: Events, loader: int) -> Events:
    kinds = (Kind.LOADER_NEXT, Kind.SAMPLER)
    return events.where(events.is_kind(*kinds) & (events.site == loader))


def _within_loop(segments: Int64, window: Window) -> Int64:
    inside = (segments[:, 0] >= window.loop_start) & (segments[:, 1] <= window.loop_end)
    return segments[inside]


def _error_name(number: int | None) -> str:
    return os.strerror(number) if number else "unknown reason"


def _int(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(value: Any, default: float) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number else default
