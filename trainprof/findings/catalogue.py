"""The rules, in the order in which they are named where nothing is found."""

from __future__ import annotations

from typing import Final

from trainprof.analysis.summary.finding import MERGED
from trainprof.findings.device import blocking_copies, exposed_syncs, launch_bound
from trainprof.findings.distributed import slow_rank
from trainprof.findings.distributed.needless_averaging import rule as needless_averaging
from trainprof.findings.loading import (
    batch_preparation,
    duplicated_stream,
    saturated_cpu,
    serial_loading,
    slow_receive,
    slow_samples,
    storage_bound,
    too_few_workers,
    worker_restart,
)
from trainprof.findings.loop import gc_pauses, python_in_loop, slow_checkpoints, slow_validation
from trainprof.findings.model import (
    anomaly_detection,
    discarded_gradients,
    double_precision,
    growing_backward,
    python_in_model,
    recompiling,
    slow_optimizer,
    thread_count,
    unused_gradients,
)
from trainprof.findings.model.dense_embeddings import rule as dense_embeddings
from trainprof.findings.model.padded_batches import rule as padded_batches
from trainprof.findings.rule import Rule, rule_in

_OF_MODULES: Final = tuple(
    rule_in(module)
    for module in (
        serial_loading,
        duplicated_stream,
        too_few_workers,
        saturated_cpu,
        storage_bound,
        slow_samples,
        slow_receive,
        worker_restart,
        blocking_copies,
        exposed_syncs,
        launch_bound,
        slow_validation,
        slow_checkpoints,
        python_in_loop,
        python_in_model,
        gc_pauses,
        growing_backward,
        unused_gradients,
        discarded_gradients,
        dense_embeddings,
        padded_batches,
        slow_optimizer,
        double_precision,
        slow_rank,
        needless_averaging,
        recompiling,
        anomaly_detection,
        thread_count,
    )
)
RULES: Final[tuple[Rule, ...]] = (*_OF_MODULES, *batch_preparation.RULES)

_BY_LINE: Final = "the lines that take most of a step are under Hot lines on the page"
# What were findings once: where they are seen now.
GONE: Final[dict[str, str]] = {
    "competing_thread": "the page says under Threads how often another thread was at work",
    "recomputed_forward": "the page says under Not judged what computing forwards again takes",
    **dict.fromkeys(
        (
            "broadcast_pairs",
            "constant_in_forward",
            "forward_by_sample",
            "ignored_positions",
            "late_selection",
            "module_hooks",
            "rarely_used_gradients",
            "repeated_backward",
            "repeated_forward",
            "repeated_in_forward",
            "tiny_numbers",
            "untrained_modules",
            "unused_forward",
        ),
        _BY_LINE,
    ),
}


def rule_named(name: str) -> Rule | None:
    """Returns the rule of a name, or that which finds now what a rule of that name found."""
    name = MERGED.get(name, name)
    return next((rule for rule in RULES if rule.id == name), None)
