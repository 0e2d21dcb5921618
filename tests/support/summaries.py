"""Summaries of runs that could have been: what renderers are tested on.

Every builder gives ledgers that close and figures that agree with one another, as analysis would.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

from trainprof.analysis.summary.code import HottestLine, OptimizerUse
from trainprof.analysis.summary.device import Energy, Gpu, SyncPoint, Transfer, Utilization
from trainprof.analysis.summary.finding import LIKELY, Finding
from trainprof.analysis.summary.loader import Fetch, Loader, LoaderBound
from trainprof.analysis.summary.run import (
    LEDGER_KEYS,
    Epoch,
    Evaluation,
    Exit,
    Ledger,
    Outlier,
    Overhead,
    Phases,
    Run,
    Statistics,
    System,
    Training,
    Verdict,
)
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.findings.catalogue import RULES, rule_named

MIB = 1 << 20
GIB = 1 << 30


def statistics(
    mean: float, *, n: int = 240, p50: float | None = None, p95: float | None = None, **some: float
) -> Statistics:
    """A plausible distribution around a mean."""
    middle = mean if p50 is None else p50
    high = mean * 1.06 if p95 is None else p95
    values = {
        "std": mean * 0.04,
        "min": mean * 0.9,
        "p90": (middle + high) / 2,
        "p99": high * 1.1,
        "max": high * 1.2,
    } | some
    return Statistics(n=n, mean=mean, p50=middle, p95=high, **values)


def per_step(text: str) -> dict[str, float]:
    """Parts of a step as in "forward 3.61, backward 5.02", the other keys 0."""
    parts = {key: float(seconds) for key, seconds in map(str.split, text.split(", "))}
    return dict.fromkeys(LEDGER_KEYS, 0.0) | parts


def numbers(text: str) -> dict[str, Any]:
    """Reads "steps 928, steady_s 164.3": fields of a record."""
    pairs = map(str.split, text.split(", "))
    return {name: float(value) if "." in value else int(value) for name, value in pairs}


def ledger(
    seconds: dict[str, float] | str, other_by_place: dict[str, float] | None = None
) -> Ledger:
    """A ledger of the given parts, the other keys 0."""
    parts = per_step(seconds) if isinstance(seconds, str) else seconds
    whole = dict.fromkeys(LEDGER_KEYS, 0.0) | parts
    return Ledger(sum(whole.values()), whole, other_by_place or {})


def shared(whole: float, shares: dict[str, float]) -> dict[str, float]:
    """Seconds of each of the five parts of a fetch."""
    parts = dict.fromkeys(("running", "runnable", "throttled", "reading", "asleep"), 0.0)
    return {f"{name}_s": whole * share for name, share in (parts | shares).items()}


def fetch(
    mean_s: float,
    n: int,
    *,
    workers: int = 0,
    batch_size: int = 32,
    busy: float = 0.98,
    **shares: float,
) -> Fetch:
    """The making of `n` batches; `shares` of its time are those of running, asleep and the like."""
    whole, spent = mean_s * n, shared(mean_s * n, shares)
    return Fetch(
        n=n,
        wall_s=statistics(mean_s, n=n),
        **spent,
        cpu_s=spent["running_s"],
        read_bytes=3 * MIB * n if shares.get("reading") else 0,
        major_faults=12,
        measured=n,
        samples=n * batch_size,
        batch_bytes=4.6 * MIB,
        dataset_s=whole * 0.988,
        collate_s=whole * 0.012,
        typical_sample_s=mean_s / batch_size,
        slow_samples=[
            slow_sample(
                100 + rank,
                mean_s / batch_size * (2.5 - rank / 10),
                worker=rank % workers if workers else None,
            )
            for rank in range(3)
        ],
        per_worker=[
            worker(number, mean_s, n // workers, busy=busy, **shares) for number in range(workers)
        ]
        or [worker(None, mean_s, n, **shares)],
    )


def worker(
    number: int | None, mean_s: float, n: int, *, busy: float | None = None, **shares: float
) -> dict[str, Any]:
    """One process that makes batches; that of number None is the one that trains."""
    spent = shared(mean_s * n, shares)
    row: dict[str, Any] = {
        "worker": number,
        "pid": 4120 if number is None else 4200 + number,
        "n": n,
        "seconds": mean_s * n,
        "mean_s": mean_s,
        "busy_share": busy,
        "first_fetch_s": None,
        **spent,
        "cpu_s": spent["running_s"],
        "read_bytes": 3 * MIB * n if shares.get("reading") else 0,
        "major_faults": 3,
        "measured": n,
    }
    if number is None:
        return row
    return row | {
        "first_fetch_s": 0.031 + 0.002 * number,
        "rss_bytes": 412 * MIB,
        "pss_bytes": 133 * MIB,
        "threads": 2,
        "voluntary_switches_per_s": 212.0,
        "involuntary_switches_per_s": 31.0,
        "read_bytes_per_s": 2.1e6 if shares.get("reading") else 0.0,
        "read_calls_per_s": 318.0,
        "cpu_percent": 88.0,
    }


def slow_sample(index: int | None, seconds: float, *, worker: int | None = 0) -> dict[str, Any]:
    """A sample that took long; without an index its place in the batch is known."""
    return {
        "index": index,
        "place_in_batch": 4 if index is None else None,
        "seconds": seconds,
        "kept_off_s": 0.0,
        "at_s": 31.2,
        "worker": worker,
        "pid": 4120 if worker is None else 4200 + worker,
    }


def bound(by: str, *, margin: float = 0.4, **parts: float) -> LoaderBound:
    """What bounds a loader; `parts` of a step are blocked, receive, sampler, compute."""
    receive = parts.pop("receive", 0.0)
    spent = {"blocked": 0.0, "sampler": 0.0} | parts | {"receive in the main process": receive}
    step = sum(spent.values())
    main = step - spent["blocked"]
    others = [name for name in ("one worker's latency", "CPU") if name != by]
    limits = dict.fromkeys(others, step * (1 - margin)) | {"main process": main}
    return LoaderBound(
        by=by,
        wait_cause=by if by != "compute" else "receive in the main process",
        parts_s=spent,
        limits_s={**limits, by: step} if by in ("one worker's latency", "CPU") else limits,
        step_s=step,
        measured_step_s=step * 1.01,
    )


def loader(site: str, **changes: Any) -> Loader:
    """A training loader without workers; `changes` are its other fields."""
    plain = Loader(
        id=0,
        site=site,
        role="training",
        kind="DataLoader",
        dataset="PhotoFolder",
        length=125,
        num_workers=0,
        prefetch_factor=None,
        persistent_workers=False,
        pin_memory=False,
        batch_size=32,
        start_method=None,
        passes=2,
        iterations=250,
        init_s=statistics(0.0012, n=2),
        first_batch_s=statistics(0.214, n=2),
        wait_s=statistics(0.187, n=248, p95=0.201, max=0.568),
        wait_total_s=46.38,
        end_s=0.002,
        sampler_s=0.011,
        blocked_s=None,
        receive_s=None,
        ready_share=None,
        pin_s=None,
        lost_workers=[],
        fetch=fetch(0.186, 250, running=0.965, asleep=0.035, batch_size=32),
        bound=bound("one worker's latency", blocked=0.1869, compute=0.0386),
        thread="training",
    )
    return replace(plain, **changes)


def finding(**changes: Any) -> Finding:
    """The training process makes its batches itself; `changes` are other fields."""
    plain = Finding(
        id="serial_loading",
        severity="high",
        title="the loader runs in the training process (num_workers=0): each 226 ms step waits "
        "187 ms for its batch",
        evidence={"wait_share": 0.82, "batch_s": 0.226, "workers": 0, LIKELY: 4.6},
        site="train.py:41",
        advice="DataLoader(..., num_workers=5, persistent_workers=True)",
        action="" if "id" in changes else "Load data in worker processes",
        change={"num_workers": 5, "persistent_workers": True},
        recoverable_s=41.2,
        predicted_speedup=[4.1, 5.2],
        run_speedup=[3.0, 3.6],
        is_at_most=False,
        cautions=["workers get their own random seeds, so augmentation draws other numbers"],
        also=["71 % of batch preparation is data.py:52 (decode)"],
        thresholds={"wait_share": 0.05},
        steps=[{"step": 17, "seconds": 0.9, "part_s": 0.8}],
        verify="run it again with the change, then trainprof compare BASE OTHER",
        of_steps=True,
        is_tried_by_tune=True,
    )
    finding = replace(plain, **changes)
    rule = rule_named(finding.id)
    return finding if rule is None else replace(finding, traits=rule.traits)


def epoch(index: int, seconds: float, data_wait_s: float, **changes: Any) -> Epoch:
    """One training pass of 125 batches."""
    plain = Epoch(
        index=index,
        stage="training",
        loader=0,
        seconds=seconds,
        data_wait_s=data_wait_s,
        first_batch_s=0.214,
        iterations=125,
        slow_batches=0,
        slow_total_s=0.0,
        slow_excess_s=0.0,
        steps=125,
        start_s=2.1 + index * seconds,
    )
    return replace(plain, **changes)


def system(**changes: Any) -> System:
    """Eight cores of which the run uses about one."""

    def stat(mean: float, most: float, least: float | None = None) -> dict[str, float]:
        low = mean / 2 if least is None else least
        return {"mean": mean, "min": low, "p50": mean, "p95": most, "max": most}

    plain = System(
        interval_s=0.5,
        samples=120,
        cpu={
            "cores_usable": 8,
            "host_percent": stat(16.0, 41.0),
            "tree_percent": stat(108.0, 160.0),
            "per_core_percent": [16.0] * 8,
            "iowait_share": 0.004,
            "pressure_some_share": 0.01,
            "context_switches_per_s": 812.0,
        },
        memory={
            "host_total_bytes": 32 * GIB,
            "host_available_bytes": stat(24.0 * GIB, 25.0 * GIB, 23.0 * GIB),
            "tree_rss_bytes": stat(590.0 * MIB, 612.0 * MIB),
            "tree_pss_bytes": stat(560.0 * MIB, 580.0 * MIB),
            "swap_used_bytes": stat(0.0, 0.0),
            "limit_bytes": None,
        },
        disk={"read_bytes_per_s": stat(2.1e6, 9e6), "write_bytes_per_s": stat(12e3, 1e6)},
        network={"received_bytes_per_s": stat(900.0, 4e3), "sent_bytes_per_s": stat(700.0, 2e3)},
        processes=[
            {
                "pid": 4120,
                "name": "python train.py",
                "role": "main",
                "cpu_percent": stat(108.0, 160.0),
                "rss_bytes": stat(590.0 * MIB, 612.0 * MIB),
                "threads": 9,
                "first_s": 0.0,
                "last_s": 58.3,
            }
        ],
        gpus=[],
        cost={"share_of_core": 0.004, "samples": 120},
        last_sample=None,
    )
    return replace(plain, **changes)


def disturbed_system() -> System:
    """Other programs keep nearly all of the cores busy."""
    busy = {"host_percent": {"mean": 90.0}, "tree_percent": {"mean": 80.0}}
    return system(cpu={**system().cpu, **busy, "pressure_some_share": 0.9})


def utilization(histogram: dict[int, float]) -> Utilization:
    """A GPU that was as busy as the shares of time by tens of percent say; 10 is 100 %."""
    values = sorted(
        (100 if tens == 10 else 10 * tens + 5, share) for tens, share in histogram.items()
    )

    def percentile(share: float) -> float:
        covered = 0.0
        for value, part in values:
            covered += part
            if covered >= share - 1e-9:
                return value
        return values[-1][0]

    return Utilization(
        mean=sum(value * share for value, share in values),
        min=values[0][0],
        max=values[-1][0],
        p5=percentile(0.05),
        p50=percentile(0.5),
        p95=percentile(0.95),
        p99=percentile(0.99),
    )


def gpu(index: int = 0, **changes: Any) -> Gpu:
    """One of the script's GPUs, used by it for two minutes."""
    plain = Gpu(
        index=index,
        uuid=f"GPU-{index}",
        name="Stub GPU 80GB",
        logical_index=index,
        is_visible=True,
        is_number_assumed=False,
        is_used=True,
        memory_bytes={"mean": 11.0 * GIB, "max": 12.3 * GIB},
        memory_total_bytes=80.0 * GIB,
        power_w={"mean": 311.0, "max": 690.0},
        power_limit_w=700.0,
        temperature_c={"mean": 55.0, "max": 64.0},
        energy_wh=11.2,
        energy_source="counter",
        seen_s=[0.4, 130.0],
    )
    return replace(plain, **changes)


HOT_LINES = [
    HottestLine("data.py:28", "decode", "data_wait", "training", [0.46, 0.56], 1240),
    HottestLine("data.py:27", "decode", "data_wait", "training", [0.04, 0.14], 90),
    HottestLine("data.py:26", "decode", "data_wait", "training", [0.01, 0.11], 60),
    HottestLine("data.py:30", "pad", "data_wait", "training", [0.01, 0.11], 60),
    HottestLine("train.py:64", "main", "backward", "training", [0.087, 0.09], 214),
    HottestLine("train.py:64", "main", "optimizer", "training", [0.055, 0.065], 140),
    HottestLine("train.py:61", "main", "forward", "training", [0.03, 0.04], 80),
]


def slow_loader() -> RunSummary:
    """The workshop's script: decoding in the main process takes four fifths of the time."""
    parts = ledger(
        "startup 1.87, loader_start 0.003, first_batch 0.43, data_wait 46.38, "
        "loader_end 0.002, transfer 0, forward 3.61, loss 0.09, backward 5.02, "
        "optimizer 0.61, zero_grad 0.04, gc 0.03, other 0.29, shutdown 0.06",
        {"after the step": 0.21, "before the forward": 0.08},
    )
    step = per_step(
        "data_wait 0.1871, forward 0.0144, loss 0.00036, backward 0.0201, "
        "optimizer 0.0024, zero_grad 0.00016, gc 0.00012, other 0.00114"
    )
    return RunSummary(
        run=Run(
            name="train.py",
            command=["train.py", "configs/example_config.py"],
            wall_s=parts.wall_s,
            exit=Exit(status=0, signal=None, reason="completed"),
            versions={"python": "3.11.7", "torch": "2.13.0", "trainprof": "0.1.0"},
            device_timing="cpu",
            rank=None,
            world_size=None,
            started_at="2026-11-21T03:40:12Z",
            directory="trainprof-runs/train-20261121-034012-7f3a",
            device="cpu",
        ),
        phases=Phases(1.87, 56.503, 0.06),
        ledger=parts,
        training=Training(
            steps=250,
            iterations=250,
            epochs=2,
            samples=8000,
            samples_per_s=141.8,
            step_source="optimizer",
            step_s=statistics(0.2257, p50=0.225, p95=0.244, max=0.612),
            per_step_s=step,
            warmup_excluded=10,
            steady_steps=240,
            steady_s=54.17,
        ),
        evaluation=Evaluation(0, 0, 0.0, 0.0, []),
        epochs=[epoch(0, 28.31, 23.22, slow_batches=1), epoch(1, 28.17, 23.16)],
        loaders=[loader("train.py:41")],
        transfers=[],
        sync_points=[SyncPoint("train.py:66", "item", 250, 250, None, None)],
        devices=None,
        system=system(),
        ranks=[],
        stragglers=[],
        outliers=[Outlier(117, 0, 28.4, 0.612, "data_wait", 0.381, None, {"tree_percent": 101.0})],
        findings=[finding()],
        rules=[rule.id for rule in RULES],
        verdict=Verdict(
            "data",
            "Data loading is the bottleneck. The loader runs in the training process "
            "(num_workers=0): each 226 ms step waits 187 ms for its batch.",
            level="highly",
            share=0.829,
            site="train.py:41",
        ),
        overhead=Overhead(events=2760, bytes=92 * 1024, per_step_us=9.1, share=0.00004),
        optimizers=[OptimizerUse("AdamW", "train.py:52", 62, 2, 2, 250, 0.8)],
        wait_threshold_s=0.5,
        hot_lines=HOT_LINES,
    )


def several_findings() -> RunSummary:
    """The same with two more: one worth a warning, and one of little gain that has no room."""
    optimizer = finding(
        id="slow_optimizer",
        severity="warn",
        title="Adam updates 6 parameters one by one, which takes 62 % of a step",
        action="Fuse the optimizer's update",
        site="train.py:33",
        advice="torch.optim.Adam(..., fused=True)",
        change={"fused": True},
        predicted_speedup=[1.3, 2.2],
        run_speedup=[1.25, 2.0],
        cautions=["fused updates differ in the last digits, and later losses by more"],
        also=["it takes longer in the first steps"],
        of_steps=False,
    )
    collector = finding(
        id="gc_pauses",
        severity="note",
        title="Python's garbage collector stops training for 166 ms, 5 % of it",
        site=None,
        advice="gc.freeze() once everything is set up",
        change={},
        predicted_speedup=[1.0, 1.05],
        evidence={LIKELY: 1.04},
        cautions=[],
        also=[],
        of_steps=False,
    )
    findings = [finding(), optimizer, collector]
    return replace(slow_loader(), findings=findings, together=5.4)


def healthy() -> RunSummary:
    """Two workers keep up, validation after each of ten epochs, checkpoints now and then."""
    base = replace(slow_loader(), hot_lines=[], findings=[], findings_from=0.03)
    parts = ledger(
        "startup 2.31, loader_start 0.31, first_batch 1.92, data_wait 2.13, "
        "loader_end 0.12, forward 48.2, loss 0.71, backward 79.6, optimizer 9.84, "
        "zero_grad 0.42, checkpoint 1.24, evaluation 11.7, gc 0.21, other 1.87, "
        "shutdown 0.22"
    )
    step = per_step(
        "data_wait 0.00171, forward 0.0386, loss 0.00057, backward 0.0637, "
        "optimizer 0.00787, zero_grad 0.00034, gc 0.00017, other 0.0015"
    )
    training_passes = [epoch(index, 14.8 - (index > 0) * 0.3, 0.213) for index in range(10)]
    evaluation_passes = [
        epoch(index, 1.17, 0.06, stage="evaluation", loader=1, iterations=25, steps=0)
        for index in range(10)
    ]
    return replace(
        base,
        run=replace(
            base.run,
            name="healthy.py",
            command=["healthy.py"],
            wall_s=parts.wall_s,
            directory="trainprof-runs/healthy-20261121-034512-c01d",
        ),
        phases=Phases(2.31, 158.26, 0.22),
        ledger=parts,
        training=replace(
            base.training,
            **numbers("steps 1250, iterations 1250, epochs 10, samples 40000, samples_per_s 279.8"),
            **numbers("warmup_excluded 20, steady_steps 1230, steady_s 140.8"),
            step_s=statistics(0.1145, n=1230, p50=0.113, p95=0.128, max=0.171),
            per_step_s=step,
        ),
        evaluation=Evaluation(250, 10, 11.7, 0.6, [1]),
        epochs=training_passes + evaluation_passes,
        loaders=[
            loader(
                "healthy.py:38",
                **numbers("num_workers 2, prefetch_factor 2, passes 10, iterations 1250"),
                **numbers("wait_total_s 2.13, blocked_s 0.02, receive_s 1.61, ready_share 0.993"),
                persistent_workers=True,
                start_method="fork",
                first_batch_s=statistics(0.192, n=10),
                wait_s=statistics(0.0017, n=1240, p95=0.0023, max=0.011),
                fetch=fetch(0.0711, 1250, workers=2, busy=0.31, running=0.97, asleep=0.03),
                bound=bound("compute", compute=0.113, receive=0.0013),
            ),
            loader(
                "healthy.py:44",
                **numbers("id 1, num_workers 2, passes 10, iterations 250, wait_total_s 0.6"),
                role="evaluation",
                first_batch_s=statistics(0.11, n=10),
                wait_s=statistics(0.0025, n=240, p95=0.0031, max=0.008),
            ),
        ],
        sync_points=[
            SyncPoint("healthy.py:61", "item", 50, 50, None, None),
            SyncPoint("healthy.py:80", "tolist", 10, 10, None, None),
        ],
        outliers=[],
        verdict=Verdict(
            "compute",
            "Compute-bound: forward and backward are 92 % of a step.",
            level="not",
            share=0.873,
        ),
        overhead=Overhead(events=16120, bytes=516 * 1024, per_step_us=9.8, share=0.00008),
    )


def killed_for_memory() -> RunSummary:
    """Workers that keep every batch they made, until the kernel ends the run."""
    base = replace(slow_loader(), hot_lines=[], findings=[])
    parts = ledger(
        "startup 2.05, loader_start 0.21, first_batch 0.51, data_wait 71.3, "
        "forward 33.2, loss 0.61, backward 52.8, optimizer 7.9, zero_grad 0.3, gc 0.4, "
        "other 1.6"
    )
    step = per_step(
        "data_wait 0.0768, forward 0.0357, loss 0.00065, backward 0.0568, "
        "optimizer 0.0085, zero_grad 0.00032, gc 0.0004, other 0.0016"
    )
    return replace(
        base,
        run=replace(
            base.run,
            name="cache.py",
            command=["cache.py"],
            wall_s=parts.wall_s,
            exit=Exit(
                status=None,
                signal=9,
                reason="killed",
                detail="out of memory: the control group's limit of 8.0 GiB was reached",
            ),
            directory="trainprof-runs/cache-20261121-041530-02bd",
        ),
        phases=Phases(2.05, 168.83, 0.0),
        ledger=parts,
        training=replace(
            base.training,
            **numbers("steps 928, iterations 928, epochs 1, samples 29696, samples_per_s 177.0"),
            **numbers("warmup_excluded 20, steady_steps 908, steady_s 164.3"),
            step_s=statistics(0.1809, n=908, p50=0.176, p95=0.241, max=0.498),
            per_step_s=step,
        ),
        epochs=[epoch(0, 168.8, 71.3, iterations=928, steps=928, first_batch_s=0.51)],
        loaders=[
            loader(
                "cache.py:52",
                **numbers("num_workers 4, prefetch_factor 2, passes 1, iterations 928"),
                **numbers("wait_total_s 71.3, blocked_s 69.4, receive_s 1.61, ready_share 0.08"),
                start_method="fork",
                first_batch_s=statistics(0.51, n=1),
                wait_s=statistics(0.0769, n=927, p95=0.14, max=0.36),
                fetch=fetch(0.712, 928, workers=4, running=0.62, runnable=0.36, asleep=0.02),
                bound=bound("CPU", blocked=0.0748, receive=0.0017, compute=0.104),
            )
        ],
        sync_points=[],
        system=system(
            memory={
                "host_total_bytes": 64 * GIB,
                "host_available_bytes": {"mean": 40.0 * GIB, "min": 31.0 * GIB, "max": 52.0 * GIB},
                "tree_rss_bytes": {"mean": 4.4 * GIB, "max": 7.9 * GIB},
                "tree_pss_bytes": None,
                "swap_used_bytes": {"mean": 0.0, "max": 0.0},
                "limit_bytes": 8 * GIB,
            },
            last_sample={
                "at_s": 170.5,
                "main_rss_bytes": 1.1 * GIB,
                "children_rss_bytes": 6.8 * GIB,
                "host_available_bytes": 31.0 * GIB,
                "grown_bytes": {"main": 38 * MIB, "children": 5.3 * GIB},
            },
        ),
        outliers=[
            Outlier(300 + 50 * index, 0, 56.0 + 9 * index, 0.41, "data_wait", 0.22, 50, None)
            for index in range(8)
        ],
        verdict=Verdict(
            "data",
            "Data loading is the bottleneck: each step waits 77 of its 181 ms for the loader at "
            "cache.py:52.",
            level="highly",
            share=0.422,
            site="cache.py:52",
        ),
        overhead=Overhead(events=11230, bytes=360 * 1024, per_step_us=10.2, share=0.00006),
        not_observed={"system.memory.tree_pss_bytes": "the kernel does not show it"},
    )


def starved() -> RunSummary:
    """Four workers that cannot keep a step fed: one is slow, one has died, one sample is."""
    base = killed_for_memory()
    made = fetch(
        0.412,
        400,
        workers=4,
        running=0.61,
        runnable=0.11,
        reading=0.13,
        throttled=0.03,
        asleep=0.12,
    )
    rows = [*made.per_worker]
    rows[2] = worker(2, 0.81, 100, busy=0.99, running=0.4, asleep=0.6)
    made = replace(
        made,
        per_worker=rows,
        slow_samples=[slow_sample(307, 0.83, worker=2), slow_sample(None, 0.31, worker=1)],
    )
    return replace(
        base,
        run=replace(base.run, exit=Exit(1, None, "exception", "RuntimeError")),
        loaders=[
            loader(
                "cache.py:52",
                **numbers("num_workers 4, prefetch_factor 2, passes 1, iterations 400"),
                **numbers("wait_total_s 30.7, blocked_s 28.4, receive_s 1.61, ready_share 0.12"),
                start_method="fork",
                first_batch_s=statistics(0.51, n=1),
                wait_s=statistics(0.0769, n=399, p95=0.14, max=0.36),
                lost_workers=[
                    {"pid": 4201, "worker": 1, "status": None, "signal": 9, "at_s": 170.2}
                ],
                fetch=made,
                bound=bound("one worker's latency", blocked=0.0712, receive=0.004, compute=0.104),
            )
        ],
        not_observed={},
    )


def accelerator() -> RunSummary:
    """A GPU run whose host time sits in `.item()` and a blocking copy; device times are unknown."""
    base = replace(slow_loader(), hot_lines=[], findings=[])
    parts = ledger(
        "startup 6.4, loader_start 0.2, first_batch 0.9, data_wait 11.2, transfer 9.7, "
        "forward 14.1, loss 0.8, backward 17.9, optimizer 6.1, zero_grad 0.7, "
        "sync 58.3, device_wait 0, gc 0.2, other 3.3, shutdown 0.5"
    )
    step = per_step(
        "data_wait 0.0056, transfer 0.00485, forward 0.00705, loss 0.0004, "
        "backward 0.00895, optimizer 0.00305, zero_grad 0.00035, sync 0.02915, "
        "gc 0.0001, other 0.00165"
    )
    return replace(
        base,
        run=replace(base.run, wall_s=parts.wall_s, device_timing="async", device="cuda"),
        ledger=parts,
        training=replace(
            base.training,
            **numbers("steps 2000, iterations 2000, steady_steps 1980, steady_s 121.2"),
            samples=None,
            samples_per_s=None,
            per_step_s=step,
            step_s=statistics(0.0612, n=1980),
        ),
        loaders=[
            loader(
                "train.py:41",
                **numbers("num_workers 8, prefetch_factor 2, iterations 2000, wait_total_s 11.2"),
                **numbers("blocked_s 10.4, receive_s 0.4, ready_share 0.61, pin_s 3.2"),
                pin_memory=True,
                start_method="fork",
                wait_s=statistics(0.0056, n=1998, p95=0.021, max=0.31),
                fetch=fetch(0.449, 2000, workers=8, running=0.22, asleep=0.78),
                bound=bound("one worker's latency", blocked=0.0052, compute=0.0552),
            )
        ],
        transfers=[
            Transfer("train.py:57", "h2d", 4000, 38 * GIB, 9.6, None, None, 0.0, 0.0),
            Transfer("train.py:70", "d2h", 20, 80 * MIB, 0.1, None, None, 0.0, 0.0),
        ],
        sync_points=[
            SyncPoint("train.py:66", "item", 2000, 0, 58.1, None),
            SyncPoint("metrics.py:12", "tolist", 40, 20, 0.2, None),
        ],
        devices=None,
        system=system(
            gpus=[
                gpu(
                    name="NVIDIA H100",
                    utilization=utilization({0: 0.1, 2: 0.1, 8: 0.4, 9: 0.3, 10: 0.1}),
                )
            ]
        ),
        outliers=[],
        verdict=Verdict(
            "compute", "Compute-bound: forward and backward are 26 % of a step.", level="not"
        ),
        not_observed={"devices": "device times are not measured by this version"},
    )


def with_gpus(*gpus: Gpu, energy: Energy | None = None, **changes: object) -> RunSummary:
    epochs = [epoch(index, 20.0, 3.0) for index in range(2)]
    return replace(
        accelerator(), system=system(gpus=list(gpus), energy=energy, **changes), epochs=epochs
    )


def mixed_gpus() -> RunSummary:
    """One that tells everything, one that is divided, and one that the script does not see."""
    busy = gpu(
        utilization=utilization({0: 0.1, 2: 0.1, 8: 0.4, 9: 0.3, 10: 0.1}),
        throttled_share=0.12,
        processes=[
            {"pid": 4711, "role": "other", "bytes": 30 * GIB},
            {"pid": 4120, "role": "own", "bytes": 12 * GIB},
            {"pid": 9, "role": "unknown", "bytes": None},
        ],
    )
    unknown = dict.fromkeys(("logical_index", "is_visible", "is_used", "utilization"))
    divided = gpu(
        1,
        **unknown,
        energy_source="estimated",
        mig=[
            {"uuid": "MIG-1", "memory_bytes": 20 * GIB, "logical_index": 0},
            {"uuid": "MIG-2", "memory_bytes": 20 * GIB, "logical_index": None},
        ],
        not_observed={"utilization": "Not Supported (MIG is on)", "energy": "Unknown Error"},
    )
    hidden = gpu(
        2, logical_index=None, is_visible=False, is_used=False, utilization=utilization({10: 1.0})
    )
    energy = Energy(22.4, "estimated", [0, 1], 1234.0)
    return with_gpus(busy, divided, hidden, energy=energy)


def cut_off() -> RunSummary:
    """A log cut off before anything happened: every optional field None, every list empty."""
    return RunSummary(
        run=Run(
            name="train.py",
            command=[],
            wall_s=0.0,
            exit=Exit(None, None, "unknown"),
            versions={},
            device_timing="cpu",
            rank=None,
            world_size=None,
            started_at=None,
            directory=None,
            device=None,
        ),
        phases=Phases(0.0, 0.0, 0.0),
        ledger=Ledger(0.0, {}, {}),
        training=Training(0, 0, 0, None, None, "none", None, None, 0, 0, 0.0),
        evaluation=Evaluation(0, 0, 0.0, 0.0, []),
        epochs=[],
        loaders=[],
        transfers=[],
        sync_points=[],
        devices=None,
        system=None,
        ranks=[],
        stragglers=[],
        outliers=[],
        findings=[],
        rules=[rule.id for rule in RULES],
        verdict=Verdict("unknown", "Too few steps for a verdict: 0 steady steps, 6 needed."),
        overhead=Overhead(0, 0, None, None),
        wait_threshold_s=0.5,
    )


def sparse() -> RunSummary:
    """Lists with one entry each, every optional field in them None and every loose part empty."""
    base = replace(slow_loader(), hot_lines=[], findings=[])
    nothing = {field.name: None for field in fields(Fetch)}
    empty_fetch = Fetch(
        **nothing | {"n": 0, "measured": 0, "samples": 0, "slow_samples": [], "per_worker": []}
    )  # type: ignore[arg-type]
    return replace(
        base,
        run=replace(base.run, directory=None, device=None, started_at=None),
        training=replace(
            base.training, samples=None, samples_per_s=None, step_s=None, per_step_s=None
        ),
        epochs=[epoch(0, 0.0, 0.0, loader=None, first_batch_s=None, iterations=0, stage="other")],
        loaders=[
            loader(
                "train.py:41",
                dataset=None,
                length=None,
                num_workers=None,
                persistent_workers=None,
                pin_memory=None,
                batch_size=None,
                init_s=None,
                first_batch_s=None,
                wait_s=None,
                sampler_s=None,
                fetch=None,
                bound=None,
            ),
            loader(
                "train.py:42",
                num_workers=2,
                fetch=replace(empty_fetch, per_worker=[{}], slow_samples=[{}]),
                lost_workers=[{}],
                bound=None,
            ),
        ],
        transfers=[Transfer("train.py:57", "h2d", 1, 0, 0.0, None, None, 0.0, 0.0)],
        sync_points=[SyncPoint("train.py:66", "item", 2, 1, None, None)],
        system=System(0.5, 0, {}, {}, {}, {}, [{}], [Gpu(0, None, None)], {}, {}),
        ranks=[{}],
        stragglers=[{}],
        outliers=[Outlier(0, None, 0.0, 0.0, "other", 0.0, None, None)],
        overhead=Overhead(0, 0, None, None),
        verdict=replace(base.verdict, level=None, share=None, site=None),
    )


HOSTILE = (
    "[red]evil[/red] \x1b[31mred\x1b[0m \x1b]0;title\x07 \x9b2J \x1b]8;;http://x\x1b\\link "
    "a|b `tick` <img src=x onerror=alert(1)> @team \u202egnp.exe\u202c \udc80 \r\nsecond line \x00"
)


def hostile() -> RunSummary:
    """Every string that a script can choose holds markup, escapes, controls and line breaks."""
    base = killed_for_memory()
    outlier = Outlier(3, 0, 1.0, 0.5, HOSTILE, 0.1, 5, {HOSTILE: 1.0})
    return replace(
        base,
        run=replace(
            base.run,
            name=HOSTILE,
            command=[HOSTILE, HOSTILE],
            versions={HOSTILE: HOSTILE},
            directory=HOSTILE,
            device=HOSTILE,
            started_at=HOSTILE,
            exit=Exit(None, 9, "killed", HOSTILE),
        ),
        ledger=Ledger(
            base.ledger.wall_s + 9.0,
            {**base.ledger.seconds, HOSTILE: 9.0},
            {HOSTILE: 1.0},
        ),
        training=replace(base.training, step_source=HOSTILE),
        epochs=[epoch(0, 3.0, 1.0, stage=HOSTILE), epoch(1, 3.0, 1.0)],
        loaders=[
            loader(
                HOSTILE,
                role=HOSTILE,
                kind=HOSTILE,
                dataset=HOSTILE,
                start_method=HOSTILE,
                num_workers=2,
                thread=HOSTILE,
                fetch=replace(
                    fetch(0.1, 250, workers=2, running=1.0),
                    per_worker=[dict.fromkeys(worker(0, 0.1, 9), HOSTILE), {HOSTILE: 1}],
                    slow_samples=[dict.fromkeys(slow_sample(1, 1.0), HOSTILE)],
                ),
                lost_workers=[dict.fromkeys(("pid", "worker", "signal", "status"), HOSTILE)],
                bound=replace(
                    bound(HOSTILE, compute=0.1),
                    wait_cause=HOSTILE,
                    parts_s={HOSTILE: 1.0},
                    limits_s={HOSTILE: 1.0},
                ),
            )
        ],
        transfers=[Transfer(HOSTILE, HOSTILE, 1, 1, 1.0, None, None, 0.0, 0.0)],
        sync_points=[SyncPoint(HOSTILE, HOSTILE, 1, 0, 1.0, None)],
        system=system(
            processes=[{"name": HOSTILE, "pid": HOSTILE, "role": HOSTILE}],
            gpus=[
                gpu(
                    **dict.fromkeys(("name", "uuid", "energy_source"), HOSTILE),
                    power_w={HOSTILE: 1.0},
                    processes=[dict.fromkeys(("pid", "role", "bytes"), HOSTILE)],
                    mig=[dict.fromkeys(("uuid", "memory_bytes", "logical_index"), HOSTILE)],
                    not_observed={HOSTILE: HOSTILE},
                )
            ],
            gpus_not_observed=HOSTILE,
            cpu={"tree_percent": HOSTILE, "cores_usable": HOSTILE},
            last_sample={"at_s": HOSTILE, "grown_bytes": HOSTILE},
        ),
        ranks=[{"rank": HOSTILE}],
        stragglers=[{"rank": HOSTILE, "phase": HOSTILE}],
        outliers=[outlier],
        verdict=Verdict("data", HOSTILE, level=HOSTILE, site=HOSTILE),
        not_observed={HOSTILE: HOSTILE},
        faults=[HOSTILE],
    )


def with_every_float(value: Any, new: float) -> Any:
    """The same summary, every float in it replaced: what a fault in analysis could make."""
    if isinstance(value, float):
        return new
    if isinstance(value, list):
        return [with_every_float(item, new) for item in value]
    if isinstance(value, dict):
        return {key: with_every_float(item, new) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value,
            **{x.name: with_every_float(getattr(value, x.name), new) for x in fields(value)},
        )
    return value


def with_every_string(value: Any, new: Callable[[str], str]) -> Any:
    """The same summary or charts, every string in it changed, but for keys of dictionaries."""
    if isinstance(value, str):
        return new(value)
    if isinstance(value, (list, tuple)):
        return type(value)(with_every_string(item, new) for item in value)
    if isinstance(value, dict):
        return {key: with_every_string(item, new) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value,
            **{x.name: with_every_string(getattr(value, x.name), new) for x in fields(value)},
        )
    return value
