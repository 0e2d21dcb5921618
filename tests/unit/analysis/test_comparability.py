"""What two sides did not have in common: each planted alone, and none where nothing was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from support import summaries
from support.compared_runs import made_up, with_steps_longer

from trainprof.analysis.code_figures import LineCost
from trainprof.analysis.comparability import Discrepancy, discrepancies
from trainprof.analysis.comparable_facts import UNLIKE, ground_of
from trainprof.analysis.compared_run import ComparedRun
from trainprof.analysis.comparison import compare
from trainprof.analysis.gate import NOT_JUDGED
from trainprof.analysis.run_figures import Exit
from trainprof.analysis.speedup import UNKNOWN
from trainprof.analysis.summary import RunSummary

Change = Callable[[RunSummary], RunSummary]


def run(change: Change | None = None, name: str = "a", **manifest: Any) -> ComparedRun:
    plain = {"script": "src/train.py", "script_sha256": "0" * 64, "host": {"usable_cores": 8}}
    summary = summaries.healthy()
    return made_up(change(summary) if change else summary, name, **(plain | manifest))


def of_run(**fields: Any) -> Change:
    return lambda summary: replace(summary, run=replace(summary.run, **fields))


def of_training(**fields: Any) -> Change:
    return lambda summary: replace(summary, training=replace(summary.training, **fields))


def of_cpu(**fields: Any) -> Change:
    def change(summary: RunSummary) -> RunSummary:
        assert summary.system is not None
        return replace(summary, system=replace(summary.system, cpu=summary.system.cpu | fields))

    return change


def of_feeder(**fields: Any) -> Change:
    def change(summary: RunSummary) -> RunSummary:
        first, *others = summary.loaders
        return replace(summary, loaders=[replace(first, **fields), *others])

    return change


def versions(**changes: str) -> Change:
    return lambda s: of_run(versions=s.run.versions | changes)(s)


def test_files_beside_the_script_that_were_edited() -> None:
    base = run(sources={"data.py": "1", "lib/model.py": "1", "old.py": "1", "same.py": "1"})
    other = run(sources={"data.py": "2", "lib/model.py": "2", "new.py": "1", "same.py": "1"})
    told = only(discrepancies([base], [other]))
    assert (told.kind, told.text) == (
        "remark",
        "data.py, lib/model.py beside the script were edited",
    )
    assert [x.what for x in discrepancies([base], [base])] == ["events"]
    # Of an older run, and of a damaged one, nothing is known.
    for unknown in (run(), run(sources=5), run(sources={"data.py": 7})):
        assert [x.what for x in discrepancies([base], [unknown])] == ["events"]


def test_settings_that_the_command_names_and_imported_modules_that_were_edited() -> None:
    base = run(settings={"cfg.yaml": "1"}, imported={"pkg.model": "1", "pkg.data": "1"})
    other = run(settings={"cfg.yaml": "2"}, imported={"pkg.model": "2", "pkg.loss": "1"})
    told = [(x.kind, x.text) for x in discrepancies([base], [other]) if x.what == "files"]
    assert told == [
        ("setting", "cfg.yaml was edited"),
        ("remark", "pkg.model, imported from elsewhere, was edited"),
    ]
    assert [x.what for x in discrepancies([base], [base])] == ["events"]
    assert [x.what for x in discrepancies([base], [run(settings=[], imported=None)])] == ["events"]


def test_what_recording_took_of_a_step() -> None:
    def costing(share: float | None) -> ComparedRun:
        return run(lambda s: replace(s, overhead=replace(s.overhead, share=share)))

    told = only(discrepancies([costing(0.25)], [costing(0.02)]))
    text = "recording took about 25 % of a step of BASE, 2 % of one of OTHER"
    assert (told.kind, told.text) == ("remark", text)
    for little in (0.02, None):
        others = discrepancies([costing(little)], [costing(little)])
        assert [x.what for x in others] == ["events"]


def only(found: list[Discrepancy]) -> Discrepancy:
    """The one that is there, but for the word that only the summaries are left."""
    (told,) = [one for one in found if one.what != "events"]
    return told


@pytest.mark.parametrize(
    ("other", "kind", "text"),
    [
        (run(of_feeder(batch_size=64)), "work", "batch size 32 -> 64"),
        (run(of_run(world_size=4)), "work", "world size 1 -> 4"),
        (run(of_training(step_source="backward")), "work", "what counts as a step opt"),
        (run(of_training(samples=80_000)), "work", "samples a step 32 -> 64"),
        (run(of_run(device="cuda:0", device_timing="async")), "ground", "device cpu -> cuda"),
        (run(versions(torch="2.9.1")), "ground", "torch 2.13.0 -> 2.9.1"),
        (
            run(script="evaluate.py", script_sha256="1" * 64),
            "ground",
            "script train.py -> evaluate.py",
        ),
        (run(script="evaluate.py", script_sha256=None), "ground", "script train.py -> evaluate.py"),
        (
            run(script="copy.py"),
            "remark",
            "the script has another name, its text is the same: train.py -> copy.py",
        ),
        # Both were typed as torchrun, and so it was with runs of before that was looked through.
        (
            run(script="torchrun", entry="src/evaluate.py", script_sha256="1" * 64),
            "ground",
            "script train.py -> evaluate.py",
        ),
        (
            run(script="torchrun", command=["torchrun", "evaluate.py"], script_sha256="1" * 64),
            "ground",
            "script train.py -> evaluate.py",
        ),
        (
            run(script="torchrun", command=["torchrun", "-m", "evaluate"], script_sha256=None),
            "ground",
            "script train.py -> evaluate",
        ),
        (
            run(script="torchrun", entry="src/train.py", script_sha256="1" * 64),
            "ground",
            "the script's text differs",
        ),
        (run(of_training(free_from_step=64)), "setting", "batches made by the loader -> free"),
        (run(script_sha256="1" * 64), "ground", "the script's text differs"),
        (run(host={"usable_cores": 4}), "ground", "CPU cores 8 -> 4"),
        # Its supervisor had all of them: a command between, or the script, took fewer.
        (run(of_cpu(cores_usable=2)), "ground", "CPU cores 8 -> 2"),
        (run(of_run(device_timing="synchronized")), "slowed", "OTHER was slowed: --cuda-sync"),
        (run(of_training(steady_steps=19)), "short", "OTHER has 19 steady steps; a verdict"),
        (run(of_feeder(num_workers=4)), "setting", "num_workers 2 -> 4"),
        (run(of_feeder(pin_memory=True)), "setting", "pin_memory False -> True"),
        (run(versions(python="3.12.1")), "setting", "Python 3.11.7 -> 3.12.1"),
        (run(versions(trainprof="0.2.0")), "remark", "trainprof 0.1.0 -> 0.2.0"),
        (
            run(of_run(exit=Exit(None, 9, "killed", "out of memory"))),
            "unfinished",
            "OTHER was killed by signal 9 (out of memory)",
        ),
        (
            run(of_run(exit=Exit(1, None, "exception", "ValueError"))),
            "unfinished",
            "OTHER ended by an exception (ValueError)",
        ),
        (
            run(of_run(exit=Exit(1, None, "exception", "OSError", "--max-steps"))),
            "remark",
            "OTHER ended by an exception (OSError), once training had been ended at the limit (",
        ),
        (
            run(of_run(exit=Exit(3, None, "completed"))),
            "unfinished",
            "OTHER ended with exit status 3",
        ),
        (run(of_run(exit=Exit(None, None, "running"))), "unfinished", "OTHER is still running"),
        (run(of_run(exit=Exit(None, None, "unknown"))), "unfinished", "OTHER ended in a way that"),
        (
            run(of_run(exit=Exit(None, 15, "signal"))),
            "unfinished",
            "OTHER was ended by signal 15",
        ),
        (
            run(of_run(exit=Exit(130, None, "interrupted"))),
            "remark",
            "OTHER was stopped by Ctrl-C",
        ),
    ],
)
def test_each_is_found_alone(other: ComparedRun, kind: str, text: str) -> None:
    told = only(discrepancies([run()], [other]))
    assert told.kind == kind
    assert told.text.startswith(text)


def test_equal_runs_have_none() -> None:
    found = discrepancies([run()], [run(name="b")])
    assert {one.what for one in found} == {"events"}
    assert not any(one.kind in UNLIKE for one in found)


def test_a_run_ended_by_a_limit_that_was_asked_for_ended_as_it_should() -> None:
    limited = run(of_run(exit=Exit(0, None, "limit", "--max-steps")))
    assert [one.what for one in discrepancies([run()], [limited])] == ["events"]


def test_timed_lines_slow_a_run() -> None:
    timed = run(lambda s: replace(s, lines=LineCost(3, 1, 500, 120.0, 0.1)))
    assert only(discrepancies([timed], [run()])).text == "BASE was slowed: its lines were timed"


def test_what_is_not_known_of_one_side_is_no_difference() -> None:
    bare = run(
        of_run(versions={}, command=[], device=None), script=None, script_sha256=None, host={}
    )
    assert not [one for one in discrepancies([run()], [bare]) if one.what != "events"]


@pytest.mark.parametrize(
    ("base", "other", "text"),
    [
        ("--lr 0.1 --out a", "--lr 0.1 --out b --amp", "--out a -> --out b --amp"),
        ("--workers 2 --accum 4", "--workers 4 --accum 2", None),
        ("--lr 0.1 --wd 0.1", "--lr 0.1 --wd 0.2", "--wd 0.1 -> --wd 0.2"),
        ("--wd=0.1 data", "--wd=0.2 data", "--wd=0.1 -> --wd=0.2"),
        ("--shift -1", "--shift -2", "--shift -1 -> --shift -2"),
        ("-v -v", "-v", ": -v left out"),
        ("", "--amp", ": --amp added"),
        ("--threads 1", "--threads 1 --extra 0.2", ": --extra 0.2 added"),
        ("--lr 0.1 --amp", "--amp --lr 0.1", " in another order"),
    ],
)
def test_of_the_arguments_only_those_that_differ_are_named(
    base: str, other: str, text: str | None
) -> None:
    told = only(
        discrepancies(*([run(of_run(command=["train.py", *x.split()]))] for x in (base, other)))
    )
    text = text or f"{base} -> {other}"
    between = "" if text[0] in ": " else " "
    assert (told.kind, told.text) == ("setting", f"arguments{between}{text}")


@pytest.mark.parametrize(
    ("started", "name"),
    [
        (run(script="torchrun", entry="train.py"), None),
        (run(script="python", command=["python", "-u", "src/train.py"]), None),
        (run(script="bash", entry=None, command=["bash", "train.py"]), "bash"),
        (run(script="bash", command=["bash", "train.sh"]), "bash"),
        (run(script="src/run", versions={"python": "3"}, command=["src/run", "train.py"]), "run"),
    ],
)
def test_a_script_is_the_same_whatever_starts_it(started: ComparedRun, name: str | None) -> None:
    told = [one.text for one in discrepancies([run()], [started]) if one.what == "script"]
    same = "the script has another name, its text is the same: train.py -> "
    assert told == ([] if name is None else [f"{same}{name}"])


def with_words(*commands: str) -> list[ComparedRun]:
    return [run(of_run(command=["train.py", *told.split()])) for told in commands]


@pytest.mark.parametrize(
    ("base", "other", "text"),
    [
        ("--api-key *** x", "--api-key *** x", "--api-key is masked: a change would not show"),
        ("a.key=*** b=1", "b=1 a.key=***", "a.key is masked: a change would not show"),
        (
            "--a=*** --b=*** --c *** --d ***",
            "--a=*** --b=*** --c *** --d ***",
            "--a, --b, --c and 1 more are masked: a change would not show",
        ),
        # Of neither is the work known to be the same, but that one came or went is told.
        ("--api-key ***", "", None),
        ("s3://***@host --n 2", "s3://***@host --n 2", None),
        ("--tokens 512", "--tokens 512", None),
    ],
)
def test_what_is_masked_on_both_sides_may_differ(base: str, other: str, text: str | None) -> None:
    found = discrepancies(with_words(base), with_words(other))
    told = [one.text for one in found if one.kind == "remark" and one.what == "arguments"]
    assert told == ([] if text is None else [text])


def test_repeated_runs_may_have_arguments_of_their_own() -> None:
    base, other = (
        with_words(*(f"--seed {seed}" for seed in seeds)) for seeds in ((1, 2, 3), (4, 5, 6))
    )
    told = only(discrepancies(base, other))
    assert (told.what, told.kind) == ("arguments", "remark")
    text = "the runs of a side are not alike: arguments --seed 1, --seed 2, --seed 3 and 3 more"
    assert told.text == text


@pytest.mark.parametrize(
    ("base", "other", "changed", "of_runs"),
    [
        (
            ("a --seed 1", "a --seed 2"),
            ("a --seed 3 --amp", "a --seed 4 --amp"),
            ": --amp added",
            "a side are not alike: arguments --seed 1, --seed 2, --seed 3 and 1 more",
        ),
        # One run alone has a seed as well: that is no change either.
        (
            ("--seed=1 --lr 1",),
            ("--seed=2 --lr 3", "--seed=3 --lr 3"),
            " --lr 1 -> --lr 3",
            "OTHER are not alike: arguments --seed=2, --seed=3",
        ),
        (
            ("model.width=8 seed=1 out/a", "model.width=8 seed=2 out/b"),
            ("model.width=4 seed=1 out/c", "model.width=4 seed=2 out/d"),
            " model.width=8 -> model.width=4",
            "a side are not alike: arguments seed=1 out/a, seed=2 out/b, seed=1 out/c and 1 more",
        ),
        # What one run of a side has and another has not is nobody's change.
        (("--amp", ""), ("--amp", "--amp"), None, "BASE are not alike: arguments --amp, (none)"),
        (("-v", "-v -v"), ("-v", "-v"), None, "BASE are not alike: arguments -v, -v -v"),
        (("--lr 1", "--lr 1"), ("--lr 2", "--lr 2"), " --lr 1 -> --lr 2", None),
    ],
)
def test_what_all_runs_of_a_side_share_is_compared(
    base: tuple[str, ...], other: tuple[str, ...], changed: str | None, of_runs: str | None
) -> None:
    found = [x for x in discrepancies(with_words(*base), with_words(*other)) if x.what != "events"]
    told = {one.kind: one.text for one in found}
    expected = {} if changed is None else {"setting": f"arguments{changed}"}
    expected |= {} if of_runs is None else {"remark": f"the runs of {of_runs}"}
    assert told == expected


def test_another_machine_is_found_by_what_it_computes_on() -> None:
    def on(cpu: str, name: str = "a", device: str = "cpu") -> ComparedRun:
        return run(of_run(device=device), host={"usable_cores": 8, "cpu": cpu, "name": name})

    told = only(discrepancies([on("EPYC")], [on("Xeon")]))
    assert (told.kind, told.text) == ("ground", "CPU EPYC -> Xeon")
    told = only(discrepancies([on("EPYC")], [on("EPYC", "b")]))
    assert (told.kind, told.text) == ("remark", "host a -> b")
    on_devices = [on(cpu, device="cuda:0") for cpu in ("EPYC", "Xeon")]
    told = only(discrepancies(on_devices[:1], on_devices[1:]))
    assert (told.kind, told.text) == ("remark", "CPU EPYC -> Xeon")
    arm = run(host={"usable_cores": 8, "platform": "linux 6.1 aarch64"})
    intel, newer = (
        run(host={"usable_cores": 8, "platform": f"linux {kernel} x86_64"}) for kernel in (6, 7)
    )
    assert only(discrepancies([arm], [intel])).text == "platform linux aarch64 -> linux x86_64"
    assert [x.what for x in discrepancies([intel], [newer])] == ["events"]


def on_gpus(*names: str | None, is_used: bool | None = True, is_told: bool = True) -> ComparedRun:
    gpus = [replace(summaries.gpu(), name=name, is_used=is_used, is_visible=True) for name in names]
    system = replace(summaries.system(), gpus=gpus if is_told else [])

    def change(summary: RunSummary) -> RunSummary:
        return of_run(device="cuda:0")(replace(summary, system=system))

    return run(change)


def test_another_gpu_is_another_machine() -> None:
    told = only(discrepancies([on_gpus("NVIDIA H100")], [on_gpus("NVIDIA A100")]))
    assert (told.kind, told.text) == ("ground", "GPU NVIDIA H100 -> NVIDIA A100")
    assert not [x for x in discrepancies([on_gpus("T4")], [on_gpus("T4")]) if x.what != "events"]


@pytest.mark.parametrize(
    "other",
    [
        on_gpus("NVIDIA H100", is_told=False),  # no NVML in the container
        on_gpus(None),
        on_gpus("NVIDIA H100", "NVIDIA T4", is_used=None),  # which of them nothing tells
        on_gpus("NVIDIA H100", "NVIDIA H100", is_used=None),
    ],
)
def test_a_gpu_that_is_not_known_is_no_other(other: ComparedRun) -> None:
    for sides in (([on_gpus("NVIDIA H100")], [other]), ([other], [on_gpus("NVIDIA H100")])):
        assert [one.what for one in discrepancies(*sides)] == ["events"]


def test_a_run_that_trains_in_several_processes_stands_for_one_of_them() -> None:
    def apart(others: int) -> ComparedRun:
        return run(lambda s: replace(s, trained_apart=[{"pid": n} for n in range(others)]))

    told = only(discrepancies([apart(4)], [apart(4)]))
    assert told.kind == "remark"
    assert told.text.startswith("of 5 training processes the busiest is compared")
    told = only(discrepancies([apart(4)], [apart(0)]))
    assert (told.kind, told.text) == ("ground", "training processes 5 -> 1")
    assert "training processes" not in ground_of(apart(4))


def test_another_number_of_torchs_threads_is_a_change() -> None:
    one, eight = (run(lambda s, n=n: replace(s, torch_threads=n)) for n in (1, 8))
    told = only(discrepancies([one], [eight]))
    assert (told.kind, told.text) == ("setting", "torch's threads 1 -> 8")


def test_a_setting_changed_for_evaluation_as_for_training_is_named_once() -> None:
    def all_with(workers: int) -> ComparedRun:
        def change(summary: RunSummary) -> RunSummary:
            loaders = [replace(one, num_workers=workers) for one in summary.loaders]
            return replace(summary, loaders=loaders)

        return run(change)

    assert only(discrepancies([run()], [all_with(4)])).what == "num_workers"


def test_prefetching_without_workers_is_no_setting() -> None:
    base = run(of_feeder(num_workers=0, prefetch_factor=None, start_method=None))
    other = run(of_feeder(num_workers=2, prefetch_factor=2, start_method="fork"))
    assert only(discrepancies([base], [other])).text == "num_workers 0 -> 2"


def test_what_is_set_with_the_first_worker_is_named() -> None:
    base = run(of_feeder(num_workers=0, prefetch_factor=None, persistent_workers=False))
    other = run(of_feeder(num_workers=2, prefetch_factor=4, persistent_workers=True))
    expected = [
        "num_workers 0 -> 2",
        "prefetch_factor 2 -> 4",
        "persistent_workers False -> True",
    ]
    told = [one.text for one in discrepancies([base], [other]) if one.kind == "setting"]
    assert told == expected
    back = [one.text for one in discrepancies([other], [base]) if one.kind == "setting"]
    assert "persistent_workers True -> False" in back


def test_a_run_that_was_held_up_is_named_among_repeated_ones() -> None:
    def lasting(factor: float, name: str, others_percent: float = 0.0) -> ComparedRun:
        cpu = {
            "host_percent": {"mean": 50.0 + others_percent},
            "tree_percent": {"mean": 100.0},
            "per_core_percent": [50.0, 50.0],
            "cores_usable": 2,
            "pressure_some_share": others_percent / 100,
        }

        def change(summary: RunSummary) -> RunSummary:
            longer = with_steps_longer(summary, factor)
            return replace(longer, system=summaries.system(cpu=cpu))

        return run(change, name)

    base = [lasting(1.0, f"a{n}") for n in range(3)]
    other = [lasting(1.0, "b0"), lasting(1.4, "b1", 40.0), lasting(1.02, "b2", 40.0)]
    found = [one for one in discrepancies(base, other) if one.what == "held up"]
    (told,) = found
    assert (told.kind, told.text) == (
        "remark",
        "run b1 of OTHER took 39 % longer a step than its other runs; other programs kept "
        "0.8 of 2 cores busy meanwhile",
    )
    without_cause = [*other[:1], lasting(1.4, "b3"), lasting(1.15, "b4")]
    texts = [one.text for one in discrepancies(base, without_cause) if one.what == "held up"]
    assert texts == ["run b3 of OTHER took 30 % longer a step than its other runs"]
    # Of two nobody knows which one it was.
    assert not [one for one in discrepancies(base, other[:2]) if one.what == "held up"]


def test_the_text_of_a_script_is_said_to_differ_without_its_digests() -> None:
    base = [run(), run(name="a2", script_sha256="1" * 64)]
    told = only(discrepancies(base, [run(name="b")]))
    assert told.text == "the runs of BASE are not alike: the script's text differs"
    # Of another script it goes without saying.
    other = run(script="evaluate.py", script_sha256="1" * 64)
    assert only(discrepancies([run()], [other])).text == "script train.py -> evaluate.py"


def test_a_few_samples_more_in_a_step_are_a_last_batch_that_is_not_full() -> None:
    samples = summaries.healthy().training.samples or 0
    a_few_more = run(of_training(samples=round(samples * 1.01)))
    assert [one.what for one in discrepancies([run()], [a_few_more])] == ["events"]
    told = only(discrepancies([run()], [run(of_training(samples=samples * 2))]))
    assert told.what == "samples a step"


def of_stream(
    size_kib: float, ended: list[int], *, batch_size: int | None = None, error_kib: float = 0.5
) -> ComparedRun:
    """A run whose samples nobody counts, by its batches' size and those of passes that ended."""
    fetch = summaries.healthy().loaders[0].fetch
    assert fetch is not None
    told = replace(fetch, batch_bytes=size_kib * 1024, batch_bytes_error=error_kib * 1024)
    of_loader = of_feeder(
        batch_size=batch_size, is_iterable=True, fetch=told, ended_batches=ended, length=None
    )
    return run(lambda summary: of_training(samples=None)(of_loader(summary)))


def of_workers(workers: int, ended: list[int]) -> ComparedRun:
    """A run of a stream, by its number of workers and the batches of epochs that ended."""
    of_loader = of_feeder(num_workers=workers, is_iterable=True, ended_batches=ended)
    return run(lambda summary: of_training(samples=None)(of_loader(summary)))


@pytest.mark.parametrize(
    ("workers", "ended", "is_other"),
    [(3, [189, 189], True), (3, [66], False), (3, [], False), (0, [189, 189], False)],
)
def test_epochs_of_a_stream_that_each_worker_yields_again(
    workers: int, ended: list[int], is_other: bool
) -> None:
    found = discrepancies([of_workers(0, [63, 63])], [of_workers(workers, ended)])
    texts = [record.text for record in found if record.kind == "work"]
    expected = "batches an epoch 63 -> 189: workers share the stream differently"
    assert texts == ([expected] if is_other else [])


@pytest.mark.parametrize(
    ("base", "other"),
    [
        (of_stream(32, []), of_stream(64, [])),
        (of_stream(32, [63, 63]), of_stream(64, [32, 32, 32])),
        (of_stream(256, [8, 8], batch_size=256), of_stream(167, [12], batch_size=256)),
    ],
)
def test_batches_of_another_size_are_other_work_where_samples_are_not_counted(
    base: ComparedRun, other: ComparedRun
) -> None:
    told = only(discrepancies([base], [other]))
    assert told.kind == "work"
    assert told.text.startswith(f"a batch is {told.base} -> {told.other} on average")
    found = compare([base], [other], limit=0.05)
    assert not found.comparable
    assert (found.verdict, found.measured_by) == (UNKNOWN, "sample")
    assert found.metric("samples_per_s") is None
    assert found.gate is not None
    assert found.gate.outcome == NOT_JUDGED


@pytest.mark.parametrize(
    ("base", "other"),
    [
        (of_stream(64, [32, 32]), of_stream(32, [32, 32])),  # of another type, as many samples
        (of_stream(64, [], batch_size=8), of_stream(32, [], batch_size=8)),
        (of_stream(64, []), of_stream(60, [])),
        (of_stream(64, [], error_kib=8), of_stream(40, [], error_kib=8)),  # texts, at random
        (of_stream(64, [32]), of_stream(64, [16])),  # a part of the data
        (run(), run(of_feeder(fetch=None))),
    ],
)
def test_batches_that_may_hold_as_many_samples_are_no_other_work(
    base: ComparedRun, other: ComparedRun
) -> None:
    assert not [one for one in discrepancies([base], [other]) if one.kind == "work"]


def test_runs_of_one_side_should_be_alike() -> None:
    base = [run(), run(of_feeder(num_workers=4), name="a2")]
    told = only(discrepancies(base, [run(name="b")]))
    assert told.kind == "ground"
    assert told.text == "the runs of BASE are not alike: num_workers 2, 4"


def test_data_read_from_disk_on_one_side_alone() -> None:
    fetch = summaries.healthy().loaders[0].fetch
    assert fetch is not None
    cold = run(of_feeder(fetch=replace(fetch, read_bytes=200 << 20)))
    told = only(discrepancies([cold], [run()]))
    assert told.text == "BASE read 200 MiB of its data from disk, OTHER had it in memory already"
    assert not [one for one in discrepancies([cold], [cold]) if one.what == "page cache"]
    # One that is five times as long reads five times as much.
    longer = run(of_feeder(fetch=replace(fetch, read_bytes=1000 << 20, n=5 * fetch.n)))
    assert not [one for one in discrepancies([cold], [longer]) if one.what == "page cache"]


def test_repeated_runs_should_take_turns() -> None:
    moments = [f"2026-11-21T03:4{minute}:00Z" for minute in range(4)]
    runs = [run(of_run(started_at=moment), name=moment) for moment in moments]
    assert only(discrepancies(runs[:2], runs[2:])).what == "order"
    assert not [one for one in discrepancies(runs[::2], runs[1::2]) if one.what == "order"]


def test_a_run_with_many_more_steps_is_worth_knowing() -> None:
    shorter = run(of_training(steps=250, samples=11200, iterations=250))
    told = [one for one in discrepancies([run()], [shorter]) if one.what == "steps"]
    assert [(one.kind, one.text) for one in told] == [("remark", "steps 1,250 -> 250")]
