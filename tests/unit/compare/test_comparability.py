"""What two sides did not have in common: each planted alone, and none where nothing was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from support import summaries
from support.compared_runs import made_up

from trainprof.analysis.statistics.speedup import UNKNOWN
from trainprof.analysis.summary.code import LineCost
from trainprof.analysis.summary.run import Exit
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.compare.comparability import SCRIPT_TEXT, differences
from trainprof.compare.compared_run import ComparedRun
from trainprof.compare.comparison import NOT_JUDGED, compare

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
        return replace(summary, system=replace(summary.system, cpu=summary.system.cpu | fields))

    return change


def of_feeder(**fields: Any) -> Change:
    def change(summary: RunSummary) -> RunSummary:
        first, *others = summary.loaders
        return replace(summary, loaders=[replace(first, **fields), *others])

    return change


def versions(**changes: str) -> Change:
    return lambda s: of_run(versions=s.run.versions | changes)(s)


def ended(*end: Any) -> Change:
    return of_run(exit=Exit(*end))


def words(*commands: str) -> list[ComparedRun]:
    return [run(of_run(command=["train.py", *command.split()])) for command in commands]


def on_gpus(*names: str | None, is_used: bool | None = True, is_told: bool = True) -> ComparedRun:
    gpus = [replace(summaries.gpu(), name=name, is_used=is_used, is_visible=True) for name in names]
    system = replace(summaries.system(), gpus=gpus if is_told else [])
    return run(lambda summary: of_run(device="cuda:0")(replace(summary, system=system)))


def reading(mib: int, batches: int = 1) -> ComparedRun:
    fetch = summaries.healthy().loaders[0].fetch
    return run(of_feeder(fetch=replace(fetch, read_bytes=mib << 20, n=batches * fetch.n)))


def listed(base: list[ComparedRun], other: list[ComparedRun]) -> list[tuple[str, str]]:
    return [(difference.kind, difference.text) for difference in differences(base, other)]


@pytest.mark.parametrize(
    ("other", "kind", "text"),
    [
        (run(of_feeder(batch_size=64)), "work", "batch size 32 -> 64"),
        (run(of_run(world_size=4)), "work", "world size 1 -> 4"),
        (run(of_training(step_source="backward")), "work", "step definition opt"),
        (run(of_training(samples=80_000)), "work", "samples per step 32 -> 64"),
        (run(of_run(device="cuda:0", device_timing="async")), "ground", "device cpu -> cuda"),
        (run(versions(torch="2.9.1")), "ground", "torch 2.13.0 -> 2.9.1"),
        (run(script="test.py", script_sha256="1"), "ground", "script train.py -> test.py"),
        (run(script="test.py", script_sha256=None), "ground", "script train.py -> test.py"),
        (run(script_sha256="1" * 64), "ground", SCRIPT_TEXT),
        (run(host={"usable_cores": 4}), "ground", "CPU cores 8 -> 4"),
        # Its supervisor had all of them: a command between, or the script, took fewer.
        (run(of_cpu(cores_usable=2)), "ground", "CPU cores 8 -> 2"),
        (run(of_run(device_timing="synchronized")), "unusable", "OTHER was slowed by --cuda-sync"),
        (
            run(lambda s: replace(s, lines=LineCost(3, 1, 500, 120.0, 0.1))),
            "unusable",
            "OTHER was slowed by line timing",
        ),
        (run(of_training(steady_steps=5)), "unusable", "OTHER has 5 steady steps"),
        (run(of_training(free_from_step=64)), "setting", "cached batches False -> True"),
        (run(of_feeder(num_workers=4)), "setting", "num_workers 2 -> 4"),
        (run(of_feeder(pin_memory=True)), "setting", "pin_memory False -> True"),
        (run(of_feeder(prefetch_factor=8)), "setting", "prefetch_factor 2 -> 8"),
        (run(versions(python="3.12.1")), "setting", "Python 3.11.7 -> 3.12.1"),
        (run(lambda s: replace(s, torch_threads=8)), "setting", "torch threads"),
        (run(ended(None, 9, "killed", "out of memory")), "unfinished", "OTHER was killed by sig"),
        (run(ended(1, None, "exception", "ValueError")), "unfinished", "OTHER raised"),
        (run(ended(1, None, "exception", "X", "--max-steps")), "remark", "OTHER raised"),
        (run(ended(3, None, "completed")), "unfinished", "OTHER ended with exit status 3"),
        (run(ended(130, None, "interrupted")), "remark", "OTHER was stopped by Ctrl-C"),
    ],
)
def test_each_is_listed_alone(other, kind, text):
    base = run(lambda s: replace(s, torch_threads=1 if other.summary.torch_threads == 8 else None))
    ((of_kind, sentence),) = listed([base], [other])
    assert of_kind == kind
    assert sentence.startswith(text)


def on_host(**host: Any) -> ComparedRun:
    return run(host={"usable_cores": 8, **host})


@pytest.mark.parametrize(
    ("base", "other", "kind", "text"),
    [
        (
            run(sources={"data.py": "1", "m.py": "1", "old.py": "1", "same.py": "1"}),
            run(sources={"data.py": "2", "m.py": "2", "new.py": "1", "same.py": "1"}),
            "remark",
            "data.py, m.py (next to the script) were edited",
        ),
        (run(settings={"a.yml": "1"}), run(settings={"a.yml": "2"}), "setting", "a.yml was edited"),
        (
            run(of_feeder(num_workers=0, prefetch_factor=None, start_method=None)),
            run(of_feeder(num_workers=2, prefetch_factor=4, start_method="fork")),
            "setting",
            "num_workers 0 -> 2",
        ),
        (on_gpus("H100"), on_gpus("A100"), "ground", "GPU H100 -> A100"),
        (on_host(cpu="EPYC"), on_host(cpu="Xeon"), "ground", "CPU EPYC -> Xeon"),
        (
            on_host(platform="linux 6.1 aarch64"),
            on_host(platform="linux 6.2 x86_64"),
            "ground",
            "platform linux aarch64 -> linux x86_64",
        ),
        (
            run(lambda s: replace(s, trained_apart=[{"pid": n} for n in range(4)])),
            run(),
            "ground",
            "training processes 5 -> 1",
        ),
        (
            reading(200),
            run(),
            "remark",
            "BASE read 200 MiB from disk; OTHER had its data in the page cache",
        ),
    ],
)
def test_pairs_that_differ(base, other, kind, text):
    assert listed([base], [other]) == [(kind, text)]
    assert listed([base], [base]) == []


@pytest.mark.parametrize(
    ("second", "text"),
    [
        (run(of_feeder(num_workers=4)), "num_workers (2, 4)"),
        (run(script_sha256="1" * 64), SCRIPT_TEXT),
    ],
)
def test_runs_of_one_side_should_be_alike(second, text):
    expected = [("ground", f"runs of BASE differ in {text}")]
    assert listed([run(), second], [run()]) == expected


@pytest.mark.parametrize(
    ("base", "other", "text"),
    [
        (["--lr 0.1 --out a"], ["--lr 0.1 --out b --amp"], " --out a -> --out b --amp"),
        (["--lr 0.1 --wd 0.1"], ["--lr 0.1 --wd 0.2"], " --wd 0.1 -> --wd 0.2"),
        (["--wd=0.1 data"], ["--wd=0.2 data"], " --wd=0.1 -> --wd=0.2"),
        (["--shift -1"], ["--shift -2"], " --shift -1 -> --shift -2"),
        (["-v -v"], ["-v"], " removed: -v"),
        ([""], ["--amp"], " added: --amp"),
        (["--lr 0.1 --amp"], ["--amp --lr 0.1"], None),
        # Repeated runs may have arguments of their own.
        (["--seed 1", "--seed 2"], ["--seed 3 --amp", "--seed 4 --amp"], " added: --amp"),
        (["--seed=1 --lr 1"], ["--seed=2 --lr 3", "--seed=3 --lr 3"], " --lr 1 -> --lr 3"),
        (["w=8 seed=1 out/a", "w=8 seed=2 out/b"], ["w=4 seed=1 out/c"], " w=8 -> w=4"),
        (["--amp", ""], ["--amp", "--amp"], None),
        (["--lr 1", "--lr 1"], ["--lr 2", "--lr 2"], " --lr 1 -> --lr 2"),
    ],
)
def test_of_the_arguments_those_that_differ_are_named(base, other, text):
    expected = [] if text is None else [("setting", f"arguments{text}")]
    assert listed(words(*base), words(*other)) == expected


def of_stream(size_kib, ended, *, batch_size=None, error_kib=0.5):
    """A run whose samples nobody counts, by its batches' size and those of passes that ended."""
    fetch = summaries.healthy().loaders[0].fetch
    sized = replace(fetch, batch_bytes=size_kib * 1024, batch_bytes_error=error_kib * 1024)
    of_loader = of_feeder(
        batch_size=batch_size, is_iterable=True, fetch=sized, ended_batches=ended, length=None
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
def test_epochs_of_a_stream_that_each_worker_yields_again(workers, ended, is_other):
    base, other = [of_workers(0, [63, 63])], [of_workers(workers, ended)]
    texts = [text for kind, text in listed(base, other) if kind == "work"]
    assert [" 63 -> 189" in text for text in texts] == ([True] if is_other else [])
    assert compare(base, other).measured_by == ("sample" if is_other else "step")


@pytest.mark.parametrize(
    ("base", "other"),
    [
        (of_stream(32, []), of_stream(64, [])),
        (of_stream(32, [63, 63]), of_stream(64, [32, 32, 32])),
        (of_stream(256, [8, 8], batch_size=256), of_stream(167, [12], batch_size=256)),
    ],
)
def test_batches_of_another_size_are_other_work_where_samples_are_not_counted(base, other):
    ((kind, _),) = listed([base], [other])
    assert kind == "work"
    comparison = compare([base], [other], limit=0.05)
    assert not comparison.comparable
    assert (comparison.verdict, comparison.measured_by) == (UNKNOWN, "sample")
    assert "samples_per_s" not in {metric.name for metric in comparison.metrics}
    assert comparison.gate.outcome == NOT_JUDGED


@pytest.mark.parametrize(
    ("base", "other"),
    [
        *(
            (run(), other)
            for other in (
                run(ended(0, None, "limit", "--max-steps"), name="b"),
                run(script="copy.py"),
                run(script="torchrun", entry="train.py"),
                run(of_run(versions={}, command=[], device=None), script=None, host={}),
                run(sources=5, settings=[]),
                run(of_training(samples=round((summaries.healthy().training.samples or 0) * 1.01))),
                # Half as long, with last steps of passes that are not full: fewer of them.
                run(of_training(steps=600, samples=18_600, epochs=40, iterations=600)),
                run(of_feeder(fetch=None)),
            )
        ),
        (on_gpus("H100"), on_gpus("H100", is_told=False)),  # no NVML in the container
        (on_gpus(None), on_gpus("H100")),
        (on_gpus("H100"), on_gpus("H100", "T4", is_used=None)),  # which of them nothing tells
        (on_gpus("H100", "H100", is_used=None), on_gpus("H100")),
        (reading(200), reading(1000, batches=5)),
        (on_host(platform="linux 6 x86_64"), on_host(platform="linux 7 x86_64")),
        (of_stream(64, [32, 32]), of_stream(32, [32, 32])),  # of another type, as many samples
        (of_stream(64, [], batch_size=8), of_stream(32, [], batch_size=8)),
        (of_stream(64, []), of_stream(60, [])),
        (of_stream(64, [], error_kib=8), of_stream(40, [], error_kib=8)),  # texts, at random
        (of_stream(64, [32]), of_stream(64, [16])),  # a part of the data
    ],
)
def test_what_is_alike_or_not_known_is_not_listed(base, other):
    assert listed([base], [other]) == []
