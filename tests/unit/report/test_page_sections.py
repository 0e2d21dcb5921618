"""The page's sections, each in the states that a run may be in: golden galleries of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support import summaries
from support.fake_memory import GIB, MIB

from trainprof.analysis.summary.code import ImportTime, OutsideLine, OutsideLoop, UnsharedData
from trainprof.analysis.summary.device import (
    CopiedPages,
    Device,
    DeviceMemory,
    FoundSync,
    FoundSyncs,
    MemoryGrowth,
    OutOfMemory,
    Placement,
    SyncPoint,
    Transfer,
)
from trainprof.analysis.summary.run import Exit, Outlier, Verdict
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report import markdown
from trainprof.report.page import details, device, memory, sections
from trainprof.report.page import page as terminal
from trainprof.report.page.gpu import gpu_details, gpus_section
from trainprof.report.page.notices import notices
from trainprof.report.text import ending
from trainprof.report.text.layout import Page
from trainprof.report.text.outside_loop import outside_words
from trainprof.report.text.parts import parts_shown
from trainprof.report.text.step_bars import step_rows

PAGE, VERBOSE = Page(), Page(verbose=True)

SLOW = replace(summaries.slow_loader(), hot_lines=[])
HEALTHY, ON_DEVICE = summaries.healthy(), summaries.accelerator()


GROWN = MemoryGrowth(
    bytes_per_step=2.0 * MIB,
    steps=1024,
    first_bytes=1.0 * GIB,
    last_bytes=3.0 * GIB,
    room_bytes=8.1 * GIB,
    passes=2,
)


COPIED = CopiedPages(
    site="train.py:56",
    workers=2,
    first_bytes=28.0 * MIB,
    last_bytes=703.0 * MIB,
    seconds=150.0,
    python_objects=["rows (list of 600,000)"],
)


def test_how_a_run_ended(gallery):
    ends = [
        Exit(0, None, "completed"),
        Exit(3, None, "completed"),
        Exit(1, None, "exception", "KeyError"),
        Exit(130, None, "interrupted"),
        Exit(None, 15, "signal"),
        Exit(None, 64, "signal"),
        Exit(None, 9, "killed"),
        Exit(None, 9, "killed", "out of memory"),
        Exit(0, None, "limit", "--max-steps 200"),
        Exit(1, None, "exception", "OSError", "--max-steps"),
        Exit(None, 9, "killed", "out of memory", "--max-time"),
        Exit(None, None, "running"),
        Exit(None, None, "unknown"),
        Exit(None, None, "a later version's"),
    ]
    runs = [(end, replace(SLOW, run=replace(SLOW.run, exit=end))) for end in ends]
    gallery(
        "endings.txt",
        {
            **{repr(end): f"{ending.ending(run)} | {ending.cause(run)}" for end, run in runs},
            "the first line": ending.outcome(SLOW),
            "never trained": ending.outcome(never_trained()),
            "inference": ending.outcome(never_trained(forward=5.5)),
            "ended before a step": ending.outcome(
                replace(
                    never_trained(startup=2.9),
                    run=replace(SLOW.run, exit=Exit(None, 15, "limit", "--max-time")),
                )
            ),
            "killed for memory": ending.memory_before_the_end(summaries.killed_for_memory()),
            "killed without samples": ending.memory_before_the_end(replace(SLOW, system=None)),
        },
    )


def never_trained(**seconds: float) -> RunSummary:
    empty = summaries.cut_off()
    ledger = replace(empty.ledger, wall_s=9.0, seconds=seconds)
    return replace(empty, run=replace(SLOW.run, wall_s=9.0), ledger=ledger)


def with_evaluation(share: float, in_training_s: float | None = None) -> RunSummary:
    """Evaluation takes a share of training's time."""
    seconds = share * HEALTHY.phases.training_s
    evaluation = replace(HEALTHY.evaluation, seconds=seconds, in_training_s=in_training_s)
    return replace(HEALTHY, evaluation=evaluation)


def test_a_pace_without_much_evaluation_says_so():
    for summary, is_noted in (
        (with_evaluation(0.1), False),
        (with_evaluation(0.5), True),
        (with_evaluation(0.5, in_training_s=0.0), False),
    ):
        assert any("without validation" in part for part in ending.progress(summary)) is is_noted


def uneven(longest_s: float) -> RunSummary:
    step = summaries.statistics(0.12, p50=0.1, max=longest_s)
    return replace(HEALTHY, training=replace(HEALTHY.training, step_s=step), outliers=[])


def test_steps(gallery):
    slow_steps = [Outlier(7, 0, 3.0, 1.0, "data_wait", 0.9, 5, None)] * 3
    many = replace(HEALTHY, outliers=slow_steps, outlier_count=142)
    unknown = {"training.step_s": "0 steady steps, 20 are needed"}
    by_batch, by_backward = (
        replace(SLOW, training=replace(SLOW.training, step_source=source))
        for source in ("batches", "backward")
    )
    gallery(
        "steps.txt",
        {
            "even": sections.steps_section(uneven(0.19), PAGE),
            "uneven": sections.steps_section(uneven(0.21), PAGE),
            "many outliers": sections.steps_section(many, PAGE),
            "many outliers, verbose": details.step_details(many, VERBOSE),
            "a few": sections.steps_section(replace(many, outlier_count=3), PAGE),
            "by an older version": sections.steps_section(replace(many, outlier_count=None), PAGE),
            "by batches": sections.steps_section(by_batch, PAGE),
            "by backward passes": sections.steps_section(by_backward, PAGE),
            "not measured": sections.steps_section(
                replace(summaries.cut_off(), not_observed=unknown), PAGE
            ),
        },
    )


def test_epochs(gallery):
    first, *others = HEALTHY.epochs
    none = {"iterations": 0, "data_wait_s": 0.0, "first_batch_s": 0.0, "loaders": []}
    unlike = {
        "one has slow batches": replace(first, slow_batches=1),
        "one was cut short": replace(first, iterations=7),
    }
    gallery(
        "epochs.txt",
        {
            "alike": sections.epochs_section(HEALTHY, PAGE),
            **{
                title: sections.epochs_section(replace(HEALTHY, epochs=[epoch, *others]), PAGE)
                for title, epoch in unlike.items()
            },
            "validation on batches of your own": sections.epochs_section(
                replace(HEALTHY, evaluation=replace(HEALTHY.evaluation, **none)), PAGE
            ),
        },
    )


def test_what_trainprof_took_and_did_not_see(gallery):
    samples = {"training.samples": "the sampler does not say how large a batch is"}
    unseen = {"system.gpus": "no driver", "devices": "no GPU was used", **samples}
    sampled = replace(HEALTHY, overhead=replace(HEALTHY.overhead, looks_s=0.012))
    in_python = replace(HEALTHY, overhead=replace(HEALTHY.overhead, in_c=False))
    gallery(
        "closing.txt",
        {
            "plain": sections.closing_section(HEALTHY, PAGE),
            "hooks in Python": sections.closing_section(in_python, PAGE),
            "stack samples": sections.closing_section(sampled, PAGE),
            "gaps": sections.closing_section(replace(SLOW, not_observed=unseen), PAGE),
        },
    )


def test_where_startup_and_shutdown_go(gallery):
    line = OutsideLine("train.py:24", "__getitem__", 6.0, "transformers.LengthGroupedSampler")
    other, of_module = (
        OutsideLine("train.py:25", "__getitem__", 2.1),
        OutsideLine("prepare.py:40", "<module>", 1.9),
    )
    imports = [
        ImportTime("transformers", "train.py:5", 3.1),
        ImportTime("torch", "train.py:3", 1.6),
    ]
    small = [ImportTime("numpy", "train.py:2", 0.3), ImportTime("standard library", None, 0.2)]
    parts = {
        "lines and imports": OutsideLoop([line, other, of_module], [*imports, *small]),
        "imports alone": OutsideLoop([], [*imports, *small]),
        "many small imports": OutsideLoop([], [replace(x, seconds=0.9) for x in imports * 2]),
        "nothing that stands out": OutsideLoop([replace(line, seconds=0.5)], small),
        "not sampled": None,
    }
    ends = {
        "a line, a handler and the exit": OutsideLoop(
            [of_module, OutsideLine(None, "wandb.finish", 2.2)], exit_s=1.7
        ),
        "the exit alone": OutsideLoop(exit_s=5.5),
    }

    def run(seconds: float, **part: OutsideLoop | None) -> RunSummary:
        [key] = part
        ledger = replace(SLOW.ledger, wall_s=40.0, seconds={"backward": 40 - seconds, key: seconds})
        return replace(SLOW, ledger=ledger, **part)

    runs = {name: run(14.6, startup=part) for name, part in parts.items()}
    runs |= {name: run(6.0, shutdown=part) for name, part in ends.items()}
    runs["a short one"] = run(3.9, startup=parts["imports alone"])
    gallery(
        "outside_loop.txt",
        {name: sections.outside_section(summary, PAGE) for name, summary in runs.items()},
    )
    full = runs["lines and imports"]
    [(_, words)] = outside_words(full)
    assert ", ".join(words) in terminal.render(full, Page(200, verbose=True))


def test_what_makes_figures_doubtful_or_is_wrong(gallery):
    disturbed = {
        "host_percent": {"mean": 90.0},
        "tree_percent": {"mean": 120.0},
        "per_core_percent": [90.0] * 4,
        "cores_usable": 4,
        "pressure_some_share": 0.4,
    }
    shared, alone = (
        replace(SLOW, system=summaries.system(cpu=disturbed | {"host_percent": {"mean": percent}}))
        for percent in (90.0, 31.0)
    )
    few = replace(shared, training=replace(SLOW.training, steady_steps=12))
    bound = {"core_numbers": [0], "cores_usable": 1.0, "cores_launched_on": 8}
    costly = replace(SLOW, overhead=replace(SLOW.overhead, share=0.25))
    several = replace(
        summaries.starved(), faults=["the sync probe was switched off: KeyError"], beside_share=0.28
    )
    states = {
        "other programs": shared,
        "other programs, and few steps": few,
        "a quota": replace(SLOW, system=summaries.system(cpu={"throttled_share": 0.12})),
        "recording was costly": costly,
        "a trial": replace(SLOW, training=replace(SLOW.training, free_from_step=30)),
        "fewer cores": replace(SLOW, system=summaries.system(cpu=bound)),
        "another thread": replace(SLOW, beside_share=0.28),
        "memory grows": replace(SLOW, memory_growth=GROWN),
        "workers copy": replace(SLOW, copied_pages=COPIED),
        "ranks draw the same": replace(SLOW, unshared=[UnsharedData("train.py:41", 4096, 2)]),
        "several": several,
    }
    gallery("notices.txt", {name: notices(summary) for name, summary in states.items()})
    for summary in (SLOW, alone, replace(SLOW, beside_share=0.02)):
        assert notices(summary) == []
    for text in (terminal.render(shared, Page(120)), markdown.render(shared)):
        assert notices(shared)[0] in text.replace("\\", "")
    short = terminal.render(several, Page(200))
    assert short.count("\n! ") == 3 + (len(notices(several)) > 3)


def test_of_several_ranks_the_ledger_is_a_mean():
    ranks = replace(SLOW, ranks=[{"rank": 0}, {"rank": 1}])
    heading = "One training step, mean of 2 ranks"
    assert heading in terminal.render(ranks, Page(80))
    assert heading in markdown.render(ranks)
    assert heading not in markdown.render(SLOW)


def with_memory(**figures: object) -> RunSummary:
    return replace(HEALTHY, system=summaries.system(memory=figures))


def test_host_memory(gallery):
    full_shm = with_memory(shm_total_bytes=64 << 20, shm_used_bytes={"max": 60 << 20})
    full = with_memory(host_total_bytes=8 * GIB, host_available_bytes={"min": 0.1 * GIB})
    variants = {
        "grows": replace(HEALTHY, memory_growth=GROWN),
        "grows in the first epoch": replace(HEALTHY, memory_growth=replace(GROWN, passes=1)),
        "room unknown": replace(HEALTHY, memory_growth=replace(GROWN, room_bytes=None)),
        "workers copy": replace(HEALTHY, copied_pages=COPIED),
        "one worker copies, of what is unknown": replace(
            HEALTHY, copied_pages=replace(COPIED, workers=1, python_objects=[])
        ),
        "room for ever": replace(HEALTHY, memory_growth=replace(GROWN, room_bytes=1e18)),
        "shared memory is full": full_shm,
        "memory is full": full,
    }
    gallery(
        "host_memory.txt",
        {title: memory.memory_section(run, PAGE) for title, run in variants.items()},
    )
    half_shm = with_memory(shm_total_bytes=64 << 20, shm_used_bytes={"max": 30 << 20})
    enough = with_memory(host_total_bytes=8 * GIB, host_available_bytes={"min": 1 * GIB})
    for summary in (HEALTHY, half_shm, enough):
        assert memory.memory_section(summary, PAGE) == []


PLENTY = DeviceMemory(
    readings=840,
    limit_bytes=80 * GIB,
    peak_allocated_bytes=40 * GIB,
    peak_reserved_bytes=50 * GIB,
    is_peak_sampled=False,
    retries=0,
    out_of_memory_errors=0,
    between_steps_bytes=12 * GIB,
    growth_bytes_per_step=-3.0,
    growth_steps=400,
    is_growing=False,
)


def with_device_memory(**changes: Any) -> RunSummary:
    figures = replace(PLENTY, **changes)
    gpu = Device(0, "cuda:0", [0.5, 0.6], None, {}, None, figures, 100)
    return replace(ON_DEVICE, devices=[gpu, replace(gpu, index=1, name="cuda:1", memory=None)])


def test_device_memory(gallery):
    sampled = {"is_peak_sampled": True, "limit_bytes": None, "between_steps_bytes": None}
    variants: dict[str, dict[str, Any]] = {
        "nearly full": {"peak_reserved_bytes": 76 * GIB},
        "grows": {"is_growing": True, "growth_bytes_per_step": 2.0 * MIB},
        "retries": {"retries": 1},
        "errors": {"out_of_memory_errors": 2},
    }
    lack = OutOfMemory("cuda:1", "train.py:42", 2 * GIB, 80 * GIB, 5 * MIB, 77 * GIB, GIB)
    gallery(
        "device_memory.txt",
        {
            **{
                title: memory.device_memory_sentences(with_device_memory(**changes))
                for title, changes in variants.items()
            },
            "verbose": memory.device_memory_details(with_device_memory(), VERBOSE),
            "verbose, sampled": memory.device_memory_details(
                with_device_memory(**sampled, is_growing=None), VERBOSE
            ),
            "ran out": memory.ran_out(lack),
            "ran out, no figures": memory.ran_out(OutOfMemory(*[None] * 7)),
        },
    )
    assert memory.device_memory_sentences(with_device_memory()) == []
    run = replace(ON_DEVICE.run, exit=Exit(1, None, "exception", "OutOfMemoryError"))
    summary = replace(ON_DEVICE, run=run, out_of_memory=lack)
    for text in (terminal.render(summary, Page(80)), markdown.render(summary)):
        flowing = " ".join(text.split())
        assert memory.ran_out(lack) in flowing
        assert "Memory at the last sample" not in flowing  # that is the host's


# Devices


IDLE = {
    "loader_s": 40.0,
    "copy_s": 10.0,
    "sync_s": 0.1,
    "host_s": 5.0,
    "evaluation_s": 0.0,
    "checkpoint_s": 0.2,
    "startup_s": 0.0,
    "unknown_s": 4.7,
}


def gpu(idle: dict[str, float] | None = None, low: float = 0.4, **changes: Any) -> Device:
    plain = Device(
        index=0,
        name="cuda:0",
        busy_share=[low, low + 0.047],
        idle_because=IDLE if idle is None else idle,
        per_step_s={"forward": 0.01},
        queue_delay_s=[0.001, 0.002],
        memory=None,
        marks=1000,
        seconds={"forward": 20.0, "backward": 30.0, "transfer": 8.0},
        exposed_s={"data_wait": [40.0, 41.0]},
        ran_dry={"forward": 0.9},
        launch_bound_share=[0.05, 0.1],
    )
    return replace(plain, **changes)


def on_device(*devices: Device, **changes: Any) -> RunSummary:
    """100 s of training, 40 s of which the GPU waits for data."""
    text = "Data loading is the bottleneck: the GPU idles 40 % of training, waiting for data."
    verdict = Verdict("data", text, "highly", 0.4)
    plain = {"verdict": verdict, "phases": replace(ON_DEVICE.phases, training_s=100.0)}
    return replace(ON_DEVICE, **{**plain, "devices": list(devices) or [gpu()], **changes})


def test_what_devices_did(gallery):
    other = gpu({**IDLE, "loader_s": 20.0, "host_s": 25.0}, name="cuda:1")
    narrow = Page(40)
    gallery(
        "devices.txt",
        {
            "idle": device.idle_section(on_device(), PAGE),
            "idle, narrow": device.idle_section(on_device(), narrow),
            "two": device.idle_section(on_device(gpu(), other), PAGE),
            "at work": device.devices_section(on_device(), PAGE),
        },
    )


def test_an_idle_table_adds_up_to_the_training_phase():
    _, seconds, shares = device.idle_columns(on_device())
    *rows, total = map(float, seconds.cells)
    assert sum(rows) == total == 100.0  # 60 s idle are 60 %
    *rows, total = (float(cell.split()[0]) for cell in shares.cells)
    assert round(sum(rows), 6) == total == 100.0


def test_what_cannot_be_has_no_idle_table():
    for odd in (
        gpu({}),
        gpu(busy_share=[]),
        gpu({"loader_s": float("nan")}),
        gpu(low=1.0),
        gpu(low=float("nan")),
        replace(gpu(), idle_because=None),
    ):
        assert device.idle_columns(on_device(odd)) == []
        assert "cuda:0" in terminal.render(on_device(odd), VERBOSE)


def test_the_bars_of_a_device_are_its_time(golden):
    trained_s = sum(ON_DEVICE.ledger.seconds.values()) - 6.9
    device = gpu({cause: s * trained_s / 100 for cause, s in IDLE.items()})
    phases = replace(ON_DEVICE.phases, training_s=trained_s)
    golden("gpu_step_80.txt", terminal.render(on_device(device, phases=phases), Page(80)))
    wide = terminal.render(on_device(), Page(120, verbose=True))
    heading = next(line for line in wide.split("\n") if line.startswith("Where the time went"))
    assert heading.endswith("s on device")
    assert "| GPU time of training | 100 s | 100 % |" in markdown.render(on_device())


def test_the_bars_of_a_device_are_all_of_training_after_warm_up():
    idle = {**IDLE, "warmup_s": 10.0, "evaluation_s": 5.0, "startup_s": 2.0, "loader_s": 23.0}
    worked = {"forward": 10.0, "backward": 10.0, "evaluation": 60.0}
    training = replace(ON_DEVICE.training, without_evaluation_s=75.0)
    summary = on_device(gpu(idle, 4 / 9, seconds=worked), training=training)
    step = step_rows(summary)
    assert step is not None
    assert (step.title, step.total) == ("GPU time of training after its warm-up", "90.0 s")
    shares = {part.name: part.share for part in parts_shown(summary)}
    assert sum(shares.values()) == pytest.approx(1.0)
    assert shares["idle: validation"] == pytest.approx(5 / 90)
    # Validation may have had 20 s of the GPU, as much as forward and backward.
    assert shares["validation"] == pytest.approx(20 / 90)
    ranks = replace(summary, ranks=[{"rank": 0}, {"rank": 1}])
    assert ", first of 2 ranks" in terminal.render(ranks, Page(80))


def test_copies_and_syncs(gallery):
    plain = Transfer("train.py:57", "h2d", 100, 100 * MIB, 1.0, 0.5, 0.21, 0.0, 0.0, 100, 0.4, 0.0)
    copies: dict[str, dict[str, Any]] = {
        "a copy": {},
        "concurrent with other work": {"beside_share": 0.5},
        "many small ones": {"count": 100_000},
        "non_blocking": {"non_blocking_share": 1.0},
        "non_blocking, pinned": {"non_blocking_share": 1.0, "pinned_share": 1.0},
    }
    waits = {
        "the device worked": SyncPoint("a.py:1", "item", 9, 0, 5.0, 0.01),
        "the device was idle": SyncPoint("a.py:1", "item", 9, 0, 5.0, 2.0),
        "on CPU tensors": SyncPoint("a.py:1", "item", 250, 250, None, None),
        "some on CPU tensors": SyncPoint("a.py:1", "item", 9, 4, 0.5, None),
        "counted until": SyncPoint("a.py:1", "float", 50_000, 50_000, None, None, 2.1),
    }
    moved = on_device(placements=[Placement("train.py:30", 1, 1.5)])
    gallery(
        "copies_and_syncs.txt",
        {
            **{
                title: device.transfers_section(
                    on_device(transfers=[replace(plain, **changes)]), VERBOSE
                )
                for title, changes in copies.items()
            },
            "models": device.transfers_section(moved, VERBOSE),
            **{
                title: device.syncs_section(on_device(sync_points=[wait]), VERBOSE)
                for title, wait in waits.items()
            },
        },
    )


def test_found_syncs(gallery):
    calls = [FoundSync(f"train.py:{line}", 20 - line) for line in range(5)]
    some = replace(ON_DEVICE, found_syncs=FoundSyncs(20, 20, calls, known_calls=40))
    none = replace(ON_DEVICE, found_syncs=FoundSyncs(20, 20, [], 0))
    missing = replace(ON_DEVICE, not_observed={"found_syncs": "this torch knows only the CPU"})
    gallery(
        "found_syncs.txt",
        {
            "some": device.found_syncs_section(some, PAGE),
            "none": device.found_syncs_section(none, PAGE),
            "not looked for": device.found_syncs_section(missing, PAGE),
        },
    )
    assert device.found_syncs_section(ON_DEVICE, PAGE) == []


# GPUs

HIDDEN = {"logical_index": None, "is_visible": False, "is_used": False}
ASSUMED = {"is_number_assumed": True}
NVML = summaries.gpu


def test_gpus(gallery, golden):
    with_gpus, mixed = summaries.with_gpus, summaries.mixed_gpus()
    busy = summaries.utilization({0: 0.1, 2: 0.1, 8: 0.4, 9: 0.3, 10: 0.1})
    runs = {
        "mixed": mixed,
        "one": with_gpus(NVML(utilization=busy)),
        "other numbers": with_gpus(NVML(0, logical_index=1), NVML(1, logical_index=0)),
        "one hidden": with_gpus(NVML(0, **HIDDEN), NVML(1, logical_index=0)),
        "all hidden": with_gpus(NVML(0, **HIDDEN)),
        "hidden but used": with_gpus(NVML(0, **{**HIDDEN, "is_used": True})),
        "order assumed, alike": with_gpus(NVML(0, **ASSUMED), NVML(1, **ASSUMED)),
        "order assumed": with_gpus(NVML(0, **ASSUMED), NVML(1, name="Another", **ASSUMED)),
        "order known": with_gpus(NVML(0), NVML(1, name="Another")),
        "little energy": with_gpus(NVML(energy_wh=0.0375)),
        "none seen": with_gpus(gpus_not_observed="NVML: Driver Not Loaded"),
        "no more samples": with_gpus(NVML(), gpus_not_observed="every GPU is lost"),
    }
    gallery("gpus.txt", {title: gpus_section(run, PAGE) for title, run in runs.items()})
    gallery("gpus_verbose.txt", {title: gpu_details(run, VERBOSE) for title, run in runs.items()})
    wide = gpu_details(mixed, Page(120, verbose=True))
    golden("gpus_verbose_120.txt", "".join(f"{line}\n" for line in wide))
