"""Data loading: a loader in full, and what is said of it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from support import summaries

from trainprof.analysis.summary.loader import (
    COMPUTE,
    CPU,
    LATENCY,
    RECEIVE,
    SAMPLER,
    STORAGE,
    Fetch,
    Loader,
)
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report import markdown
from trainprof.report.page.loading import render_loader
from trainprof.report.text.layout import Page
from trainprof.report.text.loader_words import (
    faults,
    limit_words,
    makers,
    needs_words,
    sample_name,
    warnings,
)

PAGE, WIDE = Page(), Page(120)
STARVED = summaries.starved()


# A loader in full


def test_a_loader_in_full_is_the_golden_one(golden):
    built = replace(STARVED.loaders[0], built_by="transformers", bound=None)
    golden("loader_80.txt", render_loader(STARVED, 0, PAGE))
    golden("loader_120.txt", render_loader(STARVED, 0, WIDE))
    unknown = replace(STARVED, loaders=[built])
    golden("loader_unknown_limit_80.txt", render_loader(unknown, 0, PAGE))
    golden("loader.md", markdown.render_loader(STARVED, 0))


# What is said of a loader


def loader(workers: int | None = 4, **changes: Any) -> Loader:
    """A loader with workers, in trouble only where `changes` say so."""
    fetch = summaries.fetch(0.4, 400, workers=workers or 0, running=0.9, asleep=0.1)
    plain = summaries.loader(
        "train.py:84", num_workers=workers, iterations=400, fetch=fetch, bound=None, passes=1
    )
    return replace(plain, **changes)


def fetch_with(**changes: Any) -> Fetch:
    return replace(loader().fetch, **changes)


def run(used_percent: float = 390.0, cores: float = 4) -> RunSummary:
    """A run that keeps so much of so many cores busy."""
    cpu = {"cores_usable": cores, "tree_percent": {"mean": used_percent / 2, "p95": used_percent}}
    return replace(summaries.slow_loader(), system=summaries.system(cpu=cpu))


LIMITS: list[tuple[int, str, dict[str, float]]] = [
    (0, LATENCY, {"blocked": 0.4, "compute": 0.1}),
    (0, COMPUTE, {"blocked": 0.0003, "compute": 0.3577}),
    (4, LATENCY, {"blocked": 0.05, "compute": 0.05}),
    (1, LATENCY, {"blocked": 0.05, "compute": 0.05}),
    (4, CPU, {"blocked": 0.05, "compute": 0.05}),
    (4, STORAGE, {"blocked": 0.05, "compute": 0.05}),
    (4, RECEIVE, {"receive": 0.03, "compute": 0.1}),
    (4, SAMPLER, {"sampler": 0.03, "compute": 0.01}),
    (4, COMPUTE, {"compute": 0.1, "receive": 0.001}),
    (4, COMPUTE, {"compute": 0.1, "receive": 0.02}),
    (4, "something of a later version", {"compute": 0.1}),
]
LOST: list[dict[str, Any]] = [
    {"pid": 91, "worker": 2, "status": None, "signal": 9, "at_s": 3.5},
    {"pid": 91, "worker": 0, "status": 1, "signal": None, "at_s": 3.5},
    {"signal": 64},
    {"signal": 4444},
    {},
    {"worker": "x", "pid": [], "signal": {}, "at_s": float("nan")},
]
STREAM = {"is_iterable": True, "shares_samples": False}
HELD = {"open_files": ["data (BufferedReader)"], "start_method": "fork"}


def limited(workers: int, by: str, parts: dict[str, float], **fetched: Any) -> str:
    reads = summaries.fetch(0.4, 400, workers=workers, reading=0.9, running=0.1)
    bound = summaries.bound(by, **parts)
    return limit_words(loader(workers, bound=bound, fetch=replace(reads, **fetched)), run())


def test_what_is_said_of_a_loader(gallery):
    stopped = summaries.fetch(0.4, 400, workers=4, running=0.8, throttled=0.2)
    slow = [summaries.slow_sample(307, 0.25), summaries.slow_sample(None, 0.15)]
    slow_samples = fetch_with(typical_sample_s=0.0125, slow_samples=slow)
    gallery(
        "loader_words.txt",
        {
            "who prepares a batch": [
                *(makers(loader(count)) for count in (4, 1, 0, None)),
                *(makers(loader(count, fetch=None)) for count in (4, None)),
            ],
            **{
                f"{count} workers, {by}, {parts}": limited(count, by, parts)
                for count, by, parts in LIMITS
            },
            "workers that died": [faults(loader(lost_workers=[lost]))[0] for lost in LOST],
            "streams that repeat": [
                *faults(loader(2, **STREAM)),
                *faults(loader(3, **STREAM, equal_workers=2)),
            ],
            "an open file": faults(loader(2, **HELD)),
            "a CPU quota": warnings(loader(fetch=stopped), run()),
            "slow samples": warnings(loader(fetch=slow_samples), run()),
            "names of samples": [sample_name(sample) for sample in (*slow, {})],
        },
    )


@pytest.mark.parametrize("nothing", [0, None])
def test_storage_is_never_said_where_no_byte_was_read(nothing):
    words = limited(4, STORAGE, {"blocked": 0.05, "compute": 0.05}, read_bytes=nothing)
    assert not re.search(r"disk|storage", words, re.IGNORECASE)


def test_only_a_loader_that_training_waits_for_needs_words():
    training_s = run().phases.training_s
    little = loader(wait_total_s=0.04 * training_s, init_s=None, first_batch_s=None)
    much = replace(little, wait_total_s=0.06 * training_s)
    starts = replace(little, first_batch_s=summaries.statistics(0.06 * training_s, n=1))
    for waited, is_needed in (
        (little, False),
        (much, True),
        (replace(much, thread="other"), False),
        (starts, True),
        (replace(little, lost_workers=[{}]), True),
    ):
        assert needs_words(waited, run()) is is_needed


def test_a_loader_without_trouble_has_no_fault_and_no_warning():
    crowded = summaries.fetch(0.4, 400, workers=4, runnable=0.7, throttled=0.3)
    unfelt = loader(passes=9, wait_total_s=0.1, first_batch_s=None, fetch=crowded)
    for calm in (loader(), loader(fetch=None), unfelt):
        assert warnings(calm, run()) == []
    for calm in (
        loader(3, **STREAM, equal_workers=1),
        loader(1, **STREAM),
        loader(2, **{**STREAM, "shares_samples": True}),
        loader(2, **{**STREAM, "shares_samples": None}),
        loader(1, **HELD),
        loader(2, **{**HELD, "start_method": "spawn"}),
        loader(2, start_method="fork"),
    ):
        assert faults(calm) == []
