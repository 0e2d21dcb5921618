"""The rules, in the order in which they are named where nothing is found."""

from __future__ import annotations

from typing import Final

from trainprof.analysis.diagnosis import (
    anomaly_detection,
    batch_preparation,
    blocking_copies,
    dense_embeddings,
    discarded_gradients,
    double_precision,
    duplicated_stream,
    exposed_syncs,
    gc_pauses,
    growing_backward,
    launch_bound,
    needless_averaging,
    padded_batches,
    python_in_loop,
    python_in_model,
    recompiling,
    saturated_cpu,
    serial_loading,
    slow_checkpoints,
    slow_optimizer,
    slow_rank,
    slow_receive,
    slow_samples,
    slow_validation,
    storage_bound,
    thread_count,
    too_few_workers,
    unused_gradients,
    worker_restart,
)
from trainprof.analysis.diagnosis.rule import Rule, rule_in
from trainprof.analysis.finding import MERGED

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
