"""Runs to be judged: loaders whose every moment is known, played through torch's pipeline."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
from support import summaries

from trainprof.analysis.model.torch_settings import TorchSettings
from trainprof.analysis.pipeline.bounds import Interval, PipelineInputs, Setting, pipelines_of
from trainprof.analysis.pipeline.fit import model_of
from trainprof.analysis.pipeline.model import simulate
from trainprof.analysis.run.evidence import Evidence
from trainprof.analysis.run.metadata import Notes, Sites
from trainprof.analysis.run.one_process import ProcessNumbers
from trainprof.analysis.summary.device import Device, SyncPoint
from trainprof.analysis.summary.loader import Loader
from trainprof.analysis.summary.run import LEDGER_KEYS
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.analysis.timeline.checkpoints import Checkpoints
from trainprof.analysis.timeline.steady_state import Steady
from trainprof.analysis.timeline.step_table import StepTable
from trainprof.findings.catalogue import with_usual
from trainprof.findings.run_context import RunContext, context_of_process
from trainprof.record.notes import Note, record_of

STEPS = 200
HEALTHY: dict[str, Any] = {"workers": 2, "fetch_s": 0.002, "compute_s": 0.01}


class Planted:
    """A loader, what the model is told of it, and what training then took."""

    def __init__(
        self,
        *,
        workers: int = 0,
        fetch_s: float = 0.01,
        running: float = 0.0,
        reading: float = 0.0,
        compute_s: float = 0.01,
        passes: int = 2,
        cores: float = 8.0,
        is_persistent: bool = False,
        start_s: float = 0.0,
        role: str = "training",
        slow_every: int | None = None,
        bursts: tuple[int, int, float] | None = None,
        cold_passes: int = 0,
        collate: float | None = None,
        **more: Any,
    ) -> None:
        """
        Args:
            running, reading: Of a fetch, on a core and waiting for a disk; it sleeps for the rest.
            start_s: Until workers are up, in each pass.
            slow_every: Of so many batches one takes twenty times as long.
            bursts: Of so many batches, so many in a row take so many times as long.
            cold_passes: After so many a batch takes a hundredth.
            collate: Share of a fetch that is the user's collate function's; None: it is torch's.
            more: Of the model's inputs.
        """
        n = STEPS // passes * passes
        fetches = np.full(n, fetch_s)
        if slow_every is not None:
            fetches[slow_every // 2 :: slow_every] *= 20
        if bursts is not None:
            period, longs, times = bursts
            fetches[np.arange(n) % period < longs] *= times
        if cold_passes:
            fetches[cold_passes * (n // passes) :] /= 100
        self.inputs = PipelineInputs(
            setting=Setting(workers, is_persistent=is_persistent),
            batches=n // passes,
            fetch_s=fetches,
            compute_s=np.full(n, compute_s),
            cores=cores,
            running_s=fetches * running,
            reading_s=fetches * reading,
            read_bytes=n << 20 if reading else 0,
            boot_s=Interval.exactly(start_s),
            **more,
        )
        flows = [simulate(p) for p in pipelines_of(self.inputs, self.inputs.setting, "mid")]
        waits = [flow.wait_s for flow in flows]
        self.inputs = replace(self.inputs, wait_s=np.concatenate(waits))
        first = np.array([wait[0] for wait in waits])
        later = np.concatenate([wait[1:] for wait in waits])
        self.step_s = np.concatenate([flow.step_s for flow in flows])
        self.loader = summaries.loader(
            "train.py:41",
            role=role,
            num_workers=workers,
            persistent_workers=is_persistent,
            passes=passes,
            iterations=n,
            init_s=summaries.statistics(1e-4, n=passes),
            first_batch_s=summaries.statistics(float(first.mean()), n=passes),
            wait_s=summaries.statistics(float(later.mean()), n=len(later)),
            wait_total_s=float(later.sum()),
            fetch=summaries.fetch(
                float(fetches.mean()),
                n,
                workers=workers,
                running=running,
                reading=reading,
                asleep=1 - running - reading,
            ),
            bound=None,
            later_starts_s=float(first[1:].sum()),
            evaluation_s=float(self.step_s.sum()) if role == "evaluation" else 0.0,
        )
        if slow_every is not None:
            count = STEPS // slow_every
            slow = [summaries.slow_sample(index, 19 * fetch_s) for index in range(count)]
            self.having(fetch={"typical_sample_s": fetch_s / 32, "slow_samples": slow})
        if collate is not None:
            made_s = float(fetches.sum())
            parts = {"dataset_s": (1 - collate) * made_s, "collate_s": collate * made_s}
            self.having(fetch=parts, collate_site="data.py:30")

    def having(
        self,
        *,
        fetch: dict[str, Any] | None = None,
        inputs: dict[str, Any] | None = None,
        **loader: Any,
    ) -> Planted:
        """Returns it with other fields of the loader, of its fetches and of the model's inputs."""
        if fetch is not None:
            assert self.loader.fetch is not None
            loader["fetch"] = replace(self.loader.fetch, **fetch)
        self.loader = replace(self.loader, **loader)
        self.inputs = replace(self.inputs, **(inputs or {}))
        return self


def case_of(
    *planted: Planted,
    parts: dict[str, float] | None = None,
    steady_steps: int = STEPS,
    drift: float = 0.0,
    halves: dict[str, tuple[float, float]] | None = None,
    settings: dict[str, float] | None = None,
    torch: TorchSettings | None = None,
    backwards: int = STEPS,
    notes: Notes | None = None,
    **changes: Any,
) -> RunContext:
    """Returns a run of these loaders.

    Args:
        parts: Seconds of training by ledger key, beside the loaders and computing.
        drift: By how much the second half's steps are slower.
        halves: Shares of the steps of either half by ledger key, where a test asks for them.
        settings: Thresholds that the user has set.
        backwards: Runs of the autograd engine.
        changes: Of the summary.
    """
    training = dict.fromkeys(LEDGER_KEYS, 0.0) | (parts or {})
    feeding = [each for each in planted if each.loader.role == "training"]
    training["forward"] = sum(float(each.inputs.compute_s.sum()) for each in feeding) or 2.0
    for loader in (each.loader for each in feeding):
        training["data_wait"] += loader.wait_total_s
        assert loader.first_batch_s is not None
        training["first_batch"] += loader.first_batch_s.mean * loader.passes
    training_s = sum(training.values())
    summary = _summary([each.loader for each in planted], training, steady_steps, **changes)
    inputs = {each.loader.id: each.inputs for each in planted}
    evidence = Evidence(
        wall_s=summary.run.wall_s,
        startup_s=0.0,
        training_s=training_s,
        training=training,
        has_device=summary.run.is_on_device,
        steps=summary.training,
        loaders=summary.loaders,
        checkpoints=Checkpoints(saves=4, save_s=training["checkpoint"], site="train.py:70"),
        evaluation_site=None,
        evaluation_call=None,
        other_place=None,
    )
    numbers = ProcessNumbers(
        summary=summary,
        evidence=evidence,
        model_of=lambda number: model_of(inputs.get(number)),
        steps=_steps(training_s / STEPS, drift, halves or {}),
        backwards=backwards,
        torch=torch or TorchSettings(),
        notes=notes or Notes(),
    )
    return context_of_process(numbers, with_usual(settings or {}))


def healthy(*others: Planted, **how: Any) -> RunContext:
    """Returns a run of 2 s whose two workers keep up, with `how` as `case_of` has it."""
    return case_of(Planted(**HEALTHY), *others, **how)


def with_summary(context: RunContext, **changes: Any) -> RunContext:
    return replace(context, summary=replace(context.summary, **changes))


def with_run(context: RunContext, **changes: Any) -> RunContext:
    return with_summary(context, run=replace(context.summary.run, **changes))


def idle_device(because_s: dict[str, float]) -> Device:
    """Returns a device that was idle for these causes."""
    return Device(
        index=0,
        name="cuda:0",
        busy_share=[0.4, 0.5],
        idle_because=because_s,
        per_step_s={},
        queue_delay_s=None,
        memory=None,
        marks=2000,
    )


def on_device(
    case: RunContext, training: dict[str, float] | None = None, **idle_s: float
) -> RunContext:
    """Returns the case on a device that was idle for these causes; without any, nobody knows."""
    device = idle_device(idle_s)
    summary = replace(
        case.summary,
        run=replace(case.summary.run, device="cuda:0"),
        devices=[device] if idle_s else None,
        transfers=[
            replace(
                row,
                exposed_s=1.0,
                pinned_share=0.0,
                non_blocking_share=0.0,
                bytes=row.count * 4 * summaries.MIB,
            )
            for row in summaries.accelerator().transfers[:1]
        ],
        sync_points=[SyncPoint("train.py:60", "item", 200, 0, 3.0, 1.0)],
    )
    return replace(case, summary=summary, training=training or case.training)


def _summary(
    loaders: list[Loader],
    spent: dict[str, float],
    steady_steps: int,
    device: str = "cpu",
    **changes: Any,
) -> RunSummary:
    plain = summaries.healthy()
    steps, training_s = plain.training.steps, sum(spent.values())
    for number, loader in enumerate(loaders):
        assert loader.id == number or len(loaders) == 1
    return replace(
        plain,
        run=replace(plain.run, wall_s=training_s * 1.1, device=device),
        training=replace(
            plain.training,
            steady_steps=steady_steps,
            per_step_s={key: seconds / steps for key, seconds in spent.items()},
        ),
        loaders=loaders,
        part_lines=[],
        findings=[],
        **changes,
    )


def _steps(step_s: float, drift: float, halves: dict[str, tuple[float, float]]) -> StepTable:
    wall = np.full(STEPS, round(step_s * 1e9), dtype=np.int64)
    wall[STEPS // 2 :] += round(step_s * drift * 1e9)
    spent = {
        key: (wall * np.repeat(shares, [STEPS // 2, STEPS - STEPS // 2])).astype(np.int64)
        for key, shares in halves.items()
    }
    everything = np.ones(STEPS, dtype=bool)
    nothing = np.zeros(STEPS, dtype=np.int64)
    return StepTable(
        wall_ns=wall,
        per_step=dict.fromkeys(("data_wait", "first_batch", "other"), nothing)
        | {"forward": wall, **spent},
        steady=Steady(everything, 0),
        candidates=everything,
        epoch_of=nothing,
        border=~everything,
        buffered=~everything,
        cycle=1,
    )


def noted(*notes: Note, places: tuple[str, ...] = ()) -> Notes:
    """Returns notes as an analysis reads them; the first of `places` has the number 1.

    Several of one kind stand in one list.
    """
    kinds = {note.KEY: [x for x in notes if x.KEY == note.KEY] for note in notes}
    record = {
        key: value
        for same in kinds.values()
        for key, value in record_of(same if len(same) > 1 else same[0]).items()
    }
    texts = {number: [*place.rsplit(":", 1), ""] for number, place in enumerate(places, 1)}
    sites = {number: [file, int(line), name] for number, (file, line, name) in texts.items()}
    return Notes([json.loads(json.dumps(record))], Sites(sites, None))
