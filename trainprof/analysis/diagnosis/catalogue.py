"""The rules, in the order in which they are named where nothing is found."""

from __future__ import annotations

from typing import Final

from trainprof.analysis.diagnosis import (
    anomaly_detection,
    blocking_copies,
    competing_thread,
    crowded_cores,
    dense_embeddings,
    discarded_gradients,
    double_precision,
    exposed_syncs,
    few_threads,
    gc_pauses,
    growing_backward,
    idle_workers,
    launch_bound,
    module_hooks,
    needless_workers,
    python_in_loop,
    python_in_model,
    recompiling,
    repeated_forward,
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
    unused_forward,
    unused_gradients,
    worker_restart,
    worker_threads,
)
from trainprof.analysis.diagnosis.rule import Rule, rule_in

RULES: Final[tuple[Rule, ...]] = tuple(
    rule_in(module)
    for module in (
        serial_loading,
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
        launch_bound,
        slow_validation,
        slow_checkpoints,
        python_in_loop,
        python_in_model,
        module_hooks,
        gc_pauses,
        growing_backward,
        unused_forward,
        repeated_forward,
        unused_gradients,
        discarded_gradients,
        dense_embeddings,
        slow_optimizer,
        double_precision,
        slow_rank,
        recompiling,
        anomaly_detection,
        torch_threads,
        few_threads,
        worker_threads,
        competing_thread,
    )
)


def rule_named(name: str) -> Rule | None:
    return next((rule for rule in RULES if rule.id == name), None)
