"""One planted fault each, of a size from just above what counts to most of the training."""

from __future__ import annotations

from collections.abc import Callable

from planted.calls import needless_averaging
from planted.computing import (
    anomaly_detection,
    dense_embeddings,
    discarded_gradients,
    double_precision,
    few_threads,
    padded_batches,
    too_many_threads,
    unused_gradients,
)
from planted.crowding import crowded_cores, torch_in_workers, worker_threads
from planted.draw import Draw
from planted.growing import growing_backward
from planted.in_memory import needless_workers, sample_by_sample
from planted.loading import (
    idle_workers,
    saturated_cpu,
    serial_decoding,
    serial_loading,
    slow_collate,
    slow_receive,
    slow_sampler,
    slow_samples,
    too_few_workers,
    uneven_batches,
)
from planted.model_code import (
    elements_in_model,
    optimizer_by_hand,
    python_in_model,
    recompiling,
    slow_optimizer,
)
from planted.on_device import (
    blocking_copies,
    emptied_cache,
    exposed_syncs,
    launch_bound,
    python_on_device,
)
from planted.pausing import (
    batches_by_hand,
    collections_called,
    collections_due,
    much_validation,
    python_in_loop,
    slow_checkpoints,
    slow_environment,
    slow_validation,
    validation_by_hand,
    validation_without_loaders,
)
from planted.ranks import slow_rank, uneven_ranks
from planted.script import Case
from planted.starts import (
    iterator_by_step,
    reopened_file,
    slow_first_batch,
    slow_pass_starts,
    worker_restart,
)
from planted.storage import storage_bound

FAULTS: dict[str, Callable[[Draw], Case]] = {
    one.__name__: one
    for one in (
        serial_loading,
        serial_decoding,
        too_few_workers,
        sample_by_sample,
        needless_workers,
        saturated_cpu,
        crowded_cores,
        storage_bound,
        slow_samples,
        uneven_batches,
        idle_workers,
        slow_collate,
        slow_receive,
        slow_sampler,
        worker_restart,
        reopened_file,
        slow_pass_starts,
        iterator_by_step,
        slow_first_batch,
        blocking_copies,
        exposed_syncs,
        emptied_cache,
        launch_bound,
        python_on_device,
        slow_validation,
        much_validation,
        validation_by_hand,
        validation_without_loaders,
        slow_checkpoints,
        python_in_loop,
        batches_by_hand,
        slow_environment,
        python_in_model,
        elements_in_model,
        collections_called,
        collections_due,
        growing_backward,
        padded_batches,
        dense_embeddings,
        slow_optimizer,
        optimizer_by_hand,
        slow_rank,
        uneven_ranks,
        needless_averaging,
        recompiling,
        anomaly_detection,
        double_precision,
        unused_gradients,
        discarded_gradients,
        too_many_threads,
        few_threads,
        worker_threads,
        torch_in_workers,
    )
}
