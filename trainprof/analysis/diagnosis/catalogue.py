"""The rules, in the order in which they are named where nothing is found."""

from __future__ import annotations

from typing import Final

from trainprof.analysis.diagnosis import (
    anomaly_detection,
    blocking_copies,
    crowded_cores,
    dense_embeddings,
    discarded_gradients,
    double_precision,
    duplicated_stream,
    emptied_cache,
    exposed_syncs,
    few_threads,
    gc_pauses,
    growing_backward,
    idle_workers,
    launch_bound,
    needless_averaging,
    needless_workers,
    padded_batches,
    python_in_loop,
    python_in_model,
    recompiling,
    sample_by_sample,
    saturated_cpu,
    serial_loading,
    slow_checkpoints,
    slow_collate,
    slow_first_batch,
    slow_optimizer,
    slow_pass_starts,
    slow_rank,
    slow_receive,
    slow_sampler,
    slow_samples,
    slow_validation,
    storage_bound,
    too_few_workers,
    torch_threads,
    uneven_batches,
    unused_gradients,
    worker_restart,
    worker_threads,
)
from trainprof.analysis.diagnosis.rule import Rule, rule_in

RULES: Final[tuple[Rule, ...]] = tuple(
    rule_in(module)
    for module in (
        serial_loading,
        duplicated_stream,
        sample_by_sample,
        too_few_workers,
        needless_workers,
        idle_workers,
        saturated_cpu,
        crowded_cores,
        storage_bound,
        uneven_batches,
        slow_samples,
        slow_collate,
        slow_receive,
        slow_sampler,
        worker_restart,
        slow_pass_starts,
        slow_first_batch,
        blocking_copies,
        exposed_syncs,
        emptied_cache,
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
        torch_threads,
        few_threads,
        worker_threads,
    )
)

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
    return next((rule for rule in RULES if rule.id == name), None)
