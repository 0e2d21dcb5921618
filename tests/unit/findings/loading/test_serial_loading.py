"""Batches that the training process prepares itself: workers, or cheaper samples."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from support import summaries
from support.cases import STEPS, Planted, case_of, idle_device, with_summary
from support.findings import Row, hot_line, is_silent, only, reports, row

from trainprof.analysis.pipeline.bounds import Interval
from trainprof.analysis.summary.code import PREPARATION, HotLine
from trainprof.analysis.summary.loader import LoaderCall
from trainprof.analysis.timeline.ledger import LOADER_KEYS
from trainprof.findings.run_context import RunContext

LINE = hot_line(PREPARATION)
# Sleeps for 30 ms for each batch of 10 ms of computing: three workers give one each 10 ms.
WAITING = {"fetch_s": 0.03, "compute_s": 0.01}


def workers(count: int, context: Planted | RunContext, **fields: Any) -> Row:
    return row(context, change={"num_workers": count}, **fields)


def kept(count: int, context: Planted | RunContext, **fields: Any) -> Row:
    change = {"num_workers": count, "persistent_workers": True}
    return row(context, **{"change": change, **fields})


def serial(passes: int = 2, **loader: Any) -> Planted:
    return Planted(**WAITING, passes=passes).having(**loader)


def in_steps(planted: Planted, steps: int) -> RunContext:
    context = case_of(planted)
    return with_summary(context, training=replace(context.summary.training, steps=steps))


def of_class(takes: list[str], *constructors: str) -> Planted:
    """A class of the user's that may not take all that torch's does."""
    call = LoaderCall(ends_at=None, takes=takes, constructors=[*constructors])
    return serial(kind="MyLoader", call=call)


def stream(shards: int) -> Planted:
    planted = Planted(fetch_s=0.03, running=0.6, compute_s=0.01, shards=shards)
    return planted.having(is_iterable=True, has_asked_for_worker=True)


def unsure(*receive_s: float, **loader: Any) -> Planted:
    """Workers may cost training more than they save."""
    how = {"compute_cores": Interval(1.0, 1.8, 2.0), "receive_s": Interval(0.0, *receive_s)}
    return Planted(fetch_s=0.024, compute_s=0.02, running=1.0, cores=2, **how).having(**loader)


def small(**loader: Any) -> Planted:
    how = {"compute_cores": Interval(1.0, 1.4, 2.0), "receive_s": Interval(0.0, 0.001, 0.012)}
    return Planted(fetch_s=0.0065, compute_s=0.0155, running=1.0, cores=2, **how).having(**loader)


def crowded(threads: float) -> Planted:
    """Preparing a batch and computing with it want both cores."""
    cores = {"cores": 2, "compute_cores": Interval.exactly(threads)}
    planted = Planted(fetch_s=0.15, running=1.0, compute_s=0.04, **cores)
    return planted.having(hot_lines=[hot_line(PREPARATION, 0.7)])


def left_early(left: int) -> Planted:
    how = {"fetch_s": 0.5, "running": 1.0, "compute_s": 0.01, "cores": 2.0}
    return Planted(**how, passes=10, left=left)


def beside_others(running: float, cores: int, taken: float, **inputs: Any) -> RunContext:
    """Other programs keep `taken` cores busy."""
    how = {"running": running, "cores": float(cores), **inputs}
    host = 100 * (taken + 0.1) / cores
    cpu = {
        "cores_usable": float(cores),
        "per_core_percent": [host] * cores,
        "host_percent": {"mean": host},
        "tree_percent": {"mean": 10.0},
        "pressure_some_share": 0.5,
    }
    planted = Planted(fetch_s=0.02, compute_s=0.01, **how)
    return case_of(planted, system=summaries.system(cpu=cpu))


def felt(planted: Planted, share: float) -> RunContext:
    """A device idles for a share of the waits."""
    idle_s = share * sum(case_of(planted).training[key] for key in LOADER_KEYS)
    return case_of(planted, devices=[idle_device({"loader_s": idle_s})], device="cuda:0")


def cold(epochs: int) -> Planted:
    return Planted(fetch_s=0.01, compute_s=0.01, passes=5, cold_passes=epochs)


def seen(planted: Planted) -> RunContext:
    """A sample of the wait met the loop alone: the batches are a library's dataset's."""
    return with_summary(case_of(planted), part_lines=[hot_line("data_wait", site="train.py:50")])


def one_function(share: float) -> Planted:
    lines: list[HotLine] = [hot_line(PREPARATION, share, line_share=share / 2)]
    return unsure(0.008, 0.012, hot_lines=lines)


def computing(**loader: Any) -> Planted:
    return Planted(**WAITING, running=0.6).having(**LEVEL, **loader)


def of_library(**loader: Any) -> Planted:
    made = {"dataset_function": "vision.folder:Folder.__getitem__", "runs_own_code": False}
    return computing(**{**made, **loader})


# Another program on the only core: each of the two has half of it, and waits for as long.
BESIDE_ANOTHER: dict[str, Any] = {
    "others": Interval(0.5, 1.0, 2.0),
    "runnable_s": np.full(STEPS, 0.01),
    "fetch_slowdown": 1.0,
    "main_slowdown": 1.0,
}
# The host is done with a step after 4 ms, and a batch takes 60: sixteen workers would keep up.
FAST = Planted(fetch_s=0.06, running=1.0, compute_s=0.004, cores=32)
TAKEN = "other programs kept 3.5 of 4 cores busy"
SOME: dict[str, Any] = {"modelled_workers": (1, 32), "is_only": False}
COMPUTING = Planted(**WAITING, running=0.6)
LIBRARYS = unsure(0.012, 0.03)
ROWS = unsure(0.012, 0.03, dataset="Dataset")
TENSORS = unsure(0.012, 0.03, holds_tensors=True)
TWO = hot_line(
    PREPARATION,
    line_share=0.5,
    other_lines={"data.py:13": 0.3, "data.py:14": 0.1},
    library_call="pandas.core.series (Series.__getitem__)",
)
AT_LEAST = replace(TWO, is_at_least=True)
NOT_APART = replace(TWO, is_line_known=False, other_lines={"data.py:13": 0.3})
SEEMS = replace(TWO, is_likely=True, is_end=True, is_line_known=False, line_share=None)
ROTATE = "PIL.Image (Image.rotate)"
LEVEL = {"changed_between_passes": ["level"]}
CHEAPER = {"change": {}, "is_at_most": True}

test_serial_loading = reports(
    "serial_loading",
    {
        # What sleep waits for may give no more to more workers.
        "its own": kept(3, serial(), low=1.0, high=(4.0, 6.0), is_at_most=True, severity="high"),
        "computing": kept(3, COMPUTING, low=(2.5, 4.0), high=(4.0, 6.0), is_at_most=False),
        "with evaluation": kept(3, case_of(serial(), parts={"evaluation": 4.0}), is_only=False),
        "several to a step": kept(3, in_steps(serial(), 50), is_only=False),
        "of a Trainer": kept(3, serial(built_by="transformers"), built_by="transformers"),
        "of timm": kept(3, serial(built_by="timm"), built_by="timm"),
        # What a class does not take is given where its constructor calls its base's.
        "a class that takes all": kept(3, of_class(["ds", "num_workers", "persistent_workers"])),
        "a class that passes all on": kept(3, of_class(["ds", "*", "**"], "data.py:12")),
        "a class that takes neither": kept(3, of_class(["ds"], "train.py:30", "data.py:12")),
        "a class that takes one": kept(3, of_class(["ds", "num_workers"], "data.py:12")),
        "a class of no constructor": kept(3, of_class(["ds"])),
        "a class of timm": kept(3, of_class(["ds"]).having(built_by="timm")),
        "epochs that overlap": workers(3, serial(overlaps=True)),
        "changed between epochs": workers(3, serial(**LEVEL)),
        "built for each epoch": workers(3, serial(passes=10, built=10)),
        "folds": kept(3, serial(passes=10, built=5)),
        # Something has to be done first: no matter of arguments alone.
        "an open file": kept(3, serial(open_files=["archive (NpzFile)"]), change={}),
        "epochs that end": kept(2, left_early(0)),
        "epochs that are left": workers(2, left_early(1000)),
        "one shard": kept(1, stream(1)),
        "two shards": kept(2, stream(2)),
        # Without them a step takes 15.5 ms instead of 22.
        "cheaper samples": row(small(hot_lines=[LINE]), "data.py:12", likely=22 / 15.5, **CHEAPER),
        # As with data that costs nothing, and not without that line alone.
        "one function is nearly all": row(one_function(0.95), likely=2.2, rel=0.05, **CHEAPER),
        "one function is half": row(one_function(0.5), modelled_workers=(1, 9)),
        "two lines": row(small(hot_lines=[TWO]), "data.py:12", **CHEAPER),
        "two lines, at least": row(small(hot_lines=[AT_LEAST]), "data.py:12", **CHEAPER),
        "two lines, which is unknown": row(small(hot_lines=[NOT_APART]), "data.py:12", **CHEAPER),
        "it seems": workers(3, computing(hot_lines=[SEEMS])),
        "a library's dataset": row(seen(LIBRARYS), **CHEAPER),
        "what a library's calls": workers(3, of_library(library_call=ROTATE)),
        "whatever a library's calls": workers(3, of_library()),
        "no Python": workers(3, of_library(dataset_function=None)),
        "rows of a library's": row(seen(ROWS), **CHEAPER),
        "threads that wait for one another": row(crowded(2.0), low=(0.0, 0.99)),
        "one thread": row(crowded(1.0), low=(1.0, 9.0)),
        "sleepers need no core": row(beside_others(0.1, 1, 0.0), **SOME),
        "sleepers, full cores": row(beside_others(0.1, 2, 1.5), **SOME),
        "a free core": row(beside_others(1.0, 4, 1.0), **SOME),
        "no free core": row(beside_others(1.0, 4, 3.5), low_confidence=TAKEN, **SOME),
        # For half of the waits the device works: two workers will do for some 30 ms a step.
        "a busy device": row(felt(FAST, 0.5), modelled_workers=(2, 3), high=(1.0, 2.0)),
        "an idle device": row(felt(FAST, 1.0), modelled_workers=(10, 32)),
        "cold for four of five epochs": row(cold(4)),
    },
)
test_no_workers = is_silent(
    "serial_loading",
    {
        "nobody's line is known": small(),
        "tensors": seen(TENSORS),
        "one core": beside_others(1.0, 1, 0.0),
        "another program's core": beside_others(0.5, 1, 0.5, **BESIDE_ANOTHER),
        "a device that did not feel it": felt(serial(), 0.01),
        "cold for the first epoch": cold(1),
    },
)


def test_workers_for_the_loaders_of_folds_are_started_for_each() -> None:
    started = {"spawn_s": Interval.exactly(0.2)}
    folds = (serial(passes=10, built=built, inputs=started) for built in (1, 5))
    whole, each = (only(case_of(planted)).run_speedup or [0.0, 0.0] for planted in folds)
    assert 1 < each[1] < whole[1]
