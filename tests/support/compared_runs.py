"""Runs to compare: recorded on a fake clock with planted step times, and made up whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from support import summaries
from support.events import MS, US, FakeRun

from trainprof.analysis.statistics.speedup import Chance, Pace, SpeedUp
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.compare.compared_run import ComparedRun, read_compared_run
from trainprof.compare.comparison import Comparison, compare
from trainprof.findings.summarize import summarize
from trainprof.record.run_directory import RunDirectory
from trainprof.record.schema import Kind


def ar1(
    random: np.random.Generator, count: int, *, noise: float = 0.05, alike: float = 0.6
) -> npt.NDArray[np.float64]:
    """Steps of 1 on average, each like the one before it; `noise` is their standard deviation."""
    shocks = random.normal(size=count) * np.sqrt(1 - alike**2)
    steps = np.empty(count)
    state = float(random.normal())
    for index, shock in enumerate(shocks.tolist()):
        state = alike * state + shock
        steps[index] = state
    return np.exp(noise * steps)


def pace(
    random: np.random.Generator,
    *,
    level: float = 1.0,
    count: int = 400,
    run_noise: float = 0.01,
    **noise: float,
) -> Pace:
    """One run of 2 ms steps; `run_noise` makes it fast or slow as a whole."""
    whole = level * np.exp(run_noise * random.normal())
    steps = 0.002 * whole * ar1(random, count, **noise)
    return Pace(float(steps.mean()), steps)


def recorded(
    parent: Path,
    name: str,
    *,
    forwards: Sequence[int],
    wait: int = 100 * US,
    batch_size: int = 8,
    num_workers: int = 0,
    passes: int = 1,
    start: int = 0,
    between: int = 0,
    cut: int = 0,
    **manifest: Any,
) -> RunDirectory:
    """Writes a run of one step for each forward, which takes so many ns.

    The first batch of each of the passes takes `start` ns longer. Behind each pass a checkpoint
    takes half of `between`, a plot the rest. The last pass lacks its last `cut` steps.
    """
    run = FakeRun()
    loader = run.loader(batch_size=batch_size, num_workers=num_workers)
    optimizer = run.optimizer()
    run.passes_time(500 * MS)
    of_passes = np.array_split(np.array(forwards), passes)
    of_passes[-1] = of_passes[-1][: len(of_passes[-1]) - cut]
    for of_pass in of_passes:
        run.iterate(loader)
        for place, forward in enumerate(of_pass.tolist()):
            run.next(loader, wait + (0 if place else start), samples=batch_size)
            run.learn(optimizer, forward=forward)
        run.stop(loader)
        if between:
            run.leaf(Kind.CHECKPOINT_SAVE, between // 2)
            run.passes_time(between // 2)
    run.passes_time(20 * MS)
    plain = {"script": "train.py", "script_sha256": "0" * 64, "versions": {"torch": "2.13.0"}}
    directory = run.write(parent / name, **(plain | {"name": name} | manifest))
    assert directory.path.parent == parent / name
    return directory


def ended_early(run: ComparedRun, *, length: int | None) -> ComparedRun:
    """The same run as a limit ended it; its loader would give so many batches in a pass."""
    summary = run.summary
    first, *others = summary.loaders
    exit_ = replace(summary.run.exit, reason="limit")
    return replace(
        run,
        summary=replace(
            summary,
            run=replace(summary.run, exit=exit_),
            loaders=[replace(first, length=length), *others],
        ),
    )


def read(directory: RunDirectory) -> ComparedRun:
    return read_compared_run(directory, summarize(directory))


def steps_of(seed: int, mean_ns: int = 1 * MS, count: int = 120) -> list[int]:
    """Forwards with noise of 2 %."""
    random = np.random.default_rng(seed)
    return (mean_ns * ar1(random, count, noise=0.02)).astype(int).tolist()


def made_up(summary: RunSummary, name: str, **manifest: Any) -> ComparedRun:
    """A run of which only the summary and the manifest are left, on a machine of its own."""
    run = replace(summary.run, name=name, directory=f"trainprof-runs/{name}")
    written = {**manifest, "host": {"is_virtual": False, **manifest.get("host", {})}}
    return ComparedRun(replace(summary, run=run), None, written, f"/runs/{name}")


def with_steps_longer(summary: RunSummary, factor: float) -> RunSummary:
    """The same run with all steps, and what they consist of, longer by a factor."""
    training = summary.training
    assert training.step_s is not None
    assert training.per_step_s is not None
    times = {name: getattr(training.step_s, name) * factor for name in ("mean", "p50", "p95")}
    return replace(
        summary,
        training=replace(
            training,
            step_s=replace(training.step_s, **times),
            per_step_s={key: value * factor for key, value in training.per_step_s.items()},
        ),
    )


def faster_loader() -> RunSummary:
    """`summaries.slow_loader` with two workers: the wait is gone but for a tenth."""
    base = summaries.slow_loader()
    training = base.training
    assert training.step_s is not None
    assert training.per_step_s is not None
    parts = training.per_step_s | {"data_wait": 0.0187}
    mean = sum(parts.values())
    step = replace(training.step_s, mean=mean, p50=mean * 0.98, p95=mean * 1.2)
    (loader,) = base.loaders
    wait = replace(loader.wait_s, mean=0.0187) if loader.wait_s is not None else None
    return replace(
        base,
        run=replace(base.run, wall_s=19.4),
        phases=replace(base.phases, training_s=16.9),
        training=replace(training, step_s=step, per_step_s=parts, samples_per_s=473.0),
        loaders=[replace(loader, num_workers=2, prefetch_factor=2, wait_s=wait)],
        system=summaries.system(
            memory={"tree_rss_bytes": {"max": 1130.0 * summaries.MIB}},
            cpu={"tree_percent": {"mean": 262.0}},
        ),
    )


def repeated() -> Comparison:
    """Three runs each, 40 % off the step: the spread of the runs is the noise."""
    factors = (0.99, 1.0, 1.012)
    base = [
        made_up(with_steps_longer(summaries.slow_loader(), f), f"train-a{n}")
        for n, f in enumerate(factors)
    ]
    other = [
        made_up(with_steps_longer(faster_loader(), f), f"train-b{n}") for n, f in enumerate(factors)
    ]
    return compare(base, other)


def single(factor: float, verdict: str, half: float = 0.031) -> Comparison:
    """One run each, OTHER's steps longer by a factor; the interval reaches `half` to both sides."""
    base = made_up(summaries.healthy(), "healthy-1", script_sha256="a")
    other = made_up(with_steps_longer(summaries.healthy(), factor), "healthy-2", script_sha256="a")
    compared = compare([base], [other])
    speed = SpeedUp(
        (1 - half) / factor,
        1 / factor,
        (1 + half) / factor,
        verdict,
        Chance(0.03, "as runs on a quiet machine do"),
    )
    metrics = [
        replace(metric, low=metric.change - half, high=metric.change + half, verdict=verdict)
        if metric.name in ("step_s", "samples_per_s") and metric.change is not None
        else metric
        for metric in compared.metrics
    ]
    return replace(compared, speedup=speed, metrics=metrics)
